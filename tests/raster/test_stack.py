"""Stacks and merged neighbours compared with GDAL's tools, and clear errors for files that do not match."""

import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from affine import Affine
from rasterio.enums import ColorInterp, MaskFlags, Resampling

from dagmaster.errors import InvalidRequest, UnfitData
from dagmaster.raster.cog import stack
from dagmaster.raster.cog.grid import OutputGrid, output_grid
from dagmaster.raster.cog.profiles import profile_of
from dagmaster.raster.cog.stack import CombinedRaster, bordered, grid_groups, merged, neighbours_of, stacked
from dagmaster.raster.cog.warp import Warp
from dagmaster.raster.cog.write import CogFacts, make_cog, write_cog
from dagmaster.raster.source.facts import RasterType, read_facts
from dagmaster.raster.source.pixels import Validity, source_of
from dagmaster.raster.source.window import Window
from tests.raster.rasters import TRANSFORM, UTM33, hills, noise, write_raster
from tests.raster.test_cog import require_valid

pytestmark = pytest.mark.requirement("R10")

DEM = RasterType.DEM


def moved(cols: float, rows: float = 0, of: Affine = TRANSFORM) -> Affine:
    return of @ Affine.translation(cols, rows)


def cog_of(
    whole: CombinedRaster, target: Path, *, crs: str = UTM33, raster_type: RasterType = DEM, **how: Any
) -> CogFacts:
    written = write_cog(
        whole.pixels, whole.bands, target, output_grid(whole.facts, crs), raster_type=raster_type, **how
    )
    require_valid(target)
    return written


def result_of_tool(tool: str, target: Path, *words: str | Path) -> Any:
    """The result of one of GDAL's tools."""
    subprocess.run([tool, "-q", *map(str, words)], check=True, capture_output=True)
    with rasterio.open(target) as dataset:
        return dataset.read()


def gdalwarped(target: Path, grid: OutputGrid, method: str, *sources: Path, scale: tuple[float, float] = (1, 1)) -> Any:
    west, north = grid.origin
    east, south = west + grid.width * grid.resolution[0], north - grid.height * grid.resolution[1]
    place = [repr(value) for value in (west, south, east, north)]
    words = ["-overwrite", "-et", "0", "-r", method, "-t_srs", grid.crs, "-te", *place, "-ts", grid.width, grid.height]
    kernel = ["-wo", f"XSCALE={scale[0]}", "-wo", f"YSCALE={scale[1]}"]
    return result_of_tool("gdalwarp", target, *map(str, words), *kernel, *sources, target)


# Stacked bands


def test_a_stack_equals_gdalbuildvrt_separate(tmp_path: Path) -> None:
    files = [
        write_raster(tmp_path / f"rp{years}.tif", hills(700, 600) + years, nodata=-9999) for years in (10, 100, 1000)
    ]

    with stacked(files, raster_type=DEM) as whole:
        written = cog_of(whole, tmp_path / "stack.tif")

    vrt = tmp_path / "stack.vrt"
    with rasterio.open(written.path) as dataset:
        assert np.array_equal(dataset.read(), result_of_tool("gdalbuildvrt", vrt, "-separate", vrt, *files))
        assert dataset.nodata == -9999
    assert (written.band_count, written.reprojection_performed, written.clamped) == (3, False, 0)


def test_a_stack_is_warped_as_by_gdalwarp(tmp_path: Path) -> None:
    holes = hills(700, 600)
    holes[100:200, 50:300] = -9999
    files = [
        write_raster(tmp_path / "a.tif", hills(700, 600), nodata=-9999),
        write_raster(tmp_path / "b.tif", holes, nodata=-9999),
    ]

    with stacked(files, raster_type=DEM) as whole:
        written = cog_of(whole, tmp_path / "stack.tif", crs="EPSG:4326", resampling=Resampling.nearest)
        grid = output_grid(whole.facts, "EPSG:4326")

    result_of_tool("gdalbuildvrt", files[0], "-separate", tmp_path / "stack.vrt", *files)
    theirs = gdalwarped(tmp_path / "theirs.tif", grid, "near", tmp_path / "stack.vrt")
    with rasterio.open(written.path) as dataset:
        ours = dataset.read()
    assert (ours == theirs).mean() > 0.9999
    gap = (ours[1] == -9999) & (ours[0] != -9999)  # a gap of one band is not copied to the other
    assert gap.sum() > 10_000


def test_all_metadata_of_each_band_is_kept(tmp_path: Path) -> None:
    def description(name: str | None, unit: str, scale: float) -> Any:
        def describe(dataset: Any) -> None:
            dataset.descriptions, dataset.units = (name,), (unit,)
            dataset.scales, dataset.offsets = (scale,), (-scale,)
            dataset.update_tags(AREA_OR_POINT="Point")

        return describe

    values = noise(300, 300, dtype="int16")
    files = [
        write_raster(tmp_path / "a.tif", values, nodata=0, after=description("depth", "m", 0.1)),
        write_raster(tmp_path / "b.tif", values + 1, nodata=0, after=description(None, "cm", 2.0)),
    ]

    with stacked(files, raster_type=DEM, names=["first", "second"]) as whole:
        written = cog_of(whole, tmp_path / "stack.tif")

    with rasterio.open(written.path) as dataset:
        assert dataset.descriptions == ("depth", "second")
        assert (dataset.units, dataset.scales, dataset.offsets) == (("m", "cm"), (0.1, 2.0), (-0.1, -2.0))
        assert (dataset.nodata, dataset.dtypes) == (0, ("int16", "int16"))
        assert dataset.colorinterp[0] is ColorInterp.gray
        assert dataset.tags()["AREA_OR_POINT"] == "Point"


def test_three_files_make_a_picture(tmp_path: Path) -> None:
    files = [write_raster(tmp_path / f"{color}.tif", noise(300, 300, seed=seed)) for seed, color in enumerate("rgb")]

    with stacked(files, raster_type=RasterType.RGB) as whole:
        written = cog_of(
            whole, tmp_path / "picture.tif", raster_type=RasterType.RGB, profile=profile_of("visualization")
        )

    with rasterio.open(written.path) as dataset:
        assert dataset.colorinterp == (ColorInterp.red, ColorInterp.green, ColorInterp.blue)
    assert written.compression == "JPEG"


def test_more_files_than_may_be_open_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack, "_MAX_OPEN", 3)
    files = [write_raster(tmp_path / f"{at}.tif", np.full((40, 40), at, "uint8")) for at in range(8)]

    with stacked(files, raster_type=DEM) as whole:
        block = whole.pixels.read(Window(0, 0, 40, 40)).values
        still_open = [
            link for link in Path("/proc/self/fd").iterdir() if os.path.realpath(link).startswith(str(tmp_path))
        ]

    assert block[:, 0, 0].tolist() == list(range(8))
    assert len(still_open) <= 3


# Merged neighbours


def neighbours(folder: Path, values: Any, **profile: Any) -> list[Path]:
    """One picture cut into four, of unequal sizes, that overlap by 20 pixels."""
    cuts = [((0, 420), (0, 320)), ((0, 420), (300, 700)), ((400, 700), (0, 320)), ((400, 700), (300, 700))]
    return [
        write_raster(
            folder / f"part-{at}.tif",
            values[..., rows[0] : rows[1], cols[0] : cols[1]],
            transform=moved(cols[0], rows[0]),
            **profile,
        )
        for at, (rows, cols) in enumerate(cuts)
    ]


@pytest.mark.parametrize(
    ("values", "profile"),
    [
        (noise(3, 700, 700), {"photometric": "RGB"}),
        (hills(700, 700), {"nodata": -9999}),
        (noise(700, 700, dtype="int16"), {}),
    ],
    ids=["rgb", "floats", "whole numbers"],
)
def test_tiles_merge_to_the_raster_they_were_cut_from(tmp_path: Path, values: Any, profile: Any) -> None:
    files = neighbours(tmp_path, values, **profile)

    with merged(files, raster_type=DEM) as whole:
        written = cog_of(whole, tmp_path / "whole.tif")

    with rasterio.open(written.path) as dataset:
        assert np.array_equal(np.squeeze(dataset.read()), values)
        assert dataset.transform == TRANSFORM
    theirs = tmp_path / "theirs.tif"
    assert np.array_equal(np.squeeze(result_of_tool("gdal_merge.py", theirs, "-o", theirs, *files)), values)


@pytest.mark.parametrize("method", ["near", "bilinear"])
def test_a_merge_is_warped_without_a_seam(tmp_path: Path, method: str) -> None:
    """The result equals gdalwarp of the whole; gdalwarp of the parts would show their edges."""
    values = hills(700, 700)
    uncut = write_raster(tmp_path / "uncut.tif", values, nodata=-9999)
    files = neighbours(tmp_path, values, nodata=-9999)
    how = Resampling.nearest if method == "near" else Resampling.bilinear

    with merged(files, raster_type=DEM) as whole:
        grid = output_grid(whole.facts, "EPSG:4326")
        written = cog_of(whole, tmp_path / "whole.tif", crs="EPSG:4326", resampling=how)

    theirs = gdalwarped(tmp_path / "theirs.tif", grid, method, uncut)
    with rasterio.open(written.path) as dataset:
        ours = dataset.read()
    both = (ours != -9999) & (theirs != -9999)
    assert both.mean() > 0.6
    apart = np.abs(ours - theirs)[both]
    assert (apart > 0).mean() < 1e-4 if method == "near" else apart.max() < 0.1
    assert ((ours != -9999) == (theirs != -9999)).mean() > 0.999


def test_later_files_are_on_top_and_their_gaps_show_earlier_files(tmp_path: Path) -> None:
    below = write_raster(tmp_path / "below.tif", np.full((60, 60), 5, "int16"), nodata=-1)
    above = np.full((60, 60), 7, "int16")
    above[10:20] = -1
    above_ = write_raster(tmp_path / "above.tif", above, nodata=-1, transform=moved(30))
    files, theirs = [below, above_], tmp_path / "theirs.tif"

    with merged(files, raster_type=DEM) as whole:
        block = whole.pixels.read(Window(0, 0, 90, 60))

    oracle = result_of_tool("gdal_merge.py", theirs, "-n", "-1", "-a_nodata", "-1", "-init", "-1", "-o", theirs, *files)
    assert np.array_equal(block.values, oracle)
    assert block.values[0, 15, 40] == 5
    assert block.valid is not None
    assert np.array_equal(block.valid, oracle != -1)


@pytest.mark.parametrize("how", ["none", "mask", "alpha"])
def test_pixels_that_no_file_covers_are_nodata(tmp_path: Path, how: str) -> None:
    values = noise(4 if how == "alpha" else 3, 50, 50)
    values[3:] = 255
    options: Any = {"photometric": "RGB", "alpha": "YES"} if how == "alpha" else {"photometric": "RGB"}
    if how == "mask":
        options["after"] = lambda dataset: dataset.write_mask(np.ones((50, 50), bool))
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True):
        files = [
            write_raster(tmp_path / f"{at}.tif", values, transform=moved(at * 80, at * 30), **options)
            for at in range(2)
        ]
    kind = RasterType.RGBA if how == "alpha" else RasterType.RGB

    with merged(files, raster_type=kind) as whole:
        written = cog_of(whole, tmp_path / "whole.tif", raster_type=kind)

    assert written.validity is (Validity.ALPHA if how == "alpha" else Validity.MASK)
    with rasterio.open(written.path) as dataset:
        mask = dataset.dataset_mask() > 0
        assert (dataset.width, dataset.height) == (130, 80)
        assert how == "alpha" or MaskFlags.per_dataset in dataset.mask_flag_enums[0]
        assert np.array_equal(dataset.read()[:3, 30:80, 80:], values[:3])
    assert mask.sum() == 2 * 50 * 50
    assert mask[:50, :50].all()
    assert mask[30:, 80:].all()


def test_rotated_and_south_up_files_are_merged_on_their_own_grid(tmp_path: Path) -> None:
    values = noise(100, 160)
    for place in (Affine.rotation(25) @ Affine.scale(10, -10), Affine.scale(10, 10)):
        corner = Affine.translation(500_000, 5_000_000) @ place
        files = [
            write_raster(tmp_path / "right.tif", values[:, 80:], transform=moved(80, of=corner)),
            write_raster(tmp_path / "left.tif", values[:, :80], transform=corner),
        ]

        with merged(files, raster_type=DEM) as whole:
            block = whole.pixels.read(Window(0, 0, 160, 100))

        assert np.array_equal(block.values[0], values)
        assert block.valid is None
        assert whole.pixels.transform.almost_equals(corner, 1e-6)


def test_a_palette_that_all_files_share_is_kept(tmp_path: Path) -> None:
    palette = {value: (value * 20, 255 - value, value, 255) for value in range(12)}

    def paint(dataset: Any) -> None:
        dataset.write_colormap(1, palette)

    values = noise(100, 100, low=0, high=12)
    files = [write_raster(tmp_path / f"{at}.tif", values, transform=moved(100 * at), after=paint) for at in range(2)]

    with merged(files, raster_type=RasterType.CATEGORICAL) as whole:
        written = cog_of(whole, tmp_path / "whole.tif", raster_type=RasterType.CATEGORICAL)

    with rasterio.open(written.path) as dataset:
        assert {value: dataset.colormap(1)[value] for value in palette} == palette


# Files that do not match


def scaled(dataset: Any) -> None:
    dataset.scales = (0.5,)


def in_feet(dataset: Any) -> None:
    dataset.units = ("ft",)


def painted(dataset: Any) -> None:
    dataset.write_colormap(1, {1: (1, 2, 3, 255)})


STACK: dict[str, tuple[str, dict[str, Any]]] = {
    "CRS": ("raster.crs-differs", {"crs": "EPSG:32634"}),
    "pixel size": ("raster.grids-differ", {"transform": TRANSFORM @ Affine.scale(2)}),
    "half a pixel": ("raster.grids-differ", {"transform": moved(0.5)}),
    "rotation": ("raster.grids-differ", {"transform": TRANSFORM @ Affine.rotation(3)}),
    "other ground": ("raster.grids-differ", {"transform": moved(1)}),
    "other size": ("raster.grids-differ", {"values": noise(60, 59)}),
    "type": ("raster.types-differ", {"values": noise(60, 60, dtype="uint16")}),
    "nodata": ("raster.nodata-differs", {"nodata": 255}),
    "none": ("raster.nodata-differs", {"nodata": None}),
    "no CRS": ("raster.no-crs", {"crs": None}),
}
MERGE = {
    **{name: case for name, case in STACK.items() if name not in {"other ground", "other size"}},
    "bands": ("raster.bands-differ", {"values": noise(2, 60, 60)}),
    "colours": ("raster.colors-differ", {"after": painted}),
    "scale": ("raster.scales-differ", {"after": scaled}),
    "units": ("raster.units-differ", {"after": in_feet}),
    "far away": ("raster.too-large", {"transform": moved(3_000_000)}),
}


@pytest.mark.parametrize(
    ("join", "code", "other"),
    [
        *[pytest.param(stacked, *case, id=f"stack, {name}") for name, case in STACK.items()],
        *[pytest.param(merged, *case, id=f"merge, {name}") for name, case in MERGE.items()],
    ],
)
def test_files_that_do_not_match_are_refused_with_the_reason(tmp_path: Path, join: Any, code: str, other: Any) -> None:
    common = {"values": noise(60, 60), "nodata": 0}
    files = [
        write_raster(tmp_path / "good.tif", **common),
        write_raster(tmp_path / "same.tif", **common),
        write_raster(tmp_path / "other.tif", **{**common, **other}),
    ]

    with join(files[:2], raster_type=DEM):
        pass
    with pytest.raises(UnfitData) as refused, join(files, raster_type=DEM):
        pass

    assert refused.value.code == code
    assert refused.value.hint
    assert code in ("raster.no-crs", "raster.too-large") or "other.tif" in refused.value.message
    assert str(tmp_path) not in str(refused.value)


@pytest.mark.parametrize("what", ["alpha", "mask", "palette"])
def test_files_with_a_mask_or_palette_cannot_be_stacked(tmp_path: Path, what: str) -> None:
    match what:
        case "alpha":
            odd = write_raster(tmp_path / "a.tif", noise(4, 40, 40), photometric="RGB", alpha="YES")
        case "mask":
            with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True):
                odd = write_raster(
                    tmp_path / "a.tif", noise(40, 40), after=lambda dataset: dataset.write_mask(noise(40, 40) > 9)
                )
        case _:
            odd = write_raster(tmp_path / "a.tif", noise(40, 40), after=painted)

    with pytest.raises(UnfitData, match="applies to its own bands only") as refused, stacked([odd], raster_type=DEM):
        pass

    assert refused.value.code == "raster.not-stackable"


def test_invalid_requests_are_refused(tmp_path: Path) -> None:
    file = write_raster(tmp_path / "a.tif", noise(40, 40))

    with pytest.raises(InvalidRequest, match="there are no files"), stacked([], raster_type=DEM):
        pass
    with (
        pytest.raises(InvalidRequest, match="there are 2 names for 1 bands"),
        stacked([file], raster_type=DEM, names=["a", "b"]),
    ):
        pass
    with (
        pytest.raises(UnfitData, match="258 bands are more than the limit of 256"),
        stacked([write_raster(tmp_path / "many.tif", noise(129, 8, 8))] * 2, raster_type=DEM),
    ):
        pass


def test_a_damaged_neighbour_is_named(tmp_path: Path) -> None:
    good = write_raster(tmp_path / "good.tif", noise(600, 600))
    cut = write_raster(tmp_path / "cut.tif", noise(600, 600), transform=moved(600), compress="deflate")
    cut.write_bytes(cut.read_bytes()[:-50_000])

    with (
        pytest.raises(UnfitData, match=r"'cut.tif' is damaged") as refused,
        merged([good, cut], raster_type=DEM) as whole,
    ):
        cog_of(whole, tmp_path / "whole.tif")

    assert refused.value.code == "raster.corrupt"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["cut.tif", "good.tif"]


# Files that are warped one by one, with a border of their neighbours


NZTM = "EPSG:2193"
NZTM_CORNER = Affine(20, 0, 1_749_990, 0, -20, 5_430_010)


def three_neighbours(folder: Path, heights: Any, **profile: Any) -> list[Path]:
    """Neighbours from west to east; their grid is not aligned to the origin of the CRS."""
    return [
        write_raster(
            folder / f"{at}.tif",
            heights[:, 200 * at : 200 * at + 200],
            crs=NZTM,
            transform=NZTM_CORNER @ Affine.translation(200 * at, 0),
            **profile,
        )
        for at in range(3)
    ]


def rough_heights(seed: int = 3) -> Any:
    heights = hills(300, 600) + np.random.default_rng(seed).normal(0, 40, (300, 600))
    return heights.astype("float32")


@pytest.mark.parametrize("resolution", [None, 0.0004])
@pytest.mark.parametrize(("method", "kind"), [("bilinear", DEM), ("near", RasterType.CATEGORICAL)])
def test_neighbours_warped_one_by_one_equal_gdalwarp_of_the_whole(
    tmp_path: Path, method: str, kind: RasterType, resolution: float | None
) -> None:
    heights = rough_heights()
    heights[40:60, 190:230] = -9999
    files = three_neighbours(tmp_path, heights, nodata=-9999)
    size = resolution or output_grid(read_facts(files[0])).resolution
    result_of_tool("gdalbuildvrt", tmp_path / "whole.vrt", tmp_path / "whole.vrt", *files)
    whole_path = write_raster(tmp_path / "whole.tif", heights, crs=NZTM, transform=NZTM_CORNER)
    whole_grid = output_grid(read_facts(whole_path), "EPSG:4326", size)
    whole_vrt, scale = tmp_path / "whole.vrt", kernel_scale(files[0], whole_grid)
    chosen = "average" if method == "bilinear" and resolution else method  # pixels of 1.7 × 2.2 source pixels
    expected = gdalwarped(tmp_path / "expected.tif", whole_grid, chosen, whole_vrt, scale=scale)[0]
    (group,) = grid_groups([read_facts(path) for path in files])
    places = group.places
    assert neighbours_of(places) == [[1], [0, 2], [1]]

    covered = np.zeros(expected.shape, bool)
    inner = expected != -9999
    if chosen == "average":  # gdalwarp also writes pixels whose centre is outside the source
        inner[:12], inner[-12:], inner[:, :12], inner[:, -12:] = (False,) * 4
    for at, others in enumerate(neighbours_of(places)):
        grid = output_grid(read_facts(files[at]), "EPSG:4326", size)
        with bordered(files[at], [files[other] for other in others], raster_type=kind) as whole:
            cog = write_cog(whole.pixels, whole.bands, tmp_path / "c.tif", grid, raster_type=kind, core=whole.core)
        with rasterio.open(tmp_path / "c.tif") as dataset:
            values = dataset.read(1)
        col = round((grid.origin[0] - whole_grid.origin[0]) / grid.resolution[0])
        row = round((whole_grid.origin[1] - grid.origin[1]) / grid.resolution[1])
        area = np.s_[row : row + grid.height, col : col + grid.width]
        covered[area] |= values != -9999
        both = (values != -9999) & inner[area]
        off = np.abs(values[both] - expected[area][both])
        # Neighbouring pixels differ by 56 m on average. Positions are accurate to 1 % of a pixel. Seams had 3.6 m.
        assert off.max() < 2 if method == "bilinear" else (off > 0).mean() < 1e-3
        assert not cog.valid_area.differs

    is_complete = inner if chosen == "average" else expected != -9999
    assert (is_complete & ~covered).sum() + (covered & (expected == -9999)).sum() <= 5


def kernel_scale(source: Path, grid: OutputGrid) -> tuple[float, float]:
    """The kernel scale of this package, for gdalwarp, which would otherwise use an estimate."""
    with rasterio.open(source) as dataset:
        own_grid = output_grid(read_facts(source), grid.crs, grid.resolution)
        warp = Warp(source_of(dataset, DEM), own_grid, Resampling.bilinear)
    x, y = (1 / reduction if reduction >= 2 else 1 for reduction in warp._reduction)
    return x, y


def test_a_file_warped_alone_has_a_seam(tmp_path: Path) -> None:
    """The reason why files are warped with a border of their neighbours."""
    files = three_neighbours(tmp_path, rough_heights())
    grid = output_grid(read_facts(files[1]))
    results = []
    for others in ([], [files[0], files[2]]):
        with bordered(files[1], others, raster_type=DEM) as whole:
            write_cog(whole.pixels, whole.bands, tmp_path / "c.tif", grid, raster_type=DEM, core=whole.core)
        with rasterio.open(tmp_path / "c.tif") as dataset:
            results.append(dataset.read(1, masked=True))

    off = np.abs(results[0] - results[1])

    assert off.max() > 3
    assert (off > 0.01).mean() < 0.03, "only at the edges"
    assert (results[0].mask != results[1].mask).sum() <= 3


@pytest.mark.parametrize("marks", ["nodata", "mask", "all"])
def test_a_neighbour_does_not_fill_gaps_of_a_file(tmp_path: Path, marks: str) -> None:
    values = noise(1, 200, 200)
    gap = np.zeros((200, 200), bool)
    gap[80:120, 80:120] = marks != "all"
    if marks == "nodata":
        values[:, gap] = 0
    own = write_raster(
        tmp_path / "own.tif",
        values,
        nodata=0 if marks == "nodata" else None,
        after=(lambda dataset: dataset.write_mask(~gap)) if marks == "mask" else None,
    )
    below = write_raster(
        tmp_path / "below.tif",
        noise(1, 200, 300),
        transform=moved(-50),
        nodata=0 if marks == "nodata" else None,
    )

    with bordered(own, [below], raster_type=DEM) as whole:
        write_cog(
            whole.pixels, whole.bands, tmp_path / "c.tif", output_grid(whole.facts), raster_type=DEM, core=whole.core
        )
    alone = make_cog(own, tmp_path / "alone.tif", output_grid(read_facts(own)), raster_type=DEM)

    with rasterio.open(tmp_path / "c.tif") as bordered_cog, rasterio.open(alone.path) as plain:
        assert np.array_equal(bordered_cog.read_masks(1), plain.read_masks(1))
        inner = np.s_[30:-30, 30:-30]
        off = np.abs(bordered_cog.read(1)[inner].astype(int) - plain.read(1)[inner])
    assert off.max() <= 1


def test_files_are_grouped_by_their_grids(tmp_path: Path) -> None:
    paths = [
        write_raster(tmp_path / f"{at}.tif", noise(1, 50, 50), transform=transform, crs=crs)
        for at, (transform, crs) in enumerate(
            [
                (TRANSFORM, UTM33),
                (moved(50.4), UTM33),
                (TRANSFORM @ Affine.scale(2), UTM33),
                (moved(50), NZTM),
                (moved(-20), UTM33),
                (TRANSFORM @ Affine.rotation(1), UTM33),
                (TRANSFORM @ Affine.scale(1 + 1e-9), UTM33),
                (TRANSFORM @ Affine.scale(1, 1.001), UTM33),
            ]
        )
    ]

    groups = grid_groups([read_facts(path) for path in paths])

    assert [group.members for group in groups] == [[0, 4, 6], [1], [2], [3], [5], [7]]
    assert groups[0].places.tolist() == [[0, 0, 50, 50], [-20, 0, 30, 50], [0, 0, 50, 50]]
