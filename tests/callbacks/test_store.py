"""Which jobs cause callbacks, which sender delivers them, and what is recorded. For assets see test_recorded.py."""

import asyncio
from uuid import uuid4

import psycopg
import pytest

from dagmaster.callbacks.schedule import CallbackState, Consequence, DeliveryAttempt
from dagmaster.database.callbacks.rows import CallbackLimits
from dagmaster.database.callbacks.store import PostgresCallbacks
from dagmaster.database.maintenance.retention import PostgresRetention
from dagmaster.database.notify.notifier import CALLBACKS
from dagmaster.errors import Conflict, NotFound
from dagmaster.testing.memory_notifier import MemoryExchange
from tests.callbacks.stage import URL, ClockedCallbacks

pytestmark = pytest.mark.requirement("E24")

LIMITS = CallbackLimits(lease_seconds=60, per_receiver=4, max_tries=3)
DELIVERED = DeliveryAttempt(204), Consequence(CallbackState.DELIVERED)
RETRIED = DeliveryAttempt(error="connection refused"), Consequence(CallbackState.PENDING, 30.0)
GIVEN_UP = DeliveryAttempt(500), Consequence(CallbackState.FAILED)


async def claim(store, limit=10, limits=LIMITS):
    return (await store.claim(uuid4(), limit, limits)).callbacks


# --- jobs -----------------------------------------------------------------------------------------------------------


def test_the_end_of_a_job_with_a_callback_url_is_recorded_as_a_callback(stage):
    named = stage.job(callback_url=URL, correlation_id="order 7")
    unnamed = stage.job(callback_url=URL)
    silent = stage.job()
    for job_id in (named, unnamed, silent):
        stage.set_job_status(job_id, "running")
        assert stage.statuses() == [] or job_id != named

        stage.set_job_status(job_id, "completed")

    assert stage.statuses() == [("order 7", "completed"), (str(unnamed), "completed")]
    assert {row["platform_id"] for row in stage.callbacks()} == {"local"}


@pytest.mark.parametrize("end", ["partial_success", "failed", "cancelled"])
def test_a_job_that_is_resumed_ends_twice_and_has_two_callbacks(stage, end):
    job_id = stage.job(callback_url=URL)
    stage.set_job_status(job_id, "running")
    stage.set_job_status(job_id, end)
    stage.set_job_status(job_id, "running", resumed=True)

    stage.set_job_status(job_id, "completed")

    assert [row["status"] for row in stage.callbacks()] == [end, "completed"]
    assert [row["resume_count"] for row in stage.callbacks()] == [0, 1]


def test_the_end_of_a_job_that_is_rolled_back_has_no_callback(stage):
    job_id = stage.job(callback_url=URL)
    stage.set_job_status(job_id, "running")

    with stage.connection.transaction(force_rollback=True):
        stage.set_job_status(job_id, "completed")

    assert stage.statuses() == []


def test_an_event_has_at_most_one_callback(stage):
    job_id = stage.job(callback_url=URL)
    stage.set_job_status(job_id, "running")
    stage.set_job_status(job_id, "completed")

    with pytest.raises(psycopg.errors.UniqueViolation):
        stage.rows(
            "INSERT INTO dagapp.callback_events (request_id, platform_id, status, url, job_id, resume_count)"
            " VALUES ('other', 'local', 'completed', 'https://x', %s, 0)",
            job_id,
        )
    stage.record_callbacks("r")
    with pytest.raises(psycopg.errors.UniqueViolation):
        stage.rows(
            "INSERT INTO dagapp.callback_events (request_id, platform_id, status, url, asset_event_id)"
            " SELECT request_id, platform_id, status, url, asset_event_id FROM dagapp.callback_events"
            " WHERE asset_event_id IS NOT NULL"
        )


# --- claims of senders -----------------------------------------------------------------------------------------------


async def test_a_callback_is_claimed_once_with_a_record_and_a_secret(stage, store):
    stage.record_callbacks("r")

    (callback,) = await claim(store)

    assert await claim(store) == ()
    assert (callback.request_id, callback.status, callback.number, callback.tries) == ("r", "approved", 1, 1)
    assert len(callback.secrets) == 1
    assert callback.secrets[0] not in repr(callback)
    (delivery,) = stage.deliveries()
    assert (delivery["number"], delivery["finished_at"]) == (1, None)


async def test_concurrent_claims_get_different_callbacks(stage, store, database):
    for number in range(12):
        stage.record_callbacks(f"r{number}", url=f"https://host-{number}.example/")
    stores = [ClockedCallbacks(database) for _ in range(4)]
    try:
        claimed = await asyncio.gather(*(claim(each, limit=5) for each in stores))
    finally:
        for each in stores:
            await each.close()

    ids = [callback.callback_id for batch in claimed for callback in batch]
    assert len(ids) == len(set(ids))
    last_claim = await claim(store, limit=100)
    assert len(ids) + len(last_claim) == 12


async def test_callbacks_of_a_request_are_delivered_in_order(stage, store):
    stage.record_callbacks("other", "r", status="awaiting_review")
    stage.record_callbacks("other", "r", status="approved")

    first = await claim(store)
    assert [(each.request_id, each.status) for each in first] == [
        ("other", "awaiting_review"),
        ("r", "awaiting_review"),
    ]

    await store.finish(first[0], *DELIVERED)
    await store.finish(first[1], *RETRIED)
    (second,) = await claim(store)
    assert (second.request_id, second.status) == ("other", "approved")

    store.advance(31)
    (again,) = await claim(store)
    assert (again.callback_id, again.number) == (first[1].callback_id, 2)
    await store.finish(again, *GIVEN_UP)
    (last,) = await claim(store)
    assert (last.request_id, last.status) == ("r", "approved")


async def test_jobs_with_one_correlation_id_do_not_wait_for_each_other(stage, store):
    for _ in range(3):
        job_id = stage.job(callback_url=URL, correlation_id="batch")
        stage.set_job_status(job_id, "running")
        stage.set_job_status(job_id, "completed")

    assert len(await claim(store)) == 3


async def test_callbacks_to_a_slow_receiver_do_not_block_others(stage, store):
    stage.record_callbacks(*(f"slow-{number:02}" for number in range(20)), url="https://slow.example/")
    stage.record_callbacks("z", url="https://z.example/")

    claimed = await claim(store, limit=8)

    assert [each.request_id for each in claimed] == ["slow-00", "slow-01", "slow-02", "slow-03", "z"]
    assert await claim(store, limit=8) == ()
    await store.finish(claimed[0], *DELIVERED)
    assert [each.request_id for each in await claim(store, limit=8)] == ["slow-04"]


async def test_a_receiver_is_identified_by_host_and_port_in_any_notation(stage):
    urls = ["https://A.example/x?y", "https://a.EXAMPLE?z", "https://a.example:8443/x", "https://[2606::1]:443/"]
    for url in urls:
        stage.record_callbacks("r", url=url)

    assert [row["receiver"] for row in stage.callbacks()] == [
        "a.example",
        "a.example",
        "a.example:8443",
        "[2606::1]:443",
    ]


async def test_an_attempt_that_was_lost_with_its_process_is_repeated(stage, store):
    stage.record_callbacks("r")
    (lost,) = await claim(store)

    store.advance(61)
    (again,) = await claim(store)

    assert (again.callback_id, again.number, again.tries) == (lost.callback_id, 2, 2)
    assert [row["error"] is not None for row in stage.deliveries()] == [True, False]
    assert not await store.finish(lost, *DELIVERED), "the result of the next attempt counts"
    assert stage.deliveries()[0]["status_code"] == 204, "the result of the lost attempt is still recorded"
    assert stage.callbacks()[0]["state"] == "pending"
    assert await store.finish(again, *DELIVERED)
    assert stage.callbacks()[0]["state"] == "delivered"


async def test_a_callback_whose_attempts_are_all_lost_is_given_up(stage, store):
    stage.record_callbacks("r")
    for _ in range(LIMITS.max_tries):
        assert await claim(store)
        store.advance(61)

    assert await claim(store) == ()

    (row,) = stage.callbacks()
    assert (row["state"], row["attempts"]) == ("failed", LIMITS.max_tries)
    assert all(each["finished_at"] for each in stage.deliveries())


async def test_a_result_is_recorded_even_if_the_lease_has_expired(stage, store):
    stage.record_callbacks("r")
    (callback,) = await claim(store)

    store.advance(61)

    assert await store.finish(callback, *DELIVERED)
    assert stage.callbacks()[0]["state"] == "delivered"


async def test_a_claim_reports_whether_callbacks_are_pending(stage, store):
    assert not (await store.claim(uuid4(), 5, LIMITS)).are_pending
    stage.record_callbacks("r")
    assert (await store.claim(uuid4(), 5, LIMITS)).are_pending


# --- what operators change -------------------------------------------------------------------------------------------


async def test_a_callback_is_repeated_with_its_own_id_and_all_its_attempts(stage, store):
    stage.record_callbacks("r")
    (callback,) = await claim(store)
    await store.finish(callback, *GIVEN_UP)

    await store.repeat(callback.callback_id, "olga")

    (again,) = await claim(store)
    assert (again.callback_id, again.number, again.tries) == (callback.callback_id, 2, 1)
    (event,) = stage.rows("SELECT * FROM dagapp.asset_events WHERE action = 'callback_repeated'")
    assert (event["actor"], event["request_id"], event["asset_id"]) == ("olga", "r", None)
    assert event["detail"] == {"callback_id": str(callback.callback_id), "status": "approved"}


async def test_senders_are_notified_of_a_repeated_callback_after_its_commit(stage, database):
    exchange = MemoryExchange()
    sender = exchange.notifier(CALLBACKS)
    operator = PostgresCallbacks(database, "test", exchange.notifier())
    stage.record_callbacks("r")
    (callback,) = await claim(operator)
    with pytest.raises(Conflict):
        await operator.repeat(callback.callback_id, "olga")
    assert await sender.wait(0.01) == frozenset()
    await operator.finish(callback, *GIVEN_UP)

    await operator.repeat(callback.callback_id, "olga")

    assert await sender.wait(0.01) == {CALLBACKS}
    await operator.close()


async def test_repeating_a_callback_that_waits_for_its_next_attempt_sends_it_at_once(stage, store):
    stage.record_callbacks("r")
    (callback,) = await claim(store)
    await store.finish(callback, *RETRIED)
    assert await claim(store) == ()

    await store.repeat(callback.callback_id, "olga")

    assert len(await claim(store)) == 1


async def test_a_callback_is_not_repeated_while_an_attempt_is_running(stage, store):
    stage.record_callbacks("r")
    (callback,) = await claim(store)

    with pytest.raises(Conflict, match="under way"):
        await store.repeat(callback.callback_id, "olga")
    with pytest.raises(NotFound):
        await store.repeat(uuid4(), "olga")

    assert stage.rows("SELECT 1 FROM dagapp.asset_events WHERE action = 'callback_repeated'") == []


async def test_a_secret_is_rotated_with_an_overlap(stage, store):
    stage.record_callbacks("r")
    (callback,) = await claim(store)
    (first,) = callback.secrets

    rotated = await store.rotate_secret("ddh", overlap_seconds=3600, actor="olga")

    assert rotated.secret != first
    assert rotated.secret not in repr(rotated)
    assert (rotated.previous_until - store.now).total_seconds() == 3600
    store.advance(3599)
    (callback,) = await claim(store)
    assert callback.secrets == (rotated.secret, first)
    store.advance(61)
    (callback,) = await claim(store)
    assert callback.secrets == (rotated.secret,)
    (event,) = stage.rows("SELECT * FROM dagapp.asset_events WHERE action = 'secret_rotated'")
    assert (event["actor"], event["platform_id"]) == ("olga", "ddh")
    assert "whsec" not in str(event)


async def test_a_rotation_without_overlap_removes_all_earlier_secrets(stage, store):
    await store.rotate_secret("ddh", overlap_seconds=3600, actor="olga")
    stolen = await store.rotate_secret("ddh", overlap_seconds=3600, actor="olga")
    replaced = await store.rotate_secret("ddh", overlap_seconds=0, actor="olga")

    assert [row["secret"] for row in stage.rows("SELECT secret FROM dagapp.platform_secrets")] == [replaced.secret]
    assert stolen.secret != replaced.secret
    with pytest.raises(NotFound):
        await store.rotate_secret("unknown", overlap_seconds=0, actor="olga")


async def test_concurrent_first_uses_of_the_secret_of_a_platform_get_the_same_secret(stage, store, database):
    for number in range(2):
        stage.record_callbacks(f"r{number}", url=f"https://host-{number}.example/")
    other = ClockedCallbacks(database)
    try:
        (one,), (two,) = await asyncio.gather(claim(store, limit=1), claim(other, limit=1))
    finally:
        await other.close()

    assert one.callback_id != two.callback_id
    assert one.secrets == two.secrets


@pytest.mark.requirement("D5")
async def test_retention_deletes_callbacks_that_ended_long_ago(stage, store, database):
    for number in range(3):
        stage.record_callbacks(f"r{number}", url=f"https://host-{number}.example/")
    old, given_up, _waiting = await claim(store)
    await store.finish(old, *DELIVERED)
    await store.finish(given_up, *GIVEN_UP)
    retention = PostgresRetention(database)
    try:
        stage.rows(
            "UPDATE dagapp.callback_events SET ended_at = ended_at - interval '2 days', created_at = '2020-01-01'"
        )
        stage.rows("UPDATE dagapp.callback_events SET ended_at = now() WHERE request_id = 'r1'")
        pruned = await retention.prune_without_job(86_400, 10)
    finally:
        await retention.close()

    assert pruned.callbacks == 1
    assert [row["request_id"] for row in stage.callbacks()] == ["r1", "r2"]
    assert len(stage.deliveries()) == 2
