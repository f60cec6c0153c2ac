"""A pool of open COGs: opening a file and decoding its blocks again is a large part of what a tile costs.

A GDAL dataset must not be used by two threads at once, so each is in use by one request at a time. A file that was
replaced or changed is recognised by its stamp and opened again. Objects of an object store are published once and never
change. They are opened again after some minutes, because the signature with which they were opened expires.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import rasterio
from rasterio.errors import RasterioError

# Each takes some megabytes: buffers for a block of each overview. Decoded blocks are in GDAL's cache.
_MAX_IDLE = 32
# A deleted file occupies disk space for as long as it is open.
_MAX_IDLE_SECONDS = 30.0

# Signatures are valid for 45 minutes or more when a file is opened.
_REMOTE_SECONDS = 900.0

Stamp = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _IdleDataset:
    path: str
    stamp: Stamp
    dataset: Any
    idle_since: float


class DatasetPool:
    def __init__(self, max_idle: int = _MAX_IDLE, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_idle = max_idle
        self._clock = clock
        self._lock = Lock()
        self._idle: list[_IdleDataset] = []  # least recently used first

    @contextmanager
    def open(self, path: str) -> Iterator[Any]:
        """The dataset at a path, for one thread.

        Only GeoTIFF is opened: other drivers would follow references to other files.
        """
        # Before opening: if the file is replaced in between, the dataset has the old stamp, and is opened again later.
        stamp = self._stamp(path)
        dataset = self._take(path, stamp) or rasterio.open(path, driver="GTiff")
        try:
            yield dataset
        except RasterioError:
            stamp = None  # the dataset may be in any state
            raise
        finally:
            if stamp is None:
                dataset.close()
            else:
                self._release(_IdleDataset(path, stamp, dataset, self._clock()))

    def close_idle(self, seconds: float = _MAX_IDLE_SECONDS) -> None:
        """Close datasets that have been idle for this many seconds."""
        until = self._clock() - seconds
        with self._lock:
            expired = [idle for idle in self._idle if idle.idle_since <= until]
            self._idle = [idle for idle in self._idle if idle.idle_since > until]
        _close(expired)

    def __len__(self) -> int:
        return len(self._idle)

    def _stamp(self, path: str) -> Stamp | None:
        """Values that change with a file's content. None for a path that is not a file: it is not pooled."""
        if path.startswith("/vsi"):
            return (int(self._clock() // _REMOTE_SECONDS),)
        try:
            status = Path(path).stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns

    def _take(self, path: str, stamp: Stamp | None) -> Any:
        """The most recently used dataset of the path, whose blocks are most likely in the cache.

        Closes datasets of older files at the path.
        """
        with self._lock:
            of_path = [idle for idle in self._idle if idle.path == path]
            current = [idle for idle in of_path if idle.stamp == stamp]
            stale = [idle for idle in of_path if idle.stamp != stamp]
            removed = [*stale, *current[-1:]]
            self._idle = [idle for idle in self._idle if idle not in removed] if removed else self._idle
        _close(stale)
        return current[-1].dataset if current else None

    def _release(self, dataset: _IdleDataset) -> None:
        with self._lock:
            self._idle.append(dataset)
            excess = self._idle[: -self._max_idle]
            self._idle = self._idle[-self._max_idle :]
        _close(excess)


def _close(datasets: list[_IdleDataset]) -> None:
    for idle in datasets:
        idle.dataset.close()
