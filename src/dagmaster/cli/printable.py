"""Text that may be shown to a person, whoever wrote it, on whatever terminal.

What comes from a platform was written by handlers, submitters and others. A terminal obeys control characters, so they are
shown instead of sent. What a terminal's encoding lacks is shown as something like it.
"""

import codecs
import io
import os
import re
import sys
from typing import TextIO

_NOT_ASCII = re.compile("[^\x00-\x7f]")
_DEGRADE = "dagmaster.degrade"
_PLAIN = {
    "…": "...", "–": "-", "—": "-", "×": "x", "✔": "+", "✖": "x", "■": "#", "▶": ">", "»": ">", "·": ".", "→": "->",
    "━": "-", "╸": "-", "╺": "-", "’": "'",
}  # fmt: skip


def ascii_json(text: str) -> str:
    """JSON that means the same, for an encoding that lacks most characters."""
    return _NOT_ASCII.sub(lambda match: _as_utf16(match[0]), text)


def _as_utf16(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))


def one_line(text: str | None) -> str:
    """The first line of a text."""
    return next(iter((text or "").splitlines()), "")


def counted(number: int, thing: str, several: str | None = None) -> str:
    return f"{number} {thing if number == 1 else several or f'{thing}s'}"


def size_text(size_bytes: int) -> str:
    """In the unit that people would take: `12.3 MB`."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= size:
            return f"{size_bytes / size:,.1f} {unit}"
    return counted(size_bytes, "byte")


def is_unicode(encoding: str | None) -> bool:
    return (encoding or "").lower().replace("-", "").startswith("utf")


def prepare_streams() -> None:
    """Make standard output and error fit for anything: called once, before anything is written."""
    codecs.register_error(_DEGRADE, _degraded)
    sys.stdout, sys.stderr = _opened(sys.stdout, 1), _opened(sys.stderr, 2)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_DEGRADE)


def _opened(stream: TextIO | None, number: int) -> TextIO:
    """A stream that was closed by whoever started us refuses what is written. Its number must not become another file's."""
    if stream is not None:
        return stream
    placeholder = os.open(os.devnull, os.O_RDONLY)
    if placeholder != number:
        os.dup2(placeholder, number)
        os.close(placeholder)
    return os.fdopen(number, "w")


def _degraded(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_PLAIN.get(character) or _spelled(character) for character in lacking), error.end


def _spelled(character: str) -> str:
    return character.encode("ascii", "backslashreplace").decode()
