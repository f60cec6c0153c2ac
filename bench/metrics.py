"""What metrics and traces cost: for one request, one task, one span, and one scrape.

    .venv/bin/python bench/metrics.py                 the costs in the process
    .venv/bin/python bench/metrics.py DSN 100000      also the statements of a scrape, with so many waiting tasks

The database must be deployed; the tasks are deleted afterwards.
"""

import asyncio
import sys
import time
from collections.abc import Callable
from uuid import uuid4

from dagmaster.observe import traces
from dagmaster.observe.metrics import TASK_SECONDS, Durations
from dagmaster.web.metrics import RequestMetrics

ROUNDS = 200_000


def nanoseconds(call: Callable[[], object], rounds: int = ROUNDS) -> float:
    """The best of three: other processes only make it slower."""
    best = float("inf")
    for _ in range(3):
        begun = time.perf_counter_ns()
        for _ in range(rounds):
            call()
        best = min(best, (time.perf_counter_ns() - begun) / rounds)
    return best


def in_the_process() -> None:
    metrics = RequestMetrics("bench")
    for number in range(150):
        metrics.end("GET", 200, 0.01, f"/route/{number}")
    durations = Durations("bench_seconds", "bench", ("handler", "outcome"), TASK_SECONDS)

    def request() -> None:
        metrics.begin()
        metrics.end("GET", 200, 0.01, "/route/7")

    def off() -> None:
        with traces.span("off", a=1):
            pass

    print(f"one request          {nanoseconds(request):8.0f} ns")
    print(f"one task             {nanoseconds(lambda: durations.observe(('echo', 'succeeded'), 0.01)):8.0f} ns")
    print(f"one span, traces off {nanoseconds(off):8.0f} ns")
    print(f"one scrape in memory {nanoseconds(metrics.response, 20) / 1e6:8.2f} ms, 150 routes")
    traces.configure("bench", "http://127.0.0.1:9")
    print(f"one span, traces on  {nanoseconds(off, 20_000):8.0f} ns, the collector is down")
    traces.shutdown()


async def of_the_database(dsn: str, count: int) -> None:
    import psycopg

    from dagmaster.database.reads.api import ApiReads
    from dagmaster.settings import DEFAULT_QUEUES

    job_id = uuid4()
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute("SET session_replication_role = replica")
        await connection.execute(
            "INSERT INTO dagapp.dag_tasks (job_id, node_id, attempt, queue, handler, priority, status, timeout_seconds)"
            " SELECT %s, 'n' || i, 1, 'container-tasks', 'h' || i %% 20, 0, 'queued', 60"
            "   FROM generate_series(1, %s) AS i",
            (job_id, count),
        )
        await connection.execute("VACUUM ANALYZE dagapp.dag_tasks")
        reads = ApiReads(dsn)
        try:
            for name, read in (
                ("queues", lambda: reads.queues(DEFAULT_QUEUES, "dag-jobs", within_seconds=60)),
                ("database", reads.database_facts),
                ("outbox", reads.outbox_facts),
            ):
                times = []
                for _ in range(10):
                    begun = time.perf_counter()
                    await read()
                    times.append(time.perf_counter() - begun)
                print(f"statement of {name:9} {sorted(times)[5] * 1000:8.2f} ms, {count} waiting tasks")
        finally:
            await reads.close()
            await connection.execute("DELETE FROM dagapp.dag_tasks WHERE job_id = %s", (job_id,))


if __name__ == "__main__":
    in_the_process()
    if len(sys.argv) > 2:
        asyncio.run(of_the_database(sys.argv[1], int(sys.argv[2])))
