"""Text for people, on any terminal: characters that its encoding lacks are replaced by similar ones."""

import codecs
import io
import os
import re
import sys
from typing import TextIO

_NOT_ASCII = re.compile("[^\x00-\x7f]")
_ERROR_HANDLER = "dagmaster.degrade"
_SIMILAR = dict(zip("–—×✔✖■▶»·━╸╺’", "--x+x#>>.---'", strict=True)) | {"…": "...", "→": "->"}


def ascii_json(text: str) -> str:
    """Equivalent JSON in ASCII."""
    return _NOT_ASCII.sub(lambda match: _as_utf16(match[0]), text)


def _as_utf16(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))


def is_unicode(encoding: str | None) -> bool:
    return (encoding or "").lower().replace("-", "").startswith("utf")


def prepare_streams() -> None:
    """Let standard output and error accept any text. Called once, before anything is written."""
    codecs.register_error(_ERROR_HANDLER, _replace_missing)
    sys.stdout, sys.stderr = _opened(sys.stdout, 1), _opened(sys.stderr, 2)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_ERROR_HANDLER)


def _opened(stream: TextIO | None, number: int) -> TextIO:
    """Replace a stream that was closed by the parent process, so that its descriptor is not reused for another file."""
    if stream is not None:
        return stream
    placeholder = os.open(os.devnull, os.O_RDONLY)
    if placeholder != number:
        os.dup2(placeholder, number)
        os.close(placeholder)
    return os.fdopen(number, "w")


def _replace_missing(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(_SIMILAR.get(character) or _escaped(character) for character in missing), error.end


def _escaped(character: str) -> str:
    return character.encode("ascii", "backslashreplace").decode()
