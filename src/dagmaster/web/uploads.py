"""What the servers that receive uploads share: the bodies of requests, a piece at a time, and headers of the protocol.

The protocol is tus 1.0.0 (https://tus.io/protocols/resumable-upload): core, creation, expiration and termination. A
client may leave out `Tus-Resumable`; another version than ours is refused.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import Scope

from dagmaster.client.models.uploads import TUS_VERSION
from dagmaster.errors import InvalidRequest, Unavailable

EXTENSIONS: Final = "creation,expiration,termination"
STALL_SECONDS: Final = 20.0


async def body_of(request: Request, stall_seconds: float = STALL_SECONDS) -> AsyncIterator[bytes]:
    """The parts of a body as they arrive. A request is ended if no bytes arrive for a while: until then no other
    request can continue the upload."""
    stream = request.stream()
    while True:
        try:
            async with asyncio.timeout(stall_seconds):
                chunk = await anext(stream, b"")
        except TimeoutError:
            raise Unavailable(
                f"no bytes have arrived for {stall_seconds:g} seconds",
                code="upload.stalled",
                hint="the bytes that have arrived are kept: request the offset with HEAD, and continue there",
            ) from None
        if not chunk:  # the stream ends with an empty piece
            return
        yield chunk


def check_version(request: Request) -> None:
    if request.headers.get("tus-resumable", TUS_VERSION) != TUS_VERSION:
        raise InvalidRequest(
            "this version of the tus protocol is not supported",
            code="upload.protocol-version",
            hint=f"use version {TUS_VERSION}",
        )


def length_of(request: Request) -> int | None:
    """The length of the body, if the request announces it."""
    text = request.headers.get("content-length", "")
    if text.isascii() and text.isdigit():
        return int(text)
    return None if "transfer-encoding" in request.headers else 0


def mark_version(scope: Scope, headers: MutableHeaders, below: str) -> None:
    """Every response about uploads, including problems, has the version of the protocol."""
    if scope["path"] == below or scope["path"].startswith(f"{below}/"):
        headers["Tus-Resumable"] = TUS_VERSION
        headers["Tus-Version"] = TUS_VERSION


def is_chunk(scope: Scope, below: str) -> bool:
    """Whether the body of a request is a part of an upload."""
    path: str = scope["path"]
    return scope["method"] == "PATCH" and path.startswith(f"{below}/")
