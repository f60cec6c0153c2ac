"""The relay: each message of the outbox reaches the broker at least once, whatever fails, and errors are classified."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from dagmaster.database.ledger.outbox import PostgresOutbox
from dagmaster.database.ledger.postgres import PostgresLedger
from dagmaster.database.ledger.protocol import WorkerInfo
from dagmaster.errors import DagmasterError, InvalidRequest, Unavailable
from dagmaster.jobs.model import OutboxMessage, task_id, task_key
from dagmaster.jobs.states import TaskStatus
from dagmaster.orchestrator import relay as relay_module
from dagmaster.orchestrator.relay import Relay
from dagmaster.testing.memory_ledger import MemoryDatabase, MemoryLedger
from dagmaster.testing.trial import START
from dagmaster.transports.servicebus_client import REFUSED_SECONDS, TOO_LARGE

pytestmark = pytest.mark.requirement("E3", "Q3")
JOB = UUID(int=3)


class Sender:
    """Records what is sent, and raises the error of a queue if it has one."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.errors: dict[str, DagmasterError] = {}
        self.too_large: set[str] = set()

    async def send_tasks(self, queue: str, task_ids: Sequence[str]) -> None:
        await asyncio.sleep(0)
        if error := self.errors.get(queue):
            raise error
        if self.too_large & set(task_ids):
            raise InvalidRequest("too large", code=TOO_LARGE)
        self.sent += task_ids


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> Any:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


class Bench:
    def __init__(self) -> None:
        self.clock = Clock()
        self.database = MemoryDatabase(self.clock, writes_outbox=True)
        self.outbox = MemoryLedger(self.database)
        self.sender = Sender()
        self.relay = Relay(self.outbox, self.sender)

    def add(self, count: int, queue: str = "q", first: int = 0) -> list[str]:
        for number in range(first, first + count):
            self.database.add_task(
                JOB,
                f"n{number}",
                1,
                queue=queue,
                handler="h",
                priority=0,
                params=None,
                timeout_seconds=1,
                retry_count=0,
            )
        return [task_id(JOB, f"n{number}", 1) for number in range(first, first + count)]


async def test_acknowledged_messages_are_deleted_from_the_outbox():
    bench = Bench()
    ids = bench.add(3)

    assert await bench.relay.run_once() == 3

    assert bench.sender.sent == ids
    assert not bench.database.outbox
    assert await bench.relay.run_once() == 0


async def test_tasks_that_were_claimed_meanwhile_are_not_sent():
    bench = Bench()
    bench.add(2)
    bench.database.move_task((JOB, "n0", 1), TaskStatus.RUNNING)

    await bench.relay.run_once()

    assert bench.sender.sent == [task_id(JOB, "n1", 1)]
    assert not bench.database.outbox
    assert bench.relay.counters.unneeded == 1


async def test_two_relays_do_not_send_the_same_messages():
    bench = Bench()
    ids = bench.add(2 * relay_module.WINDOW)
    others = Sender()

    await asyncio.gather(bench.relay.run_once(), Relay(bench.outbox, others).run_once())

    assert sorted(bench.sender.sent + others.sent) == sorted(ids)


async def test_each_queue_has_its_own_window(monkeypatch):
    """One worker serves `few`; nothing is known about the workers of `many`."""

    async def count_workers(_alive_seconds: float) -> dict[str, int]:
        return {"few": 1}

    bench = Bench()
    bench.add(100, "few")
    bench.add(100, "many", first=100)
    monkeypatch.setattr(bench.outbox, "count_workers", count_workers)

    assert await bench.relay.run_once() == relay_module.SMALLEST_WINDOW + relay_module.WINDOW


async def test_no_more_ids_are_sent_while_announced_tasks_wait(monkeypatch):
    bench = Bench()
    ids = bench.add(1000)
    bench.add(1, "other", first=5000)

    first = await bench.relay.run_once()
    announced = set(bench.sender.sent)
    held_back = await bench.relay.run_once()
    for key in [
        key for key in bench.database.tasks if key[1] not in ("n998", "n999")
    ]:  # workers claim tasks without messages
        bench.database.move_task(key, TaskStatus.RUNNING)
    monkeypatch.setattr(relay_module, "BUSY_SECONDS", 0.0)
    while await bench.relay.run_once():
        pass

    assert first == relay_module.WINDOW + 1
    assert held_back == 0
    assert set(bench.sender.sent) == announced | set(ids[998:])
    assert not bench.database.outbox


async def test_new_tasks_are_announced_although_other_tasks_of_their_queue_wait(monkeypatch):
    """The tasks that wait may have a handler without free slots, while idle workers can run the new ones."""
    monkeypatch.setattr(relay_module, "NEWEST_SECONDS", 60.0)  # a busy machine may take long between two turns
    bench = Bench()
    bench.add(1000)
    await bench.relay.run_once()
    bench.clock.advance(1)
    new = bench.add(1, first=2000)
    bench.relay.wake(["q"])
    announced = await bench.relay.run_once()
    bench.clock.advance(1)
    newer = bench.add(10, first=3000)
    bench.relay.wake(["q"])
    too_early = await bench.relay.run_once()
    monkeypatch.setattr(relay_module, "NEWEST_SECONDS", 0.0)
    later = await bench.relay.run_once()
    unasked = await bench.relay.run_once()

    assert new[0] in bench.sender.sent
    assert (announced, too_early, later, unasked) == (relay_module.NEWEST, 0, relay_module.NEWEST, 0)
    assert set(bench.sender.sent[-later:]) <= set(newer)


async def test_new_tasks_of_a_queue_that_is_no_longer_busy_are_announced_at_once(monkeypatch):
    monkeypatch.setattr(relay_module, "NEWEST_SECONDS", 0.0)
    bench = Bench()
    bench.add(relay_module.WINDOW)
    await bench.relay.run_once()
    assert await bench.relay.run_once() == 0  # busy
    for number in range(relay_module.WINDOW):
        bench.database.move_task((JOB, f"n{number}", 1), TaskStatus.RUNNING)
    new = bench.add(10, first=2000)
    unwoken = await bench.relay.run_once()
    bench.relay.wake(["q"])
    await bench.relay.run_once()

    assert unwoken == 0  # it is too early for another check
    assert bench.sender.sent[relay_module.WINDOW :] == new


async def test_more_tasks_are_announced_without_a_pause_if_idle_workers_claim_everything():
    bench = Bench()
    for first in range(0, 3 * relay_module.WINDOW, relay_module.WINDOW):
        ids = bench.add(relay_module.WINDOW, first=first)

        assert await bench.relay.run_once() == relay_module.WINDOW

        assert set(bench.sender.sent[-len(ids) :]) == set(ids)
        for number in range(first, first + relay_module.WINDOW):
            bench.database.move_task((JOB, f"n{number}", 1), TaskStatus.RUNNING)


async def test_ids_that_may_be_lost_do_not_delay_others_for_ever(monkeypatch):
    bench = Bench()
    bench.add(2 * relay_module.WINDOW)
    await bench.relay.run_once()
    assert await bench.relay.run_once() == 0

    monkeypatch.setattr(relay_module, "BUSY_SECONDS", 0.0)
    assert await bench.relay.run_once() == 0
    monkeypatch.setattr(relay_module, "REMEMBERED_SECONDS", -1.0)

    assert await bench.relay.run_once() == relay_module.WINDOW_AFTER_BUSY


async def test_a_queue_that_was_busy_gets_fewer_messages_until_its_tasks_are_claimed_quickly(monkeypatch):
    monkeypatch.setattr(relay_module, "BUSY_SECONDS", 0.0)
    bench = Bench()
    bench.add(1000)
    sizes: list[int] = []

    async def turn_after_claims() -> None:
        for sent in bench.sender.sent[sum(sizes) :]:
            bench.database.move_task(task_key(sent), TaskStatus.RUNNING)
        sizes.append(len(bench.sender.sent) - sum(sizes))
        await bench.relay.run_once()

    await bench.relay.run_once()
    assert await bench.relay.run_once() == 0  # busy
    for _ in range(6):
        await turn_after_claims()

    first, after_busy = relay_module.WINDOW, relay_module.WINDOW_AFTER_BUSY
    assert sizes == [first, after_busy, 2 * after_busy, first, first, first]


async def test_workers_that_claim_without_messages_are_sent_none():
    """They claim a hundred tasks between two checks, of which none was announced."""
    bench = Bench()
    bench.add(1000)
    await bench.relay.run_once()
    assert await bench.relay.run_once() == 0  # busy
    sent = []
    for claimed in range(0, 800, 100):
        for number in range(claimed, claimed + 100):
            bench.database.move_task((JOB, f"n{number}", 1), TaskStatus.RUNNING)
        bench.relay._seen_busy_at["q"] = bench.relay._seen_polling_at["q"] = float(
            "-inf"
        )  # as if half a second had passed
        while await bench.relay.run_once():
            pass
        sent.append(len(bench.sender.sent))
    windows = dict(bench.relay._windows)

    for number in range(800, 1000):
        bench.database.move_task((JOB, f"n{number}", 1), TaskStatus.RUNNING)
    for _ in range(2):  # the second run finds nothing
        bench.relay._seen_polling_at.clear()
        await bench.relay.run_once()
    bench.add(100, first=2000)
    await bench.relay.run_once()

    assert sent == [relay_module.WINDOW] * 8
    assert windows == {"q": relay_module.SMALLEST_WINDOW}
    assert len(bench.sender.sent) == relay_module.WINDOW + relay_module.WINDOW_AFTER_BUSY  # the outbox was empty


@pytest.mark.parametrize(("workers", "expected"), [(0, 64), (1, 8), (10, 20), (500, 64)])
async def test_few_workers_are_sent_few_ids(workers, expected):
    bench = Bench()
    bench.add(100)
    for _ in range(workers):
        info = WorkerInfo(uuid4(), "host", 1, "1", "worker", ("q", "other"), ("h",), {})
        await bench.outbox.beat_worker(info)

    assert await bench.relay.run_once() == expected

    assert len(bench.sender.sent) == expected


async def test_messages_of_a_relay_that_died_after_sending_are_sent_again(monkeypatch):
    bench = Bench()
    ids = bench.add(2)

    async def die(_messages: Any) -> None:
        raise Unavailable("the connection was lost")

    monkeypatch.setattr(bench.outbox, "delete_messages", die)
    with pytest.raises(Unavailable):
        await bench.relay.run_once()
    monkeypatch.undo()
    assert await bench.relay.run_once() == 0, "the lease has not expired yet"
    bench.clock.advance(relay_module.LEASE_SECONDS + 1)
    await bench.relay.run_once()

    assert bench.sender.sent == [*ids, *ids]
    assert not bench.database.outbox


async def test_an_outage_postpones_messages_with_growing_delays_and_is_reported():
    bench = Bench()
    bench.add(1)
    bench.sender.errors["q"] = Unavailable("the broker is unavailable")

    delays = []
    for _ in range(4):
        await bench.relay.run_once()
        (row,) = bench.database.outbox.values()
        delays.append((row.not_before - bench.clock.now).total_seconds())
        bench.clock.advance(delays[-1] + 0.001)
    shown = bench.relay.stats()["queue_errors"]
    del bench.sender.errors["q"]
    await bench.relay.run_once()

    assert delays[0] <= 0.5 < delays[3] <= 4
    assert row.error == "the broker is unavailable"
    assert shown == {"q": "the broker is unavailable"}
    assert len(bench.sender.sent) == 1
    assert bench.relay.stats()["queue_errors"] == {}


async def test_a_queue_that_refuses_messages_does_not_stop_the_others():
    bench = Bench()
    bench.add(1, "missing")
    ids = bench.add(1, "q", first=1)
    bench.sender.errors["missing"] = InvalidRequest(
        "no such queue", code="servicebus.queue-not-found", hint="create it"
    )

    await bench.relay.run_once()

    (row,) = bench.database.outbox.values()
    assert bench.sender.sent == ids
    assert row.error == "no such queue"
    assert (row.not_before - bench.clock.now).total_seconds() >= REFUSED_SECONDS / 2
    assert bench.database.tasks[JOB, "n0", 1].status is TaskStatus.QUEUED, (
        "the message must be dropped: workers find the task by polling"
    )


async def test_a_message_that_is_too_large_fails_only_its_task():
    bench = Bench()
    ids = bench.add(3)
    bench.sender.too_large = {ids[1]}

    await bench.relay.run_once()

    result = bench.database.results[JOB, "n1", 1]
    assert bench.sender.sent == [ids[0], ids[2]]
    assert not bench.database.outbox
    assert result.status is TaskStatus.FAILED
    assert result.error is not None
    assert (result.error["code"], result.error["blame"]) == (TOO_LARGE, "data")


async def test_an_error_does_not_end_the_relay(monkeypatch):
    bench = Bench()
    bench.relay.poll_seconds = 0.01
    calls = 0

    async def claim(_limit: int, **_: Any) -> list[Any]:
        nonlocal calls
        calls += 1
        raise Unavailable("away") if calls < 3 else RuntimeError("a bug")

    monkeypatch.setattr(bench.outbox, "claim_messages", claim)
    running = asyncio.create_task(bench.relay.run())
    async with asyncio.timeout(5):
        while calls < 5:
            await asyncio.sleep(0.01)
    running.cancel()

    assert bench.relay.counters.errors >= 4


# On PostgreSQL


@pytest.fixture
def tasks(database: str) -> str:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO dagapp.dag_tasks (job_id, node_id, attempt, queue, handler, priority, status, timeout_seconds)"
            " SELECT %s, 'n' || n, 1, 'q', 'h', 0, 'queued', 10 FROM generate_series(0, 9) AS n",
            [JOB],
        )
        connection.execute(
            "INSERT INTO dagapp.dag_outbox (job_id, node_id, attempt, queue)"
            " SELECT job_id, node_id, attempt, queue FROM dagapp.dag_tasks"
        )
    return database


async def test_the_outbox_works_on_postgresql(tasks):
    one, two = PostgresOutbox(tasks, "one"), PostgresOutbox(tasks, "two")
    worker = PostgresLedger(tasks, "worker")
    try:
        first = await one.claim_messages(4, lease_seconds=60)
        second = await two.claim_messages(100, lease_seconds=60)
        none = await one.claim_messages(100, lease_seconds=60)
        await one.delete_messages(first[:2])
        await one.postpone_messages(first[2:], delay_seconds=-1, error="e" * 1000)
        again = await two.claim_messages(0, lease_seconds=60, limits={"other": 1, "q": 100})
        busy = await two.claim_messages(100, lease_seconds=60, limits={"q": 0})
        await two.postpone_messages(second[:2], delay_seconds=-2, error="away")
        await two.postpone_messages(second[2:3], delay_seconds=-1, error="away")
        newest = await two.claim_messages(100, lease_seconds=60, limits={"q": 0}, newest=["q"], newest_limit=1)
        failed = await one.fail_tasks(first[2:], uuid4(), {"code": "x", "blame": "data", "message": "too large"})
        with psycopg.connect(tasks, autocommit=True) as connection:
            connection.execute(
                "UPDATE dagapp.dag_tasks SET status = 'running', worker_id = gen_random_uuid() WHERE node_id = %s",
                [second[0].node_id],
            )
        forgotten = await one.forget_messages(100)
        (facts,) = await one.facts()
        queued = await worker.queued_tasks([message.task_id for message in (*first, *second)])
    finally:
        for session in (one, two, worker):
            await session.close()

    keys = {message.task_id for message in (*first, *second)}
    assert (len(first), len(second), none) == (4, 6, [])
    assert len(keys) == 10
    assert all(message.is_queued and message.tries == 1 for message in (*first, *second))
    assert {message.task_id for message in again} == {message.task_id for message in first[2:]}
    assert [message.tries for message in again] == [2, 2]
    assert (failed, forgotten, busy) == (2, 1, [])
    assert [message.task_id for message in newest] == [second[2].task_id]
    assert (facts["queue"], facts["messages"], facts["postponed"], facts["error"]) == ("q", 5, 2, "away")
    assert queued == {message.task_id for message in (*first[:2], *second[1:])}
    with psycopg.connect(tasks) as connection:
        rows = connection.execute("SELECT status, error ->> 'code' FROM dagapp.dag_task_results").fetchall()
    assert rows == [("failed", "x"), ("failed", "x")]


def test_the_record_of_the_outbox_has_no_secrets():
    assert set(OutboxMessage.model_fields) == {
        "job_id",
        "node_id",
        "attempt",
        "queue",
        "not_before",
        "tries",
        "error",
        "written_at",
    }
