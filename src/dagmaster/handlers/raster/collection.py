"""The layout of a collection: which of its files keep their pixels, and the grid that the others are resampled to.

    files ─▶ groups on one pixel grid ─▶ the group that is kept, if at least half of the files are in it ─▶ findings

The first task of a job and the command line apply the same rules.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rasterio._err import CPLE_BaseError
from rasterio.errors import RasterioError
from rasterio.warp import transform_bounds

from dagmaster.bbox import BBox
from dagmaster.errors import InvalidRequest, UnfitData
from dagmaster.handlers.raster.options import Options, reachable_grid, require_alike
from dagmaster.quantities import counted
from dagmaster.raster.cog.grid import is_north_up_in
from dagmaster.raster.cog.stack import GridGroup, grid_groups
from dagmaster.raster.source.crs import parse_crs
from dagmaster.raster.source.extent import Bounds
from dagmaster.raster.source.facts import RasterFacts
from dagmaster.raster.validation.findings import Finding, info, warn

Size = tuple[float, float]
Boxes = NDArray[np.float64]  # west, south, east, north

_SAME_AREA = 0.9


@dataclass(frozen=True, slots=True)
class CollectionLayout:
    """Files of the group `kept_group` keep their pixels. Others are resampled to pixels of `resolution`, counted from
    `origin`; without it, from the fixed origin of the CRS. `resolution` and `origin` are None if all files are kept."""

    groups: list[GridGroup]
    kept_group: GridGroup | None
    resolution: Size | None
    origin: tuple[float, float] | None
    findings: list[Finding]


def layout_of(files: Sequence[RasterFacts], options: Options, resolution: Size) -> CollectionLayout:
    """`resolution` is the pixel size of the first file's output. Raises UnfitData if the files do not fit together."""
    require_alike(list(files))
    groups = grid_groups(files)
    kept_group = _kept_group(files, groups, options)
    if kept_group is not None and len(kept_group.members) == len(files):
        return CollectionLayout(
            groups, kept_group, None, None, _findings(files, groups, kept_group, options.target_crs)
        )
    origin = None
    if kept_group is not None:
        first = files[kept_group.members[0]]
        assert first.resolution is not None
        assert first.transform is not None
        resolution, origin = first.resolution, (first.transform[2], first.transform[5])
    _require_one_resolution(
        files, options.target_crs, resolution, origin, example=kept_group.members[0] if kept_group else 0
    )
    return CollectionLayout(
        groups, kept_group, resolution, origin, _findings(files, groups, kept_group, options.target_crs)
    )


def _kept_group(files: Sequence[RasterFacts], groups: list[GridGroup], options: Options) -> GridGroup | None:
    """The largest group of files that already have the CRS and pixel size of the outputs, if it has at least half."""
    fitting = [group for group in groups if all(_keeps_pixels(files[at], options) for at in group.members)]
    largest = max(fitting, key=lambda group: len(group.members), default=None)  # the first, if several are equal
    return largest if largest and 2 * len(largest.members) >= len(files) else None


def _keeps_pixels(facts: RasterFacts, options: Options) -> bool:
    size = options.resolution
    fits = size is None or all(abs(side - size) <= 1e-9 * size for side in facts.resolution or ())
    return fits and is_north_up_in(facts, options.target_crs)


def _require_one_resolution(
    files: Sequence[RasterFacts],
    target_crs: str,
    resolution: Size,
    origin: tuple[float, float] | None,
    *,
    example: int,
) -> None:
    """All COGs have one pixel size, that of the example: refuse files for which it is far too coarse or too fine."""
    problems = []
    for at, file in enumerate(files):
        try:
            if at != example:
                reachable_grid(file, target_crs, resolution, origin)
        except (InvalidRequest, UnfitData) as error:
            problems.append(f"'{file.name}': {error.message}")
    if problems:
        raise UnfitData(
            f"with the pixel size of '{files[example].name}', {'; '.join(problems)}",
            code="collection.resolutions-differ",
            hint="submit files of similar resolution together, or pass a `resolution` that fits all of them",
        )


def _findings(
    files: Sequence[RasterFacts], groups: list[GridGroup], kept_group: GridGroup | None, target_crs: str
) -> list[Finding]:
    """Findings about differences and overlaps that a user may not expect in files that are submitted together."""
    findings = []
    if len(groups) > 1:
        consequence = "each group of files is resampled separately"
        if kept_group is not None:
            kept_count = f"{len(kept_group.members)} of {len(files)}"
            consequence = f"{kept_count} files keep their pixels, the others are resampled to their grid"
        reason = (
            f"the files are on {len(groups)} different pixel grids: {consequence}, and values may differ at the seams"
        )
        findings.append(info("collection.grids-differ", reason, "resample them to one grid first: `gdalwarp -tap -tr`"))
    if same := _same_area(files, target_crs):
        findings.append(same)
    return findings


def _same_area(files: Sequence[RasterFacts], target_crs: str) -> Finding | None:
    """Compare the bounding boxes of all files, whatever their grids: bands of one scene may differ in pixel size."""
    counts = overlaps(_boxes(files, target_crs))
    first = int(counts.argmax())
    if counts[first] == 0:
        return None
    others = counted(int(counts[first]), "other file")
    message = f"{others} and '{files[first].name}' overlap by at least 90 %; the map shows only one of them there"
    bands = "if they are bands of one scene, combine them first: `gdal_merge.py -separate -o scene.tif …`"
    times = "if they are of different times, the catalogue has a separate item for each of them"
    is_single = all(file.count == 1 for file in files)
    return warn("collection.same-area", message, f"{bands}; {times}" if is_single else times)


def _boxes(files: Sequence[RasterFacts], target_crs: str) -> Boxes:
    """West, south, east and north of each file in the CRS that they share, else in the target CRS. NaN if a file has no
    bounds there."""
    is_shared = len({file.crs for file in files}) == 1
    boxes = [file.bounds if is_shared else _bounds_in(target_crs, file) for file in files]
    return np.array([box or (np.nan,) * 4 for box in boxes], dtype=np.float64)


def _bounds_in(crs: str, file: RasterFacts) -> Bounds | None:
    assert file.bounds is not None
    try:
        bounds = transform_bounds(parse_crs(file.crs or ""), parse_crs(crs), *file.bounds)
    except (CPLE_BaseError, RasterioError):
        return None
    return BBox(*bounds).unrolled()  # in units other than degrees, west is never greater than east


def overlaps(boxes: Boxes, compared_area: np.ufunc = np.minimum) -> NDArray[np.int64]:
    """For each box, how many other boxes cover the same area: their intersection with it has at least 90 % of the
    smaller of the two areas, or with `np.maximum` of the larger."""
    west, south, east, north = boxes.T
    areas = (east - west) * (north - south)
    counts = []
    for at, (left, bottom, right, top) in enumerate(boxes):
        widths = np.clip(np.minimum(east, right) - np.maximum(west, left), 0, None)
        heights = np.clip(np.minimum(north, top) - np.maximum(south, bottom), 0, None)
        is_same = widths * heights >= _SAME_AREA * compared_area(areas, areas[at])
        counts.append(np.count_nonzero(is_same) - int(is_same[at]))
    return np.array(counts)
