"""The output about jobs that did not complete, and how to resume them."""

import asyncio
from typing import Any

import pytest

from dagmaster.cli.main import run
from dagmaster.client.json_client import JsonClient
from dagmaster.errors import UnfitData
from dagmaster.handlers.registry import Registration
from tests.api.serving import app_of, served
from tests.cli.conftest import Result, written
from tests.engine.harness import engine, workflow

UNFIT = """
    workflow_id: unfit
    nodes:
      start: {type: start, next: read}
      read: {handler: unfit, params: {path: "a.tif"}, retry: {max_attempts: 0}, next: end}
      end: {type: end}
"""
PARTIAL = """
workflow_id: partial
description: Tiles for the map
outputs: {tiles: "{{ nodes.main.output.echoed_params }}", preview: "{{ nodes.side.output }}"}
nodes:
  start: {type: start, next: [main, side]}
  main: {handler: echo, params: {location: "s3://tiles/7"}, next: end}
  side:
    handler: fail
    description: A small picture
    params: {message: no side}
    importance: important
    retry: {max_attempts: 0}
    next: end
  end: {type: end}
"""


async def unfit(_ctx: Any, _params: dict[str, Any]) -> None:
    raise UnfitData("the raster has no CRS", code="raster.no-crs", hint="pass `source_crs`")


@pytest.mark.requirement("M3")
async def test_the_hint_and_the_code_of_a_failure_are_shown(database, without_platform, capfd):
    async with engine(database, handlers=[Registration("unfit", "tests.cli.test_failures:unfit")]) as running:
        job_id = str(await running.submit(workflow(UNFIT)))
        async with served(app_of(database, running)) as server:

            async def jobs_command(*arguments: str) -> Result:
                capfd.readouterr()
                code = await asyncio.to_thread(run, ("jobs", *arguments, "--server", server.url))
                return Result(code, *capfd.readouterr())

            watched = await asyncio.wait_for(jobs_command("watch", job_id), 20)
            shown = await jobs_command("show", job_id)
            watched_json = await jobs_command("watch", job_id, "--json")
            node = await jobs_command("node", job_id, "read")
            node_verbose = await jobs_command("node", job_id, "read", "-v")
            node_json = await jobs_command("node", job_id, "read", "--json")
            unknown = await jobs_command("node", job_id, "nope")

    lines = "  read, attempt 1: the raster has no CRS [raster.no-crs]\n    hint: pass `source_crs`\n"
    assert watched.code == 1
    assert lines in watched.err
    assert lines in shown.out
    assert '"hint":"pass `source_crs`"' in watched_json.out
    assert "traceback" not in watched_json.out
    assert "error      the raster has no CRS [raster.no-crs]\nhint       pass `source_crs`\n" in node.out
    assert 'params     {"path":"a.tif"}' in node.out
    assert "Traceback" not in node.out
    assert "traceback of attempt 1\nTraceback (most recent call last)" in node_verbose.out
    assert str(node_json.json["attempts"][0]["worker_id"]) in node.out
    assert unknown.code == 4


@pytest.mark.requirement("E17")
def test_a_partial_success_lists_missing_and_usable_outputs(on_platform, tmp_path):
    partial = written(tmp_path / "partial.yaml", PARTIAL)

    result = on_platform("submit", str(partial), "--wait")
    shown = on_platform("jobs", "show", "last")

    assert result.code == 1, result.err
    job_id = shown.out.split()[1]
    assert "important node 'side' failed: no side" in result.err
    assert "no reason was recorded" not in result.err
    assert "\noutcomes\n  completed: Tiles for the map (1 of 1 critical nodes completed)\n" in shown.out
    assert (
        "  failed: important node side (A small picture): no side\n"
        f"    run it again with: dagmaster jobs resume {job_id}\n"
    ) in shown.out
    assert "\ndeliverables\n  tiles: 1 item, s3://tiles/7\n  preview: missing\n" in shown.out


@pytest.mark.requirement("E14")
def test_a_cancelled_job_is_shown_with_the_caller_and_the_reason(on_platform, sleepy):
    job_id = on_platform("submit", str(sleepy), "-p", "seconds=60", "--json").json["job_id"]
    on_platform("jobs", "cancel", job_id, "--reason", "wrong file")

    result = on_platform("jobs", "watch", job_id)

    assert result.code == 1
    assert "s: cancellation requested by local: wrong file\n" in result.err


@pytest.mark.requirement("E15")
def test_a_part_of_a_job_can_be_retried(on_platform, failing):
    job_id = on_platform("submit", str(failing), "--wait", "--json").json["job_id"]
    retry = ("jobs", "retry", job_id)

    dry_run = on_platform(*retry, "--failed-children", "spread", "--dry-run")
    retried = on_platform(*retry, "--node", "spread", "--reason", "again", "--wait", "--json")
    shown = on_platform("jobs", "show", job_id)
    unknown = on_platform(*retry, "--stage", "nope")
    both = on_platform(*retry, "--node", "spread", "--stage", "spread")
    contradictory = on_platform(*retry, "--node", "spread", "--dry-run", "--watch")

    assert dry_run.code == 0, dry_run.err
    assert dry_run.out.startswith(f"job {job_id} would run again:\n  3 children of spread\n")
    assert f"dagmaster jobs retry {job_id} --failed-children spread" in dry_run.err
    assert (retried.code, retried.json["status"]) == (1, "failed"), retried.err
    assert "resumed     1 time" in shown.out
    assert "s since its submission, including the time before it was resumed" in shown.out
    assert (unknown.code, both.code, contradictory.code) == (4, 2, 2)


@pytest.mark.requirement("M3")
@pytest.mark.parametrize("command", ["events", "logs"])
@pytest.mark.parametrize("follow", [[], ["--follow"]])
def test_an_unknown_node_is_not_found(on_platform, command, follow):
    job_id = on_platform("submit", "fan_out_test", "-p", "count=2", "--wait", "--json").json["job_id"]

    result = on_platform("jobs", command, job_id, "--node", "nope", *follow)
    known = on_platform("jobs", command, job_id, "--node", "process", *follow)

    assert result.code == 4
    assert "has no node 'nope'" in result.err
    assert known.code == 0


@pytest.mark.requirement("M3")
@pytest.mark.parametrize(
    ("command", "method"),
    [
        (("jobs", "watch", "JOB"), "job"),
        (("jobs", "events", "JOB", "--follow"), "follow"),
        (("jobs", "logs", "JOB", "--follow"), "job_summary"),
        (("jobs", "resume", "JOB", "--wait"), "job_summary"),
        (("jobs", "retry", "JOB", "--node", "spread", "--wait"), "job_summary"),
        (("submit", "echo_test", "--wait"), "job_summary"),
        (("submit", "echo_test", "--watch"), "job"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_client_that_detaches_reports_no_outcome(on_platform, failing, monkeypatch, command, method):
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    job_id = on_platform("submit", str(failing), "--wait", "--json").json["job_id"]
    monkeypatch.setattr(JsonClient, method, interrupt)
    arguments = [job_id if argument == "JOB" else argument for argument in command]

    result = on_platform(*arguments)
    as_json = on_platform(*arguments, "--json") if command[1] not in {"resume", "retry"} else None

    assert result.code == 130
    assert "detached: the job continues; watch it with:\n  dagmaster jobs watch " in result.err
    assert as_json is None or (as_json.code, as_json.json["status"]) == (130, "detached")


@pytest.mark.requirement("E16")
def test_repeating_a_failed_submission_suggests_resume_and_force(on_platform, failing):
    submit = ("submit", str(failing), "--idempotency-key", "offers")
    on_platform(*submit, "--wait")

    for result in (on_platform(*submit), on_platform(*submit, "--wait")):
        assert result.code == 1
        assert "submit it with --resume to run the missing nodes, or with --force to start a new job" in result.err
