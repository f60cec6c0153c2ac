"""How much longer a STAC search takes if it finds only what its caller may see.

Makes 1,000 assets with 50 items each in a private cluster, every second one public and the others for official use
only, and starts two map servers on it:
  all        without authentication: the caller is an administrator, so a search is not filtered
  filtered   with authentication: requests without a key are anonymous and find what is public
The same searches are sent to both in turn, warm, on connections that stay open, so that whatever else the machine does
falls on both alike. Prints the medians and their ratio, in all and for each search. Absolute times depend on the
machine; only the ratio over all searches is judged.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
from psycopg.types.json import Jsonb

from dagmaster.local.embedded import Cluster
from published import add_published, deploy_all
from tiles import serving

TARGET = 1.5
_AT_ONCE = 50  # collections of one transaction: each has a partition
AREA = {"type": "Polygon", "coordinates": [[[10, 45], [14, 45], [14, 48], [10, 48], [10, 45]]]}
SEARCHES: dict[str, dict[str, Any]] = {
    "newest": {"limit": 100},
    "bbox": {"bbox": [10, 45, 14, 48], "limit": 100},
    "time": {"datetime": "2020-03-01T00:00:00Z/2020-09-01T00:00:00Z", "limit": 100},
    "polygon and property": {
        "intersects": AREA,
        "filter": {"op": "<", "args": [{"property": "gsd"}, 20]},
        "limit": 100,
    },
    "sorted by id": {"sortby": [{"field": "id", "direction": "asc"}], "limit": 50},
}


def name_of(number: int) -> str:
    return f"dataset-{number:04}"


def is_public(number: int) -> bool:
    return number % 2 == 0


def collection(number: int) -> dict[str, Any]:
    return {
        "type": "Collection",
        "stac_version": "1.1.0",
        "id": name_of(number),
        "description": f"Dataset {number}",
        "license": "other",
        "links": [],
        "extent": {"spatial": {"bbox": [[-180, -90, 180, 90]]}, "temporal": {"interval": [[None, None]]}},
    }


def item(number: int, place: int) -> dict[str, Any]:
    dataset = name_of(number)
    west, south = (number * 7 + place * 3) % 340 - 170 + 0.5, (number * 3 + place) % 140 - 70 + 0.25
    ring = [[west, south], [west + 1, south], [west + 1, south + 1], [west, south + 1], [west, south]]
    day, month = number % 28 + 1, place % 12 + 1
    return {
        "type": "Feature",
        "stac_version": "1.1.0",
        "id": f"{dataset}-v0-r{place:02}",
        "collection": dataset,
        "geometry": {"type": "Polygon", "coordinates": [ring]},
        "bbox": [west, south, west + 1, south + 1],
        "properties": {
            "datetime": f"2020-{month:02}-{day:02}T00:00:00Z",
            "title": f"Dataset {number}, part {place}",
            "gsd": 5 + number % 40,
            "dagmaster:version_ordinal": 0,
            "dagmaster:revision": 1,
        },
        "links": [],
        "assets": {"data": {"href": f"/files/silver/silver/cogs/{dataset}/v0/r1/r{place:02}.tif", "roles": ["data"]}},
    }


def fill(dsn: str, assets: int, items: int) -> None:
    """By statements of pgSTAC: the loader would need an hour."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SET search_path = pgstac, public")
        for start in range(0, assets, _AT_ONCE):
            numbers = range(start, min(start + _AT_ONCE, assets))
            with connection.transaction():
                for number in numbers:
                    add_published(connection, name_of(number), clearance="public" if is_public(number) else "ouo")
                    connection.execute("SELECT create_collection(%s)", [Jsonb(collection(number))])
                documents = [[Jsonb(item(number, place))] for number in numbers for place in range(items)]
                connection.cursor().executemany("INSERT INTO items_staging (content) VALUES (%s)", documents)
        connection.execute("ANALYZE")


class Client:
    def __init__(self, url: str) -> None:
        self._connection = HTTPConnection(urlsplit(url).netloc, timeout=120)

    def search(self, body: dict[str, Any]) -> tuple[float, dict[str, Any]]:
        begun = time.perf_counter()
        self._connection.request("POST", "/stac/search", json.dumps(body), {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        found = response.read()
        seconds = time.perf_counter() - begun
        if response.status != HTTPStatus.OK:
            raise RuntimeError(f"a search failed: {response.status} {found[:500]!r}")
        return seconds, json.loads(found)


def numbers_in(found: dict[str, Any]) -> Iterator[int]:
    return (int(feature["collection"].rpartition("-")[2]) for feature in found["features"])


def compare(clients: dict[str, Client], rounds: int) -> bool:
    seconds: dict[tuple[str, str], list[float]] = {}
    for number in range(rounds + 1):
        for name, body in SEARCHES.items():
            for kind, client in clients.items():
                taken, found = client.search(body)
                public = [is_public(each) for each in numbers_in(found)]
                if not public or all(public) != (kind == "filtered"):
                    raise RuntimeError(f"the search '{name}' of {kind} found other items than it should")
                if number:  # the first round warms up
                    seconds.setdefault((name, kind), []).append(taken)
    medians = {place: statistics.median(taken) for place, taken in seconds.items()}
    for name in SEARCHES:
        both = medians[name, "all"], medians[name, "filtered"]
        times = f"all {both[0] * 1000:7.1f} ms   filtered {both[1] * 1000:7.1f} ms"
        print(f"  {name:<22} {times}   {both[1] / both[0]:5.2f} ×")
    totals = {kind: sum(medians[name, kind] for name in SEARCHES) for kind in clients}
    ratio = totals["filtered"] / totals["all"]
    print(f"  filtered ÷ all: {ratio:.2f} (at most {TARGET})", flush=True)
    return ratio <= TARGET


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--assets", type=int, default=1_000)
    parser.add_argument("--items", type=int, default=50, help="of each asset")
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    cluster = Cluster.at(None, name=f"bench-access-{os.getpid()}", fast=True)
    with tempfile.TemporaryDirectory() as name:
        try:
            cluster.start()
            with psycopg.connect(cluster.dsn_of("postgres"), autocommit=True) as connection:
                connection.execute("CREATE DATABASE bench")
            dsn = cluster.dsn_of("bench")
            deploy_all(dsn)
            fill(dsn, options.assets, options.items)
            with serving(dsn, Path(name)) as all_items, serving(dsn, Path(name), AUTH_ENABLED="true") as filtered:
                print(f"{options.assets * options.items:,} items of {options.assets:,} assets, {options.rounds} rounds")
                is_met = compare({"all": Client(all_items.url), "filtered": Client(filtered.url)}, options.rounds)
        finally:
            cluster.remove()
    return 0 if is_met else 1


if __name__ == "__main__":
    raise SystemExit(main())
