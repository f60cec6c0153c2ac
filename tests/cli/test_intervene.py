"""Jobs cancelled, resumed and watched from the command line; their progress and log lines."""

import asyncio
import json
import re
import signal
from itertools import islice
from typing import Any

import psycopg
import pytest

from dagmaster.cli.main import run
from dagmaster.handlers.registry import Registration
from tests.api.serving import app_of, served
from tests.cli.conftest import written
from tests.cli.processes import eventually, start
from tests.engine.harness import engine, workflow

LOGGING = """
    workflow_id: logging
    nodes:
      start: {type: start, next: spread}
      spread:
        type: fan_out
        source: [1, 2]
        task: {handler: write_log, params: {item: "{{ item }}"}}
        next: gather
      gather: {type: fan_in, next: end}
      end: {type: end}
"""
PHASES = """
workflow_id: phased
nodes:
  start: {type: start, next: work}
  work: {handler: multi_phase, params: {phases: 200, seconds_per_phase: 0.3}, next: end}
  end: {type: end}
"""


async def write_log(ctx: Any, params: dict[str, Any]) -> None:
    ctx.logger.info("begins", item=params["item"])
    await asyncio.sleep(0.8)
    ctx.logger.warning("ends \x1b[31mred")


def running(dagmaster, job_id: str) -> bool:
    nodes = dagmaster("jobs", "show", job_id, "--json").json["nodes"]
    return any(node["status"] == "running" for node in nodes)


def submitted(dagmaster, *arguments: str) -> str:
    """Submit a job and wait until it runs."""
    job_id = dagmaster("submit", *arguments, "--json").json["job_id"]
    eventually(lambda: running(dagmaster, job_id))
    return job_id


@pytest.mark.requirement("E14")
def test_a_cancel_names_the_worker_and_a_cancelled_job_can_be_resumed(on_platform, sleepy):
    job_id = submitted(on_platform, str(sleepy), "-p", "seconds=6")
    early = on_platform("jobs", "resume", job_id, "--dry-run")
    cancelled = on_platform("jobs", "cancel", job_id, "--reason", "wrong file")
    again = on_platform("jobs", "cancel", job_id)
    shown = on_platform("jobs", "show", job_id)
    dry_run = on_platform("jobs", "resume", job_id, "--dry-run")
    as_json = on_platform("jobs", "resume", job_id, "--dry-run", "--json").json
    resumed = on_platform("jobs", "resume", job_id, "--watch")
    completed = on_platform("jobs", "resume", job_id)

    assert early.code == 4
    assert cancelled.code == 0, cancelled.err
    assert "nap, attempt 1: worker " in cancelled.out
    assert "asked its handler to stop, " in cancelled.out
    assert f"job {job_id} is cancelled\n" in cancelled.out
    assert again.code == 0
    assert again.out.endswith(f"job {job_id} is cancelled\n")
    assert "stopped     cancellation requested by local: wrong file" in shown.out
    assert f"dagmaster jobs resume {job_id}" in shown.out
    assert dry_run.out == f"job {job_id} would run again:\n  nap\n  end\n"
    assert (as_json["status"], as_json["nodes"]) == ("dry_run", ["nap", "end"])
    assert resumed.code == 0, resumed.err
    assert "runs again:" in resumed.err
    assert '"slept_seconds": 6' in resumed.out
    assert completed.code == 4


@pytest.mark.requirement("E15")
def test_a_resume_counts_the_children_and_reports_the_outcome(on_platform, failing):
    job_id = on_platform("submit", str(failing), "--wait", "--json").json["job_id"]

    failed = on_platform("jobs", "show", job_id)
    dry_run = on_platform("jobs", "resume", job_id, "--dry-run")
    resumed = on_platform("jobs", "resume", job_id, "--wait", "--json")
    contradictory = on_platform("jobs", "resume", job_id, "--dry-run", "--wait")

    assert f"hint: run the missing nodes with: dagmaster jobs resume {job_id}" in failed.out
    assert "  3 children of spread\n" in dry_run.out
    assert resumed.code == 1
    assert (resumed.json["job_id"], resumed.json["status"]) == (job_id, "failed")
    assert on_platform("jobs", "show", job_id, "--json").json["job"]["resume_count"] == 1
    assert contradictory.code == 2


@pytest.mark.requirement("E14")
def test_ctrl_c_ends_the_wait_but_not_the_cancellation(on_platform, platform, sleepy_process):
    """A handler that ignores the request is killed after its grace period; --wait returns earlier."""
    job_id = submitted(on_platform, str(sleepy_process), "-p", "seconds=60")
    waiting = start("jobs", "cancel", job_id, "--wait", "60", DAGMASTER_URL=platform.facts["api_url"])
    line = next(line for line in waiting.stdout if "asked its handler" in line)
    waiting.send_signal(signal.SIGINT)
    _, err = waiting.communicate(timeout=20)
    without_waiting = on_platform("jobs", "cancel", job_id, "--wait", "0", "--json")

    assert "nap, attempt 1" in line
    assert waiting.returncode == 130
    assert f"detached: the job will still be cancelled; watch it with:\n  dagmaster jobs watch {job_id}\n" in err
    assert (without_waiting.code, without_waiting.json["is_over"]) == (0, False)
    assert on_platform("jobs", "watch", job_id).code == 1
    assert on_platform("jobs", "show", job_id, "--json").json["job"]["status"] == "cancelled"


@pytest.mark.requirement("E16")
def test_the_same_submission_resumes_its_failed_job(on_platform, failing):
    submit = ("submit", str(failing), "--idempotency-key", "goes-on")
    first = on_platform(*submit, "--wait", "--json").json
    result = on_platform(*submit)
    resumed = on_platform(*submit, "--resume")
    waited = on_platform("jobs", "watch", first["job_id"])
    both = on_platform(*submit, "--resume", "--force")

    assert result.code == 1
    assert "with --resume to run the missing nodes" in result.err
    assert (resumed.code, resumed.out.strip()) == (0, first["job_id"])
    assert "its job runs again (resumed 1 time)" in resumed.err
    assert waited.code == 1
    assert both.code == 2


@pytest.mark.requirement("Q4")
def test_replaying_a_given_up_task_resumes_its_job(on_platform, server, failing):
    job_id = on_platform("submit", str(failing), "--wait", "--json").json["job_id"]
    body = json.dumps({"job_id": job_id, "node_id": "spread__0", "attempt": 1})
    with psycopg.connect(server, autocommit=True) as connection:
        (letter,) = connection.execute(
            "INSERT INTO dagapp.dag_dead_letters (dead_letter_id, queue, reason, description, body)"
            " VALUES (gen_random_uuid(), 'dag-worker-tasks', 'PoisonTask', 'lost 5 times', %s)"
            " RETURNING dead_letter_id",
            [body],
        ).fetchone()

    shown = on_platform("dead-letters", "show", str(letter))
    replayed = on_platform("dead-letters", "replay", str(letter))

    assert f"job         {job_id}, node spread__0" in shown.out
    assert "resume its job with: " in shown.err
    assert (replayed.code, replayed.out) == (0, f"job {job_id} is resumed\n")
    assert on_platform("jobs", "watch", job_id).code == 1
    assert on_platform("jobs", "show", job_id, "--json").json["job"]["resume_count"] == 1


def progress_of(dagmaster, url: str, job_id: str) -> tuple[list[str], list[float]]:
    """The first two progress lines of `jobs watch`, as text and as JSON. Then the job is cancelled."""
    person = start("jobs", "watch", job_id, DAGMASTER_URL=url)
    program = start("jobs", "watch", job_id, "--json", DAGMASTER_URL=url)
    lines = list(islice((line for line in person.stdout if "%" in line), 2))
    nodes = (node for line in program.stdout for node in json.loads(line)["nodes"].values())
    fractions = list(islice((node["progress"]["fraction"] for node in nodes if "progress" in node), 2))
    assert dagmaster("jobs", "cancel", job_id).code == 0
    output, _ = person.communicate(timeout=30)
    program.communicate(timeout=30)
    assert "cancellation requested" in output
    return lines, fractions


@pytest.mark.requirement("E23")
def test_the_progress_of_an_async_handler_can_be_watched(on_platform, platform, sleepy):
    job_id = submitted(on_platform, str(sleepy), "-p", "seconds=60")

    lines, (first, second) = progress_of(on_platform, platform.facts["api_url"], job_id)

    assert all("nap: running, " in line for line in lines)
    assert first < second


@pytest.mark.requirement("E23")
def test_the_progress_of_a_plain_handler_can_be_watched(on_platform, platform, tmp_path):
    job_id = submitted(on_platform, str(written(tmp_path / "phased.yaml", PHASES)))
    shown = eventually(lambda: "phases_done" in (out := on_platform("jobs", "show", job_id).out) and out)

    lines, (first, second) = progress_of(on_platform, platform.facts["api_url"], job_id)

    assert re.search(r"\d+% phase_\d+ \(phases_done \d+\)", shown)
    assert all(re.search(r"work: running, \d+% phase_\d+ \(phases_done \d+\)", line) for line in lines)
    assert first < second


@pytest.mark.requirement("H1")
async def test_log_lines_can_be_read_and_followed(database, without_platform, capfd):
    handlers = [Registration("write_log", "tests.cli.test_intervene:write_log")]
    async with engine(database, handlers=handlers) as engine_running:
        job_id = str(await engine_running.submit(workflow(LOGGING)))
        async with served(app_of(database, engine_running)) as server:

            async def logs_of(*arguments: str) -> str:
                capfd.readouterr()
                assert await asyncio.to_thread(run, ("jobs", "logs", job_id, "--server", server.url, *arguments)) == 0
                return capfd.readouterr().out

            followed = await asyncio.wait_for(logs_of("--follow"), 20)
            everything = await logs_of()
            one = json.loads(await logs_of("--node", "spread__1", "--attempt", "1", "--json"))
            first_page = json.loads(await logs_of("--limit", "1", "--json"))
            next_page = json.loads(await logs_of("--after", first_page["next"], "--json"))

    lines = everything.splitlines()
    assert [line.split("  ", 1)[1] for line in lines] == [
        "spread__0 attempt 1  info: begins item=1",
        "spread__0 attempt 1  warning: ends \\x1b[31mred",
        "spread__1 attempt 1  info: begins item=2",
        "spread__1 attempt 1  warning: ends \\x1b[31mred",
    ]
    assert sorted(followed.splitlines()) == sorted(lines)
    assert [line["number"] for line in one["lines"]] == [1, 2]
    assert len(first_page["lines"] + next_page["lines"]) == 4
