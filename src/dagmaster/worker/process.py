"""Process-wide set-up for a process that runs nothing but a worker."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from dagmaster.database.ledger.protocol import WorkerLedger
from dagmaster.errors import HandlerFailed
from dagmaster.settings import Settings
from dagmaster.worker.context import HANDLING
from dagmaster.worker.loop import Worker
from dagmaster.worker.outcome import describe
from dagmaster.worker.watchdog import Watchdog


@contextmanager
def worker_process(settings: Settings, worker: Worker, open_ledger: Callable[[], WorkerLedger]) -> Iterator[None]:
    """Set up the process while its worker runs. Enter it inside the event loop. `open_ledger` opens a connection that
    does not need the loop, in case the loop hangs."""
    print_to_the_log()
    loop = asyncio.get_running_loop()
    loop.set_task_factory(_task)
    with (
        _exiting_in_forked_copies(loop),
        Watchdog(settings.task_lease_sec, partial(worker.report_hung_loop, open_ledger)),
    ):
        yield


@contextmanager
def _exiting_in_forked_copies(loop: Any) -> Iterator[None]:
    """Let a process that a handler forked exit before it would continue the loop, because it shares the loop's
    connections. Multiprocessing and subprocesses are not affected: they never return to the loop."""
    is_over = False

    def leave() -> None:
        if not is_over:
            loop._ready.appendleft(asyncio.Handle(os._exit, (0,), loop))  # before all callbacks that are due already

    os.register_at_fork(after_in_child=leave)
    try:
        yield
    finally:
        is_over = True


def print_to_the_log() -> None:
    """Redirect standard output to the log: handlers may print, and standard output may carry data."""
    sys.stdout.flush()
    os.dup2(2, 1)
    sys.stdout = sys.stderr


def _task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    """The task factory of the loop. In asyncio, SystemExit and KeyboardInterrupt in any task end the loop; a task that
    a handler started must not do that."""
    if HANDLING.get(None) is not None:
        coroutine = _contained(coroutine)
    return asyncio.Task(coroutine, loop=loop, **options)


async def _contained(coroutine: Awaitable[Any]) -> Any:
    try:
        return await coroutine
    except (SystemExit, KeyboardInterrupt) as error:
        raise HandlerFailed(describe(error)["message"]) from error
