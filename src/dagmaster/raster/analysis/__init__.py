"""Statistics, footprints and mosaics of rasters that the platform has written."""
