"""Check whether a raster file can be processed: rules, findings and the verdict, in a limited process if untrusted."""
