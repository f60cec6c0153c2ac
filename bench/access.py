"""How much longer a STAC search takes if it finds only what its caller may see.

Makes 1,000 assets with 50 items each in a private cluster, one half public and the other for official use only, in two
databases. The second has one more collection, which no caller may see. Each database has a map server. The same
searches are sent in turn, warm, on connections that stay open, so that other load on the machine affects all alike, by
three callers:
  plain        in the first database, where all is visible: the search is pgSTAC's own, without a filter
  everything   with a key: a viewer, who may see all of the 1,000 assets; the search has the list of them
  part         without a key: anonymous; the search has the list of the public assets
`everything` and `part` run the same code. Prints the medians, and their ratios for each search and for all searches
together. Absolute times depend on the machine; only the ratio of `part` to each of the others over all searches is
judged.
"""

import argparse
import asyncio
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

from dagmaster.local.embedded import Cluster
from published import add_all_published, deploy_all, new_key
from tiles import serving

TARGET = 1.5
OTHERS = ("plain", "everything")  # what `part` is compared with
_AT_ONCE = 50  # partitions created in one transaction, which holds a lock on each
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

_COLLECTIONS = """
    INSERT INTO collections (content)
    SELECT jsonb_build_object(
               'type', 'Collection', 'stac_version', '1.1.0', 'license', 'other', 'links', '[]'::jsonb,
               'id', format('dataset-%%s', to_char(number, 'FM0000')),
               'description', format('Dataset %%s', number),
               'extent', jsonb_build_object(
                   'spatial', '{"bbox": [[-180, -90, 180, 90]]}'::jsonb,
                   'temporal', '{"interval": [[null, null]]}'::jsonb))
      FROM generate_series(%(first)s, %(after)s - 1) AS number
    """
_PARTITIONS = """
    SELECT check_partition(id, year, year)
      FROM collections,
           (VALUES (tstzrange('2020-01-01T00:00:00Z', '2020-12-31T00:00:00Z', '[]'))) AS given (year)
     WHERE id >= %(first)s AND id < %(after)s
     ORDER BY id
    """
_ITEMS = """
    INSERT INTO items (id, collection, geometry, datetime, end_datetime, content)
    SELECT format('%%s-v0-r%%s', dataset, to_char(part, 'FM00')), dataset,
           ST_MakeEnvelope(west, south, west + 1, south + 1, 4326), day, day,
           jsonb_build_object(
               'stac_version', '1.1.0', 'links', '[]'::jsonb,
               'bbox', jsonb_build_array(west, south, west + 1, south + 1),
               'properties', jsonb_build_object(
                   'datetime', to_char(day, 'YYYY-MM-DD"T00:00:00Z"'),
                   'title', format('Dataset %%s, part %%s', number, part),
                   'gsd', 5 + number * 17 %% 40,
                   'dagmaster:version_ordinal', 0,
                   'dagmaster:revision', 1),
               'assets', jsonb_build_object('data', jsonb_build_object(
                   'href', format('/files/silver/silver/cogs/%%s/v0/r1/r%%s.tif', dataset, part),
                   'roles', '["data"]'::jsonb)))
      FROM generate_series(0, %(assets)s - 1) AS number,
           generate_series(0, %(items)s - 1) AS part,
           LATERAL (SELECT format('dataset-%%s', to_char(number, 'FM0000')) AS dataset,
                           (number * 7 + part * 3) %% 34 + 0.5 AS west,
                           (number * 3 + part) %% 14 + 35.25 AS south,
                           make_timestamptz(2020, part %% 12 + 1, number %% 28 + 1, 0, 0, 0, 'UTC') AS day) AS place
     ORDER BY number, part
    """


def name_of(number: int) -> str:
    return f"dataset-{number:04}"


def is_public(number: int) -> bool:
    """Independent of where and when the items of an asset are, so that every search finds items of both kinds."""
    return number // 28 % 2 == 1


def fill(dsn: str, assets: int, items: int) -> None:
    """Set-based: item by item, pgSTAC would need a quarter of an hour."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SET search_path = pgstac, public")
        with connection.transaction():
            clearances = {name_of(number): "public" if is_public(number) else "ouo" for number in range(assets)}
            add_all_published(connection, clearances)
            connection.execute(_COLLECTIONS, {"first": 0, "after": assets})
        for start in range(0, assets, _AT_ONCE):
            connection.execute(_PARTITIONS, {"first": name_of(start), "after": name_of(start + _AT_ONCE)})
        connection.execute(_ITEMS, {"assets": assets, "items": items})
        connection.execute("ANALYZE")


def hide_one(dsn: str, number: int) -> None:
    """Add a collection that is not published, so that every search has the list of collections its caller may see."""
    with psycopg.connect(dsn) as connection:
        connection.execute("SET search_path = pgstac, public")
        connection.execute(_COLLECTIONS, {"first": number, "after": number + 1})


class Client:
    def __init__(self, url: str, **headers: str) -> None:
        self._connection = HTTPConnection(urlsplit(url).netloc, timeout=120)
        self._headers = {"Content-Type": "application/json", **headers}

    def search(self, body: dict[str, Any]) -> tuple[float, dict[str, Any]]:
        started = time.perf_counter()
        self._connection.request("POST", "/stac/search", json.dumps(body), self._headers)
        response = self._connection.getresponse()
        content = response.read()
        seconds = time.perf_counter() - started
        if response.status != HTTPStatus.OK:
            raise RuntimeError(f"a search failed: {response.status} {content[:500]!r}")
        return seconds, json.loads(content)


def numbers_in(page: dict[str, Any]) -> Iterator[int]:
    return (int(feature["collection"].rpartition("-")[2]) for feature in page["features"])


def compare(clients: dict[str, Client], rounds: int) -> bool:
    seconds: dict[tuple[str, str], list[float]] = {}
    for number in range(rounds + 1):
        for name, body in SEARCHES.items():
            for kind, client in clients.items():
                elapsed, page = client.search(body)
                public = [is_public(each) for each in numbers_in(page)]
                if not public or all(public) != (kind == "part"):
                    raise RuntimeError(f"the search '{name}' of {kind} did not find the expected items")
                if number:  # the first round warms up
                    seconds.setdefault((name, kind), []).append(elapsed)
    medians = {place: statistics.median(values) for place, values in seconds.items()}
    for name in SEARCHES:
        times = "   ".join(f"{kind} {medians[name, kind] * 1000:7.1f} ms" for kind in clients)
        ratios = "   ".join(f"÷ {kind} {medians[name, 'part'] / medians[name, kind]:.2f}" for kind in OTHERS)
        print(f"  {name:<22} {times}   part {ratios}")
    totals = {kind: sum(medians[name, kind] for name in SEARCHES) for kind in clients}
    judged = {kind: totals["part"] / totals[kind] for kind in OTHERS}
    text = ", ".join(f"÷ {kind} {ratio:.2f}" for kind, ratio in judged.items())
    print(f"  part {text} (each at most {TARGET})", flush=True)
    return max(judged.values()) <= TARGET


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--assets", type=int, default=1_000)
    parser.add_argument("--items", type=int, default=50, help="items of each asset")
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
            started = time.perf_counter()
            fill(dsn, options.assets, options.items)
            print(f"filled in {time.perf_counter() - started:.0f} s", flush=True)
            with psycopg.connect(cluster.dsn_of("postgres"), autocommit=True) as connection:
                connection.execute("CREATE DATABASE plain TEMPLATE bench")
            hide_one(dsn, options.assets)
            key = asyncio.run(new_key(dsn))
            with (
                serving(cluster.dsn_of("plain"), Path(name)) as plain,
                serving(dsn, Path(name), AUTH_ENABLED="true") as listed,
            ):
                print(f"{options.assets * options.items:,} items of {options.assets:,} assets, {options.rounds} rounds")
                clients = {
                    "plain": Client(plain.url),
                    "everything": Client(listed.url, **{"X-API-Key": key}),
                    "part": Client(listed.url),
                }
                is_met = compare(clients, options.rounds)
        finally:
            cluster.remove()
    return 0 if is_met else 1


if __name__ == "__main__":
    raise SystemExit(main())
