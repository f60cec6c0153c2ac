"""Rasters: what a file is, whether it is good, the grid it goes to, COGs, mosaics and statistics.

A library. It knows nothing of jobs, databases or storage: functions take paths and values and return values, so that they are
as pleasant in a notebook as in a handler.
"""
