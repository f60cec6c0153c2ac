"""How long a search for 1,000 items takes: alone, and with several clients at once.

Catalogues NAIP-like items (four assets, bands with statistics, projection; most fields are shared with the collection)
in a private cluster, starts `dagmaster serving`, and requests `/stac/search?limit=1000` over HTTP. Prints the median
and the slowest request alone, the same for all clients at once, and the number of failed requests. `--in-database`
measures pgSTAC's own hydration in the same run, which the server does not use.
"""

import argparse
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import orjson
import psycopg
from pypgstac.db import PgstacDB
from pypgstac.load import Loader, Methods

from dagmaster.local.embedded import Cluster
from naip import naip_collection, naip_item
from published import add_published, deploy_all
from tiles import serving

TARGET_SECONDS = 1.0


def catalogue(dsn: str, items: int) -> None:
    deploy_all(dsn)
    with PgstacDB(dsn=dsn) as database:
        loader = Loader(db=database)
        loader.load_collections(iter([naip_collection()]), insert_mode=Methods.upsert)
        loader.load_items(iter([naip_item(number) for number in range(items)]), insert_mode=Methods.upsert)
    with psycopg.connect(dsn, autocommit=True) as connection:
        add_published(connection, "naip")
        connection.execute("ANALYZE")


def search(url: str, limit: int) -> tuple[float, int, int]:
    """Seconds, status and number of items of one search on its own connection."""
    connection = HTTPConnection(urlsplit(url).netloc, timeout=120)
    started = time.perf_counter()
    connection.request("GET", f"/stac/search?collections=naip&limit={limit}")
    response = connection.getresponse()
    body = response.read()
    seconds = time.perf_counter() - started
    connection.close()
    count = len(orjson.loads(body)["features"]) if response.status == HTTPStatus.OK else 0
    return seconds, response.status, count


def measure(url: str, limit: int, clients: int, rounds: int) -> bool:
    search(url, limit)
    alone = [search(url, limit) for _ in range(rounds)]
    with ThreadPoolExecutor(clients) as pool:
        concurrent = [one for _ in range(rounds) for one in pool.map(lambda _: search(url, limit), range(clients))]
    for name, results in (("alone", alone), (f"{clients} clients", concurrent)):
        seconds = [one[0] for one in results]
        failed = sum(one[1:] != (HTTPStatus.OK, limit) for one in results)
        median, slowest = statistics.median(seconds), max(seconds)
        print(f"  {name:<10} median {median:6.3f} s   slowest {slowest:6.3f} s   failed {failed} of {len(results)}")
    is_met = statistics.median(one[0] for one in alone) < TARGET_SECONDS
    return is_met and all(one[1:] == (HTTPStatus.OK, limit) for one in [*alone, *concurrent])


def measure_in_database(dsn: str, limit: int, rounds: int) -> None:
    for name, conf in (("hydrated", "false"), ("not hydrated", "true")):
        seconds = []
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("SET search_path = pgstac, public")
            for _ in range(rounds):
                started = time.perf_counter()
                query = f'{{"collections": ["naip"], "limit": {limit}, "conf": {{"nohydrate": {conf}}}}}'
                connection.execute("SELECT search(%s::jsonb)::text", [query]).fetchone()
                seconds.append(time.perf_counter() - started)
        print(f"  pgSTAC's search, {name:<12} median {statistics.median(seconds):6.3f} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=2_000)
    parser.add_argument("--limit", type=int, default=1_000)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--in-database", action="store_true")
    options = parser.parse_args()
    cluster = Cluster.at(None, name="bench-search", fast=True)
    try:
        cluster.start()
        with psycopg.connect(cluster.dsn_of("postgres"), autocommit=True) as connection:
            connection.execute("CREATE DATABASE bench")
        dsn = cluster.dsn_of("bench")
        catalogue(dsn, options.items)
        if options.in_database:
            measure_in_database(dsn, options.limit, options.rounds)
        with tempfile.TemporaryDirectory() as folder, serving(dsn, Path(folder)) as server:
            return 0 if measure(server.url, options.limit, options.clients, options.rounds) else 1
    finally:
        cluster.remove()


if __name__ == "__main__":
    raise SystemExit(main())
