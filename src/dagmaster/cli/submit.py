"""`dagmaster submit`: create a job, and if wanted stay until it is over."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from dagmaster.cli.command import Command, State, pass_state
from dagmaster.errors import InvalidRequest

if TYPE_CHECKING:
    from dagmaster.operations.catalog import Catalog
    from dagmaster.workflows.model import Input, Workflow


@click.command(cls=Command)
@click.argument("workflow")
@click.option("-p", "--param", "pairs", multiple=True, metavar="K=V", help="An input; JSON unless declared a string")
@click.option("--params", metavar="@FILE|JSON", help="Inputs as a JSON object")
@click.option("--priority", type=click.IntRange(0, 10), default=0, show_default=True, help="10 goes first")
@click.option("--correlation-id", help="An id of yours, up to 64 characters")
@click.option("--submitted-by", help="Who asks for it")
@click.option("--wait", is_flag=True, help="Stay until it is over, and print the result")
@click.option("--watch", is_flag=True, help="Show live progress, then the result")
@pass_state
def submit(
    state: State, *, workflow: str, pairs: tuple[str, ...], params: str | None, priority: int, correlation_id: str | None,
    submitted_by: str | None, wait: bool, watch: bool,
) -> int:  # fmt: skip
    """Submit a job of WORKFLOW: the name of one, or a YAML file.

    With --wait or --watch the exit code tells how it ended: 0 completed, 1 otherwise. Ctrl-C leaves the job running.
    """
    from dagmaster.cli.follow import follow, say_detached

    chosen = find_workflow(state, workflow)
    inputs = _inputs(chosen, pairs, params)
    extras = {"priority": priority, "correlation_id": correlation_id, "submitted_by": submitted_by}
    created: list[UUID] = []
    try:
        asyncio.run(
            create_job(
                state.dsn, chosen, inputs, extras, created.append, max_params_bytes=state.settings.max_params_bytes
            )
        )
    except KeyboardInterrupt:
        if not created:
            raise
        say_detached(state, created[0])
        return 0
    job_id = created[0]
    if wait or watch:
        return follow(state, job_id, live=watch)
    if state.json:
        state.emit({"job_id": str(job_id), "workflow_id": chosen.workflow_id, "status": "pending"})
    else:
        state.say(str(job_id))
        state.note(f"watch it with: dagmaster jobs watch {job_id}")
    return 0


def find_workflow(state: State, name: str) -> "Workflow":
    """A workflow by its name, or as a file says."""
    if name.endswith((".yaml", ".yml")) or "/" in name:
        return read_file(state, Path(name))
    return catalog_of(state).get(name)


def catalog_of(state: State) -> "Catalog":
    from dagmaster.handlers.registry import installed
    from dagmaster.operations.catalog import load_catalog

    return load_catalog(state.settings, installed(), state.settings.known_queues)


def read_file(state: State, path: Path) -> "Workflow":
    """The workflow in a file, or every problem in it."""
    from dagmaster.handlers.registry import installed
    from dagmaster.operations.catalog import limits_of
    from dagmaster.workflows.load import read_all

    settings = state.settings
    loaded = read_all([path], limits=limits_of(settings), handlers=installed(), queues=settings.known_queues)
    if loaded.refused:
        raise loaded.refused[0]
    return next(iter(loaded.workflows.values()))


def _inputs(workflow: "Workflow", pairs: tuple[str, ...], params: str | None) -> dict[str, Any]:
    """The object first, then single inputs, which have the last word."""
    given = _object(params) if params else {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator or not name:
            raise InvalidRequest(f"-p {pair}: expected name=value", code="inputs.invalid")
        given[name] = _value(name, workflow.inputs.get(name), text)
    return given


def _value(name: str, declared: "Input | None", text: str) -> Any:
    """A string as it stands, anything else as JSON. An input that nobody declared is refused later, by name."""
    import orjson

    if declared is None or declared.type == "string":
        return text
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        shown = text if len(text) <= 60 else text[:59] + "…"
        raise InvalidRequest(
            f"-p {name}: {declared.type} is expected, and {shown!r} is not JSON ({error})",
            code="inputs.invalid",
            hint=_EXAMPLES[str(declared.type)].format(name=name),
            fields=[name],
        ) from None


_EXAMPLES = {
    "integer": "for example -p {name}=3",
    "number": "for example -p {name}=0.5",
    "boolean": "-p {name}=true or -p {name}=false",
    "array": "for example -p '{name}=[1, 2]'",
    "object": """for example -p '{name}={{"key": "value"}}'""",
}


def _object(params: str) -> dict[str, Any]:
    import orjson

    text: str | bytes = params
    if params.startswith("@"):
        try:
            text = Path(params[1:]).read_bytes()
        except OSError as error:
            raise InvalidRequest(f"--params {params}: {error.strerror}", code="inputs.invalid") from None
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"--params is not JSON: {error}", code="inputs.invalid") from None
    if not isinstance(value, dict):
        raise InvalidRequest("--params must be a JSON object", code="inputs.invalid")
    return value


async def create_job(
    dsn: str,
    workflow: "Workflow",
    inputs: dict[str, Any],
    extras: dict[str, Any],
    on_created: Callable[[UUID], None] = lambda _: None,
    *,
    max_params_bytes: int = 262_144,
) -> UUID:
    """Create a job and ring for it. `on_created` is told at once, whatever happens to the ringing."""
    from pydantic import ValidationError

    from dagmaster.database.bell import JOBS
    from dagmaster.database.bell_postgres import PostgresBell
    from dagmaster.database.postgres import PostgresLedger
    from dagmaster.jobs.model import Submission
    from dagmaster.operations import submit as operation
    from dagmaster.operations.catalog import Catalog

    try:
        submission = Submission(workflow_id=workflow.workflow_id, input_params=inputs, **extras)
    except ValidationError as error:
        what = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_url=False))
        raise InvalidRequest(what, code="request.invalid") from None
    ledger, bell = PostgresLedger(dsn, "submit"), PostgresBell(dsn)
    # Only a hint (whoever misses it finds the job at its next look), but one that connects while the job is written.
    bell.start()
    try:
        catalog = Catalog({workflow.workflow_id: workflow}, max_params_bytes=max_params_bytes)
        (job_id,) = await operation.submit(ledger, catalog, [submission])
        on_created(job_id)
        bell.ring(JOBS)
        return job_id
    finally:
        await bell.close()
        await ledger.close()
