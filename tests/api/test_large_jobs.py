"""Reading a job with very many children takes no longer than reading a small one."""

import time
from typing import Any
from uuid import UUID

import psycopg
import pytest

from dagmaster.workflows.model import Workflow
from tests.api.serving import V1, api, app_of, client_of, ok
from tests.engine.harness import workflow

pytestmark = pytest.mark.requirement("E9")

CHILDREN = 20_000
MANY = """
    workflow_id: many
    nodes:
      start: {type: start, next: split}
      split: {type: fan_out, source: "{{ [] }}", task: {handler: echo}, next: gather}
      gather: {type: fan_in, next: end}
      end: {type: end}
"""


@pytest.fixture(scope="module")
def large_job(shared_database: str) -> tuple[str, UUID]:
    """A job in tables that were never analysed: half of its children are completed, the others are queued."""
    return shared_database, fill(shared_database, workflow(MANY), CHILDREN)


def fill(dsn: str, of: Workflow, children: int) -> UUID:
    with psycopg.connect(dsn, autocommit=True) as connection:
        job_id: UUID = connection.execute("SELECT dagapp.first_uuid_at(now())").fetchone()[0]  # type: ignore[index]
        connection.execute(
            "INSERT INTO dagapp.dag_workflow_definitions VALUES ('h', 'many', '1', %s)",
            [psycopg.types.json.Jsonb(of.body())],
        )
        connection.execute(
            "INSERT INTO dagapp.dag_jobs (job_id, workflow_id, workflow_version, definition_hash, status, "
            "input_params, last_sequence) "
            "VALUES (%s, 'many', '1', 'h', 'pending', '{}', %s)",
            [job_id, children],
        )
        connection.execute("UPDATE dagapp.dag_jobs SET status = 'running', started_at = now()")
        connection.execute(
            "INSERT INTO dagapp.dag_node_states (job_id, node_id, status, total, expanded, remaining, failed_count) "
            "VALUES (%(j)s, 'start', 'pending', NULL, NULL, NULL, NULL), "
            "(%(j)s, 'split', 'ready', %(n)s, %(n)s, %(n)s / 2, 0), "
            "(%(j)s, 'gather', 'pending', NULL, NULL, NULL, NULL), "
            "(%(j)s, 'end', 'pending', NULL, NULL, NULL, NULL)",
            {"j": job_id, "n": children},
        )
        connection.execute(
            "INSERT INTO dagapp.dag_node_states (job_id, node_id, status, parent_node_id, fan_out_index, attempt) "
            "SELECT %s, 'split__' || i, 'dispatched', 'split', i, 1 FROM generate_series(0, %s - 1) AS i",
            [job_id, children],
        )
        connection.execute(
            "INSERT INTO dagapp.dag_tasks (job_id, node_id, attempt, queue, handler, priority, status, "
            "timeout_seconds) "
            "SELECT %s, 'split__' || i, 1, 'dag-worker-tasks', 'echo', 0, 'queued', 60 "
            "FROM generate_series(0, %s - 1) AS i",
            [job_id, children],
        )
        half = "job_id = %s AND substr(node_id, 8)::int < %s / 2"
        connection.execute(
            f"UPDATE dagapp.dag_node_states SET status = 'completed' WHERE parent_node_id = 'split' AND {half}",
            [job_id, children],
        )
        connection.execute(f"UPDATE dagapp.dag_tasks SET status = 'running' WHERE {half}", [job_id, children])
        connection.execute(f"UPDATE dagapp.dag_tasks SET status = 'succeeded' WHERE {half}", [job_id, children])
        connection.execute(
            "INSERT INTO dagapp.dag_job_events (job_id, sequence, node_id, event_type) "
            "SELECT %s, i, 'split__' || i, 'node_dispatched' FROM generate_series(1, %s) AS i",
            [job_id, children],
        )
    return job_id


@pytest.mark.parametrize(
    ("part", "params"),
    [
        ("", {}),
        ("/nodes", {}),
        ("/nodes", {"parent": "split", "after": CHILDREN - 300, "limit": 200}),
        ("/nodes/split__7", {}),
        ("/events", {"after": CHILDREN - 300, "limit": 200}),
        ("/timeline", {"after": "split__5~1", "limit": 200}),
        ("/waiting", {}),
        ("/waiting", {"parent": "split", "limit": 200}),
    ],
)
async def test_no_view_of_a_large_job_reads_all_of_its_rows(large_job, part, params):
    dsn, job_id = large_job
    app = app_of(dsn)
    async with client_of(app) as client:
        path = f"{V1}/jobs/{job_id}{part}"
        await ok(client.get(path, params=params))

        before = await _rows_read(app)
        started = time.monotonic()
        await ok(client.get(path, params=params))
        seconds = time.monotonic() - started
        read = await _rows_read(app) - before

    assert 0 < read < 5000, f"{read} rows"
    assert seconds < 1.0


async def _rows_read(app: Any) -> int:
    """The number of rows of large tables that were read so far, from the statistics of PostgreSQL."""
    async with app.state.services.reads._connected() as connection:
        await connection.execute("SELECT pg_stat_force_next_flush()")
        row: Any = await (
            await connection.execute(
                "SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::int FROM pg_stat_user_tables "
                "WHERE schemaname = 'dagapp' AND relname ~ 'dag_(node_states|tasks|task_results|job_events)'"
            )
        ).fetchone()
        return int(row[0])


async def test_lists_for_operators_stay_fast_with_a_large_job_in_the_database(large_job):
    dsn, _ = large_job
    async with api(dsn) as client:
        for path in ("/queues", "/workers", "/orchestrators", "/stats", "/jobs"):
            started = time.monotonic()
            await ok(client.get(V1 + path))
            assert time.monotonic() - started < 1.0, path
