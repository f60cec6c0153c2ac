"""An app on a port: it starts, finishes what is under way when told, and gives the port back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from fastapi import FastAPI
from httpx2 import AsyncClient

from dagmaster.listen import bind
from dagmaster.web.server import WebServer


async def test_what_is_under_way_is_finished_and_the_port_given_back():
    app, is_asked, may_answer = FastAPI(), asyncio.Event(), asyncio.Event()

    @app.get("/slow")
    async def slow() -> str:
        is_asked.set()
        await may_answer.wait()
        return "done"

    server = WebServer(app, bind("127.0.0.1", 0))
    running = asyncio.create_task(server.run())
    await asyncio.wait_for(server.until_started(), 10)
    async with AsyncClient(base_url=server.url) as client:
        asked = asyncio.create_task(client.get("/slow"))
        await asyncio.wait_for(is_asked.wait(), 10)
        port = int(server.url.rpartition(":")[2])
        server.finish()
        may_answer.set()
        answer = await asyncio.wait_for(asked, 10)
        await asyncio.wait_for(running, 10)

    assert answer.json() == "done"
    assert "server" not in answer.headers
    with bind("127.0.0.1", port):
        pass


async def test_waiting_for_a_failed_start_ends():
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
