"""Files given as arguments: read up to a limit, and only if they are regular files."""

import os
import stat
from pathlib import Path


def bytes_of(path: Path, limit: int) -> bytes:
    """The content of a file, up to one byte more than the limit. A device or pipe, which may not end, is an OSError."""
    # Non-blocking, because opening a pipe would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(0, "it is a folder", str(path))
        if not stat.S_ISREG(mode):
            raise OSError(0, "it is not a regular file", str(path))
        return file.read(limit + 1)
