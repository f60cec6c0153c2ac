"""What all commands share: `--json`, `-v`, `--data`, `--server`, and how they print.

Answers go to standard output, with --json as JSON; logs, notes and errors go to standard error. Text for people is
escaped first, because most of it was written by others and could contain control characters.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from dagmaster.cli.printable import ascii_json, is_unicode
from dagmaster.client.neutral import neutral, neutral_json

if TYPE_CHECKING:
    from rich.console import Console

    from dagmaster.client.client import Client
    from dagmaster.settings import Settings

# Without a terminal there is no width limit: ids, paths and messages are not wrapped.
UNBOUNDED_WIDTH = 4000
# The exit code after Ctrl-C: the outcome is unknown.
INTERRUPTED = 130


@dataclass
class State:
    """The shared options, and what they lead to."""

    json: bool = False
    verbose: bool = False
    data: Path | None = None
    server: str | None = None

    @cached_property
    def settings(self) -> "Settings":
        """The settings of the environment."""
        from dagmaster import settings
        from dagmaster.observe import log

        chosen = {"DAGMASTER_DATA": self.data} if self.data else {}
        loaded = settings.load(**chosen)
        for warning in settings.warnings():
            log.configure("warning", loaded.log_format)
            log.get("settings").warning(warning)
        return loaded

    @cached_property
    def dsn(self) -> str:
        """The URL of the configured or running database."""
        from dagmaster.local.discovery import find_database

        self.log()
        return find_database(self.settings)

    @cached_property
    def client(self) -> "Client":
        """A client of the chosen or running platform."""
        from dagmaster.client.client import Client
        from dagmaster.local.discovery import find_api

        return Client(lambda: find_api(self.settings, self.server))

    def log(self) -> None:
        """Configure logging, for commands that run parts of the engine: the default writes to standard output."""
        from dagmaster.observe import log

        log.configure("debug" if self.verbose else "warning", self.settings.log_format)

    @cached_property
    def console(self) -> "Console":
        from rich.console import Console

        width = None if sys.stdout.isatty() else UNBOUNDED_WIDTH
        return Console(width=width, highlight=False, markup=False, emoji=False)

    def say(self, text: str) -> None:
        """Print a line of an answer for people."""
        write(sys.stdout, neutral(text))

    def note(self, text: str) -> None:
        """Print a remark to standard error."""
        write(sys.stderr, neutral(text))

    def emit(self, value: Any, *, line: bool = False) -> None:
        """Print an answer for programs; on one line if more may follow."""
        text = as_json(value, indent=not line)
        write(sys.stdout, text if is_unicode(sys.stdout.encoding) else ascii_json(text))


def write(stream: TextIO, text: str) -> None:
    stream.write(f"{text}\n")
    stream.flush()


def as_json(value: Any, *, indent: bool = True) -> str:
    import orjson

    options = orjson.OPT_INDENT_2 if indent else 0
    text = orjson.dumps(value, default=str, option=options | orjson.OPT_NON_STR_KEYS | orjson.OPT_UTC_Z).decode()
    return neutral_json(text)


def end_the_line() -> None:
    """After Ctrl-C a terminal shows ^C; begin a new line."""
    if sys.stderr.isatty():
        write(sys.stderr, "")


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
            ["--data"],
            type=folder,
            expose_value=False,
            callback=_setter("data"),
            metavar="DIR",
            help="Data folder of the local platform (or DAGMASTER_DATA)",
        ),
        click.Option(
            ["--server"],
            expose_value=False,
            callback=_setter("server"),
            metavar="URL",
            help="API of the platform (or DAGMASTER_URL); by default the one running on this machine",
        ),
        flag("--json", target="json", help="Print JSON"),
        flag("-v", "--verbose", target="verbose", help="Print more, including tracebacks"),
    ]


class Command(click.Command):
    """A command with the shared options."""

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
