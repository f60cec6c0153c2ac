"""The behaviour of every executor of plain handlers, with child processes on this machine or on a cluster.

All processes are real, those of the Dask cluster included.
"""

import asyncio
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from test_process_pool import is_alive, note
from tests.dask_cluster import DaskCluster
from worker_fakes import Bench, FakeLedger, a_registry, a_task, until

from dagmaster.jobs.fan import ChildResult
from dagmaster.jobs.model import TaskMessage
from dagmaster.jobs.states import TaskStatus
from dagmaster.worker.context import TaskContext
from dagmaster.worker.executors.dask import ClusterAddress, DaskExecutor
from dagmaster.worker.executors.executor import Executor
from dagmaster.worker.outcome import Outcome
from dagmaster.worker.process_pool import Pool

pytestmark = pytest.mark.requirement("H1")


class Harness:
    def __init__(self, executor: Executor) -> None:
        self.ledger = FakeLedger()
        self.executor = executor

    def context(self, task: TaskMessage) -> TaskContext:
        return TaskContext(task, self.ledger)  # type: ignore[arg-type]

    async def run(self, task: TaskMessage, context: TaskContext | None = None, memory_mb: int | None = None) -> Outcome:
        registration = replace(a_registry()[task.handler], memory_mb=memory_mb)
        return await self.executor.run(registration, task, task.timeout_seconds, context or self.context(task))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    cluster = DaskCluster(tmp_path_factory.mktemp("dask"))
    cluster.start_scheduler()
    cluster.start_workers(2)
    yield cluster
    cluster.stop()


@pytest.fixture(params=["processes", "dask"])
async def executor(request: pytest.FixtureRequest) -> AsyncIterator[Executor]:
    executor: Executor
    if request.param == "processes":
        executor = Pool(memory_mb=2048, cancel_grace_seconds=0.3)
    else:
        address = request.getfixturevalue("cluster").address
        executor = DaskExecutor(ClusterAddress(address), memory_mb=2048, cancel_grace_seconds=0.3, silence_seconds=10)
    await executor.start()
    await until(lambda: executor.slots != 0)
    yield executor
    await executor.close()


@pytest.fixture
def harness(executor: Executor) -> Harness:
    return Harness(executor)


async def test_a_handler_runs_in_a_separate_process_that_is_measured(harness: Harness) -> None:
    outcome = await harness.run(a_task("pid"))

    assert outcome.status is TaskStatus.SUCCEEDED
    assert outcome.output["pid"] == outcome.output["group"] != os.getpid()
    assert outcome.metrics is not None
    assert outcome.metrics["cpu_seconds"] >= 0
    assert outcome.metrics["peak_mb"] > 5


async def test_tasks_run_at_the_same_time_and_the_children_are_listed(harness: Harness) -> None:
    tasks = [a_task("poll_flags", f"node-{number}", note="/dev/null") for number in range(4)]
    contexts = [harness.context(task) for task in tasks]
    running = [asyncio.create_task(harness.run(task, context)) for task, context in zip(tasks, contexts, strict=True)]
    await until(lambda: all(context.running().progress for context in contexts))

    listed = {child["task_id"] for child in harness.executor.children}

    for context in contexts:
        context.cancel()
    assert {(await run).status for run in running} == {TaskStatus.RETURNED}
    assert listed >= {task.task_id for task in tasks}


@pytest.mark.requirement("E12")
async def test_errors_of_a_handler_are_classified_and_contain_no_secret(harness: Harness) -> None:
    params = (await harness.run(a_task("sleep_blocking", seconds="long"))).error
    output = (await harness.run(a_task("return_nan"))).error
    leak = (await harness.run(a_task("leak"))).error
    ended = (await harness.run(a_task("sys_exit_plain"))).error

    assert params is not None
    assert (params["blame"], params["code"]) == ("data", "params.invalid")
    assert output is not None
    assert (output["blame"], output["code"]) == ("handler", "handler.bad-output")
    assert leak is not None
    assert "abc123" not in str(leak)
    assert "worker_handlers.py" in leak["traceback"]
    assert ended is not None
    assert ended["message"] == "the handler called sys.exit(3)"


@pytest.mark.requirement("E10")
async def test_a_hung_c_call_and_all_started_processes_are_killed_after_the_timeout(
    harness: Harness, tmp_path: Path
) -> None:
    started = time.monotonic()
    hung = await harness.run(a_task("hang", timeout=0.5))
    seconds = time.monotonic() - started
    spawned = await harness.run(a_task("daemonize", timeout=2, note=str(tmp_path / "note")))

    for outcome in (hung, spawned):
        assert outcome.error is not None
        assert (outcome.error["code"], outcome.error["blame"]) == ("handler.timed-out", "handler")
    assert seconds < 30, "the handler hangs for an hour"
    assert not any(map(is_alive, await note(tmp_path / "note")))


@pytest.mark.requirement("E14")
async def test_a_cancelled_handler_is_asked_to_stop_and_killed_after_the_grace_period(
    harness: Harness, tmp_path: Path
) -> None:
    polite, ignoring = (
        a_task("poll_flags", note=str(tmp_path / "polite")),
        a_task("spawn", note=str(tmp_path / "ignoring")),
    )
    contexts = [harness.context(task) for task in (polite, ignoring)]
    running = [
        asyncio.create_task(harness.run(task, context))
        for task, context in zip((polite, ignoring), contexts, strict=True)
    ]
    pids = await note(tmp_path / "ignoring")
    await until(lambda: contexts[0].running().progress)

    for context in contexts:
        context.cancel()
    outcomes = [await run for run in running]

    assert [outcome.status for outcome in outcomes] == [TaskStatus.RETURNED] * 2
    assert (tmp_path / "polite").read_text() == "cancelled=True shutting_down=False"
    assert not any(map(is_alive, pids))


async def test_cancelling_a_call_kills_the_child_before_it_returns(harness: Harness, tmp_path: Path) -> None:
    running = asyncio.create_task(harness.run(a_task("spawn", note=str(tmp_path / "note"))))
    pids = await note(tmp_path / "note")

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert not any(map(is_alive, pids))


@pytest.mark.requirement("E23")
async def test_progress_and_log_lines_arrive_while_the_handler_runs(harness: Harness) -> None:
    task = a_task("reports_twice_and_waits")
    context = harness.context(task)
    running = asyncio.create_task(harness.run(task, context))

    await until(lambda: context.running().progress == {"fraction": 0.2})
    context.cancel()
    await running
    await harness.run(a_task("print_and_log"), logged := harness.context(a_task("print_and_log")))

    lines = logged.log_lines() or []
    assert [line["level"] for line in lines] == ["info", "warning"]
    assert "abc123" not in str(lines)


async def test_the_memory_limit_holds(harness: Harness) -> None:
    fits = await harness.run(a_task("allocate", megabytes=100), memory_mb=400)
    too_much = await harness.run(a_task("allocate", megabytes=1000), memory_mb=400)

    assert fits.output == {"megabytes": 100}
    assert too_much.error is not None
    assert too_much.error["code"] == "handler.out-of-memory"
    assert "its limit of 400 MB" in too_much.error["message"]


@pytest.mark.requirement("E22")
async def test_a_later_attempt_continues_from_a_checkpoint(harness: Harness) -> None:
    crashed = asyncio.create_task(harness.run(a_task("multi_phase", phases=4, seconds_per_phase=0.3)))
    await until(lambda: len(harness.ledger.checkpoints) == 2)
    crashed.cancel()
    await asyncio.wait([crashed])

    outcome = await harness.run(a_task("multi_phase", attempt=2, phases=4, seconds_per_phase=0))

    assert outcome.output["phases_run"] == ["phase_3", "phase_4"]
    assert outcome.output["resumed_after"] == "phase_2"


@pytest.mark.requirement("E22")
async def test_a_checkpoint_of_an_attempt_that_lost_its_task_is_refused(harness: Harness) -> None:
    harness.ledger.refuses_checkpoints = True

    outcome = await harness.run(a_task("saves_plain"))

    assert outcome.error is not None
    assert "no longer holds its task" in outcome.error["message"]


async def test_results_of_other_nodes_can_be_read(harness: Harness) -> None:
    harness.ledger.results = [ChildResult(i, f"f__{i}", "completed", i * 10) for i in range(9)]

    outcome = await harness.run(a_task("results", results_of={"node_id": "f", "offset": 2, "limit": 5}))

    assert outcome.output == [[i, i * 10] for i in range(2, 7)]


@pytest.mark.requirement("E18")
async def test_large_params_and_outputs_are_accepted_and_too_large_outputs_refused(harness: Harness) -> None:
    fine = await harness.run(a_task("big", megabytes=60, ballast="y" * 10_000_000))
    too_large = await harness.run(a_task("big", megabytes=101))

    assert (fine.output, bytes(fine.encoded or b"")) == (None, b'"' + b"x" * 60 * 1024 * 1024 + b'"')
    assert too_large.error is not None
    assert too_large.error["code"] == "handler.output-too-large"


async def test_a_crash_is_blamed_on_the_environment_and_reported_with_exit_code_or_signal(harness: Harness) -> None:
    crashed = await harness.run(a_task("crash", exit_code=13))
    segfault = await harness.run(a_task("segfault"), memory_mb=512)

    assert crashed.error is not None
    assert (crashed.error["code"], crashed.error["blame"]) == ("worker.child-died", "environment")
    assert "exit code 13" in crashed.error["message"]
    assert segfault.error is not None
    assert re.search(r"killed by signal 11", segfault.error["message"])
    assert "its limit is 512 MB" in segfault.error["hint"]
    assert (await harness.run(a_task("pid"))).status is TaskStatus.SUCCEEDED


async def test_a_child_that_is_killed_from_outside_is_reported(harness: Harness, tmp_path: Path) -> None:
    running = asyncio.create_task(harness.run(a_task("spawn", note=str(tmp_path / "note"))))
    pids = await note(tmp_path / "note")

    os.kill(pids[0], signal.SIGKILL)

    outcome = await running
    assert outcome.error is not None
    assert "killed by signal 9" in outcome.error["message"]
    assert not any(map(is_alive, pids))


async def test_all_children_can_be_ended_from_another_thread(harness: Harness, tmp_path: Path) -> None:
    running = asyncio.create_task(harness.run(a_task("spawn", note=str(tmp_path / "note"))))
    pids = await note(tmp_path / "note")

    await asyncio.to_thread(harness.executor.end_now)

    assert (await running).status is TaskStatus.FAILED
    await until(lambda: not any(map(is_alive, pids)))


@pytest.mark.requirement("E14")
async def test_a_worker_that_is_stopped_returns_tasks_that_do_not_end_in_time(
    executor: Executor, tmp_path: Path
) -> None:
    """The worker's loop claims the tasks, asks handlers to stop, kills those that do not, and reports all."""
    polite, ignoring = (
        a_task("poll_flags", "a", note=str(tmp_path / "a")),
        a_task("spawn", "b", note=str(tmp_path / "b")),
    )
    bench = Bench([polite, ignoring], executor=executor)
    running = asyncio.create_task(bench.worker.run())
    pids = await note(tmp_path / "b")
    await until(lambda: any(task.context.running().progress for task in bench.worker.held_tasks), 20)

    bench.worker.stop(grace_seconds=1.5)
    await running

    assert {report.status for report in bench.ledger.reports.values()} == {TaskStatus.RETURNED}
    assert len(bench.ledger.reports) == 2
    assert (tmp_path / "a").read_text() == "cancelled=False shutting_down=True"
    assert not any(map(is_alive, pids))
