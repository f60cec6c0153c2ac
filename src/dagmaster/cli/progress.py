"""A progress bar on standard error if that is a terminal; otherwise one line with the title."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagmaster.cli.command import State
from dagmaster.client.escaping import escaped

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


@dataclass(frozen=True, slots=True)
class ProgressBar:
    """`progress` is None if no bar is shown."""

    progress: "Progress | None" = None
    task: "TaskID | None" = None

    @property
    def is_shown(self) -> bool:
        return self.progress is not None

    def show(self, done: float, total: float | None = None) -> None:
        if self.progress and self.task is not None:
            self.progress.update(self.task, completed=done, total=total)


@contextmanager
def progress_bar(state: State, title: str, *, is_bytes: bool = True) -> Iterator[ProgressBar]:
    """Show progress while the block runs. With --json nothing is printed."""
    if state.json or not sys.stderr.isatty():
        if not state.json:
            state.note(f"{title} …")
        yield ProgressBar()
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TransferSpeedColumn

    counters = (DownloadColumn(), TransferSpeedColumn()) if is_bytes else (MofNCompleteColumn(),)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), *counters)
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield ProgressBar(progress, progress.add_task(escaped(title), total=None))
