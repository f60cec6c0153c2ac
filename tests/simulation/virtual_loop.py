"""An event loop that runs the processes of a simulation, each in its own lane.

Time is virtual: it jumps to the next timer when nothing is left to do. Which lane runs next is drawn from a seeded
Random, so that every interleaving of the awaits of different processes is possible, and a seed reproduces it. A lane
can be paused, as a process is by SIGSTOP: its callbacks and timers wait, while its clock continues. A lane that was
killed never runs again; `_unwind` ends its coroutines after the run.
"""

import asyncio
import contextvars
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

LANE: contextvars.ContextVar["Lane"] = contextvars.ContextVar("lane")
_MAX_STEPS_TO_UNWIND = 200_000


class Deadlock(AssertionError):
    """Everything waits, and no timer is left; or the run does not end."""


class Lane:
    """The callbacks that one process runs next."""

    __slots__ = ("clock_offset", "is_dead", "is_paused", "name", "ready", "tasks")

    def __init__(self, name: str, clock_offset: float = 0.0) -> None:
        self.name = name
        self.clock_offset = clock_offset  # monotonic clocks of machines have different origins
        self.is_paused = False
        self.is_dead = False
        self.ready: deque[asyncio.Handle] = deque()
        self.tasks: list[asyncio.Task[Any]] = []

    @property
    def is_runnable(self) -> bool:
        return bool(self.ready) and not self.is_paused and not self.is_dead


class VirtualTimeLoop(asyncio.AbstractEventLoop):
    """The part of an event loop that coroutines without files, threads and sockets need."""

    def __init__(self, random: Random, *, most_steps: int = 10**9, closing: Callable[[], None] = lambda: None) -> None:
        self.now = 0.0
        self.steps = 0
        self._most_steps = most_steps
        self._closing = closing
        self.outside = Lane("outside")
        self.unhandled_errors: list[str] = []  # exceptions that were not handled
        self._random = random
        self._runnable: list[Lane] = []
        self._timers: list[tuple[float, int, asyncio.TimerHandle, Lane]] = []
        self._numbers = 0
        self._running = self.outside
        self._lanes = [self.outside]

    # Lanes

    def lane(self, name: str, clock_offset: float = 0.0) -> Lane:
        lane = Lane(name, clock_offset)
        self._lanes.append(lane)
        return lane

    def start(self, lane: Lane, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Let a coroutine, and all that it starts, run in a lane."""
        context = contextvars.copy_context()
        context.run(LANE.set, lane)
        return self.create_task(coroutine, context=context)

    def pause(self, lane: Lane) -> None:
        lane.is_paused = True
        if lane in self._runnable:
            self._runnable.remove(lane)

    def resume(self, lane: Lane) -> None:
        lane.is_paused = False
        if lane.is_runnable and lane not in self._runnable:
            self._runnable.append(lane)

    def kill(self, lane: Lane) -> None:
        self.pause(lane)
        lane.is_dead = True

    def _queue(self, lane: Lane, handle: asyncio.Handle) -> None:
        lane.ready.append(handle)
        if len(lane.ready) == 1 and lane.is_runnable:
            self._runnable.append(lane)

    # The interface of an asyncio loop

    def time(self) -> float:
        return self.now + self._running.clock_offset

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Any = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._queue(self._lane_of(context), handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return self._call_at(self.now + delay, callback, args, context)

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return self._call_at(when - self._running.clock_offset, callback, args, context)

    def _call_at(self, when: float, callback: Callable[..., Any], args: Any, context: Any) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._numbers += 1
        heapq.heappush(self._timers, (when, self._numbers, handle, self._lane_of(context)))
        return handle

    def _lane_of(self, context: contextvars.Context | None) -> Lane:
        return LANE.get(self.outside) if context is None else context.get(LANE, self.outside)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A cancelled timer is skipped when it is due."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        self._lane_of(context).tasks.append(task)
        return task

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.unhandled_errors.append(f"{context['message']}: {context.get('exception')!r}")

    # Running

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run until this coroutine, which belongs to no process, has ended. Then end all others."""
        events._set_running_loop(self)
        try:
            main = self.create_task(coroutine)
            while not main.done():
                self._step()
                if self.steps > self._most_steps:
                    raise Deadlock(f"{self.steps} steps without an end: a loop never waits")
            return main.result()
        finally:
            self._closing()
            self._unwind()
            events._set_running_loop(None)

    def _step(self) -> None:
        if not self._runnable or (self._timers and self._timers[0][0] <= self.now):
            self._wake_timers()
        if not self._runnable:
            return
        count = len(self._runnable)
        lane = self._runnable[0 if count == 1 else int(self._random.random() * count)]
        handle = lane.ready.popleft()
        if not lane.ready:
            self._runnable.remove(lane)
        if handle.cancelled():
            return
        self.steps += 1
        self._running = lane
        try:
            handle._run()
        finally:
            self._running = self.outside

    def _wake_timers(self) -> None:
        """Run the timers that are due; if no lane can run, let time pass until the next timer."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not self._runnable:
            if not timers:
                raise Deadlock("everything waits, and no timer is left")
            self.now = max(self.now, timers[0][0])
        while timers and timers[0][0] <= self.now:
            _, _, handle, lane = heapq.heappop(timers)
            if not handle.cancelled():
                self._queue(lane, handle)

    def _unwind(self) -> None:
        """Cancel all coroutines and let them end. The world refuses every call that they still make."""
        tasks = [task for lane in self._lanes for task in lane.tasks if not task.done()]
        for lane in self._lanes:
            lane.is_dead = False
            self.resume(lane)
        for task in tasks:
            task.cancel()
        steps = 0
        while tasks and steps < _MAX_STEPS_TO_UNWIND:
            if tasks[-1].done():
                tasks.pop()
                continue
            self._step()
            steps += 1
        if tasks:
            raise Deadlock(f"these tasks do not end when they are cancelled: {tasks}")
