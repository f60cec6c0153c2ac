"""Raster handlers, called as by a worker, with a folder as storage."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
import rasterio
from affine import Affine
from tests.raster.rasters import write_raster

from dagmaster.dataset_ids import is_dataset_id, job_dataset_id
from dagmaster.handlers.raster.sources import SourceParams, checksum_of, find_source
from dagmaster.handlers.raster.validate import part_name, part_names
from dagmaster.handlers.registry import installed
from dagmaster.jobs.states import Blame
from dagmaster.raster.cog.warp import Copy
from dagmaster.settings import Settings
from dagmaster.stac.validate import problems
from dagmaster.storage.zones import open_storage
from dagmaster.testing.plain import InlineContext
from dagmaster.testing.trial import JOB_ID, Trial, run_handler

PLACE = Affine(10, 0, 500_000, 0, -10, 5_300_000)
DATASET = job_dataset_id(JOB_ID)
ABOUT = {
    "dataset_id": DATASET,
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


def sha256_of(folder: Path, zone: str, name: str) -> str:
    return hashlib.sha256((folder / zone / zone / name).read_bytes()).hexdigest()


def cog_of(folder: Path, trial: Trial) -> Path:
    return folder / "silver" / "silver" / trial.output["cog_blob"]


@pytest.mark.requirement("R1")
def test_every_raster_handler_is_installed() -> None:
    names = (
        "validate create_cog blob_to_mount generate_tiling_scheme inventory process_tile process_tile_batch "
        "create_mosaic band_stack merge stac_ensure_collection stac_register_item stac_register_items stac_finalize"
    )

    assert {f"raster.{name}" for name in names.split()} <= set(installed())
    for name in names.split():
        assert callable(installed()[f"raster.{name}"].resolve())


@pytest.mark.requirement("R1")
def test_files_of_the_same_area_become_the_bands_of_a_cog(storage: Path) -> None:
    names = [depths(storage, f"rp{years}.tif", years) for years in (10, 100)]
    about = ABOUT | {"band_names": ["rp10", "rp100"]}

    trial = run_handler("raster.band_stack", {"blob_names": names, "about": about, "raster_type": "dem", "part": "t1"})

    output = trial.output
    assert (output["band_count"], output["total_sources"], output["reprojection_performed"]) == (2, 2, True)
    assert output["cog_blob"] == f"cogs/{DATASET}/v0/r1/t1.tif"
    with rasterio.open(cog_of(storage, trial)) as cog:
        assert cog.descriptions == ("rp10", "rp100")
        data = np.ma.getdata(cog.read(masked=True).max(axis=(1, 2)))
        assert data.tolist() == [10, 100]
    item = output["stac_item"]
    assert problems(item) == []
    assert [band["name"] for band in item["assets"]["data"]["bands"]] == ["rp10", "rp100"]
    assert item["properties"]["processing:lineage"].startswith("bands of rp10.tif, rp100.tif stacked, to EPSG:4326")
    assert item["properties"]["dagmaster:sources"] == [
        {"name": Path(name).name, "checksum": f"1220{sha256_of(storage, 'bronze', name)}"} for name in names
    ]


@pytest.mark.requirement("R10")
def test_tiles_of_an_earlier_job_are_merged(storage: Path) -> None:
    names = [depths(storage, f"tiles/{at}.tif", at + 1, col=400 * at, zone="silver") for at in range(12)]

    trial = run_handler(
        "raster.merge", {"blob_names": names, "zone": "silver", "about": ABOUT, "target_crs": "EPSG:32633"}
    )

    with rasterio.open(cog_of(storage, trial)) as cog:
        pixels = cog.read(1)
    assert pixels.shape == (300, 12 * 400)
    assert pixels[100, ::400].tolist() == list(range(1, 13))
    assert (pixels[:20] == -9999).all()
    lineage = trial.output["stac_item"]["properties"]["processing:lineage"]
    assert lineage.startswith("0.tif, 1.tif, ")
    assert "9.tif and 2 more merged, kept in EPSG:32633" in lineage
    sources = trial.output["stac_item"]["properties"]["dagmaster:sources"]
    assert [source["checksum"] for source in sources] == [f"1220{sha256_of(storage, 'silver', name)}" for name in names]
    assert problems(trial.output["stac_item"]) == []


@pytest.mark.requirement("R10")
def test_a_long_list_of_sources_is_stored_as_one_checksum(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagmaster.handlers.raster.stack._LISTED_SOURCES", 2)
    names = [depths(storage, f"{at}.tif", at + 1, col=400 * at) for at in range(3)]

    trial = run_handler("raster.merge", {"blob_names": names, "about": ABOUT, "target_crs": "EPSG:32633"})

    properties = trial.output["stac_item"]["properties"]
    lines = "".join(f"{sha256_of(storage, 'bronze', name)}\n" for name in names)
    assert properties["dagmaster:source_checksum"] == f"1220{hashlib.sha256(lines.encode()).hexdigest()}"
    assert "dagmaster:sources" not in properties


@pytest.mark.requirement("R1")
def test_a_second_attempt_gives_the_same_result(storage: Path) -> None:
    params = {"blob_names": [depths(storage, "a.tif", 1), depths(storage, "b.tif", 2)], "about": ABOUT}

    first, again = (run_handler("raster.band_stack", params).output for _ in range(2))

    assert (first["sha256"], first["stac_item"]) == (again["sha256"], again["stac_item"])


@pytest.mark.requirement("R1")
@pytest.mark.parametrize("handler", ["raster.band_stack", "raster.merge"])
def test_files_that_do_not_match_are_blamed_on_the_data_and_leave_no_output(storage: Path, handler: str) -> None:
    names = [depths(storage, "a.tif", 1), depths(storage, "b.tif", 2, crs="EPSG:32634")]

    trial = run_handler(handler, {"blob_names": names, "about": ABOUT})

    assert trial.blame is Blame.DATA
    assert trial.error is not None
    assert trial.error["code"] == "raster.crs-differs"
    assert "'b.tif' is in EPSG:32634, but 'a.tif' is in EPSG:32633" in trial.error["message"]
    assert not list(storage.rglob("cogs/**/*"))


@pytest.mark.requirement("R1")
def test_the_error_for_a_missing_file_names_it(storage: Path) -> None:
    trial = run_handler("raster.merge", {"blob_names": [depths(storage, "a.tif", 1), "gone.tif"], "about": ABOUT})

    assert trial.error is not None
    assert "gone.tif" in trial.error["message"]


@pytest.mark.requirement("R2")
def test_integers_are_stored_in_a_narrower_type_if_requested(storage: Path) -> None:
    """The COG has the type that validation announced with `narrow-dtype`."""
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

    with rasterio.open(cog_of(storage, fitting)) as cog:
        assert cog.dtypes == ("uint8",)
        assert np.array_equal(cog.read(), values)
    assert (fitting.output["data_type"], fitting.output["clamped"]) == ("uint8", 0)
    assert clamped.output["clamped"] == 73 * 150
    assert "10950 values clamped to int8" in clamped.output["stac_item"]["properties"]["processing:lineage"]
    assert any("values were clamped" in line for line in clamped.log)


def test_valid_area_that_a_cog_loses_is_a_finding(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = storage / "bronze" / "bronze"
    folder.mkdir(parents=True)
    write_raster(folder / "a.tif", np.ones((1, 300, 1200), "uint8"))
    params = {"source": {"blob_name": "a.tif", "raster_type": "dem"}, "about": ABOUT, "target_crs": "EPSG:32633"}
    complete = run_handler("raster.create_cog", params | {"part": "complete"})
    block = Copy.block
    monkeypatch.setattr(Copy, "block", lambda self, col, row: block(self, col, row) if col == 0 else None)

    lost = run_handler("raster.create_cog", params)

    assert complete.output["findings"] == []
    assert complete.output["valid_area"]["lost_km2"] == 0
    assert [finding["code"] for finding in lost.output["findings"]] == ["raster.area-differs"]
    assert "of the valid area lost" in lost.output["stac_item"]["properties"]["processing:lineage"]
    assert any("is not valid in the COG" in line for line in lost.log)


def test_the_treatment_of_unknown_integers_is_a_finding(storage: Path) -> None:
    folder = storage / "bronze" / "bronze"
    folder.mkdir(parents=True)
    write_raster(folder / "a.tif", np.arange(90_000, dtype="uint16").reshape(1, 300, 300) // 3)

    trial = run_handler("raster.create_cog", {"source": {"blob_name": "a.tif"}, "about": ABOUT})

    (finding,) = trial.output["findings"]
    assert (finding["code"], finding["severity"]) == ("raster.treated-as", "info")
    assert "the values look like measurements" in finding["message"]
    assert "bilinear" in trial.output["stac_item"]["properties"]["processing:lineage"]


def test_the_name_of_a_part_is_derived_from_its_file_name():
    """The name must not change between releases, because ids of stored items contain it."""
    assert part_name("Wellington DEM (2024).tif") == "wellington-dem-2024"
    assert part_name("..tif") == "dataset"
    assert part_name(f"{'x' * 99}.tif") == "x" * 99
    assert part_name(f"{'a' * 100}.tif") == "a" * 100
    assert part_name(f"{'a' * 101}.tif") == f"{'a' * 87}-9d0793397991"


def test_names_of_parts_are_different_ids_however_long_the_names_of_the_files_are():
    long = "ortho-2024-strip-" * 12
    names = [f"{long}{end}.tif" for end in ("001", "002", "Ä", "Ö")] + [f"{'b' * 100}.tif", f"x/{'b' * 100}.tif"]
    names += [f"{'地' * 60}{end}.tif" for end in "図図図"] + [f"{'é' * 40}a{'ü' * 40}b.tif"] * 2

    parts = list(part_names(names))

    assert len(set(parts)) == len(names)
    assert all(map(is_dataset_id, parts))
    assert parts == list(part_names(names))
    assert [part_name(name) for name in reversed(names[:4])] == parts[3::-1]


def test_the_files_of_a_collection_can_have_long_names(
    storage: Path, shared_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(InlineContext, "connect", lambda _: psycopg.connect(shared_database))
    names = [depths(storage, f"{'strip-of-the-north-' * 9}{number}.tif", 3.0, col=400 * number) for number in (1, 2)]

    validated = run_handler("raster.validate_collection", {"blob_names": names, "raster_type": "dem"})

    first, second = (part["part"] for part in validated.output["parts"])
    cog = run_handler("raster.create_cog", {**validated.output["parts"][0], "target_crs": "EPSG:32633"})
    assert first != second
    assert cog.output["cog_blob"].endswith(f"/{first}.tif")
    assert cog.output["stac_item"]["id"].endswith(f"-{first}")
    assert problems(cog.output["stac_item"]) == []


def test_a_tiling_scheme_of_an_earlier_release_is_kept(storage: Path) -> None:
    """It was called with the output options too, which are now only in the recipe of the edition."""
    params = {"source": {"blob_name": depths(storage, "a.tif", 1), "raster_type": "dem"}, "about": ABOUT}
    earlier = run_handler("raster.generate_tiling_scheme", {**params, "recipe": {"output_tier": "archive"}})
    stored = (storage / "silver" / "silver" / earlier.output["tiling_scheme_blob"]).read_bytes()

    again = run_handler("raster.generate_tiling_scheme", params)
    other = run_handler("raster.generate_tiling_scheme", {**params, "tile_size": 512, "resolution": 0.001})

    assert again.output == earlier.output
    assert (storage / "silver" / "silver" / earlier.output["tiling_scheme_blob"]).read_bytes() == stored
    assert other.error is not None
    assert other.error["code"] == "storage.taken"


@pytest.mark.requirement("R7")
def test_a_cog_has_exact_statistics_and_reports_infinity(storage: Path) -> None:
    path = storage / "bronze" / "bronze" / "hills.tif"
    path.parent.mkdir(parents=True)
    values = np.random.default_rng(4).normal(50, 9, (1, 1100, 1300)).astype("float32")
    values[0, :3, 0] = np.inf
    with rasterio.open(
        path, "w", driver="GTiff", width=1300, height=1100, count=1, dtype="float32", crs="EPSG:32633", transform=PLACE
    ) as dataset:
        dataset.write(values)
    params = {"source": {"blob_name": "hills.tif", "raster_type": "dem"}, "about": ABOUT, "target_crs": "EPSG:32633"}

    exact = run_handler("raster.create_cog", params | {"overview_level": 1})
    approximate = run_handler("raster.create_cog", params | {"part": "b", "exact_statistics": False})

    finite = values[np.isfinite(values)].astype("float64")
    [band] = exact.output["stac_item"]["assets"]["data"]["bands"]
    assert (band["statistics"]["minimum"], band["statistics"]["maximum"]) == (finite.min(), finite.max())
    assert (band["statistics"]["count"], band["dagmaster:infinite"]) == (finite.size, 3)
    assert band["statistics"]["stddev"] == pytest.approx(finite.std(), rel=1e-9)
    assert "dagmaster:statistics_approximate" not in band
    assert 0 < band["dagmaster:percentile_error"] <= 2 * (finite.max() - finite.min()) / 65_536
    assert exact.output["infinite"] == 3
    assert [finding["code"] for finding in exact.output["findings"]] == ["raster.infinite"]
    assert any("3 values are infinite" in line for line in exact.log)
    [band] = approximate.output["stac_item"]["assets"]["data"]["bands"]
    assert band["dagmaster:statistics_approximate"] is True
    assert band["statistics"]["stddev"] < 0.7 * finite.std()
    assert "dagmaster:percentile_error" not in band
    assert problems(exact.output["stac_item"]) == problems(approximate.output["stac_item"]) == []


@pytest.mark.requirement("C1")
def test_an_item_names_its_source_with_crs_and_checksum(storage: Path) -> None:
    name = depths(storage, "deep water.tif", 3.0)
    path = storage / "bronze" / "bronze" / name
    store = open_storage(Settings(STORAGE_FOLDER=str(storage)))
    digest = checksum_of(store, find_source(store, SourceParams(blob_name=name), JOB_ID))
    source = {"blob_name": name, "raster_type": "dem", "crs": "EPSG:32633", "sha256": digest}

    trial = run_handler("raster.create_cog", {"source": source, "about": ABOUT})

    assert digest == hashlib.sha256(path.read_bytes()).hexdigest()
    item = trial.output["stac_item"]
    assert item["properties"]["dagmaster:source_name"] == "deep water.tif"
    assert item["properties"]["dagmaster:source_crs"] == "EPSG:32633"
    assert item["properties"]["dagmaster:source_checksum"] == f"1220{digest}"
    assert item["properties"]["processing:lineage"].startswith("deep water.tif (EPSG:32633) to EPSG:4326 (bilinear)")
    assert problems(item) == []


WRITERS: dict[str, Any] = {
    "validate": {"blob_name": "a.tif", "dataset_id": "another"},
    "validate_collection": {"blob_names": ["a.tif"], "dataset_id": "another"},
    "create_cog": {"source": {"blob_name": "a.tif"}},
    "band_stack": {"blob_names": ["a.tif"]},
    "merge": {"blob_names": ["a.tif"]},
    "generate_tiling_scheme": {"source": {"blob_name": "a.tif"}},
    "create_mosaic": {"results_of": {"node_id": "tiles"}},
    "describe_dataset": {"item": {"bbox": [10, 50, 11, 51]}},
}


@pytest.mark.requirement("A4", "X1")
@pytest.mark.parametrize("name", WRITERS)
def test_a_job_cannot_write_objects_of_a_dataset_that_it_does_not_process(
    storage: Path, database: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(InlineContext, "connect", lambda _: psycopg.connect(database))
    depths(storage, "a.tif", 1)

    trial = run_handler(f"raster.{name}", {"about": ABOUT | {"dataset_id": "another"}, **WRITERS[name]})

    assert trial.error is not None
    assert (trial.error["code"], trial.blame) == ("revision.other-job", Blame.DATA)
    assert [path for path in (storage / "silver").rglob("*") if path.is_file()] == []
