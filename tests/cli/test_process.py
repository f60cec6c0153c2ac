"""`dagmaster process FILE`: from a file to a map, and what is said when that can't be."""

import errno
import fcntl
import json
import os
import shutil
import signal
import threading
from pathlib import Path

import httpx2
import morecantile
import numpy as np
import pytest
import rasterio
from affine import Affine

from dagmaster.cli import incoming, preview, process
from dagmaster.cli.command import State
from dagmaster.cli.result_summary import is_complete
from dagmaster.errors import Conflict, Unavailable
from dagmaster.listen import bind
from dagmaster.local.discovery import Platform, awaited_platform, hold, publish, storage_of
from dagmaster.local.embedded import Cluster
from dagmaster.local.platform import LocalPlatform
from dagmaster.raster.landscape import make_landscape
from dagmaster.settings import Settings
from dagmaster.storage.location import Edition, Zone
from dagmaster.storage.zones import open_storage
from tests.cli.processes import alive, call, descendants, eventually, start, up

PNG = b"\x89PNG\r\n\x1a\n"
TOLD = ("--title", "Mine", "--datetime", "2024-07")
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
    """What was answered when the scene was processed for the first time."""
    done = call("process", str(scene), *TOLD, "--json", "--data", maps.facts["data_folder"])
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
        assert 256 < max(picture.shape) <= preview.LONGEST_SIDE
        assert picture.read(4).mean() > 0.7 * 255


@pytest.mark.requirement("M3")
def test_the_same_again_answers_with_the_same_job_and_force_with_another(first, on_maps, scene):
    again = on_maps("process", str(scene), *TOLD, "--json")
    forced = on_maps("process", str(scene), *TOLD, "--json", "--force")

    assert again.json == first
    assert forced.code == 0, forced.err
    assert forced.json["job_id"] != first["job_id"]
    assert forced.json["cogs"] == first["cogs"]


@pytest.mark.requirement("M3")
def test_outputs_that_were_deleted_are_made_again(on_maps, scene):
    arguments = ("process", str(scene), "--dataset", "gone")
    before = on_maps(*arguments, "--json").json
    shutil.rmtree(before["cogs"]["folder"])

    done, again = on_maps(*arguments), on_maps(*arguments, "--json")

    assert done.code == 0, done.err
    assert "this file was processed before, but its results were deleted; it is processed again\n" in done.err
    assert again.json["job_id"] != before["job_id"]
    assert again.json["cogs"] == before["cogs"]


@pytest.mark.parametrize("missing", ["mosaics", "stac", "cogs"])
@pytest.mark.parametrize("blob", ["blob_path", "mosaic_blob"])
def test_every_promised_output_is_verified(tmp_path, missing, blob):
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
def test_people_see_progress_and_where_everything_is(on_maps, scene):
    arguments = ("--workflow", "process_large_raster", "--tile-size", "512", "--dataset", "tiled")

    done = on_maps("process", str(scene), *arguments)

    assert done.code == 0, done.err
    assert done.out.startswith("My scene.tif: 1,024 × 1,024 pixels, 3 × uint8, EPSG:32632, ")
    assert "tiles: completed, " in done.out
    summary = dict(line.split(maxsplit=1) for line in done.out.partition("dataset tiled, ")[2].splitlines()[1:])
    assert list(summary) == ["COGs", "mosaic", "STAC", "item", "tiles", "viewer", "preview"]
    assert json.loads(Path(summary["mosaic"]).read_text())["mosaicjson"] == "0.0.3"
    assert Path(summary["preview"]).read_bytes().startswith(PNG)
    assert httpx2.get(summary["viewer"]).status_code == 200


@pytest.mark.requirement("M3")
@pytest.mark.usefixtures("first")
def test_another_file_of_the_same_name_gets_a_name_of_its_own(on_maps, maps, scene, tmp_path):
    other = tmp_path / scene.name
    make_landscape(other, 1024, seed=5)

    done, again = (on_maps("process", str(other)) for _ in range(2))

    kept = sorted(path.name for path in Path(maps.facts["data_folder"], "storage/bronze/bronze").iterdir())
    named = [name for name in kept if name.startswith("My scene-")]
    assert done.code == again.code == 0, done.err
    assert len(named) == 1
    assert f"the bronze zone has another file named My scene.tif; this one is stored as {named[0]}\n" in done.err
    assert "this file was processed before" in again.err
    assert "dataset my-scene-" in done.out


@pytest.mark.requirement("M3")
@pytest.mark.usefixtures("first")
def test_what_was_published_otherwise_needs_another_revision(on_maps, scene):
    refused = on_maps("process", str(scene), "--tier", "archive")
    revised = on_maps("process", str(scene), "--tier", "archive", "--revision", "2", "--json")

    assert refused.code == 4
    assert refused.err == (
        "error: revision 1 of version 0 of dataset 'my-scene' was made with other options: "
        "--tier was analysis, not archive\nhint: use --revision 2, or another --dataset\n"
    )
    assert revised.code == 0, revised.err
    assert revised.json["cogs"]["folder"].endswith("/my-scene/v0/r2")


@pytest.mark.requirement("M3")
def test_polar_data_is_warned_about_the_cost_of_degrees(on_maps, tmp_path):
    ice = tmp_path / "ice.tif"
    profile = {"driver": "GTiff", "width": 256, "height": 256, "count": 1, "dtype": "uint8", "crs": "EPSG:3413"}
    with rasterio.open(ice, "w", transform=Affine(1000, 0, -128_000, 0, -1000, 128_000), **profile) as file:
        file.write(np.arange(256 * 256).reshape(1, 256, 256).astype("uint8"))

    done = on_maps("process", str(ice), "--detach")

    assert "times as tall as in the file" in done.out
    assert "to keep its detail, pass --target-crs EPSG:3413\n" in done.out


@pytest.mark.requirement("M3")
def test_a_platform_that_is_starting_is_waited_for(tmp_path):
    said: list[str] = []

    def publish_soon() -> None:
        said.append("waiting")
        threading.Timer(0.3, lambda: publish(tmp_path, Platform("dsn", 7, "now"))).start()

    with hold(tmp_path):
        platform = awaited_platform(tmp_path, publish_soon)
        (tmp_path / "platform.json").unlink()
        with pytest.raises(Unavailable, match="starting or stopping"):
            awaited_platform(tmp_path, patience_seconds=0.2)

    assert (platform.pid, said) == (7, ["waiting"])
    assert awaited_platform(tmp_path) is None


@pytest.mark.requirement("M3")
def test_detaching_prints_the_job_id(on_maps, scene):
    done = on_maps("process", str(scene), "--dataset", "left", "--detach")

    assert done.code == 0
    assert done.err == f"watch it with: dagmaster jobs watch {done.out.splitlines()[-1]}\n"


@pytest.mark.requirement("M3")
def test_ctrl_c_leaves_the_job_to_the_platform(maps, scene):
    process = start("process", str(scene), "--dataset", "interrupted", "--data", maps.facts["data_folder"])
    eventually(lambda: "job " in process.stdout.readline(), 40)

    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)

    assert process.returncode == 130
    assert "detached: the job continues; watch it with:\n  dagmaster jobs watch " in err
    assert alive({maps.pid})


@pytest.fixture
def folder(tmp_path):
    """Of a platform of the command's own."""
    folder = tmp_path / "own"
    yield folder
    Cluster.at(folder).remove()


@pytest.mark.requirement("M3")
def test_without_a_platform_one_is_started_and_the_next_one_continues_an_interrupted_job(folder, scene):
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
    assert done.stdout.endswith(f"the data stays. Serve it with:\n  dagmaster up --data {folder}\n")


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
def test_doubtful_input_is_warned_about_and_processed(on_maps, scene, tmp_path):
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
def test_advice_names_options(dagmaster, scene, tmp_path):
    unplaced = tmp_path / "unplaced.tif"
    with rasterio.open(scene) as source, rasterio.open(unplaced, "w", **{**source.profile, "crs": None}) as file:
        file.write(source.read())

    result = dagmaster("process", str(unplaced))

    assert result.code == 1
    assert "pass --source-crs, e.g. EPSG:32633\n" in result.out


@pytest.fixture
def at_files(scene, tmp_path, monkeypatch):
    """In a folder with a good file and bad ones."""
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
        (("folder",), 2, "is not a file"),
        (("empty.tif",), 2, "is empty"),
        (("scene.tif", "--datetime", "whenever"), 2, "is not a time"),
        (("scene.tif", "--target-crs", "EPSG:99999999"), 2, "is not a known CRS"),
        (("scene.tif", "--tile-size", "1000"), 2, "--tile-size 1000 is not possible: the width of a tile must be"),
        (
            ("dem.tif", "--tier", "visualization"),
            2,
            "--tier visualization is not possible: the visualization tier is JPEG",
        ),
        (("scene.tif", "--target-crs", "EPSG:2193"), 2, "--target-crs EPSG:2193 is not possible"),
        (
            ("scene.tif", "--target-crs", "EPSG:4978"),
            2,
            "--target-crs EPSG:4978 is not possible: the CRS is neither projected",
        ),
        (("scene.tif", "--version-ordinal", "99999999999"), 2, "both to 999,999,999"),
        (("scene.tif", "--revision", "99999999999"), 2, "both to 999,999,999"),
        (("日本.tif",), 2, "no dataset id can be made"),
        (("scene.tif", "--dataset", "No Name"), 2, "is not a valid dataset id"),
        (("scene.tif", "--server", "http://127.0.0.1:1"), 2, "cannot be sent to a remote platform"),
        (("scene.tif", "--detach"), 5, "--detach needs a running platform"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_makes_no_sense_is_refused_before_anything_is_made(dagmaster, at_files, arguments, code, message):
    result = dagmaster("process", *arguments)

    assert result.code == code
    assert message in result.err.splitlines()[0]
    assert not (at_files / "data").exists()


def _taken_in(storage, file):
    location, is_there = incoming.place_in_bronze(State(), storage, file)
    assert not is_there
    incoming.copy_in(State(), storage, file, location)
    assert incoming.place_in_bronze(State(), storage, file) == (location, True)
    return location


class TestIncoming:
    @pytest.fixture
    def storage(self, tmp_path):
        return open_storage(Settings(STORAGE_FOLDER=str(tmp_path / "storage")))

    @pytest.fixture
    def file(self, tmp_path):
        path = tmp_path / "a.tif"
        path.write_bytes(b"pixels")
        return path

    def test_the_zone_gets_a_copy_that_edits_do_not_reach(self, storage, file):
        location = _taken_in(storage, file)
        file.write_bytes(b"edited")

        assert storage.get(location) == b"pixels"
        assert location.path == "bronze/a.tif"

    def test_where_blocks_can_be_shared_nothing_is_copied(self, storage, file, monkeypatch):
        def share(target, request, source):
            assert request == 0x40049409
            os.sendfile(target, source, 0, 1000)

        monkeypatch.setattr(fcntl, "ioctl", share)
        monkeypatch.setattr("dagmaster.storage.local._copy", None)

        location = _taken_in(storage, file)

        assert storage.get(location) == b"pixels"
        assert file.exists()

    def test_a_clone_that_fails_for_a_reason_of_its_own_is_not_hidden(self, storage, file, monkeypatch):
        def fail(*_):
            raise OSError(errno.EIO, "broken disk")

        monkeypatch.setattr(fcntl, "ioctl", fail)

        with pytest.raises(OSError, match="broken disk"):
            _taken_in(storage, file)

    @pytest.mark.parametrize(
        ("name", "blob"),
        [("Scène é.TIF", "Scène é.TIF"), ("e\u0301.tif", "é.tif"), ("a\nb .tif", "a-b.tif"), (" a .tif", "a.tif")],
    )
    def test_names_that_a_store_would_refuse_are_replaced(self, storage, tmp_path, name, blob):
        path = tmp_path / name
        path.write_bytes(b"pixels")

        assert _taken_in(storage, path).blob == blob

    def test_a_link_stands_for_its_file(self, file, tmp_path):
        (tmp_path / "link.tif").symlink_to(file)

        assert incoming.source_file(tmp_path / "link.tif") == file

    def test_how_far_a_file_is_read_is_known(self, file):
        with file.open("rb", buffering=0) as reader:
            reader.read(4)
            assert incoming._position_in(file) == 4

        assert incoming._position_in(file) == 0


def test_a_platform_reports_where_it_stores_objects(tmp_path):
    theirs = Settings(BRONZE_FOLDER=str(tmp_path / "raw"), SILVER_CONTAINER="refined")
    ours = Settings(STORAGE_FOLDER=str(tmp_path / "mine"), DAGMASTER_DATA=str(tmp_path / "data"))

    seen = open_storage(Platform("", 1, "", storage=storage_of(theirs)).with_its_storage(ours))

    assert seen.gdal_path(seen.location("x", zone=Zone.BRONZE)) == str(tmp_path / "raw/bronze/x")
    assert seen.gdal_path(seen.location("x", zone=Zone.SILVER)) == str(tmp_path / "data/storage/silver/refined/x")


def test_a_platform_that_came_back_is_asked_where_it_serves_maps_now(tmp_path):
    before, now = (Platform("", 1, "", maps_url=f"http://127.0.0.1:{port}") for port in (8001, 8002))

    with hold(tmp_path):
        publish(tmp_path, before)
        assert process._maps_of(tmp_path, before) == before.maps_url
        publish(tmp_path, now)
        assert process._maps_of(tmp_path, before) == now.maps_url

    assert process._maps_of(tmp_path, before) == before.maps_url  # it has stopped


@pytest.mark.parametrize(
    ("tags", "date", "revision", "is_expected"),
    [
        ({}, None, 1, True),
        ({}, "2024", 1, False),
        ({}, None, 2, False),
        ({"TIFFTAG_DATETIME": "2019:05:01 10:00:00"}, None, 1, False),
    ],
)
def test_a_date_that_was_not_given_is_warned_about(scene, tags, date, revision, is_expected):
    file = shutil.copy(scene, scene.with_name("undated.tif"))
    with rasterio.open(file, "r+") as dataset:
        dataset.update_tags(**tags)
    os.utime(file, (1_700_000_000, 1_700_000_000))

    options = {"source_crs": None, "raster_type": None, "datetime": date}
    raster_options = process._raster_options("raster_ingest", dict.fromkeys(("target_crs", "tile_size", "output_tier")))
    checked = process.validate(State(), file, options, raster_options, is_first=revision == 1)

    findings = [finding for finding in checked.findings if "date of publication: 2023-11-14" in finding.message]
    expected = [("info", True)] if is_expected else []
    assert [(finding.severity, "--datetime" in finding.advice) for finding in findings] == expected


@pytest.mark.parametrize(("lon", "lat", "zoom"), [(9.5, 47.4, 9), (-179.9, -60, 3), (179.99, 84.9, 12)])
def test_a_position_lies_in_the_tile_that_the_grid_says(lon, lat, zoom):
    x, y = preview._position(lon, lat, zoom)

    assert (x // 256, y // 256) == morecantile.tms.get("WebMercatorQuad").tile(lon, lat, zoom)[:2]


@pytest.mark.parametrize(("longest", "zoom"), [(1024, 10), (300, 8), (100_000, 14), (10, 5)])
def test_the_picture_is_of_the_finest_zoom_that_fits(longest, zoom):
    tilejson = {"minzoom": 5, "maxzoom": 14, "bounds": [9.0, 47.0, 10.0, 47.5]}

    fitting, box = preview._fitting(tilejson, longest)

    assert fitting == zoom
    assert box[2] - box[0] == pytest.approx(256 * 2**zoom / 360, abs=2)


def test_what_is_too_large_for_a_picture_is_said():
    with pytest.raises(Unavailable, match="too large"):
        preview._fitting({"minzoom": 12, "maxzoom": 14, "bounds": [0.0, 40.0, 10.0, 50.0]}, 1024)
