"""Unusual files are processed, or refused with a clear reason before anything is copied; none fails inside a job."""

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from affine import Affine
from rasterio.control import GroundControlPoint
from rasterio.crs import CRS
from rasterio.enums import ColorInterp
from rasterio.errors import NotGeoreferencedWarning
from rasterio.rpc import RPC
from tests.raster.rasters import TRANSFORM, hills, noise, write_raster

from dagmaster.dataset_ids import job_dataset_id
from dagmaster.errors import InvalidRequest, UnfitData
from dagmaster.handlers.raster.collection import layout_of
from dagmaster.handlers.raster.options import Options, require_possible
from dagmaster.raster.cog.grid import output_grid
from dagmaster.raster.source.facts import read_facts
from dagmaster.raster.validation.check import check
from dagmaster.testing.trial import JOB_ID, run_handler

pytestmark = pytest.mark.requirement("R2")

ABOUT = {
    "dataset_id": job_dataset_id(JOB_ID),
    "when": {"start": "2024-05-01T00:00:00Z"},
    "processed_at": "2024-06-01T00:00:00Z",
}
DEM = hills(60, 80)[np.newaxis]
PICTURE = noise(3, 60, 80)
ROTATED = Affine(10, 3, 500_000, 3, -10, 5_000_000)
ENGINEERING = 'LOCAL_CS["site grid",UNIT["metre",1],AXIS["x",EAST],AXIS["y",NORTH]]'
WORKS = "works"


def _palette(dataset: Any) -> None:
    dataset.write_colormap(1, {value: (value % 256, 10, 10, 255) for value in range(200)})


def _gcps(dataset: Any) -> None:
    places = [(0, 0, 15.0, 45.0), (0, 80, 15.1, 45.0), (60, 0, 15.0, 44.9)]
    dataset.gcps = [GroundControlPoint(*place) for place in places], CRS.from_epsg(4326)


def _rpcs(dataset: Any) -> None:
    line = [0.0, 1.0, *[0.0] * 18]
    dataset.rpcs = RPC(100, 500, 45, 1, line, [1.0, *[0.0] * 19], 30, 30, 15, 1, line, [1.0, *[0.0] * 19], 40, 40)


def _palette_without_table(path: Path, dtype: str = "uint8") -> None:
    """A file whose metadata declares a palette that does not exist."""
    profile = {"driver": "GTiff", "width": 80, "height": 60, "count": 2, "crs": "EPSG:32633"}
    with rasterio.open(path, "w", dtype=dtype, transform=TRANSFORM, **profile) as dataset:
        dataset.colorinterp = [ColorInterp.palette, ColorInterp.gray]
        dataset.write(noise(2, 60, 80, dtype=dtype))
    with rasterio.open(path) as dataset:
        assert dataset.colorinterp[0] is ColorInterp.palette
        with pytest.raises(ValueError, match="NULL color table"):
            dataset.colormap(1)


def _empty(path: Path) -> None:
    """50 MB of nodata; a sample alone cannot show that there is no data."""
    write_raster(path, np.full((1, 3600, 3600), -1, "float32"), nodata=-1, compress="deflate", tiled=True)


def _few_pixels_of_data(path: Path) -> None:
    values = np.full((1, 3600, 3600), -1, "float32")
    values[0, 700:705, 900:905] = 5
    write_raster(path, values, nodata=-1, compress="deflate", tiled=True)


def written(values: Any = DEM, **options: Any) -> Callable[[Path], object]:
    return lambda path: write_raster(path, values, **options)


def _transparent(path: Path) -> None:
    write_raster(path, np.concatenate([PICTURE, np.zeros((1, 60, 80), "uint8")]), photometric="RGB", alpha="YES")


# How a file is written, and the expected outcome: it works, or the code of the error.
FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "one pixel": (written(DEM[:, :1, :1]), WORKS),
    "one row": (written(DEM[:, :1]), WORKS),
    "one column": (written(DEM[:, :, :1]), WORKS),
    "one pixel in degrees": (
        written(DEM[:, :1, :1], crs="EPSG:4326", transform=Affine(1e-9, 0, 10, 0, -1e-9, 50)),
        "raster.no-footprint",
    ),
    "complex64": (written(DEM.astype("complex64")), "raster.complex"),
    "complex128": (written(DEM.astype("complex128")), "raster.complex"),
    "int8": (written(noise(1, 60, 80, dtype="int8", low=-99, high=99)), WORKS),
    "int64": (written(noise(1, 60, 80, dtype="int64", low=-(2**62), high=2**62)), WORKS),
    "uint64": (written(noise(1, 60, 80, dtype="int64", high=2**62).astype("uint64") * 4), WORKS),
    "float64": (written(DEM.astype("float64") * 1e290), WORKS),
    "float with alpha": (written(np.concatenate([DEM, DEM * 0 + 1]), alpha="YES"), WORKS),
    "int16 with alpha": (written(noise(2, 60, 80, dtype="int16"), alpha="YES"), WORKS),
    "pixels without size": (written(transform=Affine(0, 0, 500_000, 0, 0, 5_000_000)), "raster.bad-transform"),
    "pixels without height": (written(transform=Affine(10, 0, 500_000, 0, 0, 5_000_000)), "raster.bad-transform"),
    "identity": (written(transform=None), "raster.no-georeference"),
    "rotated": (written(transform=ROTATED), WORKS),
    "south up": (written(transform=Affine(10, 0, 500_000, 0, 10, 5_000_000)), WORKS),
    "control points only": (written(transform=None, crs=None, after=_gcps), "raster.gcp-only"),
    "rpc only": (written(transform=None, crs=None, after=_rpcs), "raster.rpc-only"),
    "huge nodata": (written(nodata=-3.4028234663852886e38), WORKS),
    "infinite nodata": (written(nodata=math.inf), WORKS),
    "nan": (written(np.where(DEM > 500, np.nan, DEM)), WORKS),
    "all nan": (written(DEM * np.nan), "raster.all-nodata"),
    "all infinite": (written(DEM * np.inf), WORKS),
    "scale and offset": (written(after=lambda dataset: setattr(dataset, "scales", (0.1,))), WORKS),
    "no CRS": (written(crs=None), "raster.no-crs"),
    "engineering CRS": (written(crs=ENGINEERING), "raster.local-crs"),
    "moon": (written(crs="IAU_2015:30100", transform=Affine(0.1, 0, 0, 0, -0.1, 0)), "raster.not-earth"),
    "palette": (written(noise(1, 60, 80), after=_palette), WORKS),
    "palette of 16 bits": (written(noise(1, 60, 80, dtype="uint16"), after=_palette), WORKS),
    "palette without colour table": (_palette_without_table, WORKS),
    "palette of 16 bits without colour table": (lambda path: _palette_without_table(path, "uint16"), WORKS),
    "mask": (written(PICTURE, after=lambda dataset: dataset.write_mask(PICTURE[0] > 99)), WORKS),
    "mask without valid pixels": (
        written(PICTURE, after=lambda dataset: dataset.write_mask(np.zeros((60, 80), bool))),
        "raster.all-nodata",
    ),
    "transparent": (_transparent, "raster.all-nodata"),
    "constant": (written(DEM * 0 + 7), WORKS),
    "large and empty": (_empty, "raster.all-nodata"),
    "large with few pixels": (_few_pixels_of_data, WORKS),
    "many bands": (written(noise(300, 6, 8)), WORKS),
    "too many bands": (written(noise(1100, 6, 8)), "raster.too-large"),
    "coordinates out of range": (written(crs="EPSG:4326"), "raster.out-of-range"),
    "beyond the pole": (
        written(crs="EPSG:4326", transform=Affine(0.1, 0, 10, 0, -0.1, 99)),
        "raster.axes-swapped",
    ),
}


def outcome(storage: Path, name: str, *, tier: str = "analysis", **options: Any) -> str:
    """The code of the error with which the file is refused, or WORKS if the COG was written."""
    checked = check(storage / "bronze" / "bronze" / name)
    if checked.errors:
        return checked.errors[0].code
    assert checked.facts is not None
    try:
        require_possible(
            Options(output_tier=tier, **options),
            checked.facts,
            checked.raster_type,
            unset_alpha=checked.fixes.unset_alpha,
        )
    except InvalidRequest as refused:
        return refused.code
    nodata = checked.fixes.nodata
    source = {
        "blob_name": name,
        "raster_type": checked.raster_type.value,
        "unset_alpha": checked.fixes.unset_alpha,
        "dtype": checked.fixes.dtype,
        "nodata": "nan" if nodata is not None and math.isnan(nodata) else nodata,
    }
    trial = run_handler("raster.create_cog", {"source": source, "about": ABOUT, "output_tier": tier, **options})
    assert trial.error is None, (checked.findings, trial.error)
    assert trial.output["stac_item"]["id"] == f"{ABOUT['dataset_id']}-v0"
    return WORKS


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STORAGE_FOLDER", str(tmp_path))
    monkeypatch.setenv("PUBLIC_URL", "https://maps.example.org")
    (tmp_path / "bronze" / "bronze").mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize("name", FILES)
def test_an_unusual_file_is_processed_or_refused_before_it_is_copied(storage: Path, name: str) -> None:
    write, expected = FILES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        write(storage / "bronze" / "bronze" / "odd.tif")

        assert outcome(storage, "odd.tif") == expected


@pytest.mark.parametrize(
    ("resolution", "expected"), [(0.01, "raster.too-coarse"), (1e-9, "raster.too-fine"), (1e-3, WORKS)]
)
def test_a_resolution_that_is_too_coarse_or_too_fine_is_refused_before_the_job(
    storage: Path, resolution: float, expected: str
) -> None:
    write_raster(storage / "bronze" / "bronze" / "odd.tif", hills(400, 500))

    assert outcome(storage, "odd.tif", resolution=resolution) == expected


def test_a_file_without_data_that_validation_misses_is_refused_when_written(storage: Path) -> None:
    """The validation of a huge file ends after a minute; then the task that writes the COG refuses it, once."""
    write_raster(storage / "bronze" / "bronze" / "odd.tif", np.full((1, 60, 80), -1, "float32"), nodata=-1)

    trial = run_handler("raster.create_cog", {"source": {"blob_name": "odd.tif"}, "about": ABOUT})

    assert trial.error is not None
    assert (trial.error["code"], trial.error["blame"]) == ("raster.all-nodata", "data")
    assert not list((storage / "silver").rglob("*.tif"))


def test_one_error_names_all_files_that_are_too_fine_for_the_grid(tmp_path: Path) -> None:
    fine = Affine(0.2, 0, 500_000, 0, -0.2, 5_000_000)
    paths = [
        write_raster(tmp_path / "first.tif", hills(60, 80)),
        write_raster(tmp_path / "similar.tif", hills(60, 80), transform=Affine(5, 0, 500_000, 0, -5, 5_000_000)),
        write_raster(tmp_path / "fine.tif", hills(600, 800), transform=fine),
    ]
    facts = [read_facts(path) for path in paths]
    options, size = Options(target_crs="EPSG:32633"), output_grid(facts[0], "EPSG:32633").resolution

    layout_of(facts[:2], options, size)
    with pytest.raises(UnfitData, match=r"'first.tif', 'fine.tif': the output is \d+ times coarser") as refused:
        layout_of(facts, options, size)

    assert refused.value.code == "collection.resolutions-differ"


def _files(folder: Path, *shifts: float, crs: str = "EPSG:32633", size: float = 10) -> list[Any]:
    """Adjacent files in one column, each shifted by a number of pixels."""
    return [
        read_facts(
            write_raster(
                folder / f"{crs[5:]}-{at}-{size}.tif",
                hills(40, 40),
                crs=crs,
                transform=Affine(size, 0, 500_003 + size * shift, 0, -size, 5_000_007 - size * 40 * at),
            )
        )
        for at, shift in enumerate(shifts)
    ]


@pytest.mark.requirement("R10")
@pytest.mark.parametrize(
    ("shifts", "kept"),
    [
        ((0, 0, 0), [0, 1, 2]),
        ((0, 0, 0.5), [0, 1]),
        ((0.5, 0, 0), [1, 2]),
        ((0, 0.3), [0]),
        ((0.2, 0, 0.5), None),
        ((0.2, 0, 0, 0.4), [1, 2]),
    ],
)
def test_files_of_a_collection_keep_a_grid_that_half_of_them_share(
    tmp_path: Path, shifts: tuple[float, ...], kept: list[int] | None
) -> None:
    files, options = _files(tmp_path, *shifts), Options(target_crs="EPSG:32633")

    layout = layout_of(files, options, (10, 10))

    assert (layout.kept_group.members if layout.kept_group else None) == kept
    grids = [output_grid(file, "EPSG:32633", layout.resolution, layout.origin) for file in files]
    offsets = {(round(grid.origin[0] % 10, 6), round(grid.origin[1] % 10, 6)) for grid in grids}
    assert len(offsets) == 1, "the COGs share a grid"
    for at in kept or ():
        assert grids[at].transform[:6] == files[at].transform
        assert (grids[at].width, grids[at].height) == (40, 40)
    if not kept:
        assert offsets == {(0, 0)}
    codes = [finding.code for finding in layout.findings]
    assert codes == ([] if len(set(shifts)) == 1 else ["collection.grids-differ"])


def test_a_grid_is_not_kept_if_another_resolution_is_requested_or_it_is_in_another_crs(tmp_path: Path) -> None:
    files = _files(tmp_path, 0, 0, 0.5)
    fewer = [*_files(tmp_path, 0), *_files(tmp_path, 0, 0, crs="EPSG:32632")]

    assert layout_of(files, Options(target_crs="EPSG:32633", resolution=20), (20, 20)).kept_group is None
    assert layout_of(files, Options(target_crs="EPSG:32633", resolution=10), (10, 10)).kept_group is not None
    assert layout_of(files, Options(target_crs="EPSG:3857"), (14, 14)).kept_group is None
    assert layout_of(fewer, Options(target_crs="EPSG:32633"), (10, 10)).kept_group is None
    assert layout_of(fewer, Options(target_crs="EPSG:32632"), (10, 10)).origin == (500_003, 5_000_007)


def _band(folder: Path, name: str, *, rows: int = 300, columns: int = 300, size: float = 10, **options: Any) -> Any:
    place = Affine(size, 0, 500_000, 0, -size, 5_000_000)
    return read_facts(write_raster(folder / f"{name}.tif", hills(rows, columns), **{"transform": place, **options}))


@pytest.mark.requirement("R10")
@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"rows": 150, "columns": 150, "size": 20}, id="other resolution"),
        pytest.param({"rows": 299}, id="one row fewer"),
        pytest.param({"rows": 100, "columns": 100}, id="a part of the area"),
        pytest.param({"crs": "EPSG:32632", "transform": Affine(10, 0, 971_620, 0, -10, 5_017_540)}, id="other CRS"),
    ],
)
def test_bands_of_one_scene_are_reported_although_their_pixels_differ(tmp_path: Path, other: dict[str, Any]) -> None:
    files = [_band(tmp_path, "B02"), _band(tmp_path, "B05", **other)]

    findings = {
        finding.code: finding for finding in layout_of(files, Options(target_crs="EPSG:32633"), (10, 10)).findings
    }

    assert findings["collection.same-area"].severity == "warn"
    assert "bands of one scene" in findings["collection.same-area"].advice


@pytest.mark.requirement("R10")
def test_overlapping_neighbours_are_not_reported_as_bands_of_one_scene(tmp_path: Path) -> None:
    places = [Affine(10, 0, 500_000 + 10 * shift, 0, -10, 5_000_000) for shift in (0, 60, 360)]
    files = [_band(tmp_path, f"{at}", transform=place) for at, place in enumerate(places)]

    assert layout_of(files, Options(target_crs="EPSG:32633"), (10, 10)).findings == []


def test_a_kept_grid_in_degrees_ends_at_the_poles(tmp_path: Path) -> None:
    size = 0.7
    kept = write_raster(
        tmp_path / "kept.tif", hills(40, 40), crs="EPSG:4326", transform=Affine(size, 0, -20.03, 0, -size, 20.04)
    )
    world = write_raster(
        tmp_path / "world.tif", hills(180, 360), crs="EPSG:4326", transform=Affine(1, 0, -180, 0, -1, 90)
    )
    facts = read_facts(kept)
    assert facts.transform is not None

    grid = output_grid(read_facts(world), "EPSG:4326", (size, size), (facts.transform[2], facts.transform[5]))

    west, south, east, north = grid.bounds_of(grid.window)
    assert north - size / 2 <= 90
    assert south + size / 2 >= -90
    assert east - west <= 360 + 1e-9
    assert (grid.origin[0] + 20.03) / size == pytest.approx(round((grid.origin[0] + 20.03) / size))
