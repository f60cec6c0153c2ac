"""The setup of a worker process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.requirement("H1")

SCRIPT = """
import asyncio, json, os, sys
sys.path.insert(0, {folder!r})
from worker_fakes import Bench, a_task
from dagmaster.worker.process import worker_process

async def main():
    tasks = [a_task(handler, handler) for handler in {handlers}]
    bench = Bench(tasks)
    with worker_process(bench.settings, bench.worker, lambda: bench.ledger):
        running = asyncio.create_task(bench.worker.run())
        reports = [await bench.report_of(task) for task in tasks]
        bench.worker.stop()
        await running
    os.write({answers}, json.dumps([[report.status.value, report.error] for report in reports]).encode())

print("before the worker", flush=True)
asyncio.run(main())
"""


def run(*handlers: str) -> tuple[list[tuple[str, Any]], subprocess.CompletedProcess[str]]:
    """Run these handlers in a worker: status and error of each, and the completed process with its output."""
    read, write = os.pipe()
    script = SCRIPT.format(folder=str(Path(__file__).parent), handlers=list(handlers), answers=write)
    command = [sys.executable, "-c", script]
    with os.fdopen(read) as responses:
        try:
            ended = subprocess.run(command, pass_fds=[write], capture_output=True, text=True, timeout=30, check=False)
        finally:
            os.close(write)
        return json.loads(responses.read() or "[]"), ended


def test_output_of_async_handlers_never_reaches_standard_output() -> None:
    reports, ended = run("prints")

    assert reports == [["succeeded", None]]
    assert ended.stdout == "before the worker\n"
    for line in ("printed by a handler", "written by a handler", "said by a program"):
        assert line in ended.stderr


def test_sys_exit_in_an_asyncio_task_of_a_handler_does_not_end_the_worker() -> None:
    ((status, error), (other, _)), ended = run("exits_in_subtask", "echo")

    assert ended.returncode == 0, ended.stderr
    assert (status, error["message"], other) == ("failed", "the handler called sys.exit(4)", "succeeded")


def test_a_fork_of_the_worker_never_continues_the_loop() -> None:
    reports, ended = run("forks", "echo")

    assert [status for status, _ in reports] == ["succeeded", "succeeded"], reports
    assert ended.stderr.count("worker stopped") == 1
    assert "the copy continues" not in ended.stderr


def test_forked_processes_that_run_other_programs_are_left_alone() -> None:
    reports, _ = run("runs_copies")

    assert reports == [["succeeded", None]]
