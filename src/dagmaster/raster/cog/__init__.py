"""Write pixels of a source as cloud-optimised GeoTIFFs on one output grid."""
