"""What works without a platform, and what is said where one is needed [M2, M3]."""

import json
import subprocess
import sys
import textwrap
import time

import pytest

from tests.cli.processes import call, start

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


@pytest.mark.parametrize("command", [("submit", "hello_world"), ("jobs", "ls"), ("db", "status"), ("worker",)])
def test_without_a_platform_commands_say_how_to_start_one_m3(dagmaster, command):
    told = dagmaster(*command)
    as_json = dagmaster(*command, "--json")

    assert told.code == as_json.code == 5
    assert told.err == "error: no platform is running\nhint: start one with `dagmaster up`, or set DATABASE_URL\n"
    assert json.loads(as_json.err)["error"]["code"] == "platform.none"
    assert as_json.out == ""


def test_usage_errors_exit_2_in_words_and_in_json_m3(dagmaster):
    told = dagmaster("jobs", "ls", "--limit", "none")
    as_json = dagmaster("jobs", "nothing", "--json")

    assert told.code == as_json.code == 2
    assert told.err.startswith("error: Invalid value for '--limit'")
    assert json.loads(as_json.err)["error"]["code"] == "usage"


def test_an_unknown_workflow_exits_4_and_names_the_known_ones_m3(dagmaster):
    told = dagmaster("submit", "nope")

    assert told.code == 4
    assert "hello_world" in told.err


def test_a_bad_setting_is_told_by_its_name_m2(dagmaster, monkeypatch):
    monkeypatch.setenv("HEARTBEAT_INTERVAL_SEC", "often")

    told = dagmaster("jobs", "ls")

    assert told.code == 2
    assert "HEARTBEAT_INTERVAL_SEC" in told.err


def test_secrets_are_never_printed_m2(dagmaster, monkeypatch):
    monkeypatch.setenv("DATABASE_URL", "postgresql://me:hush@127.0.0.1:1/none?connect_timeout=1")

    told = dagmaster("jobs", "ls", "-v")

    assert told.code == 5
    assert "hush" not in told.out + told.err


def test_an_undeployed_database_is_refused_with_the_remedy_m3(dagmaster, monkeypatch, empty_database):
    monkeypatch.setenv("DATABASE_URL", empty_database)

    listing, role = dagmaster("jobs", "ls"), dagmaster("orchestrator")

    assert listing.code == role.code == 5
    assert "dagmaster db deploy" in listing.err
    assert "dagmaster db deploy" in role.err


def test_the_schema_is_deployed_and_looked_at_d4(dagmaster, monkeypatch, empty_database):
    monkeypatch.setenv("DATABASE_URL", empty_database)

    before = dagmaster("db", "status", "--json").json
    deployed = dagmaster("db", "deploy")
    migrated = dagmaster("db", "migrate", "--json").json
    after = dagmaster("db", "status", "--json").json
    text = dagmaster("db", "status").out
    ddl = dagmaster("db", "ddl").out

    assert before["deployed"] is False
    assert deployed.code == 0
    assert migrated == {"changes": [], "pending": [], "is_current": True}
    assert after["is_current"] is True
    assert "up to date" in text
    assert "CREATE TABLE dagapp.dag_jobs" in ddl


def test_unexpected_errors_are_short_and_show_their_traceback_when_asked_m3(dagmaster, monkeypatch):
    monkeypatch.setattr("dagmaster.database.deploy.ddl", lambda: 1 / 0)

    short, long = dagmaster("db", "ddl"), dagmaster("db", "ddl", "-v")

    assert short.code == long.code == 70
    assert "ZeroDivisionError" in short.err
    assert "Traceback" not in short.err
    assert "Traceback" in long.err


def test_validate_tells_every_mistake_at_once_w3(dagmaster, tmp_path):
    bad, good = tmp_path / "bad.yaml", tmp_path / "good.yaml"
    bad.write_text(BROKEN)
    good.write_text("workflow_id: good\nnodes:\n  start: {type: start, next: end}\n  end: {type: end}\n")

    told = dagmaster("workflows", "validate", str(bad), str(good), str(tmp_path / "none.yaml"))
    as_json = dagmaster("workflows", "validate", str(bad), "--json")

    assert told.code == as_json.code == 2
    assert f"{bad}:6:12: node 'start': " in told.out
    assert f"{bad}:8:14: node 'work': " in told.out
    assert f"{good}: ok (workflow good version 1, 2 nodes)" in told.out
    assert "cannot be read" in told.out
    assert [problem["node"] for problem in as_json.json["files"][0]["problems"]] == ["start", "work"]
    assert dagmaster("workflows", "validate", str(good)).code == 0


def test_a_broken_file_is_not_submitted_w3(dagmaster, tmp_path):
    bad = tmp_path / "bad.yaml"
    bad.write_text(BROKEN)

    told = dagmaster("submit", str(bad), "--json")

    assert told.code == 2
    assert len(json.loads(told.err)["error"]["problems"]) == 2


def test_workflows_are_listed_shown_and_drawn_m3(dagmaster):
    listed = dagmaster("workflows", "ls", "--json").json
    shown = dagmaster("workflows", "show", "demo")
    drawn = dagmaster("workflows", "graph", "demo")

    assert {"hello_world", "demo"} <= {workflow["workflow_id"] for workflow in listed["workflows"]}
    assert listed["refused"] == []
    assert dagmaster("workflows", "ls").code == 0
    assert shown.out.startswith("workflow_id: demo\n")
    assert drawn.out.startswith("flowchart TD\n")


def test_run_mode_selects_the_role_and_people_get_help_p1(dagmaster, monkeypatch):
    help_ = dagmaster()
    monkeypatch.setenv("RUN_MODE", "worker")
    role = dagmaster()

    assert help_.code == 0
    assert "Usage: dagmaster" in help_.out
    assert role.code == 5
    assert "no platform is running" in role.err


def test_help_is_fast_and_imports_nothing_heavy_m3():
    heavy = "{'psycopg', 'sqlalchemy', 'rich', 'pydantic', 'jinja2'}"
    script = textwrap.dedent(f"""
        import sys
        from dagmaster.cli.main import run
        assert run(['--help']) == 0
        assert not {heavy} & sys.modules.keys()
    """)
    begun = time.monotonic()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert time.monotonic() - begun < 2.0


def test_an_interrupt_is_quiet_m3():
    process = start("worker", DATABASE_URL="postgresql://u@127.0.0.1:1/none")
    assert "waiting for the database" in process.stderr.readline() + process.stderr.readline()

    process.send_signal(2)
    _, err = process.communicate(timeout=10)

    assert process.returncode == 130
    assert "Traceback" not in err


def test_demo_shows_a_job_and_leaves_nothing_behind_m3():
    done = call("demo", "--count", "60")

    assert done.returncode == 0, done.stderr
    assert "job completed" in done.stdout
    assert "clean" in done.stdout
    assert done.stdout.rstrip().endswith("everything stopped, its data removed")
