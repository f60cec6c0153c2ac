"""The end of a job reaches its revision exactly once, however the job ends and whichever process dies."""

import asyncio
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.rows import dict_row

from dagmaster.client.models.assets import AssetSubmissionResult
from dagmaster.client.models.jobs import JobPart
from dagmaster.database.assets.store import AssetStore
from dagmaster.database.ledger.postgres import PostgresLedger
from dagmaster.database.maintenance.retention import PostgresRetention
from dagmaster.database.notify.notifier import JOBS
from dagmaster.errors import HandlerFailed
from dagmaster.handlers.registry import Registration, Registry, installed
from dagmaster.operations import cancel, rerun
from dagmaster.settings import Settings
from dagmaster.storage import Zone, open_storage
from tests.engine.harness import TEST_HANDLERS, Engine, engine
from tests.engine.processes import CRASHED, END_STATES, Fleet, Process, fleet
from tests.engine.test_retention import DAY, in_days
from tests.published import Publisher
from tests.workflow_library import library_of

pytestmark = pytest.mark.requirement("A2", "E5")

QUICK = {"orphan_threshold_sec": 0.8, "task_lease_sec": 1.0, "lease_renew_sec": 0.3}
Rows = Callable[..., Awaitable[list[dict[str, Any]]]]
# The inputs that every workflow of assets declares, and one step.
STEP = """
    workflow_id: {name}
    version: 1
    inputs:
      container_name: {{type: string}}
      blob_name: {{type: string}}
      dataset_id: {{type: string}}
      version_ordinal: {{type: integer}}
      revision: {{type: integer}}
    nodes:
      start: {{type: start, next: one}}
      one: {{handler: {handler}, params: {params}, retry: {{max_attempts: 0}}, next: end}}
      end: {{type: end}}
"""
WORKFLOWS = {
    "completing": ("echo", "{}"),
    "failing": ("flaky_echo", "{failure_rate: 1.0, seed: 1}"),
    "sleeping": ("sleep", "{seconds: 60}"),
    "repairable": ("fail_until_repaired", "{}"),
}
_repaired: set[UUID] = set()


async def fail_until_repaired(ctx: Any) -> dict[str, str]:
    if ctx.job_id not in _repaired:
        raise HandlerFailed("not repaired yet")
    return {"content_hash": "ab" * 32}


HANDLERS = (Registration("fail_until_repaired", "tests.engine.test_asset_jobs:fail_until_repaired"),)


@asynccontextmanager
async def publishing(dsn: str, folder: Path, *handlers: Registration) -> AsyncIterator[Publisher]:
    """Submit assets whose jobs have one step. Their source is a file with a few bytes."""
    workflows = folder / "workflows"
    workflows.mkdir(exist_ok=True)
    for name, (handler, params) in WORKFLOWS.items():
        text = STEP.format(name=name, handler=handler, params=params)
        (workflows / f"{name}.yaml").write_text(textwrap.dedent(text))
    settings = Settings(storage_folder=folder / "storage", workflow_folders=str(workflows))
    storage = open_storage(settings)
    storage.put(storage.location("some.tif", zone=Zone.BRONZE), b"pixels")
    registry = Registry([*installed().values(), *handlers])
    library = library_of(settings, registry)
    async with AssetStore(dsn) as store:
        yield Publisher(store, library, storage)


async def submit(publisher: Publisher, workflow: str, dataset: str = "dem") -> AssetSubmissionResult:
    submitted = await publisher.submit(dataset, "some.tif", workflow)
    assert submitted.job_id is not None
    return submitted


async def processing_events(rows: Rows, submitted: AssetSubmissionResult) -> list[str]:
    """The events about processing in the history of the asset."""
    text = "SELECT action FROM dagapp.asset_events WHERE asset_id = %s AND action LIKE 'process%%' ORDER BY event_id"
    return [row["action"] for row in await rows(text, submitted.asset_id)]


async def states(rows: Rows, submitted: AssetSubmissionResult) -> tuple[str, str]:
    """The states of the version and of its revision."""
    text = """
        SELECT v.processing_state AS version, r.processing_state AS revision
          FROM dagapp.asset_versions AS v
          JOIN dagapp.asset_revisions AS r USING (asset_id, version_ordinal, revision)
         WHERE v.asset_id = %s AND v.version_ordinal = %s"""
    (row,) = await rows(text, submitted.asset_id, submitted.version_ordinal)
    return row["version"], row["revision"]


# --- orchestrators die -----------------------------------------------------------------------------------------------


async def is_dead_at_end(running: Fleet, doomed: Process, job_id: UUID | None) -> bool:
    """Whether the process dies before the job has ended, or within a second after that."""
    assert job_id is not None

    async def over() -> bool:
        return not doomed.is_running or (await running.job(job_id))["status"] in END_STATES

    await running.until(over, 20, f"{doomed.name} to die")
    for _ in range(50):
        if not doomed.is_running:
            return True
        await asyncio.sleep(0.02)
    return False


@pytest.mark.timeout(180)
@pytest.mark.parametrize("point", ["orchestrator.before-commit", "orchestrator.after-commit"])
@pytest.mark.parametrize(
    ("workflow", "event", "state"),
    [
        ("completing", "processed", "completed"),
        ("failing", "processing_failed", "failed"),
        pytest.param("sleeping", "processing_failed", "failed", marks=pytest.mark.slow),  # the job is cancelled
    ],
)
async def test_an_orchestrator_dies_at_each_commit_and_another_one_takes_the_job_over(
    database, tmp_path, *, workflow, event, state, point
):
    """It dies at its first commit, with the next job at its second, … until a job ends before that commit."""
    async with (
        publishing(database, tmp_path) as publisher,
        fleet(database, tmp_path, workers=1, **QUICK, workflow_folders=tmp_path / "workflows") as running,
    ):
        doomed, successor = running.process("orchestrator"), running.process("orchestrator")
        for visit in range(1, 20):
            submitted = await submit(publisher, workflow, f"dem-{visit}")
            if workflow == "sleeping":
                await request_cancel(database, submitted.job_id)
            doomed.start(crash_point=f"{point}:{visit}")
            if has_died := await is_dead_at_end(running, doomed, submitted.job_id):
                successor.start()
            await running.wait(submitted.job_id)

            assert await processing_events(running.rows, submitted) == [event]
            assert await states(running.rows, submitted) == (state, state)
            assert doomed.exit_code == (CRASHED if has_died else None)
            for process in (doomed, successor):
                process.kill()
            if not has_died:
                break
        assert visit > 1, "the orchestrator did not die at its first commit"


async def request_cancel(dsn: str, job_id: UUID | None) -> None:
    assert job_id is not None
    ledger = PostgresLedger(dsn, "test")
    try:
        await cancel.cancel(ledger, job_id, by="ada", reason="not needed")
    finally:
        await ledger.close()


# --- jobs run again, and are deleted ---------------------------------------------------------------------------------


@asynccontextmanager
async def engine_and_publisher(dsn: str, folder: Path) -> AsyncIterator[tuple[Engine, Publisher]]:
    """A publisher, and an engine that knows the workflows of its submissions."""
    async with (
        publishing(dsn, folder, *TEST_HANDLERS, *HANDLERS) as publisher,
        engine(dsn, handlers=HANDLERS) as running,
    ):
        running.add(*(publisher.library.get(name) for name in WORKFLOWS))
        yield running, publisher


async def test_a_job_that_is_resumed_ends_twice_and_each_end_is_delivered_once(database, tmp_path):
    async with engine_and_publisher(database, tmp_path) as (running, publisher):
        submitted = await submit(publisher, "repairable")
        running.notifier.notify(JOBS)
        await running.wait(submitted.job_id)
        failed = await states(running.rows, submitted)

        _repaired.add(submitted.job_id)
        await rerun.resume(running.ledger, submitted.job_id, by="ada")
        running.notifier.notify(JOBS)
        await running.wait(submitted.job_id)

        assert failed == ("failed", "failed")
        assert await processing_events(running.rows, submitted) == [
            "processing_failed",
            "processing_resumed",
            "processed",
        ]
        assert await states(running.rows, submitted) == ("completed", "completed")


async def test_a_retried_node_processes_the_asset_again(database, tmp_path):
    async with engine_and_publisher(database, tmp_path) as (running, publisher):
        submitted = await submit(publisher, "completing")
        running.notifier.notify(JOBS)
        await running.wait(submitted.job_id)

        await rerun.retry(running.ledger, submitted.job_id, JobPart(node="one"), by="ada")
        running.notifier.notify(JOBS)
        await running.wait(submitted.job_id)

        assert await processing_events(running.rows, submitted) == ["processed", "processing_resumed", "processed"]
        assert await states(running.rows, submitted) == ("completed", "completed")


async def test_deleting_an_ended_job_does_not_change_its_asset(database, tmp_path):
    retention = PostgresRetention(in_days(database, 2))
    async with engine_and_publisher(database, tmp_path) as (running, publisher):
        submitted = await submit(publisher, "completing")
        running.notifier.notify(JOBS)
        await running.wait(submitted.job_id)

        assert await retention.prune_jobs(DAY, 10) == 1

        assert await processing_events(running.rows, submitted) == ["processed"]
        assert await states(running.rows, submitted) == ("completed", "completed")
    await retention.close()


async def test_a_revision_whose_job_is_deleted_before_its_end_fails_and_says_why(database, tmp_path):
    async with publishing(database, tmp_path) as publisher:
        submitted = await submit(publisher, "completing")
        async with await psycopg.AsyncConnection.connect(database, autocommit=True, row_factory=dict_row) as connection:

            async def rows(text: str, *values: Any) -> list[dict[str, Any]]:
                return await (await connection.execute(text, values)).fetchall()

            await connection.execute("DELETE FROM dagapp.dag_jobs WHERE job_id = %s", [submitted.job_id])

            assert await processing_events(rows, submitted) == ["processing_failed"]
            assert await states(rows, submitted) == ("failed", "failed")
            (event,) = await rows("SELECT reason, detail FROM dagapp.asset_events WHERE action = 'processing_failed'")
            assert event["reason"] == "its job was deleted"
            assert event["detail"]["job_id"] == str(submitted.job_id)
