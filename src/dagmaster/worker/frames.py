"""The protocol between a worker and its child processes: length-prefixed JSON frames over a socket pair. A large output
follows its frame as raw bytes (`attached` is their number), so that the worker can forward it without parsing it.

worker → child    start, run, answer, flush, cancel, shutdown
child → worker    ready, progress, log, ask (save_checkpoint | load_checkpoints | results | database), done, failed,
                  returned

While a release is installed over another one, a worker of the old release starts children from the new code. So the
names of frames and of their fields do not change.
"""

import asyncio
import socket
import struct
import threading
from dataclasses import dataclass
from typing import Any

import orjson

MAX_FRAME_BYTES = 110 * 1024 * 1024  # the largest output and its envelope
REQUEST, RESPONSE = "ask", "answer"  # the kinds of these frames; the names are those of the first release
_CHUNK_BYTES = 1024 * 1024
_LENGTH = struct.Struct("!I")

Frame = dict[str, Any]


class BrokenChannel(Exception):
    """The other process has ended or sent an invalid frame."""


def pack(frame: Frame) -> bytes:
    return with_length(body_of(frame))


def body_of(frame: Frame) -> bytes:
    # Values in log lines may have any type: those that JSON does not support are sent as text.
    body = orjson.dumps(frame, default=str, option=orjson.OPT_NON_STR_KEYS)
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {len(body):,} bytes is too large; at most {MAX_FRAME_BYTES:,} are allowed")
    return body


def with_length(body: bytes) -> bytes:
    return _LENGTH.pack(len(body)) + body


def _length(header: bytes) -> int:
    (length,) = _LENGTH.unpack(header)
    return _checked(int(length))


def _checked(length: int) -> int:
    if length > MAX_FRAME_BYTES:
        raise BrokenChannel(f"a frame announces {length:,} bytes; at most {MAX_FRAME_BYTES:,} are allowed")
    return length


def _unpack(body: bytes) -> Frame:
    try:
        frame: Frame = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BrokenChannel(f"a frame is not JSON: {error}") from None
    return frame


@dataclass(frozen=True, slots=True)
class Packed:
    body: bytes
    frame: Frame
    attached: bytearray | None = None


def unpack(packed: Packed) -> tuple[Frame, int]:
    if packed.attached is not None:
        packed.frame["attached"] = packed.attached
    return packed.frame, len(packed.body)


def packed_of(body: bytes, attached: bytes | None) -> Packed:
    """A frame that was forwarded with its attached bytes."""
    return Packed(body, _unpack(body), None if attached is None else bytearray(attached))


async def read(reader: asyncio.StreamReader) -> tuple[Frame, int]:
    """The next frame and its size. The attached bytes replace their number in the frame."""
    return unpack(await read_packed(reader))


async def read_packed(reader: asyncio.StreamReader) -> Packed:
    """The next frame as JSON, and the bytes that are attached to it."""
    try:
        length = _length(await reader.readexactly(_LENGTH.size))
        body = await reader.readexactly(length)
        frame = _unpack(body)
        attached = frame.get("attached")
        return Packed(body, frame, await _attached(reader, _checked(attached)) if attached else None)
    except (asyncio.IncompleteReadError, OSError) as error:
        raise BrokenChannel("the channel is closed") from error


async def _attached(reader: asyncio.StreamReader, length: int) -> bytearray:
    """Read in chunks; read in one call, the bytes would be in memory twice."""
    content = bytearray()
    while len(content) < length:
        chunk = await reader.read(min(length - len(content), _CHUNK_BYTES))
        if not chunk:
            raise BrokenChannel("the channel is closed")
        content += chunk
    return content


class Channel:
    """The child's end of the socket pair: blocking, one reader, many writers."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()

    def send(self, frame: Frame, attached: bytes = b"") -> None:
        self.send_packed(pack({**frame, "attached": len(attached)} if attached else frame), attached)

    def send_packed(self, packed: bytes, attached: bytes = b"") -> None:
        with self._sending:
            self._connection.sendall(packed)
            if attached:
                self._connection.sendall(attached)

    def receive(self) -> Frame:
        return _unpack(self._exactly(_length(self._exactly(_LENGTH.size))))

    def _exactly(self, count: int) -> bytes:
        parts = bytearray(count)
        view = memoryview(parts)
        while view:
            received = self._connection.recv_into(view)
            if not received:
                raise BrokenChannel("the channel is closed")
            view = view[received:]
        return bytes(parts)
