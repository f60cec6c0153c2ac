"""What a handler leaves behind in its process is never taken for another task's [H1]."""

import os
import threading
import time

from worker_fakes import FakeLedger

from dagmaster.handlers.registry import Registration
from dagmaster.jobs.model import TaskMessage, new_job_id
from dagmaster.worker.context import TaskContext
from dagmaster.worker.isolate import Pool


def fork(ctx):
    os.fork()
    return {"made_by": "fork"}


def leave_a_thread(ctx):
    def haunt():
        time.sleep(0.3)
        ctx.progress(message="boo")
        ctx.save_checkpoint("stray", {"of": ctx.task_id})

    threading.Thread(target=haunt, daemon=True).start()
    return {"made_by": "thread"}


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


async def test_h1_a_forked_copy_answers_for_nobody():
    pool, ledger = Pool(memory_mb=2048), FakeLedger()
    try:
        outputs = [await run(pool, ledger, function) for function in (fork, pid, fork, pid)]
    finally:
        await pool.close()

    assert [output.get("made_by") for output in outputs] == ["fork", None, "fork", None]
    assert all("pid" in output for output in outputs[1::2])


async def test_h1_a_thread_left_behind_reaches_no_other_task():
    pool, ledger = Pool(memory_mb=2048), FakeLedger()
    try:
        first = await run(pool, ledger, leave_a_thread)
        second = await run(pool, ledger, pid)
    finally:
        await pool.close()

    assert first == {"made_by": "thread"}
    assert "pid" in second
    assert not getattr(ledger, "checkpoints", None)
