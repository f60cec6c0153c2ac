"""A primary server loses power and a standby takes over: jobs continue, and no acknowledged job is lost."""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from uuid import UUID

import pytest
from psycopg_pool import PoolTimeout

from dagmaster.database.ledger.postgres import PostgresLedger
from dagmaster.database.reads.api import ApiReads
from dagmaster.database.schema.deploy import deploy
from dagmaster.errors import DagmasterError
from dagmaster.jobs.model import Submission
from dagmaster.library.workflows import WorkflowLibrary
from tests.database.tcp_server import DATABASE, HOST, TcpServer, running, server_folder
from tests.engine.harness import submit, workflow
from tests.engine.processes import Fleet, fleet

pytestmark = [pytest.mark.requirement("E22"), pytest.mark.alone]

TRUST = "host all all 127.0.0.1/32 trust\nhost all all ::1/128 trust\nhost replication all 127.0.0.1/32 trust"
WORK = workflow("""
    workflow_id: failover
    inputs:
      file: {type: string}
    nodes:
      start: {type: start, next: spread}
      spread:
        type: fan_out
        source: [0, 0.05, 0.2]
        task: {handler: note, params: {file: "{{ inputs.file }}", seconds: "{{ item }}"}, retry: {max_attempts: 0}}
        next: gather
      gather: {type: fan_in, next: end}
      end: {type: end}
""")
# How long the platform may take to write again after the promotion; docs/reliability.md promises 10 seconds after an
# outage of PostgreSQL.
RECOVERY_SECONDS = 10.0


@contextlib.contextmanager
def replicated() -> Iterator[tuple[TcpServer, TcpServer]]:
    """A primary, and a synchronous standby: each commit waits until the standby has it."""
    with running("primary", TRUST, {"wal_level": "replica"}) as primary, server_folder("standby") as folder:
        deploy(primary.dsn())
        standby = TcpServer(folder)
        primary.copy_to(standby)
        standby.start()
        try:
            primary.execute("ALTER SYSTEM SET synchronous_standby_names = 'standby'", "SELECT pg_reload_conf()")
            _wait_for_replication(primary)
            yield primary, standby
        finally:
            standby.stop()


def _wait_for_replication(primary: TcpServer) -> None:
    deadline = time.monotonic() + 20
    while primary.execute("SELECT sync_state FROM pg_stat_replication") != [("sync",)]:
        assert time.monotonic() < deadline, primary.execute("SELECT * FROM pg_stat_replication")
        time.sleep(0.05)


class Submitters:
    """Submit one job after the other, several at once. A job counts as acknowledged when its call has returned."""

    def __init__(self, fleet_of_test: Fleet) -> None:
        self._fleet = fleet_of_test
        self._library = WorkflowLibrary({WORK.workflow_id: WORK})
        self.acknowledged: list[UUID] = []
        self.failures = 0
        self.is_over = False

    async def run(self) -> None:
        submission = Submission(workflow_id=WORK.workflow_id, input_params={"file": str(self._fleet.executions)})
        ledger = PostgresLedger(self._fleet.dsn, "submitter")
        while not self.is_over:
            try:
                self.acknowledged += await submit(ledger, self._library, [submission])
            except DagmasterError:
                self.failures += 1
                await asyncio.sleep(0.1)
            await asyncio.sleep(0.02)
        await ledger.close()

    async def until(self, count: int, seconds: float) -> float:
        """Seconds until this number of jobs was acknowledged."""
        started = time.monotonic()
        async with asyncio.timeout(seconds):
            while len(self.acknowledged) < count:
                await asyncio.sleep(0.02)
        return time.monotonic() - started


async def wait_for_read(reads: ApiReads) -> None:
    """Read as the API does, until a read succeeds."""
    while True:
        with contextlib.suppress(DagmasterError, PoolTimeout):
            await reads.database_name()
            return
        await asyncio.sleep(0.05)


async def test_a_standby_takes_over_and_no_acknowledged_job_is_lost(tmp_path):
    with replicated() as (primary, standby):
        dsn_of_both = f"postgresql://postgres@{HOST}:{primary.port},{HOST}:{standby.port}/{DATABASE}"
        async with fleet(
            f"{dsn_of_both}?target_session_attrs=read-write", tmp_path, orchestrators=2, workers=1, task_lease_sec=5
        ) as roles:
            submitters = Submitters(roles)
            tasks = [asyncio.create_task(submitters.run()) for _ in range(3)]
            await submitters.until(20, 30)
            reads = ApiReads(roles.dsn)
            await reads.open()
            await wait_for_read(reads)

            primary.kill()
            await asyncio.sleep(0.3)  # responses that have already arrived are processed
            acknowledged_before = list(submitters.acknowledged)
            await asyncio.sleep(1.5)  # no server accepts writes: submissions fail now
            acknowledged_in_outage = len(submitters.acknowledged) - len(acknowledged_before)
            standby.promote()
            recovery_seconds = await submitters.until(len(acknowledged_before) + 10, RECOVERY_SECONDS + 20)
            async with asyncio.timeout(RECOVERY_SECONDS):
                await wait_for_read(reads)
            submitters.is_over = True
            await asyncio.gather(*tasks)
            states = await roles.wait(submitters.acknowledged, 60)
            stored = {job_id for (job_id,) in standby.execute("SELECT job_id FROM dagapp.dag_jobs")}
            await reads.close()

    assert acknowledged_in_outage == 0
    assert recovery_seconds < RECOVERY_SECONDS
    assert submitters.failures
    assert set(submitters.acknowledged) <= stored
    assert set(states) == {"completed"}


async def test_a_platform_that_knows_only_standbys_waits_for_a_primary(tmp_path):
    """`target_session_attrs=read-write` refuses a standby; the error says so, and the promotion ends the wait."""
    with replicated() as (primary, standby):
        dsn = f"{standby.dsn()}?target_session_attrs=read-write".replace(HOST, "127.0.0.1")
        ledger = PostgresLedger(dsn, "test")
        submission = Submission(workflow_id=WORK.workflow_id, input_params={"file": "x"})
        library = WorkflowLibrary({WORK.workflow_id: WORK})
        with pytest.raises(DagmasterError) as refused:
            await submit(ledger, library, [submission])
        primary.kill()
        standby.promote()
        (job_id,) = await submit(ledger, library, [submission])
        await ledger.close()

        assert refused.value.code == "database.unavailable"
        assert "read-only" in refused.value.message
        assert standby.execute("SELECT job_id FROM dagapp.dag_jobs") == [(job_id,)]
