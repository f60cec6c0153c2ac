"""An app on a port: it starts, finishes the open requests when it is stopped, and releases the port."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from fastapi import FastAPI, Request
from httpx2 import AsyncClient

from dagmaster.api.server import ApiServer
from dagmaster.listen import bind
from dagmaster.serving.server import MapServer
from dagmaster.web.server import TimedProtocol, WebServer


async def test_a_stopped_server_finishes_open_requests_and_releases_the_port():
    app, has_arrived, may_answer = FastAPI(), asyncio.Event(), asyncio.Event()

    @app.get("/slow")
    async def slow() -> str:
        has_arrived.set()
        await may_answer.wait()
        return "done"

    server = WebServer(app, bind("127.0.0.1", 0))
    running = asyncio.create_task(server.run())
    await asyncio.wait_for(server.until_started(), 10)
    async with AsyncClient(base_url=server.url) as client:
        request = asyncio.create_task(client.get("/slow"))
        await asyncio.wait_for(has_arrived.wait(), 10)
        port = int(server.url.rpartition(":")[2])
        server.finish()
        may_answer.set()
        response = await asyncio.wait_for(request, 10)
        await asyncio.wait_for(running, 10)

    assert response.json() == "done"
    assert "server" not in response.headers
    with bind("127.0.0.1", port):
        pass


async def test_waiting_for_a_start_ends_when_the_start_fails():
    @asynccontextmanager
    async def failing(_app: FastAPI) -> AsyncIterator[None]:
        raise RuntimeError("it can't")
        yield

    bound = bind("127.0.0.1", 0)
    server = WebServer(FastAPI(lifespan=failing), bound)
    with pytest.raises(SystemExit):
        await server.run()
    await asyncio.wait_for(server.until_started(), 1)

    assert not server.is_started
    assert bound.fileno() == -1


@pytest.mark.parametrize(
    ("trusted", "client", "scheme"),
    [
        ((), "127.0.0.1", "http"),
        (("10.0.0.0/8",), "127.0.0.1", "http"),
        (("127.0.0.1",), "198.51.100.7", "https"),
        (("127.0.0.0/8", "198.51.100.0/24"), "203.0.113.5", "https"),
    ],
)
async def test_forwarded_headers_are_used_only_from_trusted_proxies(trusted, client, scheme):
    """The last address that is not a proxy counts: the client could have written the ones before it."""
    app = FastAPI()

    @app.get("/client")
    async def get_client(request: Request) -> list[str]:
        return [request.client.host, request.url.scheme]

    server = WebServer(app, bind("127.0.0.1", 0), trusted)
    running = asyncio.create_task(server.run())
    await asyncio.wait_for(server.until_started(), 10)
    async with AsyncClient(base_url=server.url) as http:
        headers = {"X-Forwarded-For": "1.1.1.1, 203.0.113.5, 198.51.100.7", "X-Forwarded-Proto": "https"}
        response = await http.get("/client", headers=headers)
    server.finish()
    await asyncio.wait_for(running, 10)

    assert response.json() == [client, scheme]


HEAD = b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 4\r\n\r\n"
UNFINISHED = {
    "nothing": b"",
    "half a request line": b"POST /ec",
    "half the headers": HEAD[:60],
    "headers without their end": HEAD[:-2],
    "no body": HEAD,
    "half a body": HEAD + b'"a',
    "half a chunk": HEAD.replace(b"Content-Length: 4", b"Transfer-Encoding: chunked") + b"4\r\n12",
    "half a second request": HEAD + b'"ab"' + HEAD[:30],
}


@asynccontextmanager
async def serving(kind: type[WebServer]) -> AsyncIterator[int]:
    """The port of a server that echoes what is posted."""
    app = FastAPI()

    @app.post("/echo")
    async def echo(request: Request) -> str:
        return (await request.body()).decode()

    server = kind(app, bind("127.0.0.1", 0))
    running = asyncio.create_task(server.run())
    await asyncio.wait_for(server.until_started(), 10)
    yield int(server.url.rpartition(":")[2])
    server.finish()
    await asyncio.wait_for(running, 10)


@pytest.fixture
def short_times(monkeypatch):
    monkeypatch.setattr(TimedProtocol, "head_seconds", 0.5)
    monkeypatch.setattr(TimedProtocol, "body_seconds", 0.5)


async def received(port: int, sent: bytes, *, byte_by_byte: bytes = b"") -> tuple[bytes, float]:
    """The bytes that the server sends until it closes the connection, and the seconds until then."""
    started = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)

    async def drip() -> None:
        for byte in byte_by_byte:
            await asyncio.sleep(0.1)
            writer.write(bytes([byte]))

    dripping = asyncio.create_task(drip())
    response = await asyncio.wait_for(reader.read(), 10)
    dripping.cancel()
    writer.close()
    return response, time.monotonic() - started


@pytest.mark.requirement("X3")
@pytest.mark.parametrize("kind", [ApiServer, MapServer])
async def test_a_request_that_is_not_sent_completely_is_closed(kind, short_times):
    async with serving(kind) as port:
        responses = dict(
            zip(UNFINISHED, await asyncio.gather(*(received(port, sent) for sent in UNFINISHED.values())), strict=True)
        )

    assert max(seconds for _, seconds in responses.values()) < 3
    for name, (response, _) in responses.items():
        assert response.rpartition(b"HTTP/1.1 ")[2].startswith(b"408"), name
    assert b"200 OK" in responses["half a second request"][0]


@pytest.mark.requirement("X3")
@pytest.mark.parametrize("sent", [b"", HEAD[:-2], HEAD.replace(b": 4", b": 400")], ids=["head", "headers", "body"])
async def test_sending_a_request_byte_by_byte_does_not_extend_its_time_limit(sent, short_times):
    async with serving(WebServer) as port:
        response, seconds = await received(port, sent, byte_by_byte=b"X-Slow: " + b"a" * 90)

    assert response.startswith(b"HTTP/1.1 408")
    assert seconds < 3


@pytest.mark.requirement("X3")
async def test_time_between_and_after_complete_requests_is_not_limited(short_times):
    async with serving(WebServer) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        responses = []
        for _ in range(2):
            writer.write(HEAD + b'"ab"')
            responses.append(await asyncio.wait_for(reader.readuntil(b'"\\"ab\\""'), 5))
            await asyncio.sleep(0.8)
        writer.close()

    assert all(response.startswith(b"HTTP/1.1 200") for response in responses)


@pytest.mark.requirement("X3")
async def test_a_handler_may_take_longer_than_the_time_limit_of_a_request(short_times):
    app = FastAPI()

    @app.get("/slow")
    async def slow() -> str:
        await asyncio.sleep(1.2)
        return "done"

    server = WebServer(app, bind("127.0.0.1", 0))
    running = asyncio.create_task(server.run())
    await asyncio.wait_for(server.until_started(), 10)
    async with AsyncClient(base_url=server.url) as client:
        response = await client.get("/slow")
    server.finish()
    await asyncio.wait_for(running, 10)

    assert response.json() == "done"
