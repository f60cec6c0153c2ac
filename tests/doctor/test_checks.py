"""Checks judge facts: each warning and each problem says how to fix it."""

import threading
import time
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest

from dagmaster.database.maintenance.server import Clock
from dagmaster.database.schema.deploy import Status
from dagmaster.doctor import database, findings, machine
from dagmaster.doctor.findings import FindingLevel, Judgement
from dagmaster.errors import Unavailable

pytestmark = pytest.mark.requirement("M3")

GB = 1 << 30
OK, WARNING, PROBLEM, SKIPPED = FindingLevel.OK, FindingLevel.WARNING, FindingLevel.PROBLEM, FindingLevel.SKIPPED


def row(**columns) -> SimpleNamespace:
    """A row as a query returns it."""
    return SimpleNamespace(**columns)


def levels(findings: Iterable[Judgement]) -> list[FindingLevel]:
    """Each warning and each problem says how to fix it."""
    findings = list(findings)
    assert all(finding.found for finding in findings)
    assert all(finding.fix for finding in findings if finding.level in {WARNING, PROBLEM})
    assert not any(finding.fix for finding in findings if finding.level in {OK, SKIPPED})
    return [finding.level for finding in findings]


@pytest.mark.parametrize(("version", "expected"), [((3, 11, 0), OK), ((3, 13, 5), OK), ((3, 10, 9), PROBLEM)])
def test_the_version_of_python_is_judged(version, expected):
    assert levels(machine.judge_python(version, "/usr/bin/python3")) == [expected]


def test_settings_are_judged():
    assert levels(machine.judge_settings([], [])) == [OK]
    assert levels(machine.judge_settings(["A=1: wrong", "B=2: wrong"], ["C is not a setting"])) == [
        PROBLEM,
        PROBLEM,
        WARNING,
    ]


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, OK),
        ({"free_bytes": GB}, WARNING),
        ({"free_bytes": 1000}, PROBLEM),
        ({"is_writable": False}, PROBLEM),
        ({"is_folder": False}, PROBLEM),
        ({"path": Path("/data/new")}, OK),
    ],
)
def test_folders_are_judged(facts, expected):
    folder = {
        "path": Path("/data"),
        "nearest": Path("/data"),
        "is_folder": True,
        "is_writable": True,
        "free_bytes": 100 * GB,
    }

    assert levels(machine.judge_folder(**folder | facts)) == [expected]


@pytest.mark.parametrize(
    ("mode", "owner", "expected"), [(0o600, "me", []), (0o640, "me", [PROBLEM]), (0o600, "you", [PROBLEM])]
)
def test_private_files_are_judged(mode, owner, expected):
    assert levels(machine.judge_private(Path("/f"), mode, owner, "me")) == expected


@pytest.mark.parametrize(
    ("port", "holder", "is_needed", "expected"),
    [
        (0, None, True, OK),
        (8000, None, True, OK),
        (8000, "dagmaster", True, OK),
        (8000, "another program", True, PROBLEM),
        (8000, "another program", False, WARNING),
    ],
)
def test_ports_are_judged(port, holder, is_needed, expected):
    assert levels(machine.judge_port("API_PORT", port, holder, is_needed=is_needed)) == [expected]


@pytest.mark.parametrize(
    ("is_installed", "is_needed", "expected"), [(True, True, OK), (False, True, PROBLEM), (False, False, OK)]
)
def test_programs_of_postgres_are_judged(is_installed, is_needed, expected):
    error = None if is_installed else Unavailable("not installed", code="cluster.not-installed", hint="install it")

    assert levels(machine.judge_programs("/bin", error, is_needed=is_needed)) == [expected]


@pytest.mark.parametrize(("size", "expected"), [(GB, OK), (64 << 20, WARNING), (None, WARNING)])
def test_shared_memory_is_judged(size, expected):
    assert levels(machine.judge_shared_memory(size)) == [expected]


def test_gdal_is_not_needed_yet():
    (absent,) = machine.judge_gdal(None, {})
    (present,) = machine.judge_gdal("GDAL 3.9.1", {"rasterio": "1.4"})

    assert (absent.level, "not needed yet" in absent.found) == (OK, True)
    assert present.found == "GDAL 3.9.1, rasterio 1.4"


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"version": "1.2"}, [OK]),
        ({"version": "1.1"}, [WARNING]),
        ({"trouble": "refused"}, [PROBLEM]),
    ],
)
def test_the_api_is_judged(facts, expected):
    assert levels(machine.judge_api("http://x", "1.2", **facts)) == expected


def test_an_unhealthy_api_is_reported():
    (finding,) = machine.judge_api("http://x", "1.2", "1.2", unhealthy=["database: away"])

    assert (finding.level, finding.found) == (PROBLEM, "http://x is not healthy: database: away")


def test_workflow_files_are_judged():
    assert levels(machine.judge_workflows(3, [], [])) == [OK]
    assert levels(machine.judge_workflows(3, ["a.yaml:1:1: wrong"], ["package x: broken"])) == [PROBLEM, PROBLEM]


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, [OK]),
        ({"version_number": 140011}, [PROBLEM]),
        ({"is_standby": True}, [PROBLEM]),
        ({"is_read_only": True}, [PROBLEM]),
        ({"is_pooled": True}, [WARNING]),
        ({"answer_seconds": 1.5}, [WARNING]),
        ({"version_number": 140011, "is_standby": True}, [PROBLEM, PROBLEM]),
    ],
)
def test_servers_are_judged(facts, expected):
    facts = {"version_number": 150004, "is_standby": False, "is_read_only": False, **facts}
    answer_seconds, is_pooled = facts.pop("answer_seconds", 0.01), facts.pop("is_pooled", False)

    assert levels(database.judge_server(row(version="15.4", **facts), answer_seconds, is_pooled)) == expected


SETTINGS = {
    "autovacuum": "on",
    "default_transaction_isolation": "read committed",
    "fsync": "on",
    "full_page_writes": "on",
    "idle_session_timeout": "0",
    "jit": "on",
    "max_connections": "100",
    "shared_buffers": str(256 << 20),
    "superuser_reserved_connections": "3",
    "synchronous_commit": "on",
    "track_counts": "on",
}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, OK),
        ({"fsync": "off"}, PROBLEM),
        ({"full_page_writes": "off"}, PROBLEM),
        ({"autovacuum": "off"}, PROBLEM),
        ({"track_counts": "off"}, PROBLEM),
        ({"synchronous_commit": "off"}, WARNING),
        ({"synchronous_commit": "remote_apply"}, OK),
        ({"shared_buffers": str(8 << 20)}, WARNING),
        ({"idle_session_timeout": "30"}, WARNING),
        ({"transaction_timeout": "30"}, WARNING),
        ({"default_transaction_isolation": "serializable"}, WARNING),
    ],
)
def test_settings_of_the_server_are_judged(changed, expected):
    assert levels(database.judge_server_settings(SETTINGS | changed)) == [expected]


@pytest.mark.parametrize(("used", "expected"), [(10, OK), (80, WARNING), (96, PROBLEM)])
def test_the_number_of_connections_is_judged(used, expected):
    assert levels(database.judge_connections(SETTINGS, used, worker_processes=2)) == [expected]


@pytest.mark.parametrize(
    ("extension", "expected"),
    [(None, WARNING), (row(available="3.3", installed=None), OK), (row(available="3.3", installed="3.3"), OK)],
)
def test_postgis_is_judged(extension, expected):
    assert levels(database.judge_extension(extension)) == [expected]


@pytest.mark.parametrize(
    ("deployed", "stored", "pending", "expected"),
    [(True, "a", [], None), (False, None, ["deploy"], "deploy"), (True, "b", ["add a column"], "migrate")],
)
def test_schemas_are_judged(deployed, stored, pending, expected):
    (finding,) = database.judge_schema(Status(deployed, "a", stored, pending, {}, "15", {}))

    assert finding.level is (PROBLEM if expected else OK)
    assert expected is None or f"dagmaster db {expected}" in finding.fix


@pytest.mark.parametrize(("deployed", "expected"), [("a", OK), ("b", PROBLEM), (None, PROBLEM)])
def test_fingerprints_of_schemas_are_judged(deployed, expected):
    assert levels(database.judge_fingerprint(deployed, "a")) == [expected]


@pytest.mark.parametrize(("seconds", "expected"), [(0.002, OK), (0.9, WARNING), (None, PROBLEM)])
def test_notifications_are_judged(seconds, expected):
    assert levels(database.judge_notifications(seconds)) == [expected]


@pytest.mark.parametrize(
    ("offset", "uncertainty", "expected"),
    [(0.01, 0.001, OK), (-1.5, 0.01, WARNING), (2.0, 1.9, OK), (90.0, 0.01, PROBLEM), (-90.0, 0.01, PROBLEM)],
)
def test_clocks_are_judged(offset, uncertainty, expected):
    """What may be the network's doing is not the clock's."""
    assert levels(database.judge_clock(Clock(offset, uncertainty))) == [expected]


@pytest.mark.parametrize(
    ("has_schema", "may_create", "lacking", "expected"),
    [
        (True, False, [], OK),
        (False, True, [], OK),
        (False, False, [], PROBLEM),
        (True, True, [row(kind="table", name="dag_jobs", lacking="INSERT")], PROBLEM),
    ],
)
def test_rights_are_judged(has_schema, may_create, lacking, expected):
    role = row(name="plain", is_superuser=False, has_schema=has_schema, may_create=may_create)

    assert levels(database.judge_rights(role, lacking, "dagapp")) == [expected]


@pytest.mark.parametrize(("seconds", "expected"), [(1, OK), (600, WARNING), (7200, PROBLEM)])
def test_open_transactions_are_judged(seconds, expected):
    assert levels(database.judge_transaction(None)) == [OK]
    oldest = row(seconds=seconds, who="process 5", state="idle in transaction")
    assert levels(database.judge_transaction(oldest)) == [expected]


@pytest.mark.parametrize(
    ("dead", "live", "expected"), [(500, 10, OK), (200_000, 100, WARNING), (200_000, 5_000_000, OK)]
)
def test_dead_rows_are_judged(dead, live, expected):
    assert levels(database.judge_dead_rows(None)) == [OK]
    worst = row(table="dag_tasks", dead=dead, live=live, vacuumed_seconds_ago=None)
    assert levels(database.judge_dead_rows(worst)) == [expected]


def instance(role: str, silent_seconds: float = 1.0, version: str = "1") -> SimpleNamespace:
    served = {"queues": ["q"], "handlers": ["h"]}
    return row(role=role, host="host", pid=5, version=version, silent_seconds=silent_seconds, **served)


def queued_tasks(queue: str, handler: str, count: int) -> SimpleNamespace:
    return row(queue=queue, handler=handler, count=count)


@pytest.mark.parametrize(
    ("instances", "open_jobs", "queued", "expected"),
    [
        ([instance("orchestrator"), instance("worker")], 5, 5, [OK, OK]),
        ([], 0, 0, [WARNING, WARNING]),
        ([], 5, 0, [PROBLEM, WARNING]),
        ([instance("orchestrator"), instance("worker", 100)], 5, 5, [OK, PROBLEM, WARNING]),
        ([instance("orchestrator"), instance("worker"), instance("worker", 9999)], 0, 0, [OK, OK]),
        ([instance("orchestrator", version="0"), instance("worker")], 0, 0, [OK, OK, WARNING]),
    ],
)
def test_instances_are_judged(instances, open_jobs, queued, expected):
    waiting = [queued_tasks("q", "h", queued)] if queued else []

    judgements = database.judge_instances(instances, open_jobs, waiting, alive_seconds=60, our_version="1")

    assert levels(judgements) == expected


@pytest.mark.parametrize(
    ("workers", "needs", "queued", "expected"),
    [
        ([], [("q", "h", "w")], [], [SKIPPED]),
        ([instance("worker", 100)], [("q", "h", "w")], [], [SKIPPED]),
        ([instance("worker")], [("q", "h", "w")], [queued_tasks("q", "h", 1)], [OK]),
        ([instance("worker")], [("q", "other", "w"), ("q", "other", "v")], [], [WARNING]),
        ([instance("worker")], [("elsewhere", "h", "w")], [], [WARNING]),
        ([instance("worker")], [], [queued_tasks("q", "other", 1)], [PROBLEM]),
    ],
)
def test_handlers_are_judged(workers, needs, queued, expected):
    assert levels(database.judge_handlers(needs, workers, queued, alive_seconds=60)) == expected


def test_a_check_that_fails_or_hangs_is_a_finding_and_stops_no_other():
    release = threading.Event()

    def fail(_subject):
        raise RuntimeError("postgresql://me:hunter2@host")

    begun = time.monotonic()
    results = findings.run(
        {"fails": fail, "hangs": lambda _: [*[], release.wait(30)], "works": lambda name: [findings.ok(name)]},
        "the subject",
        patience_seconds=0.3,
    )
    release.set()

    assert {check: levels(judgements) for check, judgements in results.items()} == {
        "fails": [PROBLEM],
        "hangs": [PROBLEM],
        "works": [OK],
    }
    assert time.monotonic() - begun < 5
    assert "RuntimeError" in results["fails"][0].found
    assert "hunter2" not in results["fails"][0].found
    assert "no answer within 0.3 s" in results["hangs"][0].found
    assert results["works"][0].found == "the subject"
