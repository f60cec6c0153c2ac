"""Join images into a cloud-optimised GeoTIFF.

GDAL encodes each image of the pyramid into a separate tiled TIFF: its tags and compressed blocks are final, but the
order of a COG is different. This module copies the blocks, without decoding them, into one file:

    header · ghost area (GDAL's description of the layout) · directories: image, mask, overviews …
    · blocks, smallest overview first

Each block is preceded by its size and followed by a copy of its last four bytes, as the ghost area declares, so that a
reader gets a block of unknown size with one request.
"""

import hashlib
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from dagmaster.errors import Unavailable

_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}
_SHORT, _LONG, _LONG8 = 3, 4, 16
_SUBFILE_TYPE, _PHOTOMETRIC, _TILE_OFFSETS, _TILE_SIZES = 254, 262, 324, 325
_MASK_PHOTOMETRIC = 4
_CLASSIC_LIMIT = 2**31  # some readers use signed offsets

_LAYOUT = (
    "LAYOUT=IFDS_BEFORE_DATA\nBLOCK_ORDER=ROW_MAJOR\nBLOCK_LEADER=SIZE_AS_UINT4\n"
    "BLOCK_TRAILER=LAST_4_BYTES_REPEATED\nKNOWN_INCOMPATIBLE_EDITION=NO\n "
)
_GHOST = f"GDAL_STRUCTURAL_METADATA_SIZE={len(_LAYOUT):06} bytes\n{_LAYOUT}".encode()


@dataclass(frozen=True, slots=True)
class Image:
    """A tiled BigTIFF of one directory, and its role in the COG."""

    path: Path
    is_overview: bool = False
    is_mask: bool = False
    min_blocks: int = 0  # the number of blocks that it must contain


@dataclass(frozen=True, slots=True)
class JoinedFile:
    size_bytes: int
    sha256: str


@dataclass(slots=True)
class _Directory:
    entries: dict[int, tuple[int, int, bytes]]  # tag: type, count, value
    blocks: list[tuple[int, int]]  # offset and size in the source file; 0, 0: not stored
    file: BinaryIO

    def stored_bytes(self) -> int:
        return sum(size + 8 for _, size in self.blocks if size)


def join(images: Sequence[Image], target: Path) -> JoinedFile:
    """Write `target` from the images: the full one first, each mask after its image, overviews from large to small."""
    with ExitStack() as files:
        directories = [_directory(image, files) for image in images]
        total = sum(directory.stored_bytes() for directory in directories)
        offset_format = _OffsetFormat(is_big=total + 2**20 > _CLASSIC_LIMIT)
        hasher = hashlib.sha256()
        size = 0
        with target.open("wb") as file:
            for part in _parts(directories, offset_format):
                hasher.update(part)
                file.write(part)
                size += len(part)
            _sync(file)
    return JoinedFile(size, hasher.hexdigest())


@dataclass(frozen=True, slots=True)
class _OffsetFormat:
    """Classic TIFF or BigTIFF: the width of counts and offsets."""

    is_big: bool

    @property
    def header(self) -> bytes:
        if self.is_big:
            return struct.pack("<2sHHHQ", b"II", 43, 8, 0, self.first_directory)
        return struct.pack("<2sHI", b"II", 42, self.first_directory)

    @property
    def first_directory(self) -> int:
        return _even((16 if self.is_big else 8) + len(_GHOST))

    def directory_size(self, directory: _Directory) -> int:
        count = len(directory.entries)
        fixed = 8 + 20 * count + 8 if self.is_big else 2 + 12 * count + 4
        return fixed + sum(_even(len(value)) for _, _, value in directory.entries.values() if len(value) > self.inline)

    @property
    def inline(self) -> int:
        return 8 if self.is_big else 4

    def pack(self, directory: _Directory, offset: int, following: int) -> bytes:
        """A directory at an offset, with its long values behind it. `following` is the offset of the next directory."""
        entries = sorted(directory.entries.items())
        value_offset = offset + (16 + 20 * len(entries) if self.is_big else 6 + 12 * len(entries))
        head = [struct.pack("<Q" if self.is_big else "<H", len(entries))]
        tail = []
        for tag, (kind, count, value) in entries:
            head.append(struct.pack("<HHQ" if self.is_big else "<HHI", tag, kind, count))
            if len(value) <= self.inline:
                head.append(value.ljust(self.inline, b"\0"))
            else:
                head.append(self._packed(value_offset))
                tail.append(value.ljust(_even(len(value)), b"\0"))
                value_offset += len(tail[-1])
        return b"".join([*head, self._packed(following), *tail])

    def _packed(self, offset: int) -> bytes:
        return struct.pack("<Q" if self.is_big else "<I", offset)

    def offsets(self, offsets: list[int]) -> tuple[int, int, bytes]:
        kind, letter = (_LONG8, "Q") if self.is_big else (_LONG, "I")
        return kind, len(offsets), struct.pack(f"<{len(offsets)}{letter}", *offsets)


def _parts(directories: list[_Directory], form: _OffsetFormat) -> Iterator[bytes]:
    for directory in directories:
        sizes = [size for _, size in directory.blocks]
        directory.entries[_TILE_SIZES] = _LONG, len(sizes), struct.pack(f"<{len(sizes)}I", *sizes)
        directory.entries[_TILE_OFFSETS] = form.offsets([0] * len(sizes))
    offsets = [form.first_directory]
    for directory in directories:
        offsets.append(offsets[-1] + form.directory_size(directory))
    _place_blocks(directories, form, offsets[-1])

    yield (form.header + _GHOST).ljust(form.first_directory, b"\0")
    for directory, offset, following in zip(directories, offsets[:-1], [*offsets[1:-1], 0], strict=True):
        yield form.pack(directory, offset, following)
    for directory in reversed(directories):
        yield from _blocks(directory)


def _place_blocks(directories: list[_Directory], form: _OffsetFormat, start: int) -> None:
    for directory in reversed(directories):
        offsets = []
        for _, size in directory.blocks:
            offsets.append(start + 4 if size else 0)
            start += size + 8 if size else 0
        directory.entries[_TILE_OFFSETS] = form.offsets(offsets)


def _blocks(directory: _Directory) -> Iterator[bytes]:
    for offset, size in directory.blocks:
        if size:
            block = _read(directory.file, offset, size)
            yield b"".join([struct.pack("<I", size), block, block[-4:].rjust(4, b"\0")])


def _directory(image: Image, files: ExitStack) -> _Directory:
    file = files.enter_context(image.path.open("rb"))
    mark, version, _, _, start = struct.unpack("<2sHHHQ", _read(file, 0, 16))
    if (mark, version) != (b"II", 43):
        raise ValueError("not a little-endian BigTIFF")
    (count,) = struct.unpack("<Q", _read(file, start, 8))
    entries = dict(_entry(file, _read(file, start + 8 + 20 * index, 20)) for index in range(count))
    offsets, sizes = _numbers(*entries[_TILE_OFFSETS]), _numbers(*entries[_TILE_SIZES])
    entries[_SUBFILE_TYPE] = _LONG, 1, struct.pack("<I", image.is_overview + 4 * image.is_mask)
    if image.is_mask:
        entries[_PHOTOMETRIC] = _SHORT, 1, struct.pack("<H", _MASK_PHOTOMETRIC)
    if sum(size > 0 for size in sizes) < image.min_blocks:
        # GDAL writes blocks late, and does not report an error if that fails.
        raise Unavailable(
            "blocks of a COG were not written", code="raster.write-failed", hint="check whether the disk is full"
        )
    return _Directory(entries, list(zip(offsets, sizes, strict=True)), file)


def _entry(file: BinaryIO, entry: bytes) -> tuple[int, tuple[int, int, bytes]]:
    tag, kind, count = struct.unpack_from("<HHQ", entry)
    size = _SIZES[kind] * count
    (offset,) = struct.unpack_from("<Q", entry, 12)
    value = entry[12 : 12 + size] if size <= 8 else _read(file, offset, size)
    return tag, (kind, count, value)


def _read(file: BinaryIO, offset: int, size: int) -> bytes:
    # Not mmap: its pages would count as memory of this process.
    content = os.pread(file.fileno(), size, offset)
    if len(content) != size:
        raise Unavailable(
            "a temporary file of a COG is incomplete", code="raster.write-failed", hint="check whether the disk is full"
        )
    return content


def _numbers(kind: int, count: int, value: bytes) -> tuple[int, ...]:
    letter = {_SHORT: "H", _LONG: "I", _LONG8: "Q"}[kind]
    return struct.unpack(f"<{count}{letter}", value)


def _even(size: int) -> int:
    return size + size % 2


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
