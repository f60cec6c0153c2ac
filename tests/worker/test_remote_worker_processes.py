"""A worker process that has only a URL and a key, while its orchestrator is killed and restarted."""

import asyncio
import json
import signal
import subprocess
import sys
from contextlib import suppress
from uuid import UUID

import httpx2
import pytest
from tests.database.tcp_server import free_port
from tests.engine.harness import until
from tests.engine.processes import ROOT, Fleet, Process, fleet
from tests.worker.over_http import a_key

pytestmark = [pytest.mark.requirement("E7"), pytest.mark.alone]
LOAD = """
    workflow_id: load
    inputs:
      file: {type: string}
    nodes:
      start: {type: start, next: spread}
      spread:
        type: fan_out
        source: [0, 0.1, 0.5, 2]
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


def environment_of_partner(running: Fleet, url: str, key: str) -> dict[str, str]:
    """The environment on a machine in another network, without the address of the database."""
    ours = running.process("worker").environment
    return {
        **{name: value for name, value in ours.items() if name != "DATABASE_URL"},
        "DAG_CALLBACK_URL": url,
        "DAGMASTER_KEY": key,
        "HEALTH_PORT": "0",
    }


def start_worker(running: Fleet, environment: dict[str, str]) -> Process:
    process = running.processes[-1]
    with process.log.open("ab") as log:
        process._process = process._start(environment, log.fileno())
    return process


async def is_ready(url: str) -> bool:
    with suppress(httpx2.TransportError):
        async with httpx2.AsyncClient(timeout=5) as client:
            return (await client.get(f"{url}/readyz")).status_code == 200
    return False


async def finished(running: Fleet, jobs: list[UUID]) -> int:
    rows = await running.rows("SELECT count(*) FROM dagapp.dag_task_results WHERE accepted AND job_id = ANY (%s)", jobs)
    return int(rows[0]["count"])


async def test_a_worker_over_http_survives_restarts_of_its_orchestrator(database, tmp_path):
    url = f"http://127.0.0.1:{(port := free_port())}"
    key = await a_key(database, "partner", queues=["dag-worker-tasks"])
    async with fleet(database, tmp_path, task_lease_sec=30, lease_renew_sec=1) as running:
        orchestrator = running.process("orchestrator")
        orchestrator.environment |= {"API_ENABLED": "true", "API_PORT": str(port), "AUTH_ENABLED": "true"}
        orchestrator.start()
        await until(lambda: is_ready(url))
        worker = start_worker(running, environment_of_partner(running, url, key))
        jobs = await running.submit(LOAD, count=8, file=str(running.executions))

        await until(lambda: _at_least(running, jobs, 6))
        orchestrator.kill()
        await asyncio.sleep(1)  # handlers end meanwhile, and their results are kept
        orchestrator.start()
        await until(lambda: is_ready(url))
        jobs += await running.submit(LOAD, count=4, file=str(running.executions))
        await until(lambda: _at_least(running, jobs, 40), timeout=60)
        orchestrator.signal(signal.SIGTERM)
        assert await orchestrator.ended() == 0
        orchestrator.start()
        states = await running.wait(jobs, 60)
        tasks = [task for job_id in jobs for task in await running.tasks(job_id)]
        rows = await running.rows(
            "SELECT job_id, node_id, count(*) FROM dagapp.dag_task_results WHERE accepted GROUP BY 1, 2"
        )
        started_once = worker.is_running and worker.log.read_text().count("the platform accepts this worker")
        connected = await running.rows(
            "SELECT DISTINCT application_name FROM pg_stat_activity WHERE application_name LIKE 'worker%%'"
        )

    assert set(states) == {"completed"}
    assert {row["count"] for row in rows} == {1}
    assert len(rows) == len(jobs) * 5  # no task is lost: four children and one node
    # If the response to a claim is lost with the orchestrator, the task is claimed again; the first attempt never ran.
    assert {task["attempt"] for task in tasks} <= {1, 2}
    assert len(running.executed()) == len(rows)  # no task was run twice
    assert started_once == 1
    assert connected == []


async def _at_least(running: Fleet, jobs: list[UUID], count: int) -> bool:
    return await finished(running, jobs) >= count


async def test_the_doctor_of_a_worker_over_http_checks_the_platform_and_no_database(database, tmp_path):
    url = f"http://127.0.0.1:{(port := free_port())}"
    key = await a_key(database, "partner", queues=["container-tasks"])
    async with fleet(database, tmp_path) as running:
        orchestrator = running.process("orchestrator")
        orchestrator.environment |= {"API_ENABLED": "true", "API_PORT": str(port), "AUTH_ENABLED": "true"}
        orchestrator.start()
        await until(lambda: is_ready(url))
        environment = environment_of_partner(running, url, key)
        environment["DAGMASTER_DATA"] = str(tmp_path / "data")
        environment.pop("WORKER_QUEUE", None)
        running.processes.pop()

        accepted = await asyncio.to_thread(diagnose, environment)
        refused = await asyncio.to_thread(diagnose, {**environment, "DAGMASTER_KEY": "dgm_wrong_key"})

    assert accepted["worker-over-http"] == ("ok", f"{url} accepts this worker as 'partner', for container-tasks")
    assert accepted["postgres"] == ("skipped", "a worker over HTTP has no database")
    assert url in accepted["api"][1]
    assert refused["worker-over-http"][0] == "problem"
    assert "refuses this worker" in refused["worker-over-http"][1]


def diagnose(environment: dict[str, str]) -> dict[str, tuple[str, str]]:
    command = [sys.executable, "-m", "dagmaster", "doctor", "--json"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    findings = json.loads(done.stdout)["findings"]
    return {each["check"]: (each["level"], each["observation"]) for each in findings}
