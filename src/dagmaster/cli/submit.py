"""`dagmaster submit`: create a job, and if wanted stay until it is over."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import click

from dagmaster.cli.command import Command, State, end_the_line, pass_state
from dagmaster.cli.completion import complete_workflows_or_files
from dagmaster.cli.naming import is_file, workflow_bytes
from dagmaster.cli.printable import counted
from dagmaster.client.limits import MAX_BODY_BYTES
from dagmaster.errors import InvalidRequest, InvalidWorkflow, Unavailable, WorkflowProblem

Schema = dict[str, Any]


@click.command(cls=Command)
@click.argument("workflow", shell_complete=complete_workflows_or_files)
@click.option("-p", "--param", "pairs", multiple=True, metavar="K=V", help="An input; JSON unless declared a string")
@click.option("--params", metavar="@FILE|JSON", help="Inputs as a JSON object, up to 1 MiB")
@click.option("--priority", type=click.IntRange(0, 10), default=0, show_default=True, help="10 goes first")
@click.option("--correlation-id", help="An id of yours, up to 64 characters")
@click.option("--submitted-by", help="Who asks for it; keys are theirs")
@click.option("--idempotency-key", metavar="KEY", help="Submit once: the same key again answers with the same job")
@click.option("--force", is_flag=True, help="Start a new run even if the same was submitted before")
@click.option("--resume", is_flag=True, help="Go on with the job that the same submission made before, if it failed")
@click.option("--wait", is_flag=True, help="Stay until it is over, and print the result")
@click.option("--watch", is_flag=True, help="Show live progress, then the result")
@pass_state
def submit(
    state: State, *, workflow: str, pairs: tuple[str, ...], params: str | None, priority: int, correlation_id: str | None,
    submitted_by: str | None, idempotency_key: str | None, force: bool, resume: bool, wait: bool, watch: bool,
) -> int:  # fmt: skip
    """Submit a job of WORKFLOW: the name of one that the platform knows, or a YAML file.

    With --wait or --watch the exit code tells how it ended: 0 completed, 1 otherwise. Ctrl-C leaves the job running, with
    exit code 130.
    """
    from dagmaster.cli.follow import detached, follow
    from dagmaster.client.answers import Submitted, read

    given = _object(params) if params else {}
    submission = {
        "priority": priority, "correlation_id": correlation_id, "submitted_by": submitted_by,
        "idempotency_key": idempotency_key,
    }  # fmt: skip
    chosen, schema = _from_file(state, Path(workflow)) if is_file(workflow) else _known(state, workflow, pairs)
    inputs = _inputs(schema, pairs, given)
    with held_back() as is_interrupted:
        answer = submitted(state, {**submission, **chosen, "input_params": inputs}, force=force, resume=resume)
        read(Submitted, answer)  # or it is no answer to a submission
    if is_interrupted():
        return detached(state, answer["job_id"])
    if wait or watch:
        if answer["status"] != "accepted" and not state.json:
            goes_on = ", which goes on" if answer["status"] == "resumed" else ""
            state.note(f"the same was submitted before; this is its job{goes_on}")
        code = follow(state, answer["job_id"], live=watch)
        if answer["status"] == "previously_failed" and not state.json:
            _offer_another_run(state)
        return code
    return _tell(state, {**answer, "workflow_id": chosen["workflow_id"]})


@contextmanager
def held_back() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C waits until it is known which job was created; a second one does not."""
    received: list[int] = []

    def hold_back(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        if len(received) > 1:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, hold_back)
    try:
        yield lambda: bool(received)
    finally:
        signal.signal(signal.SIGINT, before)


def _known(state: State, workflow: str, pairs: tuple[str, ...]) -> tuple[dict[str, Any], Schema]:
    """The platform knows the types of a workflow's inputs; they matter only where inputs were given one by one."""
    schema = state.client.workflow(workflow)["inputs_schema"] if pairs else {}
    return {"workflow_id": workflow}, schema


def _from_file(state: State, path: Path) -> tuple[dict[str, Any], Schema]:
    """A workflow that comes along. The platform judges it: it knows which handlers there are."""
    from dagmaster.client.client import problems_of

    text = workflow_bytes(path, MAX_BODY_BYTES)
    checked = state.client.validate(text)
    if not checked.get("is_valid"):
        raise InvalidWorkflow(str(path), problems_of(checked.get("problems") or []))
    try:
        definition = text.decode()
    except UnicodeDecodeError:
        raise InvalidWorkflow(str(path), [WorkflowProblem("is not UTF-8")]) from None
    chosen = {"workflow_id": checked["workflow_id"], "definition": definition}
    return chosen, checked.get("inputs_schema") or {}


def submitted(state: State, submission: dict[str, Any], *, force: bool, resume: bool) -> dict[str, Any]:
    """Submit. Whoever does not get the answer is told what that means."""
    unknown = "whether the job was created is not known; see `dagmaster jobs ls`"
    try:
        return state.client.submit(submission, force=force, resume=resume)
    except Unavailable as error:
        if error.code not in {"server.lost", "server.slow"}:
            raise
        hint = f"{unknown}; with --idempotency-key it can be submitted again without harm"
        raise Unavailable(error.message, code=error.code, hint=hint) from None
    except KeyboardInterrupt:
        end_the_line()
        state.note(f"interrupted: {unknown}")
        raise


def _tell(state: State, answer: dict[str, Any]) -> int:
    from dagmaster.client.answers import Submitted, read

    code = 1 if answer["status"] == "previously_failed" else 0
    if state.json:
        state.emit(answer)
        return code
    told = read(Submitted, answer)
    state.say(told.job_id)
    if told.status == "accepted":
        state.note(f"watch it with: dagmaster jobs watch {told.job_id}")
        return code
    if told.status == "resumed":
        state.note(f"the same was submitted before; its job goes on, resumed {counted(told.resume_count, 'time')}")
        state.note(f"watch it with: dagmaster jobs watch {told.job_id}")
        return code
    word = told.job_status.replace("_", " ")
    reason = f": {told.error_message}" if told.error_message else ""
    state.note(f"the same was submitted before; its job is {word}{reason}")
    if told.status == "previously_failed":
        _offer_another_run(state)
    else:
        state.note("start a new run with --force")
    return code


def _offer_another_run(state: State) -> None:
    state.note("submit it with --resume to go on with what is missing, or with --force to start a new run")


def _inputs(schema: Schema, pairs: tuple[str, ...], given: dict[str, Any]) -> dict[str, Any]:
    """The object first, then single inputs, which have the last word."""
    declared = schema.get("properties", {})
    inputs = dict(given)
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator or not name:
            raise InvalidRequest(f"-p {pair}: expected name=value", code="inputs.invalid")
        inputs[name] = _value(name, declared.get(name, {}).get("type", "string"), text)
    return inputs


def _value(name: str, kind: str, text: str) -> Any:
    """A string as it stands, anything else as JSON. An input that nobody declared is refused later, by name."""
    import orjson

    if kind == "string":
        return text
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        shown = text if len(text) <= 60 else text[:59] + "…"
        raise InvalidRequest(
            f"-p {name}: {kind} is expected, and {shown!r} is not JSON ({error})",
            code="inputs.invalid",
            hint=_EXAMPLES.get(kind, "").format(name=name) or None,
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

    text = _file(params) if params.startswith("@") else params.encode()
    if len(text) > MAX_BODY_BYTES:
        raise InvalidRequest(
            f"--params has more than {MAX_BODY_BYTES:,} bytes, which is all that the API takes", code="inputs.too-large",
            hint="large data goes to storage, by reference",
        )  # fmt: skip
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"--params is not JSON: {error}", code="inputs.invalid") from None
    if not isinstance(value, dict):
        raise InvalidRequest("--params must be a JSON object", code="inputs.invalid")
    return value


def _file(params: str) -> bytes:
    from dagmaster.cli.files import bytes_of

    try:
        return bytes_of(Path(params[1:]), MAX_BODY_BYTES)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidRequest(f"--params {params}: {reason}", code="inputs.invalid") from None
