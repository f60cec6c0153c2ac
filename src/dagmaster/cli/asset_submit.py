"""`dagmaster assets submit`: submit files of this machine, or objects of the bronze zone, for a platform."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from dagmaster.cli.command import Command, State, input_options, pass_state, priority_option
from dagmaster.cli.completion import complete_platforms, complete_workflows
from dagmaster.errors import DagmasterError, InvalidRequest, NotAllowed, Unavailable
from dagmaster.workflows.raster import RASTER_COLLECTION, RASTER_INGEST, workflow_for_files

if TYPE_CHECKING:
    from dagmaster.client.models.assets import AssetSubmissionResult
    from dagmaster.client.models.base import Json


@click.command(cls=Command)
@click.argument("files", metavar="[FILE]...", nargs=-1, type=click.Path())
@click.option(
    "--blob", "blobs", multiple=True, metavar="[CONTAINER/]BLOB", help="An object of the bronze zone; may be repeated"
)
@click.option(
    "--platform",
    "platform_id",
    default="local",
    show_default=True,
    metavar="ID",
    shell_complete=complete_platforms,
    help="The system that the data comes from",
)
@click.option("--ref", "refs", multiple=True, metavar="K=V", help="A reference of the platform; may be repeated")
@click.option(
    "--version-label",
    metavar="LABEL",
    help="Label of a new or existing version  [default: label of the newest version]",
)
@click.option(
    "--workflow",
    "workflow_id",
    metavar="ID",
    shell_complete=complete_workflows,
    help=f"Workflow that processes the data  [default: {RASTER_INGEST}, with several files {RASTER_COLLECTION}]",
)
@input_options
@click.option(
    "--request-id",
    metavar="ID",
    help="Your own id for the request; a request with the same id returns the same result",
)
@click.option("--callback-url", metavar="URL", help="Receives a POST when the status of the submission changes")
@priority_option
@click.option("--force", is_flag=True, help="Process again even if the same data was processed before")
@click.option("--dry-run", is_flag=True, help="Only show what would happen")
@click.option("--wait", is_flag=True, help="Wait until the job ends")
@click.option("--watch", is_flag=True, help="Show live progress of the job")
@pass_state
def submit(
    state: State,
    /,
    *,
    files: tuple[str, ...],
    blobs: tuple[str, ...],
    refs: tuple[str, ...],
    pairs: tuple[str, ...],
    params: str | None,
    workflow_id: str | None,
    dry_run: bool,
    wait: bool,
    watch: bool,
    **submission: Any,
) -> int:
    """Submit data as a version of an asset. It is processed, and then waits for review.

    FILEs of this machine are checked, and copied into the bronze zone first (with --server they are uploaded); --blob
    names objects of the bronze zone. The references identify the asset; `dagmaster platforms show` lists the references
    that a platform requires.

    With --wait or --watch the exit code is 0 if the job completed, 1 otherwise.
    """
    from dagmaster.client.models.assets import AssetSubmissionResult
    from dagmaster.client.models.base import read

    if bool(files) == bool(blobs):
        raise InvalidRequest("give either files or --blob", code="usage", hint="see `--help`")
    if dry_run and (wait or watch):
        raise InvalidRequest("--dry-run starts nothing, so --wait and --watch do not apply", code="usage")
    parameters = _parameters(state, workflow_id or workflow_for_files(len(files or blobs)), pairs, params)
    platform_id = str(submission["platform_id"])
    source = (
        _named_source(blobs) if blobs else _copied_source(state, files, parameters, platform_id, is_dry_run=dry_run)
    )
    if source is None:
        return 1
    request = {
        **{name: value for name, value in submission.items() if value is not None},
        **({"workflow_id": workflow_id} if workflow_id else {}),
        "platform_refs": refs_of(refs),
        "source": source,
        "parameters": parameters,
        "dry_run": dry_run,
    }
    response = _submitted(state, request)
    result = read(AssetSubmissionResult, response)
    if (wait or watch) and result.job_id:
        return _follow(state, result, live=watch)
    return _print_result(state, response, result)


def refs_of(pairs: tuple[str, ...]) -> dict[str, str]:
    """References from `--ref name=value`."""
    refs: dict[str, str] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name or not value:
            raise InvalidRequest(f"--ref {pair}: expected name=value", code="usage", hint="for example --ref uuid=7f3a")
        if refs.setdefault(name, value) != value:
            raise InvalidRequest(f"--ref {name} is given twice, with different values", code="usage")
    return refs


def _parameters(state: State, workflow: str, pairs: tuple[str, ...], params: str | None) -> "Json":
    from dagmaster.cli.submit import inputs_of, object_of

    inputs = object_of(params) if params else {}
    return inputs_of(_schema(state, workflow) if pairs else {}, pairs, inputs)


def _schema(state: State, workflow: str) -> "Json":
    """The types of the inputs. A key of a partner may not read workflows; then all inputs are texts."""
    try:
        schema: Json = state.client.workflow(workflow)["inputs_schema"]
    except NotAllowed:
        return {}
    return schema


def _named_source(blobs: Sequence[str]) -> "Json":
    """The source from `container/blob`; a name without a slash is in the default container of the bronze zone."""
    named = [(None, blob) if "/" not in blob else tuple(blob.split("/", 1)) for blob in blobs]
    containers = {container for container, _ in named}
    if len(containers) > 1:
        raise InvalidRequest("all objects of a collection must be in one container", code="usage")
    return _source_of(containers.pop(), [name for _, name in named])


def _source_of(container: str | None, blobs: Sequence[str]) -> "Json":
    source: Json = {"blob": blobs[0]} if len(blobs) == 1 else {"blobs": list(blobs)}
    return source | ({"container": container} if container else {})


def _copied_source(
    state: State, arguments: Sequence[str], parameters: "Json", platform_id: str, *, is_dry_run: bool
) -> "Json | None":
    """Check files of this machine and copy or upload them to the bronze zone. None if one is rejected."""
    from dagmaster.cli.process import is_other_platform
    from dagmaster.cli.progress import progress_bar
    from dagmaster.cli.validation import validate
    from dagmaster.handlers.raster.options import Options
    from dagmaster.ingest.sources import downloaded, find_sources
    from dagmaster.ingest.store import store_files
    from dagmaster.ingest.validation import FileRules
    from dagmaster.local.discovery import data_folder, find_api, running_platform
    from dagmaster.storage.zones import open_storage

    find_api(state.settings, state.server)
    running = running_platform(data_folder(state.settings))
    storage = open_storage(running.with_its_storage(state.settings) if running else state.settings)
    options = {name: parameters[name] for name in ("target_crs", "output_tier") if name in parameters}
    rules = FileRules(parameters.get("source_crs"), parameters.get("raster_type"), Options(**options))
    progress = partial(progress_bar, state)
    with downloaded(find_sources(arguments, state.settings), state.settings, storage, progress) as files:
        if validate(state, files, rules, is_dated=True) is None:
            return None
        reachable = None if is_other_platform(state, running) else storage
        stored = store_files(
            state.client, reachable, files, progress, state.comment, platform_id=platform_id, is_dry_run=is_dry_run
        )
    return _source_of(*stored)


# The hint for a submission that is refused, by error code.
_NEXT_STEPS = {
    "refs.invalid": "`dagmaster platforms show {platform}` lists its references; give each with --ref NAME=VALUE",
    "platform.not-found": "`dagmaster platforms ls` lists the platforms; `platforms add` adds one",
    "version.unresolved": "approve it, delete it, or submit it again with --version-label set to its own label",
}


def _submitted(state: State, request: "Json") -> "Json":
    from dagmaster.client.connection import UNANSWERED

    try:
        return state.client.submit_asset(request)
    except Unavailable as error:
        if error.code in UNANSWERED:
            is_repeatable = request.get("request_id") or not request.get("force")
            error.hint = (
                "submit it again: the same data is not processed twice"
                if is_repeatable
                else "it is unknown whether the data was submitted; see `dagmaster assets ls`"
            )
        raise
    except DagmasterError as error:
        if next_step := _NEXT_STEPS.get(error.code):
            error.hint = next_step.format(platform=request["platform_id"])
        raise


def _follow(state: State, result: "AssetSubmissionResult", *, live: bool) -> int:
    from dagmaster.cli.follow import follow

    state.comment(_outcome_text(result))
    code = follow(state, str(result.job_id), live=live)
    if code == 0:
        state.comment(f"see the next steps with: dagmaster assets show {result.dataset_id}")
    return code


def _print_result(state: State, response: "Json", result: "AssetSubmissionResult") -> int:
    refusal = result.refusal
    code = 4 if refusal else 0
    if state.json:
        state.emit(response)
        return code
    if refusal:
        state.say(f"would be refused: {refusal.get('message') or refusal.get('detail')} [{refusal.get('code')}]")
        if refusal.get("hint"):
            state.note(f"hint: {refusal['hint']}")
        return code
    state.say(_outcome_text(result))
    state.say_facts(_facts(result))
    if not result.is_dry_run:
        if result.job_id:
            state.note(f"watch it with: dagmaster jobs watch {result.job_id}")
        state.note(f"see the next steps with: dagmaster assets show {result.dataset_id}")
    return code


_OUTCOME_TEXTS = {
    "new_asset": "a new asset",
    "new_version": "a new version",
    "new_revision": "a new revision",
    "already_processing": "the same data is already being processed",
    "already_completed": "the same data was processed before; --force processes it again",
}


def _outcome_text(result: "AssetSubmissionResult") -> str:
    outcome = _OUTCOME_TEXTS.get(str(result.outcome), str(result.outcome))
    version = f"version {result.version_ordinal} ({result.version_label}), revision {result.revision}"
    would_be = "would be " if result.is_dry_run and str(result.outcome).startswith("new_") else ""
    return f"{would_be}{outcome}: {result.dataset_id}, {version}"


def _facts(result: "AssetSubmissionResult") -> dict[str, str | None]:
    from dagmaster.quantities import counted, duration, size_text

    facts = {"asset": result.asset_id, "workflow": result.workflow_id, "request": result.request_id}
    if result.is_tiled is not None:
        facts["output"] = "several COGs and a mosaic" if result.is_tiled else "one COG"
    if (estimate := result.estimate) is not None:
        parts = [
            counted(estimate.tile_count, "tile") if estimate.tile_count is not None else "",
            size_text(estimate.size_bytes) if estimate.size_bytes is not None else "",
            duration(estimate.seconds) if estimate.seconds is not None else "",
        ]
        quantities = ", ".join(filter(None, parts)) or "unknown"
        runs = counted(estimate.based_on_runs, "past run") if estimate.based_on_runs else "no past run"
        facts["estimate"] = f"{quantities} (from {runs})"
    if result.same_content_as is not None:
        facts["note"] = f"version {result.same_content_as} has the same content"
    return facts
