"""What all commands share: `--json`, `-v`, `--data`, `--server`, `--key`, and how they print.

Results go to standard output, with --json as JSON; logs, notes and errors go to standard error. Text for people is
escaped first, because most of it comes from handlers and submitters, and could contain control characters.
"""

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click

from dagmaster.cli.printable import ascii_json, is_unicode
from dagmaster.client.escaping import escaped, escaped_json
from dagmaster.errors import InvalidRequest

if TYPE_CHECKING:
    from rich.console import Console

    from dagmaster.client.json_client import JsonClient
    from dagmaster.client.models.base import Json
    from dagmaster.settings import Settings

Callback = TypeVar("Callback", bound=Callable[..., Any])
# Without a terminal there is no width limit: ids, paths and messages are not wrapped.
UNBOUNDED_WIDTH = 4000
# The exit code after Ctrl-C: the outcome is unknown.
INTERRUPTED = 130


@dataclass
class State:
    """The shared options and the name of the command, with the settings, client and console that they determine."""

    json: bool = False
    verbose: bool = False
    data: Path | None = None
    server: str | None = None
    key: str | None = field(default=None, repr=False)
    command: str | None = None

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
        dsn = find_database(self.settings)
        self.use_tokens()
        return dsn

    def use_tokens(self) -> None:
        """Log in to PostgreSQL with tokens, if the settings say so."""
        if self.settings.use_managed_identity:
            from dagmaster.database.token_login import enable

            enable(self.settings)

    @cached_property
    def client(self) -> "JsonClient":
        """A client of the chosen or running platform."""
        return self.client_with()

    def client_with(self, timeout_seconds: float | None = None) -> "JsonClient":
        from dagmaster.client.connection import TIMEOUT_SECONDS
        from dagmaster.client.json_client import JsonClient
        from dagmaster.local.discovery import find_api

        return JsonClient.of(
            lambda: find_api(self.settings, self.server), timeout_seconds or TIMEOUT_SECONDS, find_key=self.find_key
        )

    def find_key(self) -> str | None:
        """The key of the chosen or running platform."""
        from dagmaster.client.credentials import key_for

        return key_for(self.settings, server=self.server, chosen=self.key)

    def is_log_json(self) -> bool:
        """Whether logs are JSON. Does not fail if other settings are invalid."""
        from dagmaster import settings

        repaired, _ = settings.repaired()
        return repaired.log_format == "json"

    def log(self) -> None:
        """Configure logging, for commands that run parts of the engine; without this, logs go to standard output."""
        from dagmaster.observe import log

        log.configure("debug" if self.verbose else "warning", self.settings.log_format)

    @cached_property
    def console(self) -> "Console":
        from rich.console import Console

        width = None if sys.stdout.isatty() else UNBOUNDED_WIDTH
        return Console(width=width, highlight=False, markup=False, emoji=False)

    def say(self, text: str) -> None:
        """Print a line of a result for people."""
        write(sys.stdout, escaped(text))

    def announce(self, text: str) -> None:
        """Print a line that only people need: nothing with --json."""
        if not self.json:
            self.say(text)

    def note(self, text: str) -> None:
        """Print a remark to standard error."""
        write(sys.stderr, escaped(text))

    def comment(self, text: str) -> None:
        """Print a remark that only people need: nothing with --json."""
        if not self.json:
            self.note(text)

    def show_progress(self, text: str) -> None:
        """Overwrite the last line of progress, on a terminal only."""
        if sys.stderr.isatty() and not self.json:
            click.echo(f"\r{text} …\r", nl=False, err=True)

    def require_no_server(self, reason: str, hint: str) -> None:
        """Refuse --server, for commands that do not use the API."""
        if self.server:
            raise InvalidRequest(f"--server is not supported here: {reason}", code="usage", hint=hint)

    def emit(self, value: Any, *, line: bool = False) -> None:
        """Print a result for programs; on one line if more may follow."""
        text = as_json(value, indent=not line)
        write(sys.stdout, text if is_unicode(sys.stdout.encoding) else ascii_json(text))

    def print_result(self, value: Any, text: str | Callable[[], None], *, line: bool = False) -> None:
        """Print a result: `value` for programs, `text` for people, which may be a function that prints it."""
        if self.json:
            self.emit(value, line=line)
        elif isinstance(text, str):
            self.say(text)
        else:
            text()

    def confirm(self, question: str, show: Callable[[], None] | None = None) -> bool:
        """Show the change, then ask for confirmation on the terminal."""
        if self.json or not sys.stdin.isatty():
            raise InvalidRequest(
                "confirmation is required, but --json is given or the input is not a terminal",
                code="usage",
                hint="add --yes",
            )
        if show is not None:
            show()
        return click.confirm(escaped(question), err=True)

    def say_facts(self, facts: Mapping[str, object], width: int = 10) -> None:
        """Print names and values in two columns. Facts without a value are left out."""
        for name, value in facts.items():
            if value not in (None, ""):
                self.say(f"{name:<{width}} {value}")

    def print_page(
        self,
        name: str,
        page: "tuple[list[Json], Any]",
        show: "Callable[[State, list[Json]], None]",
        *,
        noun: str | None = None,
    ) -> None:
        """Print a page: its entries, and the cursor of the next page. `show` prints the entries for people; a note says
        if there are none, or how to get the next page."""
        entries, next_cursor = page
        if self.json:
            self.emit({name: entries, "next": next_cursor})
            return
        if entries:
            show(self, entries)
        else:
            self.note(f"no {noun or name}")
        if next_cursor is not None:
            self.note(f"more with: --after {shlex.quote(str(next_cursor))}")


def write(stream: TextIO, text: str) -> None:
    stream.write(f"{text}\n")
    stream.flush()


def as_json(value: Any, *, indent: bool = True) -> str:
    import orjson

    options = orjson.OPT_INDENT_2 if indent else 0
    text = orjson.dumps(value, default=str, option=options | orjson.OPT_NON_STR_KEYS | orjson.OPT_UTC_Z).decode()
    return escaped_json(text)


def end_the_line() -> None:
    """After Ctrl-C a terminal shows ^C; begin a new line."""
    if sys.stderr.isatty():
        write(sys.stderr, "")


def _setter(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def store_option(context: click.Context, _parameter: click.Parameter, value: Any) -> None:
        if value:
            setattr(context.ensure_object(State), name, value)

    return store_option


def _shared_options() -> list[click.Parameter]:
    def shared(text: str, *names: str, **more: Any) -> click.Option:
        callback = _setter(names[-1].removeprefix("--"))
        return click.Option(names, expose_value=False, callback=callback, help=text, **more)

    folder = click.Path(file_okay=False, path_type=Path)
    server = "API of the platform (or DAGMASTER_URL); by default the one running on this machine"
    key = "API key or token (or DAGMASTER_KEY); by default the one that `dagmaster login` stored"
    return [
        shared("Data folder of the local platform (or DAGMASTER_DATA)", "--data", type=folder, metavar="DIR"),
        shared(server, "--server", metavar="URL"),
        shared(key, "--key", metavar="KEY"),
        shared("Print JSON", "--json", is_flag=True),
        shared("Print more, including tracebacks", "-v", "--verbose", is_flag=True),
    ]


def wait_options(command: Callback) -> Callback:
    """`--wait` and `--watch`, of commands that start a job."""
    wait = click.option("--wait", is_flag=True, help="Wait until the job ends, and print the result")
    watch = click.option("--watch", is_flag=True, help="Show live progress, then the result")
    return wait(watch(command))


yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation")


def reason_option(recorded: str) -> Callable[[Callback], Callback]:
    return click.option("--reason", metavar="TEXT", help=f"The reason; {recorded}")


def words_option(name: str, *more: str, words: Sequence[str], text: str) -> Callable[[Callback], Callback]:
    """An option that takes one or more of these words; see `CommaSeparatedChoice`. Its value is a tuple, or None."""
    choice = CommaSeparatedChoice(words)
    return click.option(name, *more, type=choice, multiple=True, callback=_distinct_words, help=text)


def limit_option(max_limit: int, *, default: int) -> Callable[[Callback], Callback]:
    limits = click.IntRange(1, max_limit)
    return click.option("--limit", type=limits, default=default, show_default=True, help="Maximum number of entries")


def page_options(
    max_limit: int, *, default: int, entry: str, metavar: str = "CURSOR"
) -> Callable[[Callback], Callback]:
    """`--limit` and `--after`, of commands that list a page of entries."""
    after = click.option("--after", metavar=metavar, help=f"Continue after this {entry} (`next` of the previous page)")
    return lambda command: limit_option(max_limit, default=default)(after(command))


def input_options(command: Callback) -> Callback:
    """`--param` and `--params`, of commands that submit."""
    pairs = click.option(
        "-p", "--param", "pairs", multiple=True, metavar="K=V", help="An input; JSON unless it is declared as a string"
    )
    return pairs(click.option("--params", metavar="@FILE|JSON", help="Inputs as a JSON object, up to 1 MiB")(command))


priority_option = click.option(
    "--priority",
    type=click.IntRange(0, 10),
    default=0,
    show_default=True,
    help="Tasks of jobs with a higher priority run first",
)


class CommaSeparatedChoice(click.ParamType[list[str]]):
    """One or more of several words: the option may be repeated, and each value may list words with commas."""

    name = "words"

    def __init__(self, words: Sequence[str]) -> None:
        self.choice = click.Choice(words)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        return self.choice.get_metavar(param, ctx)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[str]:
        return [self.choice.convert(word.strip(), param, ctx) for word in str(value).split(",")]

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        return self.choice.shell_complete(ctx, param, incomplete)


def _distinct_words(
    _context: click.Context, _parameter: click.Parameter, value: tuple[list[str], ...]
) -> tuple[str, ...] | None:
    return tuple(dict.fromkeys(word for words in value for word in words)) or None


class Command(click.Command):
    """A command with the shared options. An option that takes one value is refused if it is given twice."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.params.extend(_shared_options())

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        _require_once(self, ctx, args)
        return super().parse_args(ctx, args)


class Group(Command, click.Group):
    command_class = Command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """For an unknown command, suggest a similar one."""
        from dagmaster.workflows.nearest import did_you_mean

        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-") and not ctx.resilient_parsing:
            ctx.fail(f"No such command '{name}'{did_you_mean(name, self.list_commands(ctx)) or '.'}")
        return super().resolve_command(ctx, args)


def _require_once(command: click.Command, ctx: click.Context, args: list[str]) -> None:
    if ctx.resilient_parsing:
        return
    _, _, order = command.make_parser(ctx).parse_args(list(args))
    for option in dict.fromkeys(order):
        is_single = isinstance(option, click.Option) and not (option.multiple or option.is_flag or option.count)
        if is_single and order.count(option) > 1:
            raise click.UsageError(f"{option.opts[0]} is given {order.count(option)} times; it takes one value.", ctx)


Group.group_class = Group

pass_state = click.make_pass_decorator(State, ensure=True)
