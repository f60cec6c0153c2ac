"""How long a served tile takes, compared with rio-tiler alone on the same COG in the same run, and how many tiles are
served per second.

Makes one RGB raster of N × N pixels in EPSG:4326 as a single COG and as a mosaic of 16, catalogues both in a private
cluster, and starts `dagmaster serving`. Then it measures the same random tiles at random zooms, one
after the other and warm, as JPEG of quality 85:
  bare     open the COG, read the tile, render it: rio-tiler's own functions in this process, without any HTTP
  open     the same with a COG that stays open from tile to tile; only for information
  served   the same tile through HTTP, on a connection that stays open; its bytes must equal those of `bare`
  mosaic   the same tile of the mosaic through HTTP
Each tile is requested in all ways before the next one, so that other load on the machine affects all alike. Prints p50
and p95, the median, lowest and highest of their ratios over the rounds, and the CPU time of a tile, which depends less
on other load. Then several clients request tiles at once: prints requests per second, errors, and the memory of the
server after each third of the time. Absolute times depend on the machine: only the ratios are judged.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import psycopg
import rasterio
from morecantile import Tile, tms
from rasterio.io import MemoryFile
from rasterio.shutil import copy
from rasterio.transform import from_bounds
from rio_tiler.io import Reader
from rio_tiler.profiles import img_profiles

from dagmaster.local.embedded import Cluster
from dagmaster.serving.readers import GDAL_ENVIRONMENT
from dagmaster.settings import load
from dagmaster.storage.location import Edition, Location, Zone
from dagmaster.storage.zones import Storage, open_storage
from published import add_published, deploy_all

GRID = tms.get("WebMercatorQuad")
BOX = (10.0, 50.0, 11.0, 51.0)
PARTS = 4  # of the mosaic, across and down
TARGETS = {"served": 1.3, "mosaic": 3.0}


def pixels(size: int, seed: int = 1) -> np.ndarray:
    """Smooth values with some noise, as in imagery."""
    y, x = np.mgrid[0:size, 0:size].astype(np.float32) / size
    noise = np.random.default_rng(seed).integers(0, 12, (3, size, size), dtype=np.uint8)
    waves = [np.sin(40 * x + 9 * y), np.cos(31 * y - 5 * x), np.sin(23 * x * y)]
    return np.stack([(110 + 90 * wave).astype(np.uint8) for wave in waves]) + noise


def write_cog(storage: Storage, blob: str, bands: np.ndarray, box: tuple[float, ...], folder: Path) -> Location:
    location, file = storage.location(blob, zone=Zone.SILVER), folder / "made.tif"
    _, rows, columns = bands.shape
    with MemoryFile() as memory:
        with memory.open(
            driver="GTiff",
            count=3,
            height=rows,
            width=columns,
            dtype="uint8",
            crs="EPSG:4326",
            photometric="rgb",
            transform=from_bounds(*box, columns, rows),
        ) as dataset:
            dataset.write(bands)
        with memory.open() as dataset:
            copy(dataset, file, driver="COG", compress="DEFLATE", predictor="YES", blocksize=512)
    storage.put_file(location, file, move=True)
    return location


def href(location: Location) -> str:
    return f"http://127.0.0.1/files/{location.zone}/{location.path}"


def collection(dataset: str, **more: Any) -> dict[str, Any]:
    extent = {"spatial": {"bbox": [list(BOX)]}, "temporal": {"interval": [["2024-01-01T00:00:00Z", None]]}}
    return {
        "type": "Collection",
        "stac_version": "1.1.0",
        "id": dataset,
        "description": dataset,
        "license": "other",
        "links": [],
        "extent": extent,
        **more,
    }


def item(dataset: str, location: Location) -> dict[str, Any]:
    west, south, east, north = BOX
    ring = [[west, south], [east, south], [east, north], [west, north], [west, south]]
    return {
        "type": "Feature",
        "stac_version": "1.1.0",
        "id": f"{dataset}-v0",
        "collection": dataset,
        "links": [],
        "bbox": list(BOX),
        "geometry": {"type": "Polygon", "coordinates": [ring]},
        "properties": {"datetime": "2024-01-01T00:00:00Z"},
        "assets": {"data": {"href": href(location)}},
    }


def make(storage: Storage, dsn: str, size: int, folder: Path) -> Location:
    bands = pixels(size)
    whole = write_cog(storage, Edition("whole").cog("whole.tif"), bands, BOX, folder)
    mosaic = make_mosaic(storage, bands, size, folder)
    deploy_all(dsn)
    with psycopg.connect(dsn) as connection:
        add_published(connection, "whole", [collection("whole"), item("whole", whole)])
        add_published(connection, "parts", [collection("parts", assets={"mosaic": {"href": href(mosaic)}})])
    return whole


def make_mosaic(storage: Storage, bands: np.ndarray, size: int, folder: Path) -> Location:
    edition, step, tiles = Edition("parts"), size // PARTS, {}
    for row in range(PARTS):
        for column in range(PARTS):
            west, north = BOX[0] + column / PARTS, BOX[3] - row / PARTS
            box = (west, north - 1 / PARTS, west + 1 / PARTS, north)
            part = bands[:, row * step : (row + 1) * step, column * step : (column + 1) * step]
            write_cog(storage, edition.cog(f"r{row}c{column}.tif"), part, box, folder)
            for tile in GRID.tiles(box[0] + 1e-9, box[1] + 1e-9, box[2] - 1e-9, box[3] - 1e-9, 10):
                tiles.setdefault(GRID.quadkey(tile), []).append(f"r{row}c{column}.tif")
    location = storage.location(edition.mosaic(), zone=Zone.SILVER)
    document = {"mosaicjson": "0.0.3", "minzoom": 6, "maxzoom": 18, "quadkey_zoom": 10, "bounds": BOX, "tiles": tiles}
    storage.put(location, json.dumps(document).encode())
    return location


def random_tiles(count: int, size: int, seed: int = 3) -> list[Tile]:
    """Tiles of the whole raster, from the first zoom at which it fills a tile to its full resolution."""
    seeded = random.Random(seed)
    deepest = GRID.zoom_for_res((BOX[2] - BOX[0]) / size * 111_320)
    return [
        GRID.tile(seeded.uniform(BOX[0] + 0.05, BOX[2] - 0.05), seeded.uniform(BOX[1] + 0.05, BOX[3] - 0.05), zoom)
        for zoom in (seeded.randint(9, deepest) for _ in range(count))
    ]


@dataclass(frozen=True)
class Server:
    url: str
    pid: int

    def memory_mb(self) -> float:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024


@contextmanager
def serving(dsn: str, folder: Path, **settings: str) -> Iterator[Server]:
    environment = {
        **os.environ,
        **settings,
        "DATABASE_URL": dsn,
        "STORAGE_FOLDER": str(folder),
        "LOG_FORMAT": "json",
        "LOG_LEVEL": "info",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "dagmaster", "serving", "--port", "0"],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        started = next(json.loads(line) for line in process.stderr if "maps are served" in line)
        yield Server(started["url"], process.pid)
    finally:
        process.terminate()
        process.wait(timeout=20)


@dataclass
class Way:
    """A way to get a tile, the process that does the work, and the milliseconds of each tile in each round."""

    name: str
    get: Callable[[Tile], bytes]
    pid: int
    rounds: list[list[float]] = field(default_factory=list)
    processor_ms: float = 0

    def measure(self, tile: Tile) -> None:
        before, started = processor_ms(self.pid), time.perf_counter()
        self.get(tile)
        self.rounds[-1].append((time.perf_counter() - started) * 1000)
        self.processor_ms += processor_ms(self.pid) - before

    @property
    def p50(self) -> list[float]:
        return [statistics.median(times) for times in self.rounds]

    @property
    def p95(self) -> list[float]:
        return [statistics.quantiles(times, n=20)[-1] for times in self.rounds]

    @property
    def processor(self) -> float:
        return self.processor_ms / sum(map(len, self.rounds))


def processor_ms(pid: int) -> float:
    """CPU time of all threads of a process, also of ended ones. Its unit, ticks, is too coarse for a single tile."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) * 1000 / os.sysconf("SC_CLK_TCK")


def rendered(cog: Reader, tile: Tile, tilesize: int) -> bytes:
    image = cog.tile(*tile, tilesize=tilesize)
    return bytes(image.render(img_format="JPEG", add_mask=False, **img_profiles["jpeg"]))


def bare(path: str, tilesize: int) -> Callable[[Tile], bytes]:
    def read(tile: Tile) -> bytes:
        with rasterio.Env(**GDAL_ENVIRONMENT), Reader(path) as cog:
            return rendered(cog, tile, tilesize)

    return read


def kept_open(path: str, tilesize: int) -> Callable[[Tile], bytes]:
    with rasterio.Env(**GDAL_ENVIRONMENT):
        cog = Reader(path)

    def read(tile: Tile) -> bytes:
        with rasterio.Env(**GDAL_ENVIRONMENT):
            return rendered(cog, tile, tilesize)

    return read


def over_http(url: str, dataset: str, tilesize: int) -> Callable[[Tile], bytes]:
    """With a minimal client, so that the time of the client is small."""
    connection = HTTPConnection(urlsplit(url).netloc, timeout=60)

    def read(tile: Tile) -> bytes:
        place = f"/tiles/{dataset}/tiles/WebMercatorQuad/{tile.z}/{tile.x}/{tile.y}.jpg"
        connection.request("GET", f"{place}?tilesize={tilesize}&return_mask=false")
        response = connection.getresponse()
        body = response.read()
        if response.status != HTTPStatus.OK:
            raise RuntimeError(f"{place}: {response.status}")
        return body

    return read


def spread(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"


def print_row(way: Way, reference: Way | None) -> None:
    p50, p95 = statistics.median(way.p50), statistics.median(way.p95)
    line = f"  {way.name:<7} p50 {p50:6.1f} ms   p95 {p95:6.1f} ms   processor {way.processor:6.1f} ms"
    if reference is not None:
        half = [one / other for one, other in zip(way.p50, reference.p50, strict=True)]
        most = [one / other for one, other in zip(way.p95, reference.p95, strict=True)]
        line += (
            f"   / {reference.name}: p50 {spread(half)}, p95 {spread(most)},"
            f" processor {way.processor / reference.processor:.2f}"
        )
        if way.name in TARGETS:
            judged = statistics.median(most)
            judged = max(judged, statistics.median(half)) if way.name == "served" else judged
            line += f"   target ≤ {TARGETS[way.name]}: {'met' if judged <= TARGETS[way.name] else 'missed'}"
    print(line, flush=True)


def compare(server: Server, path: str, tiles: list[Tile], tilesize: int, rounds: int) -> None:
    alone = Way("bare", bare(path, tilesize), os.getpid())
    kept = Way("open", kept_open(path, tilesize), os.getpid())
    served = Way("served", over_http(server.url, "whole", tilesize), server.pid)
    mosaic = Way("mosaic", over_http(server.url, "parts", tilesize), server.pid)
    ways = (alone, kept, served, mosaic)
    for tile in tiles:  # warm-up of caches
        images = [way.get(tile) for way in ways]
        if len({*images[:3]}) != 1:
            raise RuntimeError(f"{tile}: the served tile differs from that of rio-tiler")
    for _ in range(rounds):
        for way in ways:
            way.rounds.append([])
        for tile in tiles:
            for way in ways:
                way.measure(tile)
    print_row(alone, None)
    print_row(kept, alone)
    print_row(served, alone)
    print_row(mosaic, served)


def measure_load(server: Server, dataset: str, tiles: list[Tile], clients: int, seconds: float) -> None:
    """All clients send requests at once, each as soon as it has the response to the previous one."""
    times: list[float] = []
    errors: list[str] = []
    busy_before, until = processor_ms(server.pid), time.perf_counter() + seconds

    def request_tiles(seed: int) -> None:
        seeded, get = random.Random(seed), over_http(server.url, dataset, 256)
        while (started := time.perf_counter()) < until:
            try:
                get(seeded.choice(tiles))
            except (OSError, HTTPException, RuntimeError) as error:
                errors.append(str(error))
                get = over_http(server.url, dataset, 256)
            else:
                times.append((time.perf_counter() - started) * 1000)

    threads = [Thread(target=request_tiles, args=(seed,)) for seed in range(clients)]
    for thread in threads:
        thread.start()
    memory = []
    for third in (2, 1, 0):
        time.sleep(max(0.0, until - seconds * third / 3 - time.perf_counter()))
        memory.append(server.memory_mb())
    for thread in threads:
        thread.join()
    p50, p95 = statistics.median(times), statistics.quantiles(times, n=20)[-1]
    busy = (processor_ms(server.pid) - busy_before) / len(times)
    print(
        f"  {dataset:<7} {len(times) / seconds:6.1f} requests/s   p50 {p50:6.1f} ms   p95 {p95:6.1f} ms"
        f"   processor {busy:6.1f} ms   errors {len(errors)}   memory {' '.join(f'{m:.0f}' for m in memory)} MB",
        flush=True,
    )
    if errors:
        raise RuntimeError(f"{len(errors)} requests failed, such as {errors[0]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=8192, help="width and height of the raster in pixels")
    parser.add_argument("--tiles", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=30, help="how long the clients send requests")
    arguments = parser.parse_args()
    cluster = Cluster.at(None, name=f"bench-{os.getpid()}", fast=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            cluster.start()
            with psycopg.connect(cluster.dsn_of("postgres"), autocommit=True) as connection:
                connection.execute("CREATE DATABASE bench")
            dsn, storage = cluster.dsn_of("bench"), open_storage(load(storage_folder=folder))
            whole = make(storage, dsn, arguments.size, folder)
            with serving(dsn, folder) as server:
                measure(server, storage.gdal_path(whole), arguments)
        finally:
            cluster.remove()


def measure(server: Server, path: str, arguments: argparse.Namespace) -> None:
    what = f"{arguments.size} × {arguments.size} RGB"
    tiles = random_tiles(arguments.tiles, arguments.size)
    for tilesize in (256, 512):
        print(f"{what}, {arguments.tiles} tiles of {tilesize} pixels, {arguments.rounds} rounds")
        compare(server, path, tiles, tilesize, arguments.rounds)
    print(f"{what}, tiles of 256 pixels, {arguments.clients} clients at once for {arguments.seconds:g} s")
    many = random_tiles(1000, arguments.size, seed=5)
    for dataset in ("whole", "parts"):
        measure_load(server, dataset, many, arguments.clients, arguments.seconds)


if __name__ == "__main__":
    main()
