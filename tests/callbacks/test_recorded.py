"""Which callbacks a request gets: one for each change of the status that it can poll."""

from itertools import product
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from dagmaster.assets.states import Clearance, Exposure
from dagmaster.client.models.assets import AssetSubmissionResult
from dagmaster.database.callbacks.store import PostgresCallbacks
from dagmaster.operations.assets.approve import approve
from dagmaster.operations.assets.clear import clear
from dagmaster.operations.assets.delete import delete
from dagmaster.operations.assets.expose import expose
from dagmaster.operations.assets.reject import reject
from dagmaster.operations.assets.unpublish import unpublish
from tests.callbacks.receivers import receiver
from tests.callbacks.test_sender import deliver, sender_of
from tests.operations.kit import ADA, BOB, Kit
from tests.traces import Collector

pytestmark = pytest.mark.requirement("E24")

URL = "https://hooks.example/done"
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


async def recorded_events(kit: Kit, submitted: AssetSubmissionResult | str) -> list[str]:
    """The statuses of a request's callbacks; the last one is the status that it can poll."""
    request_id = submitted if isinstance(submitted, str) else submitted.request_id
    text = "SELECT status, url FROM dagapp.callback_events WHERE request_id = %s ORDER BY sequence"
    rows = await kit.rows(text, request_id)
    polled = (await kit.store.submission(request_id)).status
    statuses = [row["status"] for row in rows]
    assert (statuses[-1:] or ["nothing"])[0] == polled or polled in ("received", "processing")
    assert {row["url"] for row in rows} <= {URL}
    return statuses


async def submitted(kit: Kit, dataset: str = "dem", **options: Any) -> AssetSubmissionResult:
    return await kit.submit(dataset, callback_url=URL, **options)


async def test_a_version_that_is_processed_approved_and_made_public_has_a_callback_for_each_step(kit):
    request = await submitted(kit)
    assert await recorded_events(kit, request) == []
    await kit.process(request)
    assert await recorded_events(kit, request) == ["awaiting_review"]
    await approve(kit.store, request.asset_id, 0, caller=BOB, clearance=Clearance.OUO)
    assert await recorded_events(kit, request) == ["awaiting_review", "approved"]

    await clear(kit.store, request.asset_id, Clearance.PUBLIC, caller=BOB)

    assert await recorded_events(kit, request) == ["awaiting_review", "approved", "published"]


async def test_a_version_that_is_approved_and_published_at_once_has_both_callbacks(kit):
    request = await submitted(kit)
    await kit.process(request)

    await approve(kit.store, request.asset_id, 0, caller=BOB, clearance=Clearance.PUBLIC)

    assert await recorded_events(kit, request) == ["awaiting_review", "approved", "published"]


async def test_a_version_that_is_rejected_has_a_callback(kit):
    request = await submitted(kit)
    await kit.process(request, status="partial_success")

    await reject(kit.store, request.asset_id, 0, caller=BOB, reason="wrong bands")

    assert await recorded_events(kit, request) == ["partial", "rejected"]


@pytest.mark.parametrize("act", [unpublish, delete])
async def test_a_version_that_is_unpublished_or_deleted_has_a_callback(kit, act):
    request = await submitted(kit)
    await kit.process(request)
    await approve(kit.store, request.asset_id, 0, caller=BOB, clearance=Clearance.PUBLIC)

    await act(kit.store, request.asset_id, 0, caller=ADA, reason="an error")

    assert await recorded_events(kit, request) == ["awaiting_review", "approved", "published", "unpublished"]


async def test_a_job_that_fails_and_is_resumed_has_two_callbacks(kit):
    request = await submitted(kit)
    await kit.end_job(request.job_id, "failed")
    assert await recorded_events(kit, request) == ["failed"]
    await kit.execute(
        "UPDATE dagapp.dag_jobs SET status = 'running', resume_count = resume_count + 1 WHERE job_id = %s",
        request.job_id,
    )
    assert await recorded_events(kit, request) == ["failed"]

    await kit.execute("UPDATE dagapp.dag_jobs SET status = 'failed' WHERE job_id = %s", request.job_id)

    assert await recorded_events(kit, request) == ["failed", "failed"]


async def test_a_request_for_data_that_already_exists_has_a_callback_at_once(kit):
    first = await submitted(kit, version_label="v1")
    await kit.process(first)

    second = await submitted(kit, version_label="v1")
    assert second.job_id == first.job_id
    assert await recorded_events(kit, second) == ["awaiting_review"]
    await approve(kit.store, first.asset_id, 0, caller=BOB, clearance=Clearance.OUO)

    assert await recorded_events(kit, first) == await recorded_events(kit, second) == ["awaiting_review", "approved"]


async def test_a_version_that_a_newer_one_hides_has_callbacks_when_its_status_changes(kit):
    old = await submitted(kit, version_label="v1")
    await kit.process(old)
    await approve(kit.store, old.asset_id, 0, caller=BOB, clearance=Clearance.PUBLIC)
    new = await submitted(kit, content=b"other pixels", version_label="v2")
    await kit.process(new)

    await approve(kit.store, old.asset_id, 1, caller=BOB)
    assert (await recorded_events(kit, old))[2:] == ["published", "approved"]
    await expose(kit.store, old.asset_id, Exposure.ALL_VERSIONS, caller=BOB)

    assert (await recorded_events(kit, old))[2:] == ["published", "approved", "published"]
    assert await recorded_events(kit, new) == ["awaiting_review", "approved", "published"]


async def test_a_revision_that_a_newer_one_supersedes_has_a_callback(kit):
    old = await submitted(kit, version_label="v1")
    await kit.process(old)
    new = await submitted(kit, content=b"other pixels", version_label="v1", force=True)

    assert await recorded_events(kit, old) == ["awaiting_review", "unpublished"]
    assert await recorded_events(kit, new) == []
    await kit.process(new)
    assert await recorded_events(kit, new) == ["awaiting_review"]
    assert await recorded_events(kit, old) == ["awaiting_review", "unpublished"]


async def test_a_request_without_a_url_has_no_callback(kit):
    request = await kit.submit("dem")
    await kit.process(request)
    await approve(kit.store, request.asset_id, 0, caller=BOB, clearance=Clearance.PUBLIC)

    assert await kit.rows("SELECT 1 FROM dagapp.callback_events") == []


async def test_only_the_request_whose_status_changed_has_a_callback(kit):
    one, other = await submitted(kit, "one"), await submitted(kit, "other", content=b"other pixels")
    await kit.process(one)

    assert await recorded_events(kit, one) == ["awaiting_review"]
    assert await recorded_events(kit, other) == []


async def test_the_job_of_an_asset_has_no_separate_callback(kit):
    request = await submitted(kit)
    await kit.process(request)

    (row,) = await kit.rows("SELECT * FROM dagapp.callback_events")
    assert (row["job_id"], row["request_id"], row["platform_id"]) == (None, request.request_id, "local")


def test_every_state_of_a_revision_has_the_right_status_and_reason(cluster, template_database):
    text = """
        SELECT present.*
          FROM (SELECT jsonb_populate_record(NULL::dagapp.geospatial_assets, %s) AS a,
                       jsonb_populate_record(NULL::dagapp.asset_versions, %s) AS v,
                       jsonb_populate_record(NULL::dagapp.asset_revisions, %s) AS r) AS state
         CROSS JOIN LATERAL dagapp.request_status(a, v, r) AS present"""
    flags = (False, True)
    states = product(
        ("queued", "processing", "completed", "failed"), (None, "approved", "rejected"), flags, flags, flags
    )
    with psycopg.connect(cluster.dsn_of(template_database)) as connection:
        for processing, reviewed, is_unpublished, is_old, is_deleted in states:
            asset = {"clearance_state": "ouo", "deleted_at": "now" if is_deleted else None}
            version = {"revision": 2, "approved_revision": 2, "rejection_reason": "why"}
            version["unpublished_at"] = "now" if is_unpublished else None
            revision = {"revision": 1 if is_old else 2, "processing_state": processing, "reviewed_as": reviewed}
            values = [Jsonb(asset), Jsonb(version), Jsonb({**revision, "error_message": "broke"})]

            row = connection.execute(text, values).fetchone()

            assert row == expected(processing, reviewed, is_unpublished, is_old, is_deleted), values


def expected(processing: str, reviewed: str | None, *flags: bool) -> tuple[str, str | None]:
    is_unpublished, is_old, is_deleted = flags
    match processing, reviewed:
        case _ if is_deleted:
            return "unpublished", "deleted"
        case "queued", _:
            return "received", None
        case "processing", _:
            return "processing", None
        case "failed", _:
            return "failed", "broke"
        case _, "rejected":
            return "rejected", "why"
        case _, "approved" if is_unpublished:
            return "unpublished", None
        case _, "approved" if not is_old:
            return "approved", None
        case _ if is_old:
            return "unpublished", "superseded by revision 2"
    return "awaiting_review", None


async def test_the_delivery_of_a_callback_belongs_to_the_trace_of_its_job(kit):
    async with receiver() as hook:
        request = await kit.submit("dem", callback_url=URL)
        other = await kit.submit("other", callback_url=URL)
        for job_id, parent in ((request.job_id, TRACE), (other.job_id, TRACE.replace("4bf9", "5bf9"))):
            await kit.execute("UPDATE dagapp.dag_jobs SET traceparent = %s WHERE job_id = %s", parent, job_id)
        await kit.process(request)
        await kit.execute("UPDATE dagapp.callback_events SET url = %s", hook.url)

        store = PostgresCallbacks(kit.dsn, "test-callbacks")
        with Collector.running() as collector:
            await deliver(sender_of(store))
        await store.close()

    (span,) = collector.named("deliver callback")
    (delivered,) = hook.requests
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == tuple(TRACE.split("-")[1:3])
    assert delivered.headers["traceparent"].split("-")[1:3] == [span.trace_id.hex(), span.span_id.hex()]
