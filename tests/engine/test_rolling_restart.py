"""A new release goes out: every process is stopped and started, one after the other, while jobs run."""

import asyncio
import signal
from datetime import timedelta
from itertools import count, pairwise
from uuid import UUID

import pytest

from tests.engine.processes import Fleet, fleet

pytestmark = [pytest.mark.requirement("E22"), pytest.mark.alone]

GRACE_SECONDS = 2.0
HAND_OVER_SECONDS = 2.0
LOAD = """
    workflow_id: load
    inputs:
      file: {type: string}
    nodes:
      start: {type: start, next: spread}
      spread:
        type: fan_out
        source: [0.05, 0.1, 0.2, 0.5]
        task: {handler: note, params: {file: "{{ inputs.file }}", seconds: "{{ item }}"}, retry: {max_attempts: 0}}
        next: gather
      gather: {type: fan_in, next: compute}
      compute:
        handler: note_blocking
        params: {file: "{{ inputs.file }}", seconds: 0.1}
        retry: {max_attempts: 0}
        next: end
      end: {type: end}
    """
LONG = """
    workflow_id: long
    nodes:
      start: {type: start, next: nap}
      nap: {handler: sleep, params: {seconds: 4}, retry: {max_attempts: 0}, next: end}
      end: {type: end}
    """


async def test_a_rolling_restart_under_load_uses_up_no_attempt_and_never_stops_the_work_for_long(database, tmp_path):
    """Leases and heartbeats are so long that no job could continue because one of them expires."""
    async with fleet(
        database,
        tmp_path,
        orchestrators=2,
        workers=2,
        shutdown_grace_sec=GRACE_SECONDS,
        orphan_threshold_sec=60,
        heartbeat_interval_sec=1,
        task_lease_sec=60,
        lease_renew_sec=1,
    ) as running:
        jobs: list[UUID] = []
        streaming = asyncio.create_task(_stream(running, jobs))
        for process in list(running.processes):
            process.signal(signal.SIGTERM)
            assert await process.ended(GRACE_SECONDS + 8) == 0
            process.start()
            await running.ready([process])
        streaming.cancel()
        await asyncio.wait([streaming])
        states = await running.wait(jobs, 30)

        assert set(states) == {"completed"}
        assert not await running.rows("SELECT * FROM dagapp.dag_node_states WHERE retry_count > 0 OR loss_count > 0")
        ends = await running.rows("SELECT status, count(*) FROM dagapp.dag_tasks GROUP BY status")
        counts = {row["status"]: row["count"] for row in ends}
        assert counts.keys() == {"succeeded", "returned"}, "long tasks must be given back, and all others must succeed"
        unsuccessful = await running.rows(
            "SELECT * FROM dagapp.dag_task_results WHERE NOT accepted OR status NOT IN ('succeeded', 'returned')"
        )
        assert not unsuccessful
        assert await _most_owners(running) >= 2, "no job was taken over"
        assert await _longest_gap(running) < GRACE_SECONDS + HAND_OVER_SECONDS


async def _stream(running: Fleet, jobs: list[UUID]) -> None:
    for number in count():
        jobs.append(await running.submit_one(LOAD, file=str(running.executions)))
        if number % 10 == 0:
            jobs.append(await running.submit_one(LONG))
        await asyncio.sleep(0.2)


async def _most_owners(running: Fleet) -> int:
    """The highest number of orchestrators that one job has had."""
    (row,) = await running.rows("SELECT max(epoch) AS most FROM dagapp.dag_job_events")
    return int(row["most"])


async def _longest_gap(running: Fleet) -> float:
    """The longest time between two nodes that completed; there was always work to do."""
    rows = await running.rows(
        "SELECT created_at FROM dagapp.dag_job_events WHERE event_type = 'node_completed' ORDER BY created_at"
    )
    gaps = [later["created_at"] - earlier["created_at"] for earlier, later in pairwise(rows)]
    return max(gaps, default=timedelta.max).total_seconds()
