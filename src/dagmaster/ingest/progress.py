"""Progress of steps that take long. The command line shows it as a bar."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

_POLL_SECONDS = 0.1


class Bar(Protocol):
    @property
    def is_shown(self) -> bool: ...

    def show(self, done: float, total: float | None = None) -> None: ...


class OpenBar(Protocol):
    """Opens a bar with a title. It counts bytes or items."""

    def __call__(self, title: str, *, is_bytes: bool = True) -> AbstractContextManager[Bar]: ...


@contextmanager
def polled(bar: Bar, position: Callable[[], float], total: float) -> Iterator[None]:
    """Update the bar regularly while the block runs."""
    if not bar.is_shown:
        yield
        return
    is_done = threading.Event()

    def update() -> None:
        while not is_done.wait(_POLL_SECONDS):
            bar.show(position(), total)

    thread = threading.Thread(target=update, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_done.set()
        thread.join()
