"""The stream of the events of a job: no gaps or repeats, however often the connection is lost, and many clients."""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import pytest
from httpx2 import AsyncClient

from tests.api.serving import V1, app_of, ok, served
from tests.engine.harness import Engine, engine, open_gate, until, workflow

pytestmark = pytest.mark.requirement("O1")

STEPS = """
    workflow_id: steps
    nodes:
      start: {type: start, next: one}
      one: {handler: echo, next: busy}
      busy: {handler: gate, next: two}
      two: {handler: echo, next: end}
      end: {type: end}
"""


async def frames(
    client: AsyncClient, job_id: UUID, last: int | None = None, **params: Any
) -> AsyncIterator[dict[str, Any]]:
    """The events of a stream, parsed as a browser does, and its comments."""
    headers = {} if last is None else {"Last-Event-ID": str(last)}
    path = f"{V1}/jobs/{job_id}/events/stream"
    async with client.stream("GET", path, headers=headers, params=params, timeout=30) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"].startswith("text/event-stream")
        frame: dict[str, Any] = {}
        async for line in response.aiter_lines():
            name, _, value = line.partition(": ")
            if line.startswith(":"):
                yield {"comment": line}
            elif line:
                frame[name] = value
            elif "data" in frame:
                yield {"id": int(frame["id"]), "type": frame["event"], **json.loads(frame["data"])}
                frame = {}


async def all_of(client: AsyncClient, job_id: UUID, last: int | None = None) -> list[dict[str, Any]]:
    return [event async for event in frames(client, job_id, last) if "id" in event]


async def written(running: Engine, job_id: UUID) -> list[tuple[int, str]]:
    return [(event["sequence"], event["event_type"]) for event in await running.events(job_id)]


def seen(events: list[dict[str, Any]]) -> list[tuple[int, str]]:
    assert all(event["id"] == event["sequence"] for event in events)
    return [(event["sequence"], event["type"]) for event in events]


async def test_a_stream_sends_every_event_and_ends_with_the_job(database):
    async with engine(database) as running:
        job_id = await running.submit(workflow(STEPS))
        app = app_of(database, running)
        async with served(app) as server, AsyncClient(base_url=server.url) as client:
            watching = asyncio.create_task(all_of(client, job_id))
            await until(lambda: asyncio.sleep(0, app.state.services.events.watchers == 1))
            open_gate(job_id)
            events = await asyncio.wait_for(watching, 20)

        assert seen(events) == await written(running, job_id)
        assert events[-1]["type"] == "job_completed"


async def test_a_cut_stream_continues_with_exactly_the_missing_events(database):
    async with engine(database) as running:
        job_id = await running.submit(workflow(STEPS))
        async with served(app_of(database, running)) as server:
            first: list[dict[str, Any]] = []
            async with AsyncClient(base_url=server.url) as client:
                async for event in frames(client, job_id):
                    first.append(event)
                    if len(first) == 4:
                        break
            # The connection ends, and the other events happen while no client is connected.
            open_gate(job_id)
            await running.wait(job_id)
            async with AsyncClient(base_url=server.url) as client:
                later = await all_of(client, job_id, last=first[-1]["id"])
                over = await client.get(
                    f"{V1}/jobs/{job_id}/events/stream", headers={"Last-Event-ID": str(later[-1]["id"])}
                )
                by_query = [event async for event in frames(client, job_id, after=later[0]["id"])]

        assert seen(first + later) == await written(running, job_id)
        assert over.status_code == 204
        assert seen(by_query) == seen(later[1:])


async def test_a_stream_that_is_cut_repeatedly_misses_and_repeats_no_event(database):
    async with engine(database) as running:
        job_id = await running.submit("demo", count=60)
        got: list[dict[str, Any]] = []
        app = app_of(database, running)
        async with served(app) as server:
            while not got or got[-1]["type"] not in {"job_completed", "job_failed"}:
                async with AsyncClient(base_url=server.url) as client:
                    cut_after = len(got) + 37
                    async for event in frames(client, job_id, got[-1]["id"] if got else None):
                        got.append(event)
                        if len(got) == cut_after:
                            break
            await until(lambda: asyncio.sleep(0, app.state.services.events.watchers == 0))

        assert seen(got) == await written(running, job_id)


async def test_a_hundred_watchers_share_a_few_connections(database):
    async with engine(database) as running:
        job_id = await running.submit(workflow(STEPS))
        other_id = await running.submit("hello_world")
        app = app_of(database, running)
        async with served(app) as server, AsyncClient(base_url=server.url, limits=_many()) as client:
            watching = [asyncio.create_task(all_of(client, job_id)) for _ in range(100)]
            other = asyncio.create_task(all_of(client, other_id))

            async def all_watch():
                return (await ok(client.get(f"{V1}/stats")))["watchers"] >= 100

            await until(all_watch, 20)
            connections = await running.value(
                "SELECT count(*)::int FROM pg_stat_activity WHERE datname = current_database() "
                "AND application_name LIKE 'dagmaster-api%%'"
            )
            open_gate(job_id)
            streams = await asyncio.wait_for(asyncio.gather(*watching), 30)
            others = await other

        expected = await written(running, job_id)
        assert all(seen(events) == expected for events in streams)
        assert seen(others) == await written(running, other_id)
        assert 1 <= connections <= 6 + 3
        assert app.state.services.events.watchers == 0


def _many() -> Any:
    from httpx2 import Limits

    return Limits(max_connections=200, max_keepalive_connections=200)


async def test_a_stream_without_events_sends_heartbeats(database):
    async with engine(database, workers=0) as running:
        job_id = await running.submit(workflow(STEPS))
        async with served(app_of(database, running, heartbeat_seconds=0.2)) as server:
            comments = 0
            async with AsyncClient(base_url=server.url) as client:
                async for event in frames(client, job_id):
                    comments += "comment" in event
                    if comments == 2:
                        break

    assert comments == 2


async def test_a_stopping_server_ends_its_streams_at_once(database):
    async with engine(database, workers=0) as running:
        job_id = await running.submit(workflow(STEPS))
        loop = asyncio.get_running_loop()
        async with served(app_of(database, running)) as server, AsyncClient(base_url=server.url) as client:
            watching = asyncio.create_task(all_of(client, job_id))
            await asyncio.sleep(0.5)
            started = loop.time()
            await server.stop()
            events = await asyncio.wait_for(watching, 10)
            seconds = loop.time() - started

    assert events
    assert seconds < 3


async def test_a_stopping_server_ends_the_streams_of_all_changes_at_once(database):
    async with engine(database, workers=0) as running:
        loop = asyncio.get_running_loop()
        app = app_of(database, running)
        async with served(app) as server, AsyncClient(base_url=server.url) as client:

            async def watch() -> None:
                async with client.stream("GET", f"{V1}/stream") as response:
                    async for _ in response.aiter_lines():
                        pass

            watching = asyncio.create_task(watch())
            await until(lambda: asyncio.sleep(0, app.state.services.changes.watchers == 1))
            started = loop.time()
            await server.stop()
            await asyncio.wait_for(watching, 10)
            seconds = loop.time() - started

    assert seconds < 3


async def test_an_event_arrives_soon_after_it_happens(database):
    async with engine(database) as running:
        job_id = await running.submit(workflow(STEPS))
        loop = asyncio.get_running_loop()
        app = app_of(database, running)
        async with served(app) as server, AsyncClient(base_url=server.url) as client:
            watching = asyncio.create_task(all_of(client, job_id))
            await until(lambda: asyncio.sleep(0, app.state.services.events.watchers == 1))
            open_gate(job_id)
            await running.wait(job_id)
            ended = loop.time()
            await watching
            late = loop.time() - ended

    assert late < 1.0


async def test_disconnected_watchers_hold_no_connection_and_are_sent_no_more_events(database, caplog):
    async with engine(database) as running:
        job_id = await running.submit("fan_out_test", count=400)
        await running.wait(job_id)
        last = (await written(running, job_id))[-1][0]
        app = app_of(database, running)
        async with served(app) as server:
            for read in (0, 100, 500, 5000, 50_000):
                for _ in range(4):
                    await asyncio.to_thread(_leave_after, server.url, job_id, read)
            await until(lambda: asyncio.sleep(0, app.state.services.events.watchers == 0))
            async with AsyncClient(base_url=server.url) as client:
                later = await all_of(client, job_id)

    assert last > 1500
    assert seen(later)[-1][0] == last
    assert [r.getMessage() for r in caplog.records if r.name.startswith(("asyncio", "psycopg"))] == []


def _leave_after(url: str, job_id: UUID, size: int) -> None:
    """Read a part of a stream, then close the connection abruptly."""
    services = urlsplit(url)
    with socket.create_connection((services.hostname, services.port), timeout=10) as connection:
        connection.sendall(f"GET {V1}/jobs/{job_id}/events/stream HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        while size > 0:
            size -= len(connection.recv(min(size, 4096)))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
