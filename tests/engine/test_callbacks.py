"""Callbacks with real processes: the end of a job is delivered once, and no crash loses it."""

import asyncio
import json

import pytest

from dagmaster import faults
from dagmaster.callbacks.signing import verify
from dagmaster.database.ledger.postgres import PostgresLedger
from dagmaster.jobs.model import Submission
from dagmaster.library.workflows import WorkflowLibrary
from tests.callbacks.receivers import Receiver, receiver
from tests.callbacks.stage import Stage
from tests.engine.harness import submit, workflow
from tests.engine.processes import CRASHED, Fleet, fleet

pytestmark = pytest.mark.requirement("E24")

EMPTY = workflow("""
    workflow_id: nothing
    version: 1
    nodes:
      start: {type: start, next: work}
      work: {handler: echo, next: end}
      end: {type: end}
""")
# The crash points, each with the number of requests that were sent before the process died. `:1` and `:2` are visits to
# a point: the first transaction claims the callback, the second one records the delivery.
POSTS_BEFORE_CRASH = {
    "callbacks.before-commit:1": 0,
    "callbacks.after-commit:1": 0,
    "callback.after-post": 1,
    "callbacks.before-commit:2": 1,
    "callbacks.after-commit:2": 1,
}


async def submit_job(dsn: str, url: str) -> str:
    library = WorkflowLibrary({"nothing": EMPTY}, allow_private_callbacks=True)
    ledger = PostgresLedger(dsn, "test")
    try:
        (job_id,) = await submit(ledger, library, [Submission(workflow_id="nothing", callback_url=url)])
    finally:
        await ledger.close()
    return str(job_id)


async def delivered(running: Fleet, count: int) -> list[dict[str, object]]:
    async def delivered_rows() -> list[dict[str, object]]:
        rows = await running.rows("SELECT * FROM dagapp.callback_events WHERE state = 'delivered'")
        return rows if len(rows) == count else []

    return await running.until(delivered_rows, 30, f"{count} callbacks to be delivered")


async def test_the_end_of_a_job_is_delivered_once_and_signed(database, tmp_path):
    async with (
        receiver() as hook,
        fleet(database, tmp_path, orchestrators=2, workers=1, allow_private_webhooks=True) as running,
    ):
        job_id = await submit_job(database, hook.url)
        await delivered(running, 1)
        await asyncio.sleep(1)

        secrets = await running.rows("SELECT secret FROM dagapp.platform_secrets WHERE platform_id = 'local'")

    (request,) = hook.requests
    sent_at = int(request.headers["webhook-timestamp"])
    verify([row["secret"] for row in secrets], request.headers, request.body, now=sent_at)
    assert json.loads(request.body) == {
        "request_id": job_id,
        "status": "completed",
        "result_url": f"/api/v1/jobs/{job_id}",
    }


def test_every_crash_point_of_callbacks_is_passed():
    points = {point.partition(":")[0] for point in POSTS_BEFORE_CRASH}

    assert points == {*faults.around("callbacks"), *(each for each in faults.STEPS if each.startswith("callback."))}


async def test_after_a_crash_at_each_step_the_next_sender_repeats_the_same_callback(database, tmp_path):
    stage = Stage(database)
    async with receiver() as hook, fleet(database, tmp_path, allow_private_webhooks=True) as running:
        doomed = running.process("orchestrator")
        for number, (point, posts) in enumerate(POSTS_BEFORE_CRASH.items(), 1):
            stage.record_callbacks(point, url=hook.url)

            doomed.start(crash_point=point)
            assert await doomed.ended(30) == CRASHED
            assert len(callback_ids(hook, point)) == posts

            # Let the lease expire.
            stage.rows(
                "UPDATE dagapp.callback_events SET lease_until = clock_timestamp(), next_attempt_at = clock_timestamp()"
                " WHERE state = 'pending'"
            )
            doomed.start()
            await delivered(running, number)
            doomed.kill()
    stage.connection.close()

    for point, posts in POSTS_BEFORE_CRASH.items():
        ids = callback_ids(hook, point)
        assert len(set(ids)) == 1, "a repeated callback must have the same id"
        assert len(ids) == (1 if point == "callbacks.after-commit:2" else posts + 1), point


def callback_ids(hook: Receiver, request_id: str) -> list[str]:
    return [
        request.headers["webhook-id"]
        for request in hook.requests
        if json.loads(request.body)["request_id"] == request_id
    ]
