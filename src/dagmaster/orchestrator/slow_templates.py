"""Render templates that need longer than a decision may take, in a thread beside the event loop.

There is only one thread, because it shares the interpreter with the loop: the loop continues while it renders, and more
threads would only slow the loop down. A template that exceeds its CPU time ends with an error.
"""

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from dagmaster.jobs.rendering import RENDERING, SlowTemplate
from dagmaster.orchestrator.owned import Owned


class SlowTemplates:
    def __init__(self, on_rendered: Callable[[Owned], None]) -> None:
        self._on_rendered = on_rendered
        self._threads: ThreadPoolExecutor | None = None

    def render(self, owned: Owned, templates: Iterable[SlowTemplate]) -> None:
        """Start to render the templates that were not started before. `on_rendered` is called in the event loop after
        each."""
        loop = asyncio.get_running_loop()
        for slow in templates:
            if slow.key in owned.rendered:
                continue
            if self._threads is None:
                self._threads = ThreadPoolExecutor(1, thread_name_prefix="templates")
            owned.rendered[slow.key] = RENDERING
            done = partial(self._report, loop, owned, slow)
            self._threads.submit(slow.outcome).add_done_callback(done)

    def _report(self, loop: asyncio.AbstractEventLoop, owned: Owned, slow: SlowTemplate, outcome: Future[Any]) -> None:
        """Called in the thread. The loop may have ended in the meantime."""
        if not outcome.cancelled():
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._keep, owned, slow, outcome.result())

    def _keep(self, owned: Owned, slow: SlowTemplate, outcome: Any) -> None:
        owned.rendered[slow.key] = outcome
        self._on_rendered(owned)

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
