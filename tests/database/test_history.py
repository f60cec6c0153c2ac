"""verify-history on a real database: a sound run has no findings, and each kind of damage is reported.

One good run is made for the whole module; every test damages a copy of its database, with the guards disabled.
"""

import asyncio
from collections.abc import Iterator
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from tests.conftest import fresh_database
from tests.engine.harness import engine, workflow
from tests.jobs.history_handlers import STEP

from dagmaster.database.ledger.postgres import PostgresLedger
from dagmaster.database.ledger.protocol import Demand, Report
from dagmaster.database.maintenance.history import HistoryReport, verify
from dagmaster.jobs.history import FindingCode
from dagmaster.jobs.states import TaskStatus

SOUND = """
workflow_id: sound
nodes:
  start: {type: start, next: [first, extra]}
  first:
    handler: step
    params: {fails: 1}
    retry: {max_attempts: 2, backoff: fixed, initial_delay_seconds: 0.3, jitter: false}
    next: tiles
  extra: {handler: step, params: {unfit: true}, importance: optional, next: end}
  tiles:
    type: fan_out
    source: [0, 1, 2]
    max_parallel: 2
    task:
      handler: step
      params: {fails: "{{ 1 if item == 1 else 0 }}"}
      retry: {initial_delay_seconds: 0.01}
    next: gather
  gather: {type: fan_in, next: choose}
  choose:
    type: conditional
    condition: "{{ nodes.gather.output.count }} > 2"
    on_true: left
    on_false: right
  left: {handler: step}
  right: {handler: step}
  join: {handler: step, depends_on: {any_of: [left, right]}}
  end: {type: end, depends_on: {all_of: [join, extra]}}
"""


@pytest.fixture(scope="module")
def sound_database(cluster, template_database) -> Iterator[tuple[str, UUID]]:
    """The name of a database with sound jobs, and the id of one of them. Nothing is connected to the database."""
    with fresh_database(cluster, template_database) as dsn:
        job_id = asyncio.run(_sound_run(dsn))
        yield str(conninfo_to_dict(dsn)["dbname"]), job_id


async def _sound_run(dsn: str) -> UUID:
    async with engine(dsn, orchestrators=2, workers=2, handlers=[STEP]) as running:
        others = [await running.submit(name) for name in ("echo_test", "conditional_test", "retry_fan_out_test")]
        job = await running.run(workflow(SOUND))
        for other in others:
            await running.wait(other)
    assert job["status"] == "completed", job
    return UUID(str(job["job_id"]))


@pytest.fixture
def copy(cluster, sound_database) -> Iterator[tuple[str, UUID]]:
    name, job_id = sound_database
    with fresh_database(cluster, name) as dsn:
        yield dsn, job_id


def damage(dsn: str, job_id: UUID, *statements: str) -> None:
    """Execute statements that the guards would refuse."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SET session_replication_role = replica")
        for statement in statements:
            assert connection.execute(statement, {"job": job_id}).rowcount > 0, statement


@pytest.mark.requirement("E4")
async def test_a_sound_run_has_no_findings(copy):
    dsn, _ = copy
    seen: list[int] = []

    report = await verify(dsn, on_progress=lambda report: seen.append(report.jobs_checked), max_losses=5)

    assert report.findings == []
    assert report.is_clean
    assert report.jobs_checked == 4
    assert report.events_checked > 100
    assert report.tasks_checked > 25
    assert seen == [4]


EVENTS, NODES, TASKS = "dagapp.dag_job_events", "dagapp.dag_node_states", "dagapp.dag_tasks"
RESULTS, JOBS, DEFINITIONS = "dagapp.dag_task_results", "dagapp.dag_jobs", "dagapp.dag_workflow_definitions"
OF_JOB = "WHERE job_id = %(job)s"
OF_DEFINITION = f"WHERE definition_hash = (SELECT definition_hash FROM {JOBS} {OF_JOB})"
LATEST = f"(SELECT max(sequence) FROM {EVENTS} {OF_JOB})"


def event(change: str, node_id: str, event_type: str) -> str:
    return f"UPDATE {EVENTS} SET {change} {OF_JOB} AND node_id = '{node_id}' AND event_type = '{event_type}'"


def node(change: str, node_id: str) -> str:
    return f"UPDATE {NODES} SET {change} {OF_JOB} AND node_id = '{node_id}'"


def definition(path: str, value: str) -> str:
    return f"UPDATE {DEFINITIONS} SET body = jsonb_set(body, '{path}', '{value}') {OF_DEFINITION}"


REFERENCE = '{"sha256": "%s", "bytes": 300000}' % ("0" * 64)
DAMAGE: list[tuple[str, FindingCode, str]] = [
    ("an event is missing", FindingCode.SEQUENCE, f"DELETE FROM {EVENTS} {OF_JOB} AND sequence = 9"),
    ("the last event is missing", FindingCode.JOB_ROW, f"DELETE FROM {EVENTS} {OF_JOB} AND sequence = {LATEST}"),
    (
        "the job began with fewer nodes",
        FindingCode.OPENING,
        f"UPDATE {EVENTS} SET event_data = event_data #- '{{nodes,0}}' {OF_JOB} AND sequence = 1",
    ),
    (
        "the job began twice",
        FindingCode.OPENING,
        event("event_type = 'job_created', node_id = NULL", "right", "node_skipped"),
    ),
    ("a step that doesn't exist", FindingCode.TRANSITION, event("node_id = 'left'", "right", "node_skipped")),
    ("a node that was never expanded", FindingCode.TRANSITION, event("node_id = 'tiles__x'", "right", "node_skipped")),
    (
        "type and state contradict each other",
        FindingCode.EVENT,
        event("event_type = 'node_failed'", "left", "node_completed"),
    ),
    ("an event of an older epoch", FindingCode.EPOCH, event("epoch = 0", "left", "node_dispatched")),
    ("a row of an older epoch", FindingCode.EPOCH, f"UPDATE {JOBS} SET epoch = 0 {OF_JOB}"),
    ("an attempt with a wrong number", FindingCode.ATTEMPT, event("attempt = 7", "left", "node_dispatched")),
    ("a result of another attempt", FindingCode.ATTEMPT, event("attempt = 2", "left", "node_completed")),
    ("a task completed without a worker", FindingCode.ATTEMPT, event("attempt = NULL", "left", "node_completed")),
    (
        "a node on a branch not taken",
        FindingCode.START,
        event("""event_data = '{"next": ["right"]}'""", "choose", "node_completed"),
    ),
    (
        "a skip without reason",
        FindingCode.SKIP,
        event("""event_data = '{"next": ["right"]}'""", "choose", "node_completed"),
    ),
    (
        "another branch in the row",
        FindingCode.NODE_ROW,
        node("""output = jsonb_set(output, '{next}', '["right"]')""", "choose"),
    ),
    (
        "a node that started before its dependency",
        FindingCode.START,
        definition("{nodes,left,depends_on}", '{"all_of": ["choose", "join"]}'),
    ),
    (
        "an event after the end",
        FindingCode.AFTER_END,
        f"INSERT INTO {EVENTS} (job_id, sequence, node_id, event_type, event_status, epoch)"
        f" SELECT %(job)s, 1 + {LATEST}, 'extra', 'node_retried', 'ready', 99",
    ),
    ("dispatched in a failing job", FindingCode.WHILE_FAILING, definition("{nodes,extra,importance}", '"critical"')),
    (
        "an outcome that does not follow from the nodes",
        FindingCode.OUTCOME,
        definition("{nodes,extra,importance}", '"important"'),
    ),
    ("more retries than allowed", FindingCode.RETRY, definition("{nodes,first,retry,max_attempts}", "0")),
    (
        "bad data that was retried",
        FindingCode.RETRY,
        event("""event_data = '{"error": {"blame": "data"}}'""", "first", "node_failed"),
    ),
    (
        "a delay that is too long",
        FindingCode.WAIT,
        event("""event_data = '{"wait_seconds": 99}'""", "first", "node_retried"),
    ),
    ("a fan_in that miscounts", FindingCode.FAN_IN, node("output = jsonb_set(output, '{count}', '7')", "gather")),
    (
        "a fan_in that completed too early",
        FindingCode.FAN_IN,
        event("""event_data = '{"total": 4}'""", "tiles", "node_completed"),
    ),
    ("another number of children in the row", FindingCode.NODE_ROW, node("total = 4", "tiles")),
    ("a wrong count of remaining children", FindingCode.COUNTERS, node("remaining = 1", "tiles")),
    ("a failure that did not happen was counted", FindingCode.COUNTERS, node("failed_count = 1", "tiles")),
    ("a job's row in another state", FindingCode.JOB_ROW, f"UPDATE {JOBS} SET status = 'failed' {OF_JOB}"),
    ("a node's row in another state", FindingCode.NODE_ROW, node("status = 'cancelled'", "tiles__0")),
    ("a node's row with another attempt", FindingCode.NODE_ROW, node("attempt = 2", "left")),
    ("a node's row with another count", FindingCode.NODE_ROW, node("retry_count = 0", "first")),
    (
        "a row without events",
        FindingCode.ROW_WITHOUT_EVENTS,
        f"INSERT INTO {NODES} (job_id, node_id, status) VALUES (%(job)s, 'tiles__9', 'ready')",
    ),
    ("events without a row", FindingCode.EVENTS_WITHOUT_ROW, f"DELETE FROM {NODES} {OF_JOB} AND node_id = 'tiles__1'"),
    ("a task is missing", FindingCode.TASK_MISSING, f"DELETE FROM {TASKS} {OF_JOB} AND node_id = 'left'"),
    (
        "a task that was never dispatched",
        FindingCode.TASK_WITHOUT_EVENT,
        f"UPDATE {TASKS} SET attempt = 5 {OF_JOB} AND node_id = 'left'",
    ),
    (
        "a task in another state",
        FindingCode.TASK_STATUS,
        f"UPDATE {TASKS} SET status = 'lost' {OF_JOB} AND node_id = 'left'",
    ),
    (
        "a live task of an ended job",
        FindingCode.TASK_STATUS,
        f"UPDATE {TASKS} SET status = 'running' {OF_JOB} AND node_id = 'left'",
    ),
    ("a result is missing", FindingCode.RESULT, f"DELETE FROM {RESULTS} {OF_JOB} AND node_id = 'left'"),
    (
        "a result with another status",
        FindingCode.RESULT,
        f"UPDATE {RESULTS} SET status = 'failed' {OF_JOB} AND node_id = 'left'",
    ),
    (
        "a result that was not accepted",
        FindingCode.RESULT,
        f"UPDATE {RESULTS} SET accepted = false {OF_JOB} AND node_id = 'left'",
    ),
    ("an output that is not that of the result", FindingCode.RESULT_OUTPUT, node("output = '{}'", "left")),
    (
        "a result that was never handled",
        FindingCode.RESULT_UNPROCESSED,
        f"UPDATE {RESULTS} SET processed = false {OF_JOB} AND node_id = 'left'",
    ),
    (
        "params that are not stored",
        FindingCode.PAYLOAD,
        f"UPDATE {TASKS} SET params_ref = '{REFERENCE}' {OF_JOB} AND node_id = 'left'",
    ),
    (
        "params that could be deleted",
        FindingCode.PAYLOAD,
        f"WITH head AS (INSERT INTO dagapp.dag_payloads VALUES (%(job)s, '{'0' * 64}', 300000, now(), false)), "
        "part AS (INSERT"
        f" INTO dagapp.dag_payload_parts VALUES (%(job)s, '{'0' * 64}', 0, convert_to(repeat('x', 300000), 'UTF8')))"
        f" UPDATE {TASKS} SET params_ref = '{REFERENCE}' {OF_JOB} AND node_id = 'left'",
    ),
    ("an output that is not stored", FindingCode.PAYLOAD, node(f"output_ref = '{REFERENCE}'", "left")),
    (
        "a result that is not stored",
        FindingCode.PAYLOAD,
        f'UPDATE {JOBS} SET result_data = \'{{"large": {{"output_ref": {REFERENCE}}}}}\' {OF_JOB}',
    ),
    (
        "a job past its deadline",
        FindingCode.OVERDUE,
        f"UPDATE {JOBS} SET status = 'running', deadline_at = now() - interval '6 minutes' {OF_JOB}",
    ),
    (
        "a job whose nodes have all ended",
        FindingCode.UNCONCLUDED,
        f"WITH n AS (UPDATE {NODES} SET completed_at = completed_at - interval '6 minutes' {OF_JOB})"
        f" UPDATE {JOBS} SET status = 'running' {OF_JOB}",
    ),
    (
        "a node that never ended",
        FindingCode.UNENDED,
        event("event_type = 'node_started', event_status = 'running'", "join", "node_completed"),
    ),
    (
        "another definition",
        FindingCode.DEFINITION,
        f"UPDATE {JOBS} SET definition_hash = (SELECT max(definition_hash)"
        f" FROM {DEFINITIONS} WHERE workflow_id = 'echo_test') {OF_JOB}",
    ),
    ("an unreadable definition", FindingCode.DEFINITION, definition("{nodes}", '"gone"')),
    ("a missing definition", FindingCode.DEFINITION, f"DELETE FROM {DEFINITIONS} {OF_DEFINITION}"),
    ("rows without a job", FindingCode.ORPHAN, f"DELETE FROM {JOBS} {OF_JOB}"),
]


@pytest.mark.parametrize(("code", "statement"), [row[1:] for row in DAMAGE], ids=[row[0] for row in DAMAGE])
async def test_damage_is_reported_with_its_code_and_job(copy, code, statement):
    dsn, job_id = copy
    damage(dsn, job_id, statement)

    report = await verify(dsn)

    assert not report.is_clean
    assert code in {finding.code for finding in report.findings}, list(map(str, report.findings))
    assert {finding.job_id for finding in report.findings} == {job_id}
    assert all(f"job {job_id}" in str(finding) for finding in report.findings)


def test_there_is_a_test_of_damage_for_every_code():
    # The code `more` only says that there are further findings.
    assert {code for _, code, _ in DAMAGE} == set(FindingCode) - {FindingCode.MORE}


async def test_orphans_are_reported_by_table(copy):
    dsn, job_id = copy
    damage(dsn, job_id, f"DELETE FROM {JOBS} {OF_JOB}")

    report = await verify(dsn)

    kinds = {
        finding.message.split(" ", 1)[1].removesuffix(" of a job that does not exist") for finding in report.findings
    }
    assert kinds == {"events", "node states", "results", "tasks"}


async def test_only_the_jobs_that_were_named_are_checked(copy):
    dsn, job_id = copy
    unknown = uuid4()
    damage(dsn, job_id, f"UPDATE {JOBS} SET last_sequence = last_sequence + 1 WHERE job_id <> %(job)s")

    report = await verify(dsn, [job_id, unknown])

    assert report.jobs_checked == 1
    assert [(finding.job_id, finding.message) for finding in report.findings] == [(unknown, "there is no such job")]


async def test_events_without_a_job_id_are_not_reported(copy):
    dsn, job_id = copy
    damage(dsn, job_id, f"INSERT INTO {EVENTS} (event_type) SELECT 'job_created' FROM {JOBS} {OF_JOB}")

    assert (await verify(dsn)).is_clean


# --- jobs that still run ---------------------------------------------------------------------------------------------


async def test_every_state_of_a_running_job_is_accepted(database):
    """A task that is dispatched, claimed or reported but not yet processed is sound."""
    ledger = PostgresLedger(database)
    worker = uuid4()
    async with engine(database, workers=0, handlers=[STEP]) as running:
        job_id = await running.submit(workflow(SOUND))
        await running.wait(job_id, until=("running",))
        dispatched = await verify(database)
    demand = Demand(("dag-worker-tasks",), ("step",), 1)
    (task,) = (await ledger.exchange(worker, [], demand, lease_seconds=60)).claimed
    claimed = await verify(database)
    report = Report(job_id, task.node_id, task.attempt, TaskStatus.SUCCEEDED, {"attempt": 1})
    await ledger.exchange(worker, [report], Demand(()), lease_seconds=60)
    reported = await verify(database)
    await ledger.close()

    assert [dispatched.findings, claimed.findings, reported.findings] == [[], [], []]
    damage(database, job_id, f"DELETE FROM {RESULTS} {OF_JOB}")
    assert codes_of(await verify(database)) == {FindingCode.RESULT}


def codes_of(report: HistoryReport) -> set[FindingCode]:
    return {finding.code for finding in report.findings}
