"""What a poll of the gateway costs, compared with the bare SELECT of its view and an empty route.

Makes 10,000 requests of a platform in a private cluster, and starts two servers with uvicorn:
  gateway   GET /api/platform/status/{request_id}, with the key of the platform: the key is verified, the view is read
  empty     the same server with a route that returns a constant
The bare SELECT is sent on one open connection with the gateway's role. All three are measured in turn, one request
after the other, on connections that stay open. The cost of a poll is compared with the sum of both. Then 16 clients
poll at once: the rate is reported, and p95 is compared with p50.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import psycopg

from dagmaster.assets.identity import asset_id_of
from dagmaster.client.models.assets import KeyRequest
from dagmaster.database.assets.keys import KeyChange, KeyStore
from dagmaster.database.schema.gateway_role import ensure_gateway_role
from dagmaster.listen import bind
from dagmaster.local.embedded import Cluster
from dagmaster.operations.keys import create_key
from published import add_all_published, deploy_all

COST, SPREAD = 4.0, 10.0
_EMPTY = """
import socket, sys, uvicorn
from fastapi import FastAPI
app = FastAPI()
@app.get("/api/platform/status/{request_id}")
async def empty(request_id: str) -> dict[str, str]:
    return {"request_id": request_id}
uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[socket.socket(fileno=int(sys.argv[1]))])
"""
_SELECT = "SELECT * FROM dagapp_gateway.requests WHERE request_id = %s AND platform_id = 'local'"


def fill(dsn: str, count: int) -> str:
    """Insert requests of the platform `local`; returns the text of its key."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        names = [f"dataset-{number:05}" for number in range(count)]
        add_all_published(connection, dict.fromkeys(names, "ouo"))
        connection.execute(
            "INSERT INTO dagapp.asset_submissions (request_id, platform_id, asset_id, version_ordinal, revision, "
            "outcome, request_hash) SELECT request, 'local', asset, 0, 1, 'new_asset', '' "
            "FROM unnest(%s::text[], %s::text[]) AS given (request, asset)",
            [[f"request-{number}" for number in range(count)], [asset_id_of("local", {"dataset": n}) for n in names]],
        )
        connection.execute("ANALYZE")

    async def key() -> str:
        async with KeyStore(dsn) as keys:
            request = KeyRequest(name="bench", scopes=["b2b"], platform_id="local")
            return (await create_key(keys, request, KeyChange("bench"))).key

    return asyncio.run(key())


@contextmanager
def server(command: list[str], **variables: str) -> Iterator[int]:
    """A process that serves on a free port."""
    with bind("127.0.0.1", 0) as bound:
        os.set_inheritable(bound.fileno(), True)
        port = bound.getsockname()[1]
        process = subprocess.Popen(
            [*command, str(bound.fileno())], pass_fds=[bound.fileno()], env={**os.environ, **variables}
        )
    try:
        yield port
    finally:
        process.terminate()
        process.wait(20)


class Poller:
    def __init__(self, port: int, key: str) -> None:
        self._connection = HTTPConnection("127.0.0.1", port, timeout=30)
        self._headers = {"X-API-Key": key}

    def poll(self, request_id: str) -> float:
        started = time.perf_counter()
        self._connection.request("GET", f"/api/platform/status/{request_id}", headers=self._headers)
        response = self._connection.getresponse()
        body = response.read()
        seconds = time.perf_counter() - started
        if response.status != 200 or request_id.encode() not in body:
            raise RuntimeError(f"the poll of {request_id} failed: {response.status} {body[:200]!r}")
        return seconds


def select(connection: psycopg.Connection, request_id: str) -> float:
    started = time.perf_counter()
    row = connection.execute(_SELECT, [request_id]).fetchone()
    seconds = time.perf_counter() - started
    if row is None:
        raise RuntimeError(f"{request_id} was not found")
    return seconds


def poll_concurrently(port: int, key: str, clients: int, seconds: float, count: int) -> tuple[float, float, float]:
    """Polls per second, p50 and p95 in milliseconds."""
    latencies: list[float] = []
    until = time.perf_counter() + seconds

    def run(first: int) -> None:
        poller, number = Poller(port, key), first
        times = []
        while time.perf_counter() < until:
            times.append(poller.poll(f"request-{number % count}"))
            number += clients
        latencies.extend(times)

    threads = [threading.Thread(target=run, args=[number]) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ordered = sorted(latencies)
    return len(ordered) / seconds, 1000 * ordered[len(ordered) // 2], 1000 * ordered[int(len(ordered) * 0.95)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster.at(Path(folder), "bench-gateway")
        try:
            cluster.start()
            return _run(cluster.dsn, options)
        finally:
            cluster.remove()


def _run(dsn: str, options: argparse.Namespace) -> int:
    deploy_all(dsn)
    key = fill(dsn, options.requests)
    role = ensure_gateway_role(dsn, with_password=True)
    settings = {
        "GATEWAY_DATABASE_URL": role,
        "ORCHESTRATOR_URLS": "http://127.0.0.1:1",
        "AUTH_ENABLED": "true",
        "GATEWAY_RATE_PER_SECOND": "100000",
        "GATEWAY_BURST": "1000000",
        "LOG_LEVEL": "error",
    }
    gateway = [sys.executable, "-m", "dagmaster", "gateway", "--fd"]
    with (
        server(gateway, **settings) as port,
        server([sys.executable, "-c", _EMPTY]) as empty_port,
        psycopg.connect(role, autocommit=True) as connection,
    ):
        poller, empty = Poller(port, key), Poller(empty_port, key)
        polls, routes, selects = [], [], []
        for number in range(-50, options.rounds):
            request_id = f"request-{number * 7919 % options.requests}"
            sample = poller.poll(request_id), empty.poll(request_id), select(connection, request_id)
            if number >= 0:  # the first ones open connections and prepare statements
                for seconds, all_seconds in zip(sample, (polls, routes, selects), strict=True):
                    all_seconds.append(seconds)
        rate, p50, p95 = poll_concurrently(port, key, options.clients, options.seconds, options.requests)
    poll, route, bare = (1000 * statistics.median(each) for each in (polls, routes, selects))
    cost, spread = poll / (route + bare), p95 / p50
    print(f"poll {poll:.2f} ms, empty route {route:.2f} ms, bare SELECT {bare:.2f} ms (medians of {options.rounds})")
    print(f"cost of a poll / (empty route + SELECT): {cost:.2f} (at most {COST:g})")
    print(f"{options.clients} clients at once: {rate:.0f} polls/s, p50 {p50:.1f} ms, p95 {p95:.1f} ms")
    print(f"p95 / p50: {spread:.2f} (at most {SPREAD:g})")
    return 0 if cost <= COST and spread <= SPREAD else 1


if __name__ == "__main__":
    sys.exit(main())
