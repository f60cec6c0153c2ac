"""Handlers that copy an approved, public revision to the external zone, and that remove its copies.

exporter           what copies objects: the worker itself, or a pipeline of Azure Data Factory
data_factory       the client of Azure Data Factory
documents          STAC documents and mosaics as they are in the external zone
copying            the handlers of external_export
withdrawal         the handlers of unpublish
"""
