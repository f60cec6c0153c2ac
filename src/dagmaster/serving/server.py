"""The map server on a port: started and stopped as a role."""

import ctypes
from contextlib import suppress

from dagmaster.observe import log
from dagmaster.web.server import WebServer

# glibc's M_MMAP_THRESHOLD, and the size of a block of pixels.
_MMAP_THRESHOLD, _BLOCK_BYTES = -3, 262_144
_log = log.get("serving")


class MapServer(WebServer):
    """Serves until `stop`, which lets running requests finish."""

    async def run(self) -> None:
        _fix_mmap_threshold()
        _log.info("maps are served", url=self.url)
        await super().run()

    def stop(self) -> None:
        self.finish()


def _fix_mmap_threshold() -> None:
    """Return the memory of pixel blocks when it is freed: with a dynamic threshold glibc keeps more and more of it."""
    with suppress(OSError, AttributeError):  # a C library other than glibc
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _BLOCK_BYTES)
