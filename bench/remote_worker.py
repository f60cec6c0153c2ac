"""Tasks per second of a worker with database access, compared with a worker over HTTP.

    python bench/remote_worker.py --tasks 2000

Real processes on one machine: PostgreSQL with default durability, one orchestrator with the API, one worker at a time.
The worker over HTTP has a URL and a key only. Handlers are async; both workers are measured with handlers that do
nothing, and then with handlers that take 50 ms.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.database.tcp_server import free_port
from tests.engine.processes import ROOT, Fleet, Process, fleet
from tests.worker.over_http import a_key

from dagmaster.database.schema.deploy import deploy
from dagmaster.local.embedded import Cluster

WORK = """
    workflow_id: work
    inputs: {numbers: {type: array}, seconds: {type: number}}
    nodes:
      start: {type: start, next: spread}
      spread:
        type: fan_out
        source: "{{ inputs.numbers }}"
        task: {handler: sleep, queue: dag-worker-tasks, params: {seconds: "{{ inputs.seconds }}"}}
        next: gather
      gather: {type: fan_in, aggregation: last, next: end}
      end: {type: end}
    """


async def measure(dsn: str, folder: Path, *, is_remote: bool, tasks: int, seconds: float) -> float:
    """Tasks per second, from the first start to the last report."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    key = await a_key(dsn, f"bench-{port}")
    async with fleet(
        dsn, folder, task_lease_sec=30, lease_renew_sec=5, worker_slots=100, log_level="warning"
    ) as running:
        orchestrator = running.process("orchestrator")
        orchestrator.environment |= {"API_ENABLED": "true", "API_PORT": str(port), "AUTH_ENABLED": "true"}
        orchestrator.start()
        await running.ready([orchestrator])
        worker = running.process("worker")
        if is_remote:
            _start_remote(worker, url, key)
        else:
            worker.start()
        await running.ready([worker])
        await _run(running, 50, seconds)  # warm-up: connections, prepared statements and imports
        return await _run(running, tasks, seconds)


async def _run(running: Fleet, tasks: int, seconds: float) -> float:
    job_id = await running.submit_one(WORK, numbers=list(range(tasks)), seconds=seconds)
    states = await running.wait(job_id, 300)
    assert states == ["completed"], states
    (row,) = await running.rows(
        "SELECT extract(epoch FROM max(finished_at) - min(started_at))::float AS span, count(*)"
        "  FROM dagapp.dag_tasks WHERE job_id = %s",
        job_id,
    )
    return float(row["count"] / row["span"])


def _start_remote(worker: Process, url: str, key: str) -> None:
    environment = {name: value for name, value in worker.environment.items() if name != "DATABASE_URL"}
    environment |= {"DAG_CALLBACK_URL": url, "DAGMASTER_KEY": key, "HEALTH_PORT": "0"}
    with worker.log.open("ab") as log:
        worker._process = subprocess.Popen(
            worker.command, env=environment, cwd=ROOT, stdout=log, stderr=log, start_new_session=True
        )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=2000)
    options = parser.parse_args()
    cluster = Cluster.at(None, name=f"test-{os.getpid()}")
    cluster.requires_passwords = False
    try:
        cluster.start()
        deploy(cluster.dsn)
        for seconds, tasks in ((0.0, options.tasks), (0.05, options.tasks)):
            for name, is_remote in (("direct", False), ("over HTTP", True)):
                with tempfile.TemporaryDirectory() as folder:
                    started = time.monotonic()
                    rate = await measure(cluster.dsn, Path(folder), is_remote=is_remote, tasks=tasks, seconds=seconds)
                    print(f"{seconds * 1000:3.0f} ms, {name}: {rate:.0f} tasks/s ({time.monotonic() - started:.0f} s)")
    finally:
        cluster.remove()


asyncio.run(main())
