"""How fast tiles become COGs, compared with gdalwarp on the same source in the same run.

Job: reproject an RGB scene to EPSG:4326 (bilinear), DEFLATE 6 with predictor 2, blocks of 512, average overviews.
  a      gdalwarp -of COG                                  one file, all cores
  b      gdalwarp to GTiff, then gdal_translate -of COG    the best command line; one file, all cores
  tiles  make_cog for every tile, largest first, in processes of one thread each
  job    the workflow process_large_raster on its own platform: validation, scheme, tiles, mosaic, statistics, STAC
  bound  only the warp kernel and the compression, on as many cores: the lower bound with this kernel and codec
The scene is measured once with every pixel valid, once with collars of nodata. Prints seconds, ratios and whether each
target holds. Absolute times depend on the machine and its load: only the ratios are judged. CPU seconds are more
reliable if other programs run.

With --statistics, measures something else: a COG of float32 and of uint8, reprojected and copied, with exact
statistics, with approximate ones from an overview, and with none, in turn. Prints how much longer a COG takes with
them.
"""

import argparse
import json
import math
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import numpy as np
import rasterio
from affine import Affine
from rasterio.enums import Resampling
from rasterio.warp import reproject
from rasterio.windows import Window as RasterioWindow
from rio_cogeo.cogeo import cog_validate

from dagmaster.local.embedded import Cluster
from dagmaster.raster.analysis.statistics import measure as approximate_statistics
from dagmaster.raster.cog.grid import OutputGrid, Tile, output_grid, tiles_of
from dagmaster.raster.cog.write import CogFacts, make_cog
from dagmaster.raster.source.facts import RasterType, read_facts

UTM = "EPSG:32633"
PLACE = Affine(0.5, 0, 400_000, 0, -0.5, 5_200_000)
COG = [
    "-co",
    "COMPRESS=DEFLATE",
    "-co",
    "LEVEL=6",
    "-co",
    "PREDICTOR=YES",
    "-co",
    "BLOCKSIZE=512",
    "-co",
    "NUM_THREADS=ALL_CPUS",
]
TARGETS = {"plain": {"a": 0.45, "b": 0.90, "bound": 1.7}, "collars": {"b": 0.95}}
MEMORY_TARGET_MB = 350

Cost = tuple[float, float]  # seconds on the clock, seconds of CPU


@dataclass
class Scene:
    """One source, and the seconds of every way to process it."""

    name: str
    source: Path
    grid: OutputGrid
    seconds: dict[str, list[float]] = field(default_factory=dict)
    cpu_seconds: dict[str, list[float]] = field(default_factory=dict)
    steps: dict[str, float] = field(default_factory=dict)
    tiles: int = 0
    revision: int = 0
    peak_mb: float = 0.0

    def wall(self, way: str) -> float:
        return statistics.median(self.seconds[way])

    def cpu(self, way: str) -> float:
        return statistics.median(self.cpu_seconds[way])


def main() -> int:
    options = read_options()
    if options.statistics:
        return compare_statistics(options)
    with tempfile.TemporaryDirectory(prefix="raster-bench-", dir=options.folder) as folder:
        scenes = [make_scene(Path(folder), name, options.size) for name in ("plain", "collars")]
        with platform(Path(folder) / "platform", options) as options.submit:
            for scene in scenes:
                for _ in range(options.repeat):
                    measure(scene, options)
    report(scenes, options)
    return 0


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a scene of 4096 × 4096, tiles of 2048, for a quick test")
    parser.add_argument("--statistics", action="store_true", help="measure only the cost of statistics")
    parser.add_argument("--size", type=int, default=12288, help="width and height of the scene in pixels")
    parser.add_argument("--tile-size", type=int, default=4096)
    parser.add_argument("--overlap", type=int, default=512)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=None, help="folder for the scenes (about 3 GB)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    if options.small:
        options.size, options.tile_size = 4096, 2048
    return options


def make_scene(folder: Path, name: str, size: int) -> Scene:
    """Waves with noise, which compress to about half, as aerial images do. Collars: data in a rotated rectangle."""
    path = folder / f"{name}.tif"
    rng = np.random.default_rng(1)
    x = np.arange(size)
    layout = {"driver": "GTiff", "tiled": True, "blockxsize": 512, "blockysize": 512, "crs": UTM, "transform": PLACE}
    nodata = 0 if name == "collars" else None
    with rasterio.open(path, "w", width=size, height=size, count=3, dtype="uint8", nodata=nodata, **layout) as scene:
        for top in range(0, size, 512):
            y = np.arange(top, min(top + 512, size))[:, np.newaxis]
            waves = [120 + 60 * np.sin(x / (90 + 40 * band)) * np.cos(y / (70 + 30 * band)) for band in range(3)]
            grain = rng.standard_normal((3, len(y), size), dtype=np.float32) * 5
            values = np.clip(np.stack(waves) + grain, 1, 255).astype("uint8")
            if nodata is not None:
                along, across = (x - size / 2) + 0.15 * (y - size / 2), (y - size / 2) - 0.15 * (x - size / 2)
                values[:, np.maximum(np.abs(along), np.abs(across)) > 0.44 * size] = nodata
            scene.write(values, window=RasterioWindow(0, top, size, len(y)))
    return Scene(name, path, output_grid(read_facts(path)))


def measure(scene: Scene, options: argparse.Namespace) -> None:
    """Measure the ways in turn, so that other load on the machine affects all of them."""
    warm(scene.source)
    for way, run in {
        "a": gdalwarp_to_cog,
        "b": gdalwarp_then_translate,
        "tiles": make_tiles,
        "job": whole_job,
        "bound": lower_bound,
    }.items():
        with tempfile.TemporaryDirectory(dir=scene.source.parent) as folder:
            seconds, cpu = run(scene, Path(folder), options)
        scene.seconds.setdefault(way, []).append(seconds)
        scene.cpu_seconds.setdefault(way, []).append(cpu)
        print(f"{scene.name:8} {way:6} {seconds:7.1f} s   {cpu:7.1f} s of CPU", flush=True)


def cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def warm(path: Path) -> None:
    """Read the file into the page cache, so that the first way does not include reading from disk."""
    with path.open("rb") as file:
        while file.read(2**24):
            pass


def gdalwarp_to_cog(scene: Scene, folder: Path, _options: argparse.Namespace) -> Cost:
    return timed(
        [*gdalwarp(scene), "-of", "COG", *COG, "-co", "OVERVIEW_RESAMPLING=AVERAGE", scene.source, folder / "a.tif"]
    )


def gdalwarp_then_translate(scene: Scene, folder: Path, _options: argparse.Namespace) -> Cost:
    # Without nodata the kernel is twice as fast, but a scene that has nodata needs it.
    nodata = ["-srcnodata", "None"] if scene.name == "plain" else []
    tiled = ["-co", "TILED=YES", "-co", "BLOCKXSIZE=512", "-co", "BLOCKYSIZE=512"]
    warped = timed([*gdalwarp(scene), *nodata, *tiled, scene.source, folder / "warped.tif"])
    translate = ["gdal_translate", "-q", "-of", "COG", *COG, "-co", "OVERVIEW_RESAMPLING=AVERAGE"]
    stored = timed([*translate, folder / "warped.tif", folder / "b.tif"])
    return warped[0] + stored[0], warped[1] + stored[1]


def gdalwarp(scene: Scene) -> list[str]:
    grid = scene.grid
    west, south, east, north = grid.bounds_of(grid.window)
    place = ["-te", *(repr(edge) for edge in (west, south, east, north)), "-ts", str(grid.width), str(grid.height)]
    return [
        "gdalwarp",
        "-q",
        "-t_srs",
        grid.crs,
        *place,
        "-r",
        "bilinear",
        "-multi",
        "-wo",
        "NUM_THREADS=ALL_CPUS",
        "-wm",
        "2048",
    ]


def timed(command: list[Any]) -> Cost:
    start, before = time.perf_counter(), cpu_of_children()
    subprocess.run([str(part) for part in command], check=True, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start, cpu_of_children() - before


def make_tiles(scene: Scene, folder: Path, options: argparse.Namespace) -> Cost:
    tiles = tiles_of(scene.grid, options.tile_size, options.overlap)
    largest_first = sorted(tiles, key=lambda tile: -tile.window.width * tile.window.height)
    with ProcessPoolExecutor(options.processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(ready, range(options.processes)))  # not measured: a worker starts Python once for many tasks
        start = time.perf_counter()
        results = list(pool.map(make_tile, [(scene, tile, folder) for tile in largest_first]))
        seconds = time.perf_counter() - start
    scene.tiles = len(results)
    for facts, _, peak_mb in results:
        assert cog_validate(facts.path, strict=True, quiet=True)[0]
        for step, spent in facts.seconds.items():
            scene.steps[step] = scene.steps.get(step, 0) + spent
        scene.peak_mb = max(scene.peak_mb, peak_mb)
    return seconds, sum(cpu for _, cpu, _ in results)


@contextmanager
def platform(folder: Path, options: argparse.Namespace) -> Iterator[Callable[..., float]]:
    """A platform as `dagmaster up` starts it, with as many processes as the other ways use; yields a function that runs
    a job on it."""
    own = {"DAGMASTER_DATA": str(folder), "API_PORT": "0", "SERVING_PORT": "0", "HEALTH_PORT": "0"}
    own |= {"WORKER_PROCESSES": str(options.processes), "DATABASE_URL": "", "POSTGRES_HOST": ""}
    command = [sys.executable, "-m", "dagmaster", "up", "--json"]
    with subprocess.Popen(command, env={**os.environ, **own}, stdout=subprocess.PIPE, text=True) as up:
        try:
            assert up.stdout is not None
            api = json.loads(up.stdout.readline())["api_url"]
            run = partial(run_job, api, folder / "storage" / "bronze" / "bronze")
            small = make_scene(folder, "warm", 1024)
            run(small, 512)  # Python and GDAL are loaded once for many jobs
            yield run
        finally:
            up.terminate()
            up.wait(60)
    Cluster.at(folder).remove()


def run_job(api: str, bronze: Path, scene: Scene, tile_size: int) -> float:
    """Seconds from the creation of a job to its end, by the clock of the platform."""
    bronze.mkdir(parents=True, exist_ok=True)
    (bronze / f"{scene.name}.tif").unlink(missing_ok=True)
    (bronze / f"{scene.name}.tif").hardlink_to(scene.source)
    scene.revision += 1
    inputs = {"blob_name": f"{scene.name}.tif", "tile_size": tile_size, "revision": scene.revision}
    with httpx2.Client(base_url=f"{api}/api/v1", timeout=60) as client:
        response = client.post("/jobs", json={"workflow_id": "process_large_raster", "input_params": inputs})
        job_id = response.raise_for_status().json()["job_id"]
        while (job := client.get(f"/jobs/{job_id}").raise_for_status().json()["job"])["completed_at"] is None:
            time.sleep(0.2)
    if job["status"] != "completed":
        raise SystemExit(f"the job ended as {job['status']}: {job['error_message']}")
    started, ended = (datetime.fromisoformat(job[name]) for name in ("created_at", "completed_at"))
    return (ended - started).total_seconds()


def whole_job(scene: Scene, _folder: Path, options: argparse.Namespace) -> Cost:
    """Without CPU time, which is known only when the processes of the platform end."""
    return options.submit(scene, options.tile_size), math.nan


def ready(number: int) -> int:
    time.sleep(0.5)
    return number


def make_tile(arguments: tuple[Scene, Tile, Path]) -> tuple[CogFacts, float, float]:
    """The result, its CPU seconds, and the peak memory of the process."""
    scene, tile, folder = arguments
    start = time.process_time()
    facts = make_cog(scene.source, folder / f"{tile.tile_id}.tif", scene.grid, tile.window, raster_type=RasterType.RGB)
    return facts, time.process_time() - start, peak_memory_mb()


def peak_memory_mb() -> float:
    # Not getrusage: its peak is inherited from the process that started this one.
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def lower_bound(scene: Scene, folder: Path, options: argparse.Namespace) -> Cost:
    """Run kernel and codec on a part of the scene in all processes at once, and scale the time to the whole scene,
    divided among the processes."""
    with ProcessPoolExecutor(options.processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(ready, range(options.processes)))
        spent = list(pool.map(kernel_and_codec, [(scene, folder / f"{n}.tif") for n in range(options.processes)]))
    cpu = statistics.mean(spent) * scene.grid.width * scene.grid.height
    return cpu / options.processes, cpu


def kernel_and_codec(arguments: tuple[Scene, Path]) -> float:
    """Seconds of CPU per pixel of output: warped in blocks of 512, and compressed with its overviews (a third more
    pixels)."""
    scene, target = arguments
    side = 1024
    with rasterio.open(scene.source) as source:
        middle = source.width // 2 - side
        values = source.read(window=RasterioWindow(middle, middle, 2 * side, 2 * side))
        where = source.transform @ Affine.translation(middle, middle)
        (lon,), (lat,) = rasterio.warp.transform(
            source.crs, scene.grid.crs, *([value] for value in where @ (side / 2, side / 2))
        )
        crs = source.crs
    pixels = np.zeros((3, side, side), "uint8")
    corner = Affine(scene.grid.resolution[0], 0, lon, 0, -scene.grid.resolution[1], lat)
    start = time.process_time()
    for col in range(0, side, 512):
        run = np.zeros((3, side, 512), "uint8")
        place = corner @ Affine.translation(col, 0)
        reproject(
            values,
            run,
            src_transform=where,
            src_crs=crs,
            dst_transform=place,
            dst_crs=scene.grid.crs,
            resampling=Resampling.bilinear,
            num_threads=1,
            XSCALE=1,
            YSCALE=1,
        )
        pixels[:, :, col : col + 512] = run
    kernel = time.process_time() - start
    assert pixels.any()
    start = time.process_time()
    layout = {"driver": "GTiff", "tiled": True, "blockxsize": 512, "blockysize": 512, "interleave": "pixel"}
    codec_options = {"compress": "deflate", "zlevel": 6, "predictor": 2, "crs": crs, "transform": where}
    with rasterio.open(target, "w", width=side, height=side, count=3, dtype="uint8", **layout, **codec_options) as out:
        out.write(pixels)
    codec = time.process_time() - start
    return (kernel + codec * 4 / 3) / side**2


def compare_statistics(options: argparse.Namespace) -> int:
    """Each way in turn, in this process. Elapsed and CPU seconds: statistics are computed by a thread of their own, and
    other programs may be running.

    The first round loads code and warms the page cache, and does not count.
    """
    for dtype in ("float32", "uint8"):
        for crs in (UTM, "EPSG:4326"):
            spent: dict[str, list[Spent]] = {way: [] for way in ("none", "exact", "approximate")}
            with tempfile.TemporaryDirectory(prefix="statistics-bench-", dir=options.folder) as folder:
                source = make_waves(Path(folder) / "source.tif", options.size, dtype)
                grid = output_grid(read_facts(source), crs)
                for number in range(options.repeat + 1):
                    for way, runs in spent.items():
                        run = make_with_statistics(source, Path(folder) / "cog.tif", grid, way)
                        if number:
                            runs.append(run)
            report_statistics(f"{dtype}, {'copied' if crs == UTM else 'to EPSG:4326'}", spent, options.size)
    return 0


def make_waves(path: Path, size: int, dtype: str) -> Path:
    rng = np.random.default_rng(1)
    y, x = np.mgrid[:size, :size].astype("float32")
    values = 120 + 60 * np.sin(x / 90) * np.cos(y / 70) + rng.standard_normal((size, size), dtype=np.float32) * 5
    layout = {"driver": "GTiff", "tiled": True, "blockxsize": 512, "blockysize": 512, "crs": UTM, "transform": PLACE}
    with rasterio.open(path, "w", width=size, height=size, count=1, dtype=dtype, **layout) as target:
        target.write(values.astype(dtype), 1)
    return path


class Spent(NamedTuple):
    elapsed: float
    cpu: float


def make_with_statistics(source: Path, target: Path, grid: OutputGrid, way: str) -> Spent:
    started, cpu = time.perf_counter(), time.process_time()
    make_cog(source, target, grid, raster_type=RasterType.DEM, exact_statistics=way == "exact")
    if way == "approximate":
        approximate_statistics(target, overview_level=2)
    return Spent(time.perf_counter() - started, time.process_time() - cpu)


def report_statistics(name: str, spent: dict[str, list[Spent]], size: int) -> None:
    """Ratios are medians over the rounds, in which the ways follow each other."""
    print(f"\n{name}, {size}²")
    for way, runs in spent.items():
        elapsed, cpu = (statistics.median(values) for values in zip(*runs, strict=True))
        print(f"  {way:12} {elapsed:6.3f} s, {cpu:6.3f} s of CPU")
    for way in ("none", "approximate"):
        pairs = list(zip(spent["exact"], spent[way], strict=True))
        elapsed = statistics.median(one.elapsed / other.elapsed for one, other in pairs)
        cpu = statistics.median(one.cpu / other.cpu for one, other in pairs)
        print(f"  exact / {way:12} {elapsed:.3f}, of CPU {cpu:.3f}", flush=True)


def report(scenes: list[Scene], options: argparse.Namespace) -> None:
    for scene in scenes:
        pixels = f"{options.size}² RGB to {scene.grid.width} × {scene.grid.height}"
        print(f"\n{scene.name}: {pixels}, {scene.tiles} tiles of {options.tile_size}, {options.processes} processes")
        for way in ("a", "b", "tiles", "job", "bound"):
            runs = ", ".join(f"{seconds:.1f}" for seconds in scene.seconds[way])
            print(f"  {way:6} {scene.wall(way):7.1f} s   ({runs})   CPU {scene.cpu(way):.1f} s")
        spent = sum(scene.steps.values())
        print("  steps  " + ", ".join(f"{step} {100 * share / spent:.0f} %" for step, share in scene.steps.items()))
        for way in ("a", "b", "bound"):
            ratio, tiles = scene.wall("job") / scene.wall(way), scene.wall("tiles") / scene.wall(way)
            target = TARGETS[scene.name].get(way)
            verdict = f"target ≤ {target:.2f} {'met' if ratio <= target else 'MISSED'}" if target else ""
            print(
                f"  job / {way:5} {ratio:6.2f}   tiles {tiles:.2f}"
                f"   by CPU {scene.cpu('tiles') / scene.cpu(way):.2f}   {verdict}"
            )
        print(f"  peak memory of a process {scene.peak_mb:.0f} MB   target ≤ {MEMORY_TARGET_MB} MB")
    load = os.getloadavg()[0]
    print(
        f"\nload average {load:.1f} on {os.cpu_count()} cores"
        + (": other programs were running, so the ratios are not reliable" if load > 4 else "")
    )
    if options.json:
        options.json.write_text(
            json.dumps([{**asdict(scene), "source": scene.name} for scene in scenes], default=str, indent=1)
        )


if __name__ == "__main__":
    sys.exit(main())
