"""Call a webhook: one POST, connected to exactly the address that was checked.

The host is resolved once. All of its addresses must be public, unless private addresses are allowed; addresses of
metadata services are always refused. The connection goes to a checked address, and TLS verifies the certificate for
the host of the URL. Redirects are not followed, proxies of the environment are not used, and the body of the response
is discarded.
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import orjson

from dagmaster.errors import InvalidRequest, Unavailable
from dagmaster.ip_addresses import is_metadata, is_public

CONNECT_SECONDS: Final = 5.0  # including name resolution and TLS
TOTAL_SECONDS: Final = 10.0
BODY_SECONDS: Final = 1.0  # for a body that is discarded anyway
MAX_HEAD_BYTES: Final = 16 * 1024
MAX_BODY_BYTES: Final = 64 * 1024
_MAX_ADDRESSES: Final = 4
_RESOLVERS: Final = 8
_FINAL_STATUS: Final = 200  # after a lower status, another response follows

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


@dataclass(frozen=True, slots=True)
class _WebhookTarget:
    """The parts of a URL that a connection needs."""

    host: str
    port: int
    is_secure: bool
    netloc: str
    path: str


async def post(url: str, content: Any, *, allow_private: bool) -> None:
    """Post JSON. Raises if the address is refused, no response arrives in time, or its status is not a success."""
    status = await send(url, orjson.dumps(content), {}, allow_private=allow_private)
    if not 200 <= status < 300:
        raise Unavailable(f"the webhook responded with status {status}", code="webhook.refused", status=status)


async def send(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    *,
    allow_private: bool,
    resolve: Resolve | None = None,
    tls: ssl.SSLContext | None = None,
) -> int:
    """Post a JSON body, and return the status of the response. Raises `InvalidRequest` if the address is refused, and
    `Unavailable` if no response arrives in time."""
    target = _target_of(url)
    try:
        async with asyncio.timeout(TOTAL_SECONDS):
            reader, writer = await _connect(target, resolve or _resolve, tls, allow_private=allow_private)
            try:
                writer.write(_request(target, body, headers))
                await writer.drain()
                status = await _read_status(reader)
                await _discard_body(reader)
                return status
            finally:
                writer.transport.abort()
    except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError, ValueError) as error:
        raise Unavailable(f"the webhook was not reached: {_problem(error)}", code="webhook.unreachable") from error


async def _connect(
    target: _WebhookTarget, resolve: Resolve, tls: ssl.SSLContext | None, *, allow_private: bool
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            addresses = _checked(target.host, await resolve(target.host, target.port), allow_private=allow_private)
            context = (tls or await asyncio.to_thread(_default_tls)) if target.is_secure else None
            return await _connect_to_any(target, addresses[:_MAX_ADDRESSES], context)
    except TimeoutError:
        raise ConnectionError(f"no connection within {CONNECT_SECONDS:g} s") from None


async def _connect_to_any(
    target: _WebhookTarget, addresses: Sequence[str], tls: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the first address that accepts. Each gets its share of the time."""
    failure: Exception = OSError("no address")
    for address in addresses:
        try:
            async with asyncio.timeout(CONNECT_SECONDS / len(addresses)):
                return await asyncio.open_connection(
                    address,
                    target.port,
                    ssl=tls,
                    server_hostname=target.host if tls else None,
                    limit=MAX_HEAD_BYTES,
                )
        except ssl.SSLError:
            raise
        except (OSError, TimeoutError) as error:
            failure = error
    raise failure


def _checked(host: str, addresses: Sequence[str], *, allow_private: bool) -> Sequence[str]:
    """All addresses of a host, if each of them is allowed."""
    if not addresses:
        raise OSError("its host has no address")
    if any(map(is_metadata, addresses)):
        raise InvalidRequest(f"the webhook's host {host} has the address of a metadata service", code="webhook.private")
    if not allow_private and not all(map(is_public, addresses)):
        raise InvalidRequest(
            f"the webhook's host {host} has an address that is not public",
            code="webhook.private",
            hint="set ALLOW_PRIVATE_WEBHOOKS=true if it is meant to be reached inside your network",
        )
    return addresses


def _target_of(url: str) -> _WebhookTarget:
    if not url.isascii() or any(character <= " " or character == "\x7f" for character in url):
        raise InvalidRequest("the URL of the webhook has invalid characters", code="webhook.bad-url")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise InvalidRequest("the URL of the webhook has an invalid host or port", code="webhook.bad-url") from None
    if parts.scheme not in {"http", "https"} or not host or "@" in parts.netloc:
        raise InvalidRequest(
            "the URL of the webhook must be http or https, without a user name", code="webhook.bad-url"
        )
    is_secure = parts.scheme == "https"
    return _WebhookTarget(host, port or (443 if is_secure else 80), is_secure, parts.netloc, _path(parts))


def _path(parts: SplitResult) -> str:
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _request(target: _WebhookTarget, body: bytes, headers: Mapping[str, str]) -> bytes:
    fixed = {
        "Host": target.netloc,
        "User-Agent": "dagmaster",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Connection": "close",
    }
    lines = [f"POST {target.path} HTTP/1.1", *(f"{name}: {value}" for name, value in {**fixed, **headers}.items())]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + body


async def _read_status(reader: asyncio.StreamReader) -> int:
    """The status of the final response, after informational ones (1xx)."""
    for _ in range(10):
        head = await reader.readuntil(b"\r\n\r\n")
        line = head.split(b"\r\n", 1)[0].split(None, 2)
        if len(line) < 2 or not line[0].startswith(b"HTTP/1.") or len(line[1]) != 3 or not line[1].isdigit():
            raise ValueError("the response is not HTTP/1.1")
        if (status := int(line[1])) >= _FINAL_STATUS:
            return status
    raise ValueError("it sent only informational responses")


async def _discard_body(reader: asyncio.StreamReader) -> None:
    """Read some of the body, because a server may treat a connection that is closed early as an error."""
    size = 0
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(BODY_SECONDS):
            while size < MAX_BODY_BYTES and (part := await reader.read(MAX_HEAD_BYTES)):
                size += len(part)


def _problem(error: Exception) -> str:
    """What went wrong, without anything that the other side has sent."""
    match error:
        case ssl.SSLCertVerificationError():
            return f"its certificate is not accepted ({error.verify_message})"
        case ssl.SSLError():
            return f"TLS failed ({error.reason or type(error).__name__})"
        case socket.gaierror():
            return "its host cannot be resolved"
        case ConnectionRefusedError():
            return "connection refused"
        case ConnectionResetError() | BrokenPipeError() | EOFError():
            return "it closed the connection without a response"
        case TimeoutError():
            return f"no response within {TOTAL_SECONDS:g} s"
        case asyncio.LimitOverrunError():
            return f"the head of its response exceeds {MAX_HEAD_BYTES} bytes"
        case OSError() if error.strerror:
            return error.strerror.lower()
    return str(error)


async def _resolve(host: str, port: int) -> list[str]:
    """All addresses of a host. Resolved in separate threads, because a name server that does not respond blocks a
    thread for longer than we wait."""
    entries = await asyncio.get_running_loop().run_in_executor(
        _resolvers(), lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    )
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


@cache
def _resolvers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_RESOLVERS, "webhook-resolver")


@cache
def _default_tls() -> ssl.SSLContext:
    """Created once, because reading the certificates of the system takes a while."""
    return ssl.create_default_context()
