"""Submissions and reviews on a real database: the stored rows, the history, and the catalogue."""

import pytest

from dagmaster.assets.states import Clearance, Exposure
from dagmaster.errors import Conflict, InvalidRequest, NotFound
from dagmaster.operations.assets.approve import approve
from dagmaster.operations.assets.clear import clear
from dagmaster.operations.assets.delete import delete
from dagmaster.operations.assets.expose import expose
from dagmaster.operations.assets.reject import reject
from dagmaster.operations.assets.unpublish import unpublish
from tests.operations.kit import ADA, BOB, Kit

pytestmark = pytest.mark.requirement("A3", "A4", "A5")


async def test_a_submission_creates_asset_version_revision_request_and_job(kit: Kit):
    submitted = await kit.submit("dem", request_id="r-1")

    asset = await kit.store.asset("dem")
    (job,) = await kit.rows("SELECT * FROM dagapp.dag_jobs")
    assert submitted.outcome == "new_asset"
    assert (asset.asset_id, asset.dataset_id, asset.clearance_state) == (submitted.asset_id, "dem", "uncleared")
    assert [(v.version_ordinal, v.version_label, v.revision, v.processing_state) for v in asset.versions] == [
        (0, "0", 1, "queued")
    ]
    assert asset.versions[0].current_job_id == submitted.job_id == job["job_id"]
    assert (job["asset_id"], job["version_ordinal"], job["correlation_id"]) == (submitted.asset_id, 0, "r-1")
    assert job["submitted_by"] == "ada"
    assert job["input_params"]["dataset_id"] == "dem"
    assert job["input_params"]["revision"] == 1
    assert (await kit.store.submission("r-1")).status == "received"
    (event,) = await kit.store.history(asset.asset_id, limit=10)
    assert (event.action, event.actor, event.request_id) == ("submitted", "ada", "r-1")
    assert asset.etag == str(event.event_id)


async def test_a_version_is_in_the_catalogue_only_after_its_approval(kit: Kit):
    submitted = await kit.submit("dem")
    await kit.process(submitted)
    assert await kit.collection() is None

    asset = await approve(kit.store, "dem", 0, caller=BOB, clearance=Clearance.OUO, reason="looks good")

    assert await kit.items() == {"dem-v0": (0, 1)}
    collection = await kit.collection()
    assert collection["title"] == "Title of version 0"
    assert collection["extent"]["spatial"]["bbox"] == [[10.0, 46.0, 10.5, 46.5]]
    assert (asset.latest_approved_version_ordinal, asset.cleared_by, asset.clearance_state) == (0, "bob", "ouo")
    (version,) = asset.versions
    assert (version.approved_revision, version.reviewer, version.is_served) == (1, "bob", True)
    assert version.revisions[0].reviewed_as == "approved"
    newest, *_ = await kit.store.history(asset.asset_id, limit=10)
    assert (newest.action, newest.actor, newest.reason, newest.revision) == ("approved", "bob", "looks good", 1)


async def test_a_new_revision_is_served_only_after_its_approval(kit: Kit):
    await kit.publish("dem", tiles=3)
    again = await kit.submit("dem", content=b"other pixels")
    await kit.process(again, tiles=2)
    assert (again.outcome, again.revision) == ("new_revision", 2)
    assert set((await kit.items()).values()) == {(0, 1)}

    await approve(kit.store, "dem", 0, caller=BOB)

    assert await kit.items() == {"dem-v0-t0": (0, 2), "dem-v0-t1": (0, 2)}
    assert (await kit.collection())["description"] == "revision 2"


async def test_the_exposure_decides_which_versions_are_in_the_catalogue(kit: Kit):
    await kit.publish("dem", version_label="2023", tiles=1)
    await kit.publish("dem", clearance=None, version_label="2024", content=b"2024", tiles=1)
    assert await kit.items() == {"dem-v1-t0": (1, 1)}

    await expose(kit.store, "dem", Exposure.ALL_VERSIONS, caller=BOB)

    assert await kit.items() == {"dem-v0-t0": (0, 1), "dem-v1-t0": (1, 1)}
    collection = await kit.collection()
    assert set(collection["assets"]) == {"mosaic", "mosaic-v0"}
    assert collection["extent"]["spatial"]["bbox"] == [[10.0, 46.0, 11.5, 46.5]]
    (older,) = await kit.rows("SELECT content -> 'links' AS links FROM pgstac.items WHERE id = 'dem-v0-t0'")
    assert {link["rel"]: link["href"] for link in older["links"]} == {
        "self": "/stac/collections/dem/items/dem-v0-t0",
        "latest-version": "/stac/collections/dem/items/dem-v1-t0",
        "successor-version": "/stac/collections/dem/items/dem-v1-t0",
    }

    await expose(kit.store, "dem", Exposure.LATEST_ONLY, caller=BOB)

    assert await kit.items() == {"dem-v1-t0": (1, 1)}
    assert set((await kit.collection())["assets"]) == {"mosaic"}


@pytest.mark.parametrize("action", ["unpublish", "delete", "clear"])
async def test_nothing_of_an_unpublished_or_deleted_asset_stays_in_the_catalogue(kit: Kit, action: str):
    await kit.publish("dem", tiles=2)
    await kit.publish("other")

    match action:
        case "unpublish":
            asset = await unpublish(kit.store, "dem", 0, caller=BOB, reason="wrong")
        case "delete":
            asset = await delete(kit.store, "dem", caller=ADA)
        case _:
            asset = await clear(kit.store, "dem", Clearance.UNCLEARED, caller=BOB)

    assert await kit.items() == {}
    assert (await kit.collection())["description"] == "Not published"
    assert "title" not in await kit.collection()
    assert await kit.items("other") == {"other-v0": (0, 1)}
    assert not asset.versions[0].is_served


async def test_an_unpublished_version_is_republished_by_another_approval(kit: Kit):
    await kit.publish("dem")
    await unpublish(kit.store, "dem", caller=BOB)

    asset = await approve(kit.store, "dem", 0, caller=BOB)

    assert await kit.items() == {"dem-v0": (0, 1)}
    assert asset.versions[0].unpublished_at is None


async def test_a_deleted_asset_that_is_submitted_again_needs_another_clearance(kit: Kit):
    first = await kit.publish("dem")
    await delete(kit.store, "dem", caller=ADA)

    again = await kit.submit("dem")

    asset = await kit.store.asset("dem")
    assert (again.outcome, again.version_ordinal, again.asset_id) == ("new_version", 1, first.asset_id)
    assert (asset.deleted_at, asset.clearance_state, asset.cleared_at) == (None, "uncleared", None)


async def test_a_public_approval_records_that_an_export_is_due(kit: Kit):
    await kit.publish("dem", clearance="public")
    assert (await kit.store.asset("dem")).versions[0].revisions[0].is_export_due

    await clear(kit.store, "dem", Clearance.OUO, caller=BOB)

    asset = await kit.store.asset("dem")
    assert not asset.versions[0].revisions[0].is_export_due
    assert (asset.made_public_at, asset.made_public_by, asset.cleared_by) == (None, None, "bob")
    (row,) = await kit.rows("SELECT withdrawal_due_at FROM dagapp.asset_revisions")
    assert row["withdrawal_due_at"] is not None


async def test_the_copy_of_a_replaced_revision_is_withdrawn(kit: Kit):
    await kit.publish("dem", clearance="public")
    await kit.process(await kit.submit("dem", content=b"sharper"))

    await approve(kit.store, "dem", 0, caller=BOB)

    dues = await kit.rows(
        "SELECT revision, export_due_at IS NOT NULL AS is_exported, withdrawal_due_at IS NOT NULL AS is_withdrawn "
        "FROM dagapp.asset_revisions ORDER BY revision"
    )
    assert [tuple(row.values()) for row in dues] == [(1, False, True), (2, True, False)]


async def test_an_approved_revision_is_published_again_after_a_newer_one_has_failed(kit: Kit):
    await kit.publish("dem")
    await unpublish(kit.store, "dem", caller=BOB)
    again = await kit.submit("dem", content=b"sharper")
    await kit.end_job(again.job_id, "failed")
    with pytest.raises(Conflict) as refused:
        await kit.submit("dem", version_label="next", content=b"x")
    assert refused.value.code == "version.unresolved"

    asset = await approve(kit.store, "dem", 0, caller=BOB)

    assert await kit.items() == {"dem-v0": (0, 1)}
    (version,) = asset.versions
    assert (version.approved_revision, version.approval_state, version.processing_state) == (
        1,
        "pending_review",
        "failed",
    )
    newest, *_ = await kit.store.history(asset.asset_id, limit=1)
    assert (newest.action, newest.revision) == ("approved", 1)


async def test_a_rejected_source_that_is_submitted_again_becomes_a_new_revision(kit: Kit):
    await kit.process(await kit.submit("dem"))
    await reject(kit.store, "dem", 0, caller=BOB, reason="the wrong legend")

    again = await kit.submit("dem")

    assert (again.outcome, again.revision) == ("new_revision", 2)


async def test_a_rejection_has_a_reason_and_can_be_followed_by_a_new_revision(kit: Kit):
    submitted = await kit.submit("dem", request_id="r-1")
    await kit.process(submitted)

    asset = await reject(kit.store, "dem", 0, caller=BOB, reason="stripes")

    assert (asset.versions[0].approval_state, asset.versions[0].rejection_reason) == ("rejected", "stripes")
    status = await kit.store.submission("r-1")
    assert (status.status, status.reason) == ("rejected", "stripes")
    with pytest.raises(Conflict) as refused:
        await kit.submit("dem", version_label="other", content=b"x")
    assert refused.value.code == "version.unresolved"
    again = await kit.submit("dem", content=b"without stripes")
    assert (again.outcome, again.revision) == ("new_revision", 2)


async def test_a_stale_request_is_refused_and_shows_the_changes(kit: Kit):
    submitted = await kit.submit("dem")
    await kit.process(submitted)
    seen = (await kit.store.asset("dem")).etag
    await approve(kit.store, "dem", 0, caller=BOB, clearance=Clearance.OUO, if_match=f'"{seen}"')

    with pytest.raises(Conflict) as refused:
        await clear(kit.store, "dem", Clearance.PUBLIC, caller=BOB, if_match=f'"{seen}"')

    assert refused.value.code == "asset.changed"
    assert [event["action"] for event in refused.value.facts["events"]] == ["approved"]
    now = refused.value.facts["etag"]
    await clear(kit.store, "dem", Clearance.PUBLIC, caller=BOB, if_match=f'"{now}"')
    with pytest.raises(InvalidRequest):
        await clear(kit.store, "dem", Clearance.OUO, caller=BOB, if_match="yesterday")


async def test_a_newer_revision_than_the_reviewed_one_is_not_approved(kit: Kit):
    await kit.process(await kit.submit("dem"))
    await kit.process(await kit.submit("dem", content=b"newer"))

    with pytest.raises(Conflict) as refused:
        await approve(kit.store, "dem", 0, caller=BOB, clearance=Clearance.OUO, revision=1)

    assert refused.value.code == "version.revised"
    assert await kit.collection() is None


async def test_the_submitter_may_not_approve_if_a_second_person_is_required(kit: Kit):
    await kit.process(await kit.submit("dem"))

    with pytest.raises(Conflict) as refused:
        await approve(kit.store, "dem", 0, caller=ADA, clearance=Clearance.OUO, needs_second_person=True)
    assert refused.value.code == "approval.own-submission"

    await approve(kit.store, "dem", 0, caller=BOB, clearance=Clearance.OUO, needs_second_person=True)


async def test_an_unknown_asset_is_not_found(kit: Kit):
    with pytest.raises(NotFound) as refused:
        await approve(kit.store, "nothing", 0, caller=BOB, clearance=Clearance.OUO)

    assert refused.value.code == "asset.not-found"
