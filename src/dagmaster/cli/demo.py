"""`dagmaster demo`: a scene of a hundred megapixels becomes a map, on a platform of its own. The results stay.

demo-output/
    .dagmaster-demo    marks the folder: the next demo deletes only folders with this mark
    preview.png        a picture of the map
    storage/, …        the data folder of the platform: `dagmaster up --data demo-output` serves it

With STORAGE_BACKEND=azure or s3, the objects are in containers of their own, which the next demo empties.
"""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from dagmaster.cli.command import INTERRUPTED, Command, State, pass_state
from dagmaster.errors import Conflict
from dagmaster.quantities import counted, size_text
from dagmaster.workflows.raster import LARGE_RASTER

if TYPE_CHECKING:
    from dagmaster.client.outcome import JobPage
    from dagmaster.ingest.results import ResultSummary
    from dagmaster.local.embedded import Cluster
    from dagmaster.local.platform import LocalPlatform
    from dagmaster.settings import Settings
    from dagmaster.storage.location import Location
    from dagmaster.storage.zones import Storage

_SCENE = "landscape.tif"
_DATASET = "landscape"
_MARK = ".dagmaster-demo"
_OVERLAP = 0  # all tiles lie on one grid, so neighbours fit without an overlap
_IGNORED_SETTINGS = (
    "POSTGRES_HOST",
    "PUBLIC_URL",
    "STORAGE_FOLDER",
    "BRONZE_FOLDER",
    "SILVER_FOLDER",
    "EXTERNAL_FOLDER",
    "SCRATCH_FOLDER",
)
_PORTS = ("api_port", "serving_port", "gateway_port")
_CONTAINERS = {"bronze_container": "bronze", "silver_container": "silver", "external_container": "external"}
_CONTAINER_PREFIX = "dagmaster-demo-"  # in object stores; every demo empties and uses these containers


@click.command(cls=Command)
@click.option(
    "--size",
    type=click.IntRange(1024, 40_960),
    default=10_240,
    show_default=True,
    metavar="N",
    help="Width and height of the scene in pixels, a multiple of 512",
)
@click.option(
    "--tile-size",
    type=click.IntRange(min=512),
    default=1536,
    show_default=True,
    metavar="N",
    help="Width of a tile in pixels, a multiple of 512",
)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("demo-output"),
    show_default=True,
    help="Folder for the results and the database; the output of an earlier demo in it is deleted",
)
@click.option("--remove", "is_removal", is_flag=True, help="Only delete the output of an earlier demo")
@pass_state
def demo(state: State, size: int, tile_size: int, output: Path, is_removal: bool) -> int:
    """Run a demo: turn a synthetic satellite scene into COGs, a mosaic, a STAC catalogue and map tiles."""
    from dagmaster.local.embedded import Cluster
    from dagmaster.local.platform import stopping_on_signals
    from dagmaster.roles.serving import require_software

    state.log()
    folder = output.absolute()
    cluster = Cluster.at(folder)
    _clear(folder, cluster)
    _clear_objects(state, folder)
    if is_removal:
        return 0
    require_software("all")
    local, storage = _platform(state, folder)
    storage.create_containers()
    code = INTERRUPTED
    with _results_folder(folder, cluster, lambda: code != INTERRUPTED), stopping_on_signals(local):
        scene = _make_scene(state, storage, folder, size)
        state.announce("2  platform: a private PostgreSQL, an orchestrator, a worker, a map server …")
        with local.running():
            state.announce(f"   ready in {local.ready_seconds:.1f} s\n3  job: {LARGE_RASTER}\n")
            code = _run(state, local, storage, scene, tile_size)
    state.announce(_end(output, code))
    return code


def _end(output: Path, code: int) -> str:
    if code == INTERRUPTED:
        return "stopped; the folder and the database of the demo were deleted"
    serve = f"\n  dagmaster up --data {output}\n"
    delete = f"and delete everything with:\n  dagmaster demo --output {output} --remove"
    if code:
        return f"\neverything stopped; see details with:{serve}and `dagmaster jobs show --data {output} last`; {delete}"
    return f"\neverything stopped; the files stay. To serve the addresses above again, run:{serve}{delete}"


def _clear(folder: Path, cluster: "Cluster") -> None:
    from dagmaster.local.discovery import running_platform

    if not folder.exists():
        if not cluster.is_running():
            cluster.remove()  # root's cluster is outside of the folder, and remains if the folder is deleted by hand
        return
    if not (folder / _MARK).exists() and any(folder.iterdir()):
        raise Conflict(
            f"{folder} was not created by a demo; it is not deleted", code="demo.folder", hint="choose another --output"
        )
    if running := running_platform(folder):
        raise Conflict(
            f"a platform is running on {folder} (process {running.pid})",
            code="platform.running",
            hint="stop it with Ctrl-C",
        )
    _remove(folder, cluster)


def _clear_objects(state: State, folder: Path) -> None:
    """Delete what an earlier demo has left in an object store; folders are deleted with the output."""
    from dagmaster.storage.location import Folder, Zone
    from dagmaster.storage.zones import open_storage

    if remote := [zone for zone in Zone if state.settings.backend_of(zone) != "folder"]:
        storage = open_storage(_own_settings(state, folder))
        for zone in remote:
            for info in list(storage.list(Folder(zone, storage.containers[zone]))):
                storage.delete(info.location)


def _remove(folder: Path, cluster: "Cluster") -> None:
    cluster.remove()
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _results_folder(folder: Path, cluster: "Cluster", has_results: Callable[[], bool]) -> Iterator[None]:
    """Create the folder; delete it after the block if there are no results."""
    folder.mkdir(parents=True)
    (folder / _MARK).touch()
    try:
        yield
    finally:
        if not has_results():
            _remove(folder, cluster)


def _platform(state: State, folder: Path) -> "tuple[LocalPlatform, Storage]":
    from dagmaster.cli.up import local_platform
    from dagmaster.local.platform import processes_for
    from dagmaster.storage.zones import open_storage

    settings = _own_settings(state, folder)
    containers = {name.upper(): value for name, value in _containers(state.settings).items()}
    overrides = {**dict.fromkeys(_IGNORED_SETTINGS, ""), **containers}
    local = local_platform(state, settings, overrides={**overrides, **processes_for(settings)})
    return local, open_storage(settings)


def _own_settings(state: State, folder: Path) -> "Settings":
    """The settings of the demo's platform. Its servers have the ports of `up`, which serves the printed addresses again
    later; or free ones, if these are in use."""
    overrides: dict[str, Any] = {name.lower(): None for name in ("DATABASE_URL", *_IGNORED_SETTINGS)}
    overrides |= {
        **_containers(state.settings),
        "data_folder": folder,
        "api_enabled": True,
        "api_host": "127.0.0.1",
    }
    own = state.settings.model_copy(update={**overrides, "serving_enabled": True, "catalog_enabled": True})
    own.model_fields_set.difference_update(_PORTS)  # a port in use is refused only if the settings name it
    return own


def _containers(settings: "Settings") -> dict[str, str]:
    return {
        name: value if settings.backend_of(value) == "folder" else f"{_CONTAINER_PREFIX}{value}"
        for name, value in _CONTAINERS.items()
    }


def _make_scene(state: State, storage: "Storage", folder: Path, size: int) -> "Location":
    from dagmaster.raster.landscape import CRS, PIXEL_METRES, make_landscape
    from dagmaster.storage.location import Zone

    scene_text = f"{size:,} × {size:,} pixels of {PIXEL_METRES:.0f} m in {CRS}"
    state.announce(f"1  scene: a synthetic landscape of {scene_text} …")
    started = time.monotonic()
    with _bar(state) as on_progress:
        make_landscape(folder / _SCENE, size, on_progress=on_progress)
    stored = storage.put_file(storage.location(_SCENE, zone=Zone.BRONZE), folder / _SCENE, move=True)
    seconds = time.monotonic() - started
    state.announce(f"   {size * size / 1e6:,.0f} megapixels, {size_text(stored.size_bytes)}, made in {seconds:.1f} s")
    return stored.location


@contextmanager
def _bar(state: State) -> Iterator[Callable[[float], None]]:
    """A progress bar on a terminal."""
    from rich.progress import BarColumn, Progress, TextColumn

    columns = TextColumn("  "), BarColumn(), TextColumn("{task.percentage:.0f} %")
    is_shown = state.console.is_terminal and not state.json
    with Progress(*columns, console=state.console, transient=True, disable=not is_shown) as progress:
        task = progress.add_task("", total=1.0)
        yield lambda fraction: progress.update(task, completed=fraction)


def _run(state: State, local: "LocalPlatform", storage: "Storage", scene: "Location", tile_size: int) -> int:
    from dagmaster.cli.follow import watch
    from dagmaster.cli.ingestion import submit
    from dagmaster.cli.result_summary import preview_of
    from dagmaster.client.feed import Reconnection
    from dagmaster.client.outcome import JobPage
    from dagmaster.ingest.results import served_urls, summarise
    from dagmaster.ingest.review import decide
    from dagmaster.ingest.submission import Ingestion

    state.server = local.api_url
    parameters = {"title": "A synthetic landscape", "tile_size": tile_size, "overlap": _OVERLAP}
    blobs, previews = [scene.blob], local.folder / "previews"
    ingestion = Ingestion(_DATASET, LARGE_RASTER, scene.container, blobs, parameters, storage, previews)
    submit(state, ingestion)
    job_id = str(ingestion.job_id)
    watch(state, job_id, Reconnection(state.note, job_id), on_tick=local.supervise, heartbeat_seconds=5.0)
    page = JobPage.fetch(state.client, job_id)
    if page.detail.job.status != "completed":
        return _print_failure(state, page)
    decide(state.client, ingestion)
    assert local.maps_url is not None
    results = summarise(storage, ingestion.edition, served_urls(storage, ingestion.edition, local.maps_url))
    results = replace(results, preview=preview_of(state, results, local.folder / "preview.png", local.maps_url))
    history = _history(local.dsn, UUID(job_id))
    _print_results(state, _facts(state, page), results, history)
    return 0 if results.preview and history["is_clean"] else 1


def _print_failure(state: State, page: "JobPage") -> int:
    from dagmaster.cli.show import print_page

    state.print_result(page.public(), lambda: print_page(state.console, page), line=True)
    return 1


def _history(dsn: str, job_id: UUID) -> dict[str, Any]:
    """What `dagmaster verify-history` reports. The history is read from the database: the API does not verify it."""
    import asyncio

    from dagmaster.database.maintenance.history import verify

    report = asyncio.run(verify(dsn, [job_id], lambda *_: None))
    return report.public() | {"summary": report.summary}


def _print_results(state: State, facts: dict[str, Any], results: "ResultSummary", history: dict[str, Any]) -> None:
    from dagmaster.cli.result_summary import print_summary

    if state.json:
        state.emit({**facts, **results.public(), "history": history}, line=True)
        return
    state.say(f"\n4  result: {counted(results.cog_count, 'COG')} and their mosaic in {facts['seconds']:.1f} s\n")
    print_summary(state, results, is_stopping=True)
    state.say("\n  time by stage:")
    for stage in facts["stages"]:
        state.say(
            f"    {stage['name']:<10} {stage['seconds']:>6.1f} s   {counted(stage['tasks'], 'task')}, "
            f"{stage['mean_run_ms'] / 1000:.2f} s each"
        )
    state.say(f"  history: {history['summary']}")


def _facts(state: State, page: "JobPage") -> dict[str, Any]:
    from dagmaster.client.timeline import attempts_of, stage_times, task_count

    job, attempts = page.response["job"], attempts_of(state.client, page.response["job"]["job_id"])
    return {
        "job_id": job["job_id"],
        "status": job["status"],
        "seconds": round(page.detail.seconds, 3),
        "tasks": task_count(attempts),
        "attempts": len(attempts),
        "stages": [asdict(stage) for stage in stage_times(page.detail, attempts)],
        "result": job["result_data"],
    }
