"""Handlers that only tests need, and commands of users that may die at a crash point.

Orchestrators and workers are the real ones (`python -m dagmaster …`); they find these handlers through an entry point
that `processes.py` puts on their path, as those of any other package. Handlers record each execution as a line in a
file outside the system under test.

    python -m tests.engine.roles submit FILE COUNT     submit a workflow COUNT times, in one call
    python -m tests.engine.roles submit FILE 1 KEY     submit it once, with an idempotency key
    python -m tests.engine.roles cancel | resume JOB
"""

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

from dagmaster.handlers.registry import Registration

REGISTRATIONS = (
    Registration("note", "tests.engine.roles:note"),
    Registration("block_loop", "tests.engine.roles:block_loop"),
    Registration("ignore_cancellation", "tests.engine.roles:ignore_cancellation"),
    Registration("note_blocking", "tests.engine.roles:note_blocking", is_async=False),
    Registration("spawn_and_hang", "tests.engine.roles:spawn_and_hang", is_async=False),
    Registration("kill_worker", "tests.engine.roles:kill_worker", is_async=False),
    Registration("phases", "tests.engine.roles:phases", is_async=False),
    Registration("phases_async", "tests.engine.roles:phases_async"),
    Registration("pause_once", "tests.engine.roles:pause_once", is_async=False),
    Registration("produce", "tests.engine.test_payloads:produce"),
    Registration("register", "tests.engine.test_payloads:register"),
    Registration("finalize", "tests.engine.test_payloads:finalize"),
)


def _record(ctx: Any, *facts: Any) -> None:
    """Append one line; a single write to a file opened for appending is never torn."""
    line = " ".join(map(str, (ctx.job_id, ctx.node_id, ctx.attempt, os.getpid(), *facts)))
    descriptor = os.open(ctx.params["file"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


def _seconds(ctx: Any) -> float:
    """`seconds` has one figure for each attempt; the last one is for all further attempts."""
    seconds = ctx.params.get("seconds", 0)
    return seconds[min(ctx.attempt, len(seconds)) - 1] if isinstance(seconds, list) else seconds


async def block_loop(ctx: Any) -> None:
    """Record that it runs, then block the event loop of its worker, as a call of a plain library would."""
    _record(ctx)
    time.sleep(ctx.params["seconds"])


async def ignore_cancellation(ctx: Any) -> None:
    """Never ends, whatever the worker does."""
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(600)


async def note(ctx: Any) -> dict[str, int]:
    _record(ctx)
    await asyncio.sleep(_seconds(ctx))
    return {"value": ctx.params.get("value", 1)}


def note_blocking(ctx: Any) -> dict[str, int]:
    _record(ctx)
    time.sleep(_seconds(ctx))
    return {"value": ctx.params.get("value", 1)}


def spawn_and_hang(ctx: Any) -> None:
    """Start a program and hang in a C call that holds the GIL; neither handles SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    program = subprocess.Popen(["sleep", "1000"])
    _record(ctx, program.pid)
    libc = ctypes.PyDLL(None)
    while True:
        libc.pause()


def kill_worker(ctx: Any) -> None:
    """A handler that kills its worker, as one that fills the machine's memory does."""
    _record(ctx)
    supervisor_stat = Path(f"/proc/{os.getppid()}/stat").read_text()
    os.kill(int(supervisor_stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
    time.sleep(60)


def _begin_phase(ctx: Any, number: int) -> Path:
    """Record that a phase has begun, and return the path of its artifact."""
    _record(ctx, number)
    return Path(ctx.params["folder"]) / f"{ctx.job_id}_{number}"


def _is_held(ctx: Any, number: int) -> bool:
    """Whether this attempt stays in this phase: the first attempt does, in the phase `hold`."""
    return ctx.attempt == 1 and ctx.params["hold"] == number


def phases(ctx: Any) -> int:
    """Three phases; in the phase `hold`, the first attempt ignores requests to stop."""
    last = ctx.load_checkpoint()
    for number in range(last[1] + 1 if last else 1, 4):
        artifact = _begin_phase(ctx, number)
        time.sleep(60 if _is_held(ctx, number) else 0)
        artifact.write_text(f"phase {number}")
        ctx.save_checkpoint(f"phase_{number}", number, artifact=artifact)
    return 3


async def phases_async(ctx: Any) -> int:
    """The same as `phases`, but it stops on request."""
    last = await ctx.load_checkpoint()
    for number in range(last[1] + 1 if last else 1, 4):
        artifact = _begin_phase(ctx, number)
        while _is_held(ctx, number):
            await asyncio.sleep(0.01)
            if ctx.shutting_down:
                raise ctx.give_back()
        artifact.write_text(f"phase {number}")
        await ctx.save_checkpoint(f"phase_{number}", number, artifact=artifact)
    return 3


def pause_once(ctx: Any) -> None:
    """The first attempt makes a C call that holds the GIL: not even the thread that reads the flags can run."""
    _record(ctx, 1)
    if ctx.attempt == 1:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        ctypes.PyDLL(None).pause()


async def _send(what: str, *arguments: str) -> None:
    from dagmaster import faults, settings
    from dagmaster.database.ledger.postgres import PostgresLedger
    from dagmaster.operations.cancel import cancel
    from dagmaster.operations.rerun import resume

    loaded = settings.load()
    assert loaded.database_url
    faults.arm(loaded.crash_point)
    ledger = PostgresLedger(loaded.database_url, "person")
    match what:
        case "submit":
            await _submit(ledger, Path(arguments[0]), int(arguments[1]), *arguments[2:])
        case "cancel":
            await cancel(ledger, UUID(arguments[0]))
        case "resume":
            await resume(ledger, UUID(arguments[0]))
    await ledger.close()


async def _submit(ledger: Any, file: Path, count: int, key: str | None = None) -> None:
    from dagmaster.jobs.model import Submission
    from dagmaster.library.workflows import WorkflowLibrary
    from dagmaster.operations.submit import submit_once
    from tests.engine.harness import submit, workflow

    definition = workflow(file.read_text())
    catalog = WorkflowLibrary({definition.workflow_id: definition})
    submission = Submission(workflow_id=definition.workflow_id, idempotency_key=key)
    if key is None:
        await submit(ledger, catalog, [submission] * count)
    else:
        await submit_once(ledger, catalog, submission)


if __name__ == "__main__":
    asyncio.run(_send(*sys.argv[1:]))
