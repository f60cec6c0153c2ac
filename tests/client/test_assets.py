"""The methods of the Python client about assets, against the real API and a real database."""

import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dagmaster.client import AsyncClient, Conflict, InvalidRequest, NotFound
from dagmaster.client.assets import Assets, AsyncAssets
from dagmaster.client.blocking import blocking, iterating
from dagmaster.client.json_assets import AssetRequests, AsyncAssetRequests
from tests.api.serving import app_of, served
from tests.operations.kit import Kit, opened

FLOODS = {"dataset_id": "floods", "resource_id": "r1", "version_id": "2024"}


@asynccontextmanager
async def platform(dsn: str, folder: Path) -> AsyncIterator[tuple[AsyncClient, Kit]]:
    app = app_of(dsn, STORAGE_FOLDER=str(folder))
    async with opened(dsn, folder) as kit, served(app) as server, AsyncClient(server.url) as client:
        kit.put("floods.tif", b"pixels")
        yield client, kit


@pytest.mark.requirement("O1")
async def test_data_is_submitted_reviewed_and_withdrawn(catalog_database, tmp_path):
    async with platform(catalog_database, tmp_path) as (client, kit):
        dry_run = await client.submit_asset("ddh", FLOODS, blob="floods.tif", dry_run=True)
        submission = await client.submit_asset("ddh", FLOODS, blob="floods.tif", request_id="order-1")
        again = await client.submit_asset("ddh", FLOODS, blob="floods.tif", request_id="order-1")
        received = await client.submission("order-1")
        await kit.process(submission)
        waiting = [asset.dataset_id async for asset in client.assets(to_review=True, refs={"resource_id": "r1"})]
        rejected = await client.reject(submission.asset_id, 0, "shifted")
        approved = await client.approve("floods-r1", 0, clearance="ouo", revision=1, reason="not shifted")
        cleared = await client.clear("floods-r1", "public", etag=approved.etag)
        exposed = await client.expose("floods-r1", "all-versions")
        unpublished = await client.unpublish("floods-r1", 0)
        deleted = await client.delete_asset("floods-r1", reason="a test")
        history = [event.action async for event in client.asset_history("floods-r1")]
        left = [asset async for asset in client.assets(text="floods")]

    assert (dry_run.is_dry_run, dry_run.outcome, dry_run.job_id) == (True, "new_asset", None)
    assert (submission.outcome, submission.version_label, again) == ("new_asset", "2024", submission)
    assert (received.status, waiting) == ("received", ["floods-r1"])
    assert rejected.versions[0].rejection_reason == "shifted"
    assert (approved.clearance_state, approved.versions[0].is_served) == ("ouo", True)
    assert (cleared.clearance_state, exposed.exposure) == ("public", "all-versions")
    assert not unpublished.versions[0].is_served
    assert deleted.deleted_at is not None
    assert history[:6] == ["deleted", "unpublished", "exposed", "cleared", "approved", "rejected"]
    assert left == []


@pytest.mark.requirement("O1")
async def test_a_stale_change_is_a_conflict_that_contains_the_changes(catalog_database, tmp_path):
    async with platform(catalog_database, tmp_path) as (client, kit):
        submission = await client.submit_asset("ddh", FLOODS, blob="floods.tif")
        seen = await client.asset(submission.asset_id)
        await kit.process(submission)
        with pytest.raises(Conflict) as refused:
            await client.approve(submission.asset_id, 0, clearance="ouo", etag=seen.etag)

    assert (refused.value.code, refused.value.status) == ("asset.changed", 412)
    assert [event["action"] for event in refused.value.facts["events"]] == ["processed"]


@pytest.mark.requirement("A1")
async def test_platforms_are_listed_added_and_deactivated(catalog_database, tmp_path):
    async with platform(catalog_database, tmp_path) as (client, _):
        added = await client.add_platform("mine", "Mine survey", ["site", "edition"], version_ref="edition")
        closed = await client.change_platform("mine", is_active=False, reason="moved")
        names = [each.platform_id for each in await client.platforms()]
        shown = await client.platform("mine")
        with pytest.raises(NotFound, match="unknown"):
            await client.platform("unknown")
        with pytest.raises(InvalidRequest, match="'uuid' is missing"):
            await client.submit_asset("geonode", {"site": "x"}, blob="floods.tif")

    assert (added.is_active, closed.is_active, closed.display_name) == (True, False, "Mine survey")
    assert names == ["arcgis", "ddh", "geonode", "legacy", "local", "mine"]
    assert shown == closed


@pytest.mark.parametrize(("both", "one"), [(AsyncAssets, Assets), (AsyncAssetRequests, AssetRequests)])
def test_the_blocking_client_has_the_same_methods(both, one):
    asynchronous = {name for name, _ in inspect.getmembers(both, inspect.isfunction) if name[0] != "_"}
    declared = {name for name, value in vars(one).items() if isinstance(value, blocking | iterating)}

    assert declared == asynchronous
