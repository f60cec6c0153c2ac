"""Copies in the external zone, which real jobs of a real worker make and remove."""

import hashlib
import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pystac
import pytest
from fastapi.testclient import TestClient
from rio_cogeo.cogeo import cog_validate

from dagmaster.assets.states import Clearance
from dagmaster.client.models.assets import ExternalCopiesInfo
from dagmaster.database.assets.external_copies import PostgresExternalCopies
from dagmaster.database.notify.notifier import JOBS
from dagmaster.operations.assets.approve import approve
from dagmaster.operations.assets.clear import clear
from dagmaster.operations.assets.export import export_again
from dagmaster.operations.assets.unpublish import unpublish
from dagmaster.operations.rerun import resume
from dagmaster.orchestrator.external_copies import ExternalCopyChore
from dagmaster.serving.app import create_app
from dagmaster.settings import Settings
from tests.engine.test_raster_jobs import Hub, hub
from tests.published import ADMIN

__all__ = ["hub"]

pytestmark = [pytest.mark.requirement("A5", "S1", "S4", "W10"), pytest.mark.timeout(180)]


class External:
    """The external zone of a hub, and the chore that keeps it up to date."""

    def __init__(self, hub: Hub, chore: ExternalCopyChore) -> None:
        self.hub, self.chore = hub, chore

    @property
    def folder(self) -> Path:
        return self.hub.folder / "external" / "external"

    def files(self) -> dict[str, str]:
        """The hash of every object, by its name."""
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        return {str(path.relative_to(self.folder)): sha256(path) for path in files}

    async def state(self, dataset: str, ordinal: int = 0, revision: int = 1) -> ExternalCopiesInfo:
        asset = await self.hub.publisher.store.asset(dataset)
        return next(each.external for each in asset.versions[ordinal].revisions if each.revision == revision)

    async def settle(self, dataset: str) -> dict[str, Any]:
        """Start the job that is due, and wait for its end."""
        await self.chore.run_once()
        self.hub.running.notifier.notify(JOBS)
        asset = await self.hub.publisher.store.asset(dataset)
        (job_id,) = [
            each.external.job_id
            for version in asset.versions
            for each in version.revisions
            if each.external.state in ("running", "withdrawing")
        ]
        return await self.hub.running.wait(job_id, 60)

    async def actions(self, dataset: str) -> list[str]:
        asset = await self.hub.publisher.store.asset(dataset)
        return [each.action for each in reversed(await self.hub.publisher.store.history(asset.asset_id, limit=50))]


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
async def external(hub: Hub) -> AsyncIterator[External]:
    store = PostgresExternalCopies(hub.running.dsn)
    yield External(hub, ExternalCopyChore(Settings(), store, hub.running.library))
    await store.close()


async def small(hub: Hub, dataset: str, clearance: str | None = "public") -> None:
    submitted = await hub.review(dataset, hub.file(f"{dataset}.tif", width=300, height=260, bands=1))
    if clearance:
        await hub.publisher.approve(submitted, clearance)


async def test_a_public_dataset_is_copied_verified_and_withdrawn(hub: Hub, external: External, capfd) -> None:
    submitted = await hub.publisher.submit(
        "scene", hub.file("scene.tif", bands=1), "process_large_raster", tile_size=1024, overlap=512
    )
    await hub._wait_for(submitted.job_id)
    await hub.publisher.approve(submitted, "ouo")
    assert (await external.state("scene")).state == "none"
    before = {path: sha256(path) for path in hub.silver().rglob("*") if path.is_file()}

    # Public after the approval: the export is due from then on.
    store = hub.publisher.store
    await clear(store, "scene", Clearance.PUBLIC, caller=ADMIN)
    assert (await external.state("scene")).state == "due"
    job = await external.settle("scene")

    assert (job["status"], job["error_message"]) == ("completed", None)
    result, state = job["result_data"], await external.state("scene")
    assert (state.state, state.error, state.job_id) == ("exported", None, job["job_id"])
    assert state.blob_path == "external/mosaics/scene/v0/r1/mosaic.json"
    assert result["external_url"] == "https://maps.example.org/files/external/" + state.blob_path
    copies = sorted((external.folder / "cogs/scene/v0/r1").glob("*.tif"))
    assert [(path.name, sha256(path)) for path in copies] == [(path.name, sha256(path)) for path in hub.cogs("scene")]
    assert len(copies) >= 3
    assert all(cog_validate(path, strict=True, quiet=True)[0] for path in copies)
    completed = subprocess.run(["gdalinfo", "-json", copies[0]], check=True, capture_output=True, text=True)
    assert json.loads(completed.stdout)["driverShortName"] == "GTiff"

    # The manifest names every object with its size and checksum.
    manifest = json.loads((external.folder / "manifests/scene/v0/r1/manifest.json").read_bytes())
    files = external.files()
    assert {each["blob"]: each["sha256"] for each in manifest["objects"]} == {
        blob: digest for blob, digest in files.items() if not blob.startswith("manifests/")
    }
    assert all((external.folder / each["blob"]).stat().st_size == each["size_bytes"] for each in manifest["objects"])
    assert (result["object_count"], len(files)) == (len(manifest["objects"]), len(manifest["objects"]) + 1)

    # The catalogue is static: it is read from the files alone.
    collection = pystac.Collection.from_file(str(external.folder / "stac/scene/v0/r1/collection.json"))
    items = list(collection.get_items())
    assert len(items) == len(copies)
    for item in items:
        assert Path(item.assets["data"].get_absolute_href()).resolve() in copies
    text = "".join((external.folder / blob).read_text() for blob in files if blob.startswith("stac/"))
    assert "/files/silver" not in text
    assert str(hub.folder) not in text
    assert "https://maps.example.org/tiles/" in text

    # After the withdrawal the external zone is empty, and the processed data is kept.
    await clear(store, "scene", Clearance.OUO, caller=ADMIN)
    assert (await external.state("scene")).state == "withdrawing"
    job = await external.settle("scene")

    assert (job["status"], job["result_data"]) == ("completed", {"object_count": len(files)})
    assert external.files() == {}
    assert [path for path in (hub.folder / "external").rglob("*") if path.is_file()] == [], "no hidden files either"
    state = await external.state("scene")
    assert (state.state, state.blob_path, state.withdrawn_at is not None) == ("withdrawn", None, True)
    assert {path: sha256(path) for path in hub.silver().rglob("*") if path.is_file()} == before
    assert (await external.actions("scene"))[-4:] == ["cleared", "exported", "cleared", "withdrawn"]
    assert await hub.running.rows("SELECT 1 FROM dagapp.asset_revisions WHERE outputs ? 'external_blob_path'") == []


async def test_a_damaged_copy_is_repaired_and_a_damaged_source_is_refused(hub: Hub, external: External) -> None:
    await small(hub, "dem")
    assert (await external.settle("dem"))["status"] == "completed"
    files = external.files()
    (copy,) = (external.folder / "cogs/dem/v0/r1").glob("*.tif")
    others = {path: path.stat().st_mtime_ns for path in external.folder.rglob("*.json")}
    assert others

    content = bytearray(copy.read_bytes())
    content[len(content) // 2] ^= 1  # the same size
    copy.write_bytes(content)
    await export_again(hub.publisher.store, "dem", 0, caller=ADMIN, reason="a user says that it is damaged")
    assert (await external.state("dem")).state == "due"
    assert (await external.settle("dem"))["status"] == "completed"
    assert external.files() == files

    (source,) = hub.cogs("dem")
    source.write_bytes(content)
    copy.unlink()
    await export_again(hub.publisher.store, "dem", 0, caller=ADMIN)
    job = await external.settle("dem")
    state = await external.state("dem")
    assert job["status"] == "failed"
    assert (state.state, "differs from the checksum" in str(state.error)) == ("failed", True)
    assert not copy.exists(), "a damaged object does not stay in the external zone"
    assert not await external.chore.run_once()
    assert (await external.state("dem")).job_id == job["job_id"], "a failed export waits for an operator"

    # The operator repairs the source, and resumes the job.
    content[len(content) // 2] ^= 1
    source.write_bytes(content)
    await resume(hub.running.ledger, job["job_id"], by="ada", reason="the source was repaired")
    hub.running.notifier.notify(JOBS)
    await hub.running.wait(job["job_id"], 60)
    assert (await external.state("dem")).state == "exported"
    assert external.files() == files
    actions = await external.actions("dem")
    assert actions[-3:] == ["export_requested", "export_failed", "exported"]


async def test_a_job_that_a_user_submits_exports_only_approved_and_public_versions(
    hub: Hub, external: External
) -> None:
    await small(hub, "dem", clearance=None)
    store = hub.publisher.store

    async def fails(workflow: str, **inputs: Any) -> str:
        job = await hub.run(workflow, asset_id="dem", version_ordinal=0, **inputs)
        assert job["status"] == "failed"
        return str(job["error_message"])

    assert "it is not approved" in await fails("adf_export")
    assert "has no version 7" in str(
        (await hub.run("external_export", asset_id="dem", version_ordinal=7))["error_message"]
    )
    await approve(store, "dem", 0, caller=ADMIN, clearance=Clearance.OUO)
    assert "its clearance is 'ouo'" in await fails("external_export")
    assert external.files() == {}
    assert (await external.state("dem")).state == "none", "the failed jobs do not belong to the revision"

    await clear(store, "dem", Clearance.PUBLIC, caller=ADMIN)
    assert "blob_path does not match" in await fails("external_export", blob_path="cogs/another.tif")
    assert "is published, so its external copies are not removed" in await fails("unpublish")
    job = await hub.run("adf_export", asset_id="dem", version_ordinal=0)
    assert job["status"] == "completed", job["error_message"]
    state = await external.state("dem")
    assert (state.state, state.job_id) == ("exported", job["job_id"])
    await external.chore.run_once()
    assert (await external.state("dem")).job_id == job["job_id"], "no export is due any more"

    await unpublish(store, "dem", 0, caller=ADMIN)
    assert (await hub.run("unpublish", asset_id="dem", version_ordinal=0))["status"] == "completed"
    assert ((await external.state("dem")).state, external.files()) == ("withdrawn", {})


async def test_the_map_server_serves_the_copies_as_long_as_they_are_public(hub: Hub, external: External) -> None:
    await small(hub, "dem")
    await external.settle("dem")
    (copy,) = (external.folder / "cogs/dem/v0/r1").glob("*.tif")
    paths = [f"cogs/dem/v0/r1/{copy.name}", "stac/dem/v0/r1/collection.json", "manifests/dem/v0/r1/manifest.json"]
    settings = Settings(storage_folder=hub.folder, AUTH_ENABLED=True)
    with TestClient(create_app(settings, hub.running.dsn)) as anyone:
        for path in paths:
            assert anyone.get(f"/files/external/external/{path}").content == (external.folder / path).read_bytes()
        assert anyone.get(f"/files/external/silver/{paths[0]}").status_code == 404

        await clear(hub.publisher.store, "dem", Clearance.OUO, caller=ADMIN)

        assert copy.exists()
        assert {anyone.get(f"/files/external/external/{path}").status_code for path in paths} == {404}
