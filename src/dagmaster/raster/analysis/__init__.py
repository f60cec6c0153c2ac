"""Statistics and footprints of finished rasters, and the mosaic of them."""
