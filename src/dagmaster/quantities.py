"""Numbers with their nouns and units, short lists and shortened texts, for messages."""

from collections.abc import Sequence


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun: `1 file`, `3 files`."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def first_of(values: Sequence[object], maximum: int) -> str:
    """The first values, and whether there are more: `a, b`, or `a, b, …`."""
    return ", ".join(map(str, values[:maximum])) + (", …" if len(values) > maximum else "")


def shortened(text: str, max_length: int) -> str:
    """The text, or its beginning and `…`, together not longer than the maximum."""
    return text if len(text) <= max_length else f"{text[: max_length - 1]}…"


def quoted(text: str) -> str:
    """The beginning of a text, in quotes, without characters that control a terminal."""
    start = text[:80]
    return (f"'{start}'" if start.isprintable() else ascii(start)) + ("…" if len(text) > 80 else "")


def size_text(size_bytes: int) -> str:
    """A size in a readable unit: `12.3 MB`."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= size:
            return f"{size_bytes / size:,.1f} {unit}"
    return counted(size_bytes, "byte")


def duration(seconds: float) -> str:
    """A duration in the largest unit that it contains at least once: `45 s`, `3 min`."""
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
