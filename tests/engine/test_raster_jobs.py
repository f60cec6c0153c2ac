"""Raster jobs from end to end, on a real PostgreSQL with its catalogue: files in; COGs, mosaic and STAC out."""

import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pystac
import pytest
import rasterio
from affine import Affine
from rio_cogeo.cogeo import cog_validate

from dagmaster.database.catalog.pgstac import StacCatalog
from dagmaster.database.connect import pool
from dagmaster.database.notify.notifier import JOBS
from dagmaster.operations.rerun import resume
from dagmaster.stac.validate import problems
from tests.engine.harness import Engine, engine

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
    """A storage with files to process, and a look at what came of them."""

    def __init__(self, folder: Path, running: Engine, catalog: StacCatalog) -> None:
        self.folder, self.running, self.catalog = folder, running, catalog

    def file(self, name: str, **options: Any) -> str:
        scene(self.folder / "bronze" / "bronze" / name, **options)
        return name

    async def run(self, workflow: str, timeout: float = 60, **inputs: Any) -> dict[str, Any]:
        return await self.running.run(workflow, timeout, **inputs)

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
    async with opened(catalog_database, tmp_path) as found:
        yield found


@asynccontextmanager
async def opened(dsn: str, folder: Path) -> AsyncIterator[Hub]:
    async with engine(dsn, task_lease_sec=20.0, lease_renew_sec=5.0) as running, pool(dsn, "test", 0, 2) as database:
        yield Hub(folder, running, StacCatalog(database))


@pytest.mark.requirement("R9")
async def test_a_large_raster_becomes_tiles_a_mosaic_and_catalogued_items(hub: Hub) -> None:
    job = await hub.run(
        "process_large_raster",
        blob_name=hub.file("Scene 7.tif"),
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
    assert (
        collection["assets"]["mosaic"]["href"]
        == f"https://maps.example.org/files/silver/silver/{result['mosaic_blob']}"
    )
    box, boxes = collection["extent"]["spatial"]["bbox"][0], np.array([item["bbox"] for item in items])
    assert box == pytest.approx([*boxes[:, :2].min(axis=0), *boxes[:, 2:].max(axis=0)])
    assert not list((hub.folder / "silver").rglob(".scratch/*/*")), "scratch folders are empty"
    text = json.dumps([items, collection, result])
    assert str(hub.folder) not in text
    assert str(job["job_id"]) not in text


@pytest.mark.requirement("R7")
async def test_statistics_agree_with_gdal_when_exact_ones_are_asked_for(hub: Hub) -> None:
    job = await hub.run(
        "process_large_raster",
        blob_name=hub.file("dem.tif", bands=1, dtype="float32", nodata=-1.0),
        tile_size=1024,
        exact_statistics=True,
    )
    vrt = hub.folder / "all.vrt"
    subprocess.run(["gdalbuildvrt", "-q", vrt, *hub.cogs("dem")], check=True)
    said = subprocess.run(["gdalinfo", "-json", "-stats", vrt], check=True, capture_output=True, text=True)
    (expected,) = [band["metadata"][""] for band in json.loads(said.stdout)["bands"]]
    (found,) = job["result_data"]["statistics"]

    assert found["minimum"] == pytest.approx(float(expected["STATISTICS_MINIMUM"]), rel=1e-5)
    assert found["maximum"] == pytest.approx(float(expected["STATISTICS_MAXIMUM"]), rel=1e-5)
    assert found["mean"] == pytest.approx(float(expected["STATISTICS_MEAN"]), rel=1e-5)
    assert found["stddev"] == pytest.approx(float(expected["STATISTICS_STDDEV"]), rel=1e-4)


@pytest.mark.requirement("E15")
async def test_a_resumed_job_makes_only_the_tiles_that_are_missing(hub: Hub) -> None:
    name = hub.file("scene.tif")
    other = hub.silver("cogs/scene/v0/r1/r000c001.tif")
    other.parent.mkdir(parents=True)
    other.write_bytes(b"something else")

    failed = await hub.run("process_large_raster", blob_name=name, tile_size=1024)
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
    assert await hub.catalog.count_items("scene") == len(after)


@pytest.mark.requirement("R9")
async def test_a_second_run_gives_the_same_outputs_and_no_duplicates(hub: Hub) -> None:
    name = hub.file("scene.tif")
    first = await hub.run("process_large_raster", blob_name=name, tile_size=1024)
    made = {path: path.stat().st_ino for path in hub.cogs("scene")}
    second = await hub.run("process_large_raster", blob_name=name, tile_size=1024)

    assert (first["status"], second["status"]) == ("completed", "completed")
    assert {path: path.stat().st_ino for path in hub.cogs("scene")} == made, "what is there stays"
    assert await hub.catalog.count_items("scene") == len(made)
    assert second["result_data"]["statistics"] == first["result_data"]["statistics"]


@pytest.mark.requirement("R2")
async def test_an_unfit_file_fails_at_once_with_every_reason(hub: Hub) -> None:
    path = hub.folder / "bronze" / "bronze" / "broken.tif"
    scene(path)
    path.write_bytes(path.read_bytes()[:4000])
    job = await hub.run("process_large_raster", blob_name="broken.tif")
    (task,) = [task for task in await hub.running.tasks(job["job_id"]) if task["node_id"] == "validate"]

    assert job["status"] == "failed"
    assert "broken.tif" in job["error_message"]
    assert str(hub.folder) not in job["error_message"]
    assert task["attempt"] == 1, "never tried again: it is the file's fault"
    missing = await hub.run("process_large_raster", blob_name="no-such.tif")
    assert "the blob 'bronze/no-such.tif' does not exist" in missing["error_message"]


@pytest.mark.requirement("R3")
async def test_a_small_file_becomes_one_cog_with_one_item(hub: Hub) -> None:
    job = await hub.run("raster_ingest", blob_name=hub.file("heights.tif", bands=1, dtype="int16"), raster_type="dem")
    result = job["result_data"]
    item = await hub.catalog.get_item("heights", "heights-v0")

    assert (job["status"], job["error_message"]) == ("completed", None)
    assert result["blob_path"] == "cogs/heights/v0/r1/heights.tif"
    assert (result["stac_item_id"], result["stac_collection_id"], result["total_tiles"]) == ("heights-v0", "heights", 1)
    assert cog_validate(hub.silver(result["blob_path"]), strict=True, quiet=True)[0]
    assert item["properties"]["renders"]["default"]["colormap_name"] == "terrain"
    assert problems(item) == []


@pytest.mark.requirement("R3")
async def test_what_is_large_or_crosses_the_antimeridian_goes_to_tiles(hub: Hub) -> None:
    across = hub.file("fiji.tif", width=700, height=300, crs="EPSG:4326", place=Affine(0.01, 0, 177, 0, -0.01, -16))
    job = await hub.run("raster_ingest", blob_name=across)
    large = await hub.run("raster_tiled_processing", blob_name=hub.file("large.tif"), tile_above_mb=1, tile_size=1024)

    assert (job["status"], job["error_message"]) == ("completed", None)
    collection = await hub.catalog.get_collection("fiji")
    west, _, east, _ = collection["extent"]["spatial"]["bbox"][0]
    assert west > east, "as GeoJSON says that it crosses"
    assert large["result_data"]["total_tiles"] > 1
    assert large["result_data"]["blob_path"] == "mosaics/large/v0/r1/mosaic.json"


@pytest.mark.requirement("R11")
async def test_many_files_become_one_dataset_and_can_be_registered_again(hub: Hub) -> None:
    places = [Affine(10, 0, 500_000 + 4000 * n, 0, -10, 5_300_000) for n in range(3)]
    names = [hub.file(f"part {n}.tif", width=500, height=400, place=place) for n, place in enumerate(places)]
    job = await hub.run("raster_collection", blob_names=names, dataset_id="parts")
    count = await hub.catalog.count_items("parts")
    await hub.running.rows("DELETE FROM pgstac.items WHERE collection = 'parts'")
    gone = await hub.catalog.count_items("parts")
    again = await hub.run("stac_register", dataset_id="parts")

    assert (job["status"], job["error_message"]) == ("completed", None)
    assert [path.name for path in hub.cogs("parts")] == ["part-0.tif", "part-1.tif", "part-2.tif"]
    assert (count, gone, await hub.catalog.count_items("parts")) == (3, 0, 3)
    assert again["result_data"] == {"stac_collection_id": "parts", "item_count": 3}
    with rasterio.open(hub.cogs("parts")[0]) as one, rasterio.open(hub.cogs("parts")[1]) as other:
        apart = (other.transform.c - one.transform.c) / one.transform.a
    assert apart == pytest.approx(round(apart), abs=1e-4), "they share a grid"
    mixed = await hub.run("raster_collection", blob_names=[names[0], hub.file("dem.tif", bands=1)])
    assert "differ in their bands" in mixed["error_message"]


@pytest.mark.requirement("C1")
async def test_a_new_revision_keeps_earlier_metadata_unless_it_is_given(hub: Hub) -> None:
    """Title, times, description, licence, refs and `created`;
    a new version keeps what is the dataset's, and not its time."""
    name = hub.file("scene.tif", width=600, height=500)
    told = {
        "title": "The valley",
        "description": "In July",
        "datetime": "2024-07",
        "license": "CC-BY-4.0",
        "version_label": "2024-Q3",
        "platform_refs": {"dataset_id": "d7"},
    }
    kept = ("title", "description", "start_datetime", "end_datetime", "license", "version", "platform:dataset_id")
    await hub.run("raster_ingest", blob_name=name, dataset_id="valley", **told)
    first = await hub.catalog.get_item("valley", "valley-v0")
    await hub.running.rows(
        """UPDATE pgstac.items SET content = jsonb_set(content, '{properties,created}', '"2025-01-02T03:04:05Z"')"""
    )
    again = {"blob_name": name, "dataset_id": "valley"}
    job = await hub.run("raster_ingest", revision=2, output_tier="archive", **again)
    second = await hub.catalog.get_item("valley", "valley-v0")
    await hub.run("raster_ingest", revision=3, title="The lake", datetime="2023", **again)
    third = await hub.catalog.get_item("valley", "valley-v0")
    await hub.run("raster_ingest", version_ordinal=1, **again)
    newer = await hub.catalog.get_item("valley", "valley-v1")
    collection = await hub.catalog.get_collection("valley")

    assert (job["status"], job["error_message"]) == ("completed", None)
    assert {name: second["properties"].get(name) for name in kept} == {name: first["properties"][name] for name in kept}
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
    assert newer["properties"]["dagmaster:datetime_basis"] == "publication"
    assert newer["properties"]["created"] > "2025-01-02T03:04:05Z"
    assert "platform:dataset_id" not in newer["properties"]
    assert (collection["title"], problems(collection), problems(second)) == ("The lake", [], [])


@pytest.mark.requirement("C2")
async def test_older_tiled_versions_stay_servable(hub: Hub) -> None:
    name = hub.file("scene.tif", width=1200, height=700)
    other = hub.file("later.tif", width=700, height=700, place=Affine(10, 0, 520_000, 0, -10, 5_300_000))
    tiles = {"dataset_id": "scene", "tile_size": 512, "overlap": 0}
    await hub.run("process_large_raster", blob_name=name, **tiles)
    before = await hub.catalog.get_collection("scene")
    await hub.run("process_large_raster", blob_name=other, version_ordinal=1, **tiles)
    both = await hub.catalog.get_collection("scene")
    await hub.run("process_large_raster", blob_name=name, revision=2, **{**tiles, "tile_size": 1024})
    revised = await hub.catalog.get_collection("scene")
    mosaics = {key: asset["href"].partition("/silver/silver/")[2] for key, asset in revised["assets"].items()}

    assert problems(both) == problems(revised) == []
    assert {key for key in both["assets"] if "mosaic" in key} == {"mosaic", "mosaic-v0"}
    assert both["assets"]["mosaic-v0"] == before["assets"]["mosaic"]
    assert both["assets"]["mosaic"]["dagmaster:version_ordinal"] == both["dagmaster:version_ordinal"] == 1
    assert both["renders"]["v0"] == {**before["renders"]["default"], "assets": ["mosaic-v0"]}
    assert mosaics["mosaic"] == "mosaics/scene/v1/r1/mosaic.json", "the newest version still speaks"
    assert mosaics["mosaic-v0"] == "mosaics/scene/v0/r2/mosaic.json"
    assert revised["dagmaster:version_ordinal"] == 1
    assert all(hub.silver(mosaics[key]).is_file() for key in ("mosaic", "mosaic-v0", "tiling_scheme-v0"))
    assert hub.silver("mosaics/scene/v0/r1/mosaic.json").is_file(), "published objects never change"
    assert both["created"] == before["created"]


IMPOSSIBLE: dict[str, tuple[dict[str, Any], str]] = {
    "tier": (
        {"output_tier": "visualization"},
        "output_tier=visualization is not possible: the visualization tier is JPEG",
    ),
    "no tier": ({"output_tier": "best"}, "output_tier=best is not possible: no tier 'best'"),
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
    "ref": ({"platform_refs": {"Data Set": "x"}}, "'Data Set' cannot be a ref's name"),
    "name": ({"dataset_id": "No Name"}, "is not a valid dataset id"),
    "two": ({"output_tier": "best", "tile_size": 7}, "tile_size=7 is not possible"),
}


@pytest.mark.requirement("R6")
async def test_impossible_options_are_refused_by_the_first_step_and_nothing_is_written(hub: Hub) -> None:
    name = hub.file("dem.tif", width=300, height=200, bands=1, dtype="float32")
    for wrong, message in IMPOSSIBLE.values():
        job = await hub.run("process_large_raster", blob_name=name, **wrong)
        (task,) = await hub.running.tasks(job["job_id"])

        assert (job["status"], task["node_id"], task["attempt"]) == ("failed", "validate", 1), wrong
        assert message in job["error_message"]
    assert not hub.silver().exists() or not [path for path in hub.silver().rglob("*") if path.is_file()]
    assert "output_tier=best" in job["error_message"], "every reason is told"


@pytest.mark.requirement("R6")
async def test_an_edition_is_made_in_one_way_and_revisions_go_up(hub: Hub) -> None:
    name = hub.file("scene.tif", width=300, height=200)
    await hub.run("raster_ingest", blob_name=name)
    other = await hub.run("raster_ingest", blob_name=name, output_tier="archive")
    renamed = await hub.run("raster_ingest", blob_name=name, title="A better name")
    await hub.run("raster_ingest", blob_name=name, output_tier="archive", revision=2)
    back = await hub.run("raster_ingest", blob_name=name, title="Another name")

    assert (
        "revision 1 of version 0 of dataset 'scene' was made with other options: output_tier was analysis, not archive"
        in (other["error_message"])
    )
    assert [task["node_id"] for task in await hub.running.tasks(other["job_id"])] == ["validate"]
    assert renamed["status"] == "completed", "what it is called is no part of how it is made"
    assert "the catalogue already has revision 2 of version 0 of dataset 'scene'" in back["error_message"]


@pytest.mark.requirement("R4")
async def test_polar_data_is_warned_about_the_cost_of_degrees(hub: Hub) -> None:
    name = hub.file(
        "ice.tif", width=300, height=300, crs="EPSG:3413", place=Affine(1000, 0, -150_000, 0, -1000, 150_000)
    )
    job = await hub.run("raster_ingest", blob_name=name, target_crs="EPSG:3413")
    lossy = await hub.run("raster_ingest", blob_name=name, dataset_id="degrees")
    kept, told = [
        {
            finding["code"]: finding
            for finding in (await hub.running.nodes(one["job_id"]))["validate"]["output"]["findings"]
        }
        for one in (job, lossy)
    ]

    assert "raster.polar" not in kept
    assert "raster.beyond-maps" in kept
    assert told["raster.polar"]["severity"] == "warn"
    assert "in EPSG:4326 its pixels are" in told["raster.polar"]["message"]
    assert "target_crs=EPSG:3413" in told["raster.polar"]["advice"]
