"""`dagmaster submit`: create a job, and optionally wait for its end."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import click

from dagmaster.cli.command import Command, State, end_the_line, input_options, pass_state, priority_option, wait_options
from dagmaster.cli.completion import complete_workflows_or_files
from dagmaster.cli.files import json_object, option_bytes
from dagmaster.cli.naming import is_file, workflow_bytes
from dagmaster.client.limits import MAX_BODY_BYTES
from dagmaster.errors import InvalidRequest, InvalidWorkflow, Unavailable, WorkflowProblem
from dagmaster.quantities import counted, shortened

InputSchema = dict[str, Any]
_NOT_SERVED = (
    "note: the results of a job stay in storage and are not served; to publish them use `dagmaster process` or "
    "`dagmaster assets submit`"
)


@click.command(cls=Command)
@click.argument("workflow", shell_complete=complete_workflows_or_files)
@input_options
@priority_option
@click.option("--correlation-id", help="Your own id for the job, up to 64 characters")
@click.option(
    "--idempotency-key",
    metavar="KEY",
    help="Submit only once: without --force, the same key of the same caller returns the same job",
)
@click.option("--force", is_flag=True, help="Start a new job even if an identical submission was sent before")
@click.option("--resume", is_flag=True, help="If an identical submission was sent before and failed, resume its job")
@wait_options
@pass_state
def submit(
    state: State,
    /,
    *,
    workflow: str,
    pairs: tuple[str, ...],
    params: str | None,
    force: bool,
    resume: bool,
    wait: bool,
    watch: bool,
    **submission: Any,
) -> int:
    """Submit a job of WORKFLOW: the id of a workflow of the platform, or a YAML file.

    With --wait or --watch the exit code is 0 if the job completed, 1 otherwise. Ctrl-C leaves the job running, with
    exit code 130.
    """
    from dagmaster.cli.follow import detached, follow
    from dagmaster.client.models.base import read
    from dagmaster.client.models.jobs import SubmissionResult

    input_object = object_of(params) if params else {}
    chosen, schema = (
        _from_file(state, Path(workflow))
        if is_file(workflow)
        else _by_id(state, workflow, has_inputs=bool(pairs or input_object))
    )
    inputs = inputs_of(schema, pairs, input_object)
    with deferred_interrupt() as is_interrupted:
        response = submitted(state, {**submission, **chosen, "input_params": inputs}, force=force, resume=resume)
        read(SubmissionResult, response)  # raises if it is not the response to a submission
    if has_reserved(schema) and not state.json:
        state.note(_NOT_SERVED)
    if is_interrupted():
        return detached(state, response["job_id"])
    if wait or watch:
        if response["status"] != "accepted" and not state.json:
            resumed = ", which is resumed" if response["status"] == "resumed" else ""
            state.note(f"an identical submission was sent before; this is its job{resumed}")
        code = follow(state, response["job_id"], live=watch)
        if response["status"] == "previously_failed" and not state.json:
            _offer_another_run(state)
        return code
    return _print_submitted(state, {**response, "workflow_id": chosen["workflow_id"]})


@contextmanager
def deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Defer the first Ctrl-C until the id of the job is known; a second one interrupts."""
    received: list[int] = []

    def defer_first(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        if len(received) > 1:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, defer_first)
    try:
        yield lambda: bool(received)
    finally:
        signal.signal(signal.SIGINT, before)


def _by_id(state: State, workflow: str, *, has_inputs: bool) -> tuple[dict[str, Any], InputSchema]:
    """A workflow of the platform, with the types of its inputs if some are given."""
    schema = state.client.workflow(workflow)["inputs_schema"] if has_inputs else {}
    return {"workflow_id": workflow}, schema


def _from_file(state: State, path: Path) -> tuple[dict[str, Any], InputSchema]:
    """A workflow from a file. The platform validates it, because it knows the handlers."""
    from dagmaster.client.connection import problems_of

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
    """Submit. If the response is lost, the hint says that the job may have been created."""
    from dagmaster.client.connection import UNANSWERED

    unknown = "it is unknown whether the job was created; see `dagmaster jobs ls`"
    try:
        return state.client.submit(submission, force=force, resume=resume)
    except Unavailable as error:
        if error.code in UNANSWERED:
            error.hint = unknown if force else f"{unknown}; with --idempotency-key it is safe to submit it again"
        raise
    except KeyboardInterrupt:
        end_the_line()
        state.note(f"interrupted: {unknown}")
        raise


def _print_submitted(state: State, response: dict[str, Any]) -> int:
    from dagmaster.client.models.base import read
    from dagmaster.client.models.jobs import SubmissionResult

    code = 1 if response["status"] == "previously_failed" else 0
    if state.json:
        state.emit(response)
        return code
    job = read(SubmissionResult, response)
    state.say(str(job.job_id))
    if job.status == "accepted":
        state.note(f"watch it with: dagmaster jobs watch {job.job_id}")
        return code
    if job.status == "resumed":
        state.note(
            f"an identical submission was sent before; its job runs again (resumed {counted(job.resume_count, 'time')})"
        )
        state.note(f"watch it with: dagmaster jobs watch {job.job_id}")
        return code
    word = job.job_status.replace("_", " ")
    reason = f": {job.error_message}" if job.error_message else ""
    state.note(f"an identical submission was sent before; its job is {word}{reason}")
    if job.status == "previously_failed":
        _offer_another_run(state)
    else:
        state.note("start a new job with --force")
    return code


def _offer_another_run(state: State) -> None:
    state.note("submit it with --resume to run the missing nodes, or with --force to start a new job")


def inputs_of(schema: InputSchema, pairs: tuple[str, ...], input_object: dict[str, Any]) -> dict[str, Any]:
    """The object of --params, overridden by each -p."""
    declared = schema.get("properties", {})
    inputs = dict(input_object)
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator or not name:
            raise InvalidRequest(f"-p {pair}: expected name=value", code="inputs.invalid")
        inputs[name] = _value(name, declared.get(name, {}).get("type", "string"), text)
    return inputs


def _value(name: str, kind: str, text: str) -> Any:
    """A string as it is, anything else as JSON. An undeclared input is refused later, by name."""
    import orjson

    if kind == "string":
        return text
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        shown = shortened(text, 60)
        raise InvalidRequest(
            f"-p {name}: expected {kind}, but {shown!r} is not JSON ({error})",
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


def has_reserved(schema: InputSchema) -> bool:
    """Whether a workflow has inputs that only the submission of an asset can set."""
    return any(declared.get("readOnly") for declared in schema.get("properties", {}).values())


def object_of(params: str) -> dict[str, Any]:
    text = option_bytes("--params", params, MAX_BODY_BYTES)
    if len(text) > MAX_BODY_BYTES:
        raise InvalidRequest(
            f"--params has more than {MAX_BODY_BYTES:,} bytes, the limit of the API",
            code="inputs.too-large",
            hint="put large data into storage and pass a reference",
        )
    return json_object("--params", text)
