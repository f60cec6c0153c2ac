"""Commands for queues, workers, orchestrators, the janitor and the schema, over the API."""

import json
import os
import signal
from pathlib import Path

import psycopg
import pytest

from tests.cli.conftest import written
from tests.cli.processes import eventually, start

BROKEN = """
workflow_id: broken
nodes:
  start:
    type: start
    next: [missing, work]
  work:
    handler: no_such_handler
    next: end
  end:
    type: end
"""


@pytest.fixture
def over_http(dagmaster, platform, monkeypatch):
    """Commands that have only the URL of the API."""
    monkeypatch.setenv("DAGMASTER_URL", platform.facts["api_url"])
    return dagmaster


@pytest.fixture
def queued(tmp_path: Path, sleepy: Path) -> Path:
    """A workflow whose task has a separate queue."""
    text = sleepy.read_text().replace("handler: sleep", "handler: sleep\n    queue: container-tasks")
    return written(tmp_path / "queued.yaml", text)


@pytest.mark.requirement("M3")
def test_a_platform_is_used_over_http(over_http, platform, sleepy):
    done = over_http("submit", str(sleepy), "--wait", "--json")
    named = over_http("jobs", "show", done.json["job_id"], "--json", "--server", platform.facts["api_url"] + "/")
    wrong = over_http("jobs", "ls", "--server", "http://127.0.0.1:1")

    assert done.json["result"] == {"nap": {"slept_seconds": 0.1}}
    assert named.json["job"]["status"] == "completed"
    assert wrong.code == 5
    assert "no platform responds at http://127.0.0.1:1" in wrong.err


@pytest.mark.requirement("M3")
def test_a_database_other_than_that_of_the_platform_is_reported(on_platform, monkeypatch):
    monkeypatch.setenv("DATABASE_URL", "postgresql://me@127.0.0.1:1/another")

    result = on_platform("jobs", "ls")

    assert result.code == 4
    assert "uses another database than the one in DATABASE_URL" in result.err


@pytest.mark.requirement("M3")
def test_workflows_of_the_platform_are_listed_shown_and_drawn(over_http):
    listed = over_http("workflows", "ls", "--json").json
    shown = over_http("workflows", "show", "demo")
    drawn = over_http("workflows", "graph", "demo")
    unknown = over_http("submit", "nope")

    assert {"hello_world", "demo"} <= {workflow["workflow_id"] for workflow in listed["workflows"]}
    as_text = over_http("workflows", "ls").out
    assert as_text.index("raster_ingest") < as_text.index("\ntests and examples:\n") < as_text.index("hello_world")
    assert shown.out.startswith("workflow_id: demo\n")
    assert drawn.out.startswith("flowchart TD\n")
    assert unknown.code == 4
    assert "hello_world" in unknown.err


@pytest.mark.requirement("W3")
def test_a_broken_file_is_not_submitted(over_http, tmp_path):
    bad = written(tmp_path / "bad.yaml", BROKEN)

    result = over_http("submit", str(bad))
    as_json = over_http("submit", str(bad), "--json")

    assert result.code == as_json.code == 2
    assert f"{bad}:6:12: node 'start': " in result.err
    assert len(json.loads(as_json.err)["error"]["problems"]) == 2


@pytest.mark.requirement("E16")
def test_the_same_idempotency_key_returns_the_same_job(over_http):
    submit = ("submit", "echo_test", "--idempotency-key", "once")

    first = over_http(*submit, "--wait", "--json").json
    again, result = over_http(*submit, "--json").json, over_http(*submit)
    other = over_http(*submit, "-p", "message=other")
    forced = over_http(*submit, "--force", "--json").json

    assert (again["status"], again["job_id"]) == ("already_completed", first["job_id"])
    assert result.out.strip() == first["job_id"]
    assert "an identical submission was sent before; its job is completed" in result.err
    assert other.code == 4
    assert forced["status"] == "accepted"
    assert forced["job_id"] != first["job_id"]


@pytest.mark.requirement("E16")
def test_repeating_a_failed_submission_reports_the_failed_job(over_http, failing):
    submit = ("submit", str(failing), "--idempotency-key", "fails")
    over_http(*submit, "--wait")

    again = over_http(*submit)

    assert again.code == 1
    assert "its job is failed: " in again.err
    assert "--force" in again.err


@pytest.mark.requirement("E19")
def test_a_paused_queue_is_shown_to_a_waiting_client_and_keeps_its_limit(over_http, platform, queued):
    limited = over_http("queues", "limit", "container-tasks", "2", "--json").json
    paused = over_http("queues", "pause", "container-tasks", "--json").json
    job_id = over_http("submit", str(queued), "--correlation-id", "\x1b[31mred", "--json").json["job_id"]
    waiting = start("jobs", "watch", job_id, DAGMASTER_URL=platform.facts["api_url"])
    line = next(line for line in waiting.stdout if "paused" in line)
    shown = over_http("jobs", "show", job_id)
    resumed = over_http("queues", "resume", "container-tasks", "--json").json
    output, err = waiting.communicate(timeout=20)
    lifted = over_http("queues", "limit", "container-tasks", "none", "--json").json

    remedy = "nap: queue container-tasks is paused; resume it with `dagmaster queues resume container-tasks`"
    assert (limited["max_running"], paused["max_running"], paused["is_paused"]) == (2, 2, True)
    assert remedy in line
    assert f"hint: {remedy}" in shown.out
    assert "  end: waits for nap" in shown.out
    assert "correlation \\x1b[31mred" in shown.out
    assert "\x1b" not in shown.out
    assert (resumed["max_running"], resumed["is_paused"], lifted["max_running"]) == (2, False, None)
    assert "job completed" in output, err
    assert over_http("queues", "pause", "nothing").code == 4
    closed = over_http("queues", "limit", "container-tasks", "0")
    assert closed.code == 2
    assert "at least 1; to stop the queue, run: dagmaster queues pause container-tasks" in closed.err


@pytest.mark.requirement("M3")
def test_instances_are_listed_with_their_handlers_and_tasks(over_http, platform, sleepy):
    pids = {child["role"]: child["pid"] for child in platform.facts["children"]}
    job_id = over_http("submit", str(sleepy), "-p", "seconds=20", "--json").json["job_id"]

    def busy() -> list[dict[str, object]]:
        workers = over_http("workers", "ls", "--json").json["workers"]
        return [worker for worker in workers if worker["running"]]

    (worker,) = eventually(busy)
    (orchestrator,) = over_http("orchestrators", "ls", "--json").json["orchestrators"]
    workers, orchestrators = over_http("workers", "ls").out, over_http("orchestrators", "ls").out
    queues = over_http("queues", "ls").out

    assert (worker["pid"], orchestrator["pid"]) == (pids["worker"], pids["orchestrator"])
    assert worker["running"][0]["task_id"].startswith(job_id)
    assert "1: sleep" in workers
    assert "dag-worker-tasks" in workers
    assert f" {orchestrator['pid']} " in orchestrators
    assert [line.split()[0] for line in queues.splitlines()[1:]] == [
        "container-tasks",
        "dag-jobs",
        "dag-worker-tasks",
        "functionapp-tasks",
    ]


@pytest.mark.requirement("Q4")
def test_dead_letters_are_listed_shown_and_replayed(over_http, server):
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO dagapp.dag_job_messages (queue, message_id, body) "
            "VALUES ('dag-jobs', 'm1', '{\"workflow_id\": 7}')"
        )

    letter = eventually(lambda: over_http("dead-letters", "ls", "--json").json["dead_letters"])[0]
    listed = over_http("dead-letters", "ls")
    shown = over_http("dead-letters", "show", letter["dead_letter_id"][:20])
    replayed = over_http("dead-letters", "replay", letter["dead_letter_id"])

    assert letter["dead_letter_id"] in listed.out
    assert "Malformed" in listed.out
    assert '"workflow_id": 7' in shown.out
    assert (replayed.code, replayed.out) == (0, "the message is back in queue dag-jobs\n")
    assert over_http("dead-letters", "show", "00000000-0000-0000-0000-000000000000").code == 4
    assert over_http("dead-letters", "show", "what").code == 2
    assert over_http("dead-letters", "show", "00000000").code == 4


@pytest.mark.requirement("D4")
def test_the_schema_is_inspected_through_the_platform(over_http):
    status = over_http("db", "status", "--json").json
    tables = over_http("db", "tables").out
    migrated = over_http("db", "migrate")
    rebuilt = over_http("db", "rebuild", "--confirm", "dagmaster")

    assert status["is_current"] is True
    assert " dag_jobs\n" in tables
    assert migrated.out == "nothing to change\n"
    assert rebuilt.code == 3
    assert "rebuilding is disabled" in rebuilt.err
    assert over_http("verify-history", "--all", "--server", "http://127.0.0.1:1").code == 2


@pytest.mark.requirement("M3")
def test_completion_without_a_shell_is_refused_in_one_line(dagmaster):
    result = dagmaster("completion")

    assert result.code == 2
    assert result.err.splitlines()[0].endswith("Choose from: bash, zsh, fish")


@pytest.mark.requirement("M3")
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_the_script_of_each_shell(dagmaster, shell):
    script = dagmaster("completion", shell)

    assert script.code == 0
    assert f"_DAGMASTER_COMPLETE={shell}_complete" in script.out


def completed(words: str, place: int, **extra: str) -> list[str]:
    """The completions of a shell after these words."""
    environment = {"_DAGMASTER_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(place)}
    process = start(**environment, **extra)
    out, err = process.communicate(timeout=10)
    assert err == ""
    return out.split()


@pytest.mark.requirement("M3")
def test_names_and_ids_of_the_platform_are_completed(over_http, platform):
    url = platform.facts["api_url"]
    job_id = over_http("submit", "echo_test", "--json").json["job_id"]

    assert completed("dagmaster submit hello", 2, DAGMASTER_URL=url) == ["plain,hello_world"]
    assert f"plain,{job_id}" in completed(f"dagmaster jobs show --server {url} {job_id[:8]}", 5)
    assert completed("dagmaster queues pause con", 3, DAGMASTER_URL=url) == ["plain,container-tasks"]
    assert completed("dagmaster jobs show 0", 3, DAGMASTER_URL="http://127.0.0.1:1") == []


@pytest.mark.requirement("M3")
def test_following_events_continues_after_a_restart_without_gaps(over_http, platform, sleepy):
    """The orchestrator is killed while a client follows the events; `up` starts it again."""
    job_id = over_http("submit", str(sleepy), "-p", "seconds=4", "--json").json["job_id"]
    follower = start("jobs", "events", job_id, "--follow", "--json", DAGMASTER_URL=platform.facts["api_url"])
    lines = [next(follower.stdout) for _ in range(7)]

    (orchestrator,) = over_http("orchestrators", "ls", "--json").json["orchestrators"]
    os.kill(orchestrator["pid"], signal.SIGKILL)
    output, err = follower.communicate(timeout=60)

    events = [json.loads(line) for line in [*lines, *output.splitlines()]]
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
    assert events[-1]["event_type"] == "job_completed"
    assert "was lost; retrying for up to 60 s" in err
    assert "the platform is available again" in err
    assert follower.returncode == 0


@pytest.mark.requirement("E21")
def test_the_janitor_previews_its_actions_runs_them_and_lists_them(on_platform, server):
    empty = on_platform("janitor", "actions", "--type", "messages_unread")
    with psycopg.connect(server) as connection:
        connection.execute(
            "INSERT INTO dagapp.dag_job_messages (message_id, queue, body, enqueued_at)"
            " VALUES ('m-1', 'unread', '{}', now() - interval '1 day')"
        )

    planned = on_platform("janitor", "run", "--dry-run")
    performed = on_platform("janitor", "run", "--json")
    again = on_platform("janitor", "run")
    listed = on_platform("janitor", "actions", "--type", "messages_unread", "--target", "unread")
    as_json = on_platform("janitor", "actions", "--json", "--limit", "1").json

    assert empty.err == "no janitor actions\n"
    assert planned.out.startswith("would do:")
    assert "messages_unread" in planned.out
    assert (performed.code, performed.json["is_dry_run"]) == (0, False)
    assert "nothing to do" in again.out
    assert "messages_unread" in listed.out
    assert as_json["actions"][0]["target_id"] == "unread"


@pytest.mark.requirement("M3")
def test_the_list_of_workflows_fits_into_80_columns(over_http, monkeypatch):
    monkeypatch.setattr("dagmaster.cli.command.UNBOUNDED_WIDTH", 80)

    lines = over_http("workflows", "ls").out.splitlines()

    assert max(map(len, lines)) <= 80
    listed = over_http("workflows", "ls", "--json").json["workflows"]
    assert len(lines) <= 3 * len(listed)
    assert all(any(line.startswith(f"{one['workflow_id']} ") for line in lines) for one in listed)


@pytest.mark.requirement("M3")
def test_a_killed_worker_is_listed_only_with_the_option_all(server, tmp_path, over_http):
    worker = start("worker", "--json", DATABASE_URL=server, HEALTH_ENABLED="false")

    def listed(*options):
        return {
            line["pid"]: line["is_alive"] for line in over_http("workers", "ls", *options, "--json").json["workers"]
        }

    eventually(lambda: worker.pid in listed())

    worker.kill()
    worker.communicate()

    eventually(lambda: worker.pid not in listed(), 40)
    assert listed("--all")[worker.pid] is False
