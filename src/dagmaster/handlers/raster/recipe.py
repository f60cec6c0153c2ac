"""The recipe of an edition: all options that decide the bytes of its objects, stored with the edition.

An edition is made with one recipe. As soon as it has an object, a job with another recipe is refused before it writes
any output.
"""

from typing import Any

import orjson

from dagmaster.errors import UnfitData
from dagmaster.handlers.raster.options import Options
from dagmaster.raster.source.facts import RasterFacts, RasterType
from dagmaster.storage.location import Edition, Folder, Location, Zone
from dagmaster.storage.zones import Storage

Recipe = dict[str, Any]


def recipe_of(options: Options, sources: list[RasterFacts], kind: RasterType, source_crs: str | None) -> Recipe:
    is_tiled = any(map(options.is_tiled, sources))
    recipe = {
        "source_bytes": [facts.size_bytes for facts in sources],
        "source_crs": source_crs,
        "raster_type": kind.value,
        "target_crs": options.target_crs,
        "resolution": options.resolution,
        "output_tier": options.output_tier,
        "jpeg_quality": options.jpeg_quality if options.output_tier == "visualization" else None,
        "tiles": is_tiled,
        "tile_size": options.tile_size if is_tiled else None,
        "overlap": options.overlap if is_tiled else None,
    }
    return {name: value for name, value in recipe.items() if value is not None}


def why_taken(storage: Storage, edition: Edition, recipe: Recipe) -> str | None:
    """How the recipe differs from that of the edition; None if it is the same, or if the edition has no objects yet."""
    location = _location_of(storage, edition)
    if not storage.exists(location) or not _has_objects(storage, edition):
        return None
    stored = orjson.loads(storage.get(location))
    names = [name for name in {**stored, **recipe} if stored.get(name) != recipe.get(name)]
    if not names:
        return None
    changes = ", ".join(f"{name} was {_shown(stored.get(name))}, not {_shown(recipe.get(name))}" for name in names)
    revision = f"revision {edition.revision} of version {edition.ordinal} of dataset '{edition.dataset_id}'"
    return f"{revision} was made with other options: {changes}"


def claim(storage: Storage, edition: Edition, recipe: Recipe) -> None:
    """Store the recipe with its edition. Raises UnfitData if the edition was made with another recipe."""
    if reason := why_taken(storage, edition, recipe):
        raise UnfitData(reason, code="edition.taken", hint="submit it again: that makes a new revision")
    location, content = _location_of(storage, edition), orjson.dumps(recipe)
    if not storage.exists(location) or storage.get(location) != content:
        storage.put(location, content)


def _location_of(storage: Storage, edition: Edition) -> Location:
    return storage.location(edition.recipe(), zone=Zone.SILVER)


def _has_objects(storage: Storage, edition: Edition) -> bool:
    """Whether the edition has objects. A job that wrote none does not block one with other options."""
    container = storage.containers[Zone.SILVER]
    folders = {name.rpartition("/")[0] for name in (edition.cog("x"), edition.tiling_scheme("x"), edition.mosaic("x"))}
    return any(next(storage.list(Folder(Zone.SILVER, container, path)), None) for path in folders)


def _shown(value: object) -> str:
    match value:
        case None:
            return "not set"
        case bool():
            return str(value).lower()
        case list():
            return ", ".join(map(str, value))
        case _:
            return str(value)
