"""STAC collections: one for each dataset, with all its items.

The collection of a tiled raster has what its tiles share (bands, renders, projection) and the assets of the whole
dataset: `mosaic` (MosaicJSON) and `tiling_scheme` (GeoJSON). Those of older versions stay in it: see `versions`.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dagmaster.bbox import BBox
from dagmaster.errors import InvalidRequest
from dagmaster.stac.bands import bands
from dagmaster.stac.item import (
    STAC_VERSION,
    map_links,
    other_links,
    platform_fields,
    providers,
    thumbnail_asset,
    version_fields,
)
from dagmaster.stac.public import linked
from dagmaster.stac.values import EXTENSIONS, Cog, Dataset, Json, Links, Version, multihash
from dagmaster.stac.when import ItemTime
from dagmaster.timestamps import rfc3339

# Fields that differ between files, which are not part of `item_assets`.
_FIELDS_OF_ONE_FILE = (
    "href",
    "file:size",
    "file:checksum",
    "file:header_size",
    "proj:shape",
    "proj:transform",
    "proj:bbox",
)
_FIELDS_OF_ONE_BAND = ("statistics", "raster:histogram")


@dataclass(frozen=True, slots=True)
class CollectionAssets:
    """Public URLs of the assets of the whole dataset.

    `mosaic_as_cog` describes the mosaic like one COG, with the statistics of all tiles.
    """

    mosaic: str | None = None
    tiling_scheme: str | None = None
    thumbnail: str | None = None
    mosaic_as_cog: Cog | None = None


def collection(
    *,
    dataset: Dataset,
    version: Version,
    bbox: BBox,
    items: Sequence[Mapping[str, Any]],
    links: Links,
    assets: CollectionAssets | None = None,
    when: ItemTime | None = None,
    platform: Mapping[str, str] | None = None,
    source_sha256: str | None = None,
    created: datetime | None = None,
    updated: datetime | None = None,
) -> Json:
    """A collection as a plain JSON document.

    `items` are all items or a sample of them: what they share goes into the collection. `bbox` and `when` cover all
    items; without `when` the interval is that of the given items. `source_sha256` is the hash of the source;
    for several sources, that of the list of their hashes.
    """
    if not items:
        raise InvalidRequest("a collection needs at least one item", code="stac.collection-empty")
    first = items[0]
    document: Json = {
        "type": "Collection",
        "stac_version": STAC_VERSION,
        "stac_extensions": [],
        "id": dataset.id,
        "title": dataset.title or dataset.id,
        "description": dataset.description or f"Raster dataset {dataset.title or dataset.id}",
        **({"keywords": list(dataset.keywords)} if dataset.keywords else {}),
        "license": dataset.license,
        **({"providers": providers(dataset.providers)} if dataset.providers else {}),
        **({"created": rfc3339(created)} if created else {}),
        **({"updated": rfc3339(updated)} if updated else {}),
        **version_fields(version),
        **platform_fields(platform or {}),
        **({"dagmaster:source_checksum": multihash(source_sha256)} if source_sha256 else {}),
        "extent": {
            "spatial": {"bbox": [[float(edge) for edge in bbox]]},
            "temporal": {"interval": [_interval(when, items)]},
        },
        "summaries": _summaries(items),
        "item_assets": {key: _shared(asset) for key, asset in first["assets"].items()},
        "renders": copy.deepcopy(dict(first["properties"]["renders"])),
        "assets": _assets(assets or CollectionAssets(), _identity_fields(version, bbox, updated)),
        "links": _links(links),
    }
    document["stac_extensions"] = _extensions(document)
    return document


def _identity_fields(version: Version, bbox: BBox, updated: datetime | None) -> Json:
    """Fields of the mosaic by which its version can be identified after the collection describes a newer version."""
    return {
        "dagmaster:version_ordinal": version.ordinal,
        "dagmaster:revision": version.revision,
        "dagmaster:bbox": [float(edge) for edge in bbox],
        **({"updated": rfc3339(updated)} if updated else {}),
    }


def _interval(when: ItemTime | None, items: Sequence[Mapping[str, Any]]) -> list[str]:
    if when:
        return [rfc3339(when.start), rfc3339(when.end or when.start)]
    every = [item["properties"] for item in items]
    starts = [times.get("start_datetime") or times["datetime"] for times in every]
    ends = [times.get("end_datetime") or times["datetime"] for times in every]
    return [min(starts, key=datetime.fromisoformat), max(ends, key=datetime.fromisoformat)]


def _summaries(items: Sequence[Mapping[str, Any]]) -> Json:
    codes = {item["properties"].get("proj:code") for item in items} - {None}
    resolutions = {item["properties"].get("gsd") for item in items} - {None}
    return {
        **({"proj:code": sorted(codes)} if codes else {}),
        **({"gsd": sorted(resolutions)} if resolutions else {}),
    }


def _shared(asset: Mapping[str, Any]) -> Json:
    fields = {key: copy.deepcopy(value) for key, value in asset.items() if key not in _FIELDS_OF_ONE_FILE}
    if "bands" in fields:
        fields["bands"] = [
            {key: value for key, value in band.items() if key not in _FIELDS_OF_ONE_BAND} for band in fields["bands"]
        ]
    return fields


def _assets(assets: CollectionAssets, identity_fields: Json) -> Json:
    entries: Json = {}
    if assets.mosaic:
        entries["mosaic"] = {
            "href": linked(assets.mosaic),
            "type": "application/json",
            "title": "MosaicJSON",
            "roles": ["index"],
            **identity_fields,
        }
        if assets.mosaic_as_cog:
            entries["mosaic"]["bands"] = bands(assets.mosaic_as_cog)
    if assets.tiling_scheme:
        entries["tiling_scheme"] = {
            "href": linked(assets.tiling_scheme),
            "type": "application/geo+json",
            "title": "Tiling scheme",
            "roles": ["metadata"],
        }
    if assets.thumbnail:
        entries["thumbnail"] = thumbnail_asset(assets.thumbnail)
    return entries


def _links(links: Links) -> list[Json]:
    json = "application/json"
    singles = [
        ("self", links.self_ or links.collection),
        ("root", links.root),
        ("parent", links.parent or links.root),
        ("version-history", links.history),
    ]
    plain = [{"rel": rel, "type": json, "href": linked(href)} for rel, href in singles if href]
    return [*plain, *map_links(links), *other_links(links)]


def _extensions(document: Json) -> list[str]:
    names = ["projection", "raster", "version", "render"]
    if any("eo:bands" in asset for asset in document["item_assets"].values()):
        names.append("eo")
    if any("render" in link for link in document["links"]):
        names.append("web-map-links")
    if any("classification:classes" in asset for asset in document["item_assets"].values()):
        names.append("classification")
    return [EXTENSIONS[name] for name in names]
