"""What the outputs shall be like: refused before anything is made where it can't be, and kept with the edition it was made by.

The same rules serve the first task of a job and whoever submits one: neither starts what must fail later.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import orjson
from pydantic import BaseModel

from dagmaster.errors import DagmasterError, InvalidRequest, UnfitData
from dagmaster.raster.cog.grid import BLOCK, OutputGrid, auto_tile_size, output_grid
from dagmaster.raster.cog.profiles import profile_of, require_fit
from dagmaster.raster.source.crs import describe_crs, parse_crs
from dagmaster.raster.source.facts import RasterFacts, RasterType
from dagmaster.raster.validation.findings import Finding, info, warn
from dagmaster.raster.validation.header_rules import Ceilings
from dagmaster.storage.location import Edition, Folder, Location, Zone
from dagmaster.storage.zones import Storage

Json = dict[str, Any]

TILE_ABOVE_MB = 500.0  # as the workflows have it
_METRES_PER_DEGREE = 2 * math.pi * 6_378_137 / 360
_MAPS_END_AT = 85.06  # degrees: Web Mercator knows nothing beyond
_MUCH = 2.0  # times as high as in the source: worth a word


class Options(BaseModel):
    """As they were submitted. `tile_above_mb` is None where no tiles are made, however large the source is."""

    target_crs: str = "EPSG:4326"
    resolution: float | None = None
    tile_size: int | None = None
    overlap: int | None = None
    output_tier: str = "analysis"
    jpeg_quality: int = 85
    overview_level: int = 2
    band_names: list[str] | None = None
    tile_above_mb: float | None = None

    def is_tiled(self, facts: RasterFacts) -> bool:
        if self.tile_above_mb is None:
            return False
        crosses = facts.bounds_4326 is not None and facts.bounds_4326.crosses_antimeridian
        return crosses or facts.raw_bytes > self.tile_above_mb * 1e6


def require_possible(
    options: Options, facts: RasterFacts, kind: RasterType, *, unset_alpha: bool = False
) -> OutputGrid:
    """The grid that the outputs lie on, or every reason why there can be none."""
    problems: list[DagmasterError] = []
    found: list[OutputGrid] = []
    for name, rule in _RULES.items():
        with _noted(problems, name, getattr(options, name)):
            rule(options, facts)
    with _noted(problems, "output_tier", options.output_tier):
        profile = profile_of(options.output_tier, min(100, max(1, options.jpeg_quality)))
        require_fit(profile, _dtype(facts), _colors(facts, kind, unset_alpha=unset_alpha))
    if not any(problem.facts["field"] in ("target_crs", "resolution") for problem in problems):
        with _noted(problems, "target_crs", options.target_crs):
            found.append(_grid(options, facts))
    if problems:
        raise _all_of(problems)
    return found[0]


@contextmanager
def _noted(problems: list[DagmasterError], name: str, value: object) -> Iterator[None]:
    try:
        yield
    except (InvalidRequest, UnfitData) as error:
        shown = str(value) if len(str(value)) <= 60 else f"{str(value)[:57]}…"
        message = f"{name}={shown} can't be: {error.message}"
        problems.append(InvalidRequest(message, code=error.code, hint=error.hint, field=name))


def _all_of(problems: list[DagmasterError]) -> InvalidRequest:
    fields = [problem.facts["field"] for problem in problems]
    if len(problems) == 1:
        (problem,) = problems
        return InvalidRequest(problem.message, code=problem.code, hint=problem.hint, fields=fields)
    return InvalidRequest("; ".join(map(str, problems)), code="options.impossible", fields=fields)


def _quality(options: Options, _facts: RasterFacts) -> None:
    profile_of("visualization", options.jpeg_quality)


def _tile_size(options: Options, _facts: RasterFacts) -> None:
    size = options.tile_size
    if size is not None and (size < BLOCK or size % BLOCK):
        nearest = max(1, round(size / BLOCK)) * BLOCK
        raise InvalidRequest(
            f"a tile is a multiple of {BLOCK} pixels wide", code="raster.bad-tile-size", hint=f"take {nearest}"
        )


def _overlap(options: Options, facts: RasterFacts) -> None:
    overlap = options.overlap
    if overlap is None:
        return
    size = options.tile_size or auto_tile_size(facts.count, _dtype(facts))
    if overlap < 0 or overlap % BLOCK or overlap >= size:
        raise InvalidRequest(
            f"tiles share a multiple of {BLOCK} pixels, less than the {size} that they are wide",
            code="raster.bad-tile-size",
            hint=f"take 0 or {BLOCK}",
        )


def _target_crs(options: Options, _facts: RasterFacts) -> None:
    crs = parse_crs(options.target_crs)
    if not (crs.is_projected or crs.is_geographic):
        raise InvalidRequest(
            "it is neither projected nor geographic: no map lies on it", code="raster.bad-crs",
            hint="take EPSG:4326, or a projected CRS of its place",
        )  # fmt: skip


def _resolution(options: Options, _facts: RasterFacts) -> None:
    size = options.resolution
    if size is not None and not (math.isfinite(size) and size > 0):
        raise InvalidRequest("a pixel has a size above zero", code="raster.bad-resolution", hint="leave it out")


def _overview_level(options: Options, _facts: RasterFacts) -> None:
    if not 0 <= options.overview_level <= 10:
        raise InvalidRequest("overviews count from 0 to 10", code="raster.bad-overview", hint="2 is usual")


def _band_names(options: Options, facts: RasterFacts) -> None:
    names = options.band_names
    if names and (len(names) != facts.count or len(set(names)) != len(names)):
        raise InvalidRequest(
            f"the file has {facts.count} {'band' if facts.count == 1 else 'bands'}, each with a name of its own",
            code="raster.bad-band-names",
            hint="name each once, in their order, or none",
        )


_RULES: dict[str, Callable[[Options, RasterFacts], None]] = {
    "jpeg_quality": _quality,
    "tile_size": _tile_size,
    "overlap": _overlap,
    "target_crs": _target_crs,
    "resolution": _resolution,
    "overview_level": _overview_level,
    "band_names": _band_names,
}


def _grid(options: Options, facts: RasterFacts) -> OutputGrid:
    area = describe_crs(options.target_crs).area_of_use
    if area and facts.bounds_4326 and not area.intersects(facts.bounds_4326):
        raise UnfitData(
            "the file lies nowhere near the area that this CRS is made for", code="raster.outside-crs",
            hint="take a CRS of its place, or EPSG:4326",
        )  # fmt: skip
    grid = output_grid(facts, options.target_crs, options.resolution)
    ceilings = Ceilings()
    if max(grid.width, grid.height) > ceilings.side or grid.width * grid.height > ceilings.pixels:
        raise InvalidRequest(
            f"the outputs would have {grid.width:,} × {grid.height:,} pixels",
            code="raster.too-fine",
            hint="give a coarser resolution, in units of target_crs",
        )
    if options.tile_above_mb is None and len(grid.sections) > 1:
        raise UnfitData(
            "it crosses the antimeridian there, and one COG can't", code="raster.antimeridian",
            hint="take a CRS of its place, or process it in tiles",
        )  # fmt: skip
    return grid


def _dtype(facts: RasterFacts) -> str:
    kinds = {band.dtype for band in facts.bands}
    return facts.dtype if len(kinds) == 1 else str(np.result_type(*kinds))


def _colors(facts: RasterFacts, kind: RasterType, *, unset_alpha: bool) -> list[str]:
    """As they will be in the COG."""
    colors = [band.color for band in facts.bands]
    if unset_alpha:
        return ["undefined" if color == "alpha" else color for color in colors]
    if kind is RasterType.RGBA and len(colors) == 4 and "alpha" not in colors:
        colors[3] = "alpha"
    return colors


def advice_on(options: Options, facts: RasterFacts, grid: OutputGrid) -> list[Finding]:
    """What is possible, and perhaps not meant: degrees near a pole are wide at the equator's expense."""
    if facts.bounds_4326 is None or facts.crs is None:
        return []
    _, south, _, north = facts.bounds_4326
    reach = max(north, -south)
    found = []
    own, target = describe_crs(facts.crs), describe_crs(options.target_crs)
    if target.is_geographic and own.metres_per_unit and facts.resolution and options.resolution is None:
        times = grid.resolution[1] * _METRES_PER_DEGREE / (min(facts.resolution) * own.metres_per_unit)
        if times >= _MUCH:
            polar = "EPSG:3995" if north == reach else "EPSG:3031"
            better = facts.crs if ":" in facts.crs and "[" not in facts.crs else polar
            found.append(warn(
                "raster.polar",
                f"it reaches {reach:.1f}° from the equator: in {options.target_crs} its pixels become {times:.1f} times as high "
                "as they are in the file",
                f"to keep its detail, pass target_crs={better}",
            ))  # fmt: skip
    if reach > _MAPS_END_AT:
        found.append(info(
            "raster.beyond-maps", f"maps end at {_MAPS_END_AT}°: what lies beyond is in the files, and not seen on a map"
        ))  # fmt: skip
    return found


def recipe_of(
    options: Options, sources: list[RasterFacts], kind: RasterType, source_crs: str | None, *, is_tiled: bool
) -> Json:
    """All that decides on the bytes of what is made: one edition is made in one way."""
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
    return {name: told for name, told in recipe.items() if told is not None}


def why_taken(storage: Storage, edition: Edition, recipe: Json) -> str | None:
    """What else an edition was made by; None where it is free, or was made in the same way."""
    location = _place_of(storage, edition)
    if not storage.exists(location) or not _has_objects(storage, edition):
        return None
    known = orjson.loads(storage.get(location))
    others = [name for name in {**known, **recipe} if known.get(name) != recipe.get(name)]
    if not others:
        return None
    told = ", ".join(f"{name} was {_shown(known.get(name))}, not {_shown(recipe.get(name))}" for name in others)
    return f"revision {edition.revision} of version {edition.ordinal} of dataset '{edition.dataset}' was made otherwise: {told}"


def claim(storage: Storage, edition: Edition, recipe: Json) -> None:
    """Keep what an edition is made by, unless it was made otherwise before."""
    if taken := why_taken(storage, edition, recipe):
        raise UnfitData(
            taken, code="edition.taken", hint=f"take revision {edition.revision + 1}, or another dataset_id"
        )
    location, content = _place_of(storage, edition), orjson.dumps(recipe)
    if not storage.exists(location) or storage.get(location) != content:
        storage.put(location, content)


def _place_of(storage: Storage, edition: Edition) -> Location:
    return storage.location(edition.recipe(), zone=Zone.SILVER)


def _has_objects(storage: Storage, edition: Edition) -> bool:
    """A job that made nothing does not stand in the way of a better one."""
    container = storage.containers[Zone.SILVER]
    folders = {name.rpartition("/")[0] for name in (edition.cog("x"), edition.tiling_scheme("x"), edition.mosaic("x"))}
    return any(next(storage.list(Folder(Zone.SILVER, container, path)), None) for path in folders)


def _shown(value: object) -> str:
    if value is None:
        return "left open"
    return (
        str(value).lower()
        if isinstance(value, bool)
        else ", ".join(map(str, value))
        if isinstance(value, list)
        else str(value)
    )
