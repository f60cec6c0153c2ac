"""Every read of a job gets a response, even if rows are missing or contain values that dagmaster never writes."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg
import pytest
from httpx2 import AsyncClient

from dagmaster.handlers.registry import Registration
from dagmaster.jobs.payload import INLINE_BYTES
from tests.api.serving import V1, api, ok
from tests.engine.harness import Engine, engine, until, workflow

pytestmark = pytest.mark.requirement("E27")

# Nodes of each kind: completed ones, a running one, queued ones, and pending ones.
WORKFLOW = """
    workflow_id: kinds
    nodes:
      start: {type: start, next: [prepare, busy, heavy, phases]}
      prepare: {handler: make_list, params: {count: 3}, next: [split, choose, large]}
      large: {handler: large_output, next: end}
      choose: {type: conditional, condition: "{{ nodes.prepare.output.items | length }} > 2", on_true: "yes"}
      "yes": {handler: give, params: {value: 1}, next: end}
      split:
        type: fan_out
        source: "{{ nodes.prepare.output.items }}"
        task: {handler: echo}
        next: gather
      gather: {type: fan_in, next: wide}
      wide:
        type: fan_out
        source: "{{ nodes.prepare.output.items }}"
        task: {handler: echo, queue: container-tasks}
        next: last
      last: {type: fan_in, next: end}
      busy: {handler: gate, next: end}
      heavy: {handler: echo, queue: container-tasks, next: end}
      phases: {handler: multi_phase, params: {phases: 2, seconds_per_phase: 0}, next: end}
      end: {type: end}
"""
NODES = (
    "prepare",
    "choose",
    "split",
    "split__0",
    "wide__1",
    "gather",
    "busy",
    "heavy",
    "phases",
    "last",
    "not_in_definition",
)
TABLES = (
    "dag_jobs",
    "dag_node_states",
    "dag_tasks",
    "dag_task_results",
    "dag_job_events",
    "dag_checkpoints",
    "dag_payloads",
    "dag_payload_parts",
    "dag_workflow_definitions",
)
DEEP = "[" * 500 + "]" * 500
ODD_VALUES = {
    "jsonb": ["5", "null", '"text"', "[1]", '[{"a": 1}]', "{}", '{"n": 2e308}', DEEP, '{"log": 5}', '{"log": [5, {}]}'],
    "text": ["unknown", "", "\x01\x1b[31m", "é" * 100_000],
    "timestamp with time zone": ["infinity", "-infinity", "0044-03-15 BC", "20000-01-01", "0001-01-01"],
    "bigint": ["-1", "0", "9223372036854775807"],
    "integer": ["-1", "0", "2147483647"],
    "smallint": ["-1", "32767"],
    "double precision": ["NaN", "Infinity", "-1"],
    "boolean": ["true", "false"],
    "uuid": ["00000000-0000-0000-0000-000000000000"],
    "bytea": ["\\x", "\\xff00"],
}


async def large_output(_ctx: Any) -> str:
    return "x" * (INLINE_BYTES + 1)


class Rows:
    """Damages rows, without triggers and foreign keys, and restores them."""

    def __init__(self, dsn: str) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._connection.execute("SET session_replication_role = replica")

    def execute(self, sql: str, *values: Any) -> Any:
        return self._connection.execute(sql, values or None)

    def columns(self, table: str) -> dict[str, str]:
        """The columns that are not generated, with their types."""
        rows = self.execute(
            "SELECT column_name, data_type FROM information_schema.columns WHERE table_schema = 'dagapp' "
            "AND table_name = %s AND is_generated = 'NEVER' ORDER BY ordinal_position",
            table,
        )
        return dict(rows.fetchall())

    @contextmanager
    def damaged(self, table: str, sql: str, *values: Any) -> Iterator[bool]:
        """Whether the database accepted the damage, which is repaired after the block."""
        names = ", ".join(self.columns(table))
        self.execute(f"CREATE TEMP TABLE kept AS SELECT {names} FROM dagapp.{table}")
        try:
            self.execute(sql, *values)
        except (psycopg.IntegrityError, psycopg.DataError):
            yield False
        else:
            yield True
        finally:
            self.execute(f"DELETE FROM dagapp.{table}")
            self.execute(f"INSERT INTO dagapp.{table} ({names}) SELECT {names} FROM kept")
            self.execute("DROP TABLE kept")


@dataclass(frozen=True)
class Interrupted:
    """A database with a job that is half done: no process works on it."""

    dsn: str
    job_id: UUID
    rows: Rows

    def reads(self) -> list[str]:
        sha256 = self.rows.execute("SELECT sha256 FROM dagapp.dag_payloads").fetchone()[0]
        job = f"{V1}/jobs/{self.job_id}"
        return [
            f"{V1}/jobs",
            job,
            *(f"{job}/{part}" for part in ("nodes", "events", "timeline", "waiting", "logs", "logs?running=true")),
            *(f"{job}/nodes?parent={parent}" for parent in ("split", "wide")),
            *(f"{job}/waiting?parent={parent}" for parent in ("split", "wide")),
            *(f"{job}/nodes/{node}{part}" for node in NODES for part in ("", "/output")),
            f"{job}/nodes?status=completed",
            f"{job}/logs?node_id=split",
            f"{job}/payloads/{sha256}",
            *(f"{V1}/{part}" for part in ("stats", "queues", "workers", "orchestrators")),
        ]


@pytest.fixture(scope="module")
def interrupted(shared_database: str) -> Interrupted:
    job_id = asyncio.run(_interrupted_job(shared_database))
    rows = Rows(shared_database)
    rows.execute("UPDATE dagapp.dag_jobs SET owner_id = gen_random_uuid()")
    rows.execute(
        "UPDATE dagapp.dag_tasks SET status = 'running', worker_id = gen_random_uuid(), started_at = now(), "
        "progress = '{\"fraction\": 0.5}' WHERE node_id = 'busy'"
    )
    return Interrupted(shared_database, job_id, rows)


async def _interrupted_job(dsn: str) -> UUID:
    large = Registration("large_output", f"{__name__}:large_output")
    async with engine(dsn, workers=0, handlers=[large], verify_history=False) as running:
        await running.start_worker(["dag-worker-tasks"])
        job_id = await running.submit(workflow(WORKFLOW))
        await until(lambda: _is_halfway(running, job_id), 30)
    return job_id


async def _is_halfway(running: Engine, job_id: UUID) -> bool:
    nodes = await running.nodes(job_id)
    completed = all(nodes[node]["status"] == "completed" for node in ("phases", "large", "yes"))
    return completed and nodes["busy"]["status"] == "running" and "wide__2" in nodes


async def _failures(client: AsyncClient, paths: list[str], damage: str) -> list[str]:
    """The reads that get a server error or no response."""
    failures = []
    for path in paths:
        try:
            response = await client.get(path)
        except Exception as error:
            failures.append(f"{damage}: {path}: {type(error).__name__}: {str(error)[:200]}")
        else:
            if response.status_code >= 500:
                failures.append(f"{damage}: {path}: {response.status_code}")
    return failures


@pytest.mark.parametrize("table", TABLES)
async def test_every_read_of_a_job_responds_if_some_of_its_rows_are_missing(interrupted, table):
    rows, paths = interrupted.rows, interrupted.reads()
    of_nodes = [f"node_id = '{node}'" for node in NODES] if table in ("dag_node_states", "dag_tasks") else []
    failures = []

    async with api(interrupted.dsn) as client:
        for condition in ["true", *of_nodes]:
            with rows.damaged(table, f"DELETE FROM dagapp.{table} WHERE {condition}"):
                failures += await _failures(client, paths, f"no {table} where {condition}")

    assert failures == []


async def test_every_read_of_a_job_responds_if_it_has_a_node_that_is_not_in_its_definition(interrupted):
    rows, paths = interrupted.rows, interrupted.reads()
    sql = "UPDATE dagapp.dag_node_states SET {} WHERE node_id = {}"
    failures = []

    async with api(interrupted.dsn) as client:
        for damage in (
            sql.format("node_id = 'not_in_definition'", "'yes'"),
            sql.format("parent_node_id = 'not_in_definition'", "'split__0'"),
            sql.format("parent_node_id = NULL", "'split__0'"),
            sql.format("parent_node_id = 'split'", "'yes'"),
        ):
            with rows.damaged("dag_node_states", damage) as is_damaged:
                assert is_damaged
                failures += await _failures(client, paths, damage)

    assert failures == []


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("values", [1, pytest.param(None, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
async def test_every_read_of_a_job_responds_whatever_a_column_contains(interrupted, table, values):
    """One invalid value for each column, or all of them if slow tests are run."""
    rows, paths = interrupted.rows, interrupted.reads()
    failures = []

    damages = [
        (column, kind, value) for column, kind in rows.columns(table).items() for value in ODD_VALUES[kind][:values]
    ]
    clients = len(damages) if table == "dag_workflow_definitions" else 1  # the API caches definitions
    for at in range(clients):
        async with api(interrupted.dsn) as client:
            for column, kind, value in damages[at::clients]:
                sql = f"UPDATE dagapp.{table} SET {column} = %s::{kind}"
                with rows.damaged(table, sql, value) as is_damaged:
                    if is_damaged:
                        failures += await _failures(client, paths, f"{table}.{column} = {value[:20]}")

    assert failures == []


async def test_a_stream_of_a_job_whose_events_were_deleted_ends(interrupted):
    rows = interrupted.rows
    rows.execute("UPDATE dagapp.dag_jobs SET status = 'failed'")

    async with api(interrupted.dsn) as client:
        for condition in ("true", "sequence % 3 = 0"):
            with rows.damaged("dag_job_events", f"DELETE FROM dagapp.dag_job_events WHERE {condition}"):
                response = await asyncio.wait_for(client.get(f"{V1}/jobs/{interrupted.job_id}/events/stream"), 10)
            assert response.status_code == 200

    rows.execute("UPDATE dagapp.dag_jobs SET status = 'running'")


async def test_a_node_is_shown_as_waiting_for_a_node_whose_row_is_missing(interrupted):
    rows = interrupted.rows

    async with api(interrupted.dsn) as client:
        with rows.damaged("dag_node_states", "DELETE FROM dagapp.dag_node_states WHERE node_id = 'heavy'"):
            waiting = await ok(client.get(f"{V1}/jobs/{interrupted.job_id}/waiting"))
            job = await ok(client.get(f"{V1}/jobs/{interrupted.job_id}"))

    (reason,) = next(node["reasons"] for node in waiting["nodes"] if node["node_id"] == "end")
    assert reason["nodes"] == ["busy", "heavy", "last"]
    assert "heavy" not in [node["node_id"] for node in job["nodes"]]
    assert "busy" in [node["node_id"] for node in job["nodes"]]
