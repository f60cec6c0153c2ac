"""Faults of real processes: kill -9, SIGSTOP and SIGCONT, clean stops, a killed database, tasks that kill processes.

Intervals are short here (see `processes.FAST`): orphans after 1.2 s, leases of 1.5 s.
"""

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import psycopg
import pytest

from dagmaster.database.maintenance.history import verify
from dagmaster.database.schema.deploy import deploy
from dagmaster.errors import Unavailable
from dagmaster.local.embedded import Cluster
from tests.engine.harness import engine
from tests.engine.processes import Fleet, Process, fleet, is_alive

pytestmark = pytest.mark.alone

ONE_TASK = """
    workflow_id: one_task
    name: One task
    version: 1
    inputs:
      file: {type: string}
      seconds: {type: array, default: [0]}
    nodes:
      start: {type: start, next: work}
      work:
        handler: note
        timeout_seconds: 3600
        params: {file: "{{ inputs.file }}", seconds: "{{ inputs.seconds }}"}
        next: end
      end: {type: end}
    """


def single(handler: str, params: str = "{}", **fields: object) -> str:
    """A workflow of one task."""
    more = "".join(f"\n        {name}: {value}" for name, value in fields.items())
    return f"""
    workflow_id: single_{handler}
    name: Single
    version: 1
    nodes:
      start: {{type: start, next: work}}
      work:
        handler: {handler}
        params: {params}{more}
        next: end
      end: {{type: end}}
    """


def chain(length: int, seconds: float, file: Path) -> str:
    """Tasks one after the other: the orchestrator is needed after each."""
    steps = "".join(
        f"""
      step{number}:
        handler: note
        params: {{file: "{file}", seconds: {seconds}}}
        next: {f"step{number + 1}" if number < length else "end"}"""
        for number in range(1, length + 1)
    )
    return f"""
    workflow_id: chain
    name: Chain
    version: 1
    nodes:
      start: {{type: start, next: step1}}{steps}
      end: {{type: end}}
    """


def fans(file: Path, light: int, heavy: int, seconds: float) -> str:
    """Two fan-outs side by side: async handlers, and plain ones in child processes."""
    return f"""
    workflow_id: fans
    name: Fans
    version: 1
    nodes:
      start: {{type: start, next: [lights, heavies]}}
      lights:
        type: fan_out
        source: "{{{{ {list(range(light))} }}}}"
        task: {{handler: note, params: {{file: "{file}", seconds: {seconds}, value: "{{{{ item }}}}"}}}}
        next: light_sum
      heavies:
        type: fan_out
        source: "{{{{ {list(range(heavy))} }}}}"
        task: {{handler: note_blocking, params: {{file: "{file}", seconds: {seconds}, value: "{{{{ item }}}}"}}}}
        next: heavy_sum
      light_sum: {{type: fan_in, aggregation: sum, next: end}}
      heavy_sum: {{type: fan_in, aggregation: sum, next: end}}
      end: {{type: end}}
    outputs:
      light: "{{{{ nodes.light_sum.output.total }}}}"
      heavy: "{{{{ nodes.heavy_sum.output.total }}}}"
    """


# Kills at random instants


@pytest.mark.requirement("E5", "E7", "E11")
async def test_fifty_random_kills_lose_no_job_and_count_no_result_twice(database, tmp_path):
    kills, light, heavy = 50, 44, 6
    dice = random.Random(20240229)
    async with fleet(database, tmp_path, orchestrators=3, workers=3, max_losses=20, worker_processes=1) as running:
        definition = fans(running.executions, light, heavy, 0.01)
        started = time.monotonic()

        async def keep_busy() -> None:
            while True:
                open_jobs = "SELECT count(*) AS n FROM dagapp.dag_jobs WHERE status IN ('pending', 'running')"
                if (await running.rows(open_jobs))[0]["n"] < 4:
                    await running.submit(definition, 2)
                await asyncio.sleep(0.05)

        stream = asyncio.create_task(keep_busy())
        for _ in range(kills):
            await asyncio.sleep(dice.uniform(0.05, 0.75))
            victim = dice.choice(running.processes)
            victim.kill()
            victim.start()
        stream.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await stream
        # The database knows all jobs: a submission that was cancelled may have been committed.
        jobs = [row["job_id"] for row in await running.rows("SELECT job_id FROM dagapp.dag_jobs")]
        killed_for = time.monotonic() - started
        states = Counter(await running.wait(jobs, 40))
        seconds = time.monotonic() - started

        assert states == {"completed": len(jobs)}
        results = [(await running.job(job_id))["result_data"] for job_id in jobs]
        assert results == [{"light": sum(range(light)), "heavy": sum(range(heavy))}] * len(jobs)
        children = await _children_of_running_workers(running)
        assert running.survivors().keys() <= children, "a child process outlived its worker"
        print(f"\n{kills} kills in {killed_for:.1f} s, all done after {seconds:.1f} s")
        _print_duplicates(running, len(jobs) * (light + heavy), kills)
        assert seconds < 60


async def _children_of_running_workers(running: Fleet) -> set[int]:
    """The child processes of live workers, after those of dead workers had time to end."""
    await asyncio.sleep(0.3)
    workers = {process.pid for process in running.processes if process.is_running}
    children = set()
    for pid in running.survivors():
        ancestor = pid
        while ancestor > 1 and ancestor not in workers:
            ancestor = _parent_of(ancestor)
        if ancestor in workers:
            children.add(pid)
    return children


def _parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _print_duplicates(running: Fleet, tasks: int, kills: int) -> None:
    """Tasks may run more than once, but every task must have run."""
    executed = running.executed()
    again = len(executed) - tasks
    assert len({(job, node) for job, node, _ in executed}) == tasks
    print(f"{tasks} tasks, {len(executed)} executions, {again} of them repeated ({again / kills:.1f} per kill)")


# Orchestrators


async def _watch_claims(running: Fleet) -> None:
    """Record every claim, and which process wrote each event: a row has only its last owner, and an event has none."""
    await running.rows("""
        CREATE TABLE public.claims (job_id uuid, epoch bigint, owner_id uuid, claim_token uuid,
                                    at timestamptz DEFAULT clock_timestamp(),
                                    process text DEFAULT current_setting('application_name'))""")
    await running.rows("""
        CREATE TABLE public.writers (job_id uuid, sequence bigint, epoch bigint,
                                     process text DEFAULT current_setting('application_name'))""")
    await running.rows("""
        CREATE FUNCTION public.note_writer() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            INSERT INTO public.writers VALUES (NEW.job_id, NEW.sequence, NEW.epoch);
            RETURN NULL;
        END $$""")
    await running.rows("""
        CREATE TRIGGER note_writer AFTER INSERT ON dagapp.dag_job_events FOR EACH ROW
        EXECUTE FUNCTION public.note_writer()""")
    await running.rows("""
        CREATE FUNCTION public.note_claim() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            INSERT INTO public.claims VALUES (NEW.job_id, NEW.epoch, NEW.owner_id, NEW.claim_token);
            RETURN NULL;
        END $$""")
    await running.rows("""
        CREATE TRIGGER note_claim AFTER UPDATE ON dagapp.dag_jobs FOR EACH ROW
           WHEN (NEW.owner_id IS DISTINCT FROM OLD.owner_id OR NEW.claim_token IS DISTINCT FROM OLD.claim_token)
        EXECUTE FUNCTION public.note_claim()""")


async def _assert_one_owner_at_a_time(running: Fleet, jobs: list[UUID]) -> int:
    """Each event was written by the owner at that time; returns how many jobs had more than one owner."""
    by_others = await running.rows("""
        SELECT w.*, c.process AS owner FROM public.writers w
          LEFT JOIN public.claims c ON c.job_id = w.job_id AND c.epoch = w.epoch AND c.owner_id IS NOT NULL
         WHERE w.epoch > 0 AND c.process IS DISTINCT FROM w.process LIMIT 10""")
    assert not by_others, by_others
    passed_on = 0
    for job_id in jobs:
        claims = await running.rows("SELECT * FROM public.claims WHERE job_id = %s ORDER BY at", job_id)
        owned = [claim for claim in claims if claim["owner_id"]]
        epochs = [claim["epoch"] for claim in owned]
        assert epochs == list(range(1, len(owned) + 1)), "each claim must have its own epoch"
        passed_on += len({claim["owner_id"] for claim in owned}) > 1
        since = {claim["epoch"]: claim["at"] for claim in owned}
        # What an orchestrator writes carries the database's time; a worker's times may lie before.
        events = await running.events(job_id)
        assert all(one["epoch"] <= next_one["epoch"] for one, next_one in pairwise(events))
        for event in await running.events(job_id, "node_ready", "node_dispatched", "job_started", "job_completed"):
            if event["epoch"]:
                assert since[event["epoch"]] <= event["created_at"], "an event is older than its epoch"
                until = since.get(event["epoch"] + 1)
                assert until is None or event["created_at"] <= until, (
                    "an event was written by an owner that had been replaced"
                )
    return passed_on


@pytest.mark.requirement("P3", "E5", "E6")
async def test_three_orchestrators_share_the_jobs_and_each_job_has_one_owner_at_a_time(database, tmp_path):
    async with fleet(database, tmp_path, orchestrators=3, workers=1, worker_slots=100) as running:
        await _watch_claims(running)
        one, two, _ = running.processes[:3]
        jobs = await running.submit(chain(6, 0.4, running.executions), 60)

        shares = await _shares(running, len(jobs))
        one.signal(signal.SIGTERM)
        two.kill()
        two.start()
        one_code = await one.ended()
        one.start()
        states = await running.wait(jobs, 40)

        assert sorted(shares.values()) == [20, 20, 20], "the jobs are not spread evenly"
        assert one_code == 0
        assert set(states) == {"completed"}
        assert await _assert_one_owner_at_a_time(running, jobs) >= 30


async def _shares(running: Fleet, count: int) -> Counter[UUID]:
    async def all_claimed() -> Counter[UUID] | None:
        rows = await running.rows("SELECT owner_id FROM dagapp.dag_jobs WHERE owner_id IS NOT NULL")
        return Counter(row["owner_id"] for row in rows) if len(rows) == count else None

    return await running.until(all_claimed, 10, "all jobs to be claimed")


@pytest.mark.requirement("E5", "E6")
async def test_an_orchestrator_that_wakes_up_does_not_write_to_jobs_that_it_has_lost(database, tmp_path):
    """It is frozen repeatedly at random moments. Decisions that it made before must not be written."""
    dice = random.Random(6)
    async with fleet(database, tmp_path, orchestrators=2, workers=1, worker_slots=100) as running:
        await _watch_claims(running)
        zombie = running.processes[0]
        zombie_id = await running.id_of(zombie)
        jobs = await running.submit(chain(40, 0.05, running.executions), 20)

        async def has_lost_all() -> bool:
            return not await running.rows("SELECT 1 FROM dagapp.dag_jobs WHERE owner_id = %s", zombie_id)

        for _ in range(2):
            await asyncio.sleep(dice.uniform(0.3, 0.6))
            zombie.freeze()
            await running.until(has_lost_all, 15, "the other orchestrator to take over")
            await asyncio.sleep(0.2)
            zombie.thaw()
            await asyncio.sleep(0.4)
            zombie, zombie_id = await _busiest(running)
        fenced = sum([(await running.stats(process)).get("fenced", 0) for process in running.processes[:2]])
        states = await running.wait(jobs, 40)

        assert await _assert_one_owner_at_a_time(running, jobs) >= 10
        assert set(states) == {"completed"}
        assert fenced >= 20


async def _busiest(running: Fleet) -> tuple[Process, UUID]:
    rows = await running.rows("""
        SELECT owner_id FROM dagapp.dag_jobs WHERE owner_id IS NOT NULL GROUP BY 1 ORDER BY count(*) DESC LIMIT 1""")
    owner = await running.process_of("orchestrator", rows[0]["owner_id"])
    assert owner is not None
    return owner, rows[0]["owner_id"]


@pytest.mark.requirement("E5", "E6")
async def test_a_frozen_orchestrator_is_replaced_and_changes_nothing_when_it_wakes_up(database, tmp_path):
    async with fleet(database, tmp_path, orchestrators=2, workers=1) as running:
        await _watch_claims(running)
        job_id = await running.submit_one(chain(4, 0.5, running.executions))
        await running.running(job_id)
        zombie = await _frozen_owner(running, job_id)

        (state,) = await running.wait(job_id, 20)
        before = await _rows_of(running, job_id)
        zombie.thaw()
        stats = await running.until(lambda: _stats_with_any(running, zombie, "fenced"), 10, "the zombie to be fenced")

        assert state == "completed"
        assert stats["fenced"] > 0
        assert stats["jobs"] == 0, "the zombie still believes that it owns the job"
        assert await _rows_of(running, job_id) == before
        assert await _assert_one_owner_at_a_time(running, [job_id]) == 1
        assert await running.wait(await running.submit_one(chain(1, 0, running.executions))) == ["completed"]


async def _frozen_owner(running: Fleet, job_id: UUID) -> Process:
    """Freeze the owner between two transactions: if it had the row of the job locked, it would block its successor."""
    while True:
        owner = await running.owner_of(job_id)
        assert owner is not None
        owner.freeze()
        if not await _is_locked(running, job_id):
            return owner
        owner.thaw()
        await asyncio.sleep(0.01)


async def _is_locked(running: Fleet, job_id: UUID) -> bool:
    await asyncio.sleep(0.05)  # the server still executes what the process sent before it was frozen
    return not await running.rows(
        "SELECT 1 FROM dagapp.dag_jobs WHERE job_id = %s FOR NO KEY UPDATE SKIP LOCKED", job_id
    )


async def _rows_of(running: Fleet, job_id: UUID) -> list[object]:
    return [
        await running.job(job_id),
        await running.nodes(job_id),
        await running.tasks(job_id),
        await running.events(job_id),
    ]


async def _stats_with_any(running: Fleet, process: Process, *counters: str) -> dict[str, int]:
    """The stats of a process if one of these counters is not zero, otherwise nothing."""
    stats = await running.stats(process)
    return stats if any(stats.get(name) for name in counters) else {}


@pytest.mark.requirement("E5", "E6")
async def test_the_jobs_of_an_orchestrator_frozen_inside_a_transaction_are_taken_over(database, tmp_path):
    """It keeps the job's row locked; the orchestrator that takes over ends its session, and with it the lock."""
    async with fleet(database, tmp_path, orchestrators=2, workers=1) as running:
        job_id = await running.submit_one(chain(50, 0.01, running.executions))
        zombie = await _owner_frozen_inside_transaction(running, job_id)

        states = await running.wait(job_id, 12)
        zombie.thaw()
        await running.until(
            lambda: _stats_with_any(running, zombie, "fenced", "errors"), 10, "the zombie to notice that it was fenced"
        )

        assert states == ["completed"]


async def _owner_frozen_inside_transaction(running: Fleet, job_id: UUID) -> Process:
    owner = await running.until(lambda: running.owner_of(job_id), 10, "an owner")
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        owner.freeze()
        if await _is_locked(running, job_id):
            return owner
        owner.thaw()
        await asyncio.sleep(random.uniform(0.001, 0.02))
    raise TimeoutError("the orchestrator was never frozen inside a transaction")


@pytest.mark.requirement("E5")
async def test_a_stopped_orchestrator_hands_its_jobs_over_within_two_seconds(database, tmp_path):
    """The heartbeat is not the reason: here an orchestrator counts as dead only after a minute."""
    async with fleet(database, tmp_path, orchestrators=2, workers=1, orphan_threshold_sec=60) as running:
        job_id = await running.submit_one(chain(8, 0.3, running.executions))
        await running.running(job_id)
        owner = await running.owner_of(job_id)
        epoch = (await running.job(job_id))["epoch"]

        started = time.monotonic()
        owner.signal(signal.SIGTERM)
        await running.until(lambda: _acted_on(running, job_id, epoch + 1), 10, "the other orchestrator to continue")
        seconds = time.monotonic() - started

        assert seconds < 2
        assert await owner.ended() == 0
        assert await running.wait(job_id) == ["completed"]


async def _acted_on(running: Fleet, job_id: UUID, epoch: int) -> bool:
    return any(event["epoch"] >= epoch for event in await running.events(job_id))


# Workers


@pytest.mark.requirement("E11")
async def test_the_task_of_a_lost_worker_runs_again_long_before_its_timeout(database, tmp_path):
    async with fleet(database, tmp_path, orchestrators=1, workers=1) as running:
        job_id = await running.submit_one(ONE_TASK, file=str(running.executions), seconds=[600, 0])
        await running.running(job_id)
        await running.start("worker")

        started = time.monotonic()
        running.processes[1].kill()
        states = await running.wait(job_id)
        seconds = time.monotonic() - started

        assert states == ["completed"]
        assert seconds < 4
        assert [task["status"] for task in await running.tasks(job_id)] == ["lost", "succeeded"]
        node = (await running.nodes(job_id))["work"]
        assert (node["retry_count"], node["loss_count"]) == (0, 1)


@pytest.mark.requirement("E7", "E11")
async def test_tasks_of_a_frozen_worker_run_on_another_one_and_its_late_reports_are_ignored(database, tmp_path):
    """One task ends while its worker is frozen and is reported too late; the other still runs and is stopped."""
    async with fleet(database, tmp_path, orchestrators=1, workers=1) as running:
        frozen = running.processes[1]
        file = str(running.executions)
        ending = await running.submit_one(ONE_TASK, file=file, seconds=[1, 0])
        lasting = await running.submit_one(ONE_TASK, file=file, seconds=[600, 0])
        await running.running(ending)
        await running.running(lasting)
        frozen.freeze()
        await running.start("worker")

        started = time.monotonic()
        states = await running.wait([ending, lasting], 20)
        seconds = time.monotonic() - started
        before = [await running.nodes(job_id) for job_id in (ending, lasting)]
        frozen.thaw()
        stats = await running.until(
            lambda: _stats_with_all(running, frozen, "late_reports", "lost_tasks"),
            10,
            "the late report of the frozen worker",
        )

        assert states == ["completed"] * 2
        assert seconds < 5
        assert (stats["late_reports"], stats["lost_tasks"]) == (1, 1)
        results = await running.rows("SELECT job_id, attempt, accepted FROM dagapp.dag_task_results ORDER BY 1, 2")
        assert [(row["job_id"], row["attempt"], row["accepted"]) for row in results] == [
            (ending, 1, False),
            (ending, 2, True),
            (lasting, 2, True),
        ]
        assert [await running.nodes(job_id) for job_id in (ending, lasting)] == before
        assert frozen.is_running


async def _stats_with_all(running: Fleet, process: Process, *counters: str) -> dict[str, int]:
    stats = await running.stats(process)
    return stats if all(stats.get(name) for name in counters) else {}


@pytest.mark.requirement("E22")
async def test_a_stopped_worker_gives_its_tasks_back_without_using_up_a_retry(database, tmp_path):
    """One handler stops on request; an async one and a plain one do not. Leases and timeouts are far longer."""
    async with fleet(
        database, tmp_path, orchestrators=1, workers=1, task_lease_sec=60, lease_renew_sec=1, shutdown_grace_sec=0.5
    ) as running:
        stopped = running.processes[1]
        note = f'{{file: "{running.executions}", seconds: [600, 0]}}'
        jobs = [
            await running.submit_one(single("note", note)),
            await running.submit_one(single("note_blocking", note)),
        ]
        await running.until(lambda: _has_executed(running, 2), 20, "the handlers to start")
        jobs.append(await running.submit_one(single("sleep", "{seconds: 2.5}")))
        for job_id in jobs:
            await running.running(job_id)

        started = time.monotonic()
        stopped.signal(signal.SIGTERM)
        code = await stopped.ended(10)
        stopped_after = time.monotonic() - started
        await running.start("worker")
        states = await running.wait(jobs, 20)

        assert code == 0
        assert stopped_after < 3
        assert states == ["completed"] * 3
        for job_id in jobs:
            node = (await running.nodes(job_id))["work"]
            assert (node["attempt"], node["retry_count"], node["loss_count"]) == (2, 0, 0)
            assert [task["status"] for task in await running.tasks(job_id)] == ["returned", "succeeded"]


@pytest.mark.requirement("E22")
@pytest.mark.parametrize("signals", [1, 2])
async def test_a_worker_whose_handler_ignores_its_cancellation_ends_within_its_grace_period(
    database, tmp_path, signals
):
    grace_seconds = 4.0
    async with fleet(
        database,
        tmp_path,
        orchestrators=1,
        workers=1,
        task_lease_sec=60,
        lease_renew_sec=1,
        shutdown_grace_sec=grace_seconds,
    ) as running:
        stopped = running.processes[1]
        job_id = await running.submit_one(single("ignore_cancellation", "{}"))
        await running.running(job_id)

        started = time.monotonic()
        for _ in range(signals):
            stopped.signal(signal.SIGTERM)
            await asyncio.sleep(0.2)
        code = await stopped.ended(15)
        seconds = time.monotonic() - started

        assert code == 0
        assert seconds < grace_seconds + 2
        tasks = await running.tasks(job_id)
        assert tasks[0]["status"] == "returned"


async def _has_executed(running: Fleet, count: int) -> bool:
    return len(running.executed()) >= count


# Handlers


@pytest.mark.requirement("E10")
async def test_a_handler_that_exceeds_its_timeout_is_killed_with_its_programs_and_retried(database, tmp_path):
    retry = "{max_attempts: 1, backoff: fixed, initial_delay_seconds: 0.1}"
    async with fleet(database, tmp_path, orchestrators=1, workers=1) as running:
        file = running.executions
        jobs = [
            await running.submit_one(single("spawn_and_hang", f'{{file: "{file}"}}', timeout_seconds=1, retry=retry)),
            await running.submit_one(single("hang", timeout_seconds=1, retry=retry)),
        ]

        states = await running.wait(jobs, 20)

        assert states == ["failed"] * 2
        for job_id in jobs:
            failures = await running.events(job_id, "node_failed")
            assert [event["event_data"]["error"]["code"] for event in failures] == ["handler.timed-out"] * 2
            assert (await running.nodes(job_id))["work"]["retry_count"] == 1
            assert "1 s" in (await running.job(job_id))["error_message"]
        pids = [int(pid) for line in file.read_text().splitlines() for pid in line.split()[3:5]]
        assert len(pids) == 4
        assert not [pid for pid in pids if is_alive(pid)], "a handler or its program outlived its timeout"
        idle = [name for name in running.survivors().values() if "dagmaster.worker.supervisor" not in name]
        assert not idle
        assert running.processes[1].is_running


@pytest.mark.requirement("E11", "E12")
async def test_a_task_that_kills_its_process_each_time_fails_and_the_worker_survives(database, tmp_path):
    async with fleet(database, tmp_path, orchestrators=1, workers=1, max_losses=2) as running:
        poison = await running.submit_one(single("crash", "{exit_code: 11}"))
        others = await running.submit(ONE_TASK, 5, file=str(running.executions))

        (state,) = await running.wait(poison)

        node, job = (await running.nodes(poison))["work"], await running.job(poison)
        assert state == "failed"
        assert (node["attempt"], node["loss_count"], node["retry_count"]) == (3, 2, 0)
        assert node["error"]["code"] == "worker.child-died"
        assert "exit code 11" in job["error_message"]
        assert running.processes[1].is_running
        assert running.processes[1].starts == 1
        assert set(await running.wait(others)) == {"completed"}


@pytest.mark.requirement("E11")
async def test_a_task_that_kills_its_worker_each_time_fails(database, tmp_path):
    async with fleet(
        database, tmp_path, orchestrators=1, workers=1, max_losses=2, task_lease_sec=0.8, lease_renew_sec=0.2
    ) as running:
        worker = running.processes[1]
        poison = await running.submit_one(single("kill_worker", f'{{file: "{running.executions}"}}'))

        watching = asyncio.create_task(_restart_whenever_it_ends(worker))
        (state,) = await running.wait(poison)
        others = await running.wait(await running.submit(ONE_TASK, 5, file=str(tmp_path / "others")))
        watching.cancel()

        node, job = (await running.nodes(poison))["work"], await running.job(poison)
        assert state == "failed"
        assert len(running.executed()) == 3
        assert worker.starts == 4
        assert (node["attempt"], node["loss_count"], node["error"]["code"]) == (3, 2, "task.lost")
        assert "worker was lost 3 times" in job["error_message"]
        assert set(others) == {"completed"}


async def _restart_whenever_it_ends(process: Process) -> None:
    while True:
        if not process.is_running:
            process.start()
        await asyncio.sleep(0.05)


# The database


@pytest.mark.requirement("E27")
async def test_nothing_is_lost_when_postgresql_is_killed_and_started_again(tmp_path):
    """The server gets kill -9; its data is durable (fsync)."""
    cluster = Cluster.at(None if os.geteuid() == 0 else tmp_path / "cluster", name=f"test-faults-{os.getpid()}")
    try:
        cluster.start()
        deploy(cluster.dsn)
        async with fleet(cluster.dsn, tmp_path, orchestrators=2, workers=2) as running:
            jobs = await running.submit(fans(running.executions, 30, 2, 0.2), 6)
            pids = [process.pid for process in running.processes]
            await running.running(jobs[0], 5)

            os.kill(cluster.server_pid() or 0, signal.SIGKILL)
            cluster.start()
            started = time.monotonic()
            states = await running.wait(jobs, 40)
            seconds = time.monotonic() - started

            print(f"\nall done {seconds:.1f} s after the database was back")
            assert set(states) == {"completed"}
            assert seconds < 20
            assert [process.pid for process in running.processes if process.is_running] == pids
    finally:
        cluster.remove()


@pytest.mark.requirement("E27")
async def test_the_loops_continue_after_all_their_sessions_are_terminated(database, tmp_path):
    async with fleet(database, tmp_path, orchestrators=2, workers=2) as running:
        jobs = await running.submit(fans(running.executions, 30, 2, 0.1), 4)
        pids = [process.pid for process in running.processes]

        ended = 0
        for _ in range(5):
            await asyncio.sleep(0.3)
            ended += len(
                await running.rows("""
                SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                 WHERE datname = current_database() AND pid <> pg_backend_pid()""")
            )
        states = await running.wait(jobs, 30)
        after = await running.wait(await running.submit(ONE_TASK, file=str(running.executions)), 10)

        assert ended >= 30
        assert set(states) == {"completed"}
        assert after == ["completed"]
        assert [process.pid for process in running.processes if process.is_running] == pids


@pytest.mark.requirement("E27")
async def test_a_statement_that_fails_for_any_reason_does_not_end_a_loop(database, tmp_path):
    """This is not an outage: tables are missing for a while, as after a failed deployment."""
    async with fleet(database, tmp_path, orchestrators=1, workers=1) as running:
        pids = [process.pid for process in running.processes]
        for table in ("dag_job_messages", "dag_jobs", "dag_tasks", "orchestrators", "workers"):
            await running.rows(f"ALTER TABLE dagapp.{table} RENAME TO away")
            await asyncio.sleep(0.7)
            await running.rows(f"ALTER TABLE dagapp.away RENAME TO {table}")

        states = await running.wait(await running.submit(ONE_TASK, 3, file=str(running.executions)), 20)

        assert set(states) == {"completed"}
        assert [process.pid for process in running.processes if process.is_running] == pids


class LostResponses:
    """A ledger that executes every call, but sometimes raises an error, as if the connection broke after the commit."""

    def __init__(self, ledger: Any, dice: random.Random, share: float, only: Sequence[str] = ()) -> None:
        self._ledger = ledger
        self._dice = dice
        self._share = share
        self._only = only
        self.lost = Counter[str]()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._ledger, name)

        async def call(*arguments: Any, **options: Any) -> Any:
            response = await method(*arguments, **options)
            self._lose(name)
            return response

        @asynccontextmanager
        async def step(*arguments: Any, **options: Any) -> AsyncIterator[Any]:
            """Like `call`, but the response of the commit is lost, which is inside the block."""
            async with method(*arguments, **options) as opened:

                async def commit(*changes: Any, **notify: Any) -> Any:
                    queues = await opened.commit(*changes, **notify)
                    self._lose("commit")
                    return queues

                yield SimpleNamespace(jobs=opened.jobs, fenced=opened.fenced, has_more=opened.has_more, commit=commit)

        return step if name in ("open_jobs", "open_reported_jobs") else call

    def _lose(self, name: str) -> None:
        if (not self._only or name in self._only) and self._dice.random() < self._share:
            self.lost[name] += 1
            raise Unavailable("the response was lost", code="database.unavailable")


@pytest.mark.requirement("E27")
async def test_jobs_continue_after_the_response_to_their_claim_was_lost(database):
    """They belong to a live instance that does not know about them, so no other instance would claim them."""
    async with engine(database, orchestrators=1, workers=1, orphan_threshold_sec=60) as running:
        (orchestrator,) = running.orchestrators
        claims = ("claim_jobs", "claim_orphans")
        orchestrator.ledger = lossy = LostResponses(orchestrator.ledger, random.Random(1), 1.0, only=claims)
        job_id = await running.submit("echo_test", message="hi")
        while not (await running.job(job_id))["owner_id"]:
            await asyncio.sleep(0.01)

        orchestrator.ledger = lossy._ledger
        job = await running.wait(job_id, 5)

        assert lossy.lost.total()
        assert job["status"] == "completed"
        assert (await verify(database)).is_clean


@pytest.mark.requirement("E7", "E27")
async def test_responses_that_are_lost_after_the_commit_do_not_change_outcomes(database):
    """One in seven calls of orchestrators and workers is executed, but raises an error."""
    dice = random.Random(4)
    async with engine(database, orchestrators=2, workers=2, max_losses=50) as running:
        lossy: list[LostResponses] = []
        for actor, name in [
            *((o, "ledger") for o in running.orchestrators),
            *((w, "_ledger") for w in running.workers),
        ]:
            lossy.append(LostResponses(getattr(actor, name), dice, 1 / 7))
            setattr(actor, name, lossy[-1])

        jobs = [await running.submit("retry_fan_out_test", count=20) for _ in range(6)]
        states = {(await running.wait(job_id, 40))["status"] for job_id in jobs}

        report = await verify(database)
        lost = sum((ledger.lost for ledger in lossy), Counter())
        print(f"\nlost responses: {dict(lost)}")
        assert states == {"completed"}
        assert report.is_clean, "\n".join(map(str, report.findings[:20]))
        # How often each method is called depends on timing; these two are always called often enough.
        assert {"commit", "exchange"} <= lost.keys()


@pytest.mark.requirement("E27")
async def test_a_job_that_cannot_be_processed_does_not_delay_the_others(database, tmp_path):
    async with fleet(database, tmp_path, orchestrators=2, workers=1) as running:
        definition = chain(2, 0, running.executions)
        (body,) = [row["body"] for row in await _submit_damaged(running, definition)]
        bad = (await running.rows("SELECT job_id FROM dagapp.dag_jobs"))[0]["job_id"]
        await running.until(lambda: _errors(running), 10, "an error of the bad job")

        started = time.monotonic()
        others = await running.wait(await running.submit(ONE_TASK, 20, file=str(running.executions)), 10)
        seconds = time.monotonic() - started
        cycles = await _cycles_a_second(running)
        bad_state = (await running.job(bad))["status"]
        await _replace_body(running, bad, body)

        assert set(others) == {"completed"}
        assert seconds < 5
        assert bad_state == "pending"
        assert cycles < 60, "the loops do not wait while a job is set aside"
        assert await running.wait(bad, 30) == ["completed"], "the job did not continue after its repair"


async def _submit_damaged(running: Fleet, definition: str) -> list[dict[str, object]]:
    """Submit a job, and damage its definition before an orchestrator reads it."""
    frozen = [process for process in running.processes if process.role == "orchestrator"]
    for process in frozen:
        process.freeze()
    job_id = await running.submit_one(definition)
    rows = await running.rows("SELECT body FROM dagapp.dag_workflow_definitions")
    await _replace_body(running, job_id, {**rows[0]["body"], "nodes": {"start": {"type": "no such type"}}})
    for process in frozen:
        process.thaw()
    return rows


async def _replace_body(running: Fleet, job_id: UUID, body: dict[str, object]) -> None:
    async with await psycopg.AsyncConnection.connect(running.dsn, autocommit=True) as connection:
        await connection.execute("SET session_replication_role = replica")  # a trigger refuses changes of definitions
        await connection.execute(
            """UPDATE dagapp.dag_workflow_definitions SET body = %s WHERE definition_hash =
                      (SELECT definition_hash FROM dagapp.dag_jobs WHERE job_id = %s)""",
            [psycopg.types.json.Jsonb(body), job_id],
        )


async def _errors(running: Fleet) -> int:
    orchestrators = [process for process in running.processes if process.role == "orchestrator"]
    return sum([(await running.stats(process)).get("errors", 0) for process in orchestrators])


async def _cycles_a_second(running: Fleet, seconds: float = 1.0) -> float:
    """Cycles of the busiest orchestrator while nothing happens."""
    orchestrators = [process for process in running.processes if process.role == "orchestrator"]
    before = [(await running.stats(process))["cycles"] for process in orchestrators]
    await asyncio.sleep(seconds)
    after = [(await running.stats(process))["cycles"] for process in orchestrators]
    return max(end - start for start, end in zip(before, after, strict=True)) / seconds


@pytest.mark.requirement("E5", "E6", "E7", "E11")
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.timeout(300)
async def test_random_kills_and_freezes_of_all_processes_lose_no_job(seed, database, tmp_path):
    """Processes are killed, frozen longer than every threshold, stopped cleanly, or lose all sessions, in any order."""
    dice = random.Random(seed)
    async with fleet(database, tmp_path, orchestrators=3, workers=3, max_losses=30, worker_processes=1) as running:
        await _watch_claims(running)
        definition = fans(running.executions, 40, 4, 0.02)
        jobs: list[UUID] = []
        for _ in range(60):
            if len(jobs) < 80:
                jobs += await running.submit(definition, 2)
            await asyncio.sleep(dice.uniform(0.05, 0.8))
            await _inject_random_fault(running, dice)
        for process in running.processes:
            process.thaw()
            if not process.is_running:
                process.start()

        assert set(await running.wait(jobs, 120)) == {"completed"}
        await _assert_one_owner_at_a_time(running, jobs)


async def _inject_random_fault(running: Fleet, dice: random.Random) -> None:
    victim = dice.choice(running.processes)
    match dice.choice(["kill", "kill", "freeze", "thaw", "stop", "cut"]):
        case "kill":
            victim.kill()
            victim.start()
        case "freeze":
            victim.freeze()
        case "thaw":
            for process in running.processes:
                process.thaw()
        case "stop":
            victim.thaw()
            victim.signal(signal.SIGTERM)
            await asyncio.sleep(0.2)
            victim.kill()
            victim.start()
        case "cut":
            await running.rows("""
                SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                 WHERE datname = current_database() AND pid <> pg_backend_pid()""")
