"""From pixels of a source to cloud-optimised GeoTIFFs on one output grid."""
