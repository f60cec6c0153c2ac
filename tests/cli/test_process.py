"""`dagmaster process FILE`: from a file to a map, and the messages if that fails."""

import json
import os
import shutil
import signal
import threading
from pathlib import Path

import httpx2
import numpy as np
import pytest
import rasterio
from affine import Affine

from dagmaster.cli import process, result_summary, validation
from dagmaster.cli.command import State
from dagmaster.errors import Conflict, Unavailable
from dagmaster.ingest.options import raster_options
from dagmaster.ingest.preview import MAX_SIDE
from dagmaster.ingest.results import is_complete
from dagmaster.ingest.sources import LocalFile
from dagmaster.ingest.validation import FileRules
from dagmaster.listen import bind
from dagmaster.local.discovery import RunningPlatform, awaited_platform, hold, publish, storage_of
from dagmaster.local.embedded import Cluster
from dagmaster.local.platform import LocalPlatform
from dagmaster.raster.landscape import make_landscape
from dagmaster.settings import Settings
from dagmaster.storage.location import Edition, Zone
from dagmaster.storage.zones import open_storage
from tests.cli.processes import alive, call, descendants, eventually, start, up

PNG = b"\x89PNG\r\n\x1a\n"
METADATA_OPTIONS = ("--title", "Mine", "--datetime", "2024-07")
pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    path = tmp_path_factory.mktemp("scene") / "My scene.tif"
    make_landscape(path, 1024)
    return path


@pytest.fixture(scope="module")
def maps(server, tmp_path_factory):
    """A platform that serves maps, which takes a while to start."""
    with up(tmp_path_factory.mktemp("maps"), DATABASE_URL=server, SERVING_ENABLED="true", SERVING_PORT="0") as running:
        yield running
        running.end()


@pytest.fixture
def on_maps(dagmaster, maps, monkeypatch):
    monkeypatch.setenv("DAGMASTER_DATA", maps.facts["data_folder"])
    return dagmaster


@pytest.fixture(scope="module")
def first(maps, scene):
    """The result of processing the scene for the first time."""
    done = call("process", str(scene), *METADATA_OPTIONS, "--json", "--data", maps.facts["data_folder"])
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.requirement("M3")
def test_a_file_becomes_cogs_a_catalogued_dataset_and_tiles(first, maps):
    cogs = sorted(Path(first["cogs"]["folder"]).iterdir())
    collection = httpx2.get(first["stac_collection_url"]).json()
    item = httpx2.get(first["stac_item_url"]).json()

    assert first["dataset_id"] == "my-scene"
    assert first["cogs"]["count"] == len(cogs) == 1
    assert first["cogs"]["size_bytes"] == cogs[0].stat().st_size
    assert first["mosaic"] is None
    assert (collection["title"], item["collection"]) == ("Mine", "my-scene")
    assert item["properties"]["start_datetime"].startswith("2024-07-01")
    assert first["xyz_url"].startswith(maps.facts["maps_url"])
    with rasterio.open(first["preview"]) as picture:
        assert picture.count == 4
        assert 256 < max(picture.shape) <= MAX_SIDE
        assert picture.read(4).mean() > 0.7 * 255


@pytest.mark.requirement("M3", "A4")
def test_repeating_the_command_returns_the_same_job_and_force_creates_a_revision(on_maps, scene):
    arguments = ("process", str(scene), "--dataset", "again", "--json")
    new, same, forced = on_maps(*arguments), on_maps(*arguments), on_maps(*arguments, "--force")
    known = on_maps(*arguments)

    assert (new.json["outcome"], same.json["outcome"]) == ("new_asset", "already_completed")
    assert {**same.json, "outcome": "new_asset"} == new.json
    assert forced.code == 0, forced.err
    assert (forced.json["outcome"], forced.json["revision"]) == ("new_revision", 2)
    assert forced.json["job_id"] != new.json["job_id"]
    assert forced.json["cogs"]["folder"].endswith("/again/v0/r2")
    assert (known.json["job_id"], known.json["revision"]) == (forced.json["job_id"], 2)


@pytest.mark.requirement("R2")
def test_warnings_of_the_processing_are_printed_after_the_job(capsys):
    warning = {"severity": "warn", "advice": "another target_crs may help", "stage": "processing", "places": []}
    tiles = {"count": 9, "places": ["r000c000.tif", "r000c001.tif", "r000c002.tif", "r000c003.tif"]}
    findings = [
        {**warning, "code": "raster.infinite", "message": "12 values are infinite", **tiles},
        {**warning, "code": "raster.area-differs", "message": "8.7 % of the valid area is lost", "count": 1},
        {**warning, "code": "raster.no-nodata", "message": "printed before the job", "stage": "validation", "count": 1},
        {**warning, "code": "raster.treated-as", "message": "not a warning", "severity": "info", "count": 1},
    ]

    result_summary.print_warnings(State(), {"findings": findings})
    for unknown in (None, {}, {"findings": None}):
        result_summary.print_warnings(State(), unknown)

    printed = capsys.readouterr().out.splitlines()
    assert printed == [
        "  warn  r000c000.tif, r000c001.tif, r000c002.tif and 6 more: 12 values are infinite [raster.infinite]",
        "        another --target-crs may help",
        "  warn  8.7 % of the valid area is lost [raster.area-differs]",
        "        another --target-crs may help",
    ]


@pytest.mark.requirement("R2")
def test_findings_about_pixels_are_printed_after_the_job(on_maps, tmp_path):
    values = np.linspace(0, 100, 90_000, dtype="float32").reshape(300, 300)
    values[150, 150] = np.inf
    path = tmp_path / "infinite.tif"
    layout = {"driver": "GTiff", "width": 300, "height": 300, "count": 1, "dtype": "float32", "crs": "EPSG:32633"}
    with rasterio.open(path, "w", transform=Affine(10, 0, 500_000, 0, -10, 5_300_000), **layout) as dataset:
        dataset.write(values, 1)

    done = on_maps("process", str(path))

    assert done.code == 0, done.err
    _, _, after = done.out.partition("completed in")
    assert "are infinite; they are kept, and left out of the statistics [raster.infinite]" in after


@pytest.mark.requirement("A5")
def test_a_result_is_approved_for_internal_users(first, on_maps):
    asset = on_maps("assets", "show", "my-scene", "--json").json

    assert (first["is_approved"], first["is_served"], first["approve"]) == (True, True, None)
    assert (asset["platform_id"], asset["platform_refs"]) == ("local", {"dataset": "my-scene"})
    assert (asset["clearance_state"], asset["cleared_by"]) == ("ouo", "local")
    assert asset["latest_approved_version_ordinal"] == 0


@pytest.mark.requirement("M3", "A5")
def test_a_result_to_review_is_not_on_the_map_until_it_is_approved(on_maps, scene):
    arguments = ("process", str(scene), "--dataset", "reviewed")
    done = on_maps(*arguments, "--review", "--json")
    again = on_maps(*arguments, "--review")
    map_url, collection = done.json["viewer_url"], done.json["stac_collection_url"]
    plain_url = map_url.partition("?")[0].replace("/tiles/reviewed/map", "/stac/collections/reviewed")
    hidden, preview = httpx2.get(plain_url), httpx2.get(map_url)
    approved = on_maps("assets", "approve", "reviewed", "--clearance", "public")
    shown = httpx2.get(plain_url)

    assert (done.code, done.json["is_approved"], done.json["is_served"], collection) == (0, False, False, None)
    assert done.json["approve"] == "dagmaster assets approve reviewed --version 0 --clearance ouo"
    assert (
        "the result waits for review, and is not on the map yet; decide with:\n  dagmaster assets approve rev"
        in again.err
    )
    assert Path(done.json["preview"]).read_bytes().startswith(PNG)
    assert (hidden.status_code, preview.status_code) == (404, 200)
    assert (approved.code, shown.status_code) == (0, 200)


@pytest.mark.requirement("M3", "A3", "A4")
def test_other_data_creates_a_revision_and_a_label_creates_a_version(on_maps, maps, scene, tmp_path):
    other = tmp_path / "growing.tif"
    shutil.copy(scene, other)
    first = on_maps("process", str(other), "--json").json
    on_maps("assets", "clear", "growing", "public")
    make_landscape(other, 1024, seed=5)
    revised = on_maps("process", str(other), "--json").json
    optioned = on_maps("process", str(other), "--tier", "archive", "--json").json
    version = on_maps("process", str(scene), "--dataset", "growing", "--version-label", "2025", "--json")
    asset = on_maps("assets", "show", "growing", "--json").json
    older = httpx2.get(f"{maps.facts['maps_url']}/tiles/growing/WebMercatorQuad/tilejson.json?version=0")

    results = [(each["outcome"], each["version_ordinal"], each["revision"]) for each in (first, revised, optioned)]
    assert results == [("new_asset", 0, 1), ("new_revision", 0, 2), ("new_revision", 0, 3)]
    assert version.code == 0, version.err
    assert (version.json["outcome"], version.json["version_ordinal"], version.json["revision"]) == ("new_version", 1, 1)
    assert (asset["latest_approved_version_ordinal"], asset["clearance_state"]) == (1, "public")
    assert [each["approved_revision"] for each in asset["versions"]] == [3, 1]
    assert older.status_code == 200  # an administrator sees older versions too


@pytest.mark.requirement("M3", "A4")
def test_a_new_version_waits_for_the_decision_on_the_one_before(on_maps, scene):
    arguments = ("process", str(scene), "--dataset", "ordered")
    on_maps(*arguments, "--review")
    refused = on_maps(*arguments, "--version-label", "2025")
    rejected = on_maps("assets", "reject", "ordered", "--reason", "shifted")
    again = on_maps(*arguments)
    on_maps("assets", "delete", "ordered", "--version", "0", "--yes")
    accepted = on_maps(*arguments, "--version-label", "2025", "--json")

    assert (refused.code, rejected.code) == (4, 0)
    unresolved = "a new version cannot be submitted while version 0 is not approved (pending_review)"
    assert f"error: {unresolved}\nhint: decide on it first" in refused.err
    assert "this is revision 2 of version 0 of ordered" in again.err
    assert (accepted.json["outcome"], accepted.json["version_ordinal"]) == ("new_version", 1)


@pytest.mark.requirement("M3")
def test_a_job_that_was_cancelled_is_resumed_and_then_approved(on_maps, scene):
    arguments = ("process", str(scene), "--dataset", "resumed", "--workflow", "process_large_raster")
    detached = on_maps(*arguments, "--tile-size", "512", "--detach", "--json")
    on_maps("jobs", "cancel", detached.json["job_id"], "--wait", "60")
    other = on_maps(*arguments, "--tile-size", "1024", "--resume", "--detach")
    on_maps("jobs", "watch", other.out.splitlines()[-1])
    cancelled = on_maps(*arguments, "--tile-size", "512", "--detach", "--json")
    on_maps("jobs", "cancel", cancelled.json["job_id"], "--wait", "60")
    resumed = on_maps(*arguments, "--tile-size", "512", "--resume", "--json")

    assert "the run that failed had another file or other options; this is a new revision\n" in other.err
    assert resumed.code == 0, resumed.err
    assert (resumed.json["outcome"], resumed.json["job_id"]) == ("resumed", cancelled.json["job_id"])
    assert (resumed.json["revision"], resumed.json["is_approved"]) == (3, True)


@pytest.mark.requirement("M3")
def test_deleted_outputs_are_created_again(on_maps, scene):
    arguments = ("process", str(scene), "--dataset", "gone")
    before = on_maps(*arguments, "--json").json
    shutil.rmtree(before["cogs"]["folder"])

    done, again = on_maps(*arguments), on_maps(*arguments, "--json")

    assert done.code == 0, done.err
    assert "this file was processed before, but its results were deleted; it is processed again\n" in done.err
    assert again.json["job_id"] != before["job_id"]
    assert (again.json["revision"], again.json["cogs"]["count"]) == (2, before["cogs"]["count"])


@pytest.mark.parametrize("missing", ["mosaics", "stac", "cogs"])
@pytest.mark.parametrize("blob", ["blob_path", "mosaic_blob"])
def test_a_result_is_complete_only_if_all_outputs_exist(tmp_path, missing, blob):
    storage, edition = open_storage(Settings(STORAGE_FOLDER=str(tmp_path))), Edition("tiled")
    result = {blob: edition.mosaic(), "total_tiles": 2}
    names = [edition.mosaic(), edition.stac("collection.json"), edition.cog("a.tif"), edition.cog("b.tif")]
    for name in names:
        storage.put(storage.location(name, zone=Zone.SILVER), b"x")

    assert is_complete(storage, edition, result)
    deleted = next(name for name in names if name.startswith(missing))
    storage.delete(storage.location(deleted, zone=Zone.SILVER))
    assert not is_complete(storage, edition, result)


class TestPortOfMaps:
    @pytest.fixture
    def platform(self, tmp_path):
        return lambda **chosen: LocalPlatform(Settings(**chosen), tmp_path, "", print)

    def test_the_port_is_held_until_the_map_server_binds_it(self, platform):
        with platform()._maps_socket() as one, platform()._maps_socket() as other:
            ports = [maps.getsockname()[1] for maps in (one, other)]
            with pytest.raises(Conflict):
                bind("127.0.0.1", ports[0])

        assert len({0, *ports}) == 3

    def test_a_chosen_port_in_use_is_refused(self, platform):
        with bind("127.0.0.1", 0) as taken, pytest.raises(Unavailable) as refused:
            platform(SERVING_PORT=taken.getsockname()[1])._maps_socket()

        assert "SERVING_PORT=" in refused.value.hint


@pytest.mark.requirement("M3")
def test_the_output_shows_progress_and_the_addresses_of_all_results(on_maps, scene):
    arguments = ("--workflow", "process_large_raster", "--tile-size", "512", "--dataset", "tiled")

    done = on_maps("process", str(scene), *arguments)

    assert done.code == 0, done.err
    assert done.out.startswith("My scene.tif: 1,024 × 1,024 pixels, 3 × uint8, EPSG:32632, ")
    assert "tiles: completed, " in done.out
    summary = dict(line.split(maxsplit=1) for line in done.out.partition("dataset tiled, ")[2].splitlines()[1:])
    assert list(summary) == ["COGs", "mosaic", "preview", "STAC", "item", "tiles", "viewer"]
    assert json.loads(Path(summary["mosaic"]).read_text())["mosaicjson"] == "0.0.3"
    assert Path(summary["preview"]).read_bytes().startswith(PNG)
    assert httpx2.get(summary["viewer"]).status_code == 200


@pytest.mark.requirement("M3")
@pytest.mark.usefixtures("first")
def test_another_file_with_the_same_name_gets_its_own_blob(on_maps, maps, scene, tmp_path):
    other = tmp_path / scene.name
    make_landscape(other, 1024, seed=5)

    done, again = (on_maps("process", str(other), "--dataset", "another") for _ in range(2))

    kept = sorted(path.name for path in Path(maps.facts["data_folder"], "storage/bronze/bronze").iterdir())
    named = [name for name in kept if name.startswith("My scene-")]
    assert done.code == again.code == 0, done.err
    assert len(named) == 1
    assert f"the bronze zone has another file named My scene.tif; this one is stored as {named[0]}\n" in done.err
    assert "this file was processed before" in again.err
    assert "dataset another, version 0, revision 1, completed in " in done.out


@pytest.mark.requirement("M3")
@pytest.mark.parametrize("option", ["--revision", "--version-ordinal"])
def test_options_for_numbers_of_versions_and_revisions_are_refused(dagmaster, scene, option):
    refused = dagmaster("process", str(scene), option, "2")

    assert refused.code == 2
    assert refused.err == (
        f"error: {option} is not supported any more: the platform counts versions and revisions itself\n"
        "hint: other data or options make a new revision; --version-label LABEL makes a new version\n"
    )


@pytest.mark.requirement("M3")
def test_polar_data_in_degrees_causes_a_warning(on_maps, tmp_path):
    polar = tmp_path / "polar.tif"
    profile = {"driver": "GTiff", "width": 1500, "height": 1500, "count": 1, "dtype": "uint8", "crs": "EPSG:3413"}
    with rasterio.open(polar, "w", transform=Affine(500, 0, -375_000, 0, -500, 375_000), **profile) as file:
        file.write(np.arange(1500 * 1500).reshape(1, 1500, 1500).astype("uint8"))

    done = on_maps("process", str(polar), "--detach")

    assert "times as tall as in the file" in done.out
    assert "to keep its detail, pass --target-crs EPSG:3413\n" in done.out


@pytest.mark.requirement("M3")
def test_the_command_waits_for_a_platform_that_is_starting(tmp_path):
    lines: list[str] = []

    def publish_soon() -> None:
        lines.append("waiting")
        threading.Timer(0.3, lambda: publish(tmp_path, RunningPlatform("dsn", 7, "now"))).start()

    with hold(tmp_path):
        platform = awaited_platform(tmp_path, publish_soon)
        (tmp_path / "platform.json").unlink()
        with pytest.raises(Unavailable, match="starting or stopping"):
            awaited_platform(tmp_path, timeout_seconds=0.2)

    assert (platform.pid, lines) == (7, ["waiting"])
    assert awaited_platform(tmp_path) is None


@pytest.mark.requirement("M3")
def test_detaching_prints_the_job_id(on_maps, scene):
    done = on_maps("process", str(scene), "--dataset", "left", "--detach")

    assert done.code == 0
    assert done.err == (
        f"watch it with: dagmaster jobs watch {done.out.splitlines()[-1]}\n"
        "the result is not approved automatically: run the same command again later, or review it with:\n"
        "  dagmaster assets show left\n"
    )


@pytest.mark.requirement("M3")
def test_the_job_continues_after_ctrl_c(maps, scene):
    process = start("process", str(scene), "--dataset", "interrupted", "--data", maps.facts["data_folder"])
    eventually(lambda: "job " in process.stdout.readline(), 40)

    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)

    assert process.returncode == 130
    assert "detached: the job continues; watch it with:\n  dagmaster jobs watch " in err
    assert "the result is not approved automatically: run the same command again later, or review it with:\n" in err
    assert alive({maps.pid})


@pytest.fixture
def folder(tmp_path):
    """The data folder of the platform that the command starts."""
    folder = tmp_path / "own"
    yield folder
    Cluster.at(folder).remove()


@pytest.mark.requirement("M3")
def test_a_platform_is_started_if_none_runs_and_continues_an_interrupted_job(folder, scene):
    arguments = ("process", str(scene), "--data", str(folder))
    process = start(*arguments, "--workflow", "process_large_raster", "--tile-size", "512")
    eventually(lambda: "job running" in process.stdout.readline(), 60)
    everything = {process.pid, *descendants(process.pid)}
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)

    done = call(*arguments, "--workflow", "process_large_raster", "--tile-size", "512")

    assert process.returncode == 130
    assert "stopping …" in out
    again = f"  dagmaster up --data {folder}\nand watch it with:\n  dagmaster jobs watch --data {folder} "
    assert again in err
    assert len(everything) > 4
    assert not alive(everything)
    assert done.returncode == 0, done.stderr
    assert "this file is already being processed; watching its job" in done.stderr
    assert "no preview: no map server is running" in done.stderr
    assert f"COGs     {folder}/storage/silver/silver/cogs/my-scene/v0/r1" in done.stdout
    assert done.stdout.endswith(f"the files stay. Serve the results with:\n  dagmaster up --data {folder}\n")


@pytest.mark.requirement("M3")
def test_an_unfit_file_is_reported_before_anything_is_written(dagmaster, scene, tmp_path):
    broken = tmp_path / "broken.tif"
    broken.write_bytes(scene.read_bytes()[:5000])

    result, as_json = dagmaster("process", str(broken)), dagmaster("process", str(broken), "--json")

    assert result.code == as_json.code == 1
    first, error, advice = result.out.splitlines()[:3]
    assert first.endswith(": rejected")
    assert error.startswith("  error ")
    assert error.endswith(" [raster.truncated]")
    assert advice.strip()
    assert as_json.json["check"]["verdict"] == "reject"
    assert as_json.json["check"]["findings"][0]["code"] == "raster.truncated"
    assert not (tmp_path / "data").exists()


@pytest.mark.requirement("M3")
def test_a_text_file_is_reported_as_text(dagmaster, tmp_path):
    (tmp_path / "notes.tif").write_text("which scenes to take\nthose of July\n")

    result = dagmaster("process", str(tmp_path / "notes.tif"))

    assert result.code == 1
    assert "'notes.tif' is a text file [raster.unsupported-format]\n" in result.out
    assert "submit the raster that it describes" in result.out


@pytest.mark.requirement("M3")
def test_doubtful_input_is_processed_with_a_warning(on_maps, scene, tmp_path):
    shifted = tmp_path / "doubtful.tif"
    with rasterio.open(scene) as source:
        profile = {**source.profile, "tiled": False, "nodata": None}
        for name in ("blockxsize", "blockysize"):
            profile.pop(name)
        with rasterio.open(shifted, "w", **profile) as file:
            file.write(source.read())

    done = on_maps("process", str(shifted), "--detach")

    assert done.code == 0
    assert "\n  warn  " in done.out


@pytest.mark.requirement("M3")
def test_advice_names_options_of_the_command(dagmaster, scene, tmp_path):
    unplaced = tmp_path / "unplaced.tif"
    with rasterio.open(scene) as source, rasterio.open(unplaced, "w", **{**source.profile, "crs": None}) as file:
        file.write(source.read())

    result = dagmaster("process", str(unplaced))

    assert result.code == 1
    assert "pass --source-crs, e.g. EPSG:32633\n" in result.out


@pytest.fixture
def folder_of_files(scene, tmp_path, monkeypatch):
    """The current folder, with a valid file and invalid ones."""
    shutil.copy(scene, tmp_path / "scene.tif")
    shutil.copy(scene, tmp_path / "日本.tif")
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty.tif").touch()
    heights = {"driver": "GTiff", "width": 64, "height": 64, "count": 1, "dtype": "float32", "crs": "EPSG:32632"}
    with rasterio.open(tmp_path / "dem.tif", "w", transform=Affine(10, 0, 5e5, 0, -10, 5e6), **heights) as file:
        file.write(np.linspace(0, 900, 64 * 64, dtype="float32").reshape(1, 64, 64))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.requirement("M3")
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("none.tif",), 4, "there is no file"),
        (("https:/example.com/a.tif",), 4, "a web address begins with https://"),
        (("folder",), 4, "the folder folder has no rasters"),
        (("/dev/null",), 2, "is not a file"),
        (("empty.tif",), 2, "is empty"),
        (("scene.tif", "--datetime", "whenever"), 2, "is not a time"),
        (("scene.tif", "--target-crs", "EPSG:99999999"), 2, "is not a known CRS"),
        (("scene.tif", "--tile-size", "1000"), 2, "--tile-size 1000 is not possible: the width of a tile must be"),
        (
            ("dem.tif", "--tier", "visualization"),
            2,
            "--tier visualization is not possible: the visualization tier uses JPEG",
        ),
        (("scene.tif", "--target-crs", "EPSG:2193"), 2, "--target-crs EPSG:2193 is not possible"),
        (
            ("scene.tif", "--target-crs", "EPSG:4978"),
            2,
            "--target-crs EPSG:4978 is not possible: the CRS is neither projected",
        ),
        (("日本.tif",), 2, "no dataset id can be made"),
        (("scene.tif", "--dataset", "No Name"), 2, "is not a valid dataset id"),
        (("scene.tif", "--server", "http://127.0.0.1:1"), 5, "no platform responds at http://127.0.0.1:1"),
        (("scene.tif", "--detach"), 5, "--detach needs a running platform"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_invalid_arguments_are_refused_before_anything_is_created(dagmaster, folder_of_files, arguments, code, message):
    result = dagmaster("process", *arguments)

    assert result.code == code
    assert message in result.err.splitlines()[0]
    assert not (folder_of_files / "data").exists()


def test_the_storage_of_the_running_platform_is_used(tmp_path):
    theirs = Settings(BRONZE_FOLDER=str(tmp_path / "raw"), SILVER_CONTAINER="refined")
    ours = Settings(STORAGE_FOLDER=str(tmp_path / "mine"), DAGMASTER_DATA=str(tmp_path / "data"))

    seen = open_storage(RunningPlatform("", 1, "", storage=storage_of(theirs)).with_its_storage(ours))

    assert seen.gdal_path(seen.location("x", zone=Zone.BRONZE)) == str(tmp_path / "raw/bronze/x")
    assert seen.gdal_path(seen.location("x", zone=Zone.SILVER)) == str(tmp_path / "data/storage/silver/refined/x")


def test_the_map_url_of_a_restarted_platform_is_read_again(tmp_path):
    before, now = (RunningPlatform("", 1, "", maps_url=f"http://127.0.0.1:{port}") for port in (8001, 8002))

    with hold(tmp_path):
        publish(tmp_path, before)
        assert process._maps_of(tmp_path, before) == before.maps_url
        publish(tmp_path, now)
        assert process._maps_of(tmp_path, before) == now.maps_url

    assert process._maps_of(tmp_path, before) == before.maps_url  # the platform has stopped


@pytest.mark.parametrize(
    ("tags", "date", "revision", "is_expected"),
    [
        ({}, None, 1, True),
        ({}, "2024", 1, False),
        ({}, None, 2, False),
        ({"TIFFTAG_DATETIME": "2019:05:01 10:00:00"}, None, 1, False),
    ],
)
def test_a_missing_date_causes_a_warning(scene, tags, date, revision, is_expected):
    file = shutil.copy(scene, scene.with_name("undated.tif"))
    with rasterio.open(file, "r+") as dataset:
        dataset.update_tags(**tags)
    os.utime(file, (1_700_000_000, 1_700_000_000))

    options = raster_options("raster_ingest", dict.fromkeys(("target_crs", "tile_size", "output_tier")))
    rules = FileRules(None, None, options)
    is_dated = bool(date) or revision > 1
    (check,) = validation.validate(State(), [LocalFile("undated.tif", Path(file))], rules, is_dated=is_dated)

    findings = [finding for finding in check.checked.findings if "date of publication: 2023-11-14" in finding.message]
    expected = [("info", True)] if is_expected else []
    assert [(finding.severity, "--datetime" in finding.advice) for finding in findings] == expected


@pytest.fixture(scope="module")
def halves(scene, tmp_path_factory):
    """The left and the right half of the scene, in one folder."""
    folder = tmp_path_factory.mktemp("tiles") / "Two Halves"
    folder.mkdir()
    with rasterio.open(scene) as source:
        for name, column in (("left", 0), ("right", 512)):
            window = rasterio.windows.Window(column, 0, 512, 1024)
            profile = {**source.profile, "width": 512, "transform": source.window_transform(window)}
            with rasterio.open(folder / f"{name}.tif", "w", **profile) as file:
                file.write(source.read(window=window))
    return folder


@pytest.mark.requirement("M3")
def test_a_folder_becomes_one_collection_with_its_description(on_maps, halves):
    description = ("--description", "Both halves", "--license", "cc-by-4.0", "--keywords", "land, synthetic")
    providers = ("--provider", "Survey; producer,licensor; https://survey.example.org", "--provider", "Us;host")
    arguments = ("process", str(halves), *description, *providers, "--keywords", "demo", *METADATA_OPTIONS)

    done, again = on_maps(*arguments), on_maps(*arguments, "--json")

    assert done.code == again.code == 0, done.err
    assert "validating 2 files …" in done.err
    assert done.out.splitlines()[0].startswith("2 files, ")
    assert "this collection was processed before" not in done.err
    result = again.json
    assert (result["dataset_id"], result["cogs"]["count"]) == ("two-halves", 2)
    assert Path(result["mosaic"]).exists()
    assert [Path(check["file"]).name for check in result["check"]["files"]] == ["left.tif", "right.tif"]
    collection = httpx2.get(result["stac_collection_url"]).json()
    item = httpx2.get(result["stac_item_url"]).json()
    for document in (collection, item["properties"]):
        assert document["description"] == "Both halves"
        assert document["license"] == "CC-BY-4.0"
        assert document["keywords"] == ["land", "synthetic", "demo"]
        assert document["providers"] == [
            {"name": "Survey", "roles": ["producer", "licensor"], "url": "https://survey.example.org"},
            {"name": "Us", "roles": ["host"]},
        ]


@pytest.mark.requirement("M3")
def test_all_unfit_files_of_a_collection_are_listed(dagmaster, folder_of_files):
    for name in ("one.tif", "two.tif"):
        (folder_of_files / name).write_bytes((folder_of_files / "scene.tif").read_bytes()[:5000])

    result = dagmaster("process", "one.tif", "scene.tif", "two.tif")
    as_json = dagmaster("process", "one.tif", "scene.tif", "two.tif", "--json")
    mixed = dagmaster("process", "scene.tif", "dem.tif")

    assert result.code == as_json.code == mixed.code == 1
    assert result.out.splitlines()[0].endswith(": 2 rejected")
    assert "  error one.tif, two.tif: the file is incomplete" in result.out
    verdicts = {Path(check["file"]).name: check["verdict"] for check in as_json.json["check"]["files"]}
    assert verdicts == {"one.tif": "reject", "scene.tif": verdicts["scene.tif"], "two.tif": "reject"}
    assert "the files differ in their bands (3 × uint8: scene.tif; 1 × float32: dem.tif)" in mixed.err
    assert "valid" not in mixed.out
    assert not (folder_of_files / "data").exists()


@pytest.mark.requirement("M3")
def test_files_of_very_different_resolutions_are_refused_before_anything_is_created(dagmaster, folder_of_files):
    profile = {"driver": "GTiff", "width": 900, "height": 900, "count": 1, "dtype": "float32", "crs": "EPSG:32632"}
    with rasterio.open("fine.tif", "w", transform=Affine(0.1, 0, 5e5, 0, -0.1, 5e6), **profile) as file:
        file.write(np.linspace(0, 900, 900 * 900, dtype="float32").reshape(1, 900, 900))

    result = dagmaster("process", "dem.tif", "fine.tif")

    assert (result.code, "valid" in result.out) == (1, False)
    assert "with the pixel size of 'dem.tif', 'fine.tif': the output is " in result.err
    assert not (folder_of_files / "data").exists()


@pytest.mark.requirement("M3")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--license", "CC-BY-9.0"), "'CC-BY-9.0' is not an SPDX identifier of a licence"),
        (("--license", "MIT OR Apache-2.0"), "is not an SPDX identifier of a licence"),
        (("--license", "proprietary"), "is not an SPDX identifier of a licence"),
        (("--provider", ";producer"), "the provider '' is not valid: its name is empty"),
        (("--provider", "Us;owner"), "the role 'owner' is unknown; roles are host, licensor, processor, producer"),
        (("--provider", "Us;host;ftp://us"), "the URL cannot be published: it is not an absolute http(s) URL"),
        (("--provider", "Us;host;https://us;more"), "has too many parts"),
        (("dem.tif", "--workflow", "raster_ingest"), "--workflow raster_ingest takes one file, not 2"),
        (("dem.tif", "--tile-size", "512"), "--tile-size applies to a single file"),
    ],
    ids=" ".join,
)
def test_metadata_options_are_validated_before_anything_is_created(dagmaster, folder_of_files, options, message):
    result = dagmaster("process", "scene.tif", *options)

    assert result.code == 2
    assert message in result.err.splitlines()[0]
    assert not (folder_of_files / "data").exists()


@pytest.mark.requirement("M3")
@pytest.mark.parametrize("name", ["DATABASE_URL", "POSTGRES_HOST"])
def test_no_platform_is_started_on_a_configured_database(dagmaster, folder_of_files, monkeypatch, name):
    monkeypatch.setenv(name, "postgresql://127.0.0.1:1/none" if name == "DATABASE_URL" else "127.0.0.1")

    refused = dagmaster("process", "scene.tif")
    monkeypatch.setattr(process, "_on_own_platform", lambda _state, _ingestion: 42)
    result = dagmaster("process", "scene.tif", "--start")

    assert refused.code == 5
    assert "no platform of this data folder is running" in refused.err
    assert all(way in refused.err for way in ("--server URL", "--start", "unset DATABASE_URL"))
    assert "scene.tif:" not in refused.out
    assert result.code == 42


@pytest.mark.requirement("M3")
def test_a_file_is_uploaded_to_a_platform_given_by_its_url(dagmaster, maps, scene, monkeypatch):
    monkeypatch.setenv("PUBLIC_URL", maps.facts["maps_url"])
    arguments = ("process", str(scene), "--dataset", "chosen", "--json", "--server", maps.facts["api_url"])
    bronze = Path(maps.facts["data_folder"]) / "storage/bronze/bronze/local"

    done = dagmaster(*arguments)
    again = dagmaster(*arguments)

    assert done.code == again.code == 0, done.err
    assert (bronze / scene.name).read_bytes() == scene.read_bytes()
    assert (done.json["cogs"]["count"], done.json["cogs"]["folder"]) == (1, None)
    assert done.json["is_approved"]
    assert done.json["viewer_url"].startswith(maps.facts["maps_url"])
    assert Path(done.json["preview"]).read_bytes().startswith(b"\x89PNG")
    assert again.json["outcome"] == "already_completed"  # the file was not sent again, so its ETag is the same


@pytest.mark.requirement("M3")
def test_files_can_be_uploaded_and_listed_by_commands(dagmaster, maps, tmp_path, monkeypatch):
    monkeypatch.setenv("DAGMASTER_URL", maps.facts["api_url"])
    file = tmp_path / "by hand.tif"
    file.write_bytes(b"pixels")

    put = dagmaster("uploads", "put", str(file), "--platform", "ddh", "--name", "2024/a.tif")
    file.write_bytes(b"other pixels")
    renamed = dagmaster("uploads", "put", str(file), "--platform", "ddh", "--name", "2024/a.tif", "--json")
    refused = dagmaster("uploads", "put", str(file), "--platform", "ddh", "--name", "2024/a.tif", "--fail-if-exists")
    sources = dagmaster("sources", "ls", "ddh/2024", "--json")
    table = dagmaster("sources", "ls", "ddh/2024")
    finished = dagmaster("uploads", "ls", "--state", "finished")
    begun = dagmaster("uploads", "rm", "0198b2c4-7c1e-4a10-8f00-2f6f6e1c9a01")
    missing = dagmaster("uploads", "put", str(tmp_path / "nothing.tif"))

    assert (put.code, put.out.strip()) == (0, "bronze/ddh/2024/a.tif")
    other = renamed.json["source"]["blob"]
    assert other.startswith("ddh/2024/a-")
    assert (refused.code, "objects are never overwritten" in refused.err) == (4, True)
    assert [item["blob"] for item in sources.json["sources"]] == sorted(["ddh/2024/a.tif", other])
    assert "bronze/ddh/2024/a.tif" in table.out
    assert "finished" in finished.out
    assert (begun.code, missing.code) == (4, 4)


@pytest.mark.requirement("M3")
def test_a_file_downloaded_from_a_url_is_deleted_if_it_is_unfit(dagmaster, folder_of_files, monkeypatch):
    def fake(url, folder, rules, _on_progress):
        assert (url, rules.limit_bytes) == ("https://files.test/notes.tif?sig=x", 7_000_000)
        (folder / "notes.tif").write_text("these are not the pixels\n")
        return folder / "notes.tif"

    monkeypatch.setattr("dagmaster.storage.download.download", fake)
    monkeypatch.setenv("MAX_DOWNLOAD_MB", "7")

    result = dagmaster("process", "https://files.test/notes.tif?sig=x")

    assert result.code == 1
    assert "notes.tif: rejected" in result.out
    assert "downloading notes.tif …" in result.err
    assert not [path for path in (folder_of_files / "data").rglob("*") if path.is_file()]
