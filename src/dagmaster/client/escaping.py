"""Make text safe to print on a terminal.

Texts from a platform were written by handlers, submitters and others. A terminal executes control characters, so they
are escaped.
"""

import re
from typing import Any

# Control characters except line breaks and tabs, marks that change the writing direction, and lone surrogates.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def escaped(text: str) -> str:
    """The text with escaped control characters, which a terminal shows instead of executing them."""
    return _UNSAFE.sub(lambda match: _escape_sequence(match[0]), text.replace("\r\n", "\n"))


def _escape_sequence(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def escaped_value(value: Any) -> Any:
    """A JSON value in which every text is escaped."""
    if isinstance(value, str):
        return escaped(value)
    if isinstance(value, dict):
        return {escaped(key): escaped_value(part) for key, part in value.items()}
    if isinstance(value, list):
        return [escaped_value(part) for part in value]
    return value


def escaped_json(text: str) -> str:
    """Equivalent JSON. Unsafe characters occur only in its strings, where they are escaped by their code points."""
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def one_line(text: str | None) -> str:
    """The first line of a text."""
    return next(iter((text or "").splitlines()), "")
