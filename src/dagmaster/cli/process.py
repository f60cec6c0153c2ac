"""`dagmaster process`: a raster file of this machine becomes COGs, a catalogued dataset and map tiles.

    judge the file ─▶ copy it into the bronze zone ─▶ a job, live ─▶ where everything is, and a picture of it

A file that is unfit is told of before anything is copied; the job judges it again. Where no platform runs, one is started for as
long as the job takes, on the usual data folder.
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
    from dagmaster.client.answers import JobDetail
    from dagmaster.handlers.raster.options import Options
    from dagmaster.local.discovery import Platform
    from dagmaster.local.platform import LocalPlatform
    from dagmaster.raster.validation.findings import Checked, Finding
    from dagmaster.settings import Settings
    from dagmaster.storage.location import Edition
    from dagmaster.storage.zones import Storage

WORKFLOWS = ("raster_ingest", "process_large_raster")
TIERS = ("visualization", "analysis", "archive")
# As in raster.facts, which takes a while to load.
_CRSS = ("source_crs", "target_crs")
# Inputs that findings advise on, which are options here.
_INPUT = re.compile(r"`?\b(source_crs|target_crs|raster_type|output_tier|tile_size)\b(=?)`?")
TYPES = ("auto", "rgb", "rgba", "dem", "categorical", "multispectral", "nir", "vegetation_index")


@click.command(cls=Command)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--dataset", "dataset_id", metavar="NAME", help="What the dataset is called; by default as the file")
@click.option("--title", help="Title in the catalogue")
@click.option("--datetime", metavar="WHEN", help="When the data are from: a time, a day, a year, or start/end")
@click.option("--tile-size", type=click.IntRange(min=512), metavar="N", help="Pixels a tile is wide, a multiple of 512")
@click.option("--tier", "output_tier", type=click.Choice(TIERS), help="Of the COGs  [default: analysis]")
@click.option("--target-crs", metavar="CRS", help="CRS of the COGs  [default: EPSG:4326]")
@click.option("--source-crs", metavar="CRS", help="CRS of the file, where it has none or a wrong one")
@click.option("--raster-type", type=click.Choice(TYPES), help="What the pixels are  [default: auto]")
@click.option("--version-ordinal", type=click.IntRange(0), default=0, help="Version of the dataset, from 0")
@click.option("--revision", type=click.IntRange(1), default=1, help="Which time it is processed, from 1")
@click.option(
    "--workflow", type=click.Choice(WORKFLOWS), default=WORKFLOWS[0], show_default=True,
    help="One COG unless the file is large, or always tiles and a mosaic",
)  # fmt: skip
@click.option("--preview", type=click.Path(path_type=Path, dir_okay=False), help="Where the picture goes, as PNG")
@click.option(
    "--wait/--detach", "is_waiting", default=True, help="Stay until it is over, or only submit  [default: wait]"
)
@click.option("--force", is_flag=True, help="Process it again even if that was done before")
@click.option("--resume", is_flag=True, help="Go on with the job that failed before")
@pass_state
def process(
    state: State, /, *, file: Path, workflow: str, version_ordinal: int, revision: int, preview: Path | None,
    is_waiting: bool, force: bool, resume: bool, **given: Any,
) -> int:  # fmt: skip
    """Turn the raster FILE into COGs, a STAC dataset and map tiles.

    Uses the platform that runs here (`dagmaster up`), else starts one for this file. Doing the same again answers with what
    was made. Exit code 1 if the file is unfit or the job failed; Ctrl-C leaves the job running, with exit code 130.
    """
    from dagmaster.cli.incoming import place_in_bronze, source_file, take_in
    from dagmaster.local.discovery import awaited_platform, data_folder
    from dagmaster.storage.zones import open_storage

    state.log()
    folder = data_folder(state.settings)
    source = source_file(file)
    _require_sense(given)
    running = awaited_platform(
        folder, lambda: state.note("a platform is starting or stopping here; waiting for that …")
    )
    _require_here(state, running, is_waiting=is_waiting)
    wanted = _wanted(workflow, given)
    checked = judge(state, source, given, wanted, is_first=revision == 1)
    if checked.errors:
        return 1
    storage = open_storage(running.with_its_storage(state.settings) if running else state.settings)
    name = given.pop("dataset_id")
    location, is_there = place_in_bronze(state, storage, source)
    edition = _edition(name, location.name, version_ordinal, revision)
    _require_free(storage, edition, wanted, checked)
    if not is_there:
        take_in(state, storage, source, location)
    picture = f"{edition.dataset}-v{edition.ordinal}-r{edition.revision}.png"
    task = Task(
        workflow, edition, storage, preview or folder / "previews" / picture,
        {"container_name": location.container, "blob_name": location.blob, **_told(given)}, checked, force, resume,
    )  # fmt: skip
    if running is None:
        return _on_own_platform(state, task)
    if not is_waiting:
        return _detached(state, task)
    return follow(state, task, lambda: _maps_of(folder, running))


@dataclass(slots=True)
class Task:
    """What is to be done; `job_id` as soon as it is known."""

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


def _require_here(state: State, running: "Platform | None", *, is_waiting: bool) -> None:
    chosen = state.server or state.settings.server_url
    if chosen and (running is None or (running.api_url or "").rstrip("/") != chosen.rstrip("/")):
        raise InvalidRequest(
            "a file can't be sent to a platform elsewhere yet", code="process.elsewhere",
            hint="put it into the bronze zone there, then `dagmaster submit raster_ingest -p blob_name=…`; "
            "without --server (DAGMASTER_URL) it is processed here",
        )  # fmt: skip
    if running is None and not is_waiting:
        raise Unavailable(
            "no platform is running that would go on with it", code="platform.none",
            hint="start one with `dagmaster up`, or leave out --detach",
        )  # fmt: skip


def _require_sense(given: dict[str, Any]) -> None:
    """What can be known to be wrong before anything is done."""
    from dagmaster.stac.when import parse_when
    from dagmaster.storage.location import Edition

    if given["dataset_id"]:
        Edition(given["dataset_id"])
    if given["datetime"]:
        parse_when(given["datetime"])
    if any(given[name] for name in _CRSS):
        from rasterio import Env

        from dagmaster.raster.source.crs import parse_crs

        with Env():  # else GDAL itself writes to standard error
            for name in _CRSS:
                if given[name]:
                    parse_crs(given[name])


def _wanted(workflow: str, given: dict[str, Any]) -> "Options":
    from dagmaster.handlers.raster.options import TILE_ABOVE_MB, Options

    told = {name: given[name] for name in ("target_crs", "tile_size", "output_tier") if given[name] is not None}
    return Options(**told, tile_above_mb=TILE_ABOVE_MB if workflow == WORKFLOWS[0] else 0)


def _require_free(storage: "Storage", edition: "Edition", wanted: "Options", checked: "Checked") -> None:
    """What the job would refuse, before there is one."""
    from dagmaster.handlers.raster.recipe import recipe_of, why_taken

    assert checked.facts is not None
    recipe = recipe_of(wanted, [checked.facts], checked.raster_type, checked.fixes.source_crs)
    if taken := why_taken(storage, edition, recipe):
        hint = f"take --revision {edition.revision + 1}, or another --dataset"
        raise Conflict(_in_options(taken), code="edition.taken", hint=hint)


def _edition(name: str | None, blob: str, ordinal: int, revision: int) -> "Edition":
    from dagmaster.dataset_ids import dataset_id_from
    from dagmaster.storage.location import Edition

    try:
        return Edition(name or dataset_id_from(Path(blob).stem), ordinal, revision)
    except InvalidRequest as error:
        hint = error.hint if name else "name it with --dataset"
        raise InvalidRequest(error.message, code=error.code, hint=hint) from None


def _told(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def _maps_of(folder: Path, known: "Platform") -> str | None:
    """Where maps are served now: a platform that was stopped and started again may have other ports."""
    from dagmaster.local.discovery import running_platform

    return (running_platform(folder) or known).maps_url


def judge(state: State, file: Path, given: dict[str, Any], wanted: "Options", *, is_first: bool) -> "Checked":
    """Look at the file in a process that it can't harm, and say what was found; refuse what can't be made of it."""
    from dagmaster.raster.validation.limits import inspect

    checked = inspect(file, source_crs=given["source_crs"], raster_type=given["raster_type"])
    if not checked.errors:
        checked = _advised(checked, wanted)
    if not checked.errors and not given["datetime"] and is_first:
        checked = replace(checked, findings=(*checked.findings, *_undated(file, checked)))
    if not state.json:
        _print_verdict(state, file, checked)
    elif checked.errors:
        state.emit({"status": "rejected", "file": str(file), "check": _public(checked)}, line=True)
    return checked


def _advised(checked: "Checked", wanted: "Options") -> "Checked":
    from rasterio import Env

    from dagmaster.handlers.raster.options import advice_on, require_possible

    assert checked.facts is not None
    try:
        with Env():
            grid = require_possible(wanted, checked.facts, checked.raster_type, unset_alpha=checked.fixes.unset_alpha)
            return replace(checked, findings=(*checked.findings, *advice_on(wanted, checked.facts, grid)))
    except InvalidRequest as error:
        hint = _in_options(error.hint) if error.hint else None
        raise InvalidRequest(_in_options(error.message), code=error.code, hint=hint, **error.facts) from None


def _undated(file: Path, checked: "Checked") -> "list[Finding]":
    """Which date the job will take where nobody tells one. Of a later revision it takes what was said of the one before."""
    from dagmaster.raster.validation.findings import info
    from dagmaster.stac.when import choose_when

    assert checked.facts is not None
    written_at = datetime.fromtimestamp(file.stat().st_mtime, UTC)
    when = choose_when(given=None, tags=checked.facts.tags, supplied_at=written_at)
    if when.basis != "publication":
        return []
    return [info(
        "time.publication",
        f"nothing in it says when the data are from: they are dated as published, by the file's own time, {written_at:%Y-%m-%d}",
        "if you know better, pass --datetime with a time, a day, a year, or start/end",
    )]  # fmt: skip


def _public(checked: "Checked") -> dict[str, Any]:
    told = checked.to_dict()
    return {name: told[name] for name in ("verdict", "raster_type", "findings")}


def _print_verdict(state: State, file: Path, checked: "Checked") -> None:
    from rich.text import Text

    styles = {"error": "bold red", "warn": "yellow", "info": "dim"}
    state.console.print(Text(neutral(f"{file.name}: {_in_short(checked)}"), style="bold"), soft_wrap=True)
    for finding in checked.findings:
        word = Text(f"  {finding.severity:<6}", style=styles[finding.severity])
        message = neutral(f"{finding.message} [{finding.code}]")
        state.console.print(Text.assemble(word, message), soft_wrap=True)
        if finding.advice:
            state.console.print(Text(neutral(f"        {_in_options(finding.advice)}"), style="dim"), soft_wrap=True)


def _in_options(advice: str) -> str:
    """Advice in the words of this command.

    >>> _in_options("pass raster_type=rgba, or `source_crs`")
    'pass --raster-type rgba, or --source-crs'
    """
    return _INPUT.sub(lambda found: f"--{_option_of(found[1])}{' ' if found[2] else ''}", advice)


def _option_of(name: str) -> str:
    return "tier" if name == "output_tier" else name.replace("_", "-")


def _in_short(checked: "Checked") -> str:
    facts = checked.facts
    if facts is None:
        return "rejected"
    about = f"{facts.width:,} × {facts.height:,} pixels, {facts.count} × {facts.dtype}, {facts.crs or 'no CRS'}"
    verdict = "rejected" if checked.errors else checked.raster_type.value
    return f"{about}, {size_text(facts.size_bytes)}: {verdict}"


def _on_own_platform(state: State, task: Task) -> int:
    from dagmaster.cli.up import say_stopping
    from dagmaster.local.discovery import data_folder
    from dagmaster.local.platform import LocalPlatform, database_of, stopping_on_signals

    settings = state.settings
    dsn, cluster = database_of(settings)
    local = LocalPlatform(
        settings, data_folder(settings), dsn, state.note, cluster, on_stopping=lambda: say_stopping(state),
        overrides=processes_for(settings),
    )  # fmt: skip
    code = INTERRUPTED
    with stopping_on_signals(local):
        if not state.json:
            state.say("no platform runs here; one is started for this file …")
        with local.running():
            code = follow(state, task, lambda: local.maps_url, on_tick=local.tend, is_own=True)
    _say_farewell(state, task, local, code)
    return code


def processes_for(settings: "Settings") -> dict[str, str]:
    """All of this machine, unless someone chose: nothing else runs on the platform."""
    if "worker_processes" in settings.model_fields_set:
        return {}
    return {"WORKER_PROCESSES": str(max(2, min(8, len(os.sched_getaffinity(0)))))}


def _say_farewell(state: State, task: Task, local: "LocalPlatform", code: int) -> None:
    chosen = f" --data {local.folder}" if local.settings.data_folder else ""
    if code == INTERRUPTED and task.job_id:
        if state.json:
            from dagmaster.cli.follow import detached

            detached(state, task.job_id)
            return
        state.note(
            f"everything stopped; the job goes on where it was with:\n  dagmaster up{chosen}\n"
            f"and is watched with:\n  dagmaster jobs watch{chosen} {task.job_id}"
        )
    elif not state.json:
        why = "To look closer, start it again with" if code else "Serve it with"
        state.say(f"everything stopped; the data stays. {why}:\n  dagmaster up{chosen}")


def _detached(state: State, task: Task) -> int:
    from dagmaster.cli.follow import detached

    answer, is_interrupted = _submitted(state, task)
    if is_interrupted:
        return detached(state, answer["job_id"])
    if state.json:
        state.emit({**answer, "workflow_id": task.workflow, "dataset_id": task.edition.dataset})
    else:
        state.say(answer["job_id"])
        state.note(f"watch it with: dagmaster jobs watch {answer['job_id']}")
    return 1 if answer["status"] == "previously_failed" else 0


def _submitted(state: State, task: Task) -> tuple[dict[str, Any], bool]:
    from dagmaster.cli.result_summary import is_still_there
    from dagmaster.cli.submit import held_back, submitted
    from dagmaster.client.answers import Submitted, read

    with held_back() as is_interrupted:
        answer = submitted(state, task.submission(), force=task.is_forced, resume=task.is_resumed)
        is_finished = answer.get("status") == "already_completed"
        if is_finished and not is_still_there(task.storage, task.edition, answer.get("result_data") or {}):
            if not state.json:
                state.note("the same was processed before, but what was made of it is gone; it is processed again")
            answer = submitted(state, task.submission(), force=True, resume=False)
        task.job_id = read(Submitted, answer).job_id
    return answer, is_interrupted()


def follow(
    state: State, task: Task, find_maps: Callable[[], str | None], *, on_tick: Callable[[], None] = lambda: None,
    is_own: bool = False,
) -> int:  # fmt: skip
    """Submit, stay until it is over, and tell; the answer is the exit code. Ctrl-C is the platform's, where it is our own."""
    from dagmaster.cli.follow import Outcome, detached, patiently, watch
    from dagmaster.client.feed import Reconnection

    answer, is_interrupted = _submitted(state, task)
    job_id = answer["job_id"]
    try:
        if is_interrupted:
            signal.raise_signal(signal.SIGINT)  # now it may act
        _say_known(state, answer)
        reconnection = Reconnection(state.note, job_id)
        watch(state, job_id, reconnection, on_tick=on_tick, display=_Silent() if state.json else None)
        outcome = patiently(reconnection, lambda: Outcome.ask(state.client, job_id))
    except KeyboardInterrupt:
        if is_own:
            raise
        return detached(state, job_id)
    return _tell(state, task, outcome, find_maps(), answer["status"])


class _Silent:
    """Programs are told the end only."""

    def show(self, detail: "JobDetail", held_up: Sequence[str] = ()) -> None: ...

    def close(self) -> None: ...


def _say_known(state: State, answer: dict[str, Any]) -> None:
    if state.json or answer["status"] == "accepted":
        return
    if answer["status"] == "already_processing":
        state.note("it is being processed already; watching it")
    else:
        goes_on = ", which goes on" if answer["status"] == "resumed" else ""
        state.note(f"the same was processed before; this is its job{goes_on}")


def _tell(state: State, task: Task, outcome: Any, maps_url: str | None, submitted_as: str) -> int:
    from dagmaster.cli.follow import tell
    from dagmaster.cli.result_summary import preview_of, print_made, what_was_made

    facts = outcome.public()
    check = _public(task.checked) if task.checked else None
    if outcome.status != "completed":
        if state.json:
            state.emit({**facts, "check": check}, line=True)
        else:
            tell(state, outcome)
            _advise(state, outcome, submitted_as)
        return 1
    made = what_was_made(task.storage, task.edition, outcome.result, maps_url)
    if submitted_as in {"accepted", "resumed"} or not task.preview.exists():
        made = replace(made, preview=preview_of(state, made, task.preview, maps_url))
    else:
        made = replace(made, preview=task.preview)
    if state.json:
        state.emit({**facts, **made.public(), "check": check}, line=True)
        return 0
    state.say(f"\ndataset {made.dataset_id}, completed in {facts['seconds']:.1f} s")
    print_made(state, made)
    return 0


def _advise(state: State, outcome: Any, submitted_as: str) -> None:
    codes = {node.error.code for node in outcome.failed if node.error}
    if "storage.taken" in codes:
        state.note("it was processed otherwise before: take --revision 2 (and on), or another --dataset")
    elif submitted_as == "previously_failed":
        state.note("that was an earlier run: go on with it with --resume, or start anew with --force")
