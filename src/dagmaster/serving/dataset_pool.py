"""COGs that stay open between requests: opening one and decoding its blocks again is a good part of what a tile costs.

GDAL's datasets are not for several threads at once, so each is lent to one request at a time. A file that was replaced or changed
is told by its stamp, and opened anew. Remote files are not kept: whether one of them was replaced is a question over the network.
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

# Each takes some megabytes: buffers for a block of each overview. What was decoded is in GDAL's cache, with a bound of its own.
_MOST_KEPT = 32
# A deleted file takes up its place on the disk for as long as it is open.
_KEPT_SECONDS = 30.0

Stamp = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Idle:
    path: str
    stamp: Stamp
    dataset: Any
    since: float


class Handles:
    def __init__(self, most: int = _MOST_KEPT, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._lock = Lock()
        self._idle: list[_Idle] = []  # the one that was given back last is the last

    @contextmanager
    def lend(self, path: str) -> Iterator[Any]:
        """The dataset at a path, for one thread. Only as GeoTIFF: other drivers would follow what a file names."""
        stamp = _stamp(path)  # before it is opened: what is replaced in between counts as old, not as new
        dataset = self._take(path, stamp) or rasterio.open(path, driver="GTiff")
        try:
            yield dataset
        except RasterioError:
            stamp = None  # it may be in any state
            raise
        finally:
            if stamp is None:
                dataset.close()
            else:
                self._give_back(_Idle(path, stamp, dataset, self._clock()))

    def close_unused(self, seconds: float = _KEPT_SECONDS) -> None:
        """Close what nobody has asked for in a while."""
        until = self._clock() - seconds
        with self._lock:
            unused = [one for one in self._idle if one.since <= until]
            self._idle = [one for one in self._idle if one.since > until]
        _close(unused)

    def __len__(self) -> int:
        return len(self._idle)

    def _take(self, path: str, stamp: Stamp | None) -> Any:
        """The one that was used last, whose blocks are the likeliest to be remembered; older states of the file are closed."""
        with self._lock:
            of_path = [one for one in self._idle if one.path == path]
            fit = [one for one in of_path if one.stamp == stamp]
            stale = [one for one in of_path if one.stamp != stamp]
            gone = [*stale, *fit[-1:]]
            self._idle = [one for one in self._idle if one not in gone] if gone else self._idle
        _close(stale)
        return fit[-1].dataset if fit else None

    def _give_back(self, one: _Idle) -> None:
        with self._lock:
            self._idle.append(one)
            beyond = self._idle[: -self._most]
            self._idle = self._idle[-self._most :]
        _close(beyond)


def _stamp(path: str) -> Stamp | None:
    """What changes with a file's content; None: it can't be told here, so it is not kept."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _close(datasets: list[_Idle]) -> None:
    for one in datasets:
        one.dataset.close()
