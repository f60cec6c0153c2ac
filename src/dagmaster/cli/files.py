"""Files given as arguments: regular files are read up to a limit, and written completely or not at all."""

import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from dagmaster.errors import InvalidRequest


def bytes_of(path: Path, limit: int) -> bytes:
    """The content of a file, up to one byte more than the limit. A device or pipe raises OSError: it may never end."""
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
    """The value of an option; for `@FILE`, the content of the file, up to one byte more than the limit."""
    if not text.startswith("@"):
        return text.encode()
    try:
        return bytes_of(Path(text[1:]), limit)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidRequest(f"{option} {text}: {reason}", code="inputs.invalid") from None


def save(name: str, write: Callable[[BinaryIO], int]) -> int:
    """Let `write` write a file; returns the number of bytes. The file appears when it is complete. `-` is standard
    output."""
    if name == "-":
        size = write(sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return size
    try:
        target = Path(name).resolve()  # if it is a symbolic link, its target is written
        if target.exists() and not target.is_file():
            raise InvalidRequest(f"{name} is not a file; `--output -` writes to a pipe", code="file.not-writable")
        unfinished = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            with unfinished.open("xb") as file:
                size = write(file)
            unfinished.replace(target)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise InvalidRequest(f"{name} cannot be written: {error.strerror}", code="file.not-writable") from None
    return size


def json_object(option: str, text: str | bytes) -> dict[str, Any]:
    import orjson

    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"{option} is not JSON: {error}", code="inputs.invalid") from None
    if not isinstance(value, dict):
        raise InvalidRequest(f"{option} must be a JSON object", code="inputs.invalid")
    return value
