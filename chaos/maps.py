"""A map server under a soak: a few published datasets, and clients that request everything it serves.

The requests are those of maps, catalogue browsers and tools that read COGs by ranges; some are for
things that do not exist.
"""

import asyncio
import random
import socket
from collections import Counter
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import numpy as np
from morecantile import tms
from tests.serving.assets import Assets
from tests.serving.data import collection, item, stored

from chaos.testbed import Testbed
from dagmaster.settings import load
from dagmaster.storage.location import Edition
from dagmaster.storage.zones import open_storage

BOX = (10.0, 50.0, 11.0, 51.0)
DATASETS = tuple(f"scene-{number}" for number in range(24))
_GRID = tms.get("WebMercatorQuad")
_PIXELS = 600
_READY_SECONDS = 60


@dataclass
class MapClients:
    """Sends random requests at a given rate. Unexpected responses are counted by their status and path."""

    port: int
    requests_per_second: float
    seed: int
    unexpected: Counter[str] = field(default_factory=Counter)
    expected: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(f"maps {self.seed}")
        self._connection = HTTPConnection("127.0.0.1", self.port, timeout=30)

    async def stream(self) -> None:
        while True:
            path, headers, expected = self._draw()
            status = await asyncio.to_thread(self._get, path, headers)
            if status == expected:
                self.expected += 1
            else:
                self.unexpected[f"{status} {path}"] += 1
            await asyncio.sleep(self._random.expovariate(self.requests_per_second))

    def _draw(self) -> tuple[str, dict[str, str], str]:
        dataset = self._random.choice(DATASETS)
        west, south = self._random.uniform(BOX[0], BOX[2]), self._random.uniform(BOX[1], BOX[3])
        tile = _GRID.tile(west, south, self._random.randint(8, 12))
        choices = (
            (12, f"/tiles/{dataset}/tiles/WebMercatorQuad/{tile.z}/{tile.x}/{tile.y}.png", "200"),
            (4, f"/tiles/{dataset}/WebMercatorQuad/tilejson.json", "200"),
            (3, f"/tiles/{dataset}/point/{west:.4f},{south:.4f}", "200"),
            (2, f"/tiles/{dataset}/statistics?max_size=256", "200"),
            (2, f"/tiles/{dataset}/preview.png?max_size=512", "200"),
            (2, f"/stac/search?bbox={west - 0.1:.4f},{south - 0.1:.4f},{west:.4f},{south:.4f}&limit=20", "200"),
            (2, f"/stac/collections/{dataset}/items", "200"),
            (1, "/stac/collections", "200"),
            (1, "/livez", "200"),
            (4, f"/files/silver/silver/{Edition(dataset).cog(f'{dataset}.tif')}", "206"),
            (1, f"/tiles/no-{dataset}/WebMercatorQuad/tilejson.json", "404"),
        )
        (chosen,) = self._random.choices(choices, [weight for weight, *_ in choices])
        _, path, expected = chosen
        return path, {"Range": "bytes=0-16383"} if expected == "206" else {}, expected

    def _get(self, path: str, headers: dict[str, str]) -> str:
        try:
            self._connection.request("GET", path, headers=headers)
            response = self._connection.getresponse()
            response.read()
        except (OSError, HTTPException) as error:
            self._connection.close()
            return type(error).__name__
        return str(response.status)


async def start_map_server(testbed: Testbed) -> int:
    """Publish the datasets and start a map server for them. Returns its port when it is ready. Needs pgSTAC."""
    await asyncio.to_thread(_publish, testbed.fleet.dsn, testbed.folder)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    testbed.fleet.process("serving", "-m", "dagmaster", "serving", "--port", str(port)).start()
    async with asyncio.timeout(_READY_SECONDS):
        while not await asyncio.to_thread(_is_ready, port):
            await asyncio.sleep(0.2)
    return port


def _publish(dsn: str, folder: Path) -> None:
    storage = open_storage(load(storage_folder=folder / "storage"))
    pixels = np.random.default_rng(1).integers(1, 255, (3, _PIXELS, _PIXELS), dtype=np.uint8)
    for dataset in DATASETS:
        edition = Edition(dataset)
        cog = stored(storage, folder, edition.cog(f"{dataset}.tif"), pixels, BOX)
        Assets(dsn).publish(collection(dataset, BOX), [item(edition, cog, BOX)])


def _is_ready(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()
