"""What every command shares: `--json`, `-v`, `--data`, and how its answer reaches people and programs.

Answers go to standard output, as JSON where asked; everything else (logs, notes, errors) goes to standard error.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

    from dagmaster.settings import Settings

# Without a terminal there is no width to fit into: ids and paths shall stay in one piece.
UNBOUNDED_WIDTH = 160


@dataclass
class State:
    """What was asked for beside the command itself."""

    json: bool = False
    verbose: bool = False
    data: Path | None = None

    @cached_property
    def settings(self) -> "Settings":
        """The environment's settings. Logging is set up with them, since its default would write to standard output."""
        from dagmaster import log, settings

        chosen = {"DAGMASTER_DATA": self.data} if self.data else {}
        loaded = settings.load(**chosen)
        log.configure("debug" if self.verbose else "warning", loaded.log_format)
        return loaded

    @cached_property
    def dsn(self) -> str:
        """The database of the platform that is meant."""
        from dagmaster.cli.platform import find_platform

        return find_platform(self.settings)

    @cached_property
    def console(self) -> "Console":
        return _console(stderr=False)

    @cached_property
    def notes(self) -> "Console":
        """For what is told besides the answer."""
        return _console(stderr=True)

    def say(self, text: str) -> None:
        """A line of an answer for people."""
        click.echo(text)

    def note(self, text: str) -> None:
        """A remark beside the answer."""
        click.echo(text, err=True)

    def emit(self, value: Any, *, line: bool = False) -> None:
        """An answer for programs; as a line where more may follow."""
        click.echo(as_json(value, indent=not line))
        sys.stdout.flush()


def as_json(value: Any, *, indent: bool = True) -> str:
    import orjson

    options = orjson.OPT_INDENT_2 if indent else 0
    return orjson.dumps(value, default=str, option=options | orjson.OPT_NON_STR_KEYS | orjson.OPT_UTC_Z).decode()


def _console(*, stderr: bool) -> "Console":
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else UNBOUNDED_WIDTH
    return Console(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)


def _setter(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def keep(context: click.Context, _parameter: click.Parameter, value: Any) -> None:
        if value:
            setattr(context.ensure_object(State), name, value)

    return keep


def _shared_options() -> list[click.Parameter]:
    def flag(*names: str, target: str, help: str) -> click.Option:  # noqa: A002 - click's word
        return click.Option(names, is_flag=True, expose_value=False, callback=_setter(target), help=help)

    folder = click.Path(file_okay=False, path_type=Path)
    return [
        click.Option(
            ["--data"], type=folder, expose_value=False, callback=_setter("data"), metavar="DIR",
            help="Data folder of the local platform (or DAGMASTER_DATA)",
        ),
        flag("--json", target="json", help="Answer in JSON"),
        flag("-v", "--verbose", target="verbose", help="Say more, and show tracebacks"),
    ]  # fmt: skip


class Command(click.Command):
    """A command with the options that all have."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.params.extend(_shared_options())


class Group(click.Group):
    command_class = Command

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.params.extend(_shared_options())


Group.group_class = Group

pass_state = click.make_pass_decorator(State, ensure=True)
