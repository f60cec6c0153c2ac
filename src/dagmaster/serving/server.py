"""The map server on a port: started and stopped as a role."""

import ctypes
from contextlib import suppress

from dagmaster.observe import log
from dagmaster.web.server import WebServer

# glibc's M_MMAP_THRESHOLD, and the size of a block of pixels.
_MMAP_THRESHOLD, _BLOCK_BYTES = -3, 262_144
_log = log.get("serving")


class MapServer(WebServer):
    """Serves until `stop`; what is under way then is finished first."""

    async def run(self) -> None:
        _return_memory()
        _log.info("maps are served", url=self.url)
        await super().run()

    def stop(self) -> None:
        self.finish()


def _return_memory() -> None:
    """Give blocks of pixels back when they are freed: glibc would learn to keep them, and hold more and more in pieces."""
    with suppress(OSError, AttributeError):  # where the C library is another one
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _BLOCK_BYTES)
