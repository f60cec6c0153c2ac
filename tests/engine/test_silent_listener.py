"""A connection that stays open but transmits nothing: the listener gets no notification, and no error."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from dagmaster.database.notify import postgres as module
from dagmaster.database.notify.postgres import PostgresNotifier, channel_of
from tests.engine.harness import engine

pytestmark = [pytest.mark.requirement("E8"), pytest.mark.alone]


class SilencingProxy:
    """Forwards connections to the server. Those that are open when it is silenced stay open without any data."""

    def __init__(self, dsn: str) -> None:
        self._target = conninfo_to_dict(dsn)
        self._may_forward = asyncio.Event()
        self._may_forward.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0
        self.dsn = ""

    def silence(self) -> None:
        self._may_forward.clear()
        self._may_forward = asyncio.Event()
        self._may_forward.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["SilencingProxy"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        self.dsn = make_conninfo("", **{**self._target, "host": host, "port": port, "sslmode": "disable"})
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        may_forward = self._may_forward
        host, port = str(self._target["host"]), int(self._target.get("port") or 5432)
        if host.startswith("/"):
            other, back = await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        else:
            other, back = await asyncio.open_connection(host, port)
        for source, sink in ((reader, back), (other, writer)):
            task = asyncio.create_task(self._forward(source, sink, may_forward))
            self._tasks.add(task)

    async def _forward(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, may_forward: asyncio.Event
    ) -> None:
        try:
            while data := await source.read(65536):
                await may_forward.wait()
                sink.write(data)
                await sink.drain()
        except ConnectionError:
            pass
        finally:
            sink.close()


TERMINATE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'dagmaster-listen'"


async def test_a_listener_reconnects_quickly_although_there_were_earlier_outages(database, monkeypatch):
    monkeypatch.setattr(module, "STABLE_SECONDS", 0.1)
    notifier = PostgresNotifier(database, ["jobs"])
    notifier.start()
    loop, pauses = asyncio.get_running_loop(), []
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as connection:
        for _ in range(5):
            await notifier.wait(10)  # notified as soon as it listens
            await asyncio.sleep(0.2)
            started = loop.time()
            await connection.execute(f"{TERMINATE} AND datname = current_database()".encode())
            assert await notifier.wait(10) == {"jobs"}
            pauses.append(loop.time() - started)
            notifier._received.update(["jobs"])
    await notifier.close()

    assert max(pauses) < 1.5


async def send(dsn: str, topic: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute(psycopg.sql.SQL("NOTIFY {}").format(psycopg.sql.Identifier(channel_of(topic))))


async def test_notifications_resume_after_a_connection_has_fallen_silent(database, monkeypatch):
    monkeypatch.setattr(module, "CHECK_SECONDS", 0.3)
    monkeypatch.setattr(module, "RESPONSE_SECONDS", 0.3)
    async with SilencingProxy(database).running() as proxy:
        notifier = PostgresNotifier(proxy.dsn, ["jobs"])
        notifier.start()
        try:
            assert await notifier.wait(5) == {"jobs"}  # now it listens
            await asyncio.sleep(1)
            assert await notifier.wait(0) == frozenset(), "a successful check must not wake the listener"
            before = proxy.connections

            proxy.silence()
            await send(database, "jobs")
            missed = await notifier.wait(20)
            await send(database, "jobs")
            topics = await notifier.wait(5)
        finally:
            await notifier.close()

    assert missed == {"jobs"}, "after a reconnect, all topics must be reported"
    assert topics == {"jobs"}
    assert proxy.connections > before


async def test_a_notification_during_a_check_is_received(database, monkeypatch):
    monkeypatch.setattr(module, "CHECK_SECONDS", 0.001)
    notifier = PostgresNotifier(database, ["jobs"])
    notifier.start()
    try:
        assert await notifier.wait(5) == {"jobs"}
        for _ in range(20):
            await send(database, "jobs")
            assert await notifier.wait(2) == {"jobs"}
    finally:
        await notifier.close()


async def test_polling_completes_jobs_while_listeners_are_silent(database, monkeypatch):
    """The listeners of orchestrator and worker fall silent; their other connections work."""
    async with SilencingProxy(database).running() as proxy:
        listen = module.connect

        async def connect(dsn: str, *, role: str):
            return await listen(proxy.dsn if role == "listen" else dsn, role=role)

        monkeypatch.setattr(module, "connect", connect)
        async with engine(database) as running:
            await running.run("echo_test", timeout=60)
            proxy.silence()
            job = await running.run("hello_world", timeout=20)

    assert proxy.connections >= 2
    assert job["status"] == "completed"
