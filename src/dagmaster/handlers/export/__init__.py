"""Handlers that copy an approved, public revision to the external zone, and that remove its copies.

exporter           copying objects: by the worker itself, or by a pipeline of Azure Data Factory
data_factory       the client of Azure Data Factory
documents          STAC documents and mosaics in the form that the external zone needs
copying            the handlers of external_export
withdrawal         the handlers of unpublish
"""
