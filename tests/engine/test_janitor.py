"""The janitor finds stuck jobs, acts only if the job has not changed since, and ignores jobs that are only slow."""

import asyncio
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from dagmaster.database.ledger.protocol import Claim, Demand, OrchestratorInfo, Report, WorkerInfo
from dagmaster.database.maintenance.janitor import JanitorThresholds, PostgresJanitor, _json
from dagmaster.database.maintenance.retention import PostgresRetention
from dagmaster.database.notify.notifier import JOBS
from dagmaster.database.session import dicts
from dagmaster.errors import InvalidRequest, Unavailable
from dagmaster.jobs.model import JanitorAction
from dagmaster.jobs.states import TaskStatus
from dagmaster.observe import log
from dagmaster.orchestrator import webhook
from dagmaster.orchestrator.janitor import STUCK_AFTER, Janitor
from dagmaster.testing.memory_notifier import MemoryExchange
from tests.engine.harness import Engine, engine, fast_settings, open_gate, until, workflow

pytestmark = pytest.mark.requirement("E21")

QUEUE = "dag-worker-tasks"
THRESHOLDS = JanitorThresholds(orphan_after=60, neglected=300, queued=600)
ONE_TASK = workflow("""
    workflow_id: one_task
    version: 1
    nodes:
      start: {type: start, next: work}
      work: {handler: gate, retry: {max_attempts: 3, initial_delay_seconds: 3600, max_delay_seconds: 7200}, next: end}
      end: {type: end}
""")


@pytest.fixture
async def store(database: str) -> Any:
    janitor = PostgresJanitor(database)
    yield janitor
    await janitor.close()


async def sweep(store: PostgresJanitor, **more: Any) -> list[JanitorAction]:
    return list((await store.sweep(uuid4(), THRESHOLDS, **more)).actions)


async def actions(running: Engine) -> list[dict[str, Any]]:
    return await running.rows("SELECT * FROM dagapp.dag_janitor_actions ORDER BY created_at")


async def queued_job(running: Engine) -> UUID:
    """A job whose task waits for a worker."""
    job_id = await running.submit(ONE_TASK)
    await until(lambda: running.tasks(job_id))
    return job_id


async def steal(running: Engine, job_id: UUID, *, untouched: str = "1 hour") -> UUID:
    """Give the job to an owner that is alive but has not advanced it for a long time."""
    owner = uuid4()
    await running.ledger.beat(OrchestratorInfo(owner, "host", 1, "0"))
    await running.rows(
        "UPDATE dagapp.orchestrators SET heartbeat_at = clock_timestamp() + interval '1 day' WHERE owner_id = %s", owner
    )
    await running.rows(
        "UPDATE dagapp.dag_jobs SET owner_id = %s, claim_token = gen_random_uuid(), epoch = epoch + 1,"
        " version = version + 1, owner_heartbeat_at = clock_timestamp() - %s::interval WHERE job_id = %s",
        owner,
        untouched,
        job_id,
    )
    return owner


async def take(running: Engine, worker: UUID, lease: float = 3600) -> None:
    demand = Demand((QUEUE,), light_handlers=("gate",), light=1)
    assert (await running.ledger.exchange(worker, (), demand, lease_seconds=lease)).claimed


async def report(running: Engine, worker: UUID, job_id: UUID, *, fails: bool = False) -> None:
    error = {"message": "no", "blame": "handler", "code": "handler.failed"} if fails else None
    status = TaskStatus.FAILED if fails else TaskStatus.SUCCEEDED
    task_report = Report(job_id, "work", 1, status, None if fails else {"done": 1}, error)
    assert not (await running.ledger.exchange(worker, [task_report], Demand(()), lease_seconds=60)).late


async def move_back(running: Engine, table: str, column: str, job_id: UUID, by: str = "1 hour") -> None:
    await running.rows(
        f"UPDATE dagapp.{table} SET {column} = clock_timestamp() - %s::interval WHERE job_id = %s AND"
        f" ({column} IS NOT NULL OR %s = 'deadline_at')",
        by,
        job_id,
        column,
    )


# --- neglected jobs go to another owner, and end ---------------------------------------------------------------------


async def expired_lease(running: Engine, job_id: UUID) -> None:
    await take(running, uuid4())
    await steal(running, job_id)
    await move_back(running, "dag_tasks", "lease_until", job_id)


async def overrun(running: Engine, job_id: UUID) -> None:
    await take(running, uuid4())
    await steal(running, job_id)
    await running.rows(
        "UPDATE dagapp.dag_tasks SET timeout_seconds = 1, started_at = clock_timestamp() - interval '1 hour'"
    )


async def expired(running: Engine, job_id: UUID) -> None:
    await steal(running, job_id)
    await running.rows("UPDATE dagapp.dag_tasks SET expires_at = clock_timestamp() - interval '1 hour'")


async def unread_result(running: Engine, job_id: UUID) -> None:
    worker = uuid4()
    await take(running, worker)
    await steal(running, job_id)
    await report(running, worker, job_id)
    await move_back(running, "dag_task_results", "reported_at", job_id)


async def retry_that_is_due(running: Engine, job_id: UUID) -> None:
    await waiting_for_its_retry(running, job_id)
    await move_back(running, "dag_node_states", "not_before", job_id)


async def past_its_deadline(running: Engine, job_id: UUID) -> None:
    await steal(running, job_id)
    await move_back(running, "dag_jobs", "deadline_at", job_id)


async def to_be_cancelled(running: Engine, job_id: UUID) -> None:
    await steal(running, job_id)
    await running.ledger.request_cancel(job_id, by="ana", reason=None)
    await move_back(running, "dag_jobs", "cancel_requested_at", job_id)


NEGLECTED = {
    "lease_lapsed": expired_lease,
    "task_overran": overrun,
    "task_expired": expired,
    "results_unread": unread_result,
    "wait_over": retry_that_is_due,
    "deadline_passed": past_its_deadline,
    "cancel_unheeded": to_be_cancelled,
}


@pytest.mark.parametrize("cause", NEGLECTED)
async def test_a_job_that_its_live_owner_neglects_is_released_and_handled_by_another_owner(database, store, cause):
    async with engine(database, workers=0, verify_history=cause != "task_expired") as running:
        job_id = await queued_job(running)
        await NEGLECTED[cause](running, job_id)
        before = await running.job(job_id)

        (action,) = await sweep(store)

        assert (action.action_type, action.target_type, action.target_id) == (cause, "job", str(job_id))
        assert [row["action_type"] for row in await actions(running)] == [cause]
        await until(lambda: _was_handled(running, job_id, before["last_sequence"]))
        assert await sweep(store) == []
        await running.ledger.request_cancel(job_id, by="ana", reason=None)


async def _was_handled(running: Engine, job_id: UUID, sequence: int) -> bool:
    return (await running.job(job_id))["last_sequence"] > sequence


async def test_a_stalled_job_is_released_and_completed_by_another_owner(database, store):
    async with engine(database, orchestrators=0) as running:
        job_id = await running.submit(ONE_TASK)
        open_gate(job_id)
        await steal(running, job_id)

        (action,) = await sweep(store)

        assert action.action_type == "job_stalled"
        await running.start_orchestrator()
        assert (await running.wait(job_id))["status"] == "completed"


async def test_a_job_whose_nodes_have_all_ended_is_finished_by_its_next_owner(database, store):
    async with engine(database, workers=0, verify_history=False) as running:
        job_id = await queued_job(running)
        await steal(running, job_id)
        await running.rows("SET session_replication_role = replica")
        await running.rows("UPDATE dagapp.dag_tasks SET status = 'succeeded'")
        await running.rows("UPDATE dagapp.dag_node_states SET status = 'completed', output = '1'")
        assert (await running.job(job_id))["status"] == "running"

        (action,) = await sweep(store)

        assert action.action_type == "job_unfinished"
        assert (await running.wait(job_id))["status"] == "completed"


async def test_orchestrators_are_notified_of_jobs_that_were_released(database, store):
    exchange = MemoryExchange()
    listener, notifying = exchange.notifier(JOBS), PostgresJanitor(database, notifier=exchange.notifier())
    async with engine(database, workers=0, verify_history=False) as running:
        job_id = await queued_job(running)
        await expired_lease(running, job_id)
        await sweep(notifying, is_dry=True)
        after_dry_run = await listener.wait(0.05)
        await sweep(notifying)
        after_release = await listener.wait(5)
        await sweep(notifying)
        without_release = await listener.wait(0.05)
    await notifying.close()

    assert (after_dry_run, after_release, without_release) == (frozenset(), {JOBS}, frozenset())


# --- slow, not dead --------------------------------------------------------------------------------------------------


async def waiting_for_its_retry(running: Engine, job_id: UUID) -> None:
    worker = uuid4()
    await take(running, worker)
    await report(running, worker, job_id, fails=True)
    running.notifier.notify("results")
    await until(lambda: _waits(running, job_id))
    await steal(running, job_id)


async def _waits(running: Engine, job_id: UUID) -> bool:
    return (await running.nodes(job_id))["work"]["not_before"] is not None


async def long_task_with_renewed_lease(running: Engine, job_id: UUID) -> None:
    await take(running, uuid4())
    await running.rows(
        "UPDATE dagapp.dag_tasks SET started_at = clock_timestamp() - interval '1 hour', timeout_seconds = 86400"
    )
    await steal(running, job_id)


async def result_that_is_new(running: Engine, job_id: UUID) -> None:
    """The owner has not advanced the job for an hour, because nothing happened; the result has just arrived."""
    worker = uuid4()
    await take(running, worker)
    await steal(running, job_id)
    await report(running, worker, job_id)


async def owner_that_advanced_recently(running: Engine, job_id: UUID) -> None:
    await expired_lease(running, job_id)
    await steal(running, job_id, untouched="10 seconds")


async def owner_that_is_dead(running: Engine, job_id: UUID) -> None:
    """Such a job is an orphan, and orchestrators claim orphans."""
    await expired_lease(running, job_id)
    await running.rows("DELETE FROM dagapp.orchestrators WHERE heartbeat_at > clock_timestamp()")


async def paused_queue(running: Engine, job_id: UUID) -> None:
    await running.ledger.set_queue(QUEUE, max_running=None, is_paused=True)
    await steal(running, job_id)
    await move_back(running, "dag_tasks", "available_at", job_id)


async def busy_worker(running: Engine, job_id: UUID) -> None:
    await running.ledger.beat_worker(WorkerInfo(uuid4(), "host", 1, "0", "general", (QUEUE,), ("gate",)))
    await steal(running, job_id)
    await move_back(running, "dag_tasks", "available_at", job_id)


FALSE_ALARMS = (
    waiting_for_its_retry,
    long_task_with_renewed_lease,
    result_that_is_new,
    owner_that_advanced_recently,
    owner_that_is_dead,
    paused_queue,
    busy_worker,
)


@pytest.mark.parametrize("scene", FALSE_ALARMS, ids=lambda scene: scene.__name__)
async def test_a_job_that_is_only_slow_is_not_touched(database, store, scene):
    async with engine(database, workers=0, verify_history=False) as running:
        job_id = await queued_job(running)
        for orchestrator in running.orchestrators:
            if scene is not waiting_for_its_retry:
                orchestrator.stop()
        await scene(running, job_id)
        before = await running.job(job_id)

        assert await sweep(store) == []
        assert await actions(running) == []
        if scene is not owner_that_is_dead:
            assert await running.job(job_id) == before


# --- only if the job is unchanged ------------------------------------------------------------------------------------


async def test_a_job_that_has_changed_since_it_was_read_is_not_released(database, store):
    async with engine(database, workers=0, verify_history=False) as running:
        job_id = await queued_job(running)
        owner = await steal(running, job_id)
        await move_back(running, "dag_jobs", "deadline_at", job_id)
        async with store._transaction("janitor") as connection:
            values = {"neglected_after": 300, "orphan_after": 60, "limit": 10}
            (row,) = await dicts(connection, "janitor_neglected", values)
            seen = _json([{**row, "reason": "", "detail": None}])

            await running.rows("UPDATE dagapp.dag_jobs SET version = version + 1")
            late = await dicts(connection, "janitor_release", {"run_id": uuid4(), "findings": seen})

        assert late == []
        assert (await running.job(job_id))["owner_id"] == owner
        assert len(await sweep(store)) == 1


async def test_a_job_that_its_owner_has_locked_is_not_released(database, store):
    async with engine(database, workers=0, verify_history=False) as running:
        job_id = await queued_job(running)
        await steal(running, job_id)
        await move_back(running, "dag_jobs", "deadline_at", job_id)
        async with await psycopg.AsyncConnection.connect(database) as holder:
            await holder.execute("SELECT 1 FROM dagapp.dag_jobs FOR NO KEY UPDATE")

            assert await sweep(store) == []


async def test_concurrent_janitors_take_each_action_once(database):
    janitors = [PostgresJanitor(database) for _ in range(6)]
    async with engine(database, orchestrators=0, workers=0) as running:
        job_ids = [await running.submit(ONE_TASK) for _ in range(20)]
        for job_id in job_ids:
            await steal(running, job_id)
        await running.ledger.enqueue_message("m", "elsewhere", {})
        await running.rows("UPDATE dagapp.dag_job_messages SET enqueued_at = clock_timestamp() - interval '1 hour'")

        action_lists = await asyncio.gather(*(sweep(janitor) for janitor in janitors for _ in range(3)))

        targets = sorted(action.target_id for part in action_lists for action in part)
        assert targets == sorted([*map(str, job_ids), "elsewhere"])
        assert len(await actions(running)) == len(targets)
    for janitor in janitors:
        await janitor.close()


async def test_a_check_that_another_janitor_is_running_is_skipped(database, store):
    async with await psycopg.AsyncConnection.connect(database) as other:
        await other.execute("SELECT pg_advisory_xact_lock(hashtext('dagapp.janitor'), hashtext('unread'))")

        assert (await store.sweep(uuid4(), THRESHOLDS)).left_to_others == ("unread",)


async def test_a_dry_run_reports_the_action_and_changes_nothing(database, store):
    async with engine(database, workers=0, verify_history=False) as running:
        job_id = await queued_job(running)
        await steal(running, job_id)
        await move_back(running, "dag_jobs", "deadline_at", job_id)
        before = await running.job(job_id)

        (action,) = await sweep(store, is_dry=True)

        assert action.action_type == "deadline_passed"
        assert await running.job(job_id) == before
        assert await actions(running) == []


# --- only reported ---------------------------------------------------------------------------------------------------


async def test_a_task_that_no_worker_can_claim_is_reported_once_an_hour(database, store):
    async with engine(database, workers=0) as running:
        job_id = await queued_job(running)
        await running.ledger.beat_worker(WorkerInfo(uuid4(), "host", 1, "0", "general", (QUEUE,), ("echo",)))
        assert await sweep(store) == []
        await move_back(running, "dag_tasks", "available_at", job_id)

        (action,) = await sweep(store)

        assert (action.action_type, action.target_id) == ("task_unserved", f"{job_id}_work_1")
        assert action.detail == {"job_id": str(job_id), "queue": QUEUE, "handler": "gate", "tasks": 1}
        assert "no live worker" in action.reason
        assert await sweep(store) == []
        await running.rows("UPDATE dagapp.dag_janitor_actions SET created_at = created_at - interval '2 hours'")
        assert len(await sweep(store)) == 1


async def test_a_queue_without_readers_is_reported(database, store):
    async with engine(database, orchestrators=0, workers=0) as running:
        await running.ledger.enqueue_message("m-1", "elsewhere", {})
        assert await sweep(store) == []
        await running.rows("UPDATE dagapp.dag_job_messages SET enqueued_at = clock_timestamp() - interval '1 hour'")

        (action,) = await sweep(store)

        assert (action.action_type, action.target_id) == ("messages_unread", "elsewhere")
        assert action.detail == {"messages": 1, "oldest": "m-1"}


@pytest.mark.parametrize(("name", "action_type"), [("dagmaster-x", "session_ended"), ("psql", "session_idle")])
async def test_a_session_idle_in_a_transaction_is_reported_and_ended_if_it_belongs_to_the_platform(
    database, store, name, action_type
):
    short = JanitorThresholds(60, neglected=0.05, queued=600)
    session = await psycopg.AsyncConnection.connect(database, application_name=name)
    await session.execute("SELECT 1")
    assert await sweep(store) == []

    async def actions() -> list[JanitorAction]:
        return [action for action in (await store.sweep(uuid4(), short)).actions if action.target_type == "session"]

    (action,) = await until(actions)

    assert (action.action_type, action.target_id) == (action_type, str(session.info.backend_pid))
    if action_type == "session_ended":
        with pytest.raises(psycopg.OperationalError):
            await session.execute("SELECT 1")
    else:
        await session.execute("SELECT 1")
    await session.close()


# --- in the orchestrator ---------------------------------------------------------------------------------------------


def janitor_of(dsn: str, **settings: Any) -> Janitor:
    return Janitor(fast_settings(**settings), PostgresJanitor(dsn), PostgresRetention(dsn))


async def test_a_job_that_cannot_be_advanced_is_reported_once(database):
    janitor = janitor_of(database)
    async with engine(database, orchestrators=0, workers=0) as running:
        orchestrator = await running.start_orchestrator()
        orchestrator.janitor = janitor
        job_id = await queued_job(running)
        for failed in range(STUCK_AFTER - 1):
            await orchestrator._set_aside(job_id, _slow_statement(f"failure {failed}"))
        assert janitor._stuck == {}

        await orchestrator._set_aside(job_id, _slow_statement("the last failure"))

        (action,) = await until(lambda: actions(running))
        assert (action["action_type"], action["target_id"]) == ("job_stuck", str(job_id))
        assert "Unavailable: the last failure" in action["reason"]
        claim = orchestrator._owned[job_id].claim
        again = await janitor.store.note_stuck(uuid4(), orchestrator.owner_id, claim, "again")
        late = await janitor.store.note_stuck(
            uuid4(), orchestrator.owner_id, Claim(job_id, uuid4(), 0), "by another owner"
        )
        assert (again, late) == ([], [])
        stats = await until(lambda: _janitor_stats(running))
        assert stats["silent_seconds"] < 10
        assert stats["errors"] == 0
    await janitor.close()


async def test_a_job_that_fails_again_and_again_is_set_aside_for_a_minute(database):
    """Also if it cannot be ended, so that its failures are counted for days."""
    async with engine(database, orchestrators=0, workers=0) as running:
        orchestrator = await running.start_orchestrator()
        job_id = await queued_job(running)
        owned = orchestrator._owned[job_id]
        owned.failures = 5000

        async def cannot_fail(*_arguments: Any) -> bool:
            raise Unavailable("the database does not respond")

        orchestrator.ledger.fail_job = cannot_fail
        await orchestrator._set_aside(job_id, _slow_statement("the last failure"))

        assert owned.set_aside_until - orchestrator._now() == pytest.approx(60, abs=2)


def _slow_statement(message: str) -> Unavailable:
    return Unavailable(message, sqlstate="57014")


async def _janitor_stats(running: Engine) -> Any:
    stats = await running.value("SELECT stats -> 'janitor' FROM dagapp.orchestrators")
    return stats if stats and stats["actions"] else None


async def test_a_janitor_without_a_database_keeps_running_and_counts_errors(database):
    janitor = janitor_of("postgresql://localhost:1/nothing", janitor_interval_sec=0.01)
    task = asyncio.create_task(janitor.run())

    await until(lambda: asyncio.sleep(0, janitor.counters.errors > 1))

    assert janitor.stats()["runs"] == 0
    assert janitor.stats()["silent_seconds"] >= 0
    task.cancel()
    await janitor.close()


# --- the webhook -----------------------------------------------------------------------------------------------------


async def test_the_webhook_receives_actions_and_a_failing_webhook_does_not_stop_the_janitor(database):
    log.configure("error")
    requests: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"]}"))
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n" if len(requests) == 1 else b"HTTP/1.1 302 Found\r\n\r\n")
        writer.close()

    async with (
        await asyncio.start_server(answer, "127.0.0.1", 0) as server,
        engine(database, orchestrators=0, workers=0) as running,
    ):
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook?a=1"
        janitor = janitor_of(database, janitor_webhook_url=url, allow_private_webhooks=True)
        for _ in range(2):
            await steal(running, await running.submit(ONE_TASK))
            _, swept = await janitor.sweep()
            assert len(swept.actions) == 1

        assert requests[0].startswith(b"POST /hook?a=1 HTTP/1.1\r\nHost: 127.0.0.1:")
        assert b'"action_type":"job_stalled"' in requests[0]
        with pytest.raises(Unavailable, match="responded with status 302"):
            await webhook.post(url, {"actions": []}, allow_private=True)
        with pytest.raises(InvalidRequest, match="not public"):
            await webhook.post(url, {"actions": []}, allow_private=False)
        await janitor.close()
