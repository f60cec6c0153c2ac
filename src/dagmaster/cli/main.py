"""The entry point: the tree of commands, and the one place that turns errors into messages and exit codes.

0  success                      3  not allowed
1  the job or a check failed    4  not found, or the state does not allow it
2  invalid usage                5  unavailable
70 internal error               130 interrupted
"""

import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

import click

from dagmaster import __version__, errors
from dagmaster.cli.command import INTERRUPTED, Group, State, as_json, pass_state, write
from dagmaster.cli.printable import prepare_streams
from dagmaster.client.escaping import escaped

# Each module is imported when it is needed, so that light commands start fast.
COMMANDS = {
    "up": "up:up",
    "process": "process:process",
    "submit": "submit:submit",
    "assets": "assets:assets",
    "metadata": "metadata:metadata",
    "commands": "commands:commands",
    "platforms": "platforms:platforms",
    "uploads": "uploads:uploads",
    "sources": "uploads:sources",
    "keys": "keys:keys",
    "audit": "audit:audit",
    "login": "login:login",
    "logout": "login:logout",
    "jobs": "jobs:jobs",
    "workflows": "workflows:workflows",
    "queues": "queues:queues",
    "workers": "instances:workers",
    "orchestrators": "instances:orchestrators",
    "dead-letters": "dead_letters:dead_letters",
    "callbacks": "callbacks:callbacks",
    "janitor": "janitor:janitor",
    "db": "database:db",
    "doctor": "doctor:doctor",
    "verify-history": "history:verify_history",
    "verify-storage": "storage:verify_storage",
    "orchestrator": "roles:orchestrator",
    "worker": "roles:worker",
    "serving": "roles:serving",
    "gateway": "roles:gateway",
    "demo": "demo:demo",
    "local": "local:local",
    "completion": "completion:completion",
}
SUCCESS, USAGE, NOT_ALLOWED, UNAVAILABLE, BUG = 0, 2, 3, 5, 70
# The extra that a command needs, if several extras have the missing package. Roles have extras of their own names;
# commands that are not listed, such as `up`, need several.
EXTRAS = {
    **{role: role for role in ("orchestrator", "worker", "serving", "gateway")},
    **dict.fromkeys(("db", "keys", "verify-history", "verify-storage"), "orchestrator"),
}
# Most specific first.
EXIT_CODES: tuple[tuple[type[errors.DagmasterError], int], ...] = (
    (errors.NotAllowed, NOT_ALLOWED),
    (errors.InvalidRequest, USAGE),
    (errors.NotFound, 4),
    (errors.Conflict, 4),
    (errors.Fenced, 4),
    (errors.Unavailable, UNAVAILABLE),
    (errors.DagmasterError, 1),
)


_CONTEXT = {"max_content_width": 100, "help_option_names": ["-h", "--help"]}


class PipeClosed(Exception):
    """The reader of our output has closed the pipe (`| head`)."""


class Root(Group):
    """Handles a closed pipe before click does: click would treat it as a failure."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[name].partition(":")
        command: click.Command = getattr(import_module(f"dagmaster.cli.{module}"), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        ctx.ensure_object(State).command = args[0]
        return super().resolve_command(ctx, args)

    def make_context(self, *arguments: Any, **more: Any) -> click.Context:
        try:
            return super().make_context(*arguments, **more)
        except BrokenPipeError:
            raise PipeClosed from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            raise PipeClosed from None
        return result


@click.group("dagmaster", cls=Root, invoke_without_command=True, context_settings=_CONTEXT)
@click.version_option(__version__, prog_name="dagmaster")
@click.pass_context
@pass_state
def cli(state: State, context: click.Context) -> None:
    """Durable geospatial workflows on PostgreSQL.

    Start with `dagmaster up`, then `dagmaster submit hello_world --wait` in another terminal.
    """
    if context.invoked_subcommand is None:
        _without_subcommand(state, context)


def _without_subcommand(state: State, context: click.Context) -> None:
    """Run the role that RUN_MODE selects, as in a container; without RUN_MODE, print the help."""
    if "run_mode" not in state.settings.model_fields_set:
        click.echo(context.get_help())
        return
    state.command = state.settings.run_mode
    role = cli.get_command(context, state.command)
    assert role is not None
    context.invoke(role)


def main() -> None:
    prepare_streams()
    # Rasters without a position are expected. Set once for the process: `warnings.catch_warnings` is not thread-safe.
    warnings.filterwarnings("ignore", message="Dataset has no geotransform")
    code = run(sys.argv[1:])
    try:
        sys.stderr.flush()
    except (OSError, ValueError):  # standard error is closed; the exit code remains
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run a command; returns the exit code."""
    # Read here, because errors in the arguments are printed as JSON too, before click has parsed `--json`.
    state = State(json="--json" in arguments)
    try:
        _require_utf8(arguments)
        code = cli.main(list(arguments), prog_name="dagmaster", standalone_mode=False, obj=state)
    except PipeClosed:
        _silence_output()
        return SUCCESS
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except Exception as error:  # the outermost handler
        return _print_error(error, state)
    return code if isinstance(code, int) else SUCCESS


def _require_utf8(arguments: Sequence[str]) -> None:
    """Arguments that are not UTF-8 contain surrogates, which the rest of the program cannot process."""
    for number, argument in enumerate(arguments, 1):
        if any("\ud800" <= character <= "\udfff" for character in argument):
            shown = argument.encode("ascii", "backslashreplace").decode()
            raise errors.InvalidRequest(f"argument {number} is not UTF-8: {shown}", code="usage")


def _silence_output() -> None:
    """Discard further output. Otherwise Python would complain when it flushes at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _flush_output() -> None:
    """Write what was printed before an error, if possible."""
    try:
        sys.stdout.flush()
    except OSError:
        _silence_output()


def _print_error(error: Exception, state: State) -> int:
    _flush_output()
    code, lines = _error_lines(error, state)
    # If standard error is closed too, only the exit code remains.
    with suppress(OSError):
        for line in lines:
            write(sys.stderr, line)
    return code


def _error_lines(error: Exception, state: State) -> tuple[int, list[str]]:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return USAGE, [error.format_message()]
    code, facts = describe_error(error, state.command)
    lines = [_traceback(error)] if state.verbose else []
    if state.json:
        return code, [*lines, as_json({"error": facts}, indent=False)]
    if state.is_log_json():
        return code, [*lines, _log_line(facts)]
    lines.append(escaped(f"error: {facts['message']}"))
    if facts.get("hint"):
        lines.append(escaped(f"hint: {facts['hint']}"))
    details = facts.get("facts") or {}
    if details.get("request_id") and details.get("status", 0) >= 500:
        lines.append(escaped(f"request id: {details['request_id']}"))
    return code, lines


def _log_line(facts: dict[str, Any]) -> str:
    """An error as a line of the log, for programs that read the log."""
    from datetime import UTC, datetime

    from dagmaster.timestamps import rfc3339

    named = {name: value for name, value in facts.items() if value and name != "message"}
    timestamp = rfc3339(datetime.now(UTC))
    return as_json({**named, "event": facts["message"], "level": "error", "timestamp": timestamp}, indent=False)


def _traceback(error: Exception) -> str:
    import traceback

    from dagmaster.observe.redaction import redact

    return escaped(redact("".join(traceback.format_exception(error))))


def describe_error(error: Exception, command: str | None = None) -> tuple[int, dict[str, Any]]:
    """The exit code and the description of an error of a command, without secrets."""
    from dagmaster.extras import missing_extra
    from dagmaster.observe.redaction import redact_value

    if isinstance(error, ImportError):
        error = missing_extra(error, EXTRAS.get(command or "")) or error
    match error:
        case errors.DagmasterError():
            return _exit_code(error), redact_value(_facts(error))
        case click.ClickException():
            hint = (
                f"see `{error.ctx.command_path} --help`" if isinstance(error, click.UsageError) and error.ctx else None
            )
            # click puts each choice on its own line.
            message = " ".join(error.format_message().split())
            return USAGE, redact_value({"code": "usage", "message": message, "hint": hint})
        case PermissionError():
            return NOT_ALLOWED, redact_value({"code": "not-allowed", "message": str(error), "hint": None})
        case OSError():
            return UNAVAILABLE, redact_value({"code": "system", "message": _system_message(error), "hint": None})
    text = f"{type(error).__name__}: {error}".strip(": ")
    hint = "this is a bug in dagmaster; run again with -v for the traceback"
    return BUG, redact_value({"code": "bug", "message": f"unexpected error: {text}", "hint": hint})


def _system_message(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else "the output cannot be written: "
    return f"{where}{error.strerror or error}"


def _exit_code(error: errors.DagmasterError) -> int:
    return next(code for kind, code in EXIT_CODES if isinstance(error, kind))


def _facts(error: errors.DagmasterError) -> dict[str, Any]:
    facts: dict[str, Any] = {"code": error.code, "message": error.message, "hint": error.hint, "facts": error.facts}
    if isinstance(error, errors.InvalidWorkflow):
        from dataclasses import asdict

        facts["problems"] = [asdict(problem) for problem in error.problems]
    return facts


if __name__ == "__main__":
    main()
