"""The proxy between a role and its server forwards, delays and interrupts traffic."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest

from chaos.proxy import (
    SOCKET,
    Link,
    Proxy,
    are_notifications,
    has_commit,
    is_single_statement,
    leaves_a_transaction_open,
)
from dagmaster.local.embedded import Cluster

pytestmark = pytest.mark.alone


def message(kind: bytes, body: bytes) -> bytes:
    return kind + (len(body) + 4).to_bytes(4, "big") + body


NOTIFICATION = message(b"A", b"\0\0\0\1topic\0\0")


def test_notifications_are_distinguished_from_other_messages() -> None:
    assert are_notifications(NOTIFICATION)
    assert are_notifications(NOTIFICATION * 3)
    assert not are_notifications(NOTIFICATION[:-1]), "an incomplete notification"
    assert not are_notifications(NOTIFICATION + message(b"Z", b"I"))
    assert not are_notifications(b"")


def test_a_commit_is_recognised_in_either_protocol() -> None:
    assert has_commit(message(b"Q", b"COMMIT\0"))
    assert has_commit(message(b"P", b"\0COMMIT\0\0\0") + message(b"S", b""))
    assert not has_commit(message(b"Q", b"SELECT 'COMMIT now'\0"))


def test_a_single_statement_does_not_begin_a_transaction() -> None:
    execute, sync = message(b"E", b"\0\0\0\0\0"), message(b"S", b"")

    assert is_single_statement(execute + sync)
    assert not is_single_statement(message(b"P", b"\0BEGIN\0\0\0") + execute + sync)
    assert not is_single_statement(execute), "nothing is executed before the Sync"
    assert leaves_a_transaction_open(message(b"Z", b"T"))
    assert not leaves_a_transaction_open(message(b"Z", b"I"))


@pytest.fixture
def proxy(cluster: Cluster) -> Iterator[Proxy]:
    running = Proxy(cluster.socket_folder)
    running.start()
    yield running
    running.stop()


@pytest.fixture
def link(proxy: Proxy) -> Link:
    return proxy.open("test")


@pytest.fixture
async def session(link: Link) -> AsyncIterator[psycopg.AsyncConnection]:
    async with await connected(link) as connection:
        yield connection


async def connected(link: Link) -> psycopg.AsyncConnection:
    return await psycopg.AsyncConnection.connect(link.dsn("postgres"), autocommit=True, connect_timeout=5)


async def check(connection: psycopg.AsyncConnection) -> int:
    row = await (await connection.execute("SELECT 7")).fetchone()
    assert row
    return row[0]


async def test_queries_work_through_the_proxy(session: psycopg.AsyncConnection) -> None:
    assert await check(session) == 7


async def test_cutting_a_link_ends_its_sessions_and_new_ones_are_accepted(
    link: Link, session: psycopg.AsyncConnection
) -> None:
    link.cut()

    with pytest.raises(psycopg.OperationalError):
        await asyncio.gather(*(check(session) for _ in range(1000)))
    async with await connected(link) as another:
        assert await check(another) == 7


async def test_held_messages_are_delivered_after_release(link: Link, session: psycopg.AsyncConnection) -> None:
    for way in ("holds_up", "holds_down"):
        setattr(link.conditions, way, True)
        pending = asyncio.create_task(check(session))
        done, _ = await asyncio.wait([pending], timeout=0.3)
        link.clear()

        assert not done, way
        assert await asyncio.wait_for(pending, 5) == 7


async def test_a_delay_applies_in_both_directions(link: Link, session: psycopg.AsyncConnection) -> None:
    link.conditions.delay_seconds = (0.1, 0.01)
    started = time.monotonic()
    await check(session)

    assert time.monotonic() - started > 0.15


async def test_a_commit_whose_response_is_lost_has_taken_effect(link: Link, session: psycopg.AsyncConnection) -> None:
    await session.execute("CREATE TABLE IF NOT EXISTS public.proxied (number int)")
    await session.execute("TRUNCATE public.proxied")
    link.conditions.resets_at_commit = 1

    with pytest.raises(psycopg.OperationalError):
        async with session.transaction():
            await session.execute("INSERT INTO public.proxied VALUES (1)")
    async with await connected(link) as another, asyncio.timeout(10):
        # The server commits on its own time: the client does not wait for a response.
        while not await (await another.execute("SELECT number FROM public.proxied")).fetchall():
            await asyncio.sleep(0.01)

    assert link.counts.resets_at_commit == 1


@pytest.mark.parametrize(("what", "arrivals"), [("pass", 1), ("drop", 0), ("double", 2)])
async def test_notifications_are_forwarded_dropped_or_doubled(link: Link, what: str, arrivals: int) -> None:
    async with await connected(link) as listener, await connected(link) as sender:
        await listener.execute("LISTEN topic")
        link.conditions.notifications = what  # type: ignore[assignment]
        await sender.execute("NOTIFY topic")
        notices = [notice async for notice in listener.notifies(timeout=0.5)]
        response = await check(listener)

    assert len(notices) == arrivals
    assert response == 7, "other messages are not changed"


async def test_an_unreachable_server_is_reported_at_once(proxy: Proxy, tmp_path: Path) -> None:
    proxy._server = tmp_path / SOCKET
    started = time.monotonic()

    with pytest.raises(psycopg.OperationalError):
        await connected(proxy.open("nowhere"))
    assert time.monotonic() - started < 2
