"""Only an async handler that blocks the worker's loop fails; a worker that was suspended and continued fails none."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from test_process_pool import is_alive
from worker_fakes import FakeLedger, a_task

from dagmaster.worker.context import HANDLING, TaskContext
from dagmaster.worker.watchdog import Blocked, Watchdog

SCRIPT = """
import asyncio, json, sys
from functools import partial
sys.path.insert(0, {folder!r})
from worker_fakes import Bench, a_task
from dagmaster.observe import log
from dagmaster.worker.watchdog import Watchdog

log.configure()

async def main():
    bench = Bench({tasks})
    hand_in = bench.ledger._exchange

    async def exchange(reports, *args, **more):
        answer = await hand_in(reports, *args, **more)
        for report in reports:
            print(json.dumps([report.node_id, report.status.value, report.error or report.output]), flush=True)
        return answer

    bench.ledger._exchange = exchange
    rescue = partial(bench.worker.report_hung_loop, lambda: bench.ledger)
    with Watchdog({patience}, rescue if {has_rescue} else None):
        print("ready", flush=True)
        await bench.worker.run()

asyncio.run(main())
"""


@contextmanager
def worker_process(tasks: str, patience: float, has_rescue: bool = False) -> Iterator[subprocess.Popen[str]]:
    folder = str(Path(__file__).parent)
    script = SCRIPT.format(folder=folder, tasks=tasks, patience=patience, has_rescue=has_rescue)
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def reports_of(worker: subprocess.Popen[str], count: int) -> dict[str, tuple[str, Any]]:
    """The next reports, by node."""
    assert worker.stdout is not None
    lines = [json.loads(worker.stdout.readline() or "null") for _ in range(count)]
    assert None not in lines, "the worker has ended"
    return {node: (status, error) for node, status, error in lines}


@pytest.mark.requirement("E10")
@pytest.mark.parametrize(
    "handler", ["block_loop", "spin", "block_in_subtask", "swallow_and_block", "backtrack", "wait_for_lock"]
)
def test_an_async_handler_that_blocks_the_loop_fails_and_the_others_continue(handler: str) -> None:
    tasks = f'[a_task("{handler}", "culprit"), a_task("sleep", "other", seconds=1), a_task("pid", "plain")]'
    with worker_process(tasks, 0.8) as worker:
        reports = reports_of(worker, 3)

        assert worker.poll() is None
    status, error = reports["culprit"]
    assert (status, error["code"], error["blame"]) == ("failed", "handler.blocked-loop", "handler")
    assert error["message"].startswith(f"handler '{handler}' blocked the worker's event loop for 0.")
    assert "plain `def`" in error["hint"]
    assert handler in error["traceback"]
    assert reports["other"][0] == reports["plain"][0] == "succeeded"


@pytest.mark.requirement("E10")
@pytest.mark.parametrize(("silent_seconds", "is_raised"), [(31, True), (29, False)])
async def test_a_step_that_prevents_all_samples_is_interrupted(silent_seconds: float, is_raised: bool) -> None:
    watchdog = Watchdog(60)
    watchdog._sampled_at = time.monotonic() - silent_seconds

    async def handler() -> None:
        HANDLING.set(TaskContext(a_task("greedy"), FakeLedger()))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        watchdog._interrupt(signal.SIGVTALRM, sys._getframe())

    with pytest.raises(Blocked, match=r"'greedy' blocked .* for 31 s") if is_raised else nullcontext():
        await asyncio.create_task(handler())


@pytest.mark.requirement("E10")
async def test_only_steps_of_the_handler_itself_are_interrupted() -> None:
    watchdog = Watchdog(60)
    watchdog._sampled_at = time.monotonic() - 100

    async def is_interrupted(context: TaskContext | None) -> bool:
        if context is not None:
            HANDLING.set(context)
        await asyncio.sleep(0)
        try:
            watchdog._interrupt(signal.SIGVTALRM, sys._getframe())
        except Blocked:
            return True
        return False

    assert not await asyncio.create_task(is_interrupted(None))
    assert await asyncio.create_task(is_interrupted(TaskContext(a_task("greedy"), FakeLedger())))  # type: ignore[arg-type]


@pytest.mark.requirement("E10")
def test_a_callback_that_a_finished_handler_left_in_the_loop_is_interrupted() -> None:
    tasks = '[a_task("blocks_afterwards", "culprit"), a_task("sleep", "other", seconds=2)]'
    with worker_process(tasks, 0.8) as worker:
        reports = reports_of(worker, 2)

        assert worker.poll() is None
    assert reports["culprit"][0] == reports["other"][0] == "succeeded"


@pytest.mark.requirement("E10")
def test_a_handler_that_holds_the_gil_is_interrupted_before_its_lease_expires() -> None:
    with worker_process('[a_task("backtrack", "culprit")]', 4.0) as worker:
        started = time.monotonic()
        reports_of(worker, 1)

        assert time.monotonic() - started < 4.0


@pytest.mark.requirement("E10")
def test_a_handler_that_ignores_signals_fails_and_the_other_tasks_are_returned(tmp_path: Path) -> None:
    note = tmp_path / "note"
    tasks = (
        '[a_task("sleep", "light", seconds=60), '
        f'a_task("spawn", "heavy", note={str(note)!r}), a_task("deadlock", "culprit", note={str(note)!r})]'
    )
    with worker_process(tasks, 4.0, has_rescue=True) as worker:
        reports = reports_of(worker, 3)
        _, errors = worker.communicate(timeout=15)

    assert worker.returncode == 70
    assert reports["light"] == reports["heavy"] == ("returned", None)
    status, error = reports["culprit"]
    assert (status, error["code"]) == ("failed", "handler.blocked-loop")
    assert "'deadlock' blocked" in error["message"]
    assert "in deadlock" in errors, "the log has the traceback"
    assert not any(is_alive(int(pid)) for pid in note.read_text().split())


@pytest.mark.requirement("E10")
def test_a_loop_that_hangs_permanently_ends_the_worker() -> None:
    with worker_process('[a_task("deadlock")]', 0.8) as worker:
        _, errors = worker.communicate(timeout=15)

    assert worker.returncode == 70
    assert "hangs" in errors


@pytest.mark.requirement("E10")
def test_a_handler_that_holds_the_gil_permanently_ends_the_worker() -> None:
    with worker_process('[a_task("burn_with_lock")]', 0.6) as worker:
        _, errors = worker.communicate(timeout=30)

    assert worker.returncode == -signal.SIGPROF
    assert "burn_with_lock" in errors


@pytest.mark.requirement("E11")
@pytest.mark.parametrize("busy", ["[]", '[a_task("sleep", seconds=60)]'])
def test_a_worker_that_was_suspended_and_continued_keeps_running(busy: str) -> None:
    with worker_process(busy, 0.5) as worker:
        time.sleep(0.3)

        worker.send_signal(signal.SIGSTOP)
        time.sleep(1.5)
        worker.send_signal(signal.SIGCONT)
        time.sleep(1.0)

        assert worker.poll() is None
