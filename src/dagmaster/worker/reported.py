"""What a handler reports in addition to its output (error texts, progress, log lines), made safe to send and to store.

A handler may report anything: lone surrogates, NUL characters, NaN, objects whose `__str__` fails, texts of five
megabytes. Most of these cannot be stored as jsonb, or would be too large. Everything passes through this module, for
async and for plain handlers, so that the report itself never fails and never hides the error that it reports.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from dagmaster.observe.redaction import redact

MAX_PROGRESS_BYTES = 4096
MAX_MESSAGE = 500
MAX_NAME = 100
MAX_LOG_TEXT = 4_000
MAX_LOG_FACT = 8_000
MAX_SECRET_LENGTH = 1_000
_MAX_INTEGER = 1 << 63


def text(value: object, limit: int, *, keep_end: bool = False) -> str:
    """The text of a value, without secrets, valid for jsonb and no longer than the limit."""
    full = value if type(value) is str else text_of(value)
    # Redact before the final cut: a cut through a secret would hide the rest of it from the pattern.
    excerpt = full[-limit - MAX_SECRET_LENGTH :] if keep_end else full[: limit + MAX_SECRET_LENGTH]
    clean = redact(excerpt).replace("\x00", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
    if len(clean) <= limit:
        return clean
    return f"…{clean[1 - limit :]}" if keep_end else f"{clean[: limit - 1]}…"


def text_of(value: object, convert: Callable[[object], str] = str) -> str:
    """The text of an object of the handler, whose `__str__` or `__repr__` may itself fail."""
    try:
        return str.__str__(convert(value))
    except BaseException as error:
        return f"{type(value).__qualname__} (cannot be converted to text: {type(error).__qualname__})"


def progress(fraction: object, message: object, counts: Mapping[str, object]) -> dict[str, Any]:
    """Progress as it is stored: `fraction` between 0 and 1, `message`, and the counts under their names."""
    facts = {text(name, MAX_NAME): _count(value) for name, value in counts.items()}
    if (
        sum(len(name) + (len(value) if isinstance(value, str) else 8) for name, value in facts.items())
        > MAX_PROGRESS_BYTES
    ):
        facts = {"dropped": f"counts of more than {MAX_PROGRESS_BYTES:,} bytes"}
    if isinstance(fraction, int | float) and math.isfinite(fraction):
        facts["fraction"] = min(max(float(fraction), 0.0), 1.0)
    if message is not None:
        facts["message"] = text(message, MAX_MESSAGE)
    return facts


def log_facts(facts: Mapping[str, object]) -> dict[str, Any]:
    """The facts of a log line: integers of 64 bits, booleans and None as they are, everything else as text of limited
    length."""
    return {
        text(name, MAX_NAME): value
        if value is None or (isinstance(value, bool | int) and abs(value) < _MAX_INTEGER)
        else text(value, MAX_LOG_FACT, keep_end=True)
        for name, value in facts.items()
    }


def _count(value: object) -> Any:
    """A number or a boolean as it is; NaN and infinity become null, everything else becomes text, also an integer of
    more than 64 bits."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if -_MAX_INTEGER <= value < _MAX_INTEGER else text(int(value), MAX_NAME)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return text(value, MAX_PROGRESS_BYTES + 1)
