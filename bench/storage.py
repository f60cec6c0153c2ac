"""Memory and time of an upload to an object store, and of comparing storage with the database.

    .venv/bin/python bench/storage.py upload azurite 1024      a file of 1024 MiB, to Azurite or to the simulated S3
    .venv/bin/python bench/storage.py upload s3 1024
    .venv/bin/python bench/storage.py verify 1000000           verify-storage, with this many unreferenced objects

Azurite and the simulated S3 are those of the tests. `verify` starts its own PostgreSQL server.
"""

import asyncio
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from dagmaster.database.schema.deploy import deploy
from dagmaster.operations.verify_storage import verify_storage
from dagmaster.settings import Settings
from dagmaster.storage.location import Folder, Location, Zone
from dagmaster.storage.store import ObjectInfo
from dagmaster.storage.zones import Storage, open_storage
from server import private_server

MIB = 1024 * 1024


def peak_mib() -> float:
    """The peak of this process's memory so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def upload(backend: str, mib: int) -> None:
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from tests.object_stores.servers import running_azurite, running_s3

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "large.bin"
        with file.open("wb") as target:
            for number in range(mib):
                target.write(number.to_bytes(8, "big") * (MIB // 8))
        with (running_azurite if backend == "azurite" else running_s3)(folder) as server:
            storage = open_storage(server.settings_for(folder))
            storage.create_containers()
            storage.put(storage.location("small.bin"), b"x")  # so that the code of uploads is loaded
            before, started, cpu = peak_mib(), time.monotonic(), time.process_time()
            storage.put_file(storage.location("large.bin"), file)
            seconds, cpu = time.monotonic() - started, time.process_time() - cpu
    print(f"upload of {mib} MiB to {backend}: {seconds:.1f} s, {cpu:.1f} s of CPU time")
    print(f"peak memory {peak_mib():.0f} MiB, {before:.0f} MiB before the upload")


class ManyObjects(Storage):
    """A storage whose zone silver lists many objects."""

    count = 0

    def list(self, folder: Folder) -> Iterator[ObjectInfo]:
        long_ago = datetime.now(UTC) - timedelta(days=30)
        for number in range(self.count if folder.zone == Zone.SILVER else 0):
            blob = f"cogs/dataset-{number // 1000}/v0/r1/tile-{number}.tif"
            yield ObjectInfo(Location(Zone.SILVER, folder.container, blob), 1000, long_ago, str(number))

    def head(self, location: Location) -> ObjectInfo:
        return ObjectInfo(location, 1000, datetime.now(UTC) - timedelta(days=30), "x")


def verify(count: int) -> None:
    with tempfile.TemporaryDirectory() as name, private_server() as server:
        deploy(dsn := server.fresh("bench_storage"))
        storage: Any = open_storage(Settings(storage_folder=Path(name)))
        storage.__class__ = ManyObjects
        ManyObjects.count = count
        before, started, cpu = peak_mib(), time.monotonic(), time.process_time()
        report = asyncio.run(verify_storage(dsn, storage))
        seconds, cpu = time.monotonic() - started, time.process_time() - cpu
    print(report.summary)
    print(f"verify-storage of {count} objects: {seconds:.1f} s, {cpu:.1f} s of CPU time in this process")
    print(f"peak memory {peak_mib():.0f} MiB, {before:.0f} MiB before")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["upload", backend, size]:
            upload(backend, int(size))
        case ["verify", count]:
            verify(int(count))
        case _:
            raise SystemExit(__doc__)
