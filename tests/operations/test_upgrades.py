"""An upgrade from a release without assets: which datasets are adopted, with which labels, and which are not."""

import asyncio
import json
import subprocess
from pathlib import Path

import psycopg
import pytest
from fastapi.testclient import TestClient
from morecantile import tms

from dagmaster.operations.assets.adopt import Adoption
from dagmaster.operations.schema import adopt_all, deploy_schema, migrate_schema
from dagmaster.serving.app import create_app
from dagmaster.settings import Settings
from dagmaster.storage import open_storage
from tests.cli.processes import call
from tests.engine.test_raster_jobs import scene
from tests.operations.kit import Kit, collection, item
from tests.operations.test_adoption import adopted, as_stored_before, published

pytestmark = pytest.mark.requirement("A2", "A3")

ROOT = Path(__file__).parents[2]
BEFORE = "7add226"  # the last release without assets
GRID = tms.get("WebMercatorQuad")


async def published_with_labels(kit: Kit, *labels: str) -> None:
    """A dataset of an earlier release with a version for each label."""
    newest = collection("dem", len(labels) - 1, 1, is_tiled=False)
    await kit.execute("SELECT pgstac.create_collection(%s::jsonb)", as_stored_before(newest))
    for ordinal, label in enumerate(labels):
        document = item("dem", ordinal, 1)
        document["properties"]["version"] = label
        await kit.execute("SELECT pgstac.create_item(%s::jsonb)", as_stored_before(document))


@pytest.mark.parametrize(
    ("labels", "adopted_labels"),
    [
        (("2023", "2024"), ["2023", "2024"]),
        (("2023", "2023"), ["0", "1"]),
        (("1", "2024"), ["0", "2024"]),  # "1" is the label that version 1 would get if it had none
    ],
    ids=["unique", "not unique", "like an ordinal"],
)
async def test_adopted_versions_keep_their_labels_if_they_are_unique(
    kit: Kit, labels: tuple[str, ...], adopted_labels: list[str]
):
    await published_with_labels(kit, *labels)

    await adopted(kit)

    asset = await kit.store.asset("dem")
    assert [version.version_label for version in asset.versions] == adopted_labels
    assert [version.platform_refs["version"] for version in asset.versions] == adopted_labels
    again = await kit.submit("dem", content=b"new pixels", version_label=adopted_labels[0])
    assert (again.outcome, again.version_ordinal, again.revision) == ("new_revision", 0, 2)


async def test_collections_that_cannot_be_adopted_are_reported(kit: Kit):
    await published(kit, "good")
    without_revision = item("bad", 0, 1)
    del without_revision["properties"]["dagmaster:revision"]
    await kit.execute(
        "SELECT pgstac.create_collection(%s::jsonb)", as_stored_before(collection("bad", 0, 1, is_tiled=False))
    )
    await kit.execute("SELECT pgstac.create_item(%s::jsonb)", as_stored_before(without_revision))
    other = collection("other", 0, 1, is_tiled=False)
    del other["dagmaster:version_ordinal"]
    await kit.execute("SELECT pgstac.create_collection(%s::jsonb)", json.dumps(other))

    migrated = await asyncio.to_thread(call, "db", "migrate", DATABASE_URL=kit.dsn)

    assert migrated.returncode == 0, migrated.stderr
    assert "adopted dataset good" in migrated.stdout
    assert "warning: collection bad is not served: none of its items has a version" in migrated.stdout
    assert "warning: collection other is not served: dagmaster did not write it" in migrated.stdout
    assert "good is not served" not in migrated.stdout


async def test_a_deployment_also_adopts_datasets(kit: Kit):
    await published(kit)

    await asyncio.to_thread(deploy_schema, kit.dsn, has_catalog=True)

    assert (await kit.store.asset("dem")).latest_approved_version_ordinal == 0


def test_without_a_catalogue_there_is_nothing_to_adopt(database: str):
    deploy_schema(database, has_catalog=False)

    assert adopt_all(database) == Adoption([], [])
    assert migrate_schema(database).warnings == []


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """The source code of the last release without assets."""
    archive = subprocess.run(["git", "archive", BEFORE, "src"], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"a shallow clone: it does not have {BEFORE}")
    folder = tmp_path / "before"
    folder.mkdir()
    subprocess.run(["tar", "x", "-C", folder], input=archive.stdout, check=True)
    return folder / "src"


@pytest.mark.timeout(120)
def test_a_dataset_of_the_previous_release_is_still_served_and_can_be_processed_again(
    empty_database: str, before: Path, tmp_path: Path
):
    file = scene(tmp_path / "valley.tif", 512, 512)
    settings = {"DATABASE_URL": empty_database, "DAGMASTER_DATA": str(tmp_path / "data")}
    settings["STORAGE_FOLDER"] = str(tmp_path / "storage")
    earlier = call("process", str(file), "--dataset", "valley", PYTHONPATH=str(before), **settings)
    assert earlier.returncode == 0, earlier.stderr

    migrated = call("db", "migrate", **settings)
    statuses = served(empty_database, tmp_path / "storage")
    again = call("process", str(file), "--dataset", "valley", "--tier", "archive", "--start", **settings)

    assert migrated.returncode == 0, migrated.stderr
    assert "adopted dataset valley" in migrated.stdout
    assert statuses == {"TileJSON": 200, "tile": 200, "items": 200, "item": 200, "file": 200}
    assert again.returncode == 0, again.stderr
    with psycopg.connect(empty_database) as connection:
        query = "SELECT dataset_id, v.version_ordinal, v.revision, v.approved_revision FROM dagapp.geospatial_assets"
        rows = connection.execute(f"{query} JOIN dagapp.asset_versions AS v USING (asset_id)").fetchall()
    assert rows == [("valley", 0, 2, 2)]


def served(dsn: str, storage: Path) -> dict[str, int]:
    """The status of each kind of request for the dataset."""
    app = create_app(Settings(), dsn, storage=open_storage(Settings(storage_folder=storage)))
    with TestClient(app, base_url="http://localhost:8123") as client:
        tiles = client.get("/tiles/valley/WebMercatorQuad/tilejson.json")
        west, south, east, north = tiles.json()["bounds"]
        tile = GRID.tile((west + east) / 2, (south + north) / 2, tiles.json()["maxzoom"])
        items = client.get("/stac/collections/valley/items")
        (document,) = items.json()["features"]
        responses = {
            "TileJSON": tiles,
            "tile": client.get(f"/tiles/valley/tiles/WebMercatorQuad/{tile.z}/{tile.x}/{tile.y}.png"),
            "items": items,
            "item": client.get(f"/stac/collections/valley/items/{document['id']}"),
            "file": client.get(document["assets"]["data"]["href"]),
        }
    return {name: response.status_code for name, response in responses.items()}
