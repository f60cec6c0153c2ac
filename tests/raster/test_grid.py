import itertools
import json
import math
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from affine import Affine
from rasterio.warp import transform

from dagmaster.errors import InvalidRequest, UnfitData
from dagmaster.raster.cog.coverage import tiles_with_data
from dagmaster.raster.cog.grid import (
    OutputGrid,
    TilingScheme,
    auto_tile_size,
    output_grid,
    require_aligned,
    scheme_from_geojson,
    scheme_to_geojson,
    tiles_of,
)
from dagmaster.raster.source.facts import BandFacts, RasterFacts, RasterType, read_facts
from dagmaster.raster.source.window import BLOCK, Window
from tests.raster.rasters import write_raster

pytestmark = pytest.mark.requirement("R4")

UTM = "EPSG:32633"
Six = tuple[float, float, float, float, float, float]


def facts(crs: str | None, transform: Six | None, width: int = 2000, height: int = 1000) -> RasterFacts:
    return RasterFacts("x.tif", "GTiff", width, height, (BandFacts("uint8"),), crs=crs, transform=transform)


def resolution_of_gdalwarp(folder: Path, crs: str, transform: Six) -> tuple[float, float]:
    source = write_raster(
        folder / "s.tif", np.zeros((1000, 2000), "uint8"), crs=crs, transform=Affine(*transform), sparse_ok=True
    )
    subprocess.run(["gdalwarp", "-q", "-t_srs", "EPSG:4326", "-of", "VRT", source, folder / "t.vrt"], check=True)
    completed = subprocess.run(["gdalinfo", "-json", folder / "t.vrt"], check=True, capture_output=True, text=True)
    _, x, _, _, _, y = json.loads(completed.stdout)["geoTransform"]
    return x, -y


@pytest.mark.parametrize(
    ("crs", "transform"),
    [
        (UTM, (10, 0, 500_000, 0, -10, 5_200_000)),
        (UTM, (8, 6, 500_000, 6, -8, 5_200_000)),
        ("EPSG:5070", (30, 0, -1_000_000, 0, -30, 1_800_000)),
        ("EPSG:3413", (1000, 0, -500_000, 0, -1000, -1_500_000)),
    ],
)
def test_the_resolution_is_that_of_gdalwarp(tmp_path: Path, crs: str, transform: Six) -> None:
    grid = output_grid(facts(crs, transform))

    assert grid.resolution == pytest.approx(resolution_of_gdalwarp(tmp_path, crs, transform), rel=1e-6)


def test_pixels_of_files_with_the_same_resolution_are_aligned() -> None:
    one = output_grid(facts(UTM, (10, 0, 500_000, 0, -10, 5_200_000)), resolution=0.0001)
    other = output_grid(facts(UTM, (10, 0, 513_333, 0, -10, 5_211_111)), resolution=0.0001)

    for axis in (0, 1):
        distance_in_pixels = (one.origin[axis] - other.origin[axis]) / 0.0001
        assert distance_in_pixels == pytest.approx(round(distance_in_pixels), abs=1e-5)


def test_the_grid_covers_the_source() -> None:
    """In degrees, the upper edge of the source is curved: its middle is north of both corners."""
    grid = output_grid(facts(UTM, (100, 0, 300_000, 0, -100, 6_700_000), 4000, 1000))
    _, upper_corners = transform(UTM, "EPSG:4326", [300_000, 700_000], [6_700_000, 6_700_000])

    west, south, east, north = grid.bounds_4326_of(grid.window)

    assert north > max(upper_corners) + grid.resolution[1]
    assert (west, south, east) == pytest.approx((11.4, 59.4, 18.7), abs=0.2)


def test_a_file_in_the_target_crs_keeps_its_grid() -> None:
    grid = output_grid(facts("EPSG:4326", (0.013, 0, 5.5, 0, -0.007, 48.2)))

    assert grid == OutputGrid("EPSG:4326", (5.5, 48.2), (0.013, 0.007), 2000, 1000)


def test_a_grid_of_a_given_resolution_is_aligned_to_the_origin_of_the_crs() -> None:
    grid = output_grid(facts(UTM, (7, 0, 1003, 0, -7, 2005)), UTM, resolution=10.0)

    assert grid.origin == (1000, 2010)
    assert (grid.width, grid.height) == (1401, 701)


def test_no_tile_crosses_the_antimeridian() -> None:
    grid = output_grid(facts("EPSG:32660", (200, 0, 600_000, 0, -200, 5_400_000), 2000, 2000))

    tiles = tiles_of(grid, 1024, 512)

    assert len(grid.sections) == 2
    assert {tile.bounds_4326[2] for tile in tiles if tile.bounds_4326[0] > 0} >= {180.0}
    assert {tile.bounds_4326[0] for tile in tiles if tile.bounds_4326[0] < 0} >= {-180.0}
    assert all(tile.bounds_4326[0] < tile.bounds_4326[2] for tile in tiles)
    west, _, east, _ = grid.bounds_4326_of(grid.window)
    assert west > 178
    assert east < -176


def test_no_tile_of_web_mercator_crosses_the_antimeridian() -> None:
    grid = output_grid(facts("EPSG:32660", (200, 0, 600_000, 0, -200, 5_400_000), 2000, 2000), "EPSG:3857")

    assert 200 < grid.resolution[0] < 400
    assert len(grid.sections) == 2
    assert {tile.bounds_4326[0] for tile in tiles_of(grid, 1024) if tile.bounds_4326[0] < 0} >= {-180.0}


def test_the_grid_of_a_global_raster_is_at_most_360_degrees_wide() -> None:
    edge = 20037508.342789244
    grid = output_grid(facts("EPSG:3857", (edge / 500, 0, -edge, 0, -edge / 500, edge), 1000, 1000))

    assert grid.origin[0] >= -180 - 1e-9
    assert grid.origin[0] + grid.width * grid.resolution[0] <= 180 + 1e-9
    assert len(grid.sections) == 1


@pytest.mark.parametrize(
    ("bands", "dtype", "size"),
    [
        (3, "uint8", 8192),
        (1, "uint8", 8192),
        (4, "uint8", 6656),
        (8, "uint16", 3072),
        (1, "float32", 6656),
        (200, "float64", 1024),
    ],
)
def test_tile_size_follows_the_bytes_of_a_pixel(bands: int, dtype: str, size: int) -> None:
    assert auto_tile_size(bands, dtype) == size
    assert size % BLOCK == 0


@pytest.mark.parametrize(
    ("width", "height", "overlap"),
    [(3000, 2000, 512), (1024, 1024, 512), (1025, 512, 512), (5000, 700, 0), (100, 100, 512)],
)
def test_tiles_cover_the_grid_and_share_the_overlap(width: int, height: int, overlap: int) -> None:
    grid = OutputGrid(UTM, (500_000, 5_200_000), (10, 10), width, height)

    tiles = tiles_of(grid, 1024, overlap)

    times = np.zeros((height, width), int)
    for tile in tiles:
        window = tile.window
        times[window.row : window.row + window.height, window.col : window.col + window.width] += 1
        assert window.width <= 1024 >= window.height
        require_aligned(grid, window)
    assert times.min() == 1
    assert len({tile.tile_id for tile in tiles}) == len(tiles)
    first_row = [tile.window for tile in tiles if tile.row == 0]
    for one, other in itertools.pairwise(first_row):
        assert one.col + one.width - other.col == overlap
        assert other.width > overlap  # no tile lies within another


def test_tile_ids_are_padded() -> None:
    tiles = tiles_of(OutputGrid(UTM, (0, 0), (1, 1), 7000, 2500), 1024, 512)

    assert tiles[0].tile_id == "r000c000"
    assert tiles[-1].tile_id == "r003c012"


@pytest.mark.parametrize(
    ("tile_size", "overlap"), [(1000, 512), (1024, 100), (512, 512), (0, 0), (-512, 0), (1024, -512)]
)
def test_the_size_of_a_tile_is_a_multiple_of_a_block(tile_size: int, overlap: int) -> None:
    with pytest.raises(InvalidRequest, match="tiles of"):
        tiles_of(OutputGrid(UTM, (0, 0), (1, 1), 5000, 5000), tile_size, overlap)


@pytest.mark.parametrize(
    "window", [Window(100, 0, 512, 512), Window(0, 0, 5001, 10), Window(0, -512, 512, 512), Window(512, 512, 0, 5)]
)
def test_a_window_that_does_not_start_at_a_block_is_refused(window: Window) -> None:
    with pytest.raises(InvalidRequest, match="not a window of the grid"):
        require_aligned(OutputGrid(UTM, (0, 0), (1, 1), 5000, 5000), window)


def test_a_scheme_is_unchanged_after_geojson() -> None:
    grid = output_grid(facts("EPSG:32660", (200, 0, 600_000, 0, -200, 5_400_000), 2000, 2000))
    scheme = TilingScheme(grid, 1024, 512, tiles_of(grid, 1024, 512))

    document = json.loads(json.dumps(scheme_to_geojson(scheme)))

    assert scheme_from_geojson(document) == scheme
    properties, window = document["features"][1]["properties"], scheme.tiles[1].window
    assert properties["tile_id"] == "r000c001"
    assert (properties["grid_row"], properties["grid_col"]) == (0, 1)
    assert properties["window"] == {"col": window.col, "row": 0, "width": window.width, "height": 1024}
    assert len(properties["bounds_4326"]) == 4


@pytest.mark.parametrize("document", [{}, {"grid": {}, "features": []}, {"grid": None, "features": [{}]}])
def test_an_invalid_scheme_is_refused(document: Any) -> None:
    with pytest.raises(InvalidRequest, match="not a tiling scheme"):
        scheme_from_geojson(document)


def test_a_file_without_crs_or_georeference_is_refused() -> None:
    with pytest.raises(UnfitData, match="no CRS"):
        output_grid(facts(None, (1, 0, 0, 0, -1, 0)))
    with pytest.raises(UnfitData, match="no georeference"):
        output_grid(facts(UTM, None))


@pytest.mark.parametrize("resolution", [0, -1.0, math.nan, (1.0, 0.0)])
def test_a_resolution_that_is_not_positive_is_refused(resolution: Any) -> None:
    with pytest.raises(InvalidRequest, match="resolution"):
        output_grid(facts(UTM, (10, 0, 500_000, 0, -10, 5_200_000)), resolution=resolution)


def rotated_scene(folder: Path, values: Any, **profile: Any) -> Path:
    transform = Affine.translation(500_000, 5_200_000) @ Affine.rotation(35) @ Affine.scale(10, -10)
    return write_raster(folder / "scene.tif", values, crs=UTM, transform=transform, **profile)


def test_empty_tiles_are_left_out_and_tiles_with_data_are_kept(tmp_path: Path) -> None:
    """One pixel of data in the far corner of a nodata source keeps its tile."""
    values = np.zeros((1, 3000, 3000), "uint8")
    values[0, 2990, 17] = 9
    values[0, 100:200, 1500:1700] = 7
    source = rotated_scene(tmp_path, values, nodata=0, compress="deflate")
    grid = output_grid(read_facts(source))
    tiles = tiles_of(grid, 512, 0)

    kept = tiles_with_data(source, grid, tiles, raster_type=RasterType.CATEGORICAL)

    points = [_degrees(source, *place) for place in [(17.5, 2990.5), (1500.5, 100.5), (1600.5, 150.5), (1699.5, 199.5)]]
    holding = {tile.tile_id for tile in tiles if any(_contains(grid, tile.window, *point) for point in points)}
    assert len(holding) >= 2
    assert holding <= {tile.tile_id for tile in kept}
    assert len(kept) < len(tiles) / 3


def test_without_nodata_only_tiles_outside_the_source_are_left_out(tmp_path: Path) -> None:
    source = rotated_scene(tmp_path, np.ones((1, 2000, 2000), "uint8"), sparse_ok=True)
    grid = output_grid(read_facts(source))
    tiles = tiles_of(grid, 512, 0)

    kept = tiles_with_data(source, grid, tiles, raster_type=RasterType.RGB)

    middle = [tile for tile in tiles if _contains(grid, tile.window, *_degrees(source, 1000, 1000))]
    corner = tiles[0]
    assert set(middle) <= set(kept)
    assert corner not in kept


def _degrees(source: Path, col: float, row: float) -> tuple[float, float]:
    x, y = Affine(*(read_facts(source).transform or ())) @ (col, row)
    lon, lat = transform(UTM, "EPSG:4326", [x], [y])
    return lon[0], lat[0]


def _contains(grid: OutputGrid, window: Window, lon: float, lat: float) -> bool:
    west, south, east, north = grid.bounds_of(window)
    return west <= lon <= east and south <= lat <= north
