"""A look at the first directory of a TIFF before GDAL reads it.

GDAL parses the XML of its own metadata tag while it opens a file, in time that grows with the square of the number of entries: ten
megabytes of them take minutes. What no writer makes is refused here, for the cost of one read.
"""

import os
import struct
from dataclasses import dataclass

from dagmaster.errors import UnfitData

_TEXTS = {270: "description", 42112: "metadata", 42113: "nodata value", 34737: "CRS"}
_MOST_BYTES = {270: 64 * 2**20, 42112: 2**20, 42113: 1024, 34737: 2**16}
_MOST_ENTRIES = 4096


@dataclass(frozen=True, slots=True)
class _TiffFormat:
    """Of a classic TIFF or a BigTIFF, for `struct`: byte order and widths."""

    header: str  # where the first directory is
    count: str
    entry: str


def require_small_texts(path: str, name: str) -> None:
    """Refuse a TIFF whose texts are absurdly long. Everything else about it is for GDAL to judge."""
    with open(path, "rb") as file:  # noqa: PTH123  (a path for GDAL)
        for tag, count in _entries(file.fileno()):
            if count > _MOST_BYTES.get(tag, count):
                raise UnfitData(
                    f"the {_TEXTS[tag]} in the header of '{name}' has {count:,} bytes",
                    code="raster.header-too-large",
                    hint="export it anew without it: `gdal_translate -nomd in.tif out.tif`",
                )


def _entries(file: int) -> list[tuple[int, int]]:
    """Tags of the first directory, with how many values each has; none where it is no TIFF or is cut off."""
    form = _form(os.pread(file, 4, 0))
    if form is None:
        return []
    try:
        (place,) = struct.unpack(form.header, os.pread(file, struct.calcsize(form.header), 0))
        (entries,) = struct.unpack(form.count, os.pread(file, struct.calcsize(form.count), place))
        size = struct.calcsize(form.entry)
        block = os.pread(file, size * min(entries, _MOST_ENTRIES), place + struct.calcsize(form.count))
    except (struct.error, OSError):
        return []
    whole = len(block) // size * size
    return [(tag, count) for tag, _, count in struct.iter_unpack(form.entry, block[:whole])]


def _form(start: bytes) -> _TiffFormat | None:
    order = {b"II": "<", b"MM": ">"}.get(start[:2])
    if order is None:
        return None
    match start[2:].strip(b"\0"):
        case b"*":
            return _TiffFormat(f"{order}4xI", f"{order}H", f"{order}HHI4x")
        case b"+":
            return _TiffFormat(f"{order}8xQ", f"{order}Q", f"{order}HHQ8x")
    return None
