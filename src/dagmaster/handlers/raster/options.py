"""The options of a raster job, and whether its outputs are possible with them.

The first task of a job and the command line apply the same rules, so that no job is started that has to fail later.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from affine import Affine
from pydantic import BaseModel, ConfigDict
from rasterio.enums import Resampling

from dagmaster.errors import DagmasterError, InvalidRequest, UnfitData
from dagmaster.quantities import shortened
from dagmaster.raster.cog.grid import OutputGrid, auto_tile_size, output_grid
from dagmaster.raster.cog.profiles import profile_of, require_fit
from dagmaster.raster.cog.warp import blocks_of
from dagmaster.raster.source.crs import describe_crs, parse_crs
from dagmaster.raster.source.facts import RasterFacts, RasterType
from dagmaster.raster.source.pixels import FileSource, Rules, Validity
from dagmaster.raster.source.window import BLOCK
from dagmaster.raster.validation.findings import Finding, info, warn
from dagmaster.raster.validation.header_rules import Ceilings
from dagmaster.web_mercator import METRES_PER_DEGREE
from dagmaster.workflows.raster import becomes_tiles

_WEB_MERCATOR_LIMIT = 85.06  # degrees of latitude
_NOTABLE_STRETCH = 2.0  # pixels this much taller than in the source are reported


class Options(BaseModel):
    """The options as submitted. If `tile_above_mb` is None, no tiles are made, however large the source is."""

    model_config = ConfigDict(frozen=True)

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
        """Whether the source becomes tiles with a mosaic, or a single COG."""
        crosses = facts.bounds_4326 is not None and facts.bounds_4326.crosses_antimeridian
        return becomes_tiles(self.tile_above_mb, raw_bytes=facts.raw_bytes, crosses_antimeridian=crosses)


def require_possible(
    options: Options, facts: RasterFacts, kind: RasterType, *, unset_alpha: bool = False
) -> OutputGrid:
    """The grid of the outputs. InvalidRequest names every option that is impossible, with its reason."""
    problems: list[DagmasterError] = []
    grid: OutputGrid | None = None
    for name, rule in _RULES.items():
        with _collected(problems, name, getattr(options, name)):
            rule(options, facts)
    with _collected(problems, "output_tier", options.output_tier):
        profile = profile_of(options.output_tier, min(100, max(1, options.jpeg_quality)))
        require_fit(profile, _dtype(facts), _colors(facts, kind, unset_alpha=unset_alpha))
    if not any(problem.facts["field"] in ("target_crs", "resolution") for problem in problems):
        with _collected(problems, "target_crs", options.target_crs):
            grid = _grid(options, facts)
    if grid is None or problems:
        raise _combined(problems)
    return grid


def require_alike(files: list[RasterFacts]) -> None:
    """Files of one collection are shown on one map, so they need the same bands."""
    names_by_bands: dict[str, list[str]] = {}
    for facts in files:
        names_by_bands.setdefault(f"{facts.count} × {facts.dtype}", []).append(facts.name)
    if len(names_by_bands) > 1:
        groups = [
            f"{bands}: {', '.join(names[:3])}{', …' if len(names) > 3 else ''}"
            for bands, names in names_by_bands.items()
        ]
        raise UnfitData(
            f"the files differ in their bands ({'; '.join(groups)})",
            code="collection.mixed",
            hint="submit files with the same bands together",
        )


@contextmanager
def _collected(problems: list[DagmasterError], name: str, value: object) -> Iterator[None]:
    try:
        yield
    except (InvalidRequest, UnfitData) as error:
        message = f"{name}={shortened(str(value), 60)} is not possible: {error.message}"
        problems.append(InvalidRequest(message, code=error.code, hint=error.hint, field=name))


def _combined(problems: list[DagmasterError]) -> InvalidRequest:
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
            f"the width of a tile must be a multiple of {BLOCK} pixels",
            code="raster.bad-tile-size",
            hint=f"use {nearest}",
        )


def _overlap(options: Options, facts: RasterFacts) -> None:
    overlap = options.overlap
    if overlap is None:
        return
    size = options.tile_size or auto_tile_size(facts.count, _dtype(facts))
    if overlap < 0 or overlap % BLOCK or overlap >= size:
        raise InvalidRequest(
            f"the overlap of tiles must be a multiple of {BLOCK} pixels and less than their width of {size}",
            code="raster.bad-tile-size",
            hint=f"use 0 or {BLOCK}",
        )


def _target_crs(options: Options, _facts: RasterFacts) -> None:
    crs = parse_crs(options.target_crs)
    if not (crs.is_projected or crs.is_geographic):
        raise InvalidRequest(
            "the CRS is neither projected nor geographic, so no map can use it",
            code="raster.bad-crs",
            hint="use EPSG:4326, or a projected CRS for the area of the file",
        )


def _resolution(options: Options, _facts: RasterFacts) -> None:
    size = options.resolution
    if size is not None and not (math.isfinite(size) and size > 0):
        raise InvalidRequest(
            "the pixel size must be greater than zero", code="raster.bad-resolution", hint="correct or omit it"
        )


def _overview_level(options: Options, _facts: RasterFacts) -> None:
    if not 0 <= options.overview_level <= 10:
        raise InvalidRequest(
            "the overview level must be from 0 to 10", code="raster.bad-overview", hint="pass 2, for example"
        )


def _band_names(options: Options, facts: RasterFacts) -> None:
    names = options.band_names
    if names and (len(names) != facts.count or len(set(names)) != len(names)):
        raise InvalidRequest(
            f"the file has {facts.count} {'band' if facts.count == 1 else 'bands'}, and each needs a different name",
            code="raster.bad-band-names",
            hint="name every band, in order, or none",
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
            "the file is outside the area of use of this CRS",
            code="raster.outside-crs",
            hint="use a CRS for the area of the file, or EPSG:4326",
        )
    grid = reachable_grid(facts, options.target_crs, options.resolution)
    if options.tile_above_mb is None and len(grid.sections) > 1:
        raise UnfitData(
            "the file crosses the antimeridian in this CRS, so it cannot be written as a single COG",
            code="raster.antimeridian",
            hint="use a CRS for the area of the file, or process it in tiles",
        )
    return grid


def reachable_grid(
    facts: RasterFacts,
    target_crs: str,
    resolution: float | tuple[float, float] | None,
    origin: tuple[float, float] | None = None,
) -> OutputGrid:
    """The grid of the outputs, if it is neither too fine nor too coarse for the file."""
    grid = output_grid(facts, target_crs, resolution, origin)
    ceilings = Ceilings()
    if max(grid.width, grid.height) > ceilings.side or grid.width * grid.height > ceilings.pixels:
        raise InvalidRequest(
            f"the outputs would have {grid.width:,} × {grid.height:,} pixels",
            code="raster.too-fine",
            hint="use a coarser resolution, in units of target_crs",
        )
    assert facts.crs is not None
    assert facts.transform is not None
    source = FileSource(facts, parse_crs(facts.crs), Affine(*facts.transform), Rules(Validity.ALL))  # never read
    try:
        blocks_of(source, grid, Resampling.bilinear)
    except InvalidRequest as error:
        if resolution is not None:
            raise
        hint = f"{error.hint}; or keep its projection: target_crs={facts.crs if len(facts.crs) < 20 else 'its own CRS'}"
        raise InvalidRequest(error.message, code=error.code, hint=hint) from None
    return grid


def _dtype(facts: RasterFacts) -> str:
    kinds = {band.dtype for band in facts.bands}
    return facts.dtype if len(kinds) == 1 else str(np.result_type(*kinds))


def _colors(facts: RasterFacts, kind: RasterType, *, unset_alpha: bool) -> list[str]:
    """The colour interpretations that the COG will have."""
    colors = [band.color for band in facts.bands]
    if unset_alpha:
        return ["undefined" if color == "alpha" else color for color in colors]
    if kind is RasterType.RGBA and len(colors) == 4 and "alpha" not in colors:
        colors[3] = "alpha"
    return colors


def advice_on(options: Options, facts: RasterFacts, grid: OutputGrid) -> list[Finding]:
    """Findings on options that are possible but may not be intended. Near a pole, pixels in degrees are stretched."""
    if facts.bounds_4326 is None or facts.crs is None:
        return []
    _, south, _, north = facts.bounds_4326
    latitude = max(north, -south)
    findings = []
    source, target = describe_crs(facts.crs), describe_crs(options.target_crs)
    if target.is_geographic and source.metres_per_unit and facts.resolution and options.resolution is None:
        stretch = grid.resolution[1] * METRES_PER_DEGREE / (min(facts.resolution) * source.metres_per_unit)
        if stretch >= _NOTABLE_STRETCH:
            polar = "EPSG:3995" if north == latitude else "EPSG:3031"
            better = facts.crs if ":" in facts.crs and "[" not in facts.crs else polar
            message = (
                f"the file reaches latitude {latitude:.1f}°: in {options.target_crs} "
                f"its pixels are {stretch:.1f} times as tall as in the file"
            )
            findings.append(warn("raster.polar", message, f"to keep its detail, pass target_crs={better}"))
    if latitude > _WEB_MERCATOR_LIMIT:
        message = f"web maps end at {_WEB_MERCATOR_LIMIT}°: data beyond that is in the files, but not visible on maps"
        findings.append(info("raster.beyond-maps", message))
    return findings
