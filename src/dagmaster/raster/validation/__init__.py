"""Whether a raster file is fit for processing: rules, findings and the verdict, checked in a limited process."""
