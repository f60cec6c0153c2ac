"""The audit of a chaos run reports nothing for a correct engine, and detects each kind of error."""

from uuid import UUID

import psycopg
import pytest

from chaos import audit
from chaos.effects import Effects
from tests.engine.harness import engine

JOB = UUID(int=1)
EFFECTS = Effects.of(["F job/node/1/aa", "F job/node/2/bb"])


@pytest.fixture
def audited(database: str) -> str:
    audit.install(database)
    return database


async def findings_after(dsn: str, *statements: str) -> audit.Findings:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement, {"job": JOB})
    findings, _ = await audit.examine(dsn, EFFECTS, max_losses=5)
    return findings


CLAIM = "INSERT INTO chaos.claims (job_id, epoch, process) VALUES (%(job)s, 1, 'orchestrator-1.1')"
START = (
    "INSERT INTO chaos.starts (job_id, node_id, attempt, worker_id, process) "
    "VALUES (%(job)s, 'node', 1, %(job)s, 'worker-1.1')"
)


def event(epoch: int, sequence: int, process: str) -> str:
    values = f"(%(job)s, {sequence}, {epoch}, '{process}')"
    return f"INSERT INTO chaos.events (job_id, sequence, epoch, process) VALUES {values}"


def result(process: str, attempt: int = 1, effect: str = "job/node/1/aa") -> str:
    columns = "job_id, node_id, attempt, worker_id, accepted, status, effect, process"
    values = f"(%(job)s, 'node', {attempt}, %(job)s, true, 'succeeded', '{effect}', '{process}')"
    return f"INSERT INTO chaos.results ({columns}) VALUES {values}"


async def test_a_correct_engine_is_recorded_without_findings(audited: str) -> None:
    async with engine(audited, orchestrators=1, workers=1) as running:
        await running.run("fan_out_test", count=5)
        counts = await running.rows("""
            SELECT (SELECT count(*) FROM chaos.claims) AS claims, (SELECT count(*) FROM chaos.events) AS events,
                   (SELECT count(*) FROM chaos.starts) AS starts,
                   (SELECT count(*) FROM chaos.results WHERE accepted) AS results,
                   (SELECT count(*) FROM dagapp.dag_job_events) AS all_events""")

    assert (counts[0]["claims"], counts[0]["starts"], counts[0]["results"]) == (1, 6, 6)
    assert counts[0]["events"] == counts[0]["all_events"]
    assert await findings_after(audited) == audit.Findings()


async def test_writes_of_owners_and_lease_holders_are_not_stale(audited: str) -> None:
    findings = await findings_after(audited, CLAIM, event(1, 1, "orchestrator-1.1"), START, result("worker-1.1"))

    assert findings.stale_writes == []
    assert findings.duplicate_effects == []


@pytest.mark.parametrize(
    "statements",
    [
        (CLAIM, event(1, 1, "orchestrator-2.1")),
        (CLAIM, event(1, 1, "orchestrator-1.1"), event(0, 2, "people")),
        (CLAIM, CLAIM),
        (START, START),
        (START, result("worker-2.1")),
    ],
    ids=["event of another process", "decreasing epoch", "two claims", "two starts", "result of another process"],
)
async def test_stale_writes_are_detected(audited: str, statements: tuple[str, ...]) -> None:
    assert len((await findings_after(audited, *statements)).stale_writes) == 1


async def test_two_accepted_results_are_detected(audited: str) -> None:
    both = (result("worker-1.1"), result("worker-1.1", attempt=2, effect="job/node/2/bb"))

    assert len((await findings_after(audited, *both)).duplicate_effects) == 2, "accepted twice, with two effects"


async def test_an_accepted_effect_that_never_happened_is_detected(audited: str) -> None:
    assert len((await findings_after(audited, result("worker-1.1", effect="job/node/9/zz"))).duplicate_effects) == 1


async def test_writes_of_the_engine_fail_while_the_disk_is_full(audited: str) -> None:
    write = "INSERT INTO dagapp.dag_job_events (job_id, sequence, event_type) SELECT %s, 1, 'job_created' WHERE false"
    with psycopg.connect(audited, autocommit=True) as connection:
        connection.execute("INSERT INTO chaos.disk_full VALUES (now())")
        with pytest.raises(psycopg.errors.DiskFull):
            connection.execute(write, [JOB])
        connection.execute("DELETE FROM chaos.disk_full")
        connection.execute(write, [JOB])
