"""Data that is no longer needed is purged, but never served data; reviewers are notified; old history is deleted."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dagmaster import faults
from dagmaster.assets.states import Clearance
from dagmaster.database.assets.adopt import AdoptedAssets
from dagmaster.database.maintenance.assets import PostgresAssetUpkeep
from dagmaster.errors import Conflict, Unavailable
from dagmaster.operations.assets.approve import approve
from dagmaster.operations.assets.delete import delete
from dagmaster.operations.assets.reject import reject
from dagmaster.operations.assets.unpublish import unpublish
from dagmaster.orchestrator.asset_upkeep import AssetUpkeep
from dagmaster.settings import Settings
from dagmaster.storage import Zone
from dagmaster.storage.location import Edition
from tests.operations.kit import BOB, Kit

pytestmark = pytest.mark.requirement("A3", "A5")

URL = "https://hooks.example.org/reviews"


@pytest.fixture
async def upkeep(kit: Kit) -> AsyncIterator[AssetUpkeep]:
    settings = Settings(purge_days=30, audit_retention_days=365, REVIEW_WEBHOOK_URL=URL)
    chore = AssetUpkeep(settings, PostgresAssetUpkeep(kit.dsn), kit.storage, AdoptedAssets(kit.dsn))
    yield chore
    await chore.close()


async def submitted(kit: Kit, **options: Any) -> Any:
    """Submit and process a dataset, with objects of its revision in storage."""
    result = await kit.submit("dem", **options)
    await kit.process(result)
    edition = Edition("dem", result.version_ordinal, result.revision)
    for blob in (edition.cog("x.tif"), edition.mosaic(), edition.recipe()):
        kit.storage.put(kit.storage.location(blob, zone=Zone.SILVER), b"pixels")
    return result


def objects(kit: Kit, ordinal: int, revision: int) -> int:
    blobs = (Edition("dem", ordinal, revision).cog("x.tif"), Edition("dem", ordinal, revision).mosaic())
    return sum(kit.storage.exists(kit.storage.location(blob, zone=Zone.SILVER)) for blob in blobs)


async def age(kit: Kit, days: int) -> None:
    """Move all recorded times into the past by this much."""
    for table, columns in {
        "asset_revisions": ("created_at", "processed_at", "reviewed_at"),
        "asset_versions": ("reviewed_at", "deleted_at"),
        "geospatial_assets": ("deleted_at",),
        "asset_events": ("created_at",),
    }.items():
        changes = ", ".join(f"{column} = {column} - interval '{days} days'" for column in columns)
        await kit.execute(f"ALTER TABLE dagapp.{table} DISABLE TRIGGER ALL")  # triggers forbid changes of the history
        await kit.execute(f"UPDATE dagapp.{table} SET {changes}")
        await kit.execute(f"ALTER TABLE dagapp.{table} ENABLE TRIGGER ALL")


async def kept(kit: Kit) -> set[tuple[int, int]]:
    rows = await kit.rows("SELECT version_ordinal, revision FROM dagapp.asset_revisions WHERE purged_at IS NULL")
    return {(row["version_ordinal"], row["revision"]) for row in rows}


async def test_a_superseded_revision_is_purged_after_its_retention_time_and_a_served_one_never(
    kit: Kit, upkeep: AssetUpkeep
):
    await submitted(kit)
    await approve(kit.store, "dem", 0, caller=BOB, clearance=Clearance.OUO)
    await submitted(kit, content=b"second")
    await age(kit, 60)

    await upkeep.purge()  # revision 1 is served, although there is a newer one and all times are in the past
    assert (await kept(kit), objects(kit, 0, 1)) == ({(0, 1), (0, 2)}, 2)

    await approve(kit.store, "dem", 0, caller=BOB)
    await upkeep.purge()  # superseded just now
    assert await kept(kit) == {(0, 1), (0, 2)}

    await age(kit, 29)
    await upkeep.purge()
    assert await kept(kit) == {(0, 1), (0, 2)}

    await age(kit, 2)
    await upkeep.purge()
    assert await kept(kit) == {(0, 2)}
    assert (objects(kit, 0, 1), objects(kit, 0, 2)) == (0, 2)
    documents = await kit.rows("SELECT DISTINCT revision FROM dagapp.stac_documents")
    assert [row["revision"] for row in documents] == [2]
    assert await kit.items() == {"dem-v0": (0, 2)}
    newest, *_ = await kit.store.history((await kit.store.asset("dem")).asset_id, limit=1)
    assert (newest.action, newest.revision, newest.actor, newest.detail) == ("purged", 1, "dagmaster", {"objects": 3})


async def test_a_rejected_version_is_purged_and_cannot_be_approved_afterwards(kit: Kit, upkeep: AssetUpkeep):
    await submitted(kit)
    await reject(kit.store, "dem", 0, caller=BOB, reason="blurred")
    await age(kit, 31)

    await upkeep.purge()

    assert await kept(kit) == set()
    with pytest.raises(Conflict) as refused:
        await approve(kit.store, "dem", 0, caller=BOB, clearance=Clearance.OUO)
    assert refused.value.code == "version.purged"
    again = await submitted(kit, content=b"sharper")
    await approve(kit.store, "dem", 0, caller=BOB, clearance=Clearance.OUO)
    assert (again.revision, await kit.items()) == (2, {"dem-v0": (0, 2)})


async def test_a_deleted_version_is_purged_and_an_unpublished_or_unreviewed_one_is_not(kit: Kit, upkeep: AssetUpkeep):
    for label in ("a", "b", "c"):
        await submitted(kit, version_label=label, content=label.encode())
        if label != "c":
            await approve(kit.store, "dem", "abc".index(label), caller=BOB, clearance=Clearance.OUO)
    await delete(kit.store, "dem", 0, caller=BOB, reason="obsolete")
    await unpublish(kit.store, "dem", 1, caller=BOB, reason="recalled")
    await age(kit, 31)

    await upkeep.purge()

    assert await kept(kit) == {(1, 1), (2, 1)}


async def test_the_collection_of_a_deleted_asset_is_removed_with_its_last_revision_and_can_be_created_again(
    kit: Kit, upkeep: AssetUpkeep
):
    async def run_once() -> None:
        assert await upkeep.purge()
        assert await upkeep.remove_collections()

    await submitted(kit)
    await approve(kit.store, "dem", 0, caller=BOB, clearance=Clearance.OUO)
    await delete(kit.store, "dem", caller=BOB, reason="obsolete")
    await run_once()
    before = await kit.collection()

    await age(kit, 31)
    await run_once()

    assert before is not None, "the data is kept until its retention time is over"
    assert await kit.collection() is None
    await run_once()
    await kit.publish("dem", content=b"again", version_label="again", clearance="ouo")
    await run_once()
    assert (await kit.collection())["id"] == "dem"


async def test_a_deleted_asset_is_purged_with_all_its_versions(kit: Kit, upkeep: AssetUpkeep):
    await submitted(kit)
    await approve(kit.store, "dem", 0, caller=BOB, clearance=Clearance.PUBLIC)
    await delete(kit.store, "dem", caller=BOB, reason="obsolete")
    await kit.execute("UPDATE dagapp.asset_revisions SET export_due_at = NULL, withdrawal_due_at = NULL")
    await age(kit, 31)

    await upkeep.purge()

    assert (await kept(kit), objects(kit, 0, 1)) == (set(), 0)


@pytest.mark.parametrize("point", faults.around("asset_upkeep"))
@pytest.mark.parametrize("visit", [1, 2])
async def test_a_purge_that_dies_is_finished_by_the_next_one(kit: Kit, upkeep: AssetUpkeep, point: str, visit: int):
    await submitted(kit)
    await reject(kit.store, "dem", 0, caller=BOB, reason="blurred")
    await age(kit, 31)

    code = _dying(kit, f"{point}:{visit}")
    await upkeep.purge()

    assert code == 137
    assert (await kept(kit), objects(kit, 0, 1)) == (set(), 0)
    events = await kit.rows("SELECT 1 FROM dagapp.asset_events WHERE action = 'purged'")
    assert len(events) == 1


def _dying(kit: Kit, point: str) -> int:
    """The exit code of a process that purges, and dies at the point."""
    program = f"""
import asyncio
from dagmaster import faults
from dagmaster.orchestrator.asset_upkeep import upkeep_of
from dagmaster.settings import Settings
settings = Settings(purge_days=30, storage_folder={str(_folder(kit))!r})
faults.arm({point!r})
asyncio.run(upkeep_of(settings, {kit.dsn!r}).purge())
"""
    return subprocess.run([sys.executable, "-c", program], check=False, env=dict(os.environ)).returncode


def _folder(kit: Kit) -> str:
    """The storage folder of the kit."""
    blob = kit.storage.location("anything", zone=Zone.SILVER)
    return kit.storage.gdal_path(blob).split("/silver/")[0]


async def test_reviewers_are_notified_once_of_each_version_to_review(kit: Kit, upkeep: AssetUpkeep):
    posts: list[Any] = []

    async def post(url: str, content: Any, *, allow_private: bool) -> None:
        assert (url, allow_private) == (URL, False)
        posts.append(content)

    upkeep.post = post
    await submitted(kit)

    await upkeep.notify_reviewers()
    await upkeep.notify_reviewers()
    await submitted(kit, content=b"second")
    await upkeep.notify_reviewers()

    assert [content["event"] for content in posts] == ["review.requested"] * 2
    announced = [(version["dataset_id"], version["revision"]) for post in posts for version in post["versions"]]
    assert announced == [("dem", 1), ("dem", 2)]


async def test_a_webhook_that_does_not_respond_is_called_again(kit: Kit, upkeep: AssetUpkeep):
    responses = [False, True]
    posts: list[Any] = []

    async def post(_url: str, content: Any, **_options: Any) -> None:
        posts.append(content)
        if not responses.pop(0):
            raise Unavailable("no answer")

    upkeep.post = post
    await submitted(kit)

    assert await upkeep.run_once()
    assert upkeep.errors == 1
    await upkeep.run_once()

    assert len(posts) == 2
    assert posts[0] == posts[1]


async def test_reviewers_are_not_notified_of_a_revision_that_is_already_superseded_or_reviewed(
    kit: Kit, upkeep: AssetUpkeep
):
    posts: list[Any] = []

    async def post(_url: str, content: Any, **_options: Any) -> None:
        posts.append(content)

    upkeep.post = post
    await submitted(kit)
    await submitted(kit, content=b"second")
    await reject(kit.store, "dem", 0, caller=BOB, reason="blurred")

    await upkeep.notify_reviewers()

    assert posts == []


async def test_old_history_is_deleted_after_its_own_retention_and_the_etag_stays_the_same(
    kit: Kit, upkeep: AssetUpkeep
):
    await kit.publish("dem")
    before = await kit.store.asset("dem")
    await age(kit, 366)

    await upkeep.forget_events()

    after = await kit.store.asset("dem")
    assert after.etag == before.etag
    assert len(await kit.store.history(after.asset_id, limit=10)) == 1
