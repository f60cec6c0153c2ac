"""The sender of callbacks, with receivers on loopback: signed, in order, and repeated until they are accepted."""

import asyncio
import json
from random import Random
from uuid import uuid4

import pytest

from dagmaster.callbacks.signing import verify
from dagmaster.database.callbacks.store import PostgresCallbacks
from dagmaster.observe import log
from dagmaster.orchestrator import callbacks as module
from dagmaster.orchestrator.callbacks import AT_ONCE, PER_RECEIVER, CallbackSender
from dagmaster.settings import load
from tests.callbacks.receivers import OK, receiver, status
from tests.callbacks.stage import ClockedCallbacks

pytestmark = pytest.mark.requirement("E24")


@pytest.fixture(autouse=True)
def _quiet():
    log.configure("error")


def sender_of(store: PostgresCallbacks, **settings) -> CallbackSender:
    given = {"allow_private_webhooks": True, "callback_attempts": 3, "orchestrator_poll_interval": 0.2}
    return CallbackSender(load(**{**given, **settings}), store, random=Random(1))


async def deliver(sender: CallbackSender) -> None:
    """Run the sender once, and wait for its deliveries."""
    await sender.run_once()
    await sender.settle()


def secrets(stage, platform_id="ddh"):
    return [
        row["secret"]
        for row in stage.rows("SELECT secret FROM dagapp.platform_secrets WHERE platform_id = %s", platform_id)
    ]


async def test_a_callback_is_signed_and_has_the_three_fields(stage, store):
    async with receiver() as hook:
        stage.record_callbacks("r-1", url=hook.url)

        await deliver(sender_of(store, callback_result_url="https://gateway.example"))

    (request,) = hook.requests
    (callback,) = stage.callbacks()
    verify(secrets(stage), request.headers, request.body, now=store.now.timestamp())
    assert request.headers["webhook-id"] == str(callback["callback_id"])
    assert json.loads(request.body) == {
        "request_id": "r-1",
        "status": "approved",
        "result_url": "https://gateway.example/api/platform/status/r-1",
    }
    assert (callback["state"], callback["attempts"]) == ("delivered", 1)
    (delivery,) = stage.deliveries()
    assert (delivery["status_code"], delivery["error"]) == (200, None)
    assert delivery["finished_at"] is not None


async def test_each_platform_signs_with_its_own_secret(stage, store):
    async with receiver() as hook:
        stage.record_callbacks("a", url=hook.url)
        stage.record_callbacks("b", url=hook.url, platform_id="arcgis")

        await deliver(sender_of(store))

    by_request = {json.loads(request.body)["request_id"]: request for request in hook.requests}
    now = store.now.timestamp()
    verify(secrets(stage, "ddh"), by_request["a"].headers, by_request["a"].body, now=now)
    verify(secrets(stage, "arcgis"), by_request["b"].headers, by_request["b"].body, now=now)
    assert secrets(stage, "ddh") != secrets(stage, "arcgis")


async def test_a_receiver_that_was_down_gets_all_callbacks_in_order_with_the_same_ids(stage, store):
    async with receiver(status(503), status(500), OK) as hook:
        stage.record_callbacks("r", url=hook.url, status="awaiting_review")
        stage.record_callbacks("r", url=hook.url)
        sender = sender_of(store)
        for _ in range(3):
            await deliver(sender)
            await deliver(sender)  # it is not due
            store.advance(40)
        await deliver(sender)

    statuses = [json.loads(request.body)["status"] for request in hook.requests]
    ids = [request.headers["webhook-id"] for request in hook.requests]
    times = [int(request.headers["webhook-timestamp"]) for request in hook.requests]
    assert statuses == ["awaiting_review"] * 3 + ["approved"]
    assert len(set(ids[:3])) == 1
    assert ids[3] != ids[0]
    assert times == sorted(times)
    assert times[2] - times[0] == 80
    for request, moment in zip(hook.requests, times, strict=True):
        verify(secrets(stage), request.headers, request.body, now=moment)
    assert [row["status_code"] for row in stage.deliveries()] == [503, 500, 200, 200]
    assert (sender.counters.delivered, sender.counters.retried) == (2, 2)


async def test_a_callback_is_given_up_after_its_attempts_and_the_next_one_is_delivered(stage, store):
    async with receiver(status(500), status(500), status(500), OK) as hook:
        stage.record_callbacks("r", url=hook.url, status="awaiting_review")
        stage.record_callbacks("r", url=hook.url)
        sender = sender_of(store)
        for _ in range(3):
            await deliver(sender)
            store.advance(3600)
        await deliver(sender)

    assert [row["state"] for row in stage.callbacks()] == ["failed", "delivered"]
    assert sender.counters.failed == 1


async def test_a_refused_connection_is_a_failed_attempt(stage, store):
    async with receiver() as hook:
        pass
    stage.record_callbacks("r", url=hook.url)

    await deliver(sender_of(store))

    (delivery,) = stage.deliveries()
    assert delivery["status_code"] is None
    assert delivery["error"] == "the webhook was not reached: connection refused"
    assert delivery["next_attempt_at"] == stage.callbacks()[0]["next_attempt_at"]


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://127.0.0.1:{port}/", "not an https URL"),
        ("https://127.0.0.1:8443/", "address is not public"),
        ("https://169.254.169.254/latest", "metadata"),
        ("https://user:pass@hooks.example/", "user name"),
        ("https://hooks.example:22/", "port"),
        ("https://localhost/", "address is not public"),
        ("gopher://hooks.example/", "http"),
    ],
)
@pytest.mark.requirement("X2")
async def test_a_url_is_checked_again_at_delivery(stage, store, url, problem):
    """The URL may have been accepted with other settings, or written directly into the database."""
    async with receiver() as hook:
        stage.record_callbacks("r", url=url.format(port=hook.port))

        await deliver(sender_of(store, allow_private_webhooks=False))

    assert hook.requests == []
    assert stage.callbacks()[0]["state"] == "failed"
    assert problem in stage.deliveries()[0]["error"]
    assert "pass@" not in stage.deliveries()[0]["error"]


@pytest.mark.requirement("X2", "X3")
async def test_the_body_of_a_response_is_not_stored(stage, store, database):
    async with receiver(b"HTTP/1.1 500 canary-reason\r\nX-Canary: canary-header\r\n\r\ncanary-body") as hook:
        stage.record_callbacks("r", url=hook.url)

        await deliver(sender_of(store))

    everything = str(stage.callbacks()) + str(stage.deliveries())
    assert hook.requests
    assert "canary" not in everything


async def test_an_unexpected_error_counts_as_a_failed_attempt(stage, store, capsys):
    async def broken(*_values, **_options):
        raise KeyError("secret-detail")

    log.configure("critical")
    stage.record_callbacks("r", url="https://hooks.example/")
    sender = sender_of(store)
    sender.send = broken

    await deliver(sender)

    assert stage.deliveries()[0]["error"] == "unexpected KeyError"
    assert stage.callbacks()[0]["state"] == "pending"


async def test_receivers_that_hang_do_not_block_others(stage, store):
    async with receiver(delay_seconds=30) as slow, receiver() as quick:
        stage.record_callbacks(*(f"slow-{number}" for number in range(2 * AT_ONCE)), url=slow.url)
        stage.record_callbacks("quick", url=quick.url)
        sender = sender_of(store)

        await sender.run_once()
        async with asyncio.timeout(10):
            while not quick.requests or len(slow.requests) < PER_RECEIVER:
                await asyncio.sleep(0.02)
        await sender.run_once()
        await asyncio.sleep(0.1)

        assert len(slow.requests) == PER_RECEIVER
        for task in list(sender._under_way):
            task.cancel()
        await sender.settle()


# --- the running loop ------------------------------------------------------------------------------------------------


async def test_two_senders_deliver_each_callback_once(stage, database):
    async with receiver() as hook:
        requests = [f"r{number}" for number in range(30)]
        stage.record_callbacks(*requests, url=hook.url, status="awaiting_review")
        stage.record_callbacks(*requests, url=hook.url)
        senders = [sender_of(PostgresCallbacks(database, f"test-{number}")) for number in range(2)]
        running = [asyncio.create_task(sender.run()) for sender in senders]
        try:
            async with asyncio.timeout(30):
                while len(hook.requests) < 60:
                    await asyncio.sleep(0.05)
            await asyncio.sleep(0.5)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            for sender in senders:
                await sender.close()

    ids = [request.headers["webhook-id"] for request in hook.requests]
    assert len(ids) == len(set(ids)) == 60
    assert {row["state"] for row in stage.callbacks()} == {"delivered"}
    assert all(sender.counters.delivered for sender in senders), "both senders have delivered callbacks"
    for number in range(30):
        bodies = [json.loads(each.body) for each in hook.requests]
        own = [each["status"] for each in bodies if each["request_id"] == f"r{number}"]
        assert own == ["awaiting_review", "approved"]


async def test_a_sender_that_is_stopped_gives_back_the_callbacks_that_it_claimed(stage, database, monkeypatch):
    monkeypatch.setattr(module, "LAST_SECONDS", 0.1)
    async with receiver(delay_seconds=30) as hook:
        stage.record_callbacks("r", url=hook.url)
        sender = sender_of(PostgresCallbacks(database))
        running = asyncio.create_task(sender.run())
        async with asyncio.timeout(10):
            while not hook.requests:
                await asyncio.sleep(0.02)

        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await sender.close()

    store = ClockedCallbacks(database)
    (again,) = (await store.claim(uuid4(), 1, module.CallbackLimits(60, 4, 3))).callbacks
    await store.close()
    assert again.number == 2
    assert "stopped" in stage.deliveries()[0]["error"]


async def test_a_sender_continues_after_its_database_connection_is_lost(stage, database):
    async with receiver() as hook:
        sender = sender_of(PostgresCallbacks(database, "doomed-sender"))
        running = asyncio.create_task(sender.run())
        end = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'dagmaster-doomed-sender'"
        )
        async with asyncio.timeout(15):
            while not stage.rows(end):
                await asyncio.sleep(0.05)
            stage.record_callbacks("r", url=hook.url)
            while not hook.requests:
                sender.wake()
                await asyncio.sleep(0.05)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await sender.close()
