"""Encodes images without blocking other requests.

GDAL encodes while it holds Python's global lock: a PNG of 2048 × 2048 pixels takes seconds, in which this process would
handle no other request. Large images are therefore encoded by a child process. Small ones are encoded in this
process, because that takes milliseconds.
"""

import os
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any

from rio_tiler.models import ImageData
from rio_tiler.profiles import img_profiles
from titiler.core.resources.enums import ImageType
from titiler.core.utils import render_image

from dagmaster.errors import Unavailable

_PROCESSES = max(1, (os.cpu_count() or 1) // 2)
_MAX_SECONDS = 60.0
# Pixels up to which this process encodes: 40 ms for a PNG, 10 ms for other formats.
_SMALL_PNG, _SMALL_IMAGE = 256 * 256, 512 * 512
# Six times faster than the default level; a PNG of imagery is a sixth larger.
_FAST_ZLEVEL = 1


class Encoder:
    """The child processes that encode. They are started when they are needed."""

    def __init__(self, processes: int = _PROCESSES) -> None:
        self._processes = processes
        self._lock = threading.Lock()
        self._pool: ProcessPoolExecutor | None = None

    def render(
        self,
        image: ImageData,
        colormap: Any = None,
        output_format: ImageType | None = None,
        add_mask: bool = True,
        rescale: Sequence[Any] | None = None,
        **options: Any,
    ) -> tuple[bytes, str]:
        """Like TiTiler's `render_image`. Call it in a thread."""
        if rescale:
            image.rescale(rescale)  # in this process: rescaled pixels are bytes, which are sent faster to a child
        if is_small(image, output_format):
            return render_image(image, colormap, output_format, add_mask, **options)
        # Metadata is left out, because the image does not contain it.
        pixels = ImageData(image.array, alpha_mask=image.alpha_mask, dataset_statistics=image.dataset_statistics)
        return self._render_in_child(pixels, colormap, output_format, add_mask)

    def close(self) -> None:
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)

    def _render_in_child(self, *arguments: Any) -> tuple[bytes, str]:
        for _ in range(2):  # a child process that was killed, for example for lack of memory, is replaced once
            pool = self._started()
            try:
                content, media_type = pool.submit(render_image, *arguments).result(_MAX_SECONDS)
                return content, media_type
            except (BrokenProcessPool, TimeoutError):
                self._discard(pool)
        raise Unavailable("the image could not be encoded", code="tiles.not-encoded", hint="request a smaller image")

    def _started(self) -> ProcessPoolExecutor:
        with self._lock:
            if self._pool is None:
                # Not forked: this process has threads, and a copy would hold their locks forever.
                context = get_context("spawn")
                self._pool = ProcessPoolExecutor(self._processes, context, _start_child, (os.getpid(),))
            return self._pool

    def _discard(self, pool: ProcessPoolExecutor) -> None:
        with self._lock:
            if self._pool is pool:
                self._pool = None
        for process in list((pool._processes or {}).values()):  # a child process that takes too long would continue
            process.kill()
        pool.shutdown(wait=False, cancel_futures=True)


def is_small(image: ImageData, output_format: ImageType | None) -> bool:
    """Whether the image is encoded in milliseconds. Without a format it may become a PNG."""
    limit = _SMALL_PNG if output_format in (None, ImageType.png) else _SMALL_IMAGE
    return image.width * image.height <= limit


def _start_child(parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends its children
    img_profiles.data["png"].update(zlevel=_FAST_ZLEVEL)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """End this process when its parent has been killed: otherwise it would wait for work forever."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(0)


ENCODER = Encoder()
