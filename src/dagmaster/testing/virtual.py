"""Virtual time: an event loop whose clock jumps to the next timer when all tasks wait.

Everything that asks the loop for the time (`asyncio.sleep`, timeouts, the engine's own loops) uses that clock, so that
hours pass in milliseconds and always in the same order. `time.time()` and `datetime.now()` do not follow it. While a
thread, a process or a socket works for the loop, no time is skipped: the clock runs in real time.
"""

import asyncio
import functools
import selectors
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar, TypeVarTuple

P = ParamSpec("P")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_OWN_DESCRIPTORS = 1  # by which other threads wake the loop


class DeadlockError(RuntimeError):
    """All tasks wait, and there is no timer and no outside event that could wake them."""


Standstill = DeadlockError  # its former name


class _VirtualSelector(selectors.DefaultSelector):
    """The loop calls `select` when it has nothing to do. Virtual time passes only in this call."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.outside_work: set[object] = set()  # work for the loop that it cannot see, such as processes

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.outside_work or len(self.get_map()) > _OWN_DESCRIPTORS:
            return self._wait_in_real_time(timeout)
        ready = super().select(0)
        if not ready and timeout is None:
            raise DeadlockError("all tasks wait, and no timer or outside event can wake them")
        if not ready and timeout:
            self.now += timeout
        return ready

    def _wait_in_real_time(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        before = time.monotonic()
        ready = super().select(timeout)
        self.now += time.monotonic() - before
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop with virtual time, from 0. Deterministic, as long as nothing outside the loop works for it."""

    def __init__(self) -> None:
        self._clock = _VirtualSelector()
        super().__init__(self._clock)
        # asyncio adds this to the time to find due timers. After some months, a nanosecond would be lost by rounding.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self._clock.now

    @contextmanager
    def real_time(self) -> Iterator[None]:
        """Within the block no time is skipped: something that the loop cannot see works for it."""
        mark = object()
        self._clock.outside_work.add(mark)
        try:
            yield
        finally:
            self._clock.outside_work.discard(mark)

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        future = super().run_in_executor(executor, func, *args)
        self._clock.outside_work.add(future)
        future.add_done_callback(self._clock.outside_work.discard)
        return future

    async def shutdown_default_executor(self, *arguments: Any) -> None:
        with self.real_time():
            await super().shutdown_default_executor(*arguments)

    async def subprocess_exec(self, protocol_factory: Any, *args: Any, **options: Any) -> Any:
        return await self._watching(super().subprocess_exec, protocol_factory, *args, **options)

    async def subprocess_shell(self, protocol_factory: Any, *args: Any, **options: Any) -> Any:
        return await self._watching(super().subprocess_shell, protocol_factory, *args, **options)

    async def _watching(self, start: Callable[..., Any], make: Callable[[], Any], *args: Any, **options: Any) -> Any:
        """Count a process as outside work from its start until it has ended."""
        protocol = make()
        process_exited = protocol.process_exited

        def exited() -> None:
            self._clock.outside_work.discard(protocol)
            process_exited()

        protocol.process_exited = exited
        self._clock.outside_work.add(protocol)
        try:
            return await start(lambda: protocol, *args, **options)
        except BaseException:
            self._clock.outside_work.discard(protocol)
            raise


def virtual_loop() -> VirtualLoop:
    """The running loop, which must be a virtual one."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualLoop):
        raise RuntimeError("this needs virtual time: decorate the test with @virtual_time")
    return loop


def virtual_time(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Make an async function a plain one that runs on a loop and a clock of its own;
    for tests, with any test runner."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            return runner.run(function(*args, **kwargs))

    return run
