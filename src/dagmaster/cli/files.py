"""Files given as arguments: read up to a limit, and only if they are regular files."""

import os
import stat
from pathlib import Path
from typing import Any

from dagmaster.errors import InvalidRequest


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


def option_bytes(option: str, text: str, limit: int) -> bytes:
    """The value of an option; of `@FILE`, the content of the file, up to one byte more than the limit."""
    if not text.startswith("@"):
        return text.encode()
    try:
        return bytes_of(Path(text[1:]), limit)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidRequest(f"{option} {text}: {reason}", code="inputs.invalid") from None


def json_object(option: str, text: str | bytes) -> dict[str, Any]:
    import orjson

    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"{option} is not JSON: {error}", code="inputs.invalid") from None
    if not isinstance(value, dict):
        raise InvalidRequest(f"{option} must be a JSON object", code="inputs.invalid")
    return value
