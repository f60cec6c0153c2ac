"""`dagmaster process`: a raster file of this machine becomes COGs, a catalogued dataset and map tiles.

    validate the file ─▶ copy it into the bronze zone ─▶ run a job, live ─▶ print the locations, make a preview

An invalid file is reported before it is copied; the job validates it again. If no platform is running, one is started
for the duration of the job, on the usual data folder.
"""

import os
import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dagmaster.cli.command import INTERRUPTED, Command, State, pass_state
from dagmaster.cli.printable import size_text
from dagmaster.client.neutral import neutral
from dagmaster.errors import Conflict, InvalidRequest, Unavailable

if TYPE_CHECKING:
    from dagmaster.client.models.jobs import JobDetail
    from dagmaster.handlers.raster.options import Options
    from dagmaster.local.discovery import Platform
    from dagmaster.local.platform import LocalPlatform
    from dagmaster.raster.validation.findings import Checked, Finding
    from dagmaster.settings import Settings
    from dagmaster.storage.location import Edition
    from dagmaster.storage.zones import Storage

WORKFLOWS = ("raster_ingest", "process_large_raster")
TIERS = ("visualization", "analysis", "archive")
# The options that are coordinate reference systems.
_CRSS = ("source_crs", "target_crs")
# Inputs of the job that findings mention; options of this command.
_INPUT = re.compile(r"`?\b(source_crs|target_crs|raster_type|output_tier|tile_size)\b(=?)`?")
TYPES = ("auto", "rgb", "rgba", "dem", "categorical", "multispectral", "nir", "vegetation_index")


@click.command(cls=Command)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--dataset", "dataset_id", metavar="NAME", help="Name of the dataset; by default that of the file")
@click.option("--title", help="Title in the catalogue")
@click.option("--datetime", metavar="WHEN", help="Date of the data: a time, a day, a year, or start/end")
@click.option(
    "--tile-size", type=click.IntRange(min=512), metavar="N", help="Width of a tile in pixels, a multiple of 512"
)
@click.option("--tier", "output_tier", type=click.Choice(TIERS), help="Output tier of the COGs  [default: analysis]")
@click.option("--target-crs", metavar="CRS", help="CRS of the COGs  [default: EPSG:4326]")
@click.option("--source-crs", metavar="CRS", help="CRS of the file, if it has none or a wrong one")
@click.option("--raster-type", type=click.Choice(TYPES), help="Kind of pixels  [default: auto]")
@click.option("--version-ordinal", type=click.IntRange(0), default=0, help="Version of the dataset, from 0")
@click.option("--revision", type=click.IntRange(1), default=1, help="Revision of that version, from 1")
@click.option(
    "--workflow",
    type=click.Choice(WORKFLOWS),
    default=WORKFLOWS[0],
    show_default=True,
    help="One COG unless the file is large, or always tiles and a mosaic",
)
@click.option("--preview", type=click.Path(path_type=Path, dir_okay=False), help="File for the preview, a PNG")
@click.option("--wait/--detach", "is_waiting", default=True, help="Wait for its end, or only submit  [default: wait]")
@click.option("--force", is_flag=True, help="Process it again even if that was done before")
@click.option("--resume", is_flag=True, help="Resume the job that failed before")
@pass_state
def process(
    state: State,
    /,
    *,
    file: Path,
    workflow: str,
    version_ordinal: int,
    revision: int,
    preview: Path | None,
    is_waiting: bool,
    force: bool,
    resume: bool,
    **options: Any,
) -> int:
    """Turn the raster FILE into COGs, a STAC dataset and map tiles.

    Uses the platform running on this machine (`dagmaster up`), or starts one for this file. The same command again
    shows the existing results. The exit code is 1 if the file is invalid or the job failed; Ctrl-C leaves the job
    running, with exit code 130.
    """
    from dagmaster.cli.incoming import copy_in, place_in_bronze, source_file
    from dagmaster.local.discovery import awaited_platform, data_folder
    from dagmaster.storage.zones import open_storage

    state.log()
    folder = data_folder(state.settings)
    source = source_file(file)
    _require_valid(options)
    running = awaited_platform(folder, lambda: state.note("waiting for a platform that is starting or stopping …"))
    _require_local(state, running, is_waiting=is_waiting)
    raster_options = _raster_options(workflow, options)
    checked = validate(state, source, options, raster_options, is_first=revision == 1)
    if checked.errors:
        return 1
    storage = open_storage(running.with_its_storage(state.settings) if running else state.settings)
    name = options.pop("dataset_id")
    location, is_there = place_in_bronze(state, storage, source)
    edition = _edition(name, location.name, version_ordinal, revision)
    _require_free(storage, edition, raster_options, checked)
    if not is_there:
        copy_in(state, storage, source, location)
    picture = f"{edition.dataset}-v{edition.ordinal}-r{edition.revision}.png"
    inputs = {"container_name": location.container, "blob_name": location.blob}
    inputs |= {name: value for name, value in options.items() if value is not None}
    ingestion = Ingestion(
        workflow, edition, storage, preview or folder / "previews" / picture, inputs, checked, force, resume
    )
    if running is None:
        return _on_own_platform(state, ingestion)
    if not is_waiting:
        return _detached(state, ingestion)
    return follow(state, ingestion, lambda: _maps_of(folder, running))


@dataclass(slots=True)
class Ingestion:
    """One file to be processed; `job_id` is set once it is submitted."""

    workflow: str
    edition: "Edition"
    storage: "Storage"
    preview: Path
    inputs: dict[str, Any]
    checked: "Checked | None" = None
    is_forced: bool = False
    is_resumed: bool = False
    job_id: str | None = field(default=None, init=False)

    def submission(self) -> dict[str, Any]:
        edition = self.edition
        own = {"dataset_id": edition.dataset, "version_ordinal": edition.ordinal, "revision": edition.revision}
        return {"workflow_id": self.workflow, "input_params": {**self.inputs, **own}}


def _require_local(state: State, running: "Platform | None", *, is_waiting: bool) -> None:
    chosen = state.server or state.settings.server_url
    if chosen and (running is None or (running.api_url or "").rstrip("/") != chosen.rstrip("/")):
        raise InvalidRequest(
            "a file cannot be sent to a remote platform yet",
            code="process.elsewhere",
            hint="copy it into the bronze zone there, then `dagmaster submit raster_ingest -p blob_name=…`; "
            "without --server (DAGMASTER_URL) it is processed on this machine",
        )
    if running is None and not is_waiting:
        raise Unavailable(
            "--detach needs a running platform",
            code="platform.none",
            hint="start one with `dagmaster up`, or leave out --detach",
        )


def _require_valid(options: dict[str, Any]) -> None:
    """Refuse invalid options before anything is done."""
    from dagmaster.stac.when import parse_when
    from dagmaster.storage.location import Edition

    if options["dataset_id"]:
        Edition(options["dataset_id"])
    if options["datetime"]:
        parse_when(options["datetime"])
    if any(options[name] for name in _CRSS):
        from rasterio import Env

        from dagmaster.raster.source.crs import parse_crs

        with Env():  # otherwise GDAL writes to standard error
            for name in _CRSS:
                if options[name]:
                    parse_crs(options[name])


def _raster_options(workflow: str, options: dict[str, Any]) -> "Options":
    from dagmaster.handlers.raster.options import TILE_ABOVE_MB, Options

    chosen = {name: options[name] for name in ("target_crs", "tile_size", "output_tier") if options[name] is not None}
    return Options(**chosen, tile_above_mb=TILE_ABOVE_MB if workflow == WORKFLOWS[0] else 0)


def _require_free(storage: "Storage", edition: "Edition", options: "Options", checked: "Checked") -> None:
    """Refuse an edition that exists with other contents, as the job would."""
    from dagmaster.handlers.raster.recipe import recipe_of, why_taken

    assert checked.facts is not None
    recipe = recipe_of(options, [checked.facts], checked.raster_type, checked.fixes.source_crs)
    if taken := why_taken(storage, edition, recipe):
        hint = f"use --revision {edition.revision + 1}, or another --dataset"
        raise Conflict(_in_options(taken), code="edition.taken", hint=hint)


def _edition(name: str | None, blob: str, ordinal: int, revision: int) -> "Edition":
    from dagmaster.dataset_ids import dataset_id_from
    from dagmaster.storage.location import Edition

    try:
        return Edition(name or dataset_id_from(Path(blob).stem), ordinal, revision)
    except InvalidRequest as error:
        hint = error.hint if name else "give a name with --dataset"
        raise InvalidRequest(error.message, code=error.code, hint=hint) from None


def _maps_of(folder: Path, platform: "Platform") -> str | None:
    """The address of the map server now: a restarted platform may have other ports."""
    from dagmaster.local.discovery import running_platform

    return (running_platform(folder) or platform).maps_url


def validate(
    state: State, file: Path, options: dict[str, Any], raster_options: "Options", *, is_first: bool
) -> "Checked":
    """Validate the file in an isolated process, and print the findings; refuse impossible options."""
    from dagmaster.raster.validation.limits import inspect

    checked = inspect(file, source_crs=options["source_crs"], raster_type=options["raster_type"])
    if not checked.errors:
        checked = _advised(checked, raster_options)
    if not checked.errors and not options["datetime"] and is_first:
        checked = replace(checked, findings=(*checked.findings, *_undated(file, checked)))
    if not state.json:
        _print_findings(state, file, checked)
    elif checked.errors:
        state.emit({"status": "rejected", "file": str(file), "check": _public(checked)}, line=True)
    return checked


def _advised(checked: "Checked", options: "Options") -> "Checked":
    from rasterio import Env

    from dagmaster.handlers.raster.options import advice_on, require_possible

    assert checked.facts is not None
    try:
        with Env():
            grid = require_possible(options, checked.facts, checked.raster_type, unset_alpha=checked.fixes.unset_alpha)
            return replace(checked, findings=(*checked.findings, *advice_on(options, checked.facts, grid)))
    except InvalidRequest as error:
        hint = _in_options(error.hint) if error.hint else None
        raise InvalidRequest(_in_options(error.message), code=error.code, hint=hint, **error.facts) from None


def _undated(file: Path, checked: "Checked") -> "list[Finding]":
    """The date that the job will use if none is given. A later revision uses the date of the one before."""
    from dagmaster.raster.validation.findings import info
    from dagmaster.stac.when import choose_when

    assert checked.facts is not None
    written_at = datetime.fromtimestamp(file.stat().st_mtime, UTC)
    when = choose_when(given=None, tags=checked.facts.tags, supplied_at=written_at)
    if when.basis != "publication":
        return []
    message = f"the file has no date of the data; its own date is used as date of publication: {written_at:%Y-%m-%d}"
    return [info("time.publication", message, "to set it, use --datetime with a time, a day, a year, or start/end")]


def _public(checked: "Checked") -> dict[str, Any]:
    facts = checked.to_dict()
    return {name: facts[name] for name in ("verdict", "raster_type", "findings")}


def _print_findings(state: State, file: Path, checked: "Checked") -> None:
    from rich.text import Text

    styles = {"error": "bold red", "warn": "yellow", "info": "dim"}
    state.console.print(Text(neutral(f"{file.name}: {_summary(checked)}"), style="bold"), soft_wrap=True)
    for finding in checked.findings:
        word = Text(f"  {finding.severity:<6}", style=styles[finding.severity])
        message = neutral(f"{finding.message} [{finding.code}]")
        state.console.print(Text.assemble(word, message), soft_wrap=True)
        if finding.advice:
            state.console.print(Text(neutral(f"        {_in_options(finding.advice)}"), style="dim"), soft_wrap=True)


def _in_options(advice: str) -> str:
    """Advice with the names of options instead of inputs.

    >>> _in_options("pass raster_type=rgba, or `source_crs`")
    'pass --raster-type rgba, or --source-crs'
    """
    return _INPUT.sub(lambda match: f"--{_option_of(match[1])}{' ' if match[2] else ''}", advice)


def _option_of(name: str) -> str:
    return "tier" if name == "output_tier" else name.replace("_", "-")


def _summary(checked: "Checked") -> str:
    facts = checked.facts
    if facts is None:
        return "rejected"
    about = f"{facts.width:,} × {facts.height:,} pixels, {facts.count} × {facts.dtype}, {facts.crs or 'no CRS'}"
    verdict = "rejected" if checked.errors else checked.raster_type.value
    return f"{about}, {size_text(facts.size_bytes)}: {verdict}"


def _on_own_platform(state: State, ingestion: Ingestion) -> int:
    from dagmaster.cli.up import say_stopping
    from dagmaster.local.discovery import data_folder
    from dagmaster.local.platform import LocalPlatform, database_of, stopping_on_signals

    settings = state.settings
    dsn, cluster = database_of(settings)
    local = LocalPlatform(
        settings,
        data_folder(settings),
        dsn,
        state.note,
        cluster,
        on_stopping=lambda: say_stopping(state),
        overrides=processes_for(settings),
    )
    code = INTERRUPTED
    with stopping_on_signals(local):
        if not state.json:
            state.say("no platform is running; starting one for this file …")
        with local.running():
            code = follow(state, ingestion, lambda: local.maps_url, on_tick=local.tend, is_own=True)
    _print_end(state, ingestion, local, code)
    return code


def processes_for(settings: "Settings") -> dict[str, str]:
    """All processors of this machine, unless configured: the platform runs only this job."""
    if "worker_processes" in settings.model_fields_set:
        return {}
    return {"WORKER_PROCESSES": str(max(2, min(8, len(os.sched_getaffinity(0)))))}


def _print_end(state: State, ingestion: Ingestion, local: "LocalPlatform", code: int) -> None:
    chosen = f" --data {local.folder}" if local.settings.data_folder else ""
    if code == INTERRUPTED and ingestion.job_id:
        if state.json:
            from dagmaster.cli.follow import detached

            detached(state, ingestion.job_id)
            return
        state.note(
            f"everything stopped; continue the job with:\n  dagmaster up{chosen}\n"
            f"and watch it with:\n  dagmaster jobs watch{chosen} {ingestion.job_id}"
        )
    elif not state.json:
        why = "To see details, start it again with" if code else "Serve it with"
        state.say(f"everything stopped; the data stays. {why}:\n  dagmaster up{chosen}")


def _detached(state: State, ingestion: Ingestion) -> int:
    from dagmaster.cli.follow import detached

    answer, is_interrupted = _submitted(state, ingestion)
    if is_interrupted:
        return detached(state, answer["job_id"])
    if state.json:
        state.emit({**answer, "workflow_id": ingestion.workflow, "dataset_id": ingestion.edition.dataset})
    else:
        state.say(answer["job_id"])
        state.note(f"watch it with: dagmaster jobs watch {answer['job_id']}")
    return 1 if answer["status"] == "previously_failed" else 0


def _submitted(state: State, ingestion: Ingestion) -> tuple[dict[str, Any], bool]:
    from dagmaster.cli.result_summary import is_complete
    from dagmaster.cli.submit import held_back, submitted
    from dagmaster.client.models.base import read
    from dagmaster.client.models.jobs import SubmissionResult

    with held_back() as is_interrupted:
        answer = submitted(state, ingestion.submission(), force=ingestion.is_forced, resume=ingestion.is_resumed)
        is_finished = answer.get("status") == "already_completed"
        if is_finished and not is_complete(ingestion.storage, ingestion.edition, answer.get("result_data") or {}):
            if not state.json:
                state.note("this file was processed before, but its results were deleted; it is processed again")
            answer = submitted(state, ingestion.submission(), force=True, resume=False)
        ingestion.job_id = str(read(SubmissionResult, answer).job_id)
    return answer, is_interrupted()


def follow(
    state: State,
    ingestion: Ingestion,
    find_maps: Callable[[], str | None],
    *,
    on_tick: Callable[[], None] = lambda: None,
    is_own: bool = False,
) -> int:
    """Submit, wait for the end, print the results; returns the exit code. Ctrl-C stops a platform of our own."""
    from dagmaster.cli.follow import WatchOutcome, detached, patiently, watch
    from dagmaster.client.feed import Reconnection

    answer, is_interrupted = _submitted(state, ingestion)
    job_id = answer["job_id"]
    try:
        if is_interrupted:
            signal.raise_signal(signal.SIGINT)  # it was held back until the job was known
        _note_known(state, answer)
        reconnection = Reconnection(state.note, job_id)
        watch(state, job_id, reconnection, on_tick=on_tick, display=_Silent() if state.json else None)
        outcome = patiently(reconnection, lambda: WatchOutcome.ask(state.client, job_id))
    except KeyboardInterrupt:
        if is_own:
            raise
        return detached(state, job_id)
    return _print_results(state, ingestion, outcome, find_maps(), answer["status"])


class _Silent:
    """With --json only the end is printed."""

    def show(self, detail: "JobDetail", blockers: Sequence[str] = ()) -> None: ...

    def close(self) -> None: ...


def _note_known(state: State, answer: dict[str, Any]) -> None:
    if state.json or answer["status"] == "accepted":
        return
    if answer["status"] == "already_processing":
        state.note("this file is already being processed; watching its job")
    else:
        resumed = ", which is resumed" if answer["status"] == "resumed" else ""
        state.note(f"this file was processed before; this is its job{resumed}")


def _print_results(state: State, ingestion: Ingestion, outcome: Any, maps_url: str | None, submitted_as: str) -> int:
    from dagmaster.cli.follow import print_outcome
    from dagmaster.cli.result_summary import preview_of, print_summary, summarise

    facts = outcome.public()
    check = _public(ingestion.checked) if ingestion.checked else None
    if outcome.status != "completed":
        if state.json:
            state.emit({**facts, "check": check}, line=True)
        else:
            print_outcome(state, outcome)
            _advise(state, outcome, submitted_as)
        return 1
    results = summarise(ingestion.storage, ingestion.edition, outcome.result, maps_url)
    preview: Path | None = ingestion.preview
    if submitted_as in {"accepted", "resumed"} or not ingestion.preview.exists():
        preview = preview_of(state, results, ingestion.preview, maps_url)
    results = replace(results, preview=preview)
    if state.json:
        state.emit({**facts, **results.public(), "check": check}, line=True)
        return 0
    state.say(f"\ndataset {results.dataset_id}, completed in {facts['seconds']:.1f} s")
    print_summary(state, results)
    return 0


def _advise(state: State, outcome: Any, submitted_as: str) -> None:
    codes = {node.error.code for node in outcome.failed if node.error}
    if "storage.taken" in codes:
        state.note("it was processed with other options before: use --revision 2 (or higher), or another --dataset")
    elif submitted_as == "previously_failed":
        state.note("that was an earlier run: use --resume to continue it, or --force to start a new one")
