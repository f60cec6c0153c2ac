"""`make demo`: a scene becomes a map, and the results are kept."""

import json
import re
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import rasterio
from rasterio.transform import from_origin

from dagmaster.cli.command import State
from dagmaster.cli.demo import _clear, _own_settings, _platform, demo
from dagmaster.listen import bind
from dagmaster.local.embedded import Cluster
from dagmaster.raster import landscape
from dagmaster.raster.cog.grid import output_grid, tiles_of
from dagmaster.raster.source.facts import read_facts
from tests.cli.processes import COMMAND, alive, call, descendants, environment, eventually, start

pytestmark = pytest.mark.requirement("M3")


@pytest.fixture
def output(tmp_path):
    folder = tmp_path / "demo-output"
    yield folder
    Cluster.at(folder).remove()


def test_the_demo_creates_a_map_and_prints_its_address(output):
    arguments = ["demo", "--size", "1024", "--tile-size", "512", "--output", str(output)]
    # Settings for other platforms do not affect the demo.
    other_folder = environment(STORAGE_FOLDER=str(output.parent / "elsewhere"), SERVING_PORT="0")

    done = subprocess.run(
        [*COMMAND, *arguments], env=other_folder, capture_output=True, text=True, timeout=150, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    result = done.stdout.partition("4  result: ")[2]
    summary = dict(line.split(maxsplit=1) for line in result.splitlines() if re.match(r"  \w", line))
    cogs = Path(summary["COGs"].partition("  (")[0])
    assert cogs.is_relative_to(output)
    assert f"({len(list(cogs.iterdir()))} files, " in summary["COGs"]
    assert json.loads(Path(summary["mosaic"]).read_text())["mosaicjson"] == "0.0.3"
    assert summary["item"].startswith(f"{summary['STAC']}/items/landscape-v0-")
    assert "{z}/{x}/{y}.png" in summary["tiles"]
    with rasterio.open(summary["preview"]) as picture:
        assert picture.read(4).mean() > 0.7 * 255
    assert summary["history:"].endswith(": clean")
    assert f"To serve the addresses above again, run:\n  dagmaster up --data {output}\n" in done.stdout
    assert not (output.parent / "elsewhere").exists()
    assert Cluster.at(output).server_pid() is None

    removed = call("demo", "--output", str(output), "--remove")

    assert removed.returncode == 0
    assert not output.exists()
    assert not Cluster.at(output).folder.exists()


def test_the_demo_uses_the_port_of_up_which_serves_its_addresses_again(tmp_path, monkeypatch):
    monkeypatch.delenv("API_PORT", raising=False)
    default = _own_settings(State(), tmp_path)
    monkeypatch.setenv("API_PORT", "8123")
    chosen = _own_settings(State(), tmp_path)

    assert (default.api_port, chosen.api_port) == (8000, 8123)


@pytest.mark.parametrize("name", ["API_PORT", "SERVING_PORT"])
def test_the_demo_takes_a_free_port_if_the_chosen_one_is_in_use(tmp_path, monkeypatch, name):
    with bind("127.0.0.1", 0) as taken:
        monkeypatch.setenv(name, str(taken.getsockname()[1]))
        local, _ = _platform(State(), tmp_path / "output")
        with local._api_socket() as api, local._maps_socket() as maps:
            ports = {bound.getsockname()[1] for bound in (taken, api, maps)}

    assert len(ports) == 3


def test_the_default_demo_has_100_megapixels_and_at_least_40_tiles(tmp_path):
    size, tile_size = (next(p.default for p in demo.params if p.name == name) for name in ("size", "tile_size"))
    place = from_origin(*landscape._ORIGIN, landscape.PIXEL_METRES, landscape.PIXEL_METRES)
    profile = {"driver": "GTiff", "count": 3, "dtype": "uint8", "crs": landscape.CRS, "transform": place, "tiled": True}
    with rasterio.open(tmp_path / "sparse.tif", "w", width=size, height=size, sparse_ok=True, **profile):
        pass

    tiles = tiles_of(output_grid(read_facts(tmp_path / "sparse.tif"), "EPSG:4326", None), tile_size, 0)

    assert size * size >= 100_000_000
    assert len(tiles) >= 40  # some have no data, because they are outside the footprint


def test_ctrl_c_while_the_demo_starts_removes_its_data(output):
    process = start("demo", "--size", "1024", "--output", str(output))
    server = eventually(lambda: Cluster.at(output).server_pid(), 60)
    everything = {server, *descendants(process.pid)}

    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)

    assert process.returncode == 130, err
    assert out.index("stopping …") < out.index("stopped; the folder and the database of the demo were deleted")
    assert not alive(everything)
    assert not output.exists()


def test_the_database_of_a_deleted_output_folder_is_removed(output):
    left = replace(Cluster.at(output), folder=output.parent / "elsewhere")
    (left.folder / "data").mkdir(parents=True)

    _clear(output, left)

    assert not left.folder.exists()


def test_a_folder_with_other_files_is_not_changed(output):
    output.mkdir()
    (output / "thesis.txt").write_text("years of work")

    results = [call("demo", "--output", str(output), *more) for more in ((), ("--remove",))]

    assert [response.returncode for response in results] == [4, 4]
    assert "was not created by a demo; it is not deleted" in results[0].stderr
    assert (output / "thesis.txt").read_text() == "years of work"
