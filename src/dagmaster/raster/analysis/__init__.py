"""What is measured of finished rasters: statistics, footprints and the mosaic over them."""
