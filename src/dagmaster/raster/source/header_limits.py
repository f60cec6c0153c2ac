"""Limits for the texts in the header of a TIFF, checked before GDAL opens it.

GDAL parses the XML of its own metadata tag while it opens a file, in time that grows with the square of the number of
entries: ten megabytes of them take minutes. Texts that are longer than any program writes are refused.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass

from dagmaster.errors import UnfitData

_TEXTS = {270: "description", 42112: "metadata", 42113: "nodata value", 34737: "CRS"}
_MAX_BYTES = {270: 64 * 2**20, 42112: 2**20, 42113: 1024, 34737: 2**16}
_MAX_ENTRIES = 4096


@dataclass(frozen=True, slots=True)
class _TiffFormat:
    """Formats for `struct` of a classic TIFF or a BigTIFF: byte order and widths."""

    header: str  # the offset of the first directory
    count: str
    entry: str


# Reads a number of bytes from a position; fewer if the file ends before.
ReadRange = Callable[[int, int], bytes]


def require_small_texts(read: ReadRange, name: str) -> None:
    """Refuse a TIFF whose texts are too long. GDAL checks everything else."""
    for tag, count in _entries(read):
        if count > _MAX_BYTES.get(tag, count):
            raise UnfitData(
                f"the {_TEXTS[tag]} in the header of '{name}' has {count:,} bytes; the limit is {_MAX_BYTES[tag]:,}",
                code="raster.header-too-large",
                hint="export it without that text: `gdal_translate -nomd in.tif out.tif`",
            )


def _entries(read: ReadRange) -> list[tuple[int, int]]:
    """Tags of the first directory with their number of values; empty if it is not a TIFF or is cut off."""
    layout = _format_of(read(4, 0))
    if layout is None:
        return []
    try:
        (offset,) = struct.unpack(layout.header, read(struct.calcsize(layout.header), 0))
        (entries,) = struct.unpack(layout.count, read(struct.calcsize(layout.count), offset))
        size = struct.calcsize(layout.entry)
        block = read(size * min(entries, _MAX_ENTRIES), offset + struct.calcsize(layout.count))
    except struct.error:
        return []
    whole = len(block) // size * size
    return [(tag, count) for tag, _, count in struct.iter_unpack(layout.entry, block[:whole])]


def _format_of(start: bytes) -> _TiffFormat | None:
    order = {b"II": "<", b"MM": ">"}.get(start[:2])
    if order is None:
        return None
    match start[2:].strip(b"\0"):
        case b"*":
            return _TiffFormat(f"{order}4xI", f"{order}H", f"{order}HHI4x")
        case b"+":
            return _TiffFormat(f"{order}8xQ", f"{order}Q", f"{order}HHQ8x")
    return None
