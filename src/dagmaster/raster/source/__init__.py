"""What a raster file is: opening it safely, its header facts, CRS, extent, bands and pixels."""
