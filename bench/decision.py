"""How much longer a request takes because access is checked for each request.

Compares this tree with the last one without access checks, commit 7add226, on the same raster: each has its own
database in one private cluster, and its own map server. The requests are tiles, the TileJSON, and the first kilobytes
of the file, as clients read a COG. They are sent to all servers in turn, warm, on connections that stay open:
  before      the earlier tree
  now         this tree without authentication
  anonymous   this tree with authentication, without a key, for a public version
  key         the same with a key
Prints the median of the earlier tree and how much longer the others take: the median of the differences between
requests that follow each other, so that other load on the machine affects all alike, and the same for the CPU time of
the server. The difference is judged, for each kind of request. It includes everything that has changed in the server
since then, so the queries of the access check are also timed alone.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
from morecantile import Tile

from before import extract
from dagmaster.database.assets.keys import KeyStore
from dagmaster.database.catalog.datasets import CatalogReader
from dagmaster.local.embedded import Cluster
from dagmaster.settings import load
from dagmaster.storage.zones import open_storage
from published import new_key
from tiles import Server, make, random_tiles, serving

BEFORE = "7add226"
TARGET_MS = 1.0
FILE = "/files/silver/silver/cogs/whole/v0/r1/whole.tif"
_FILL_BEFORE = """
import sys
from pathlib import Path
from dagmaster.settings import load
from dagmaster.storage.zones import open_storage
from tiles import make
folder = Path(sys.argv[2])
make(open_storage(load(storage_folder=folder)), sys.argv[1], int(sys.argv[3]), folder)
"""


class Client:
    """One connection to a server, and the milliseconds of its requests by their kind: elapsed, and of the server's
    CPU."""

    def __init__(self, server: Server, headers: Mapping[str, str]) -> None:
        self._connection = HTTPConnection(urlsplit(server.url).netloc, timeout=60)
        self._pid = server.pid
        self._headers = headers
        self.elapsed: dict[str, list[float]] = {}
        self.cpu: dict[str, list[float]] = {}

    def get(self, kind: str, path: str, **headers: str) -> bytes:
        cpu, started = cpu_ms(self._pid), time.perf_counter()
        self._connection.request("GET", path, headers={**self._headers, **headers})
        response = self._connection.getresponse()
        body = response.read()
        self.elapsed.setdefault(kind, []).append((time.perf_counter() - started) * 1000)
        self.cpu.setdefault(kind, []).append(cpu_ms(self._pid) - cpu)
        if response.status not in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
            raise RuntimeError(f"{path}: {response.status} {body[:300]!r}")
        return body

    def forget(self) -> None:
        self.elapsed.clear()
        self.cpu.clear()


def cpu_ms(pid: int) -> float:
    """CPU time of all threads of a process, which is exact enough for one request, unlike the ticks of `stat`."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1_000_000


def request_all(client: Client, tile: Tile) -> dict[str, bytes]:
    path = f"/tiles/whole/tiles/WebMercatorQuad/{tile.z}/{tile.x}/{tile.y}.jpg?tilesize=256&return_mask=false"
    return {
        "tile": client.get("tile", path),
        "TileJSON": client.get("TileJSON", "/tiles/whole/WebMercatorQuad/tilejson.json"),
        "file": client.get("file", FILE, Range="bytes=0-16383"),
    }


def compare(clients: dict[str, Client], tiles: list[Tile], rounds: int) -> bool:
    names = list(clients)
    for number in range(rounds + 1):
        if number == 1:  # the first round was the warm-up
            for client in clients.values():
                client.forget()
        for place, tile in enumerate(tiles):
            turn = place % len(names)  # each server is first equally often
            bodies = [request_all(clients[name], tile) for name in names[turn:] + names[:turn]]
            if len({body["tile"] for body in bodies}) != 1 or len({body["file"] for body in bodies}) != 1:
                raise RuntimeError(f"{tile}: the servers respond differently")
    results = [_report(clients, kind) for kind in ("tile", "TileJSON", "file")]
    return all(results)


def _report(clients: dict[str, Client], kind: str) -> bool:
    before = clients["before"]
    others = {name: client for name, client in clients.items() if name != "before"}
    more = {name: _difference(before.elapsed[kind], client.elapsed[kind]) for name, client in others.items()}
    cpu = {name: _difference(before.cpu[kind], client.cpu[kind]) for name, client in others.items()}
    text = "   ".join(f"{name} {ms:+.2f} ms (CPU {cpu[name]:+.2f})" for name, ms in more.items())
    p50 = statistics.median(before.elapsed[kind])
    print(f"  {kind:<9} before p50 {p50:6.2f} ms   {text}   (at most +{TARGET_MS:g} ms)", flush=True)
    return max(more.values()) <= TARGET_MS


def _difference(before: list[float], now: list[float]) -> float:
    return statistics.median(after - earlier for earlier, after in zip(before, now, strict=True))


async def _print_queries(dsn: str, key: str, count: int = 500) -> None:
    """The medians of the queries of the access check: for the version, and for the key if there is one."""
    async with CatalogReader(dsn) as catalog, KeyStore(dsn) as keys:
        key_id = key.split("_")[1]
        for name, read in (("version", lambda: catalog.publication("whole")), ("key", lambda: keys.find(key_id))):
            elapsed = []
            for _ in range(count):
                started = time.perf_counter()
                if await read() is None:
                    raise RuntimeError(f"the {name} is not found")
                elapsed.append((time.perf_counter() - started) * 1000)
            print(f"  the query for the {name} alone: p50 {statistics.median(elapsed):.2f} ms", flush=True)


@contextmanager
def all_served(cluster: Cluster, folder: Path, size: int) -> Iterator[dict[str, Client]]:
    with psycopg.connect(cluster.dsn_of("postgres"), autocommit=True) as connection:
        connection.execute("CREATE DATABASE before")
        connection.execute("CREATE DATABASE now")
    dsn, dsn_before = cluster.dsn_of("now"), cluster.dsn_of("before")
    tree = extract(BEFORE, folder)
    earlier, current = folder / "before", folder / "now"
    for each in (earlier, current):
        each.mkdir()
    subprocess.run(
        [sys.executable, "-c", _FILL_BEFORE, dsn_before, earlier, str(size)],
        env={**os.environ, "PYTHONPATH": f"{tree / 'src'}:{tree / 'bench'}"},
        check=True,
    )
    make(open_storage(load(storage_folder=current)), dsn, size, current)
    key = asyncio.run(new_key(dsn))
    asyncio.run(_print_queries(dsn, key))
    with ExitStack() as stack:
        before = stack.enter_context(serving(dsn_before, earlier, PYTHONPATH=str(tree / "src")))
        now = stack.enter_context(serving(dsn, current))
        closed = stack.enter_context(serving(dsn, current, AUTH_ENABLED="true"))
        yield {
            "before": Client(before, {}),
            "now": Client(now, {}),
            "anonymous": Client(closed, {}),
            "key": Client(closed, {"X-API-Key": key}),
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=2048, help="width and height of the raster in pixels")
    parser.add_argument("--tiles", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    cluster = Cluster.at(None, name=f"bench-decision-{os.getpid()}", fast=True)
    with tempfile.TemporaryDirectory(prefix="decision-bench-") as name:
        try:
            cluster.start()
            with all_served(cluster, Path(name), options.size) as clients:
                print(f"{options.tiles} tiles, {options.rounds} rounds, before: {BEFORE}", flush=True)
                is_met = compare(clients, random_tiles(options.tiles, options.size), options.rounds)
        finally:
            cluster.remove()
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
