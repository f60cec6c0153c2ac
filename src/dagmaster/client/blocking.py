"""Call asynchronous clients from code without an event loop.

    thread of the caller ── coroutine ──▶ thread with an event loop
                         ◀── result ────┘

A blocking client has no code of its own: each method is declared as `blocking(AsyncClient.method)` and keeps the types
of its parameters. An exception in the calling thread, such as Ctrl-C, cancels the request.
"""

import asyncio
import contextlib
import functools
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, overload

P = ParamSpec("P")
R = TypeVar("R")
_END = object()


class Closable(Protocol):
    async def close(self) -> None: ...


C = TypeVar("C", bound=Closable)


class EventLoopThread:
    """An event loop in a thread of its own. The thread starts with the first call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._running())
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Cancel what still runs, and end the thread."""
        with self._lock:
            loop, stopped, thread = self._loop, self._stopped, self._thread
            self._loop = None
        if loop is not None and stopped is not None and thread is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended with its thread
                loop.call_soon_threadsafe(stopped.set)
            if thread is not threading.current_thread():
                thread.join()

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                started: Future[None] = Future()
                self._thread = threading.Thread(
                    target=lambda: asyncio.run(self._serve(started)), name="dagmaster-client", daemon=True
                )
                self._thread.start()
                started.result()
            assert self._loop is not None
            return self._loop

    async def _serve(self, started: Future[None]) -> None:
        stopped = asyncio.Event()
        self._loop, self._stopped = asyncio.get_running_loop(), stopped
        started.set_result(None)
        await stopped.wait()


class Blocking(Generic[C]):
    """The base of blocking clients: an asynchronous client, and the thread that runs it."""

    def __init__(self, asynchronous: C, thread: EventLoopThread) -> None:
        self._asynchronous = asynchronous
        self._thread = thread

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. A later call opens new ones."""
        self._thread.run(self._asynchronous.close())
        self._thread.close()


class blocking(Generic[P, R]):  # noqa: N801 - used like a decorator
    """A method that waits for the asynchronous method of the same name."""

    def __init__(self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> "blocking[P, R]": ...
    @overload
    def __get__(self, instance: Blocking[Any], owner: type) -> Callable[P, R]: ...
    def __get__(self, instance: Blocking[Any] | None, owner: type) -> "blocking[P, R] | Callable[P, R]":
        if instance is None:
            return self
        method = functools.partial(self._method, instance._asynchronous)

        @functools.wraps(self._method)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            return instance._thread.run(method(*args, **kwargs))

        return call


class iterating(Generic[P, R]):  # noqa: N801 - used like a decorator
    """A method that iterates over what the asynchronous method of the same name yields."""

    def __init__(self, method: Callable[Concatenate[Any, P], AsyncIterator[R]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> "iterating[P, R]": ...
    @overload
    def __get__(self, instance: Blocking[Any], owner: type) -> Callable[P, Iterator[R]]: ...
    def __get__(self, instance: Blocking[Any] | None, owner: type) -> "iterating[P, R] | Callable[P, Iterator[R]]":
        if instance is None:
            return self
        method = functools.partial(self._method, instance._asynchronous)

        @functools.wraps(self._method)
        def iterate(*args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
            return _iterated(instance._thread, method(*args, **kwargs))

        return iterate


def _iterated(thread: EventLoopThread, iterator: AsyncIterator[R]) -> Iterator[R]:
    async def next_item() -> Any:
        return await anext(iterator, _END)

    try:
        while (item := thread.run(next_item())) is not _END:
            yield item
    finally:
        thread.run(_closed(iterator))


async def _closed(iterator: AsyncIterator[Any]) -> None:
    if isinstance(iterator, AsyncGenerator):
        await iterator.aclose()
