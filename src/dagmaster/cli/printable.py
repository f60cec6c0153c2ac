"""Text that may be shown to a person, whoever wrote it, on whatever terminal.

What comes from a platform was written by handlers, submitters and others. A terminal obeys control characters, so they are
shown instead of sent. What a terminal's encoding lacks is shown as something like it.
"""

import codecs
import io
import os
import re
import sys
from typing import Any, TextIO

# Control characters but line breaks and tabs, the marks that turn the direction of writing, and halves of characters.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_NOT_ASCII = re.compile("[^\x00-\x7f]")
_DEGRADE = "dagmaster.degrade"
_PLAIN = {
    "…": "...", "–": "-", "—": "-", "×": "x", "✔": "+", "✖": "x", "■": "#", "▶": ">", "»": ">", "·": ".", "→": "->",
    "━": "-", "╸": "-", "╺": "-", "’": "'",
}  # fmt: skip


def neutral(text: str) -> str:
    """The text with everything visible that a terminal would obey."""
    return _UNSAFE.sub(lambda match: _escaped(match[0]), text.replace("\r\n", "\n"))


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def neutral_value(value: Any) -> Any:
    """A JSON value with every text in it made neutral."""
    if isinstance(value, str):
        return neutral(value)
    if isinstance(value, dict):
        return {neutral(key): neutral_value(part) for key, part in value.items()}
    if isinstance(value, list):
        return [neutral_value(part) for part in value]
    return value


def neutral_json(text: str) -> str:
    """JSON that means the same. Such characters stand in its strings only, where they may be written as numbers."""
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


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
