"""A worker whose loop hangs ends itself; one that was merely stopped does not [E10]."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = """
import asyncio, sys
sys.path.insert(0, {folder!r})
from worker_fakes import Bench, a_task
from dagmaster import log
from dagmaster.worker.watchdog import Watchdog

log.configure()

async def main():
    bench = Bench({tasks})
    with Watchdog(patience_seconds={patience}):
        print("ready", flush=True)
        await bench.worker.run()

asyncio.run(main())
"""


def a_worker(tasks: str, patience: float) -> subprocess.Popen[str]:
    script = SCRIPT.format(folder=str(Path(__file__).parent), tasks=tasks, patience=patience)
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_e10_an_async_handler_that_blocks_the_loop_ends_the_worker() -> None:
    started = time.monotonic()
    worker = a_worker('[a_task("block_loop")]', 0.6)

    _, errors = worker.communicate(timeout=15)

    assert worker.returncode == 70
    assert time.monotonic() - started < 10
    assert "hangs" in errors
    assert "block_loop" in errors, "the traceback names the culprit"


def test_e10_a_handler_that_keeps_the_interpreters_lock_ends_the_worker_too() -> None:
    worker = a_worker('[a_task("burn_with_lock")]', 0.6)

    _, errors = worker.communicate(timeout=30)

    assert worker.returncode == -signal.SIGPROF
    assert "burn_with_lock" in errors


@pytest.mark.parametrize("busy", ["[]", '[a_task("sleep", seconds=60)]'])
def test_e11_a_worker_that_was_stopped_and_continued_lives_on(busy: str) -> None:
    worker = a_worker(busy, 0.5)
    time.sleep(0.3)

    worker.send_signal(signal.SIGSTOP)
    time.sleep(1.5)
    worker.send_signal(signal.SIGCONT)
    time.sleep(1.0)

    assert worker.poll() is None
    worker.kill()
    worker.communicate()
