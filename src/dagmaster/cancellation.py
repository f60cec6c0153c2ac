"""Cancel asyncio tasks reliably.

A cancellation can be lost: `asyncio.wait_for` of Python 3.11 drops one that arrives together with the result it waits
for, and libraries (the SDK of Service Bus, psycopg) call it or turn a cancellation into an error of their own. A loop
around such a call continues, and a process that waits for the loop's end would never stop.
"""

import asyncio
from typing import Any, Final

from dagmaster.observe import log

RETRY_SECONDS: Final = 5.0  # a task may need some time for its own cleanup, which a second cancellation would end
ATTEMPTS: Final = 4
_log = log.get("cancellation")


async def cancel_and_wait(*tasks: "asyncio.Task[Any]") -> None:
    """Cancel the tasks and wait until they have ended; cancel again those that continue. What they return or raise is
    ignored. A task that ignores every cancellation is logged and left alone."""
    pending = {task for task in tasks if not task.done()}
    for _ in range(ATTEMPTS):
        if not pending:
            break
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=RETRY_SECONDS)
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()  # otherwise asyncio logs that the exception was never retrieved
    if pending:
        _log.warning("tasks ignore their cancellation", tasks=sorted(task.get_name() for task in pending))
