"""The platforms that a deployed schema has, as values."""

from dagmaster.assets.identity import RegisteredPlatform

SHIPPED = (
    RegisteredPlatform(
        "ddh", "Data Distribution Hub", ("dataset_id", "resource_id", "version_id"), version_ref="version_id"
    ),
    RegisteredPlatform("arcgis", "ArcGIS", ("item_id", "layer_index", "version"), version_ref="version"),
    RegisteredPlatform("geonode", "GeoNode", ("uuid", "version"), version_ref="version"),
    RegisteredPlatform("local", "This installation", ("dataset",), ("version",), version_ref="version"),
    RegisteredPlatform("legacy", "Jobs of the earlier API", ("dataset",), ("version",), version_ref="version"),
)
