"""Tiles compared with gdalwarp of the whole source to the same grid, with gdalinfo's checksums, and with each other."""

import json
import math
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from affine import Affine
from rasterio.enums import Resampling

from dagmaster.raster.cog.grid import OutputGrid, Tile, output_grid, tiles_of
from dagmaster.raster.cog.write import make_cog
from dagmaster.raster.source.facts import RasterType, read_facts
from dagmaster.raster.source.window import Window
from tests.raster.rasters import write_raster

pytestmark = pytest.mark.requirement("R8")

SIZE = 900

# A UTM zone, a Lambert and an Albers conic, degrees of another datum, and web Mercator;
# one of them rotated by 20°, one south-up.
PLACES = {
    "utm": ("EPSG:32633", Affine(10, 0, 500_000, 0, -10, 5_200_000)),
    "utm-rotated": ("EPSG:32633", Affine.translation(500_000, 5_200_000) @ Affine.rotation(20) @ Affine.scale(10, -10)),
    "lambert": ("EPSG:2154", Affine(5, 0, 650_000, 0, -5, 6_860_000)),
    "albers": ("EPSG:5070", Affine(30, 0, -1_000_000, 0, -30, 1_800_000)),
    "nad27": ("EPSG:4267", Affine(0.0003, 0, -100, 0, -0.0003, 45)),
    "mercator": ("EPSG:3857", Affine(20, 0, 1_500_000, 0, -20, 6_000_000)),
    "south-up": ("EPSG:32733", Affine(10, 0, 300_000, 0, 10, 8_000_000)),
}


def smooth(bands: int, dtype: str = "uint8", size: int = SIZE) -> Any:
    y, x = np.mgrid[0:size, 0:size]
    waves = [0.5 + 0.4 * np.sin(x / (90 + 30 * band)) * np.cos(y / (70 + 20 * band)) for band in range(bands)]
    top = 255 if np.dtype(dtype).itemsize == 1 else 10_000
    return (np.stack(waves) * top).astype(dtype)


def speckled(bands: int, size: int = SIZE) -> Any:
    return np.random.default_rng(3).integers(1, 255, (bands, size, size)).astype("uint8")


def source_at(folder: Path, place: str, values: Any, **profile: Any) -> Path:
    crs, transform = PLACES[place]
    return write_raster(folder / "source.tif", values, crs=crs, transform=transform, **profile)


def cogs_of(
    source: Path, grid: OutputGrid, tile_size: int = 1024, *, raster_type: RasterType = RasterType.RGB, **how: Any
) -> list[tuple[Tile, Path]]:
    tiles = tiles_of(grid, tile_size)
    paths = [(tile, source.with_name(f"{tile.tile_id}.tif")) for tile in tiles]
    for tile, path in paths:
        make_cog(source, path, grid, tile.window, raster_type=raster_type, **how)
    return paths


def assembled(cogs: list[tuple[Tile, Path]], grid: OutputGrid) -> tuple[Any, int]:
    """The whole raster, assembled from its tiles, and the number of pixels in which two tiles differ."""
    whole: Any = None
    seen = np.zeros((grid.height, grid.width), bool)
    differing = 0
    for tile, path in cogs:
        with rasterio.open(path) as dataset:
            values = dataset.read()
        if whole is None:
            whole = np.zeros((len(values), grid.height, grid.width), values.dtype)
        rows = slice(tile.window.row, tile.window.row + tile.window.height)
        cols = slice(tile.window.col, tile.window.col + tile.window.width)
        differing += int((seen[rows, cols] & (whole[:, rows, cols] != values).any(axis=0)).sum())
        whole[:, rows, cols] = values
        seen[rows, cols] = True
    assert seen.all()
    return whole, differing


def gdalwarped(source: Path, grid: OutputGrid, method: str, *options: str) -> Any:
    target = source.with_name(f"gdalwarp-{method}.tif")
    west, north = grid.origin
    east, south = west + grid.width * grid.resolution[0], north - grid.height * grid.resolution[1]
    place = [f"{value!r}" for value in (west, south, east, north)]
    size = [str(grid.width), str(grid.height)]
    command = [
        "gdalwarp",
        "-q",
        "-overwrite",
        "-et",
        "0",
        "-r",
        method,
        "-t_srs",
        grid.crs,
        "-te",
        *place,
        "-ts",
        *size,
    ]
    subprocess.run(
        [*command, "-wo", "XSCALE=1", "-wo", "YSCALE=1", *options, str(source), str(target)],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    with rasterio.open(target) as dataset:
        return dataset.read()


def away_from_edge(values: Any, by: int = 8) -> Any:
    """Pixels that have only valid pixels around them; `values` are 0 for nodata."""
    inside = (values != 0).all(axis=0)
    for axis in (0, 1):
        inside &= np.roll(inside, by, axis) & np.roll(inside, -by, axis)
    return inside


@pytest.mark.parametrize("place", PLACES)
def test_nearest_equals_gdalwarp_and_tiles_agree(tmp_path: Path, place: str) -> None:
    source = source_at(tmp_path, place, speckled(1))
    grid = output_grid(read_facts(source))

    whole, differing = assembled(cogs_of(source, grid, resampling=Resampling.nearest), grid)

    oracle = gdalwarped(source, grid, "near")
    assert differing == 0
    assert (oracle != 0).mean() > 0.3
    assert (whole == oracle).mean() >= 0.9999


@pytest.mark.parametrize(
    ("method", "place"), [*(("bilinear", place) for place in PLACES), ("cubic", "utm-rotated"), ("cubic", "albers")]
)
def test_interpolation_differs_from_gdalwarp_by_at_most_1_and_tiles_agree(
    tmp_path: Path, place: str, method: str
) -> None:
    source = source_at(tmp_path, place, smooth(1 if place != "utm" else 3))
    grid = output_grid(read_facts(source))

    whole, differing = assembled(cogs_of(source, grid, resampling=Resampling[method]), grid)

    oracle = gdalwarped(source, grid, method)
    inside = away_from_edge(oracle)
    assert differing == 0
    assert inside.mean() > 0.2
    assert np.abs(whole.astype(int) - oracle.astype(int))[:, inside].max() <= 1


@pytest.mark.parametrize("method", ["bilinear", "cubic", "lanczos"])
def test_tiles_agree_at_the_edge_of_nodata(tmp_path: Path, method: str) -> None:
    """The collar is rotated against the grid, so that every tile has pixels with and without nodata nearby."""
    values = speckled(3)
    y, x = np.mgrid[0:SIZE, 0:SIZE]
    values[:, (x + y < 500) | (x - y > 400) | ((x - 450) ** 2 + (y - 450) ** 2 < 90**2)] = 0
    source = source_at(tmp_path, "utm-rotated", values, nodata=0)
    grid = output_grid(read_facts(source))

    whole, differing = assembled(cogs_of(source, grid, resampling=Resampling[method]), grid)

    oracle = gdalwarped(source, grid, method)
    assert differing == 0
    assert ((whole == 0).all(axis=0) == (oracle == 0).all(axis=0)).mean() > 0.9995


@pytest.mark.parametrize(("dtype", "bands"), [("uint16", 8), ("int16", 1), ("float32", 1), ("uint8", 4)])
def test_every_type_is_warped_like_gdalwarp(tmp_path: Path, dtype: str, bands: int) -> None:
    values = smooth(bands, dtype)
    if dtype == "int16":
        values -= 3000
    source = source_at(tmp_path, "lambert", values)
    grid = output_grid(read_facts(source))

    whole, differing = assembled(
        cogs_of(source, grid, raster_type=RasterType.MULTISPECTRAL, resampling=Resampling.bilinear), grid
    )

    oracle = gdalwarped(source, grid, "bilinear")
    inside = away_from_edge(np.where(oracle == 0, 0, 1))
    assert inside.mean() > 0.2
    step = 1 if np.dtype(dtype).kind in "iu" else 0.5
    assert np.abs(whole.astype(float) - oracle)[:, inside].max() <= step
    assert differing == 0 or np.dtype(dtype).kind == "f"  # NaN differs from itself


def test_nan_is_nodata_and_stays_nodata(tmp_path: Path) -> None:
    values = smooth(1, "float32")
    values[0, 300:500, 200:700] = np.nan
    source = source_at(tmp_path, "utm", values, nodata=math.nan)
    grid = output_grid(read_facts(source))

    cogs = cogs_of(source, grid, raster_type=RasterType.DEM)

    whole, _ = assembled(cogs, grid)
    oracle = gdalwarped(source, grid, "bilinear", "-dstnodata", "nan")
    both = ~np.isnan(whole) & ~np.isnan(oracle)
    assert (np.isnan(whole) == np.isnan(oracle)).mean() > 0.9999
    assert np.abs(whole - oracle)[both].max() < 5  # of 10,000, including the edges of the hole
    with rasterio.open(cogs[0][1]) as dataset:
        assert math.isnan(dataset.nodata)


def test_no_new_classes_are_created(tmp_path: Path) -> None:
    classes = np.array([3, 11, 42, 97, 200], "uint8")
    y, x = np.mgrid[0:SIZE, 0:SIZE]
    values = classes[((x // 37 + y // 53) % 5)][np.newaxis]
    source = source_at(tmp_path, "utm-rotated", values, nodata=0)
    grid = output_grid(read_facts(source))

    cogs = cogs_of(source, grid, raster_type=RasterType.CATEGORICAL)

    for _, path in cogs:
        for level in (None, 0):
            with rasterio.open(path, **({} if level is None else {"overview_level": level})) as dataset:
                assert set(np.unique(dataset.read())) <= {0, *classes.tolist()}


def checksums(path: Path) -> list[int]:
    completed = subprocess.run(
        ["gdalinfo", "-checksum", "-json", str(path)], check=True, capture_output=True, text=True
    )
    return [band["checksum"] for band in json.loads(completed.stdout)["bands"]]


@pytest.mark.parametrize(
    ("dtype", "bands", "layout"),
    [
        ("uint8", 3, {"tiled": True, "blockxsize": 256, "blockysize": 256, "compress": "lzw"}),
        ("uint8", 3, {"nodata": 0}),
        ("uint16", 8, {"interleave": "band"}),
        ("int16", 1, {"nodata": -9999, "compress": "deflate"}),
        ("float32", 1, {"nodata": math.nan}),
    ],
)
def test_without_reprojection_checksums_equal_those_of_the_source(
    tmp_path: Path, dtype: str, bands: int, layout: Any
) -> None:
    values = smooth(bands, dtype, 1100)
    values[:, 100:300, 100:300] = layout.get("nodata", 7)
    source = write_raster(tmp_path / "source.tif", values, **layout)
    grid = output_grid(read_facts(source), "EPSG:32633")

    cog = make_cog(source, tmp_path / "cog.tif", grid, raster_type=RasterType.UNKNOWN)

    assert not cog.reprojection_performed
    assert checksums(tmp_path / "cog.tif") == checksums(source)


def test_a_striped_source_gives_the_same_pixels(tmp_path: Path) -> None:
    striped = source_at(tmp_path, "utm", speckled(3))
    tiled = write_raster(
        tmp_path / "tiled.tif",
        speckled(3),
        crs="EPSG:32633",
        transform=PLACES["utm"][1],
        tiled=True,
        blockxsize=256,
        blockysize=256,
        compress="deflate",
        interleave="pixel",
    )
    grid = output_grid(read_facts(striped))

    one = make_cog(striped, tmp_path / "one.tif", grid, raster_type=RasterType.RGB)
    other = make_cog(tiled, tmp_path / "other.tif", grid, raster_type=RasterType.RGB)

    assert one.sha256 == other.sha256


@pytest.mark.parametrize(
    ("crs", "transform"),
    [
        ("EPSG:32660", Affine(300, 0, 650_000, 0, -300, 5_300_000)),
        ("EPSG:3832", Affine(2000, 0, 2_000_000, 0, -2000, 0)),
    ],
)
def test_a_raster_across_the_antimeridian_is_split_there(tmp_path: Path, crs: str, transform: Affine) -> None:
    source = write_raster(tmp_path / "source.tif", speckled(1, 1000), crs=crs, transform=transform)
    grid = output_grid(read_facts(source))

    cogs = cogs_of(source, grid, raster_type=RasterType.CATEGORICAL)

    facts = read_facts(source)
    assert facts.bounds_4326 is not None
    assert facts.bounds_4326[0] > facts.bounds_4326[2]
    assert grid.bounds_4326_of(grid.window) == pytest.approx(facts.bounds_4326, abs=2 * grid.resolution[0])
    bounds_by_col = {tile.col: tile.bounds_4326 for tile, _ in cogs}
    assert all(-180 <= west < east <= 180 for west, _, east, _ in bounds_by_col.values())
    assert {180.0} < {east for _, _, east, _ in bounds_by_col.values()}
    assert {-180.0} < {west for west, _, _, _ in bounds_by_col.values()}
    whole, _ = assembled(cogs, grid)
    # gdalwarp does not support longitudes beyond 180°, so each half is compared separately.
    for start, stop in grid.sections:
        origin = grid.transform_of(Window(start, 0, stop - start, grid.height)).c, grid.origin[1]
        half = OutputGrid(grid.crs, origin, grid.resolution, stop - start, grid.height)
        assert (whole[:, :, start:stop] == gdalwarped(source, half, "near")).mean() >= 0.9999


@pytest.mark.parametrize(("crs", "pole"), [("EPSG:3413", 90), ("EPSG:3031", -90)])
def test_a_pole_inside_gives_all_longitudes(tmp_path: Path, crs: str, pole: int) -> None:
    source = write_raster(
        tmp_path / "source.tif", speckled(1, 1000), crs=crs, transform=Affine(2000, 0, -1e6, 0, -2000, 1e6)
    )
    grid = output_grid(read_facts(source))

    whole, differing = assembled(cogs_of(source, grid, raster_type=RasterType.CATEGORICAL), grid)

    west, south, east, north = grid.bounds_4326_of(grid.window)
    assert (west, east) == (-180, 180)
    assert abs((north if pole > 0 else south) - pole) < grid.resolution[1]
    assert differing == 0
    oracle = gdalwarped(source, grid, "near")
    known = oracle != 0  # gdalwarp gives up in the last row before the south pole
    assert known.mean() > 0.7
    assert (whole == oracle)[known].mean() >= 0.9999
    assert (whole[0, 0 if pole > 0 else -1] != 0).all()


def test_longitudes_of_0_to_360_are_converted_to_minus_180_to_180(tmp_path: Path) -> None:
    values = smooth(1, "uint8", 720)[:, :360]
    source = write_raster(tmp_path / "source.tif", values, crs="EPSG:4326", transform=Affine(0.5, 0, 0, 0, -0.5, 90))
    same = output_grid(read_facts(source))
    finer = output_grid(read_facts(source), resolution=0.25)

    copied, _ = assembled(cogs_of(source, same, raster_type=RasterType.RGB), same)
    warped, _ = assembled(cogs_of(source, finer, raster_type=RasterType.RGB), finer)

    assert np.array_equal(copied, values)
    assert [grid.bounds_4326_of(grid.window)[::2] for grid in (same, finer)] == [(-180, 180), (-180, 180)]
    assert np.abs(warped[:, ::2, ::2].astype(int) - copied)[:, 2:-2, 2:-2].max() <= 12
    assert (warped != 0).all()
