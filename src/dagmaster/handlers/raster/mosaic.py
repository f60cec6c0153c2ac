"""What belongs to a dataset as a whole: mosaic, statistics, and the collection that describes it."""

from collections.abc import Iterator
from dataclasses import dataclass

import orjson
from pydantic import BaseModel

from dagmaster.bbox import BBox
from dagmaster.errors import UnfitData
from dagmaster.handlers.context import SyncContext
from dagmaster.handlers.describing import About, Json, cog_of, collection_of
from dagmaster.handlers.raster.workplace import COLLECTION, Place, megabytes, place_of_work
from dagmaster.jobs.states import NodeStatus
from dagmaster.raster.analysis import mosaic as mosaics
from dagmaster.raster.analysis.footprint import Footprint, union
from dagmaster.raster.analysis.statistics import (
    Partial,
    Partials,
    combine,
    summarize,
)
from dagmaster.raster.source.facts import read_facts
from dagmaster.storage.location import Location, Zone


class MosaicParams(BaseModel):
    about: About
    raster_type: str = "auto"
    results_of: Json
    tiling_scheme_blob: str | None = None


def create_mosaic(ctx: SyncContext, params: MosaicParams) -> Json:
    """The mosaic of all COGs, statistics over all of them, and the collection that describes the whole."""
    place, about = place_of_work(), params.about
    gathered = _gather(ctx)
    first = gathered.first
    # Not by its title: that may change, and a published object does not.
    document = mosaics.mosaic(gathered.assets, name=about.dataset_id)
    location = place.publish(about.edition.mosaic(), mosaics.encode(document))
    statistics = summarize(gathered.partials)
    facts = read_facts(place.storage.gdal_path(Location(Zone.SILVER, first["cog_container"], first["cog_blob"])))
    kind = params.raster_type
    whole = cog_of(about, place.addresses.file(location), facts, 0, "", raster_type=kind, statistics=statistics)
    ground = union(gathered.grounds)
    assert ground is not None  # some tile has data, or there would be no scheme
    collection = collection_of(
        about, place.addresses, ground.bbox, gathered.some_items, mosaic=location, whole=whole,
        tiling_scheme=place.silver(params.tiling_scheme_blob) if params.tiling_scheme_blob else None,
    )  # fmt: skip
    place.storage.put(place.silver(about.edition.stac(COLLECTION)), orjson.dumps(collection))
    return {
        "mosaic_blob": location.blob,
        "mosaic_container": location.container,
        "total_cogs": gathered.count,
        "quadkey_count": len(document["tiles"]),
        "minzoom": document["minzoom"],
        "maxzoom": document["maxzoom"],
        "bounds": document["bounds"],
        "bbox": ground.bbox.as_list(),
        "statistics": [None if band is None else band.as_json() for band in statistics],
        "size_mb": megabytes(gathered.size_bytes),
        "collection": collection,
        **served_at(place, about),
    }


@dataclass(slots=True)
class _Gathered:
    first: Json
    count: int
    size_bytes: int
    assets: list[mosaics.MosaicAsset]
    partials: Partials
    grounds: list[Footprint]
    some_items: list[Json]


def _gather(ctx: SyncContext) -> _Gathered:
    """What the tiles tell, a page at a time: only what is small of each is kept."""
    found: _Gathered | None = None
    for cog in _cogs(ctx):
        partials = tuple(Partial.unpack(packed) for packed in cog["partials"])
        if found is None:
            found = _Gathered(cog, 0, 0, [], partials, [], [])
        else:
            found.partials = combine((found.partials, partials))
        found.count += 1
        found.size_bytes += cog["size_bytes"]
        if cog["footprint"]:  # a tile without data has none, no item either, and nothing to show
            found.assets.append(mosaics.MosaicAsset(**{**cog["asset"], "bbox": BBox.of(cog["asset"]["bbox"])}))
            found.grounds.append(Footprint(cog["footprint"]["geometry"], BBox.of(cog["footprint"]["bbox"])))
        if cog["stac_item"] and len(found.some_items) < 2:
            found.some_items.append(cog["stac_item"])
    if found is None or not found.assets:
        raise UnfitData("there is no COG to make a mosaic of", code="mosaic.empty")
    return found


def _cogs(ctx: SyncContext) -> Iterator[Json]:
    for result in ctx.results(page=100):
        if result.status != NodeStatus.COMPLETED or not isinstance(result.output, dict):
            continue
        yield from result.output.get("tiles") or [result.output]


def served_at(place: Place, about: About) -> Json:
    """Where people find it, once it is in the catalogue."""
    return {
        "tile_server_url": place.addresses.tilejson(about),
        "xyz_url": place.addresses.xyz(about),
        "viewer_url": place.addresses.map(about),
        "stac_url": place.addresses.collection(about),
        "preview_url": place.addresses.preview(about),
    }


class DescribeParams(BaseModel):
    about: About
    item: Json


def describe_dataset(_ctx: SyncContext, params: DescribeParams) -> Json:
    """The collection of a dataset that is a single COG."""
    place = place_of_work()
    bbox = BBox.of(params.item["bbox"])
    collection = collection_of(params.about, place.addresses, bbox, [params.item])
    place.storage.put(place.silver(params.about.edition.stac(COLLECTION)), orjson.dumps(collection))
    return {"collection": collection, **served_at(place, params.about)}
