"""Small COGs, a mosaic of them, and their catalogue: test data of the map server."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from rasterio.io import MemoryFile
from rasterio.shutil import copy
from rasterio.transform import from_bounds

from dagmaster.storage.location import Edition, Location, Zone
from dagmaster.storage.zones import Storage

PUBLIC = "http://maps.example"
FORMER = "http://127.0.0.1:18103"  # the former address of the server
COG_TYPE = "image/tiff; application=geotiff; profile=cloud-optimized"
BBox = tuple[float, float, float, float]


def write_cog(path: Path, pixels: np.ndarray, bounds: BBox, **profile: Any) -> Path:
    """Write an array (bands, rows, columns) as a COG in EPSG:4326, or in another `crs`."""
    bands, rows, columns = pixels.shape
    crs = profile.pop("crs", "EPSG:4326")
    with MemoryFile() as memory:
        with memory.open(
            driver="GTiff",
            count=bands,
            height=rows,
            width=columns,
            dtype=pixels.dtype,
            crs=crs,
            transform=from_bounds(*bounds, columns, rows),
            **profile,
        ) as dataset:
            dataset.write(pixels)
        with memory.open() as dataset:
            copy(dataset, path, driver="COG", compress="DEFLATE", blocksize=256)
    return path


def stored(storage: Storage, folder: Path, blob: str, pixels: np.ndarray, bounds: BBox, **profile: Any) -> Location:
    location = storage.location(blob, zone=Zone.SILVER)
    file = write_cog(folder / f"{hashlib.sha256(blob.encode()).hexdigest()}.tif", pixels, bounds, **profile)
    storage.put_file(location, file, move=True)
    return location


def href(location: Location, base: str = PUBLIC) -> str:
    return f"{base}/files/{location.zone}/{location.container}/{location.blob}"


def collection(dataset: str, bbox: BBox, **more: Any) -> dict[str, Any]:
    return {
        "type": "Collection",
        "stac_version": "1.1.0",
        "id": dataset,
        "title": f"The {dataset}",
        "description": f"About {dataset}",
        "license": "CC-BY-4.0",
        "links": [],
        "providers": [{"name": "Surveyors <i>&</i> Co", "roles": ["producer"]}],
        "extent": {
            "spatial": {"bbox": [list(bbox)]},
            "temporal": {"interval": [["2024-01-01T00:00:00Z", "2024-12-31T00:00:00Z"]]},
        },
        **more,
    }


def item(
    edition: Edition,
    location: Location,
    bbox: BBox,
    suffix: str = "",
    *,
    bands: Iterable[Mapping[str, Any]] = (),
    **properties: Any,
) -> dict[str, Any]:
    west, south, east, north = bbox
    ring = [[west, south], [east, south], [east, north], [west, north], [west, south]]
    return {
        "type": "Feature",
        "stac_version": "1.1.0",
        "collection": edition.dataset_id,
        "id": f"{edition.dataset_id}-v{edition.ordinal}{suffix}",
        "bbox": list(bbox),
        "geometry": {"type": "Polygon", "coordinates": [ring]},
        "properties": {
            "datetime": "2024-06-01T00:00:00Z",
            "title": f"{edition.dataset_id} {edition.ordinal}",
            "dagmaster:version_ordinal": edition.ordinal,
            "dagmaster:revision": edition.revision,
            **properties,
        },
        "assets": {"data": {"href": href(location), "type": COG_TYPE, "roles": ["data"], "bands": list(bands)}},
        "links": [],
    }


def decoded(picture: bytes) -> np.ndarray:
    """The pixels of a PNG, JPEG or WebP: bands, rows, columns."""
    with MemoryFile(picture) as memory, memory.open() as opened:
        return opened.read()


def rounded(values: Iterable[float]) -> list[float]:
    return [round(value, 6) for value in values]


__all__ = ["BBox", "collection", "decoded", "href", "item", "rasterio", "rounded", "stored", "write_cog"]
