"""How long a served tile takes, beside rio-tiler alone on the same COG in the same run.

Makes one RGB raster of N × N pixels in EPSG:4326 as a single COG and as a mosaic of 16, catalogues both in a private cluster, and
starts `dagmaster serving`. Then, one after the other and warm, the same random tiles at random zooms:
  bare     open the COG, read the tile, render it: rio-tiler's own functions in a process of its own
  served   the same tile through HTTP
  mosaic   the same tile of the mosaic through HTTP
Each tile is asked for in all three ways before the next one, so that whatever else the machine does falls on all alike. Prints p50
and p95 with their ratios, and the processor time of a tile, which depends less on others. Absolute times depend on the machine:
only the ratios are judged.
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
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import psycopg
import rasterio
from morecantile import Tile, tms
from pypgstac.db import PgstacDB
from pypgstac.load import Loader, Methods
from rasterio.io import MemoryFile
from rasterio.shutil import copy
from rasterio.transform import from_bounds
from rio_tiler.io import Reader

from dagmaster.database.catalog import deploy_catalog
from dagmaster.database.embedded import Cluster
from dagmaster.serving.readers import GDAL_ENVIRONMENT
from dagmaster.settings import load
from dagmaster.storage.location import Edition, Location, Zone
from dagmaster.storage.zones import Storage, open_storage

GRID = tms.get("WebMercatorQuad")
BOX = (10.0, 50.0, 11.0, 51.0)
PARTS = 4  # of the mosaic, across and down
TARGETS = {"served": 1.3, "mosaic": 3.0}


def pixels(size: int, seed: int = 1) -> np.ndarray:
    """Smooth with some noise, as imagery is."""
    y, x = np.mgrid[0:size, 0:size].astype(np.float32) / size
    noise = np.random.default_rng(seed).integers(0, 12, (3, size, size), dtype=np.uint8)
    waves = [np.sin(40 * x + 9 * y), np.cos(31 * y - 5 * x), np.sin(23 * x * y)]
    return np.stack([(110 + 90 * wave).astype(np.uint8) for wave in waves]) + noise


def write_cog(storage: Storage, blob: str, bands: np.ndarray, box: tuple[float, ...], folder: Path) -> Location:
    location, file = storage.location(blob, zone=Zone.SILVER), folder / "made.tif"
    _, rows, columns = bands.shape
    with MemoryFile() as memory:
        with memory.open(
            driver="GTiff", count=3, height=rows, width=columns, dtype="uint8", crs="EPSG:4326", photometric="rgb",
            transform=from_bounds(*box, columns, rows),
        ) as made:  # fmt: skip
            made.write(bands)
        with memory.open() as made:
            copy(made, file, driver="COG", compress="DEFLATE", predictor="YES", blocksize=512)
    storage.put_file(location, file, move=True)
    return location


def href(location: Location) -> str:
    return f"http://127.0.0.1/files/{location.zone}/{location.path}"


def collection(dataset: str, **more: Any) -> dict[str, Any]:
    extent = {"spatial": {"bbox": [list(BOX)]}, "temporal": {"interval": [["2024-01-01T00:00:00Z", None]]}}
    return {"type": "Collection", "stac_version": "1.1.0", "id": dataset, "description": dataset, "license": "other",
            "links": [], "extent": extent, **more}  # fmt: skip


def item(dataset: str, location: Location) -> dict[str, Any]:
    west, south, east, north = BOX
    ring = [[west, south], [east, south], [east, north], [west, north], [west, south]]
    return {"type": "Feature", "stac_version": "1.1.0", "id": f"{dataset}-v0", "collection": dataset, "links": [],
            "bbox": list(BOX), "geometry": {"type": "Polygon", "coordinates": [ring]},
            "properties": {"datetime": "2024-01-01T00:00:00Z"}, "assets": {"data": {"href": href(location)}}}  # fmt: skip


def make(storage: Storage, dsn: str, size: int, folder: Path) -> Location:
    bands = pixels(size)
    whole = write_cog(storage, Edition("whole").cog("whole.tif"), bands, BOX, folder)
    mosaic = make_mosaic(storage, bands, size, folder)
    deploy_catalog(dsn)
    with PgstacDB(dsn=dsn) as database:
        loader = Loader(db=database)
        assets = {"mosaic": {"href": href(mosaic)}}
        loader.load_collections(
            iter([collection("whole"), collection("parts", assets=assets)]), insert_mode=Methods.upsert
        )
        loader.load_items(iter([item("whole", whole)]), insert_mode=Methods.upsert)
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
    """Over the whole of it, from the first zoom at which it fills a tile to its own resolution."""
    seeded = random.Random(seed)
    deepest = GRID.zoom_for_res((BOX[2] - BOX[0]) / size * 111_320)
    return [
        GRID.tile(seeded.uniform(BOX[0] + 0.05, BOX[2] - 0.05), seeded.uniform(BOX[1] + 0.05, BOX[3] - 0.05), zoom)
        for zoom in (seeded.randint(9, deepest) for _ in range(count))
    ]


@contextmanager
def serving(dsn: str, folder: Path) -> Iterator[tuple[str, int]]:
    """Its address and its process."""
    environment = {
        **os.environ,
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
        told = next(json.loads(line) for line in process.stderr if "maps are served" in line)
        yield told["url"], process.pid
    finally:
        process.terminate()
        process.wait(timeout=20)


@dataclass
class Way:
    """A way to get a tile, the process that works for it, and milliseconds of each tile: in all, and on the processor."""

    name: str
    get: Callable[[Tile], object]
    pid: int
    wall: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    def measure(self, tile: Tile) -> None:
        before, begun = processor_ms(self.pid), time.perf_counter()
        self.get(tile)
        self.wall.append((time.perf_counter() - begun) * 1000)
        self.processor.append(processor_ms(self.pid) - before)

    @property
    def p50(self) -> float:
        return statistics.median(self.wall)

    @property
    def p95(self) -> float:
        return statistics.quantiles(self.wall, n=20)[-1]


def processor_ms(pid: int) -> float:
    """Of all its threads, also those that have ended. In ticks: too coarse for one tile, good for many."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) * 1000 / os.sysconf("SC_CLK_TCK")


def bare(path: str, tilesize: int) -> Callable[[Tile], object]:
    def read(tile: Tile) -> bytes:
        with rasterio.Env(**GDAL_ENVIRONMENT), Reader(path) as cog:
            image = cog.tile(*tile, tilesize=tilesize)
        return bytes(image.render(img_format="JPEG", add_mask=False))

    return read


def over_http(client: httpx2.Client, dataset: str, tilesize: int) -> Callable[[Tile], object]:
    def read(tile: Tile) -> bytes:
        place = f"/tiles/{dataset}/tiles/WebMercatorQuad/{tile.z}/{tile.x}/{tile.y}.jpg"
        answer = client.get(place, params={"tilesize": tilesize, "return_mask": "false"})
        answer.raise_for_status()
        return answer.content

    return read


def tell(way: Way, beside: Way | None) -> None:
    line = f"  {way.name:<7} p50 {way.p50:6.1f} ms   p95 {way.p95:6.1f} ms   processor {statistics.mean(way.processor):6.1f} ms"
    if beside is not None:
        half, most = way.p50 / beside.p50, way.p95 / beside.p95
        busy = sum(way.processor) / sum(beside.processor)
        judged = max(half, most) if way.name == "served" else most
        line += f"   / {beside.name}: {half:.2f}, {most:.2f}, {busy:.2f}"
        line += f" (target ≤ {TARGETS[way.name]}: {'met' if judged <= TARGETS[way.name] else 'missed'})"
    print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=8192, help="pixels of the raster's side")
    parser.add_argument("--tiles", type=int, default=200)
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
            tiles = random_tiles(arguments.tiles, arguments.size)
            with serving(dsn, folder) as (url, pid), httpx2.Client(base_url=url) as client:
                for tilesize in (256, 512):
                    print(f"{arguments.size} × {arguments.size} RGB, {arguments.tiles} tiles of {tilesize} pixels")
                    alone = Way("bare", bare(storage.gdal_path(whole), tilesize), os.getpid())
                    served = Way("served", over_http(client, "whole", tilesize), pid)
                    mosaic = Way("mosaic", over_http(client, "parts", tilesize), pid)
                    for way in (alone, served, mosaic):
                        for tile in tiles:
                            way.get(tile)  # warms caches up
                    for tile in tiles:
                        for way in (alone, served, mosaic):
                            way.measure(tile)
                    tell(alone, None)
                    tell(served, alone)
                    tell(mosaic, served)
        finally:
            cluster.remove()


if __name__ == "__main__":
    main()
