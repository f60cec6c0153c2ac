"""Raster files: opening them safely, facts from their headers, CRS, extent, bands and pixels."""
