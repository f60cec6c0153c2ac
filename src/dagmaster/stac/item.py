"""STAC items: one for a single COG, one for each tile of a tiled raster.

Items contain only measurements and what the caller passes. URLs must be public. The same input gives the same item. Its
id does not depend on the revision: a new revision replaces the item, a new version is another item.
"""

import copy
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from dagmaster.dataset_ids import RULE, is_dataset_id
from dagmaster.errors import InvalidRequest
from dagmaster.stac.bands import bands, classes, crs_fields, eo_bands, projection, resolution_metres
from dagmaster.stac.public import linked, public
from dagmaster.stac.renders import renders
from dagmaster.stac.values import (
    EXTENSIONS,
    Cog,
    Dataset,
    FootprintLike,
    Json,
    Links,
    Processing,
    Provider,
    Version,
    multihash,
)
from dagmaster.stac.when import ItemTime
from dagmaster.timestamps import rfc3339

STAC_VERSION = "1.1.0"
COG_TYPE = "image/tiff; application=geotiff; profile=cloud-optimized"
_REF = re.compile(r"[a-z][a-z0-9_]*")
_IMAGE_TYPES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".webp": "image/webp"}


def item_id(dataset: str, ordinal: int, tile: str | None = None) -> str:
    """`roads-v1`, or `roads-v1-r003c012` for a tile or another part of it."""
    if tile is not None and not is_dataset_id(tile):
        raise InvalidRequest(
            f"the id of a part must consist of {RULE}",
            code="stac.tile-id",
        )
    return f"{dataset}-v{ordinal}" + (f"-{tile}" if tile else "")


def item(
    *,
    dataset: Dataset,
    version: Version,
    when: ItemTime,
    cog: Cog,
    footprint: FootprintLike,
    processing: Processing,
    links: Links,
    tile: str | None = None,
    shown_as: Mapping[str, Any] | None = None,
    platform: Mapping[str, str] | None = None,
    thumbnail: str | None = None,
    created: datetime | None = None,
    published: datetime | None = None,
) -> Json:
    """An item as a plain JSON document.

    `tile` (r<row>c<column>) makes it an item of a tiled raster; `shown_as` are then the renders of the whole dataset,
    so that tiles look alike. `created` is the time of the first revision. `platform` holds the platform's refs, each
    published as `platform:<ref>`.
    """
    document: Json = {
        "type": "Feature",
        "stac_version": STAC_VERSION,
        "stac_extensions": [],
        "id": item_id(dataset.id, version.ordinal, tile),
        "collection": dataset.id,
        "geometry": copy.deepcopy(dict(footprint.geometry)),
        "bbox": [float(edge) for edge in footprint.bbox],
        "properties": {
            **_description(dataset, tile),
            **_times(when),
            "created": rfc3339(created or processing.at),
            "updated": rfc3339(processing.at),
            **({"published": rfc3339(published)} if published else {}),
            **({"gsd": gsd} if (gsd := resolution_metres(cog.facts)) else {}),
            **crs_fields(cog.facts),
            **version_fields(version),
            **_processing(processing),
            **platform_fields(platform or {}),
            "renders": copy.deepcopy(dict(shown_as)) if shown_as else renders(cog),
        },
        "assets": _assets(cog, thumbnail),
        "links": item_links(links),
    }
    document["stac_extensions"] = _extensions(document)
    return document


def _description(dataset: Dataset, tile: str | None) -> Json:
    title = dataset.title or dataset.id
    fields: Json = {"title": f"{title} ({tile})" if tile else title}
    if dataset.description:
        fields["description"] = dataset.description
    if dataset.keywords:
        fields["keywords"] = list(dataset.keywords)
    fields["license"] = dataset.license
    if dataset.providers:
        fields["providers"] = providers(dataset.providers)
    return fields


def providers(provider_list: tuple[Provider, ...]) -> list[Json]:
    return [
        {
            "name": provider.name,
            **({"roles": list(provider.roles)} if provider.roles else {}),
            **({"url": public(provider.url)} if provider.url else {}),
        }
        for provider in provider_list
    ]


def _times(when: ItemTime) -> Json:
    if when.end is None:
        return {"datetime": rfc3339(when.start), "dagmaster:datetime_basis": when.basis}
    return {
        "datetime": rfc3339(when.start) if when.is_of_one_day else None,
        "start_datetime": rfc3339(when.start),
        "end_datetime": rfc3339(when.end),
        "dagmaster:datetime_basis": when.basis,
    }


def version_fields(version: Version) -> Json:
    return {
        "version": version.label or str(version.ordinal),
        "deprecated": False,  # until a newer version is published
        "dagmaster:version_ordinal": version.ordinal,
        "dagmaster:revision": version.revision,
    }


def _processing(processing: Processing) -> Json:
    fields: Json = {
        "processing:facility": processing.facility,
        "processing:datetime": rfc3339(processing.at),
        "processing:lineage": processing.lineage,
        "processing:software": dict(sorted(processing.software.items())),
    }
    if processing.workflow:
        fields["processing:version"] = processing.workflow
    if processing.source_name:
        fields["dagmaster:source_name"] = processing.source_name
    if processing.source_crs:
        fields["dagmaster:source_crs"] = processing.source_crs
    if processing.source_sha256:
        fields["dagmaster:source_checksum"] = multihash(processing.source_sha256)
    if processing.sources:
        fields["dagmaster:sources"] = [_source(*source) for source in processing.sources]
    return fields


def _source(name: str | None, sha256: str | None) -> Json:
    return ({"name": name} if name else {}) | ({"checksum": multihash(sha256)} if sha256 else {})


def platform_fields(refs: Mapping[str, str]) -> Json:
    if wrong := [name for name in refs if not _REF.fullmatch(name)]:
        raise InvalidRequest(
            f"'{wrong[0]}' is not a valid name of a reference",
            code="stac.platform-ref",
            hint="use lower-case letters, digits and underscores",
        )
    return {f"platform:{name}": str(value) for name, value in sorted(refs.items())}


def _assets(cog: Cog, thumbnail: str | None) -> Json:
    data: Json = {
        "href": linked(cog.href),
        "title": cog.title or "Cloud-optimised GeoTIFF",
        "type": COG_TYPE,
        "roles": ["data"],
        "file:size": cog.size_bytes,
        "file:checksum": multihash(cog.sha256),
    }
    if cog.header_bytes is not None:
        data["file:header_size"] = cog.header_bytes
    data |= projection(cog.facts)
    if class_list := classes(cog):
        data["classification:classes"] = class_list
    data["bands"] = bands(cog)
    data["eo:bands"] = eo_bands(data["bands"])
    return {"data": data, **({"thumbnail": thumbnail_asset(thumbnail)} if thumbnail else {})}


def thumbnail_asset(href: str) -> Json:
    ending = re.search(r"\.\w+$", href.partition("?")[0].lower())
    media_type = _IMAGE_TYPES.get(ending[0] if ending else "", "image/png")
    return {"href": linked(href), "type": media_type, "title": "Thumbnail", "roles": ["thumbnail"]}


def item_links(links: Links) -> list[Json]:
    if links.collection is None:
        raise InvalidRequest("an item needs the address of its collection", code="stac.no-collection-link")
    geojson, json = "application/geo+json", "application/json"
    singles = [
        ("self", geojson, links.self_),
        ("root", json, links.root),
        ("parent", json, links.parent or links.collection),
        ("collection", json, links.collection),
        ("version-history", json, links.history),
    ]
    links_of_rel = [_link(rel, media_type, href) for rel, media_type, href in singles if href]
    return [*links_of_rel, *map_links(links), *other_links(links)]


def map_links(links: Links) -> list[Json]:
    """Each names the render that it shows, as the render extension requires."""
    map_link_list = []
    if links.tilejson:
        map_link_list.append({**_link("tilejson", "application/json", links.tilejson), "render": "default"})
    if links.xyz:
        map_link_list.append({**_link("xyz", "image/png", links.xyz), "render": "default"})
    return map_link_list


def other_links(links: Links) -> list[Json]:
    link_list = [{"rel": "license", "href": linked(links.license)}] if links.license else []
    link_list += [
        {"rel": "derived_from", "type": "application/geo+json", "href": linked(href)} for href in links.derived_from
    ]
    return [*link_list, *({"rel": "via", "href": linked(href)} for href in links.via)]


def _link(rel: str, media_type: str, href: str) -> Json:
    return {"rel": rel, "type": media_type, "href": linked(href)}


def _extensions(document: Json) -> list[str]:
    """The extensions that the document uses, and no others."""
    names = ["projection", "raster", "eo", "file", "processing", "version"]
    if "published" in document["properties"]:
        names.append("timestamps")
    names.append("render")
    if any("render" in link for link in document["links"]):
        names.append("web-map-links")
    if "classification:classes" in document["assets"]["data"]:
        names.append("classification")
    return [EXTENSIONS[name] for name in names]
