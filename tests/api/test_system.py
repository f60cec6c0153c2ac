"""The data for the system pages: rates of queues, leases of running tasks, and the health of the database."""

import psycopg
import pytest

from dagmaster.client import AsyncClient as DagmasterClient
from dagmaster.observe.rates import RateMeter
from tests.api.serving import V1, api, app_of, ok, served
from tests.engine.harness import engine, open_gate, until, workflow

pytestmark = pytest.mark.requirement("O1")

GATE = """
    workflow_id: gates
    nodes:
      start: {type: start, next: busy}
      busy: {handler: gate, next: end}
      end: {type: end}
"""


def test_a_rate_counts_the_events_of_the_last_minute():
    now = [0.0]
    meter = RateMeter(lambda: now[0])
    for now[0] in range(120):
        meter.add("a")
    meter.add("b", 5)

    at_once = meter.per_minute()
    now[0] += 30
    later = meter.per_minute()
    now[0] += 60

    assert 55 <= at_once["a"] <= 60
    assert at_once["b"] == 5
    assert 25 <= later["a"] <= 30
    assert meter.per_minute() == {}
    assert len(meter._slots) <= 13


async def test_queues_have_rates_and_running_tasks_have_leases(database):
    async with engine(database, task_lease_sec=60.0) as running, api(database, running) as client:
        await running.run("hello_world")
        job_id = await running.submit(workflow(GATE))

        async def rates():
            """The rates of the queue of hello_world and of the queue whose task runs, once both are reported."""
            queues = {queue["queue"]: queue for queue in (await ok(client.get(f"{V1}/queues")))["items"]}
            done, busy = queues["functionapp-tasks"], queues["dag-worker-tasks"]
            is_reported = done["finished_per_minute"] >= 2 and busy["started_per_minute"] and busy["running_count"]
            return (done, busy) if is_reported and busy["enqueued_per_minute"] else None

        async def lease():
            return (await ok(client.get(f"{V1}/leases")))["items"]

        (held,) = await until(lease)
        done, busy = await until(rates)
        none = (await ok(client.get(f"{V1}/leases", params={"within_seconds": 0})))["items"]
        open_gate(job_id)
        await running.wait(job_id)
        submissions = [q for q in (await ok(client.get(f"{V1}/queues")))["items"] if q["kind"] == "submissions"]

    assert (held["job_id"], held["node_id"], held["workflow_id"]) == (str(job_id), "busy", "gates")
    assert held["is_worker_alive"] is True
    assert held["remaining_seconds"] > 0
    assert none == []
    assert (done["enqueued_per_minute"], done["started_per_minute"], done["finished_per_minute"]) == (2, 2, 2)
    assert (busy["enqueued_per_minute"], busy["started_per_minute"], busy["finished_per_minute"]) == (1, 1, 0)
    assert submissions[0]["enqueued_per_minute"] is None


@pytest.mark.parametrize("stats", ['{"started_per_minute": 5}', '{"started_per_minute": {"q": "x"}}', "[]", "null"])
async def test_queues_are_listed_even_if_a_worker_reports_invalid_statistics(database, stats):
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO dagapp.workers (worker_id, host, pid, software_version, worker_type, queues, handlers, stats, "
            "heartbeat_at) VALUES (gen_random_uuid(), 'h', 1, '1', 'general', '{q}', '{}', %s::jsonb, "
            "now() + interval '1 hour')",
            [stats],
        )
    async with api(database) as client:
        queues = {queue["queue"]: queue for queue in (await ok(client.get(f"{V1}/queues")))["items"]}

    assert queues["q"]["started_per_minute"] == 0


async def test_the_health_of_the_database_has_its_oldest_transaction(database):
    with psycopg.connect(database) as connection:
        connection.execute("SELECT txid_current()")
        async with served(app_of(database)) as server, DagmasterClient(server.url) as client:
            health = await client.database_health()
            leases = await client.leases()

    tables = {table.table: table for table in health.tables}
    assert tables["dag_job_events"].partitions >= 3
    assert tables["dag_jobs"].bytes > 0
    assert [table.bytes for table in health.tables] == sorted((t.bytes for t in health.tables), reverse=True)
    assert health.partitions
    assert 0 < health.connections <= health.max_connections
    assert health.oldest_transaction is not None
    assert health.oldest_transaction.seconds >= 0
    assert leases == []
