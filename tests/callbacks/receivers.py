"""Receivers of webhooks on loopback, with the faults that a test needs."""

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@dataclass
class Received:
    """A request as it was received."""

    line: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """Responds with each of `answers` in turn, and then always with the last one. Records every request."""

    answers: list[bytes]
    requests: list[Received] = field(default_factory=list)
    port: int = 0
    scheme: str = "http"
    delay_seconds: float = 0.0

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/hook?a=1"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.requests.append(await read_request(reader))
            response = self.answers[min(len(self.requests), len(self.answers)) - 1]
            await asyncio.sleep(self.delay_seconds)
            writer.write(response)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


async def read_request(reader: asyncio.StreamReader) -> Received:
    line, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in lines)}
    return Received(line, headers, await reader.readexactly(int(headers["content-length"])))


@asynccontextmanager
async def receiver(*answers: bytes, delay_seconds: float = 0.0) -> AsyncIterator[Receiver]:
    receiver = Receiver(list(answers or (OK,)), delay_seconds=delay_seconds)
    async with listening(receiver.serve) as port:
        receiver.port = port
        yield receiver


@asynccontextmanager
async def listening(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    tls: ssl.SSLContext | None = None,
    port: int = 0,
) -> AsyncIterator[int]:
    server = await asyncio.start_server(serve, "127.0.0.1", port, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def status(code: int, *headers: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {code} Whatever", *headers, "Content-Length: 0", "", ""]).encode()


@dataclass(frozen=True)
class Certificates:
    """A server with a certificate for `host`, and a client that trusts only its issuer."""

    server: ssl.SSLContext
    client: ssl.SSLContext


def certificates(folder: Path, host: str) -> Certificates:
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test"
    options = ["-addext", f"subjectAltName=DNS:{host}", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command.split(), *options], check=True, capture_output=True)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(certificate, key)
    return Certificates(server, ssl.create_default_context(cafile=str(certificate)))
