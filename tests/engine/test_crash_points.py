"""Processes die at every named crash point, as by kill -9, and others take over.

That each write transaction is all or nothing is shown call by call in tests/database/test_crash_points.py; here real
processes die in the middle of their work, and jobs end as they would have ended without that.
"""

import asyncio
import textwrap
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from signal import SIGTERM
from typing import Any
from uuid import UUID

import pytest
from affine import Affine
from rio_cogeo.cogeo import cog_validate

from dagmaster import faults
from dagmaster.database.ledger.postgres import PostgresLedger
from dagmaster.database.notify.notifier import JOBS
from dagmaster.database.notify.postgres import channel_of
from dagmaster.settings import Settings
from dagmaster.workflows.load import shipped
from tests.conftest import fresh_database
from tests.engine.processes import CRASHED, END_STATES, Fleet, Process, fleet
from tests.engine.test_raster_jobs import scene

CHILDREN = 12
QUICK = {"orphan_threshold_sec": 0.8, "task_lease_sec": 1.0, "lease_renew_sec": 0.3}
# A workflow with every kind of decision: a branch, a fan-out, retries with delays, a fan-in. One output is large, and
# one task runs so long that its lease is renewed.
SWEPT = f"""
    workflow_id: swept
    name: Swept
    version: 1
    nodes:
      start:
        type: start
        next: [items, bulk, slow]
      slow:
        handler: sleep
        params: {{seconds: 0.5}}
        next: end
      bulk:
        handler: make_list
        params: {{count: 50000}}
        next: end
      items:
        handler: make_list
        params: {{count: {CHILDREN}}}
        next: is_many
      is_many:
        type: conditional
        condition: "{{{{ nodes.items.output.count }}}} > 5"
        on_true: each
        on_false: few
      few:
        handler: echo
        next: end
      each:
        type: fan_out
        source: "{{{{ nodes.items.output.items }}}}"
        task:
          handler: flaky_echo
          params: {{failure_rate: 0.4, seed: 7, item: "{{{{ item }}}}"}}
          retry: {{max_attempts: 5, backoff: fixed, initial_delay_seconds: 0.1}}
        next: all
      all:
        type: fan_in
        next: last
      last:
        handler: echo
        params: {{count: "{{{{ nodes.all.output.count }}}}"}}
        next: end
      end:
        type: end
        depends_on: {{all_of: [bulk, slow], any_of: [few, last]}}
    outputs:
      count: "{{{{ nodes.last.output.echoed_params.count }}}}"
    """


def _points(*prefixes: str) -> list[str]:
    return [point for point in faults.STEPS if point.startswith(prefixes)]


def _around(*names: str) -> list[str]:
    return [point for name in names for point in faults.around(name)]


LOOPS = _points("orchestrator.", "worker.")
# Crash points that jobs of a workflow may reach, by the kind of work.
DECIDING = [*_points("orchestrator."), *_around("take_messages")]
WORKING = [point for point in _points("worker.") if not point.endswith("-store")]
PAYLOADS = ["worker.before-store", "worker.after-store", *_around("store_payload", "report_payloads")]
CHECKPOINTS = _around("save_checkpoint")
RASTERS = [*_points("handler."), *_around("documents")]
# Crash points that an instance reaches without jobs; those that it reaches when it stops; those of requests of users.
BACKGROUND = {
    "orchestrator": _around(
        "beat_orchestrator",
        "end_stuck_owners",
        "claim_jobs",
        "forget_silent_instances",
        "make_event_partitions",
        "janitor",
        "retention",
    ),
    "worker": _around("beat_worker", "renew_leases", "take_stops"),
}
STOPPING = {"orchestrator": _around("retire_orchestrator"), "worker": _around("retire_worker")}
REQUESTS = _around("submit", "submit_once", "request_cancel", "rerun")
# These are not swept here: an instance reaches them only after a lost response, after a lost lease or with jobs that it
# cannot route, or a request of a user reaches them with one statement.
SWEPT_ELSEWHERE = _around(
    "release_unknown_jobs",
    "review_deferred",
    "fail_job",
    "record_late",
    "enqueue_message",
    "replay_dead_letter",
    "drop_dead_letter",
    "set_queue",
    # Swept in tests/operations, tests/commands and tests/external.
    "upload",
    "edit_layer",
    "publish_layer",
    "external_layers",
    "external_database",
    "record_command",
    "invalidate_cache",
    "submit_asset",
    "change_asset",
    "change_platform",
    "prepare_catalogue",
    "create_key",
    "asset_upkeep",
    "adopt_dataset",
    "external_copies",
    "external_claim",
)
# Swept in test_callbacks.py.
CALLBACKS = [*_points("callback."), *_around("callbacks")]
# Swept in tests/servicebus/test_engine.py.
BROKER = [
    *_points("relay."),
    *_around("outbox_claim", "outbox_forget", "outbox_delete", "outbox_postpone", "fail_tasks"),
]


def test_every_named_crash_point_is_swept():
    named = {
        *DECIDING,
        *WORKING,
        *PAYLOADS,
        *CHECKPOINTS,
        *RASTERS,
        *REQUESTS,
        *BACKGROUND["orchestrator"],
        *BACKGROUND["worker"],
    }
    ends = {*STOPPING["orchestrator"], *STOPPING["worker"]}

    covered_by_others = {*SWEPT_ELSEWHERE, *CALLBACKS, *BROKER}
    assert named | ends | covered_by_others == set(faults.POINTS)
    assert not (named | ends) & covered_by_others


# --- processes die one after the other while jobs keep coming --------------------------------------------------------


@dataclass
class Sweep:
    """Submits a job as a message before each death. In the end each message has become one job that has completed."""

    running: Fleet
    workflow: str
    inputs: Mapping[str, Any] = field(default_factory=dict)
    has_datasets: bool = False  # each job makes its own dataset
    sent: list[str] = field(default_factory=list)

    async def send(self) -> str:
        message_id = f"{self.workflow}-{len(self.sent) + 1}"
        self.sent.append(message_id)
        own = {"title": message_id} if self.has_datasets else {}
        body = {"workflow_id": self.workflow, "input_params": {**self.inputs, **own}}
        ledger = PostgresLedger(self.running.dsn, "test")
        try:
            assert await ledger.enqueue_message(message_id, Settings().job_queue_name, body)
        finally:
            await ledger.close()
        await self.running.rows("SELECT pg_notify(%s, '')", channel_of(JOBS))
        return message_id

    async def interrupt(self, process: Process, points: Sequence[str]) -> set[str]:
        """Start a process with each crash point, then without one. Returns the points at which it died."""
        deaths = {point for point in points if await self._dies(process, point)}
        process.start()
        return deaths

    async def _dies(self, process: Process, point: str) -> bool:
        """Whether a process dies at this crash point.

        One job is sent while no process of this role runs, another while one waits for it. If both have ended and the
        process lives, jobs of this workflow do not pass this point.
        """
        since = (await self.running.rows("SELECT clock_timestamp() AS now"))[0]["now"]
        message_id = await self.send()
        process.start(crash_point=point)
        if not (died := await self._has_died(process, point, since, message_id)):
            died = await self._has_died(process, point, since, await self.send())
        assert process.exit_code in (CRASHED, None), f"{process.name} ended with {process.exit_code} before {point}"
        process.kill()
        return died

    async def _has_died(self, process: Process, point: str, since: datetime, message_id: str) -> bool:
        async def over() -> str:
            if not process.is_running:
                return "died"
            if point.startswith("handler.") and await self._children_died(since):
                return "died"
            jobs = await self.running.rows("SELECT status FROM dagapp.dag_jobs WHERE message_id = %s", message_id)
            return "ended" if jobs and jobs[0]["status"] in END_STATES else ""

        return await self.running.until(over, 120, f"{process.name} to die at {point}") == "died"

    async def _children_died(self, since: datetime) -> bool:
        """Whether a child process died. Its worker survives, and would start another one that dies too."""
        return bool(
            await self.running.rows(
                "SELECT 1 FROM dagapp.dag_task_results"
                " WHERE status = 'failed' AND error ->> 'blame' = 'environment' AND reported_at > %s",
                since,
            )
        )

    async def stop(self, process: Process, points: Sequence[str]) -> None:
        """Ask a process to stop, so that it dies at these points while it stops."""
        for point in points:
            process.kill()
            await self.send()
            process.start(crash_point=point)
            await self.running.ready([process])
            process.signal(SIGTERM)
            assert await process.ended() == CRASHED
        process.start()

    async def finish(self, *processes: Process, seconds: float = 60) -> list[UUID]:
        """Start processes that do not die, and wait until everything has ended."""
        for process in processes:
            if not process.is_running:
                process.start()

        async def jobs_of_messages() -> list[dict[str, Any]]:
            jobs = await self.running.rows(
                "SELECT job_id, message_id FROM dagapp.dag_jobs WHERE message_id IS NOT NULL"
            )
            return jobs if {row["message_id"] for row in jobs} >= set(self.sent) else []

        rows = await self.running.until(jobs_of_messages, 30, "every message to become a job")
        jobs = [row["job_id"] for row in rows if row["message_id"] in self.sent]
        assert len(jobs) == len(self.sent)
        assert await self.running.wait(jobs, seconds) == ["completed"] * len(jobs)
        return jobs


JOBS_POINTS = {"orchestrator": DECIDING, "worker": [*WORKING, *PAYLOADS]}


@pytest.mark.requirement("E5", "E11")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "points", [JOBS_POINTS, pytest.param(BACKGROUND, marks=pytest.mark.slow)], ids=["jobs", "background"]
)
async def test_processes_die_at_one_crash_point_after_the_other_and_others_finish_the_jobs(points, database, tmp_path):
    """Both roles at the same time: a process that takes over dies soon as well."""
    (tmp_path / "swept.yaml").write_text(textwrap.dedent(SWEPT))
    often = {"janitor_interval_sec": 0.3, "retention_days": 1, "max_losses": 50, "workflow_folders": tmp_path}
    async with fleet(database, tmp_path, **QUICK, **often) as running:
        sweep = Sweep(running, "swept")
        processes = running.process("orchestrator"), running.process("worker")

        async def die(process: Process) -> None:
            wanted = points[process.role]
            assert await sweep.interrupt(process, wanted) == set(wanted)
            if points is BACKGROUND:
                await sweep.stop(process, STOPPING[process.role])

        await asyncio.gather(*map(die, processes))

        await _assert_complete(running, await sweep.finish(*processes))


@pytest.mark.requirement("E5", "E11")
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("point", LOOPS)
async def test_a_process_dies_at_each_visit_to_a_crash_point_and_another_one_finishes_the_jobs(
    point, cluster, template_database, tmp_path
):
    """It dies at its first visit, then at its second, … until the jobs end before that visit."""
    for visit in range(1, 100):
        folder = tmp_path / str(visit)
        folder.mkdir()
        with fresh_database(cluster, template_database) as database:
            if not await _sweep(database, folder, point, visits=(visit,)):
                break
    print(f"\n{point}: {visit - 1} visits swept")
    assert visit > 1


async def _sweep(database: str, folder: Path, point: str, visits: tuple[int, ...]) -> bool:
    """Let a process die at these visits to a crash point; the jobs complete. Whether it died at each of them."""
    role = point.partition(".")[0]
    peers = {"orchestrators": 1} if role == "worker" else {"workers": 1}
    async with fleet(database, folder, **peers, **QUICK) as running:
        jobs = await running.submit(SWEPT, 2)
        doomed = running.process(role)

        deaths = 0
        for visit in visits:
            doomed.start(crash_point=f"{point}:{visit}")
            deaths += await _has_died(running, doomed, jobs)
        if not doomed.is_running:
            doomed.start()

        assert await running.wait(jobs) == ["completed"] * 2
        await _assert_complete(running, jobs)
        return deaths == len(visits)


async def _has_died(running: Fleet, doomed: Process, jobs: list[UUID]) -> bool:
    """Whether the process died at its crash point before the jobs had ended."""

    async def over() -> bool:
        states = await running.rows("SELECT status FROM dagapp.dag_jobs WHERE job_id = ANY (%s)", jobs)
        return not doomed.is_running or all(row["status"] in END_STATES for row in states)

    await running.until(over, 20, f"{doomed.name} to die")
    assert doomed.exit_code in (CRASHED, None)
    return not doomed.is_running


async def _assert_complete(running: Fleet, jobs) -> None:
    for job_id in jobs:
        job, nodes = await running.job(job_id), await running.nodes(job_id)
        children = [node for name, node in nodes.items() if name.startswith("each__")]
        assert job["result_data"] == {"count": CHILDREN}
        assert [child["status"] for child in children] == ["completed"] * CHILDREN
        assert nodes["few"]["status"] == "skipped"
        assert any(child["retry_count"] for child in children), "no child was retried"


# --- commands of users die as well ------------------------------------------------------------------------------------


@pytest.mark.requirement("E2")
async def test_when_a_submitter_dies_its_jobs_exist_completely_or_not_at_all(database, tmp_path):
    """A submitter that does not know whether its job was created submits it again with its key, and gets one job."""
    async with fleet(database, tmp_path) as running:
        file = tmp_path / "swept.yaml"
        file.write_text(SWEPT)

        async def submit(point: str | None, *arguments: str) -> list[UUID]:
            await _run(running, point, "submit", str(file), *arguments)
            return [row["job_id"] for row in await running.rows("SELECT job_id FROM dagapp.dag_jobs")]

        assert await submit("submit.before-commit", "3") == []
        assert await submit("submit_once.before-commit", "1", "key") == []
        for table in ("dag_node_states", "dag_job_events", "dag_idempotency_keys"):
            assert not await running.rows(f"SELECT 1 FROM dagapp.{table}")
        assert len(await submit("submit.after-commit", "3")) == 3
        assert len(await submit("submit_once.after-commit", "1", "key")) == 4
        jobs = await submit(None, "1", "key")

        assert len(jobs) == 4
        await running.start("orchestrator")
        await running.start("worker")
        assert await running.wait(jobs) == ["completed"] * 4
        await _assert_complete(running, jobs)


@pytest.mark.requirement("E15", "E16")
async def test_when_a_client_dies_its_cancel_or_resume_is_recorded_completely_or_not_at_all(database, tmp_path):
    held = """
        workflow_id: held
        version: 1
        nodes:
          start: {type: start, next: hold}
          hold: {handler: note, params: {file: "{{ inputs.file }}", seconds: [60, 0]}, next: end}
          end: {type: end}
        inputs:
          file: {type: string, required: true}
        """
    async with fleet(database, tmp_path, orchestrators=1, workers=1) as running:
        job_id = await running.submit_one(held, file=str(running.executions))
        await running.running(job_id)

        async def requests(event: str) -> int:
            return len(await running.events(job_id, event))

        await _run(running, "request_cancel.before-commit", "cancel", str(job_id))
        assert (await running.job(job_id))["status"] == "running"
        await _run(running, "request_cancel.after-commit", "cancel", str(job_id))
        assert await running.wait(job_id) == ["cancelled"]
        await _run(running, "rerun.before-commit", "resume", str(job_id))
        assert (await running.job(job_id))["status"] == "cancelled"
        assert await requests("job_resumed") == 0
        await _run(running, "rerun.after-commit", "resume", str(job_id))
        assert await running.wait(job_id) == ["completed"]
        assert await requests("job_resumed") == 1


async def _run(running: Fleet, point: str | None, *arguments: str) -> None:
    """Run a command of a user, which dies at the crash point if one is given."""
    person = running.process("person", "-m", "tests.engine.roles", *arguments)
    person.start(crash_point=point)
    assert await person.ended() == (CRASHED if point else 0)


# --- each workflow that comes with dagmaster -------------------------------------------------------------------------


@dataclass(frozen=True)
class SweepPlan:
    """How a shipped workflow is swept."""

    inputs: Mapping[str, Any] = field(default_factory=dict)
    more: Sequence[str] = ()  # the crash points that its jobs reach in addition to the common ones
    same: Sequence[str] = ()  # the fields of the result that are the same in each job; all if empty
    items: int = 0  # the number of STAC items of each job


SCENE = {"container_name": "bronze", "blob_name": "scene.tif"}
TILED = {**SCENE, "tile_size": 512, "overlap": 0}
SWEEP_PLANS = {
    "conditional_test": SweepPlan(),
    "demo": SweepPlan({"count": 12}),
    "echo_test": SweepPlan(),
    "fan_out_test": SweepPlan(),
    "hello_world": SweepPlan(),
    "multi_phase_test": SweepPlan({"phases": 2, "seconds_per_phase": 0.1}, CHECKPOINTS, ("digest",)),
    "process_large_raster": SweepPlan(TILED, RASTERS, ("total_tiles",), 2),
    "raster_collection": SweepPlan({"blob_names": ["scene.tif", "other.tif"]}, RASTERS, ("item_count",), 2),
    "raster_ingest": SweepPlan(SCENE, RASTERS, ("total_tiles",), 1),
    "raster_tiled_processing": SweepPlan({**TILED, "tile_above_mb": 0}, RASTERS, ("total_tiles",), 2),
    "raster_validate": SweepPlan(SCENE),
    "retry_fan_out_test": SweepPlan(),
    "retry_test": SweepPlan(),
    "stac_register": SweepPlan(more=_around("documents")),
}
# They need a public asset: tests/external/test_crashes.py.
WORKFLOWS_OF_EXTERNAL_COPIES = ("adf_export", "external_export", "unpublish")
LONG_LEASES = {"orphan_threshold_sec": 0.8, "task_lease_sec": 2.0, "lease_renew_sec": 0.4, "max_losses": 100}


def test_every_workflow_that_ships_is_swept():
    others = WORKFLOWS_OF_EXTERNAL_COPIES
    assert list(SWEEP_PLANS) == [path.stem for path in shipped() if path.stem not in others]


@pytest.mark.requirement("E5", "E11", "C1")
@pytest.mark.timeout(240)
async def test_a_raster_job_continues_after_a_death_at_each_upload_publication_and_document(catalog_database, tmp_path):
    async with _trial(catalog_database, tmp_path, "process_large_raster") as trial:
        trial.orchestrator.start()
        assert await trial.sweep.interrupt(trial.worker, RASTERS) == set(RASTERS)


@pytest.mark.requirement("E5", "E11")
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SWEEP_PLANS)
async def test_jobs_of_a_shipped_workflow_have_the_same_result_wherever_processes_die(name, request, tmp_path):
    """Processes of both roles die at every crash point that the jobs reach."""
    plan = SWEEP_PLANS[name]
    dsn = request.getfixturevalue("catalog_database" if _is_raster(plan) else "database")
    async with _trial(dsn, tmp_path, name) as trial:
        deaths = await asyncio.gather(
            trial.sweep.interrupt(trial.orchestrator, DECIDING),
            trial.sweep.interrupt(trial.worker, [*WORKING, *PAYLOADS, *CHECKPOINTS, *RASTERS]),
        )

        assert deaths[0] == set(DECIDING)
        assert deaths[1] == {*WORKING, *plan.more}
        print(f"\n{name}: {sum(map(len, deaths))} points, {len(trial.sweep.sent)} jobs")


@dataclass
class Trial:
    sweep: Sweep
    orchestrator: Process
    worker: Process


def _is_raster(plan: SweepPlan) -> bool:
    return bool({*RASTERS} & {*plan.more})


@asynccontextmanager
async def _trial(dsn: str, folder: Path, name: str) -> AsyncIterator[Trial]:
    """Two processes to be killed; afterwards every job must have the same result as an undisturbed one before them."""
    plan = SWEEP_PLANS[name]
    storage = folder / "storage"
    if _is_raster(plan):
        scene(storage / "bronze" / "bronze" / "scene.tif", 700, 300)
        scene(storage / "bronze" / "bronze" / "other.tif", 300, 200, place=Affine(10, 0, 510_000, 0, -10, 5_300_000))
    async with fleet(dsn, folder, storage_folder=storage, **LONG_LEASES) as running:
        orchestrator, worker = running.process("orchestrator"), running.process("worker")
        inputs = plan.inputs
        if name == "stac_register":
            (first,) = await _run_undisturbed(Sweep(running, "raster_ingest", SCENE), orchestrator, worker)
            inputs = {"dataset_id": f"job-{first}"}
        sweep = Sweep(running, name, inputs, has_datasets=bool(plan.items))
        (before,) = await _run_undisturbed(sweep, orchestrator, worker)

        yield Trial(sweep, orchestrator, worker)

        jobs = await sweep.finish(orchestrator, worker, seconds=240)
        expected = await _outcome(running, before, plan)
        assert expected
        for job_id in jobs:
            assert await _outcome(running, job_id, plan) == expected
        if plan.items:
            # Files that interrupted attempts have left are in other folders.
            cogs = sorted((storage / "silver" / "silver").rglob("*.tif"))
            items = await running.rows("SELECT 1 FROM dagapp.stac_documents WHERE document_id <> ''")
            assert len(cogs) == len(items) == plan.items * len(jobs)
            assert all(cog_validate(cog, strict=True, quiet=True)[0] for cog in cogs)


async def _run_undisturbed(sweep: Sweep, *processes: Process) -> list[UUID]:
    await sweep.send()
    jobs = await sweep.finish(*processes)
    for process in processes:
        process.kill()
    return jobs


async def _outcome(running: Fleet, job_id: UUID, plan: SweepPlan) -> dict[str, Any]:
    result = (await running.job(job_id))["result_data"]
    return {key: result[key] for key in plan.same or result}
