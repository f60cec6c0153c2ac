"""Threads, processes and changes of the process state that a handler leaves behind never affect another task."""

import io
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from test_process_pool import is_alive
from worker_fakes import FakeLedger

from dagmaster.handlers.registry import Registration
from dagmaster.jobs.model import TaskMessage, new_job_id
from dagmaster.worker.context import TaskContext
from dagmaster.worker.process_pool import Pool

pytestmark = pytest.mark.requirement("H1")


def fork(ctx):
    os.fork()
    return {"made_by": "fork"}


def leave_a_thread(ctx):
    def report_late():
        time.sleep(0.3)
        ctx.progress(message="boo")
        ctx.save_checkpoint("stray", {"of": ctx.task_id})

    threading.Thread(target=report_late, daemon=True).start()
    return {"made_by": "thread"}


def disturb(ctx):
    before = process_facts(ctx)
    os.chdir("/")
    os.umask(0o777)
    os.environ["STRAY"] = "here"
    os.environ.pop("HOME", None)
    sys.stdout = io.StringIO()
    sys.stderr.flush()
    sys.stderr = None
    sys.path.clear()
    sys.path = ["/nowhere"]
    sys.meta_path.clear()
    signal.setitimer(signal.ITIMER_VIRTUAL, 100)
    signal.setitimer(signal.ITIMER_PROF, 100)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, lambda *_: os._exit(9))
    signal.setitimer(signal.ITIMER_REAL, 0.4)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    return before


def process_facts(ctx):
    mask = os.umask(0)
    os.umask(mask)
    return {
        "pid": os.getpid(),
        "folder": str(Path.cwd()),
        "umask": mask,
        "environment": dict(os.environ),
        "streams": [sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__],
        "signals": [str(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGALRM)],
        "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "path": list(sys.path),
        "finders": len(sys.meta_path),
        "timers": [signal.getitimer(timer)[0] for timer in (signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)],
    }


def limit_files(ctx):
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    return "done"


def limit_memory(ctx):
    resource.setrlimit(resource.RLIMIT_DATA, (1 << 31, 1 << 31))
    return "done"


def slow_down(ctx):
    os.nice(1)
    return "done"


def lose_a_module(ctx):
    del sys.modules["orjson"]
    return "done"


def replace_a_module(ctx):
    sys.modules["json"] = None
    return "done"


def start_a_program(ctx):
    return subprocess.Popen(["sleep", "1000"], start_new_session=True).pid


def start_an_orphan(ctx):
    command = ["sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & echo $!"]
    return int(subprocess.run(command, capture_output=True, check=True).stdout)


def use_modules_and_programs(ctx):
    import fractions  # noqa: F401

    subprocess.run(["true"], check=True)
    return {"pid": os.getpid()}


def who(ctx):
    return {"pid": os.getpid()}


def facts_later(ctx):
    time.sleep(0.6)
    return process_facts(ctx)


def close_stdout(ctx):
    sys.stdout.close()
    return {"pid": os.getpid()}


def pid(ctx):
    time.sleep(0.6)
    return {"pid": os.getpid()}


def a_task(handler: str) -> TaskMessage:
    job_id = new_job_id(1)
    return TaskMessage(
        task_id=f"{job_id}_a_1",
        job_id=job_id,
        node_id="a",
        attempt=1,
        handler=handler,
        params={},
        queue="q",
        timeout_seconds=20,
    )


async def run(pool: Pool, ledger: FakeLedger, function) -> object:
    registration = Registration(function.__name__, f"{__name__}:{function.__name__}", is_async=False)
    task = a_task(function.__name__)
    return (await pool.run(registration, task, 20, TaskContext(task, ledger))).output


async def test_a_forked_copy_of_a_handler_reports_no_result():
    pool, ledger = Pool(memory_mb=2048), FakeLedger()
    try:
        outputs = [await run(pool, ledger, function) for function in (fork, pid, fork, pid)]
    finally:
        await pool.close()

    assert [output.get("made_by") for output in outputs] == ["fork", None, "fork", None]
    assert all("pid" in output for output in outputs[1::2])


async def test_a_thread_left_behind_cannot_report_for_another_task():
    pool, ledger = Pool(memory_mb=2048), FakeLedger()
    try:
        first = await run(pool, ledger, leave_a_thread)
        second = await run(pool, ledger, pid)
    finally:
        await pool.close()

    assert first == {"made_by": "thread"}
    assert "pid" in second
    assert not getattr(ledger, "checkpoints", None)


async def test_changes_of_the_process_state_are_undone_before_the_next_task():
    pool, ledger = Pool(memory_mb=2048), FakeLedger()
    try:
        before = await run(pool, ledger, disturb)
        after = await run(pool, ledger, facts_later)
    finally:
        await pool.close()

    assert before == after


async def test_a_process_without_standard_output_is_replaced():
    pool, ledger = Pool(memory_mb=2048), FakeLedger()
    try:
        before = await run(pool, ledger, close_stdout)
        after = await run(pool, ledger, process_facts)
    finally:
        await pool.close()

    assert before["pid"] != after["pid"]
    assert after["streams"] == [True, True]


async def test_changes_that_a_module_makes_on_import_are_kept(tmp_path, monkeypatch):
    (tmp_path / "sets_up.py").write_text(
        "import os\nos.environ['SET_UP'] = 'yes'\ndef handler(ctx):\n    return os.environ.get('SET_UP')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    pool, ledger = Pool(memory_mb=2048), FakeLedger()
    registration = Registration("sets_up", "sets_up:handler", is_async=False)
    task = a_task("sets_up")
    try:
        outputs = [(await pool.run(registration, task, 20, TaskContext(task, ledger))).output for _ in range(2)]
    finally:
        await pool.close()

    assert outputs == ["yes", "yes"]


@pytest.mark.parametrize(
    "function", [limit_files, limit_memory, slow_down, lose_a_module, replace_a_module], ids=lambda f: f.__name__
)
async def test_a_process_whose_state_cannot_be_restored_is_replaced(function):
    pool, ledger = Pool(memory_mb=2048), FakeLedger()
    try:
        before = await run(pool, ledger, who)
        assert await run(pool, ledger, function) == "done"
        after = await run(pool, ledger, who)
    finally:
        await pool.close()

    assert before["pid"] != after["pid"]


@pytest.mark.parametrize("function", [start_a_program, start_an_orphan], ids=lambda f: f.__name__)
async def test_a_program_left_behind_is_killed_before_the_next_task(function):
    pool, ledger = Pool(memory_mb=2048), FakeLedger()
    try:
        program = await run(pool, ledger, function)

        assert not is_alive(program)
    finally:
        await pool.close()


async def test_a_process_is_reused_after_a_handler_that_cleans_up():
    pool, ledger = Pool(memory_mb=2048), FakeLedger()
    try:
        outputs = [await run(pool, ledger, use_modules_and_programs) for _ in range(3)]
    finally:
        await pool.close()

    assert len({output["pid"] for output in outputs}) == 1
