"""A submission may name a URL for each kind of callback, as OGC API - Processes does (`subscriber`)."""

import json
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from dagmaster.assets.states import Clearance
from dagmaster.callbacks.signing import verify
from dagmaster.client.models.assets import AssetSubmissionRequest, AssetSubmissionResult, SourceReference
from dagmaster.database.ledger.postgres import PostgresLedger
from dagmaster.database.maintenance.retention import PostgresRetention
from dagmaster.errors import InvalidRequest
from dagmaster.jobs.model import Submission
from dagmaster.library.workflows import WorkflowLibrary
from dagmaster.operations.assets.approve import approve
from dagmaster.operations.assets.reject import reject
from dagmaster.operations.assets.request import _content_of
from dagmaster.operations.assets.unpublish import unpublish
from dagmaster.operations.submit import prepare
from tests.callbacks.receivers import receiver, status
from tests.callbacks.test_sender import deliver, secrets, sender_of
from tests.engine.harness import submit, workflow
from tests.operations.kit import ADA, BOB, Kit

pytestmark = pytest.mark.requirement("E24", "G1", "G4")

SUCCESS, BEGUN, FAILED = (f"https://hooks.example/{name}" for name in ("success", "begun", "failed"))
SUBSCRIBER = {"successUri": SUCCESS, "inProgressUri": BEGUN, "failedUri": FAILED}
WORKFLOW = workflow("""
    workflow_id: nothing
    version: 1
    nodes:
      start: {type: start, next: work}
      work: {handler: echo, next: end}
      end: {type: end}
""")
LIBRARY = WorkflowLibrary({"nothing": WORKFLOW}, allow_private_callbacks=True)


async def recorded(kit: Kit, submitted: AssetSubmissionResult) -> list[tuple[str, str]]:
    text = "SELECT status, url FROM dagapp.callback_events WHERE request_id = %s ORDER BY sequence"
    return [(row["status"], row["url"].rpartition("/")[2]) for row in await kit.rows(text, submitted.request_id)]


async def test_a_version_that_is_published_and_unpublished_calls_the_url_of_each_kind(kit):
    request = await kit.submit(subscriber=SUBSCRIBER)
    assert await recorded(kit, request) == []

    await kit.process(request)
    await approve(kit.store, request.asset_id, 0, caller=BOB, clearance=Clearance.PUBLIC)
    await unpublish(kit.store, request.asset_id, 0, caller=ADA, reason="an error")

    assert await recorded(kit, request) == [
        ("processing", "begun"),
        ("awaiting_review", "success"),
        ("approved", "success"),
        ("published", "success"),
        ("unpublished", "failed"),
    ]


async def test_a_rejected_version_calls_the_url_for_failures(kit):
    request = await kit.submit(subscriber=SUBSCRIBER)
    await kit.process(request, status="partial_success")
    await reject(kit.store, request.asset_id, 0, caller=BOB, reason="wrong bands")

    assert await recorded(kit, request) == [("processing", "begun"), ("partial", "success"), ("rejected", "failed")]


async def test_a_job_that_fails_and_is_resumed_calls_the_url_for_progress_twice(kit):
    request = await kit.submit(subscriber=SUBSCRIBER)
    await kit.end_job(request.job_id, "failed")
    await kit.execute(
        "UPDATE dagapp.dag_jobs SET status = 'running', resume_count = resume_count + 1 WHERE job_id = %s",
        request.job_id,
    )

    assert await recorded(kit, request) == [("processing", "begun"), ("failed", "failed"), ("processing", "begun")]


async def test_an_invalid_file_calls_the_url_for_failures(kit):
    request = await kit.submit(subscriber=SUBSCRIBER)
    other = await kit.submit("other", callback_url="https://hooks.example/all")
    for submitted in (request, other):
        await kit.execute(
            "UPDATE dagapp.dag_node_states SET status = 'failed', error = %s WHERE job_id = %s AND status = 'ready'",
            Jsonb({"blame": "data"}),
            submitted.job_id,
        )
        await kit.end_job(submitted.job_id, "failed")

    assert await recorded(kit, request) == [("processing", "begun"), ("invalid", "failed")]
    assert await recorded(kit, other) == [("invalid", "all")]


async def test_platforms_with_the_same_request_id_have_their_own_subscribers(kit):
    refs = {
        "ddh": {"dataset_id": "floods", "resource_id": "r1", "version_id": "1"},
        "geonode": {"uuid": "u1", "version": "1"},
    }
    for platform_id, platform_refs in refs.items():
        urls = {name: f"https://{platform_id}.example/{name}" for name in SUBSCRIBER}
        submitted = await kit.submit(
            platform_id, platform_id=platform_id, platform_refs=platform_refs, subscriber=urls, request_id="order-7"
        )
        await kit.end_job(submitted.job_id, "failed")

    text = "SELECT request_id, platform_id, status, url FROM dagapp.callback_events ORDER BY sequence"
    assert [tuple(row.values()) for row in await kit.rows(text)] == [
        ("order-7", platform_id, status, f"https://{platform_id}.example/{name}")
        for platform_id in refs
        for status, name in (("processing", "inProgressUri"), ("failed", "failedUri"))
    ]


async def test_a_callback_without_a_url_is_not_sent(kit):
    request = await kit.submit(subscriber={"successUri": SUCCESS})
    failed = await kit.submit("other", subscriber={"successUri": SUCCESS})
    await kit.process(request)
    await kit.end_job(failed.job_id, "failed")

    assert await recorded(kit, request) == [("awaiting_review", "success")]
    assert await recorded(kit, failed) == []


async def test_requests_of_one_asset_have_their_own_urls(kit):
    one = await kit.submit(subscriber=SUBSCRIBER, version_label="v1")
    two = await kit.submit(callback_url="https://hooks.example/all", version_label="v1")
    await kit.process(one)

    assert await recorded(kit, one) == [("processing", "begun"), ("awaiting_review", "success")]
    assert await recorded(kit, two) == [("awaiting_review", "all")]


async def test_a_repeated_request_has_the_same_subscriber(kit):
    first = await kit.submit(subscriber=SUBSCRIBER, request_id="order-7")
    again = await kit.submit(subscriber=SUBSCRIBER, request_id="order-7")
    subscribers = await kit.rows("SELECT * FROM dagapp.callback_subscribers")

    assert first == again
    assert [(row["kind"], row["subject"]) for row in subscribers] == [("request", "order-7")]


def test_requests_of_earlier_releases_keep_their_hash():
    """Earlier releases computed the hash without the field `subscriber`."""
    given = {"platform_id": "local", "platform_refs": {"dataset": "x"}, "source": SourceReference(blob="x.tif")}

    assert "subscriber" not in _content_of(AssetSubmissionRequest(**given))
    assert "subscriber" in _content_of(AssetSubmissionRequest(**given, subscriber=SUBSCRIBER))


@pytest.mark.parametrize("name", SUBSCRIBER)
@pytest.mark.parametrize("url", ["https://169.254.169.254/", "https://[::ffff:10.0.0.1]/", "http://hub.example/", "x"])
async def test_each_url_of_a_subscriber_is_checked(kit, name, url):
    with pytest.raises(InvalidRequest, match=f"subscriber.{name} is refused") as refused:
        await kit.submit(subscriber={**SUBSCRIBER, name: url})

    assert refused.value.code == "submission.callback-url"
    assert await kit.rows("SELECT FROM dagapp.asset_submissions") == []


def test_a_submission_with_both_callback_url_and_subscriber_is_refused():
    with pytest.raises(InvalidRequest) as refused:
        prepare(LIBRARY, Submission(workflow_id="nothing", callback_url=SUCCESS, subscriber=SUBSCRIBER))

    assert refused.value.code == "submission.two-callbacks"


async def submitted_job(dsn: str, **fields: Any) -> Any:
    ledger = PostgresLedger(dsn, "test")
    try:
        (job_id,) = await submit(ledger, LIBRARY, [Submission(workflow_id="nothing", **fields)])
    finally:
        await ledger.close()
    return job_id


@pytest.mark.parametrize(
    ("end", "kind"),
    [("completed", "success"), ("partial_success", "success"), ("failed", "failed"), ("cancelled", "failed")],
)
async def test_a_job_without_an_asset_calls_the_urls_of_its_subscriber(stage, database, end, kind):
    subscribed = await submitted_job(database, subscriber=SUBSCRIBER)
    other = await submitted_job(database, callback_url="https://hooks.example/all")
    for job_id in (subscribed, other):
        stage.set_job_status(job_id, "running")
        stage.set_job_status(job_id, end)

    sent = [(row["job_id"], row["status"], row["url"].rpartition("/")[2]) for row in stage.callbacks()]
    assert sent == [(subscribed, "running", "begun"), (subscribed, end, kind), (other, end, "all")]


async def test_each_url_gets_its_signed_callback_even_if_another_one_is_down(stage, store, database):
    async with receiver(status(500)) as begun, receiver() as done:
        subscriber = {"successUri": done.url, "inProgressUri": begun.url}
        job_id = await submitted_job(database, subscriber=subscriber, correlation_id="order-7")
        stage.set_job_status(job_id, "running")
        sender = sender_of(store)
        await deliver(sender)
        stage.set_job_status(job_id, "completed")
        store.advance(1)
        await deliver(sender)

    assert [json.loads(request.body)["status"] for request in begun.requests] == ["running"]
    (request,) = done.requests
    verify(secrets(stage, "local"), request.headers, request.body, now=store.now.timestamp())
    assert json.loads(request.body)["status"] == "completed"
    assert [(row["status"], row["state"]) for row in stage.callbacks()] == [
        ("running", "pending"),
        ("completed", "delivered"),
    ]


@pytest.mark.requirement("D5")
async def test_the_subscriber_of_a_job_is_deleted_with_it(stage, database):
    job_id = await submitted_job(database, subscriber=SUBSCRIBER)
    stage.set_job_status(job_id, "running")
    stage.set_job_status(job_id, "completed")
    stage.rows("UPDATE dagapp.dag_jobs SET completed_at = now() - interval '2 days'")
    retention = PostgresRetention(database)
    try:
        kept = await retention.prune_jobs(86_400 * 3, 10)
        before = stage.rows("SELECT subject FROM dagapp.callback_subscribers")
        deleted = await retention.prune_jobs(0, 10)
    finally:
        await retention.close()

    assert (kept, before) == (0, [{"subject": str(job_id)}])
    assert deleted == 1
    assert stage.rows("SELECT subject FROM dagapp.callback_subscribers") == []
