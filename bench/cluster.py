"""Plain handlers on a Dask cluster: tasks per second by the number of Dask workers, and many slots of one worker.

Starts PostgreSQL, an orchestrator, one worker with WORKER_EXECUTOR=dask and, for each number, a Dask cluster on this
machine. Handlers sleep for 50 to 200 ms (125 ms on average) in their child processes, so that the cores are not
the limit, as far as two cores allow: the ideal rate is the number of slots divided by 0.125 s.

    python bench/cluster.py --dask-workers 1,2,4
    python bench/cluster.py --dask-workers 1 --threads 200 --tasks 200 --seconds 20
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ours
from capacity import DATABASE, connected
from dagmaster.library.workflows import WorkflowLibrary
from dagmaster.workflows.load import read
from server import Server, private_server, process_seconds

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.dask_cluster import DaskCluster

AVERAGE_SECONDS = 0.125
RUNNING = "SELECT count(*) AS tasks /* bench query */ FROM dagapp.dag_tasks WHERE status = 'running'"


def workflow(seconds: float | None) -> str:
    expression = "{{ 0.05 + (item % 4) * 0.05 }}" if seconds is None else str(seconds)
    return textwrap.dedent(f"""
        workflow_id: sleeps
        inputs: {{count: {{type: integer, required: true}}}}
        nodes:
          start: {{type: start, next: prepare}}
          prepare: {{handler: make_list, params: {{count: "{{{{ inputs.count }}}}"}}, next: split}}
          split:
            type: fan_out
            source: "{{{{ nodes.prepare.output.items }}}}"
            task: {{handler: sleep_blocking, queue: {ours.QUEUE}, params: {{seconds: "{expression}"}}}}
            next: join
          join: {{type: fan_in, next: end}}
          end: {{type: end}}
    """)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dask-workers", type=lambda text: [int(part) for part in text.split(",")], default=[1, 2, 4])
    parser.add_argument("--threads", type=int, default=4, help="slots of each Dask worker")
    parser.add_argument("--tasks", type=int, default=400)
    parser.add_argument("--seconds", type=float, help="how long each task sleeps; by default 50 to 200 ms")
    options = parser.parse_args()
    flow = read(workflow(options.seconds), "bench")
    ours.WORKFLOWS = WorkflowLibrary({**ours.WORKFLOWS.workflows, flow.workflow_id: flow})
    with private_server() as server:
        for count in options.dask_workers:
            with cluster(count, options.threads) as dask:
                print(json.dumps({"Dask workers": count} | await measured(server, dask, count, options)), flush=True)


@contextmanager
def cluster(count: int, threads: int) -> Iterator[DaskCluster]:
    with tempfile.TemporaryDirectory() as folder:
        dask = DaskCluster(Path(folder))
        try:
            dask.start_scheduler()
            dask.start_workers(count, threads=threads)
            yield dask
        finally:
            dask.stop()


async def measured(server: Server, dask: DaskCluster, count: int, options: argparse.Namespace) -> dict[str, Any]:
    ours.new_database(server, DATABASE)
    dsn = server.cluster.dsn_of(DATABASE)
    os.environ |= {"WORKER_EXECUTOR": "dask", "DASK_SCHEDULER_ADDRESS": dask.address}
    slots = count * options.threads
    try:
        with ours.roles(dsn, 1, 1, api=False) as pids:
            async with connected(dsn, pids) as platform:
                if options.seconds is None:
                    await platform.run("sleeps", count=4 * slots)  # every slot has its child process afterwards
                measured_pids = pids | _pids_of(dask)
                before = {name: process_seconds(pid) for name, pid in measured_pids.items()}
                watching = asyncio.create_task(_most_running(server.cluster.dsn_of(DATABASE)))
                started = time.perf_counter()
                await platform.run("sleeps", count=options.tasks)
                seconds = time.perf_counter() - started
                watching.cancel()
                most = await watching
                used = {name: process_seconds(pid) - before[name] for name, pid in measured_pids.items()}
    finally:
        server.drop(DATABASE)
    return {
        "slots": slots,
        "tasks": options.tasks,
        "seconds": round(seconds, 2),
        "tasks per second": round(options.tasks / seconds, 1),
        "share of the ideal rate": round(options.tasks / seconds / (slots / (options.seconds or AVERAGE_SECONDS)), 2),
        "most running at one time": most[0],
        "most child processes at one time": most[1],
        "CPU ms per task": {name: round(1000 * value / options.tasks, 2) for name, value in used.items()},
    }


def _pids_of(dask: DaskCluster) -> dict[str, int]:
    assert dask.scheduler is not None
    workers = {f"Dask worker {number + 1}": process.pid for number, process in enumerate(dask.workers)}
    return {"Dask scheduler": dask.scheduler.pid} | workers


async def _most_running(dsn: str) -> tuple[int, int]:
    import psycopg
    from psycopg.rows import dict_row

    most_tasks = most_children = 0
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True, row_factory=dict_row) as connection:
        with suppress(asyncio.CancelledError):
            while True:
                (row,) = await (await connection.execute(RUNNING)).fetchall()
                most_tasks = max(most_tasks, row["tasks"])
                most_children = max(most_children, _children())
                await asyncio.sleep(0.5)
    return most_tasks, most_children


def _children() -> int:
    """Child processes with a handler; each has a supervisor with the same command line."""
    count = 0
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            count += b"dagmaster.worker.supervisor" in entry.read_bytes()
    return count // 2


if __name__ == "__main__":
    asyncio.run(main())
