"""A platform on this machine with generated data, to look at its web pages.

Five raster datasets of different kinds, computed from random numbers: some published, some waiting for review, one with
two versions. Jobs that completed, failed, run with a large fan-out, or wait in a paused queue.

    .venv/bin/python scripts/sample_platform.py --data /tmp/sample

prints its address, and runs until Ctrl-C.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.transform import from_origin

SIZE = 1200
NODATA = -9999.0
PATIENCE_SECONDS = 300

SURVEY = """
workflow_id: nightly_survey
name: Nightly survey
description: Checks every tile of the survey and reports what has changed.
inputs:
  tiles: {type: integer, default: 2400, description: Number of tiles}
nodes:
  start: {type: start, next: [list_tiles, read_catalogue]}
  list_tiles: {handler: make_list, params: {count: "{{ inputs.tiles }}"}, next: check_tiles}
  read_catalogue: {handler: echo, params: {catalogue: silver}, next: report}
  check_tiles:
    type: fan_out
    source: "{{ nodes.list_tiles.output.items }}"
    label: "tile {{ index + 1 }}"
    task: {handler: sleep, params: {seconds: 8}}
    next: collect
  collect: {type: fan_in, next: report}
  report: {handler: echo, params: {checked: "{{ nodes.collect.output.count }}"}, next: end}
  end: {type: end}
"""

REFRESH = """
workflow_id: refresh_overviews
name: Refresh overviews
nodes:
  start: {type: start, next: refresh}
  refresh: {handler: echo, queue: container-tasks, params: {level: 4}, next: end}
  end: {type: end}
"""


@dataclass(frozen=True)
class Platform:
    url: str
    folder: Path

    def get(self, path: str, **query: Any) -> Any:
        return self._send("GET", path, params=query)

    def post(self, path: str, body: object) -> Any:
        return self._send("POST", path, json=body)

    def put(self, path: str, body: object) -> Any:
        return self._send("PUT", path, json=body)

    def _send(self, method: str, path: str, **options: Any) -> Any:
        response = httpx2.request(method, f"{self.url}/api/v1{path}", timeout=60, **options)
        if response.is_error:
            raise SystemExit(f"{method} {path}: {response.status_code} {response.text}")
        return response.json()


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Platform]:
    """`dagmaster up` on free ports; it is stopped at the end, and its data is kept."""
    ports = {"API_PORT": "0", "SERVING_PORT": "0", "GATEWAY_PORT": "0", "SERVING_ENABLED": "true"}
    process = subprocess.Popen(
        [sys.executable, "-m", "dagmaster", "up", "--json", "--data", str(folder)],
        env={**os.environ, **ports, "BRONZE_FOLDER": str(folder / "bronze")},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit("the platform did not start")
        yield Platform(json.loads(line)["api_url"], folder)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


# ------------------------------------------------------------------------------------------------------- the rasters


def noise(seed: int, power: float, size: int = SIZE) -> NDArray[np.float64]:
    """Random terrain between 0 and 1, in which large forms are higher than small ones, as in mountains."""
    random = np.random.default_rng(seed)
    frequency = np.hypot(np.fft.fftfreq(size)[:, None], np.fft.rfftfreq(size)[None, :])
    frequency[0, 0] = 1
    spectrum = np.fft.rfft2(random.standard_normal((size, size))) / frequency**power
    ground = np.fft.irfft2(spectrum, (size, size))
    return (ground - ground.min()) / (ground.max() - ground.min())


def valley() -> NDArray[np.float64]:
    """Heights above the bed of a river that winds from west to east."""
    rows, columns = np.mgrid[0:SIZE, 0:SIZE]
    bed = SIZE / 2 + 0.16 * SIZE * np.sin(columns / 140) + 0.1 * SIZE * np.sin(columns / 57 + 1)
    return np.abs(rows - bed) * 0.045 + 11 * noise(10, 1.7) - 3


def shade(heights: NDArray[np.float64], metres: float) -> NDArray[np.float64]:
    """How bright slopes are with light from the north-west, between 0 and 1."""
    south, east = np.gradient(heights, metres)
    light = (1 + (south + east) * 0.7) / np.sqrt(1 + south**2 + east**2)
    return np.clip(light / 1.6, 0, 1)


def blend(values: NDArray[np.float64], stops: list[tuple[float, tuple[int, int, int]]]) -> NDArray[np.float64]:
    """Three bands of colours between the stops."""
    values_of_stops = [stop[0] for stop in stops]
    return np.stack([np.interp(values, values_of_stops, [stop[1][band] for stop in stops]) for band in range(3)])


def write(
    path: Path, bands: NDArray[Any], crs: str, origin: tuple[float, float], metres: float, **options: Any
) -> None:
    count, height, width = bands.shape
    path.parent.mkdir(parents=True, exist_ok=True)
    with rasterio.open(
        path,
        "w",
        driver="GTiff",
        width=width,
        height=height,
        count=count,
        dtype=bands.dtype,
        crs=crs,
        transform=from_origin(*origin, metres, metres),
        tiled=True,
        **{name: value for name, value in options.items() if name == "nodata"},
    ) as dataset:
        dataset.write(bands)
        if "colours" in options:
            dataset.write_colormap(1, options["colours"])
        for band, name in enumerate(options.get("names", []), start=1):
            dataset.set_band_description(band, name)


def make_rasters(folder: Path) -> None:
    swiss = ("EPSG:2056", (2_640_000.0, 1_172_000.0), 20.0)
    ground = noise(7, 2.1)
    heights = 420 + 3100 * ground**1.4
    write(folder / "terrain.tif", heights.astype("float32")[None], *swiss, nodata=NODATA)

    colours = blend(
        heights + 250 * noise(8, 1.2),
        [
            (500, (72, 104, 60)),
            (1100, (104, 128, 72)),
            (1900, (150, 140, 110)),
            (2500, (168, 164, 160)),
            (2900, (246, 248, 250)),
        ],
    )
    photograph = np.clip(colours * (0.45 + 0.75 * shade(heights, 20.0)) + 10 * noise(9, 0.4), 1, 255)
    write(folder / "orthophoto.tif", photograph.astype("uint8"), *swiss)

    for name, level in (("flood-2024.tif", 5.5), ("flood-2025.tif", 8.0)):
        depth = level - valley()
        write(folder / name, np.where(depth > 0, depth, NODATA).astype("float32")[None], *swiss, nodata=NODATA)

    classes = np.digitize(heights + 400 * noise(11, 1.6), [700, 1000, 1500, 2100, 2700]).astype("uint8") + 1
    palette = {
        1: (70, 130, 180),
        2: (222, 203, 120),
        3: (98, 160, 84),
        4: (44, 108, 60),
        5: (160, 152, 140),
        6: (240, 244, 248),
    }
    write(
        folder / "land-cover.tif",
        classes[None],
        "EPSG:32632",
        (440_000.0, 5_180_000.0),
        30.0,
        nodata=0,
        colours={number: (*colour, 255) for number, colour in palette.items()},
    )

    bands = np.stack([700 + 2600 * noise(seed, 1.8) * (1.2 - ground) for seed in (20, 21, 22, 23)])
    write(
        folder / "sentinel.tif",
        bands.astype("uint16"),
        "EPSG:32632",
        (470_000.0, 5_140_000.0),
        10.0,
        names=["blue", "green", "red", "nir"],
    )


# ---------------------------------------------------------------------------------------------------------- the data


def fill(platform: Platform, say: Callable[[str], None]) -> dict[str, str]:
    """Create all data; returns the ids of the jobs and assets whose pages are shown."""
    make_rasters(platform.folder / "bronze" / "bronze" / "sample")
    say("rasters are created")
    published = [
        submit(platform, "terrain", "terrain.tif", "Terrain model of the Upper Valley", "2025"),
        submit(platform, "orthophoto", "orthophoto.tif", "Orthophoto of the Upper Valley", "2025"),
        submit(platform, "flood-depth", "flood-2024.tif", "Flood depth, 100-year event", "2024"),
    ]
    ids = {
        "terrain": published[0]["asset_id"],
        "orthophoto": published[1]["asset_id"],
        "flood": published[2]["asset_id"],
    }
    wait_until_completed(platform, published)
    for submission, level in zip(published, ("public", "ouo", "public"), strict=True):
        path = f"/assets/{submission['asset_id']}/versions/0/approve"
        platform.post(path, {"clearance_level": level, "reason": "checked against the survey of the spring"})
    publish_style(
        platform, ids["terrain"], "terrain", [[400, 3500]], "Heights above the sea from laser scanning, 20 m."
    )
    publish_style(platform, ids["flood"], "blues", [[0, 8]], "Depth of the water in metres at the peak of the event.")
    say("three assets are published")
    waiting = [
        submit(platform, "land-cover", "land-cover.tif", "Land cover, six classes", "2025"),
        submit(platform, "flood-depth", "flood-2025.tif", "Flood depth, 100-year event", "2025"),
        submit(platform, "sentinel", "sentinel.tif", "Summer mosaic, four bands", "July 2025"),
    ]
    wait_until_completed(platform, waiting)
    ids["waiting"] = waiting[0]["asset_id"]
    say("three versions wait for review")
    ids |= jobs(platform)
    say("jobs run, fail and wait")
    return ids


def publish_style(platform: Platform, asset: str, colours: str, rescale: list[list[float]], description: str) -> None:
    path = f"/assets/{asset}/layers/raster/metadata"
    metadata = {
        "description": description,
        "keywords": ["survey", "upper valley"],
        "attribution": "Survey team",
        "style": {"colormap_name": colours, "rescale": rescale},
    }
    platform.put(path, metadata)
    platform.post("/commands/metadata.publish", {"asset": asset})


def submit(platform: Platform, dataset: str, file: str, title: str, label: str) -> Any:
    body = {
        "platform_id": "local",
        "platform_refs": {"dataset": dataset},
        "version_label": label,
        "source": {"container": "bronze", "blob": f"sample/{file}"},
        "workflow_id": "process_large_raster",
        "parameters": {"title": title},
    }
    return platform.post("/submit", body)


def wait_until_completed(platform: Platform, submissions: list[Any]) -> None:
    for submission in submissions:
        wait_until(lambda job=submission["job_id"]: platform.get(f"/jobs/{job}")["job"]["status"] == "completed")


def wait_until(check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not check():
        if time.monotonic() > deadline:
            raise SystemExit("the condition was not met in time")
        time.sleep(0.2)


def jobs(platform: Platform) -> dict[str, str]:
    def start(workflow: str, inputs: dict[str, Any] | None = None, **more: Any) -> str:
        body = {"workflow_id": workflow, "inputs": inputs or {}, **more}
        return str(platform.post("/jobs", body)["job_id"])

    for name in ("Ada", "Grace", "Edsger"):
        start("hello_world", {"name": name})
    start("echo_test", {"message": "the levels of the gauges"})
    start("retry_test")
    demo = start("demo", {"count": 300})
    failed = start("raster_validate", {"blob_name": "sample/river-gauges.tif"})
    wait_until(lambda: platform.get(f"/jobs/{failed}")["job"]["status"] == "failed")
    wait_until(lambda: platform.get(f"/jobs/{demo}")["job"]["status"] == "completed")
    survey = start("nightly_survey", definition=SURVEY)
    platform.put("/queues/container-tasks", {"is_paused": True})
    waiting = start("refresh_overviews", definition=REFRESH)
    start("refresh_overviews", definition=REFRESH)
    wait_until(
        lambda: any(
            node["children"] and node["children"]["done"] > 5 for node in platform.get(f"/jobs/{survey}")["nodes"]
        )
    )
    return {"demo": demo, "failed": failed, "running": survey, "waiting_job": waiting}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="an empty folder for the data")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    with running(options.data) as platform:
        print(json.dumps({"url": platform.url, **fill(platform, print)}), flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
