"""STAC documents of a raster dataset, from the facts and statistics of its files.

Their URLs are paths of the map server, which adds its base in each response. The documents contain no other
information about where files are.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from dagmaster.addresses import Addresses
from dagmaster.bbox import BBox
from dagmaster.handlers.raster.dataset import DatasetDescription, Json
from dagmaster.raster.analysis.footprint import Footprint
from dagmaster.raster.analysis.statistics import BandStatistics
from dagmaster.raster.source.facts import RasterFacts
from dagmaster.stac import collection as collections
from dagmaster.stac import item as items
from dagmaster.stac.renders import renders
from dagmaster.stac.values import Cog, Links
from dagmaster.storage.location import Location


def links_of(description: DatasetDescription, addresses: Addresses, item_id: str | None = None) -> Links:
    dataset_id, ordinal = description.dataset_id, description.version_ordinal
    collection = addresses.collection(dataset_id)
    return Links(
        collection=collection,
        self_=addresses.item(dataset_id, item_id) if item_id else collection,
        root=addresses.catalog(),
        tilejson=addresses.tilejson(dataset_id, ordinal),
        xyz=addresses.xyz(dataset_id, f"version={ordinal}"),
    )


def cog_of(
    description: DatasetDescription,
    href: str,
    facts: RasterFacts,
    size_bytes: int,
    sha256: str,
    *,
    raster_type: str,
    statistics: Sequence[BandStatistics | None],
    header_bytes: int | None = None,
) -> Cog:
    return Cog(
        href,
        facts,
        size_bytes,
        sha256,
        statistics,
        raster_type,
        band_names=description.band_names,
        header_bytes=header_bytes,
    )


def item_of(
    description: DatasetDescription,
    addresses: Addresses,
    cog: Cog,
    footprint: Footprint,
    *,
    tile: str | None = None,
    shown_as: Mapping[str, Any] | None = None,
    created: datetime | None = None,
) -> Json:
    item_id = items.item_id(description.dataset_id, description.version_ordinal, tile)
    return items.item(
        dataset=description.dataset(),
        version=description.version(),
        when=description.when.when(),
        cog=cog,
        footprint=footprint,
        processing=description.processing(),
        links=links_of(description, addresses, item_id),
        tile=tile,
        shown_as=shown_as,
        platform=description.platform_refs,
        thumbnail=None if tile else addresses.preview(description.dataset_id, description.version_ordinal),
        created=created or description.created,
    )


def collection_of(
    description: DatasetDescription,
    addresses: Addresses,
    bbox: BBox,
    sample_items: Sequence[Json],
    *,
    mosaic: Location | None = None,
    tiling_scheme: Location | None = None,
    mosaic_as_cog: Cog | None = None,
) -> Json:
    """`mosaic_as_cog` describes all tiles together: its statistics decide how the mosaic is rendered."""
    assets = collections.CollectionAssets(
        mosaic=addresses.file(mosaic) if mosaic else None,
        tiling_scheme=addresses.file(tiling_scheme) if tiling_scheme else None,
        thumbnail=addresses.preview(description.dataset_id, description.version_ordinal),
        mosaic_as_cog=mosaic_as_cog,
    )
    document = collections.collection(
        dataset=description.dataset(),
        version=description.version(),
        bbox=bbox,
        items=sample_items,
        links=links_of(description, addresses),
        assets=assets,
        when=description.when.when(),
        platform=description.platform_refs,
        source_sha256=description.source_sha256,
        created=description.created or description.processed_at,
        updated=description.processed_at,
    )
    if mosaic_as_cog is not None:
        document["renders"] = renders(mosaic_as_cog)
    return document
