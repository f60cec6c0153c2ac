"""`dagmaster process`: raster files become COGs, a catalogued dataset and map tiles.

    find the files ─▶ validate them ─▶ copy them into the bronze zone ─▶ submit them as an asset (`ingestion`)
                                    └▶ upload them, if the platform is not that of this data folder

Invalid files are reported before anything is copied; the job validates them again. Several files become one collection.
If no platform is running on the data folder, one is started for the duration of the job.
"""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dagmaster.cli.command import INTERRUPTED, Command, State, pass_state
from dagmaster.errors import InvalidRequest, NotFound, Unavailable
from dagmaster.workflows.raster import LARGE_RASTER, RASTER_COLLECTION, RASTER_INGEST

if TYPE_CHECKING:
    from dagmaster.ingest.submission import Ingestion
    from dagmaster.local.discovery import RunningPlatform
    from dagmaster.local.platform import LocalPlatform

TIERS = ("visualization", "analysis", "archive")
TYPES = ("auto", "rgb", "rgba", "dem", "categorical", "multispectral", "nir", "vegetation_index")


def _refuse_number(_context: click.Context, parameter: click.Parameter, value: int | None) -> None:
    if value is not None:
        raise InvalidRequest(
            f"{parameter.opts[0]} is not supported any more: the platform counts versions and revisions itself",
            code="usage",
            hint="other data or options make a new revision; --version-label LABEL makes a new version",
        )


@click.command(cls=Command)
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True, type=click.Path())
@click.option(
    "--dataset", "dataset_id", metavar="NAME", help="Name of the dataset; by default that of the first file or folder"
)
@click.option("--title", help="Title in the catalogue")
@click.option("--description", help="Description in the catalogue")
@click.option("--license", metavar="SPDX", help="Licence, an SPDX identifier such as CC-BY-4.0, or other")
@click.option("--keywords", multiple=True, metavar="WORD,…", help="Keywords in the catalogue; may be repeated")
@click.option(
    "--provider",
    "providers",
    multiple=True,
    metavar="NAME[;ROLES[;URL]]",
    help="Organisation behind the data; roles are licensor, producer, processor and host, separated by commas; "
    "may be repeated",
)
@click.option("--datetime", metavar="WHEN", help="Date of the data: a time, a day, a year, or start/end")
@click.option(
    "--tile-size", type=click.IntRange(min=512), metavar="N", help="Width of a tile in pixels, a multiple of 512"
)
@click.option("--tier", "output_tier", type=click.Choice(TIERS), help="Output tier of the COGs  [default: analysis]")
@click.option("--target-crs", metavar="CRS", help="CRS of the COGs  [default: EPSG:4326]")
@click.option("--source-crs", metavar="CRS", help="CRS of the files, if they have none or a wrong one")
@click.option("--raster-type", type=click.Choice(TYPES), help="Kind of pixels  [default: auto]")
@click.option(
    "--version-label",
    metavar="LABEL",
    help="Label of a new or existing version  [default: label of the newest version]",
)
@click.option("--version-ordinal", type=int, hidden=True, expose_value=False, callback=_refuse_number)
@click.option("--revision", type=int, hidden=True, expose_value=False, callback=_refuse_number)
@click.option(
    "--workflow",
    type=click.Choice((RASTER_INGEST, LARGE_RASTER, RASTER_COLLECTION)),
    help=f"{RASTER_INGEST}: one COG, or tiles if the file is large; {LARGE_RASTER}: always tiles and a mosaic; "
    f"{RASTER_COLLECTION}: a COG for each of several files  "
    f"[default: {RASTER_INGEST}, with several files {RASTER_COLLECTION}]",
)
@click.option("--preview", type=click.Path(path_type=Path, dir_okay=False), help="File for the preview, a PNG")
@click.option(
    "--wait/--detach", "is_waiting", default=True, help="Wait until the job ends, or only submit  [default: wait]"
)
@click.option("--start", "is_start", is_flag=True, help="Start a platform on the server of DATABASE_URL for this job")
@click.option(
    "--review",
    "is_to_review",
    is_flag=True,
    help="Do not approve the result; it appears on the map once it is approved",
)
@click.option("--force", is_flag=True, help="Process again even if the same data was processed before")
@click.option("--resume", is_flag=True, help="If an identical submission was sent before and failed, resume its job")
@pass_state
def process(
    state: State,
    /,
    *,
    sources: tuple[str, ...],
    workflow: str | None,
    version_label: str | None,
    preview: Path | None,
    is_waiting: bool,
    is_start: bool,
    is_to_review: bool,
    force: bool,
    resume: bool,
    **options: Any,
) -> int:
    """Turn rasters into COGs, a STAC dataset and map tiles.

    Each SOURCE is a file, a folder, a pattern such as 'tiles/*.tif', an https URL, or an object (s3://BUCKET/KEY or
    az://CONTAINER/BLOB). Several files become one collection, with one mosaic.

    The dataset is an asset of the platform `local`. Repeating the command shows the existing results; other data or
    other options make a new revision, which replaces the previous one on the map. The result is approved with the
    clearance ouo, or with that of the asset, unless --review is given.

    Uses the platform running on this machine (`dagmaster up`), or starts one for this job. With --server (or
    DAGMASTER_URL) the files are uploaded to that platform; repeating the command continues an upload that was
    interrupted. The exit code is 1 if a file is invalid or the job did not complete.

    Ctrl-C ends the command with exit code 130, and the job continues. If the command started the platform, Ctrl-C also
    stops the platform, and the job continues when `dagmaster up` starts it again.
    """
    from dagmaster.cli.ingestion import follow
    from dagmaster.cli.progress import progress_bar
    from dagmaster.cli.validation import validate
    from dagmaster.ingest.options import checked, dataset_name, raster_options, workflow_for
    from dagmaster.ingest.sources import downloaded, find_sources
    from dagmaster.ingest.store import store_files
    from dagmaster.ingest.submission import LOCAL, Ingestion
    from dagmaster.ingest.validation import FileRules
    from dagmaster.local.discovery import awaited_platform, data_folder
    from dagmaster.storage.zones import open_storage

    state.log()
    folder = data_folder(state.settings)
    rasters = find_sources(sources, state.settings)
    workflow = workflow_for(len(rasters), workflow, options["tile_size"])
    options = checked(options)
    running = awaited_platform(folder, lambda: state.note("waiting for a platform that is starting or stopping …"))
    is_running = _require_platform(state, running, is_start=is_start, is_waiting=is_waiting)
    is_on_other_platform = is_other_platform(state, running)
    storage = open_storage(running.with_its_storage(state.settings) if running else state.settings)
    rules = FileRules(options["source_crs"], options["raster_type"], raster_options(workflow, options))
    progress = partial(progress_bar, state)
    with downloaded(rasters, state.settings, storage, progress) as files:
        dataset = dataset_name(options.pop("dataset_id"), sources, files)
        is_dated = bool(options["datetime"]) or (is_running and _is_known(state, dataset))
        checks = validate(state, files, rules, is_dated=is_dated)
        if checks is None:
            return 1
        reachable = None if is_on_other_platform else storage
        container, blobs = store_files(state.client, reachable, files, progress, state.comment, platform_id=LOCAL)
    ingestion = Ingestion(
        dataset=dataset,
        workflow=workflow,
        container=container,
        blobs=blobs,
        parameters={name: value for name, value in options.items() if value is not None},
        storage=reachable,
        previews=folder / "previews",
        preview=preview,
        version_label=version_label,
        checks=checks,
        is_forced=force,
        is_resumed=resume,
        is_to_review=is_to_review,
    )
    if not is_running:
        return _on_own_platform(state, ingestion)
    if not is_waiting:
        return _detached(state, ingestion)
    return follow(
        state, ingestion, lambda: state.settings.public_url if is_on_other_platform else _maps_of(folder, running)
    )


def _require_platform(state: State, running: "RunningPlatform | None", *, is_start: bool, is_waiting: bool) -> bool:
    """Whether to use a running platform; False if one is started for this job. Raises if the options allow neither."""
    from dagmaster.local.discovery import find_api

    chosen = state.server or state.settings.server_url
    if chosen or running:
        find_api(state.settings, state.server)  # raises if it uses another database or serves no API
        return True
    if not is_waiting:
        raise Unavailable(
            "--detach needs a running platform",
            code="platform.none",
            hint="start one with `dagmaster up`, or leave out --detach",
        )
    if state.settings.dsn() and not is_start:
        raise Unavailable(
            "DATABASE_URL (or POSTGRES_HOST) is set, and no platform of this data folder is running",
            code="platform.not-asked",
            hint="if a platform uses that database, give its API with --server URL; to start one on it for this job, "
            "use --start; to use a private database, unset DATABASE_URL",
        )
    return False


def is_other_platform(state: State, running: "RunningPlatform | None") -> bool:
    """Whether the chosen platform is not that of this data folder: then files must be uploaded to it."""
    from dagmaster.client.connection import checked_url

    chosen = state.server or state.settings.server_url
    if not chosen:
        return False
    return running is None or running.api_url is None or checked_url(running.api_url) != checked_url(chosen)


def _is_known(state: State, dataset: str) -> bool:
    """Whether the dataset exists: then an earlier revision may have the date of the data."""
    try:
        state.client.asset(dataset)
    except NotFound:
        return False
    return True


def _maps_of(folder: Path, platform: "RunningPlatform | None") -> str | None:
    """The address of the map server now: a restarted platform may have other ports."""
    from dagmaster.local.discovery import running_platform

    current = running_platform(folder) or platform
    return current.maps_url if current else None


def _on_own_platform(state: State, ingestion: "Ingestion") -> int:
    from dagmaster.cli.ingestion import follow
    from dagmaster.cli.up import local_platform
    from dagmaster.local.platform import processes_for, stopping_on_signals

    local = local_platform(state, state.settings, overrides=processes_for(state.settings))
    code = INTERRUPTED
    with stopping_on_signals(local):
        state.announce(f"no platform is running; starting one for {ingestion.subject} …")
        with local.running():
            code = follow(state, ingestion, lambda: local.maps_url, on_tick=local.supervise, is_own=True)
    _print_end(state, ingestion, local, code)
    return code


def _print_end(state: State, ingestion: "Ingestion", local: "LocalPlatform", code: int) -> None:
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
    else:
        serve_text = "To serve the addresses above again, run" if local.maps_url else "Serve the results with"
        next_step = "To see details, start the platform again with" if code else serve_text
        state.announce(f"everything stopped; the files stay. {next_step}:\n  dagmaster up{chosen}")


def _detached(state: State, ingestion: "Ingestion") -> int:
    from dagmaster.cli.ingestion import leave_to_platform, note_unapproved, submit
    from dagmaster.ingest.submission import ALREADY_COMPLETED

    if submit(state, ingestion):
        return leave_to_platform(state, ingestion)
    result = ingestion.submitted
    if state.json:
        state.emit({**result.model_dump(mode="json"), "outcome": ingestion.outcome})
        return 0
    state.say(ingestion.job_id or result.asset_id)
    if ingestion.outcome == ALREADY_COMPLETED:
        state.note(f"{ingestion.subject} was processed before with the same options; see its state with:")
        state.note(f"  dagmaster assets show {result.dataset_id}")
    else:
        state.note(f"watch it with: dagmaster jobs watch {ingestion.job_id}")
        note_unapproved(state, ingestion)
    return 0
