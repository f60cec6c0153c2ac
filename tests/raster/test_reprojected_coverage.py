"""The valid pixels of an output, compared with the coverage of its source, projected point by point with pyproj.

Random scenes in many CRSs. An output pixel must be valid if its centre is well inside the valid pixels of the source,
and must not be if it is well outside of them; only at the border, within the reach of the kernel, either is right.
"""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyproj
import pytest
import rasterio
from affine import Affine

from dagmaster.errors import InvalidRequest
from dagmaster.raster.cog.grid import OutputGrid, output_grid, tiles_of
from dagmaster.raster.cog.write import make_cog
from dagmaster.raster.source.facts import RasterType, read_facts
from tests.raster.rasters import write_raster

pytestmark = pytest.mark.requirement("R5")

_SPHERE = "+R=6371007.181 +units=m +no_defs"
_GEOSTATIONARY = "+proj=geos +h=35785831 +lon_0={} +sweep=y +datum=WGS84 +units=m +no_defs"
_OBLIQUE = "+proj=omerc +lat_0=4 +lonc=115 +alpha=53.3 +gamma=53.1 +k=0.99984 +datum=WGS84 +units=m +no_defs"

# CRS, the largest distance of a scene's centre from x and y, and the pixel sizes.
_PLACES: dict[str, tuple[str, tuple[float, float], tuple[float, float], tuple[float, float]]] = {
    "antarctic": ("EPSG:3031", (0, 0), (6e5, 6e5), (400, 3000)),
    "antarctic-nsidc": ("EPSG:3976", (0, 0), (6e5, 6e5), (400, 3000)),
    "arctic": ("EPSG:3413", (0, 0), (6e5, 6e5), (400, 3000)),
    "arctic-laea": ("EPSG:6931", (0, 0), (1.5e6, 1.5e6), (400, 5000)),
    "antarctic-laea": ("EPSG:6932", (0, 0), (1.5e6, 1.5e6), (400, 5000)),
    "utm-1-north": ("EPSG:32601", (250e3, 5e6), (150e3, 4e6), (10, 500)),
    "utm-60-south": ("EPSG:32760", (750e3, 5e6), (150e3, 4e6), (10, 500)),
    "utm-33": ("EPSG:32633", (500e3, 4e6), (300e3, 4e6), (10, 1000)),
    "oblique": (_OBLIQUE, (0, 0), (1e6, 1e6), (100, 2000)),
    "laea-europe": ("+proj=laea +lat_0=52 +lon_0=10 +datum=WGS84 +units=m", (0, 0), (2e6, 2e6), (100, 5000)),
    "sinusoidal": (f"+proj=sinu +lon_0=0 {_SPHERE}", (0, 0), (8e6, 8e6), (400, 5000)),
    "geostationary": (_GEOSTATIONARY.format(0), (0, 0), (4.5e6, 4.5e6), (3000, 12000)),
    "geostationary-pacific": (_GEOSTATIONARY.format(-170), (0, 0), (4.5e6, 4.5e6), (3000, 12000)),
    "degrees": ("EPSG:4326", (0, 0), (170, 80), (0.001, 0.1)),
    "degrees-over-180": ("EPSG:4326", (180, 0), (2, 80), (0.001, 0.1)),
    "mercator": ("EPSG:3857", (0, 0), (1.8e7, 1.8e7), (100, 5000)),
}
_TARGETS = {
    "antarctic": ("EPSG:4326", "EPSG:6932", "EPSG:3976"),
    "antarctic-nsidc": ("EPSG:4326", "EPSG:3031"),
    "arctic": ("EPSG:4326", "EPSG:6931"),
    "arctic-laea": ("EPSG:4326", "EPSG:3413"),
    "antarctic-laea": ("EPSG:4326", "EPSG:3031"),
    "degrees": ("EPSG:3857", "EPSG:4326"),
    "mercator": ("EPSG:4326",),
}


@dataclass(frozen=True)
class Scene:
    path: Path
    crs: str
    transform: Affine
    valid: Any
    raster_type: RasterType
    grid: OutputGrid


def random_scene(folder: Path, place: str, seed: int) -> Scene:
    """A raster with data everywhere, in an ellipse, or on one side of a line; with a nodata value or a mask."""
    rng = np.random.default_rng([seed, *place.encode()])
    crs, centre, reach, sizes = _PLACES[place]
    width, height = (int(side) for side in rng.integers(20, 1000, 2))
    size = float(np.exp(rng.uniform(*np.log(sizes))))
    # 40 % of the scenes are near the centre: at the pole, or on the antimeridian.
    share = rng.choice([0.1, 1.0], p=[0.4, 0.6])
    x, y = (float(c + share * r * rng.uniform(-1, 1)) for c, r in zip(centre, reach, strict=True))
    angle = float(rng.choice([0, 0, rng.uniform(-180, 180)]))
    transform = (
        Affine.translation(x, y)
        @ Affine.rotation(angle)
        @ Affine.scale(size, -size)
        @ Affine.translation(-width / 2, -height / 2)
    )
    if crs == "EPSG:4326":
        half = max(abs((transform @ corner)[1] - y) for corner in ((0, 0), (width, 0), (0, height), (width, height)))
        transform = Affine.translation(0, max(-89.9 + half - y, min(0.0, 89.9 - half - y))) @ transform
    valid = _random_shape(rng, height, width)
    values = rng.integers(1, 200, (1, height, width))
    floats = bool(rng.integers(2))
    path = folder / f"{place}-{seed}.tif"
    data = np.where(valid, values, 0).astype("float32" if floats else "uint8")
    write_raster(path, data, crs=crs, transform=transform, nodata=0 if floats or not valid.all() else None)
    target = str(rng.choice(_TARGETS.get(place, ("EPSG:4326", "EPSG:3857"))))
    facts = read_facts(path)
    grid = output_grid(facts, target)
    if rng.integers(2):
        factor = float(np.exp(rng.uniform(np.log(0.7), np.log(3))))
        grid = output_grid(facts, target, (grid.resolution[0] * factor, grid.resolution[1] * factor))
    raster_type = RasterType(str(rng.choice(["dem", "categorical"])))
    return Scene(path, crs, transform, valid, raster_type, grid)


def _random_shape(rng: Any, height: int, width: int) -> Any:
    rows, cols = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j]
    angle = rng.uniform(0, 2 * np.pi)
    return [
        np.ones((height, width), bool),
        rows**2 + cols**2 < 1,
        np.cos(angle) * rows + np.sin(angle) * cols < rng.uniform(-0.3, 0.6),
    ][rng.integers(3)]


def output_mask(scene: Scene, folder: Path) -> Any:
    """The valid pixels of the whole grid, from one COG for each section."""
    mask = np.zeros((scene.grid.height, scene.grid.width), bool)
    for tile in tiles_of(scene.grid, 512 * 64, 0):
        window, path = tile.window, folder / f"{tile.tile_id}.tif"
        make_cog(scene.path, path, scene.grid, window, raster_type=scene.raster_type)
        with rasterio.open(path) as cog:
            rows, cols = slice(window.row, window.row + window.height), slice(window.col, window.col + window.width)
            mask[rows, cols] = cog.read_masks(1) != 0
    return mask


@functools.cache
def _transformer(source: str, target: str) -> pyproj.Transformer:
    return pyproj.Transformer.from_crs(source, target, always_xy=True)


def source_positions(scene: Scene) -> tuple[Any, Any]:
    """Column and row in the source of each pixel centre of the grid; infinite where there is none."""
    grid = scene.grid
    cols, rows = np.meshgrid(np.arange(grid.width) + 0.5, np.arange(grid.height) + 0.5)
    x, y = grid.origin[0] + cols * grid.resolution[0], grid.origin[1] - rows * grid.resolution[1]
    there = _transformer(grid.crs, scene.crs)
    u, v = there.transform(x, y)
    # A projection may return coordinates for places that it cannot show, such as the far side of the Earth.
    back_x, back_y = there.transform(u, v, direction="INVERSE")
    turn = grid.turn or np.inf
    off = np.abs(back_x - x)
    off = np.minimum(off, np.abs(off - turn)) / grid.resolution[0]
    lost = ~((off < 0.01) & (np.abs(back_y - y) / grid.resolution[1] < 0.01))
    if pyproj.CRS(scene.crs).is_geographic:
        middle = (scene.transform @ (scene.valid.shape[1] / 2, 0))[0]
        u = u + 360 * np.round((middle - u) / 360)
        lost = ~np.isfinite(u)
    a, b, c, d, e, f = (~scene.transform)[:6]
    with np.errstate(invalid="ignore"):
        columns, lines = a * u + b * v + c, d * u + e * v + f
    columns[lost], lines[lost] = np.inf, np.inf
    return columns, lines


def required_pixels(scene: Scene, columns: Any, lines: Any) -> tuple[Any, Any]:
    """Output pixels that must be valid, and those that must not be."""
    reach = 1 + int(np.ceil(2 * max(1.0, *(_median_step(axis) for axis in (columns, lines)))))
    inner, outer = _box_count(scene.valid, reach)
    height, width = scene.valid.shape
    finite = np.isfinite(columns) & np.isfinite(lines)
    col, row = (np.floor(np.where(finite, axis, -1e9)).astype(np.int64) for axis in (columns, lines))
    near = finite & (col >= -reach) & (col < width + reach) & (row >= -reach) & (row < height + reach)
    at = np.where(near, row, 0) + reach, np.where(near, col, 0) + reach
    return near & inner[at], ~near | ~outer[at]


def _median_step(positions: Any) -> float:
    """Source pixels per output pixel."""
    steps = (
        np.abs(np.diff(np.where(np.isfinite(positions), positions, np.nan), axis=1)),
        np.abs(np.diff(np.where(np.isfinite(positions), positions, np.nan), axis=0)),
    )
    medians = [float(np.nanmedian(step)) for step in steps if np.isfinite(step).any()]
    return max(medians, default=1.0)


def _box_count(valid: Any, reach: int) -> tuple[Any, Any]:
    """For each pixel, padded by `reach`: whether all pixels of the box around it are valid, and whether any is."""
    side = 2 * reach + 1
    sums = np.pad(np.pad(valid, 2 * reach).astype(np.int64).cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    counts = sums[side:, side:] - sums[:-side, side:] - sums[side:, :-side] + sums[:-side, :-side]
    return counts == side * side, counts > 0


def require_covered(folder: Path, place: str, seed: int) -> None:
    scene = random_scene(folder, place, seed)
    try:
        mask = output_mask(scene, folder)
    except InvalidRequest as error:
        if error.code == "raster.too-coarse":  # close to a pole, where a pixel spans many columns of the source
            return
        raise
    must, must_not = required_pixels(scene, *source_positions(scene))
    wrong = (must & ~mask).sum(), (must_not & mask).sum()
    assert wrong == (0, 0), (
        f"{place} {seed}: {wrong[0]} of {must.sum()} pixels are missing, {wrong[1]} are wrongly valid"
    )


@pytest.mark.parametrize("crs", ["EPSG:3031", "EPSG:3976", "EPSG:6932", "EPSG:3413", "EPSG:6931"])
@pytest.mark.parametrize("size", [(900, 700), (800, 800), (1100, 300)])
@pytest.mark.parametrize("raster_type", [RasterType.DEM, RasterType.CATEGORICAL])
def test_a_scene_around_a_pole_covers_every_longitude(
    tmp_path: Path, crs: str, size: tuple[int, int], raster_type: RasterType
) -> None:
    width, height = size
    transform = Affine(1000, 0, -500 * width, 0, -1000, 500 * height)
    valid = np.ones((height, width), bool)
    path = write_raster(tmp_path / "pole.tif", valid.astype("float32"), crs=crs, transform=transform)
    scene = Scene(path, crs, transform, valid, raster_type, output_grid(read_facts(path)))

    mask = output_mask(scene, tmp_path)

    must, must_not = required_pixels(scene, *source_positions(scene))
    assert mask.any(axis=0).all()
    assert not (must & ~mask).any()
    assert not (must_not & mask).any()


@pytest.mark.parametrize("crs", ["EPSG:3031", "EPSG:3413"])
def test_a_scene_that_is_smaller_than_a_pixel_at_a_pole_is_refused(tmp_path: Path, crs: str) -> None:
    transform = Affine(1000, 0, -32_000, 0, -1000, 32_000)
    path = write_raster(tmp_path / "pole.tif", np.ones((64, 64), "float32"), crs=crs, transform=transform)

    with pytest.raises(InvalidRequest, match="coarser"):
        make_cog(path, tmp_path / "cog.tif", output_grid(read_facts(path)), raster_type=RasterType.DEM)


@pytest.mark.parametrize("place", _PLACES)
def test_exactly_the_pixels_that_the_source_covers_are_valid(tmp_path: Path, place: str) -> None:
    for seed in (1, 7):
        require_covered(tmp_path, place, seed)


@pytest.mark.slow
@pytest.mark.parametrize("place", _PLACES)
def test_exactly_the_covered_pixels_are_valid_for_many_scenes(tmp_path: Path, place: str) -> None:
    for seed in range(60):
        require_covered(tmp_path, place, seed)
