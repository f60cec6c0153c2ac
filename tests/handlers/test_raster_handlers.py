"""Handlers that make one COG of several files, called as a worker calls them on a folder as storage."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from affine import Affine

from dagmaster.handlers.raster.validate import part_name
from dagmaster.handlers.registry import installed
from dagmaster.jobs.states import Blame
from dagmaster.stac.validate import problems
from dagmaster.testing.trial import Trial, run_handler

PLACE = Affine(10, 0, 500_000, 0, -10, 5_300_000)
ABOUT = {
    "dataset_id": "flood",
    "when": {"start": "2024-05-01T00:00:00Z"},
    "processed_at": "2024-06-01T00:00:00Z",
}


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STORAGE_FOLDER", str(tmp_path))
    monkeypatch.setenv("PUBLIC_URL", "https://maps.example.org")
    return tmp_path


def depths(folder: Path, name: str, value: float, *, col: int = 0, zone: str = "bronze", **options: Any) -> str:
    path = folder / zone / zone / name
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.full((1, 300, 400), value, "float32")
    values[:, :20] = -9999
    profile: Any = {"crs": "EPSG:32633", "transform": PLACE @ Affine.translation(col, 0), "nodata": -9999, **options}
    with rasterio.open(
        path, "w", driver="GTiff", width=400, height=300, count=1, dtype="float32", **profile
    ) as dataset:
        dataset.write(values)
    return name


def made(folder: Path, trial: Trial) -> Path:
    return folder / "silver" / "silver" / trial.output["cog_blob"]


@pytest.mark.requirement("R1")
def test_every_handler_of_rasters_ships() -> None:
    names = (
        "validate create_cog blob_to_mount generate_tiling_scheme inventory process_tile process_tile_batch "
        "create_mosaic band_stack merge stac_ensure_collection stac_register_item stac_register_items stac_finalize"
    )

    assert {f"raster.{name}" for name in names.split()} <= set(installed())
    for name in names.split():
        assert callable(installed()[f"raster.{name}"].resolve())


@pytest.mark.requirement("R1")
def test_files_of_the_same_ground_become_the_bands_of_a_cog(storage: Path) -> None:
    names = [depths(storage, f"rp{years}.tif", years) for years in (10, 100)]
    about = ABOUT | {"band_names": ["rp10", "rp100"]}

    trial = run_handler("raster.band_stack", {"blob_names": names, "about": about, "raster_type": "dem", "part": "t1"})

    told = trial.output
    assert (told["band_count"], told["total_sources"], told["reprojection_performed"]) == (2, 2, True)
    assert told["cog_blob"] == "cogs/flood/v0/r1/t1.tif"
    with rasterio.open(made(storage, trial)) as cog:
        assert cog.descriptions == ("rp10", "rp100")
        data = np.ma.getdata(cog.read(masked=True).max(axis=(1, 2)))
        assert data.tolist() == [10, 100]
    item = told["stac_item"]
    assert problems(item) == []
    assert [band["name"] for band in item["assets"]["data"]["bands"]] == ["rp10", "rp100"]
    assert item["properties"]["processing:lineage"].startswith("bands of rp10.tif, rp100.tif stacked, to EPSG:4326")


@pytest.mark.requirement("R10")
def test_tiles_that_an_earlier_job_made_are_merged_to_a_larger_one(storage: Path) -> None:
    names = [depths(storage, f"tiles/{at}.tif", at + 1, col=400 * at, zone="silver") for at in range(12)]

    trial = run_handler(
        "raster.merge", {"blob_names": names, "zone": "silver", "about": ABOUT, "target_crs": "EPSG:32633"}
    )

    with rasterio.open(made(storage, trial)) as cog:
        found = cog.read(1)
    assert found.shape == (300, 12 * 400)
    assert found[100, ::400].tolist() == list(range(1, 13))
    assert (found[:20] == -9999).all()
    lineage = trial.output["stac_item"]["properties"]["processing:lineage"]
    assert lineage.startswith("0.tif, 1.tif, ")
    assert "9.tif and 2 more merged, kept in EPSG:32633" in lineage


@pytest.mark.requirement("R1")
def test_a_second_attempt_finds_what_the_first_one_made(storage: Path) -> None:
    params = {"blob_names": [depths(storage, "a.tif", 1), depths(storage, "b.tif", 2)], "about": ABOUT}

    first, again = (run_handler("raster.band_stack", params).output for _ in range(2))

    assert (first["sha256"], first["stac_item"]) == (again["sha256"], again["stac_item"])


@pytest.mark.requirement("R1")
@pytest.mark.parametrize("handler", ["raster.band_stack", "raster.merge"])
def test_files_that_do_not_match_are_the_datas_fault_and_leave_no_output(storage: Path, handler: str) -> None:
    names = [depths(storage, "a.tif", 1), depths(storage, "b.tif", 2, crs="EPSG:32634")]

    trial = run_handler(handler, {"blob_names": names, "about": ABOUT})

    assert trial.blame is Blame.DATA
    assert trial.error is not None
    assert trial.error["code"] == "raster.crs-differs"
    assert "'b.tif' is in EPSG:32634, 'a.tif' EPSG:32633" in trial.error["message"]
    assert not list(storage.rglob("cogs/**/*"))


@pytest.mark.requirement("R1")
def test_a_file_that_is_not_there_is_named(storage: Path) -> None:
    trial = run_handler("raster.merge", {"blob_names": [depths(storage, "a.tif", 1), "gone.tif"], "about": ABOUT})

    assert trial.error is not None
    assert "gone.tif" in trial.error["message"]


@pytest.mark.requirement("R2")
def test_whole_numbers_that_are_too_wide_are_stored_as_what_they_fit(storage: Path) -> None:
    """What validation promises (`narrow-dtype`) is what the COG is."""
    path = storage / "bronze" / "bronze" / "wide.tif"
    path.parent.mkdir(parents=True)
    values = np.tile(np.arange(1, 201, dtype="int32"), (150, 1))[np.newaxis]
    with rasterio.open(
        path, "w", driver="GTiff", width=200, height=150, count=1, dtype="int32", crs="EPSG:32633", transform=PLACE
    ) as dataset:
        dataset.write(values)
    source = {"blob_name": "wide.tif", "raster_type": "dem", "dtype": "uint8"}

    fitting = run_handler("raster.create_cog", {"source": source, "about": ABOUT, "target_crs": "EPSG:32633"})
    narrow = source | {"dtype": "int8"}
    clamped = run_handler(
        "raster.create_cog", {"source": narrow, "about": ABOUT, "target_crs": "EPSG:32633", "part": "b"}
    )

    with rasterio.open(made(storage, fitting)) as cog:
        assert cog.dtypes == ("uint8",)
        assert np.array_equal(cog.read(), values)
    assert (fitting.output["data_type"], fitting.output["clamped"]) == ("uint8", 0)
    assert clamped.output["clamped"] == 73 * 150
    assert "10950 values clamped to int8" in clamped.output["stac_item"]["properties"]["processing:lineage"]
    assert any("values were clamped" in line for line in clamped.log)


def test_the_name_of_a_part_comes_from_its_file():
    """Ids of stored items contain it."""
    assert part_name("Wellington DEM (2024).tif") == "wellington-dem-2024"
    assert part_name("..tif") == "dataset"


def test_a_tiling_scheme_that_an_earlier_release_stored_is_kept(storage: Path) -> None:
    """It kept the output options too, which are now in the recipe of the edition alone."""
    params = {"source": {"blob_name": depths(storage, "a.tif", 1), "raster_type": "dem"}, "about": ABOUT}
    earlier = run_handler("raster.generate_tiling_scheme", {**params, "recipe": {"output_tier": "archive"}})
    stored = (storage / "silver" / "silver" / earlier.output["tiling_scheme_blob"]).read_bytes()

    again = run_handler("raster.generate_tiling_scheme", params)
    other = run_handler("raster.generate_tiling_scheme", {**params, "tile_size": 512, "resolution": 0.001})

    assert again.output == earlier.output
    assert (storage / "silver" / "silver" / earlier.output["tiling_scheme_blob"]).read_bytes() == stored
    assert other.error is not None
    assert other.error["code"] == "storage.taken"
