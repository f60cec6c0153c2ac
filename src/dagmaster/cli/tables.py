"""Tables that fit the terminal: ids and states are never cut; less important columns are left out if it is narrow."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dagmaster.cli.printable import is_unicode
from dagmaster.quantities import duration

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import Console
    from rich.text import Text

    from dagmaster.cli.command import State
    from dagmaster.client.models.base import Json

    Rows = Sequence[Sequence[Text]]

T = TypeVar("T")
M = TypeVar("M", bound="BaseModel")
_MIN_WIDTH_LONG = 16
_MIN_WIDTH_MOVABLE = 32
_GAP = 2
# For each state a sign and a style.
_STATES = {
    "completed": ("✔", "green"),
    "partial_success": ("!", "yellow"),
    "failed": ("✖", "bold red"),
    "cancelled": ("■", "magenta"),
    "running": ("▶", "cyan"),
    "dispatched": ("»", "blue"),
    "ready": ("»", "blue"),
    "skipped": ("–", "dim"),
    "pending": ("·", "dim"),
    "alive": ("✔", "green"),
    "no_heartbeat": ("✖", "bold red"),
    "paused": ("■", "yellow"),
    "open": ("▶", "green"),
    "active": ("▶", "green"),
    "inactive": ("■", "yellow"),
    "succeeded": ("✔", "green"),
    "queued": ("»", "blue"),
    "processing": ("▶", "cyan"),
    "pending_review": ("»", "yellow"),
    "approved": ("✔", "green"),
    "rejected": ("✖", "bold red"),
    "unpublished": ("■", "magenta"),
    "deleted": ("–", "dim"),
    "delivered": ("✔", "green"),
    "finished": ("✔", "green"),
}


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """A heading, and the cell of each record.

    In a narrow terminal columns are left out, the one with the highest `drop` first; columns with 0 stay. A column with
    `is_long` is wrapped. If the terminal is still too narrow, columns with `is_below` move to their own lines below the
    row, the last column first. The cells of a column with `is_state` are names of states, shown with a sign and a
    colour.
    """

    heading: str
    cell: Callable[[T], str]
    drop: int = 0
    is_long: bool = False
    is_number: bool = False
    is_below: bool = False
    is_state: bool = False


def print_table(console: "Console", columns: Sequence[Column[T]], records: Iterable[T]) -> None:
    from rich.table import Table

    cells = [[_cell(console, column, record) for column in columns] for record in records]
    shown, below = _fitting(console.width, columns, cells)
    if below:
        _print_with_lines_below(console, columns, cells, shown, below)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index in shown:
        column = columns[index]
        table.add_column(
            column.heading, no_wrap=not column.is_long, overflow="fold", justify="right" if column.is_number else "left"
        )
    for row in cells:
        table.add_row(*(row[index] for index in shown))
    with _widened_console(console, _width(shown, columns, cells)):
        console.print(table)


def print_records(state: "State", columns: Sequence[Column[M]], kind: "type[M]", responses: "Sequence[Json]") -> None:
    """Print responses of the API as a table."""
    from dagmaster.client.models.base import read_all

    print_table(state.console, columns, read_all(kind, responses))


def _cell(console: "Console", column: Column[T], record: T) -> "Text":
    from rich.text import Text

    text = column.cell(record)
    return state_text(text, console.encoding) if column.is_state else Text(text)


def _print_with_lines_below(
    console: "Console", columns: Sequence[Column[Any]], rows: "Rows", shown: Sequence[int], below: Sequence[int]
) -> None:
    from rich.text import Text

    widths = [max(len(columns[index].heading), *(_cell_width(row[index]) for row in rows)) for index in shown]
    headings = [Text(column.heading, style="bold") for column in columns]
    for row in (headings, *rows):
        line = Text(" " * _GAP).join(
            _padded(row[index], width, columns[index].is_number) for index, width in zip(shown, widths, strict=True)
        )
        line.rstrip()
        console.print(line, soft_wrap=True)
        if row is not headings:
            for index in below:
                if row[index]:
                    console.print(Text(" " * _GAP) + row[index], soft_wrap=True)


def _padded(cell: "Text", width: int, is_number: bool) -> "Text":
    padded = cell.copy()
    padded.align("right" if is_number else "left", width)
    return padded


@contextmanager
def _widened_console(console: "Console", needed: int) -> Iterator[None]:
    """Widen the console if necessary: lines that the terminal wraps are better than lines that are cut off."""
    width = console.width
    console.width = max(width, needed)
    try:
        yield
    finally:
        console.width = width


def _fitting(width: int, columns: Sequence[Column[Any]], rows: "Rows") -> tuple[list[int], list[int]]:
    """The indexes of the columns that fit, and of those that move below the row."""
    shown, below = list(range(len(columns))), list[int]()
    while _width(shown, columns, rows) > width:
        droppable = [index for index in shown if columns[index].drop]
        movable = [index for index in shown if columns[index].is_below]
        if droppable:
            shown.remove(max(droppable, key=lambda index: columns[index].drop))
        elif movable:
            shown.remove(movable[-1])
            below.insert(0, movable[-1])
        else:
            break
    return shown, below


def _width(shown: Sequence[int], columns: Sequence[Column[Any]], rows: "Rows") -> int:
    total = _GAP * (len(shown) - 1)
    for index in shown:
        widest = max([len(columns[index].heading), *(_cell_width(row[index]) for row in rows)])
        min_width = _MIN_WIDTH_MOVABLE if columns[index].is_below else _MIN_WIDTH_LONG
        total += min(widest, min_width) if columns[index].is_long else widest
    return total


def _cell_width(text: "Text") -> int:
    return max((line.cell_len for line in text.split("\n")), default=0)


def state_text(status: str, encoding: str | None = "utf-8") -> "Text":
    """A state as a sign and a word, so that the colour is not needed to read it."""
    from rich.text import Text

    sign, style = _STATES.get(status, (" ", ""))
    sign = f"{sign} " if is_unicode(encoding) else ""
    return Text(f"{sign}{status.replace('_', ' ')}", style=style, no_wrap=True)


def at(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def ago(moment: datetime, now: datetime) -> str:
    return duration((now - moment).total_seconds())


def time_left(seconds: float | None) -> str:
    """An estimate as text; empty if there is none."""
    return f"about {duration(seconds)} left" if seconds is not None else ""
