"""The entry point: the tree of commands, and the one place where errors become messages and exit codes.

0  fine                    3  not allowed
1  the job failed          4  not found, or the state forbids it
2  usage                   5  unavailable
70 a bug of ours           130 interrupted
"""

import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from dagmaster import __version__, errors
from dagmaster.cli.command import Group, State, as_json, pass_state
from dagmaster.cli.database import db
from dagmaster.cli.demo import demo
from dagmaster.cli.history import verify_history
from dagmaster.cli.jobs import jobs
from dagmaster.cli.serve import orchestrator, worker
from dagmaster.cli.submit import submit
from dagmaster.cli.up import up
from dagmaster.cli.workflows import workflows

FINE, USAGE, NOT_ALLOWED, BUG, INTERRUPTED = 0, 2, 3, 70, 130
# Most particular first.
EXIT_CODES: tuple[tuple[type[errors.DagmasterError], int], ...] = (
    (errors.InvalidRequest, USAGE),
    (errors.NotFound, 4),
    (errors.Conflict, 4),
    (errors.Fenced, 4),
    (errors.Unavailable, 5),
    (errors.DagmasterError, 1),
)
NOT_ALLOWED_CODES = frozenset({"database.not-allowed", "not-allowed"})


class ReaderLeft(Exception):
    """Whoever read our output has seen enough (`| head`)."""


class Root(Group):
    def invoke(self, ctx: click.Context) -> Any:
        """Tell a closed pipe before click does, which would make it a failure."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            raise ReaderLeft from None
        return result


@click.group("dagmaster", cls=Root, invoke_without_command=True, context_settings={"max_content_width": 100})
@click.version_option(__version__, prog_name="dagmaster")
@click.pass_context
@pass_state
def cli(state: State, context: click.Context) -> None:
    """Durable geospatial workflows on PostgreSQL.

    Start with `dagmaster up`, then `dagmaster submit hello_world --wait` in another terminal.
    """
    if context.invoked_subcommand is None:
        _without_subcommand(state, context)


for _command in (up, submit, jobs, workflows, db, verify_history, orchestrator, worker, demo):
    cli.add_command(_command)


def _without_subcommand(state: State, context: click.Context) -> None:
    """In a container RUN_MODE selects the role; people get help."""
    if "run_mode" not in state.settings.model_fields_set:
        click.echo(context.get_help())
        return
    role = cli.commands.get(state.settings.run_mode)
    if role is None:
        raise errors.InvalidRequest(
            f"RUN_MODE={state.settings.run_mode} is not part of this version",
            code="settings.invalid",
            hint="use up, orchestrator or worker",
        )
    context.invoke(role)


def main() -> None:
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run a command; the answer is the exit code."""
    # An error in the arguments themselves is told in JSON too, though they could not be read to their end.
    state = State(json="--json" in arguments)
    try:
        code = cli.main(list(arguments), prog_name="dagmaster", standalone_mode=False, obj=state)
    except ReaderLeft:
        return _reader_left()
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except Exception as error:  # the door: whatever comes this far is told to a person
        return _tell(error, state)
    return code if isinstance(code, int) else FINE


def _reader_left() -> int:
    """Not an error. Python would complain once more when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FINE


def _tell(error: Exception, state: State) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)
        return USAGE
    code, facts = described(error)
    if state.verbose:
        _print_traceback(error)
    if state.json:
        click.echo(as_json({"error": facts}, indent=False), err=True)
        return code
    click.echo(f"error: {facts['message']}", err=True)
    if facts.get("hint"):
        click.echo(f"hint: {facts['hint']}", err=True)
    return code


def _print_traceback(error: Exception) -> None:
    import traceback

    from dagmaster.log import redact

    click.echo(redact("".join(traceback.format_exception(error))), err=True)


def described(error: Exception) -> tuple[int, dict[str, Any]]:
    """The exit code of an error, and what is said about it, without secrets."""
    match error:
        case errors.DagmasterError():
            return _exit_code(error), _clean(_facts(error))
        case click.ClickException():
            hint = (
                f"see `{error.ctx.command_path} --help`" if isinstance(error, click.UsageError) and error.ctx else None
            )
            return USAGE, _clean({"code": "usage", "message": error.format_message(), "hint": hint})
        case PermissionError():
            return NOT_ALLOWED, _clean({"code": "not-allowed", "message": str(error), "hint": None})
    what = f"{type(error).__name__}: {error}".strip(": ")
    hint = "this is a bug of dagmaster; run again with -v for the traceback"
    return BUG, _clean({"code": "bug", "message": f"something unexpected happened: {what}", "hint": hint})


def _exit_code(error: errors.DagmasterError) -> int:
    if error.code in NOT_ALLOWED_CODES:
        return NOT_ALLOWED
    return next(code for kind, code in EXIT_CODES if isinstance(error, kind))


def _facts(error: errors.DagmasterError) -> dict[str, Any]:
    facts: dict[str, Any] = {"code": error.code, "message": error.message, "hint": error.hint, "facts": error.facts}
    if isinstance(error, errors.InvalidWorkflow):
        from dataclasses import asdict

        facts["problems"] = [asdict(problem) for problem in error.problems]
    return facts


def _clean(value: Any) -> Any:
    """Each text by itself: in a whole document a secret's end could not be told from the next value."""
    from dagmaster.log import redact

    if isinstance(value, dict):
        return {key: _clean(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(part) for part in value]
    return redact(value) if isinstance(value, str) else value


if __name__ == "__main__":
    main()
