"""Call a webhook: one POST of JSON, connected to exactly the address that was checked.

The name is resolved once, and all its addresses must be public unless private ones are allowed; a second resolution
could return others. Redirects are not followed, and the body of the response is not read.
"""

import asyncio
import ssl
from ipaddress import IPv6Address, ip_address
from typing import Any, Final
from urllib.parse import urlsplit

import orjson

from dagmaster.errors import InvalidRequest, Unavailable

PATIENCE_SECONDS: Final = 5.0
_LONGEST_ANSWER: Final = 1024


async def post(url: str, content: Any, *, allow_private: bool) -> None:
    """Raises if the address is refused, the response is late, or its status is not a success."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            status = await _post(url, orjson.dumps(content), allow_private)
    except (OSError, TimeoutError, ssl.SSLError) as error:
        raise Unavailable(f"the webhook was not reached: {type(error).__name__}", code="webhook.unreachable") from error
    if not 200 <= status < 300:
        raise Unavailable(f"the webhook answered {status}", code="webhook.refused", status=status)


async def _post(url: str, body: bytes, allow_private: bool) -> int:
    parts = urlsplit(url)
    host, is_secure = parts.hostname or "", parts.scheme == "https"
    port = parts.port or (443 if is_secure else 80)
    address = await _vetted(host, port, allow_private)
    reader, writer = await asyncio.open_connection(
        address,
        port,
        ssl=ssl.create_default_context() if is_secure else None,
        server_hostname=host if is_secure else None,
    )
    try:
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nUser-Agent: dagmaster\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode("ascii") + body)
        await writer.drain()
        line = (await reader.read(_LONGEST_ANSWER)).split(b"\r\n", 1)[0].split()
        return int(line[1]) if len(line) > 1 and line[1].isdigit() else 0
    finally:
        writer.close()


async def _vetted(host: str, port: int, allow_private: bool) -> str:
    entries = await asyncio.get_running_loop().getaddrinfo(host, port, type=1)
    addresses = [str(entry[4][0]) for entry in entries]
    if not addresses or not (allow_private or all(map(_is_public, addresses))):
        raise InvalidRequest(
            f"the webhook's host {host} has no public address",
            code="webhook.private",
            hint="set ALLOW_PRIVATE_WEBHOOKS=true if it is meant to be reached inside your network",
        )
    return addresses[0]


def _is_public(text: str) -> bool:
    address = ip_address(text.partition("%")[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    return address.is_global and not address.is_multicast
