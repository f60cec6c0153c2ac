"""Submit jobs and show them, on a platform that runs on a configured server."""

import json
import signal
import time
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import httpx2
import psycopg
import pytest

from dagmaster.client.moments import parse_moment
from dagmaster.errors import InvalidRequest
from tests.cli.processes import eventually, start


@pytest.mark.requirement("P1")
def test_the_configured_server_is_used_instead_of_a_private_one(platform, server, on_platform):
    with psycopg.connect(server) as connection:
        (orchestrators,) = connection.execute("SELECT array_agg(pid) FROM dagapp.orchestrators").fetchone()

    assert platform.facts["postgres_pid"] is None
    assert platform.facts["children"][0]["pid"] in orchestrators


@pytest.mark.requirement("E26")
def test_submit_wait_prints_the_result(on_platform):
    done = on_platform("submit", "hello_world", "-p", "name=Ada", "--wait")

    assert done.code == 0
    assert json.loads(done.out) == {"message": "Hello, Ada!"}


@pytest.mark.requirement("M3")
def test_submit_prints_only_the_job_id_on_standard_output(on_platform):
    submitted = on_platform("submit", "echo_test")

    assert submitted.code == 0
    assert len(submitted.out.strip()) == 36


@pytest.mark.requirement("M3")
def test_the_option_json_can_be_before_or_after_the_command(on_platform):
    before = on_platform("--json", "submit", "echo_test")
    between = on_platform("jobs", "--json", "ls")
    after = on_platform("jobs", "show", before.json["job_id"], "--json")

    assert before.json["status"] == "accepted"
    assert between.json.keys() == {"jobs", "next"}
    shown = {"job", "is_over", "seconds", "failed", "stages", "nodes", "outcomes", "deliverables", "waiting"}
    shown |= {"advance_error", "trouble"}  # two names of one value
    assert after.json.keys() == shown | {"elapsed_seconds", "eta_seconds", "progress", "first_failure"}
    assert "claim_token" not in after.json["job"]


@pytest.mark.requirement("W1")
def test_parameters_are_parsed_by_the_types_of_the_inputs(on_platform, tmp_path):
    file = tmp_path / "inputs.json"
    file.write_text('{"count": 3}')

    typed = on_platform("submit", "fan_out_test", "-p", "count=7", "--wait", "--json")
    text = on_platform("submit", "echo_test", "-p", "message=12", "--wait", "--json")
    from_file = on_platform("submit", "fan_out_test", "--params", f"@{file}", "--wait", "--json")

    assert typed.json["result"] == {"count": 7}
    assert text.json["result"] == {"echoed": {"message": "12"}}
    assert from_file.json["result"] == {"count": 3}


@pytest.mark.requirement("M3")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-p", "count=many"], "-p count: expected integer, but 'many' is not JSON"),
        (["-p", "count=1.5"], "'count' must be an integer, not 1.5"),
        (["-p", "number=3"], "'number' is not an input"),
        (["-p", "count"], "expected name=value"),
        (["--params", "[1]"], "must be a JSON object"),
        (["--params", "@/nowhere.json"], "No such file"),
        (["--params", "@/dev/zero"], "it is not a regular file"),
        (["--params", "@/"], "Is a directory"),
        (["--priority", "11"], "11 is not in the range"),
        (["--correlation-id", "x" * 65], "correlation_id: must have at most 64 characters"),
    ],
)
def test_the_error_for_an_invalid_parameter_names_it(on_platform, arguments, message):
    refused = on_platform("submit", "fan_out_test", *arguments)

    assert refused.code == 2
    assert message in refused.err
    assert refused.out == ""


@pytest.mark.requirement("E26")
def test_a_failed_job_exits_with_1_and_names_the_failed_nodes(on_platform, failing):
    result = on_platform("submit", str(failing), "--wait")
    as_json = on_platform("submit", str(failing), "--wait", "--json")
    shown = on_platform("jobs", "show", as_json.json["job_id"])

    assert result.code == as_json.code == 1
    assert "failed after" in result.err
    assert "spread__0, attempt 1: no 1" in result.err
    assert as_json.json["status"] == "failed"
    assert {node["node_id"] for node in as_json.json["failed_nodes"]} >= {"spread__0", "spread__1", "spread__2"}
    assert shown.out.index("errors") < shown.out.index("nodes")


@pytest.mark.requirement("M3")
def test_a_job_can_be_given_by_a_prefix_of_its_id(on_platform):
    job_id = on_platform("submit", "echo_test", "--wait", "--json").json["job_id"]

    by_prefix = on_platform("jobs", "show", job_id[:20], "--json")
    by_name = on_platform("jobs", "show", "last", "--json")

    assert by_prefix.json["job"]["job_id"] == by_name.json["job"]["job_id"] == job_id
    assert on_platform("jobs", "show", job_id[:2]).code == 2
    assert on_platform("jobs", "show", "ffff").code == 4
    assert on_platform("jobs", "show", "what").code == 2


@pytest.mark.requirement("M3")
def test_pages_of_jobs_ls_have_no_gaps_or_duplicates(on_platform):
    submitted = [on_platform("submit", "conditional_test", "--json").json["job_id"] for _ in range(5)]
    pages, cursor = [], []

    while True:
        page = on_platform("jobs", "ls", "--workflow", "conditional_test", "--limit", "2", "--json", *cursor).json
        pages.append([job["job_id"] for job in page["jobs"]])
        if page["next"] is None:
            break
        cursor = ["--after", page["next"]]

    assert [len(page) for page in pages] == [2, 2, 1]
    assert [job_id for page in pages for job_id in page] == submitted[::-1]


@pytest.mark.requirement("M3")
def test_events_and_children_can_be_paged(on_platform):
    job_id = on_platform("submit", "fan_out_test", "-p", "count=5", "--wait", "--json").json["job_id"]

    first = on_platform("jobs", "events", job_id, "--limit", "4", "--json").json
    second = on_platform("jobs", "events", job_id, "--after", str(first["next"]), "--limit", "1000", "--json").json
    of_child = on_platform("jobs", "events", job_id, "--node", "process__3", "--json").json
    children = on_platform(
        "jobs", "nodes", job_id, "--parent", "process", "--after", "1", "--limit", "2", "--json"
    ).json
    none = on_platform("jobs", "nodes", job_id, "--parent", "process", "--status", "failed", "--json").json
    own = on_platform("jobs", "nodes", job_id, "--json").json

    sequences = [event["sequence"] for event in first["events"] + second["events"]]
    assert sequences == list(range(1, len(sequences) + 1))
    assert second["events"][-1]["event_type"] == "job_completed"
    assert {event["node_id"] for event in of_child["events"]} == {"process__3"}
    assert [child["node_id"] for child in children["nodes"]] == ["process__2", "process__3"]
    assert children["next"] == 3
    assert none["nodes"] == []
    assert [node["node_id"] for node in own["nodes"]] == ["start", "make_list", "process", "gather", "end"]
    assert on_platform("jobs", "nodes", job_id, "--parent", "gather").code == 4


@pytest.mark.requirement("M3")
def test_following_events_ends_with_the_job(on_platform, sleepy):
    job_id = on_platform("submit", str(sleepy), "-p", "seconds=0.6", "--json").json["job_id"]

    followed = on_platform("jobs", "events", job_id, "--follow", "--json")

    assert [json.loads(line)["event_type"] for line in followed.out.splitlines()][-1] == "job_completed"


@pytest.mark.requirement("M3")
@pytest.mark.parametrize(
    ("command", "options", "refused"),
    [
        ("events", ("--limit", "100"), "--limit"),
        ("logs", ("--limit", "5"), "--limit"),
        ("logs", ("--after", "x"), "--after"),
        ("logs", ("--after", "x", "--limit", "5"), "--limit and --after"),
    ],
)
def test_options_of_pages_are_refused_when_following(on_platform, command, options, refused):
    job_id = on_platform("submit", "echo_test", "--wait", "--json").json["job_id"]

    result = on_platform("jobs", command, job_id, "--follow", *options)

    assert result.code == 2
    assert f"so {refused} cannot be used" in result.err


@pytest.mark.requirement("M3")
def test_following_events_can_begin_after_an_event(on_platform):
    job_id = on_platform("submit", "echo_test", "--wait", "--json").json["job_id"]
    *_, last = on_platform("jobs", "events", job_id, "--json").json["events"]

    followed = on_platform("jobs", "events", job_id, "--follow", "--after", str(last["sequence"] - 1), "--json")

    assert [json.loads(line)["sequence"] for line in followed.out.splitlines()] == [last["sequence"]]


@pytest.mark.requirement("M3")
def test_watching_without_a_terminal_prints_a_line_per_change(on_platform):
    watched = on_platform("submit", "fan_out_test", "-p", "count=50", "--watch")

    assert watched.code == 0
    assert "process: completed, 50/50 done" in watched.out
    assert "job completed" in watched.out
    assert '"count": 50' in watched.out


@pytest.mark.requirement("M3")
def test_watching_in_json_ends_with_the_outcome(on_platform):
    job_id = on_platform("submit", "fan_out_test", "--json").json["job_id"]

    *changes, outcome = (json.loads(line) for line in on_platform("jobs", "watch", job_id, "--json").out.splitlines())

    assert changes[-1]["nodes"]["process"] == {
        "status": "completed",
        "total": 10,
        "ended": 10,
        "running": 0,
        "failed": 0,
        "waiting": 0,
    }
    assert outcome["result"] == {"count": 10}


@pytest.mark.alone
@pytest.mark.requirement("M3")
@pytest.mark.parametrize("how", ["--wait", "--watch"])
def test_ctrl_c_detaches_and_the_job_continues(platform, on_platform, sleepy, how):
    folder = platform.facts["data_folder"]
    process = start("submit", str(sleepy), "-p", "seconds=2", how, "--correlation-id", how, "--data", folder)
    _wait_until_running(on_platform, how)

    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=10)
    job = on_platform("jobs", "show", "last", "--json").json["job"]

    assert process.returncode == 130
    assert f"the job continues; watch it with:\n  dagmaster jobs watch {job['job_id']}\n" in err
    assert "Traceback" not in err
    assert job["status"] == "running"


def _wait_until_running(on_platform, correlation_id: str) -> None:
    def is_running() -> bool:
        jobs = on_platform("jobs", "ls", "--limit", "1", "--json").json["jobs"]
        return [(job["correlation_id"], job["status"]) for job in jobs] == [(correlation_id, "running")]

    eventually(is_running)


@pytest.mark.requirement("E22")
def test_a_node_is_shown_with_its_checkpoints_and_their_artifacts(on_platform):
    wanted = ("-p", "phases=2", "-p", "seconds_per_phase=0")
    job_id = on_platform("submit", "multi_phase_test", *wanted, "--wait", "--json").json["job_id"]

    shown = on_platform("jobs", "node", job_id, "work")
    saved = on_platform("jobs", "node", job_id, "work", "--json").json["checkpoints"]

    assert [(line["name"], line["attempt"]) for line in saved] == [("finished", 1), ("phase_2", 1), ("phase_1", 1)]
    (artifact,) = saved[1]["artifacts"]
    assert artifact["uri"].endswith(f"{job_id}-work/phase_2")
    assert artifact["facts"]["size_bytes"] == 64
    assert "checkpoints, the last one first" in shown.out
    assert "phase_1" in shown.out


@pytest.mark.requirement("E18")
def test_a_large_output_is_written_to_a_file(on_platform, tmp_path):
    job_id = on_platform("submit", "fan_out_test", "-p", "count=3", "--wait", "--json").json["job_id"]
    bulk = tmp_path / "bulk.yaml"
    bulk.write_text(
        "workflow_id: bulk\nversion: 1\nnodes:\n  start: {type: start, next: big}\n"
        "  big: {handler: make_list, params: {count: 60000}, next: end}\n  end: {type: end}\n"
    )
    large_id = on_platform("submit", str(bulk), "--wait", "--json").json["job_id"]

    shown = on_platform("jobs", "node", large_id, "big")
    saved = on_platform("jobs", "node", large_id, "big", "--output", str(tmp_path / "big.json"))
    printed = on_platform("jobs", "node", large_id, "big", "--output", "-")
    small = on_platform("jobs", "node", job_id, "gather", "--output", str(tmp_path / "small.json"), "--json")
    none = on_platform("jobs", "node", job_id, "unknown", "--output", str(tmp_path / "none.json"))

    assert f"jobs node {large_id} big --output FILE" in shown.out
    assert json.loads((tmp_path / "big.json").read_text()) == {"items": list(range(60_000)), "count": 60_000}
    assert saved.out == f"{(tmp_path / 'big.json').stat().st_size:,} bytes written to {tmp_path / 'big.json'}\n"
    assert json.loads(printed.out) == json.loads((tmp_path / "big.json").read_text())
    assert json.loads((tmp_path / "small.json").read_text())["count"] == 3
    assert small.json["bytes"] == (tmp_path / "small.json").stat().st_size
    assert none.code == 4
    assert sorted(file.name for file in tmp_path.iterdir() if "json" in file.name) == ["big.json", "small.json"]


def test_a_job_is_exported_to_a_file_completely_or_not_at_all(on_platform, tmp_path, monkeypatch):
    job_id = on_platform("submit", "hello_world", "--wait", "--json").json["job_id"]
    monkeypatch.chdir(tmp_path)

    saved = on_platform("jobs", "export", job_id, "--json")
    printed = on_platform("jobs", "export", job_id, "-o", "-")
    in_a_file = on_platform("jobs", "export", job_id, "-o", f"job-{job_id}.json/inner.json")
    to_a_device = on_platform("jobs", "export", job_id, "-o", "/dev/null")

    exported = tmp_path / f"job-{job_id}.json"
    assert saved.json == {"job_id": job_id, "file": exported.name, "size_bytes": exported.stat().st_size}
    assert json.loads(printed.out)["job"]["job_id"] == json.loads(exported.read_text())["job"]["job_id"] == job_id
    assert (in_a_file.code, to_a_device.code) == (2, 2)
    assert f"job-{job_id}.json/inner.json cannot be written: Not a directory" in in_a_file.err
    assert "/dev/null is not a file" in to_a_device.err
    assert [file.name for file in tmp_path.iterdir()] == [exported.name]


@pytest.mark.requirement("M3")
def test_history_is_verified_for_one_job_and_for_all(on_platform):
    job_id = on_platform("submit", "retry_test", "--wait", "--json").json["job_id"]

    one = on_platform("verify-history", job_id, "--json")
    every = on_platform("verify-history", "--all", "--payloads")

    assert one.code == every.code == 0
    assert one.json["jobs_checked"] == 1
    assert one.json["tasks_checked"] >= 1
    assert "clean" in every.out
    assert on_platform("verify-history").code == 2


@pytest.mark.requirement("M3")
def test_closing_the_output_early_is_not_an_error(on_platform, platform):
    on_platform("submit", "echo_test", "--wait")
    process = start("jobs", "events", "last", "--limit", "10000", "--data", platform.facts["data_folder"])
    process.stdout.close()

    err = process.stderr.read()

    assert process.wait(timeout=10) == 0
    assert err == ""


@pytest.mark.requirement("M3")
@pytest.mark.parametrize(
    "options", [("--status", "completed", "--status", "failed"), ("--status", "failed, completed")], ids=" ".join
)
def test_several_statuses_can_be_given(on_platform, failing, options):
    completed = on_platform("submit", "hello_world", "--force", "--wait", "--json").json["job_id"]
    failed = on_platform("submit", str(failing), "--force", "--wait", "--json").json["job_id"]

    listed = on_platform("jobs", "ls", *options, "--json").json["jobs"]
    neither = on_platform("jobs", "ls", "--status", "pending,cancelled", "--json").json["jobs"]
    nodes = on_platform("jobs", "nodes", failed, "--parent", "spread", "--status", "failed,skipped", "--json").json

    assert {completed, failed} <= {job["job_id"] for job in listed}
    assert {job["status"] for job in listed} == {"completed", "failed"}
    assert not {completed, failed} & {job["job_id"] for job in neither}
    assert {node["status"] for node in nodes["nodes"]} <= {"failed", "skipped"}
    assert nodes["nodes"]


@pytest.mark.requirement("M3")
def test_jobs_can_be_listed_by_time(on_platform, monkeypatch):
    job_id = on_platform("submit", "hello_world", "--force", "--wait", "--json").json["job_id"]
    created = datetime.fromisoformat(on_platform("jobs", "show", job_id, "--json").json["job"]["created_at"])

    def listed(*options):
        return job_id in {job["job_id"] for job in on_platform("jobs", "ls", *options, "--json").json["jobs"]}

    second = timedelta(seconds=1)
    tokyo = ZoneInfo("Asia/Tokyo")
    assert listed("--since", "1h")
    assert not listed("--until", "1h")
    assert listed("--since", (created - second).astimezone(tokyo).isoformat())
    assert not listed("--since", (created + second).astimezone(tokyo).isoformat())
    assert listed("--since", created.isoformat(), "--until", (created + second).isoformat())
    assert not listed("--until", created.isoformat())
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert listed("--since", (created - second).astimezone(tokyo).replace(tzinfo=None).isoformat())
        assert not listed("--since", (created + second).astimezone(tokyo).replace(tzinfo=None).isoformat())
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.requirement("M3")
def test_the_api_accepts_ages_and_requires_a_time_zone(platform):
    url = f"{platform.facts['api_url']}/api/v1/jobs"

    aged = httpx2.get(url, params={"since": "2h", "status": ["completed", "failed,cancelled"]})
    zoneless, nonsense = (httpx2.get(url, params={"until": text}) for text in ("2026-11-16T10:00:00", "soon"))
    unknown = httpx2.get(url, params={"status": "completed,nope"})

    assert aged.status_code == 200, aged.text
    assert (zoneless.status_code, nonsense.status_code, unknown.status_code) == (400, 400, 422)
    assert "has no time zone" in zoneless.json()["detail"]
    assert "neither a time nor an age" in nonsense.json()["detail"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("15min", 900), ("15m", 900), ("1.5h", 5400), ("3d", 259_200), ("1w", 604_800), ("1d 2h", 93_600)],
)
def test_an_age_is_subtracted_from_now(text, seconds):
    now = datetime(2026, 3, 29, 1, 30, tzinfo=UTC)

    assert parse_moment(text, "x", now=now) == now - timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text",
    ["", "2", "h", "-2h", "2 hours", "2h?", "999999999w", "2026-13-01", "9999-12-31T23:59:59-14:00", "٣h", "x" * 999],
)
def test_an_invalid_time_is_refused(text):
    with pytest.raises(InvalidRequest) as refused:
        parse_moment(text, "--since")

    assert len(refused.value.message) < 120
