"""Commands that work without a platform, and the errors of those that need one."""

import json
import os
import re
import subprocess
import sys
import textwrap
import time
import warnings
from datetime import datetime

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from dagmaster.cli.main import main
from dagmaster.database.catalog.pgstac import software_version
from tests.cli.processes import environment, start

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


@pytest.mark.requirement("M3")
@pytest.mark.parametrize(
    "command", [("submit", "hello_world"), ("jobs", "ls"), ("queues", "ls"), ("db", "status"), ("workflows", "ls")]
)
def test_the_error_without_a_platform_says_how_to_start_or_choose_one(dagmaster, tmp_path, command):
    result = dagmaster(*command)
    as_json = dagmaster(*command, "--json")

    assert result.code == as_json.code == 5
    assert result.err == (
        f"error: no platform is running on {tmp_path / 'data'}\n"
        "hint: start one with `dagmaster up`, use --data if yours is in another folder, "
        "or give the URL of another platform with --server URL (or DAGMASTER_URL)\n"
    )
    assert json.loads(as_json.err)["error"]["code"] == "platform.none"
    assert as_json.out == ""


@pytest.mark.requirement("M3")
@pytest.mark.parametrize("command", [("worker",), ("verify-history", "--all")])
def test_the_error_without_a_database_says_how_to_configure_one(dagmaster, tmp_path, command):
    result = dagmaster(*command)

    assert result.code == 5
    assert result.err == (
        f"error: no platform is running on {tmp_path / 'data'}\n"
        "hint: start one with `dagmaster up`, use --data if yours is in another folder, or set DATABASE_URL\n"
    )


@pytest.mark.requirement("M3")
def test_commands_about_jobs_need_an_api_and_not_only_a_database(dagmaster, monkeypatch):
    monkeypatch.setenv("DATABASE_URL", "postgresql://me@127.0.0.1:1/none")

    result = dagmaster("jobs", "ls")

    assert result.code == 5
    assert "DATABASE_URL is not enough: give the API of one of its orchestrators with --server URL" in result.err


@pytest.mark.requirement("M3")
def test_usage_errors_exit_with_2_as_text_and_as_json(dagmaster):
    result = dagmaster("jobs", "ls", "--limit", "none")
    as_json = dagmaster("jobs", "nothing", "--json")

    assert result.code == as_json.code == 2
    assert result.err.startswith("error: Invalid value for '--limit'")
    assert json.loads(as_json.err)["error"]["code"] == "usage"


@pytest.mark.requirement("M2")
def test_the_error_for_an_invalid_setting_names_it(dagmaster, monkeypatch):
    monkeypatch.setenv("HEARTBEAT_INTERVAL_SEC", "often")

    result = dagmaster("jobs", "ls")

    assert result.code == 2
    assert "HEARTBEAT_INTERVAL_SEC" in result.err


@pytest.mark.requirement("M2")
def test_secrets_are_never_printed(dagmaster, monkeypatch):
    monkeypatch.setenv("DATABASE_URL", "postgresql://me:hush@127.0.0.1:1/none?connect_timeout=1")

    direct = dagmaster("db", "status", "-v")
    over_http = dagmaster("jobs", "ls", "-v", "--server", "http://me:hush@127.0.0.1:1")

    assert direct.code == over_http.code == 5
    assert "hush" not in direct.out + direct.err + over_http.out + over_http.err


@pytest.mark.requirement("M3")
def test_the_error_for_an_undeployed_database_says_how_to_deploy(dagmaster, monkeypatch, empty_database):
    monkeypatch.setenv("DATABASE_URL", empty_database)

    check, role = dagmaster("verify-history", "--all"), dagmaster("orchestrator")

    assert check.code == role.code == 5
    assert "dagmaster db deploy" in check.err
    assert "dagmaster db deploy" in role.err


@pytest.mark.requirement("D4")
def test_the_schema_is_deployed_and_inspected(dagmaster, monkeypatch, empty_database):
    monkeypatch.setenv("DATABASE_URL", empty_database)

    before = dagmaster("db", "status", "--json").json
    deployed = dagmaster("db", "deploy")
    migrated = dagmaster("db", "migrate", "--json").json
    after = dagmaster("db", "status", "--json").json
    text = dagmaster("db", "status").out
    tables = dagmaster("db", "tables", "--json").json
    ddl = dagmaster("db", "ddl").out

    assert before["deployed"] is False
    assert deployed.code == 0
    assert migrated == {"changes": [], "pending": [], "is_current": True, "done_by_another": False, "warnings": []}
    assert after["is_current"] is True
    assert (before["catalog"], after["catalog"]) == (None, software_version())
    assert "up to date" in text
    assert f"catalogue pgSTAC {software_version()}" in text
    assert tables["tables"]["dag_jobs"] == 0
    assert "CREATE TABLE dagapp.dag_jobs" in ddl


@pytest.mark.requirement("D4")
def test_one_command_creates_a_missing_schema_and_migrates_an_existing_one(dagmaster, monkeypatch, empty_database):
    """A container job with a single command uses it to upgrade the schema."""
    monkeypatch.setenv("DATABASE_URL", empty_database)
    first = dagmaster("db", "deploy", "--migrate")
    with psycopg.connect(empty_database, autocommit=True) as connection:  # the state of an earlier release
        connection.execute("DROP TABLE dagapp.dag_outbox")
        connection.execute("ALTER TABLE dagapp.dag_jobs DROP COLUMN traceparent")
        connection.execute("DROP SCHEMA pgstac CASCADE")
    outdated = dagmaster("db", "status", "--json").json

    upgraded = dagmaster("db", "deploy", "--migrate", "--json")
    after = dagmaster("db", "status", "--json").json

    assert first.code == 0
    assert re.fullmatch(r"deployed \S+\nnothing to change\n", first.out)
    assert upgraded.code == 0, upgraded.err
    assert (outdated["is_current"], outdated["catalog"]) == (False, None)
    assert any("traceparent" in change for change in upgraded.json["changes"])
    assert (after["is_current"], after["pending"], after["catalog"]) == (True, [], software_version())


@pytest.mark.requirement("D4")
def test_rebuilding_must_be_allowed_and_confirmed(dagmaster, monkeypatch, empty_database):
    name = conninfo_to_dict(empty_database)["dbname"]
    monkeypatch.setenv("DATABASE_URL", empty_database)

    off = dagmaster("db", "rebuild", "--confirm", name)
    monkeypatch.setenv("ALLOW_REBUILD", "true")
    unsure = dagmaster("db", "rebuild", "--confirm", "another")
    rebuilt = dagmaster("db", "rebuild", "--confirm", name, "--json")

    assert off.code == unsure.code == 3
    assert "rebuilding is disabled" in off.err
    assert "--confirm is not the name" in unsure.err
    assert rebuilt.json["is_current"] is True


@pytest.mark.parametrize("command", [("db", "gateway-role"), ("keys", "create", "admin", "--admin")])
def test_commands_that_need_the_database_refuse_another_platform(dagmaster, command):
    refused = dagmaster(*command, "--server", "http://127.0.0.1:9")

    assert refused.code == 2
    assert "--server is not supported here" in refused.err


@pytest.mark.requirement("M3")
def test_unexpected_errors_are_short_and_have_a_traceback_only_on_request(dagmaster, monkeypatch):
    monkeypatch.setattr("dagmaster.database.schema.deploy.ddl", lambda: 1 / 0)

    short, long = dagmaster("db", "ddl"), dagmaster("db", "ddl", "-v")

    assert short.code == long.code == 70
    assert "ZeroDivisionError" in short.err
    assert "Traceback" not in short.err
    assert "Traceback" in long.err


@pytest.mark.requirement("W3")
def test_validate_reports_all_mistakes_together(dagmaster, tmp_path):
    bad, good = tmp_path / "bad.yaml", tmp_path / "good.yaml"
    bad.write_text(BROKEN)
    good.write_text("workflow_id: good\nnodes:\n  start: {type: start, next: end}\n  end: {type: end}\n")

    result = dagmaster("workflows", "validate", str(bad), str(good), str(tmp_path / "none.yaml"))
    as_json = dagmaster("workflows", "validate", str(bad), "--json")

    assert result.code == as_json.code == 2
    assert f"{bad}:6:12: node 'start': " in result.out
    assert f"{bad}:8:14: node 'work': " in result.out
    assert f"{good}: ok (workflow good version 1, 2 nodes)" in result.out
    assert "cannot be read" in result.out
    assert [problem["node"] for problem in as_json.json["files"][0]["problems"]] == ["start", "work"]
    assert dagmaster("workflows", "validate", str(good)).code == 0


@pytest.mark.requirement("M3")
def test_workflow_files_can_be_shown_and_drawn_without_a_platform(dagmaster, sleepy):
    shown = dagmaster("workflows", "show", str(sleepy))
    drawn = dagmaster("workflows", "graph", str(sleepy))

    assert shown.out.startswith("workflow_id: sleepy\n")
    assert drawn.out.startswith("flowchart TD\n")


@pytest.mark.requirement("W3")
def test_pipes_and_devices_are_refused_as_files(dagmaster, tmp_path):
    os.mkfifo(tmp_path / "pipe.yaml")

    result = dagmaster("workflows", "validate", str(tmp_path / "pipe.yaml"), "/dev/zero")

    assert result.code == 2
    assert result.out.count("cannot be read: it is not a regular file") == 2


@pytest.mark.requirement("P1")
def test_run_mode_selects_the_role_and_without_it_help_is_printed(dagmaster, monkeypatch):
    help_ = dagmaster()
    monkeypatch.setenv("RUN_MODE", "worker")
    role = dagmaster()

    assert help_.code == 0
    assert "Usage: dagmaster" in help_.out
    assert role.code == 5
    assert "no platform is running" in role.err


def imported(*arguments: str, heavy: set[str], **variables: str) -> set[str]:
    """The modules of `heavy` that a command imports."""
    script = f"""
        import sys
        from dagmaster.cli.main import run
        run({list(arguments)!r})
        print(*({heavy!r} & sys.modules.keys()), file=sys.stderr)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.alone
@pytest.mark.requirement("M3")
def test_help_is_fast_and_imports_nothing_heavy():
    started = time.monotonic()
    modules = imported("--help", heavy={"psycopg", "sqlalchemy", "rich", "pydantic", "jinja2", "httpx2", "fastapi"})

    assert modules == set()
    assert time.monotonic() - started < 2.0


@pytest.mark.requirement("M3")
def test_a_client_command_imports_nothing_of_the_engine():
    """A client needs httpx2; that it is imported shows that this test works."""
    heavy = {"psycopg", "sqlalchemy", "alembic", "fastapi", "starlette", "jinja2", "uvicorn", "httpx2"}

    assert imported("jobs", "ls", "--server", "http://127.0.0.1:1", heavy=heavy) == {"httpx2"}


@pytest.mark.requirement("P1")
@pytest.mark.parametrize(("role", "own"), [("orchestrator", {"fastapi", "psycopg", "httpx2"}), ("worker", {"psycopg"})])
def test_a_role_imports_only_the_modules_that_it_needs(role, own):
    """The pipe of --hold is closed: the role loads its modules, and then ends. The API forwards maps over HTTP.
    Handlers load what they need when they run."""
    heavy = {
        "rasterio",
        "numpy",
        "shapely",
        "pyproj",
        "titiler",
        "rio_tiler",
        "obstore",
        "pystac",
        "sqlalchemy",
        "alembic",
        "httpx2",
        "fastapi",
        "psycopg",
    }

    modules = imported(
        role, "--hold=0", heavy=heavy, DATABASE_URL="postgresql://u@127.0.0.1:1/none", API_ENABLED="true", API_PORT="0"
    )

    assert modules == own


@pytest.mark.requirement("M3")
def test_an_interrupt_prints_no_traceback():
    process = start("worker", DATABASE_URL="postgresql://u@127.0.0.1:1/none")
    assert "waiting for the database" in process.stderr.readline() + process.stderr.readline()

    process.send_signal(2)
    _, err = process.communicate(timeout=10)

    assert process.returncode == 130
    assert "Traceback" not in err


@pytest.mark.requirement("M3")
@pytest.mark.parametrize("command", [(), ("jobs",), ("jobs", "ls"), ("process",)], ids=" ".join)
def test_the_option_h_prints_help(dagmaster, command):
    short, long = dagmaster(*command, "-h"), dagmaster(*command, "--help")

    assert short == long
    assert short.out.startswith("Usage: dagmaster")


@pytest.mark.requirement("M3")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("jbos", "ls"), "No such command 'jbos'; did you mean 'jobs'?"),
        (("jobs", "shwo"), "No such command 'shwo'; did you mean 'show'?"),
        (("xyzzy",), "No such command 'xyzzy'."),
        (("jobs", "ls", "--statsu", "failed"), "Did you mean --status?"),
        (("jobs", "ls", "--limit", "3", "--limit=4"), "--limit is given 2 times; it takes one value."),
        (("--data", "a", "--data", "b", "jobs", "ls"), "--data is given 2 times; it takes one value."),
    ],
)
def test_misspelt_commands_and_repeated_options_are_explained(dagmaster, arguments, message):
    result = dagmaster(*arguments)

    assert result.code == 2
    assert message in result.err.replace("'--status'", "--status")


@pytest.mark.requirement("M3")
@pytest.mark.parametrize(
    ("arguments", "code"), [(("jobs", "ls"), "platform.none"), (("jbos",), "usage"), (("worker",), "platform.none")]
)
def test_errors_are_json_if_logs_are_json(dagmaster, monkeypatch, arguments, code):
    monkeypatch.setenv("LOG_FORMAT", "json")

    line = json.loads(dagmaster(*arguments).err)
    monkeypatch.setenv("API_PORT", "many")
    invalid = json.loads(dagmaster("jobs", "ls").err)

    assert (line["level"], line["code"]) == ("error", code)
    assert line["event"]
    assert datetime.fromisoformat(line["timestamp"]).tzinfo
    assert "API_PORT=many" in invalid["event"]


@pytest.mark.requirement("W3")
def test_an_alias_is_validated_against_the_workflow_that_it_names(dagmaster, tmp_path):
    def validated(name, target):
        (tmp_path / name).write_text(f"workflow_id: nightly\nalias_of: {target}\ndescription: An older name.\n")
        return dagmaster("workflows", "validate", str(tmp_path / name))

    (tmp_path / "import.yaml").write_text(
        "workflow_id: import_tiles\nnodes:\n  start: {type: start, next: end}\n  end: {type: end}\n"
    )
    near, installed, unknown = (
        validated("a.yaml", "import_tiles"),
        validated("b.yaml", "demo"),
        validated("c.yaml", "dmo"),
    )
    shown = dagmaster("workflows", "show", str(tmp_path / "a.yaml"))

    assert (near.code, installed.code, unknown.code) == (0, 0, 2)
    assert "ok (workflow nightly version" in near.out
    assert "`alias_of` names 'dmo', which does not exist, is not valid, or is an alias itself; did" in unknown.out
    assert "did you mean 'demo'?" in unknown.out
    assert "An older name." in shown.out


def test_the_rasterio_warning_about_missing_georeference_is_not_shown(monkeypatch):
    """The warning does not help users, and `catch_warnings` is not thread-safe, so a global filter hides it."""
    monkeypatch.setattr(sys, "argv", ["dagmaster", "--version"])
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        with pytest.raises(SystemExit):
            main()
        warnings.warn("Dataset has no geotransform, gcps, or rpcs.", UserWarning, stacklevel=1)

    assert shown == []
