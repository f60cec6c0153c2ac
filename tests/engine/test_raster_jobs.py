"""Raster jobs from end to end, on a real PostgreSQL with its catalogue: files in; COGs, mosaic and STAC out.

Most are submitted as assets and approved, so that their items are in the catalogue."""

import asyncio
import hashlib
import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pystac
import pytest
import rasterio
from affine import Affine
from fastapi.testclient import TestClient
from rio_cogeo.cogeo import cog_validate

from dagmaster.assets.states import Exposure
from dagmaster.client.models.assets import AssetSubmissionResult
from dagmaster.database.assets.store import AssetStore
from dagmaster.database.notify.notifier import JOBS
from dagmaster.jobs.model import Submission
from dagmaster.operations.assets.expose import expose
from dagmaster.operations.rerun import resume
from dagmaster.operations.submit import prepare
from dagmaster.raster.cog.grid import output_grid
from dagmaster.raster.cog.stack import bordered
from dagmaster.raster.cog.write import write_cog
from dagmaster.raster.source.facts import RasterType, read_facts
from dagmaster.serving.app import create_app
from dagmaster.settings import Settings
from dagmaster.stac.validate import problems
from dagmaster.storage import open_storage
from tests.catalog import CatalogReader
from tests.engine.harness import Engine, engine
from tests.published import ADMIN, Publisher
from tests.raster.rasters import hills, write_raster

UTM = Affine(10, 0, 500_000, 0, -10, 5_300_000)


def scene(
    path: Path,
    width: int = 1500,
    height: int = 1300,
    *,
    bands: int = 3,
    dtype: str = "uint8",
    place: Affine = UTM,
    crs: str = "EPSG:32633",
    **options: Any,
) -> Path:
    """Smooth waves, different in each band."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows, columns = np.mgrid[:height, :width]
    values = [100 + 90 * np.sin(rows / (50 + 9 * band)) * np.cos(columns / (70 + 5 * band)) for band in range(bands)]
    profile = {"driver": "GTiff", "width": width, "height": height, "count": bands, "dtype": dtype, "crs": crs}
    photometric = {"photometric": "RGB"} if bands == 3 else {}
    with rasterio.open(path, "w", transform=place, tiled=True, **profile, **photometric, **options) as dataset:
        dataset.write(np.stack(values).astype(dtype))
    return path


class Hub:
    """A storage with files to process, and functions that read the results."""

    def __init__(self, folder: Path, running: Engine, catalog: CatalogReader, store: AssetStore) -> None:
        self.folder, self.running, self.catalog = folder, running, catalog
        self.publisher = Publisher(store, running.library, open_storage(Settings(storage_folder=folder)))

    def file(self, name: str, **options: Any) -> str:
        scene(self.folder / "bronze" / "bronze" / name, **options)
        return name

    async def run(self, workflow: str, timeout: float = 100, **inputs: Any) -> dict[str, Any]:
        """Post a job without an asset; its results belong to the job."""
        return await self.running.run(workflow, timeout, **inputs)

    async def run_as_platform(self, workflow: str, **inputs: Any) -> dict[str, Any]:
        """Run a job whose reserved inputs are set, without an asset, as a release without assets created it."""
        await self.running.rows("UPDATE dagapp.platforms SET created_at = now() + interval '1 day'")
        job = prepare(self.running.library, Submission(workflow_id=workflow, inputs=inputs), allow_reserved=True)
        (job_id,) = await self.running.ledger.create_jobs([job])
        return await self._wait_for(job_id)

    async def process(
        self, dataset: str, source: str | list[str], workflow: str | None = None, **options: Any
    ) -> dict[str, Any]:
        """Submit files as an asset, and approve the result if the job completes."""
        submitted = await self.publisher.submit(dataset, source, workflow, **options)
        job = await self._wait_for(submitted.job_id)
        if job["status"] == "completed":
            await self.publisher.approve(submitted)
        return job

    async def review(self, dataset: str, source: str | list[str], **options: Any) -> AssetSubmissionResult:
        """Submit files as an asset, and wait for the result, which is not approved."""
        submitted = await self.publisher.submit(dataset, source, **options)
        assert (await self._wait_for(submitted.job_id))["status"] == "completed"
        return submitted

    async def _wait_for(self, job_id: Any) -> dict[str, Any]:
        self.running.notifier.notify(JOBS)
        return await self.running.wait(job_id, 100)

    async def documents(self, dataset: str, revision: int = 1, ordinal: int = 0) -> dict[str, dict[str, Any]]:
        """The stored documents of a revision by id; the id of the collection is empty."""
        rows = await self.running.rows(
            "SELECT document_id, content FROM dagapp.stac_documents "
            "WHERE dataset_id = %s AND version_ordinal = %s AND revision = %s ORDER BY document_id",
            dataset,
            ordinal,
            revision,
        )
        return {row["document_id"]: row["content"] for row in rows}

    def silver(self, blob: str = "") -> Path:
        return self.folder / "silver" / "silver" / blob

    def cogs(self, dataset: str, version: str = "v0/r1") -> list[Path]:
        return sorted(self.silver(f"cogs/{dataset}/{version}").glob("*.tif"))

    async def outputs(self, job: dict[str, Any], parent: str) -> dict[str, dict[str, Any]]:
        nodes = await self.running.nodes(job["job_id"])
        return {name: node for name, node in nodes.items() if node["parent_node_id"] == parent}


@pytest.fixture
async def hub(catalog_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Hub]:
    monkeypatch.setenv("STORAGE_FOLDER", str(tmp_path))
    monkeypatch.setenv("PUBLIC_URL", "https://maps.example.org")
    async with opened(catalog_database, tmp_path) as opened_hub:
        yield opened_hub


@asynccontextmanager
async def opened(dsn: str, folder: Path) -> AsyncIterator[Hub]:
    async with (
        engine(dsn, task_lease_sec=20.0, lease_renew_sec=5.0) as running,
        AssetStore(dsn) as store,
    ):
        yield Hub(folder, running, CatalogReader(dsn), store)


@pytest.mark.requirement("R9")
async def test_a_large_raster_becomes_tiles_with_a_mosaic_and_items_in_the_catalogue(hub: Hub) -> None:
    job = await hub.process(
        "scene-7",
        hub.file("Scene 7.tif"),
        "process_large_raster",
        tile_size=1024,
        overlap=512,
        datetime="2024-05-01T10:00:00Z",
        license="CC-BY-4.0",
        band_names=["r", "g", "b"],
    )

    assert (job["status"], job["error_message"]) == ("completed", None)
    result, cogs = job["result_data"], hub.cogs("scene-7")
    mosaic = json.loads(hub.silver(result["mosaic_blob"]).read_bytes())
    items = [await hub.catalog.get_item("scene-7", f"scene-7-v0-{cog.stem}") for cog in cogs]
    collection = await hub.catalog.get_collection("scene-7")

    assert len(cogs) == result["total_tiles"] >= 3
    assert all(cog_validate(cog, strict=True, quiet=True)[0] for cog in cogs)
    assert {name for names in mosaic["tiles"].values() for name in names} == {cog.name for cog in cogs}
    assert all(items)
    assert await hub.catalog.count_items("scene-7") == len(cogs)
    for item in items:
        assert problems(item) == []
        pystac.Item.from_dict(item)
    assert collection["assets"]["mosaic"]["href"] == f"/files/silver/silver/{result['mosaic_blob']}"
    assert all(link["href"].startswith(("/stac/", "/tiles/")) for link in items[0]["links"])
    assert result["viewer_url"] == "https://maps.example.org/tiles/scene-7/map?version=0"
    assert result["blob_path"] == result["mosaic_blob"]
    source = (hub.folder / "bronze" / "bronze" / "Scene 7.tif").read_bytes()
    assert result["content_hash"] == hashlib.sha256(source).hexdigest()
    assert collection["dagmaster:source_checksum"] == f"1220{result['content_hash']}"
    box, boxes = collection["extent"]["spatial"]["bbox"][0], np.array([item["bbox"] for item in items])
    assert box == pytest.approx([*boxes[:, :2].min(axis=0), *boxes[:, 2:].max(axis=0)])
    assert not list((hub.folder / "silver").rglob(".scratch/*/*")), "scratch folders are empty"
    text = json.dumps([items, collection, result])
    assert str(hub.folder) not in text
    assert str(job["job_id"]) not in text


@pytest.mark.requirement("R7")
async def test_statistics_of_a_mosaic_agree_with_gdal(hub: Hub) -> None:
    job = await hub.process(
        "dem",
        hub.file("dem.tif", bands=1, dtype="float32", nodata=-1.0),
        "process_large_raster",
        tile_size=1024,
        overlap=512,
    )
    vrt = hub.folder / "all.vrt"
    subprocess.run(["gdalbuildvrt", "-q", vrt, *hub.cogs("dem")], check=True)
    completed = subprocess.run(["gdalinfo", "-json", "-stats", vrt], check=True, capture_output=True, text=True)
    (expected,) = [band["metadata"][""] for band in json.loads(completed.stdout)["bands"]]
    (statistics,) = job["result_data"]["statistics"]

    assert statistics["minimum"] == pytest.approx(float(expected["STATISTICS_MINIMUM"]), rel=1e-9)
    assert statistics["maximum"] == pytest.approx(float(expected["STATISTICS_MAXIMUM"]), rel=1e-9)
    assert statistics["mean"] == pytest.approx(float(expected["STATISTICS_MEAN"]), rel=1e-9)
    assert statistics["stddev"] == pytest.approx(float(expected["STATISTICS_STDDEV"]), rel=1e-9)
    with rasterio.open(vrt) as dataset:
        assert statistics["count"] == np.count_nonzero(dataset.read_masks(1)), "each pixel counts once"
    assert (statistics["approximate"], statistics["infinite"]) == (False, 0)


@pytest.mark.requirement("E15")
async def test_a_resumed_job_makes_only_the_tiles_that_are_missing(hub: Hub) -> None:
    name = hub.file("scene.tif")
    other = hub.silver("cogs/scene/v0/r1/r000c001.tif")
    other.parent.mkdir(parents=True)
    other.write_bytes(b"something else")

    failed = await hub.process("scene", name, "process_large_raster", tile_size=1024)
    before = await hub.outputs(failed, "tiles")
    bad = [node_id for node_id, node in before.items() if node["status"] == "failed"]
    other.unlink()
    await resume(hub.running.ledger, failed["job_id"])
    hub.running.notifier.notify(JOBS)
    job = await hub.running.wait(failed["job_id"], 60, until=("completed",))
    after = await hub.outputs(job, "tiles")

    assert failed["status"] == "failed"
    assert "never overwritten" in failed["error_message"] or "already exists" in before[bad[0]]["error_message"]
    assert len(bad) == 1
    assert [name for name, node in after.items() if node["attempt"] != before[name]["attempt"]] == bad
    assert len(await hub.documents("scene")) == len(after) + 1


@pytest.mark.requirement("R9")
async def test_a_second_run_gives_the_same_outputs_and_no_duplicates(hub: Hub) -> None:
    inputs = {"blob_name": hub.file("scene.tif"), "dataset_id": "scene", "tile_size": 1024}
    first = await hub.run_as_platform("process_large_raster", **inputs)
    inodes = {path: path.stat().st_ino for path in hub.cogs("scene")}
    second = await hub.run_as_platform("process_large_raster", **inputs)

    assert (first["status"], second["status"]) == ("completed", "completed")
    assert {path: path.stat().st_ino for path in hub.cogs("scene")} == inodes, (
        "existing files must not be written again"
    )
    assert len(await hub.documents("scene")) == len(inodes) + 1
    assert second["result_data"]["statistics"] == first["result_data"]["statistics"]


@pytest.mark.requirement("R2")
async def test_a_broken_or_missing_file_fails_the_job_without_a_retry(hub: Hub) -> None:
    path = hub.folder / "bronze" / "bronze" / "broken.tif"
    scene(path)
    path.write_bytes(path.read_bytes()[:4000])
    job = await hub.run("process_large_raster", blob_name="broken.tif")
    (task,) = [task for task in await hub.running.tasks(job["job_id"]) if task["node_id"] == "validate"]

    assert job["status"] == "failed"
    assert "broken.tif" in job["error_message"]
    assert str(hub.folder) not in job["error_message"]
    assert task["attempt"] == 1, "a broken file must not be retried"
    missing = await hub.run("process_large_raster", blob_name="no-such.tif")
    assert "the blob 'bronze/no-such.tif' does not exist" in missing["error_message"]


@pytest.mark.requirement("R2")
async def test_a_raster_is_validated_without_writing_any_data(hub: Hub) -> None:
    job = await hub.run("raster_validate", blob_name=hub.file("heights.tif", bands=1, dtype="int16"))

    assert (job["status"], job["error_message"]) == ("completed", None)
    result = job["result_data"]
    assert (result["verdict"], result["band_count"], result["data_type"]) == ("warn", 1, "int16")
    assert not list((hub.folder / "silver").rglob("*.tif"))
    assert await hub.running.value("SELECT count(*) FROM dagapp.stac_documents") == 0


@pytest.mark.requirement("A2")
async def test_a_revision_has_the_hash_of_its_source_and_names_the_version_with_the_same_content(hub: Hub) -> None:
    file = hub.file("first.tif", width=300, height=200)
    copy = hub.folder / "bronze" / "bronze" / "renamed.tif"
    copy.write_bytes((copy.parent / file).read_bytes())
    first = await hub.review("dem", file, label="2023")
    await hub.publisher.approve(first)
    second = await hub.review("dem", "renamed.tif", label="2024")

    asset = await hub.publisher.store.asset(first.asset_id)

    digest = hashlib.sha256(copy.read_bytes()).hexdigest()
    revisions = [version.revisions[0] for version in asset.versions]
    assert [(each.content_hash, each.same_content_as) for each in revisions] == [(digest, None), (digest, 0)]
    assert second.same_content_as is None
    item = (await hub.documents("dem", ordinal=1))["dem-v1"]
    assert item["properties"]["dagmaster:source_checksum"] == f"1220{digest}"
    assert digest in item["properties"]["processing:lineage"]


@pytest.mark.requirement("R3")
async def test_a_small_file_becomes_one_cog_with_one_item(hub: Hub) -> None:
    job = await hub.process("heights", hub.file("heights.tif", bands=1, dtype="int16"), raster_type="dem")
    result = job["result_data"]
    item = await hub.catalog.get_item("heights", "heights-v0")

    assert (job["status"], job["error_message"]) == ("completed", None)
    assert result["blob_path"] == "cogs/heights/v0/r1/heights.tif"
    assert (result["stac_item_id"], result["stac_collection_id"], result["total_tiles"]) == ("heights-v0", "heights", 1)
    assert cog_validate(hub.silver(result["blob_path"]), strict=True, quiet=True)[0]
    assert item["properties"]["renders"]["default"]["colormap_name"] == "terrain"
    source = (hub.folder / "bronze" / "bronze" / "heights.tif").read_bytes()
    assert result["content_hash"] == hashlib.sha256(source).hexdigest()
    assert item["properties"]["dagmaster:source_checksum"] == f"1220{result['content_hash']}"
    assert item["properties"]["dagmaster:source_name"] == "heights.tif"
    assert item["properties"]["processing:lineage"].startswith("heights.tif (EPSG:")
    assert problems(item) == []


@pytest.mark.requirement("R3")
async def test_a_raster_that_is_large_or_crosses_the_antimeridian_is_tiled(hub: Hub) -> None:
    across = hub.file("fiji.tif", width=700, height=300, crs="EPSG:4326", place=Affine(0.01, 0, 177, 0, -0.01, -16))
    job = await hub.process("fiji", across)
    large = await hub.process(
        "large", hub.file("large.tif"), "raster_tiled_processing", tile_above_mb=1, tile_size=1024
    )

    assert (job["status"], job["error_message"]) == ("completed", None)
    collection = await hub.catalog.get_collection("fiji")
    west, _, east, _ = collection["extent"]["spatial"]["bbox"][0]
    assert west > east, "in GeoJSON, west > east means that the area crosses the antimeridian"
    assert large["result_data"]["total_tiles"] > 1
    assert large["result_data"]["blob_path"] == "mosaics/large/v0/r1/mosaic.json"


@pytest.mark.requirement("R11")
async def test_many_files_become_one_dataset(hub: Hub) -> None:
    places = [Affine(10, 0, 500_000 + 4000 * n, 0, -10, 5_300_000) for n in range(3)]
    names = [hub.file(f"part {n}.tif", width=500, height=400, place=place) for n, place in enumerate(places)]
    job = await hub.process("parts", names)
    collection = await hub.catalog.get_collection("parts")

    assert (job["status"], job["error_message"]) == ("completed", None)
    assert [path.name for path in hub.cogs("parts")] == ["part-0.tif", "part-1.tif", "part-2.tif"]
    assert await hub.catalog.count_items("parts") == 3
    assert collection["title"] == "parts", "the title must not be the name of one of the files"
    digests = [hashlib.sha256((hub.folder / "bronze" / "bronze" / name).read_bytes()).hexdigest() for name in names]
    combined = hashlib.sha256("".join(f"{digest}\n" for digest in digests).encode()).hexdigest()
    assert job["result_data"]["content_hash"] == combined
    assert collection["dagmaster:source_checksum"] == f"1220{combined}"
    assert job["result_data"]["blob_path"] == job["result_data"]["mosaic_blob"]
    with rasterio.open(hub.cogs("parts")[0]) as one, rasterio.open(hub.cogs("parts")[1]) as other:
        apart = (other.transform.c - one.transform.c) / one.transform.a
    assert apart == pytest.approx(round(apart), abs=1e-4), "all COGs must be on one grid"
    vrt = hub.folder / "all.vrt"
    subprocess.run(["gdalbuildvrt", "-q", vrt, *reversed(hub.cogs("parts"))], check=True)  # the last file is on top
    with rasterio.open(vrt) as dataset:
        for band, statistics in enumerate(job["result_data"]["statistics"], 1):
            seen = dataset.read(band)[dataset.read_masks(band) != 0].astype("float64")
            assert (statistics["count"], statistics["approximate"]) == (seen.size, False), (
                "a pixel in several files must count once"
            )
            assert (statistics["mean"], statistics["stddev"]) == pytest.approx((seen.mean(), seen.std()), rel=1e-9)
    mixed = await hub.run("raster_collection", blob_names=[names[0], hub.file("dem.tif", bands=1)])
    assert "differ in their bands" in mixed["error_message"]


@pytest.mark.requirement("R10")
async def test_files_on_a_common_grid_keep_their_pixels(hub: Hub) -> None:
    """The files are in the target CRS, and the origin of their grid is not a multiple of the resolution."""
    folder, corner = hub.folder / "bronze" / "bronze", Affine(20, 0, 1_749_990, 0, -20, 5_430_010)
    folder.mkdir(parents=True, exist_ok=True)
    heights = hills(300, 900) + np.random.default_rng(5).normal(0, 20, (300, 900)).astype("float32")
    names = [f"dem-{at}.tif" for at in range(3)]
    for at, name in enumerate(names):
        values, place = heights[:, 300 * at : 300 * at + 300], corner @ Affine.translation(300 * at, 0)
        write_raster(folder / name, values, crs="EPSG:2193", transform=place, nodata=-9999)

    job = await hub.process("kept", names, target_crs="EPSG:2193")
    warped = await hub.process("warped", names)

    assert (job["status"], job["error_message"]) == ("completed", None)
    assert (warped["status"], warped["error_message"]) == ("completed", None)
    for name, path in zip(names, hub.cogs("kept"), strict=True):
        with rasterio.open(folder / name) as source, rasterio.open(path) as cog:
            assert cog.transform == source.transform
            assert np.array_equal(cog.read(), source.read())
    size = output_grid(read_facts(folder / names[0])).resolution
    with bordered(folder / names[1], [folder / names[0], folder / names[2]], raster_type=RasterType.DEM) as whole:
        grid, expected = output_grid(whole.facts, resolution=size), hub.folder / "expected.tif"
        write_cog(whole.pixels, whole.bands, expected, grid, raster_type=RasterType.DEM, core=whole.core)
    assert hub.cogs("warped")[1].read_bytes() == expected.read_bytes(), (
        "pixels at the edge are computed with those of neighbouring files"
    )


@pytest.mark.requirement("R10")
async def test_files_on_the_grid_of_the_majority_keep_their_pixels(hub: Hub) -> None:
    """One file of four is half a pixel off: it is resampled to the grid of the others, which keep their pixels."""
    folder, corner = hub.folder / "bronze" / "bronze", Affine(20, 0, 1_749_993, 0, -20, 5_430_011)
    folder.mkdir(parents=True, exist_ok=True)
    heights = hills(200, 800)
    names = [f"part-{at}.tif" for at in range(4)]
    for at, name in enumerate(names):
        place = corner @ Affine.translation(200 * at + (0.5 if at == 2 else 0), 0)
        values = heights[:, 200 * at : 200 * at + 200]
        write_raster(folder / name, values, crs="EPSG:2193", transform=place, nodata=-9999)

    job = await hub.process("most", names, target_crs="EPSG:2193")

    assert (job["status"], job["error_message"]) == ("completed", None)
    for at, (name, path) in enumerate(zip(names, hub.cogs("most"), strict=True)):
        with rasterio.open(folder / name) as source, rasterio.open(path) as cog:
            assert np.array_equal(cog.read(), source.read()) == (at != 2)
            steps = ~corner @ cog.transform
            assert (steps.c, steps.f) == pytest.approx((round(steps.c), 0), abs=1e-6)
    (finding,) = [each for each in job["result_data"]["findings"] if each["code"].startswith("collection.")]
    assert finding["message"].startswith("the files are on 2 different pixel grids: 3 of 4 files keep their pixels")


@pytest.mark.requirement("R10")
async def test_files_that_cover_the_same_area_are_reported(hub: Hub) -> None:
    bands = [hub.file(f"{name}.tif", bands=1, width=200, height=200) for name in ("B02", "B03", "B04")]

    job = await hub.process("bands", bands)

    assert job["status"] == "completed"
    (finding,) = [each for each in job["result_data"]["findings"] if each["code"].startswith("collection.")]
    assert finding["code"] == "collection.same-area"
    overlap = "2 other files and 'B02.tif' overlap by at least 90 %; the map shows only one of them there"
    assert finding["message"] == overlap
    assert "bands of one scene" in finding["advice"]


@pytest.mark.requirement("R10")
@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"width": 150, "height": 150, "place": Affine(20, 0, 500_000, 0, -20, 5_300_000)}, id="20 m"),
        pytest.param({"width": 300, "height": 299}, id="one row less"),
    ],
)
async def test_bands_of_one_scene_are_reported_and_never_mixed(hub: Hub, other: dict[str, Any]) -> None:
    bands = [hub.file("B02.tif", bands=1, width=300, height=300), hub.file("B05.tif", bands=1, **other)]

    job = await hub.process("bands", bands)
    parts = (await hub.running.nodes(job["job_id"]))["validate"]["output"]["parts"]

    assert (job["status"], job["error_message"]) == ("completed", None)
    (finding,) = [each for each in job["result_data"]["findings"] if each["code"] == "collection.same-area"]
    assert finding["message"].startswith("1 other file and 'B02.tif' overlap by at least 90 %")
    assert [part["neighbours"] for part in parts] == [[], []], "files of different bands are not neighbours"


@pytest.mark.requirement("R2")
@pytest.mark.parametrize("workflow", ["raster_ingest", "process_large_raster", "raster_collection"])
async def test_findings_that_need_every_pixel_are_in_the_result(hub: Hub, workflow: str) -> None:
    """Each code occurs once, with the tiles or files concerned. Reviewers find it through the job of the revision."""
    folder = hub.folder / "bronze" / "bronze"
    folder.mkdir(parents=True)
    names = ["west.tif", "east.tif"] if workflow == "raster_collection" else ["west.tif"]
    for at, name in enumerate(names):
        heights = hills(700, 700)
        heights[::100, 50::100] = np.inf
        write_raster(folder / name, heights, transform=UTM @ Affine.translation(700 * at, 0))
    options = {"tile_size": 512} if workflow == "process_large_raster" else {}

    source = names if len(names) > 1 else names[0]
    submitted = await hub.publisher.submit("heights", source, workflow, **options)
    job = await hub._wait_for(submitted.job_id)
    (revision,) = await hub.running.rows("SELECT job_id FROM dagapp.asset_revisions")

    assert (job["status"], job["error_message"]) == ("completed", None)
    findings = {finding["code"]: finding for finding in job["result_data"]["findings"]}
    assert len(findings) == len(job["result_data"]["findings"])
    infinite = findings["raster.infinite"]
    assert (infinite["severity"], infinite["stage"]) == ("warn", "processing"), (
        "the finding must come from all pixels, not from the sample of validation"
    )
    places = {"raster_ingest": (1, []), "raster_collection": (2, ["west.tif", "east.tif"])}
    if workflow == "process_large_raster":
        cogs = {cog.name for cog in hub.cogs("heights") if np.isinf(rasterio.open(cog).read()).any()}
        assert (infinite["count"], set(infinite["places"])) == (len(cogs), cogs)
        assert len(cogs) > 1
    else:
        assert (infinite["count"], infinite["places"]) == places[workflow]
    assert any(finding["stage"] == "validation" for finding in findings.values())
    assert revision["job_id"] == job["job_id"]


@pytest.mark.requirement("C1")
async def test_a_new_revision_keeps_earlier_metadata_unless_its_submission_has_other_metadata(hub: Hub) -> None:
    """Title, times, description, licence, references and `created`. A new version keeps the metadata of the dataset,
    but not its times."""
    name = hub.file("scene.tif", width=600, height=500)
    metadata = {"title": "The valley", "description": "In July", "datetime": "2024-07", "license": "CC-BY-4.0"}
    kept = ("title", "description", "start_datetime", "end_datetime", "license", "version", "platform:dataset")
    await hub.running.rows(
        """CREATE FUNCTION pg_temp.created() RETURNS void LANGUAGE sql AS $$
           UPDATE dagapp.stac_documents SET content = jsonb_set(
               content, '{properties,created}', '"2025-01-02T03:04:05Z"') WHERE document_id <> '' $$"""
    )
    submitted = await hub.review("valley", name, label="2024-Q3", **metadata)
    await hub.running.rows("SELECT pg_temp.created()")
    await hub.publisher.approve(submitted)
    first = await hub.catalog.get_item("valley", "valley-v0")
    again = {"force": True, "label": "2024-Q3"}
    job = await hub.process("valley", name, output_tier="archive", **again)
    second = await hub.catalog.get_item("valley", "valley-v0")
    await hub.process("valley", name, title="The lake", datetime="2023", **again)
    third = await hub.catalog.get_item("valley", "valley-v0")
    await hub.process("valley", name, label="2024-Q4")
    newer = await hub.catalog.get_item("valley", "valley-v1")
    collection = await hub.catalog.get_collection("valley")

    assert (job["status"], job["error_message"]) == ("completed", None)
    assert {name: second["properties"].get(name) for name in kept} == {name: first["properties"][name] for name in kept}
    assert second["properties"]["version"] == "2024-Q3"
    assert second["properties"]["created"] == "2025-01-02T03:04:05Z"
    assert second["properties"]["updated"] >= first["properties"]["updated"]
    assert (second["properties"]["dagmaster:revision"], second["properties"]["dagmaster:datetime_basis"]) == (
        2,
        "given",
    )
    assert third["properties"]["title"] == "The lake"
    assert third["properties"]["start_datetime"] == "2023-01-01T00:00:00Z"
    assert third["properties"]["description"] == "In July"
    assert (newer["properties"]["title"], newer["properties"]["license"]) == ("The lake", "CC-BY-4.0")
    assert newer["properties"]["version"] == "2024-Q4"
    assert newer["properties"]["dagmaster:datetime_basis"] == "publication"
    assert newer["properties"]["created"] > "2025-01-02T03:04:05Z"
    assert (collection["title"], problems(collection), problems(second)) == ("The lake", [], [])


@pytest.mark.requirement("C2")
async def test_older_tiled_versions_stay_servable(hub: Hub) -> None:
    name = hub.file("scene.tif", width=1200, height=700)
    other = hub.file("later.tif", width=700, height=700, place=Affine(10, 0, 520_000, 0, -10, 5_300_000))
    tiles = {"workflow": "process_large_raster", "tile_size": 512, "overlap": 0}
    await hub.process("scene", name, label="one", **tiles)
    before = await hub.catalog.get_collection("scene")
    await expose(hub.publisher.store, "scene", Exposure.ALL_VERSIONS, caller=ADMIN)
    await hub.process("scene", other, label="two", **tiles)
    both = await hub.catalog.get_collection("scene")
    await hub.process("scene", name, label="one", **{**tiles, "tile_size": 1024})
    revised = await hub.catalog.get_collection("scene")
    mosaics = {key: asset["href"].partition("/silver/silver/")[2] for key, asset in revised["assets"].items()}

    assert problems(both) == problems(revised) == []
    assert {key for key in both["assets"] if "mosaic" in key} == {"mosaic", "mosaic-v0"}
    assert both["assets"]["mosaic-v0"] == before["assets"]["mosaic"]
    assert both["assets"]["mosaic"]["dagmaster:version_ordinal"] == both["dagmaster:version_ordinal"] == 1
    assert both["renders"]["v0"] == {**before["renders"]["default"], "assets": ["mosaic-v0"]}
    assert mosaics["mosaic"] == "mosaics/scene/v1/r1/mosaic.json", (
        "the collection must still describe the newest version"
    )
    assert mosaics["mosaic-v0"] == "mosaics/scene/v0/r2/mosaic.json"
    assert revised["dagmaster:version_ordinal"] == 1
    assert all(hub.silver(mosaics[key]).is_file() for key in ("mosaic", "mosaic-v0", "tiling_scheme-v0"))
    assert hub.silver("mosaics/scene/v0/r1/mosaic.json").is_file(), "published objects never change"
    assert both["created"] == before["created"]


IMPOSSIBLE: dict[str, tuple[dict[str, Any], str]] = {
    "tier": (
        {"output_tier": "visualization"},
        "output_tier=visualization is not possible: the visualization tier uses JPEG",
    ),
    "no tier": ({"output_tier": "best"}, "output_tier=best is not possible: there is no tier 'best'"),
    "crs": ({"target_crs": "EPSG:99999"}, "target_crs=EPSG:99999 is not possible: 'EPSG:99999' is not a known CRS"),
    "size": (
        {"tile_size": 1000},
        "tile_size=1000 is not possible: the width of a tile must be a multiple of 512 pixels",
    ),
    "overlap": ({"overlap": -512}, "overlap=-512 is not possible"),
    "resolution": ({"resolution": 1e-9}, "is not possible: the outputs would have"),
    "type": ({"raster_type": "picture"}, "'picture' is not a raster type"),
    "bands": ({"band_names": ["a", "b"]}, "the file has 1 band"),
    "licence": ({"license": "proprietary"}, "'proprietary' is not an SPDX identifier"),
    "ref": ({"platform_refs": {"Data Set": "x"}}, "'Data Set' is not a valid name of a reference"),
    "name": ({"dataset_id": "No Name"}, "is not a valid dataset id"),
    "names": ({"dataset_id": "one", "collection_id": "two"}, "collection_id and dataset_id differ"),
    "two": ({"output_tier": "best", "tile_size": 7}, "tile_size=7 is not possible"),
}


@pytest.mark.requirement("R6")
async def test_impossible_options_are_refused_by_the_first_step_and_nothing_is_written(hub: Hub) -> None:
    name = hub.file("dem.tif", width=300, height=200, bands=1, dtype="float32")
    for wrong, message in IMPOSSIBLE.values():
        job = await hub.run_as_platform("process_large_raster", blob_name=name, **wrong)
        (task,) = await hub.running.tasks(job["job_id"])

        assert (job["status"], task["node_id"], task["attempt"]) == ("failed", "validate", 1), wrong
        assert message in job["error_message"]
    assert not hub.silver().exists() or not [path for path in hub.silver().rglob("*") if path.is_file()]
    assert "output_tier=best" in job["error_message"], "the message must contain every reason"


@pytest.mark.requirement("R6")
async def test_a_job_with_other_options_for_an_existing_edition_is_refused(hub: Hub) -> None:
    inputs = {"blob_name": hub.file("scene.tif", width=300, height=200), "dataset_id": "scene"}
    await hub.run_as_platform("raster_ingest", **inputs)
    other = await hub.run_as_platform("raster_ingest", output_tier="archive", **inputs)
    renamed = await hub.run_as_platform("raster_ingest", title="A better name", **inputs)

    assert (
        "revision 1 of version 0 of dataset 'scene' was made with other options: output_tier was analysis, not archive"
        in (other["error_message"])
    )
    assert [task["node_id"] for task in await hub.running.tasks(other["job_id"])] == ["validate"]
    assert renamed["status"] == "completed", "a title is not one of the options that must be equal"


@pytest.mark.requirement("A4")
async def test_a_new_revision_is_not_served_before_it_is_approved(hub: Hub) -> None:
    name = hub.file("scene.tif", width=300, height=200)
    await hub.process("scene", name, title="First")
    submitted = await hub.review("scene", name, force=True, title="Second")
    unapproved = await hub.catalog.get_item("scene", "scene-v0"), await hub.catalog.get_collection("scene")
    stored = await hub.documents("scene", revision=2)
    await hub.publisher.approve(submitted)
    approved = await hub.catalog.get_item("scene", "scene-v0"), await hub.catalog.get_collection("scene")

    assert [unapproved[0]["properties"]["title"], unapproved[1]["title"]] == ["First", "First"]
    assert [approved[0]["properties"]["title"], approved[1]["title"]] == ["Second", "Second"]
    assert unapproved[0]["properties"]["dagmaster:revision"] == 1
    assert set(stored) == {"", "scene-v0"}
    assert stored["scene-v0"]["assets"]["data"]["href"] == "/files/silver/silver/cogs/scene/v0/r2/scene.tif"


def hrefs_in(document: Any) -> Iterator[str]:
    """The values of all `href` fields in a document."""
    if isinstance(document, dict):
        yield from (value for key, value in document.items() if key == "href")
        yield from (href for value in document.values() for href in hrefs_in(value))
    elif isinstance(document, list):
        yield from (href for value in document for href in hrefs_in(value))


@pytest.mark.requirement("C1", "C2")
async def test_served_documents_have_urls_of_the_server_that_received_the_request(hub: Hub) -> None:
    await hub.process("scene", hub.file("scene.tif"), "process_large_raster", tile_size=1024)
    app = create_app(Settings(public_url=None), hub.running.dsn, storage=hub.publisher.storage)

    def read_served() -> tuple[dict[str, Any], list[dict[str, Any]], list[int]]:
        with TestClient(app, base_url="http://localhost:8123") as client:
            collection = client.get("/stac/collections/scene").json()
            items = client.get("/stac/collections/scene/items").json()["features"]
            links = [link["href"] for link in items[0]["links"] if link["rel"] in ("self", "tilejson", "collection")]
            files = [collection["assets"]["mosaic"]["href"], items[0]["assets"]["data"]["href"], *links]
            return collection, items, [client.get(url).status_code for url in files]

    collection, items, statuses = await asyncio.to_thread(read_served)

    assert statuses == [200] * 5
    assert len(items) == len(hub.cogs("scene"))
    for href in hrefs_in([collection, items]):
        assert href.startswith("http://localhost:8123/"), href
    for item in items:
        assert problems(item) == []
        assert pystac.Item.from_dict(item).id == item["id"]
    assert problems(collection) == []
    assert pystac.Collection.from_dict(collection).id == "scene"


@pytest.mark.requirement("A4")
async def test_results_of_a_job_that_was_posted_directly_belong_to_the_job(hub: Hub) -> None:
    name = hub.file("scene.tif", width=300, height=200)
    job = await hub.run("raster_ingest", blob_name=name, title="Direct")
    dataset = f"job-{job['job_id']}"
    documents = await hub.documents(dataset)
    result = job["result_data"]
    await hub.running.rows("DELETE FROM dagapp.stac_documents")
    again = await hub.run("stac_register", dataset_id=dataset)

    assert (job["status"], job["error_message"]) == ("completed", None)
    assert result["blob_path"] == f"cogs/{dataset}/v0/r1/{dataset}.tif"
    assert hub.silver(result["blob_path"]).is_file()
    assert (result["viewer_url"], result["stac_url"], result["xyz_url"]) == (None, None, None)
    assert documents[""]["title"] == "Direct"
    assert set(documents) == {"", f"{dataset}-v0"}
    assert await hub.catalog.get_collection(dataset) is None
    assert again["result_data"] == {"stac_collection_id": dataset, "item_count": 1}
    assert await hub.documents(dataset) == documents


@pytest.mark.requirement("A4")
async def test_only_the_job_of_a_revision_writes_its_results(hub: Hub) -> None:
    name = hub.file("scene.tif", width=300, height=200)
    submitted = await hub.review("scene", name)
    before = await hub.documents("scene")
    other = await hub.run_as_platform("raster_ingest", blob_name=name, dataset_id="scene", title="Other")
    later = await hub.run_as_platform("raster_ingest", blob_name=name, dataset_id="scene", revision=2)
    registered = await hub.run("stac_register", dataset_id="scene")

    assert "this job does not process version 0, revision 1 of dataset 'scene'" in other["error_message"]
    assert "this job does not process version 0, revision 2 of dataset 'scene'" in later["error_message"]
    assert "this job does not process version 0, revision 1 of dataset 'scene'" in registered["error_message"]
    (task,) = await hub.running.tasks(other["job_id"])
    assert (task["node_id"], task["attempt"]) == ("validate", 1), "the job must not be retried"
    assert await hub.documents("scene") == before
    await hub.publisher.approve(submitted)


@pytest.mark.requirement("A4")
async def test_a_source_that_changes_after_it_was_submitted_fails_the_job(hub: Hub) -> None:
    name = hub.file("scene.tif", width=300, height=200)
    hub.file("other.tif", width=300, height=200)
    job = await hub.run_as_platform("raster_ingest", blob_name=name, source_etag="another")
    many = await hub.run_as_platform("raster_collection", blob_names=[name, "other.tif"], source_etags=["a", "b"])

    assert "the blob 'bronze/scene.tif' has changed since it was submitted" in job["error_message"]
    assert "the blob 'bronze/scene.tif' has changed since it was submitted" in many["error_message"]
    for each in (job, many):
        (task,) = await hub.running.tasks(each["job_id"])
        error = (await hub.running.nodes(each["job_id"]))["validate"]["error"]
        assert (task["attempt"], error["code"], error["blame"]) == (1, "source.changed", "data")


@pytest.mark.requirement("R4")
async def test_validation_warns_when_polar_data_is_converted_to_degrees(hub: Hub) -> None:
    name = hub.file(
        "ice.tif", width=1500, height=1500, crs="EPSG:3413", place=Affine(500, 0, -375_000, 0, -500, 375_000)
    )
    job = await hub.run("raster_ingest", blob_name=name, target_crs="EPSG:3413")
    lossy = await hub.run("raster_ingest", blob_name=name)
    kept, warned = [
        {
            finding["code"]: finding
            for finding in (await hub.running.nodes(one["job_id"]))["validate"]["output"]["findings"]
        }
        for one in (job, lossy)
    ]

    assert "raster.polar" not in kept
    assert "raster.beyond-maps" in kept
    assert warned["raster.polar"]["severity"] == "warn"
    assert "in EPSG:4326 its pixels are" in warned["raster.polar"]["message"]
    assert "target_crs=EPSG:3413" in warned["raster.polar"]["advice"]
