"""Blocks and overviews: nodata stays nodata, and valid pixels never become nodata."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyproj
import pytest
import rasterio
from affine import Affine
from rasterio.enums import ColorInterp, Resampling

from dagmaster.errors import InvalidRequest, UnfitData
from dagmaster.raster.cog.grid import OutputGrid, output_grid
from dagmaster.raster.cog.pyramid import PyramidLevel, halving, sizes
from dagmaster.raster.cog.warp import Blocks, Copy, Warp, blocks_of
from dagmaster.raster.source.facts import RasterType, read_facts
from dagmaster.raster.source.pixels import Block, Rules, Validity, rules_of, source_of
from dagmaster.raster.source.window import Window
from tests.raster.rasters import write_raster

pytestmark = pytest.mark.requirement("R5")


def rules(path: Path, raster_type: RasterType = RasterType.UNKNOWN, nodata: float | None = None) -> Rules:
    with rasterio.open(path) as dataset:
        return rules_of(dataset, raster_type, nodata)


def open_blocks(dataset: Any, grid: OutputGrid, resampling: Resampling = Resampling.bilinear, **how: Any) -> Blocks:
    return blocks_of(source_of(dataset, how.pop("raster_type", RasterType.RGB), **how), grid, resampling)


def set_alpha(dataset: Any) -> None:
    dataset.colorinterp = [ColorInterp.red, ColorInterp.green, ColorInterp.blue, ColorInterp.alpha]


class BlockRecorder:
    """Keeps the blocks that a level writes."""

    def __init__(self) -> None:
        self.blocks_by_position: dict[tuple[int, int], Block] = {}

    def write(self, window: Window, block: Block) -> None:
        self.blocks_by_position[window.row, window.col] = block


def test_the_nodata_mask_of_a_source_is_recognised(tmp_path: Path) -> None:
    ones = np.ones((4, 20, 20), "uint8")
    plain = write_raster(tmp_path / "plain.tif", ones[:1])
    marked = write_raster(tmp_path / "marked.tif", ones[:1], nodata=0)
    alpha = write_raster(tmp_path / "alpha.tif", ones, photometric="RGB", alpha="YES")
    masked = write_raster(tmp_path / "masked.tif", ones[:1], after=lambda dataset: dataset.write_mask(ones[0] > 0))
    floats = write_raster(tmp_path / "floats.tif", ones[:1].astype("float32"))

    assert rules(plain).validity is Validity.ALL
    assert rules(plain, nodata=7).nodata == 7
    assert (rules(marked).validity, rules(marked).nodata) == (Validity.NODATA, 0)
    assert rules(marked, nodata=255).nodata == 255
    assert (rules(alpha).validity, rules(alpha).alpha) == (Validity.ALPHA, 3)
    assert rules(masked).validity is Validity.MASK
    assert math.isnan(rules(floats).nodata or 0)


def test_a_nodata_value_that_the_type_cannot_hold_is_ignored(tmp_path: Path) -> None:
    path = write_raster(tmp_path / "x.tif", np.ones((1, 20, 20), "uint8"))

    assert rules(path, nodata=-9999).validity is Validity.ALL
    assert rules(path, nodata=0.5).validity is Validity.ALL


def test_a_dark_colour_is_data_in_a_picture_but_nodata_in_measurements() -> None:
    values = np.array([[[0, 0, 5]], [[0, 9, 5]]], "uint8")

    together = Rules(Validity.NODATA, 0, is_nodata_shared=True).valid_of(values)
    apart = Rules(Validity.NODATA, 0, is_nodata_shared=False).valid_of(values)

    assert together is not None
    assert together.tolist() == [[[False, True, True]]]
    assert apart is not None
    assert apart.tolist() == [[[False, False, True]], [[False, True, True]]]


@pytest.mark.parametrize("resampling", [Resampling.bilinear, Resampling.cubic, Resampling.lanczos])
@pytest.mark.parametrize("nodata", [0, 255, 100])
def test_interpolation_never_turns_data_into_nodata(tmp_path: Path, resampling: Resampling, nodata: int) -> None:
    """Cubic and lanczos undershoot to 0 and overshoot to 255 next to sharp edges;
    bilinear produces every value between."""
    values = np.where(np.indices((2000, 2000)).sum(axis=0) // 7 % 2, 1, 254).astype("uint8")[np.newaxis]
    whole = write_raster(tmp_path / "whole.tif", values, nodata=nodata)
    values[:, 900:950, 900:1000] = nodata
    holed = write_raster(tmp_path / "holed.tif", values, nodata=nodata)
    grid = output_grid(read_facts(whole))

    with rasterio.open(whole) as dataset:
        inside = open_blocks(dataset, grid, resampling).block(1024, 512)
    with rasterio.open(holed) as dataset:
        around_hole = open_blocks(dataset, grid, resampling).block(1024, 512)
        hole = open_blocks(dataset, grid, Resampling.nearest).block(1024, 512)

    assert inside is not None
    assert inside.valid is None
    assert (inside.values != nodata).all()
    assert around_hole is not None
    assert hole is not None
    assert hole.valid is not None
    assert 1000 < (~hole.valid).sum() < 10_000
    assert ((around_hole.values == nodata) != ~hole.valid).sum() < 5


def test_there_is_no_block_outside_the_source_or_without_data(tmp_path: Path) -> None:
    values = np.zeros((1, 1500, 1500), "uint8")
    values[:, :200, :200] = 5
    source = write_raster(tmp_path / "s.tif", values, nodata=0)
    grid = output_grid(read_facts(source))
    far = OutputGrid(grid.crs, (100.0, 10.0), grid.resolution, 2000, 2000)

    with rasterio.open(source) as dataset:
        assert open_blocks(dataset, grid).block(0, 0) is not None
        assert open_blocks(dataset, grid).block(1024, 1024) is None
        assert open_blocks(dataset, far).block(0, 0) is None


def test_a_block_does_not_depend_on_earlier_blocks(tmp_path: Path) -> None:
    values = np.random.default_rng(1).integers(1, 255, (3, 1500, 1500)).astype("uint8")
    source = write_raster(tmp_path / "s.tif", values)
    grid = output_grid(read_facts(source))

    with rasterio.open(source) as dataset:
        alone = open_blocks(dataset, grid).block(512, 512)
    with rasterio.open(source) as dataset:
        blocks = open_blocks(dataset, grid)
        blocks.block(0, 0)
        blocks.block(512, 0)
        after = blocks.block(512, 512)

    assert alone is not None
    assert after is not None
    assert np.array_equal(alone.values, after.values)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "float32"])
def test_a_mask_is_warped_with_its_pixels(tmp_path: Path, dtype: str) -> None:
    values = np.full((2, 900, 900), 50, dtype)
    valid = np.ones((900, 900), bool)
    valid[100:400, 100:400] = False
    values[:, ~valid] = 90
    source = write_raster(tmp_path / "s.tif", values, after=lambda dataset: dataset.write_mask(valid))
    grid = output_grid(read_facts(source))

    with rasterio.open(source) as dataset:
        block = open_blocks(dataset, grid).block(0, 0)

    assert block is not None
    assert block.valid is not None
    assert 0.15 < 1 - block.valid.mean() < 0.5
    assert set(np.unique(block.values[:, block.valid[0]])) == {50}
    assert set(np.unique(block.values[:, ~block.valid[0]])) == {0}


def test_a_gap_in_one_band_is_not_copied_to_other_bands(tmp_path: Path) -> None:
    values = np.full((2, 900, 900), 50, "int16")
    values[1, 100:400, 100:400] = -9999
    source = write_raster(tmp_path / "s.tif", values, nodata=-9999)
    grid = output_grid(read_facts(source))

    with rasterio.open(source) as dataset:
        block = open_blocks(dataset, grid, raster_type=RasterType.MULTISPECTRAL).block(0, 0)

    assert block is not None
    assert set(np.unique(block.values)) == {50, -9999}
    gaps = (block.values == -9999).mean(axis=(1, 2))
    assert gaps[0] < 0.05  # only at the edge of the source
    assert 0.15 < gaps[1] < 0.5


@pytest.mark.parametrize("seed", range(8))
def test_bilinear_is_valid_where_the_source_pixel_at_the_centre_is(tmp_path: Path, seed: int) -> None:
    """Compared with centres that pyproj projects, for random gaps, bands, types, rotations and pixel sizes."""
    rng = np.random.default_rng(seed)
    bands, height, width = 1 + seed % 3, *rng.integers(60, 140, 2)
    nodata = int(rng.integers(0, 5))  # interpolation between lower and higher values can produce it
    values = rng.integers(0, 5, (bands, height, width)).astype(rng.choice(["uint8", "int16", "float32"]))
    values[values == nodata] += 1
    shown = rng.random((bands if seed % 2 else 1, height, width)) < rng.choice([0.03, 0.6])
    shown = np.broadcast_to(shown, values.shape)
    values[~shown] = nodata
    place = Affine.translation(500_000, 5_000_000) @ Affine.rotation(rng.choice([0, 7, 33])) @ Affine.scale(10, -10)
    source = write_raster(tmp_path / "s.tif", values, nodata=nodata, transform=place)
    grid = output_grid(read_facts(source), "EPSG:3857", 14.2 * rng.choice([0.5, 1, 3]))

    with rasterio.open(source) as dataset:
        block = open_blocks(dataset, grid, raster_type=RasterType.MULTISPECTRAL).block(0, 0)

    assert block is not None
    assert block.valid is not None
    across, down = np.meshgrid(np.arange(block.values.shape[2]) + 0.5, np.arange(block.values.shape[1]) + 0.5)
    projection = pyproj.Transformer.from_crs("EPSG:3857", "EPSG:32633", always_xy=True)
    x, y = projection.transform(*(grid.transform_of(grid.window) @ (across, down)))
    at = ~place @ (x, y)
    cols, rows = (np.floor(axis).astype(int) for axis in at)
    inside = (cols >= 0) & (cols < width) & (rows >= 0) & (rows < height)
    expected = shown[:, rows.clip(0, height - 1), cols.clip(0, width - 1)] & inside
    is_clear = (
        np.min([np.abs(axis - np.round(axis)) for axis in at], axis=0) > 0.01
    )  # not near an edge of a source pixel
    assert is_clear.mean() > 0.9
    assert (((block.values != nodata) == expected) | ~is_clear).all()


def test_transparent_pixels_are_not_mixed_into_others(tmp_path: Path) -> None:
    values = np.full((4, 900, 900), 50, "uint8")
    values[3] = 255
    values[:, 200:400, 200:400] = np.array([250, 250, 250, 0], "uint8")[:, None, None]
    source = write_raster(tmp_path / "s.tif", values, after=set_alpha)
    grid = output_grid(read_facts(source))

    with rasterio.open(source) as dataset:
        block = open_blocks(dataset, grid, raster_type=RasterType.RGBA).block(0, 0)

    assert block is not None
    shown = block.values[3] > 0
    assert 0.02 < (~shown).mean() < 0.5
    assert set(np.unique(block.values[:3, shown])) == {50}


def test_pixels_are_copied_if_the_grid_is_the_same_and_warped_otherwise(tmp_path: Path) -> None:
    source = write_raster(tmp_path / "s.tif", np.ones((1, 700, 700), "uint8"))
    facts = read_facts(source)

    with rasterio.open(source) as dataset:
        assert isinstance(open_blocks(dataset, output_grid(facts, "EPSG:32633")), Copy)
        assert isinstance(open_blocks(dataset, output_grid(facts, "EPSG:32633", resolution=10.0)), Copy)
        assert isinstance(open_blocks(dataset, output_grid(facts, "EPSG:32633", resolution=9.99)), Warp)
        assert isinstance(open_blocks(dataset, output_grid(facts, "EPSG:32634")), Warp)


def test_a_coarser_grid_averages_pixels(tmp_path: Path) -> None:
    """A checkerboard of 0 and 200 becomes grey at a lower resolution."""
    board = (np.indices((1200, 1200)).sum(axis=0) % 2 * 200).astype("uint8")[np.newaxis]
    source = write_raster(tmp_path / "s.tif", board)
    grid = output_grid(read_facts(source), "EPSG:32633", resolution=80.0)

    with rasterio.open(source) as dataset:
        block = open_blocks(dataset, grid).block(0, 0)

    assert block is not None
    inner = block.values[0, 5:140, 5:140]
    assert abs(inner.mean() - 100) < 2
    assert inner.std() < 12


def test_a_grid_that_is_far_too_coarse_is_refused(tmp_path: Path) -> None:
    source = write_raster(tmp_path / "s.tif", np.ones((1, 700, 700), "uint8"))
    grid = output_grid(read_facts(source), "EPSG:32633", resolution=500.0)

    with rasterio.open(source) as dataset, pytest.raises(InvalidRequest, match="50 times coarser"):
        open_blocks(dataset, grid)


@pytest.mark.parametrize(
    ("crs", "transform", "target"),
    [
        ("EPSG:3031", Affine(5000, 0, -1e6, 0, -5000, 1e6), "EPSG:4326"),
        ("EPSG:3413", Affine(5000, 0, -1e6, 0, -5000, 1e6), "EPSG:4326"),
        ("EPSG:4326", Affine(0.9, 0, -180, 0, -0.075, 90), "EPSG:3413"),
        ("EPSG:4326", Affine(0.9, 0, 0, 0, -0.075, -60), "EPSG:3031"),
        ("EPSG:32660", Affine(750, 0, 650_000, 0, -750, 5_300_000), "EPSG:3857"),
    ],
)
def test_interpolation_covers_poles_and_the_antimeridian(
    tmp_path: Path, crs: str, transform: Affine, target: str
) -> None:
    """A constant stays constant, and covers as many pixels as with nearest."""
    source = write_raster(tmp_path / "s.tif", np.full((1, 400, 400), 80, "uint8"), crs=crs, transform=transform)
    grid = output_grid(read_facts(source), target)
    places = [(col, row) for row in range(0, grid.height, 512) for col in range(0, grid.width, 512)]

    with rasterio.open(source) as dataset:
        bilinear, nearest = open_blocks(dataset, grid), open_blocks(dataset, grid, Resampling.nearest)
        pairs = [(bilinear.block(*place), nearest.block(*place)) for place in places]

    covered = [sum(int((block.values == 80).sum()) for block in blocks if block) for blocks in zip(*pairs, strict=True)]
    assert {value for pair in pairs for block in pair if block for value in np.unique(block.values)} <= {0, 80}
    assert covered[1] > 8_000
    assert covered[0] == pytest.approx(covered[1], rel=0.02)


def test_bands_with_different_nodata_values_get_a_common_one(tmp_path: Path) -> None:
    folder = [
        write_raster(tmp_path / f"{value}.tif", np.array([[[value, 5]]], "int16"), nodata=value) for value in (-1, -2)
    ]
    vrt = tmp_path / "both.vrt"
    bands = "".join(
        f'<VRTRasterBand dataType="Int16" band="{band}"><NoDataValue>{-band}</NoDataValue><SimpleSource>'
        f"<SourceFilename>{path}</SourceFilename><SourceBand>1</SourceBand></SimpleSource></VRTRasterBand>"
        for band, path in enumerate(folder, 1)
    )
    vrt.write_text(
        '<VRTDataset rasterXSize="2" rasterYSize="1"><SRS>EPSG:32633</SRS>'
        f"<GeoTransform>500000,10,0,5000000,0,-10</GeoTransform>{bands}</VRTDataset>"
    )

    with rasterio.open(vrt) as dataset:
        block = open_blocks(dataset, OutputGrid("EPSG:32633", (500_000, 5_000_000), (10, 10), 2, 1)).block(0, 0)

    assert block is not None
    assert block.values[:, 0, :2].tolist() == [[-1, 5], [-1, 5]]


def test_a_truncated_file_is_reported_as_damaged(tmp_path: Path) -> None:
    values = np.random.default_rng(1).integers(1, 255, (1, 1500, 1500)).astype("uint8")
    source = write_raster(tmp_path / "s.tif", values, compress="deflate")
    source.write_bytes(source.read_bytes()[:400_000])

    with rasterio.open(source) as dataset:
        blocks = open_blocks(dataset, output_grid(read_facts(source)))
        with pytest.raises(UnfitData, match=r"'s\.tif' is damaged") as refused:
            blocks.block(512, 512)

    assert str(tmp_path) not in str(refused.value)


def test_overview_sizes_are_halved_until_one_block_is_enough() -> None:
    assert sizes(8192, 8192) == [(8192, 8192), (4096, 4096), (2048, 2048), (1024, 1024), (512, 512)]
    assert sizes(1301, 7) == [(1301, 7), (651, 4), (326, 2)]
    assert sizes(512, 512) == [(512, 512)]


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "int32", "float32", "float64"])
def test_overviews_average_valid_pixels(dtype: str) -> None:
    values = np.array([[[1, 2, 9, 9], [3, 4, 9, 9]]], dtype)
    valid = np.array([[[True, True, True, False], [True, True, False, False]]])

    plain = halving(Resampling.average, Rules(Validity.ALL))(Block(values))
    masked = halving(Resampling.average, Rules(Validity.MASK))(Block(values, valid))

    expected = 2.5 if np.dtype(dtype).kind == "f" else 3
    assert plain.values.tolist() == [[[expected, 9]]]
    assert masked.values.tolist() == [[[expected, 9]]]
    assert masked.valid is not None
    assert masked.valid.tolist() == [[[True, True]]]


def test_overviews_do_not_overflow() -> None:
    for dtype in ("uint8", "uint16", "int16", "uint32"):
        limits = np.iinfo(dtype)
        for extreme in (limits.max, limits.min):
            values = np.full((1, 2, 2), extreme, dtype)
            for valid in (None, np.array([[[True, True], [True, False]]])):
                result = halving(Resampling.average, Rules(Validity.MASK))(Block(values, valid))
                assert result.values.tolist() == [[[extreme]]]


def test_an_average_never_becomes_nodata() -> None:
    values = np.array([[[0, 200], [0, 200]]], "uint8")

    result = halving(Resampling.average, Rules(Validity.NODATA, 100))(Block(values))

    assert result.values.tolist() == [[[99]]]


def test_nodata_is_not_counted_in_the_majority_of_classes() -> None:
    values = np.array([[[0, 0, 4, 7], [0, 6, 7, 4]]], "uint8")
    valid = values != 0

    result = halving(Resampling.mode, Rules(Validity.NODATA, 0))(Block(values, valid))

    assert result.values.tolist() == [[[6, 4]]]
    assert result.valid is not None
    assert result.valid.all()


def test_a_pyramid_equals_repeated_halving_of_the_whole() -> None:
    rng = np.random.default_rng(2)
    whole = rng.integers(0, 255, (2, 1300, 1101)).astype("uint8")
    halve = halving(Resampling.average, Rules(Validity.ALL))
    recorders = [BlockRecorder() for _ in sizes(1101, 1300)]
    level: PyramidLevel | None = None
    for recorder, (width, height) in reversed(list(zip(recorders, sizes(1101, 1300), strict=True))):
        level = PyramidLevel(width, height, recorder, halve, 0, level)
    assert level is not None

    for row in range(3):
        for col in range(3):
            level.put(
                row,
                col,
                Block(
                    np.pad(whole, ((0, 0), (0, 300), (0, 500)))[
                        :, row * 512 : row * 512 + 512, col * 512 : col * 512 + 512
                    ]
                ),
            )

    expected = whole
    for recorder in recorders:
        assembled = np.zeros_like(expected)
        for (top, left), block in recorder.blocks_by_position.items():
            assembled[:, top : top + block.values.shape[1], left : left + block.values.shape[2]] = block.values
        assert np.array_equal(assembled, expected)
        expected = halve(Block(expected)).values


def test_an_empty_quarter_of_an_overview_is_nodata() -> None:
    recorders = [BlockRecorder(), BlockRecorder()]
    rule = Rules(Validity.NODATA, 9)
    halve = halving(Resampling.average, rule)
    level = PyramidLevel(1024, 1024, recorders[0], halve, 9, PyramidLevel(512, 512, recorders[1], halve, 9))

    for row, col in [(0, 0), (0, 1), (1, 0), (1, 1)]:
        level.put(row, col, Block(np.full((1, 512, 512), 4, "uint8")) if (row, col) == (1, 0) else None)

    result = recorders[1].blocks_by_position[0, 0]
    assert list(recorders[0].blocks_by_position) == [(512, 0)]
    assert result.valid is not None
    assert (result.values[0, 256:, :256] == 4).all()
    assert (result.values == 9).sum() == 3 * 256 * 256
    assert result.valid.sum() == 256 * 256


def test_longitudes_beyond_the_antimeridian_are_read(tmp_path: Path) -> None:
    """A file of 170 … 190° in another datum, read at -175°."""
    values = np.tile(np.arange(200, dtype="uint8"), (100, 1))[np.newaxis]
    source = write_raster(tmp_path / "s.tif", values, crs="EPSG:4267", transform=Affine(0.1, 0, 170, 0, -0.1, 10))
    grid = output_grid(read_facts(source))
    (_, middle), (_, _) = grid.sections

    with rasterio.open(source) as dataset:
        block = open_blocks(dataset, grid, Resampling.nearest).block(middle, 0)

    assert block is not None
    assert block.values[0, 50, :80].tolist() == pytest.approx(list(range(100, 180)), abs=1)
