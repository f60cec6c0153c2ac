"""Checks judge facts: each warning and each problem says how to fix it."""

import threading
import time
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dagmaster import __version__
from dagmaster.database.maintenance.server import Clock
from dagmaster.database.schema.deploy import Status
from dagmaster.doctor import database, findings, machine
from dagmaster.doctor.findings import FindingLevel, Judgement
from dagmaster.errors import InvalidRequest, InvalidWorkflow, NotAllowed, Unavailable, WorkflowProblem
from dagmaster.library.workflows import WorkflowLibrary
from dagmaster.listen import API
from dagmaster.settings import Settings

pytestmark = pytest.mark.requirement("M3")

GB = 1 << 30
OK, WARNING, PROBLEM, SKIPPED = FindingLevel.OK, FindingLevel.WARNING, FindingLevel.PROBLEM, FindingLevel.SKIPPED


def row(**columns) -> SimpleNamespace:
    """A row as a query returns it."""
    return SimpleNamespace(**columns)


def levels(findings: Iterable[Judgement]) -> list[FindingLevel]:
    """Each warning and each problem says how to fix it."""
    findings = list(findings)
    assert all(finding.observation for finding in findings)
    assert all(finding.fix for finding in findings if finding.level in {WARNING, PROBLEM})
    assert not any(finding.fix for finding in findings if finding.level in {OK, SKIPPED})
    return [finding.level for finding in findings]


def settings_with(**values: Any) -> Settings:
    return Settings().model_copy(update=values)


@pytest.fixture
def target() -> machine.Target:
    return machine.Target(Settings(), {}, None)


@pytest.mark.parametrize(("version", "expected"), [((3, 11, 0), OK), ((3, 13, 5), OK), ((3, 10, 9), PROBLEM)])
def test_the_version_of_python_is_judged(target, monkeypatch, version, expected):
    monkeypatch.setattr(machine, "sys", SimpleNamespace(version_info=version, executable="/usr/bin/python3"))

    assert levels(machine.check_python(target)) == [expected]


def test_settings_are_judged(target, monkeypatch):
    problems = ["A=1: wrong", "B=2: wrong"]
    environment = SimpleNamespace(load=lambda: None, warnings=list)
    monkeypatch.setattr(machine, "environment", environment)
    valid = levels(machine.check_settings(target))

    def refuse() -> None:
        raise InvalidRequest("wrong", code="settings.invalid", problems=problems)

    environment.load, environment.warnings = refuse, lambda: ["C is not a setting"]
    invalid = levels(machine.check_settings(target))

    assert valid == [OK]
    assert invalid == [PROBLEM, PROBLEM, WARNING]


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, OK),
        ({"free_bytes": GB}, WARNING),
        ({"free_bytes": 1000}, PROBLEM),
        ({"is_writable": False}, PROBLEM),
        ({"path": "file/data"}, PROBLEM),
        ({"path": "new"}, OK),
    ],
)
def test_folders_are_judged(tmp_path, monkeypatch, facts, expected):
    facts = {"path": "", "is_writable": True, "free_bytes": 100 * GB, **facts}
    (tmp_path / "file").touch()
    monkeypatch.setattr(machine.os, "access", lambda *_: facts["is_writable"])
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: SimpleNamespace(free=facts["free_bytes"]))
    settings = settings_with(data_folder=tmp_path / facts["path"], database_url="postgresql://host/db")

    assert levels(machine.check_data_folder(machine.Target(settings, {}, None))) == [expected]


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
def test_ports_are_judged(monkeypatch, port, holder, is_needed, expected):
    monkeypatch.setattr(machine, "_holder", lambda *_: holder)
    settings = settings_with(api_port=port)
    if not is_needed:
        settings.model_fields_set.discard("api_port")

    assert levels(machine.check_port(settings, API)) == [expected]


@pytest.mark.parametrize(
    ("is_installed", "is_needed", "expected"), [(True, True, OK), (False, True, PROBLEM), (False, False, OK)]
)
def test_programs_of_postgres_are_judged(monkeypatch, is_installed, is_needed, expected):
    def find_binaries() -> Path:
        if is_installed:
            return Path("/bin")
        raise Unavailable("not installed", code="cluster.not-installed", hint="install it")

    monkeypatch.setattr(machine, "find_binaries", find_binaries)
    settings = settings_with(database_url=None if is_needed else "postgresql://host/db")

    assert levels(machine.check_programs(machine.Target(settings, {}, None))) == [expected]


@pytest.mark.parametrize(("size", "expected"), [(GB, OK), (64 << 20, WARNING), (None, WARNING)])
def test_shared_memory_is_judged(target, tmp_path, monkeypatch, size, expected):
    monkeypatch.setattr(machine, "_SHARED_MEMORY", tmp_path if size else tmp_path / "missing")
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: SimpleNamespace(total=size))

    assert levels(machine.check_shared_memory(target)) == [expected]


def test_versions_of_gdal_are_listed(target, monkeypatch):
    monkeypatch.setattr(machine, "_WHEELS", ())
    monkeypatch.setattr(machine.shutil, "which", lambda _: None)
    (absent,) = machine.check_gdal(target)
    monkeypatch.setattr(machine, "_WHEELS", ("rasterio",))
    monkeypatch.setattr(machine, "version", lambda _: "1.4")
    monkeypatch.setattr(machine.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(machine.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout="GDAL 3.9.1, released 2024"))
    (present,) = machine.check_gdal(target)

    assert absent == (OK, "not installed; only workers and map servers need it", None)
    assert present.observation == "GDAL 3.9.1, rasterio 1.4"


def answer_of_the_api(monkeypatch, **body: Any) -> list[Judgement]:
    monkeypatch.setattr(machine, "__version__", "1.2")
    monkeypatch.setattr(machine.httpx2, "get", lambda *_, **__: SimpleNamespace(json=lambda: body))
    return list(machine.check_api(machine.Target(Settings(), {}, "http://x")))


def health(version: str, *checks: dict[str, Any]) -> dict[str, Any]:
    numbers = {"database_seconds": 0.01, "live_orchestrators": 1, "live_workers": 1}
    return {"version": version, "is_ready": not checks, "checks": list(checks), **numbers}


def refusal(code: str) -> dict[str, Any]:
    return {"type": f"urn:dagmaster:problem:{code}", "code": code, "detail": "why", "hint": "what to do"}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (health("1.2"), [OK]),
        (health("1.1"), [WARNING]),
        ({"message": "I am another server"}, [PROBLEM]),
        (refusal("auth.required"), [OK]),
        (refusal("auth.not-allowed"), [OK]),
        (refusal("auth.invalid-key"), [PROBLEM]),
    ],
)
def test_the_api_is_judged(monkeypatch, body, expected):
    assert levels(answer_of_the_api(monkeypatch, **body)) == expected


def test_the_api_is_asked_with_the_key_of_the_caller(monkeypatch):
    sent = []
    answer = SimpleNamespace(json=lambda: health(machine.__version__))
    monkeypatch.setattr(machine.httpx2, "get", lambda url, **options: sent.append((url, options)) or answer)

    list(machine.check_api(machine.Target(Settings(), {}, "https://x.example/", "dgm_key")))
    list(machine.check_api(machine.Target(Settings(), {}, "http://127.0.0.1:8000")))

    assert [url for url, _ in sent] == ["https://x.example/api/v1/health", "http://127.0.0.1:8000/api/v1/health"]
    assert [options["headers"] for _, options in sent] == [{"Authorization": "Bearer dgm_key"}, {}]
    assert [options["trust_env"] for _, options in sent] == [True, False]  # proxies, and certificate authorities


def test_an_api_that_refuses_connections_is_a_problem(monkeypatch):
    def refuse(*_: Any, **__: Any) -> None:
        raise machine.httpx2.ConnectError("refused")

    monkeypatch.setattr(machine.httpx2, "get", refuse)

    assert levels(machine.check_api(machine.Target(Settings(), {}, "http://x"))) == [PROBLEM]


def test_an_unhealthy_api_is_reported(monkeypatch):
    database_check = {"name": "database", "detail": "unreachable", "is_ok": False, "hint": "start it"}
    (finding,) = answer_of_the_api(monkeypatch, **health("1.2", database_check))

    assert finding == (PROBLEM, "http://x is not healthy: database: unreachable", "start it")


def test_workflow_files_are_judged(target, monkeypatch):
    handlers, refused = SimpleNamespace(refused=[]), []
    monkeypatch.setattr(machine, "installed", lambda: handlers)
    monkeypatch.setattr(machine, "load_library", lambda *_: WorkflowLibrary({}, tuple(refused)))
    valid = levels(machine.check_workflows(target))
    refused.append(InvalidWorkflow("a.yaml", [WorkflowProblem("wrong")]))
    handlers.refused.append("package x: broken")

    assert valid == [OK]
    assert levels(machine.check_workflows(target)) == [PROBLEM, PROBLEM]


class FakeServer:
    """Answers with the rows of each query, by its name, and with what else a server is asked for."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers

    def rows(self, _dsn: str, query_name: str, **_: Any) -> list[Any]:
        return self.answers[query_name]

    def row(self, dsn: str, query_name: str, **values: Any) -> Any:
        return next(iter(self.rows(dsn, query_name, **values)), None)

    def __getattr__(self, name: str) -> Any:
        return lambda _dsn: self.answers[name]


@pytest.fixture
def judged(monkeypatch):
    """The levels that a check finds on a server with these answers, if the workflows need these handlers."""

    def judge(check, needed_handlers=None, **answers: Any) -> list[FindingLevel]:
        monkeypatch.setattr(database, "_needed_handlers", lambda _: needed_handlers)
        monkeypatch.setattr(database, "server", FakeServer(answers))
        return levels(check(database.Database("", settings_with(worker_processes=2), alive_seconds=60)))

    return judge


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, [OK]),
        ({"version_number": 140011}, [PROBLEM]),
        ({"is_standby": True}, [PROBLEM]),
        ({"is_read_only": True}, [PROBLEM]),
        ({"is_pooled": True}, [PROBLEM]),
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
def test_settings_of_the_server_are_judged(judged, changed, expected):
    assert judged(database.check_server_settings, settings=SETTINGS | changed) == [expected]


@pytest.mark.parametrize(("used", "expected"), [(10, OK), (80, WARNING), (96, PROBLEM)])
def test_the_number_of_connections_is_judged(judged, used, expected):
    assert judged(database.check_connections, settings=SETTINGS, doctor_connections=[row(used=used)]) == [expected]


@pytest.mark.parametrize(
    ("extension", "expected"),
    [([], WARNING), ([row(available="3.3", installed=None)], OK), ([row(available="3.3", installed="3.3")], OK)],
)
def test_postgis_is_judged(judged, extension, expected):
    assert judged(database.check_postgis, doctor_extension=extension) == [expected]


@pytest.mark.parametrize(
    ("deployed", "stored", "pending", "expected"),
    [(True, "a", [], None), (False, None, ["deploy"], "deploy"), (True, "b", ["add a column"], "migrate")],
)
def test_schemas_are_judged(monkeypatch, deployed, stored, pending, expected):
    status = Status(deployed, "a", stored, pending, {}, "15", {})
    monkeypatch.setattr(database.deploy, "status", lambda _: status)

    (finding,) = database.check_schema(database.Database("", Settings(), alive_seconds=60))

    assert finding.level is (PROBLEM if expected else OK)
    assert expected is None or f"dagmaster db {expected}" in finding.fix


@pytest.mark.parametrize(
    ("deployed", "expected"),
    [
        ([row(fingerprint="a")], OK),
        ([row(fingerprint="b")], PROBLEM),
        ([row(fingerprint=None)], PROBLEM),
        ([], PROBLEM),
    ],
)
def test_fingerprints_of_schemas_are_judged(judged, monkeypatch, deployed, expected):
    def refuse(_dsn: str) -> None:
        raise NotAllowed("no right to compare", code="database.not-allowed")

    monkeypatch.setattr(database.deploy, "status", refuse)
    monkeypatch.setattr(database.deploy, "fingerprint", lambda: "a")

    assert judged(database.check_schema, doctor_fingerprint=deployed) == [expected]


@pytest.mark.parametrize(("seconds", "expected"), [(0.002, OK), (0.9, WARNING), (None, PROBLEM)])
def test_notifications_are_judged(judged, seconds, expected):
    assert judged(database.check_notifications, notify_seconds=seconds) == [expected]


@pytest.mark.parametrize(
    ("offset", "uncertainty", "expected"),
    [(0.01, 0.001, OK), (-1.5, 0.01, WARNING), (2.0, 1.9, OK), (90.0, 0.01, PROBLEM), (-90.0, 0.01, PROBLEM)],
)
def test_clocks_are_judged(judged, offset, uncertainty, expected):
    """What may be the network's doing is not the clock's."""
    assert judged(database.check_clock, clock=Clock(offset, uncertainty)) == [expected]


@pytest.mark.parametrize(
    ("has_schema", "may_create", "lacking", "expected"),
    [
        (True, False, [], OK),
        (False, True, [], OK),
        (False, False, [], PROBLEM),
        (True, True, [row(kind="table", name="dag_jobs", lacking="INSERT")], PROBLEM),
    ],
)
def test_rights_are_judged(judged, has_schema, may_create, lacking, expected):
    role = row(name="plain", is_superuser=False, has_schema=has_schema, may_create=may_create)

    assert judged(database.check_rights, doctor_role=[role], doctor_rights=lacking) == [expected]


@pytest.mark.parametrize(("seconds", "expected"), [(1, OK), (600, WARNING), (7200, PROBLEM)])
def test_open_transactions_are_judged(judged, seconds, expected):
    assert judged(database.check_transactions, doctor_oldest_transaction=[]) == [OK]
    oldest = row(seconds=seconds, who="process 5", state="idle in transaction")
    assert judged(database.check_transactions, doctor_oldest_transaction=[oldest]) == [expected]


@pytest.mark.parametrize(
    ("waiting", "expected"),
    [
        ([], [OK]),
        ([("q", 3, 5.0, None)], [OK]),
        ([("q", 3000, 1800.0, None)], [OK]),  # all workers are busy
        ([("q", 3, 500.0, "the queue does not exist"), ("r", 1, 2.0, None)], [WARNING, OK]),
    ],
)
def test_ids_that_are_not_sent_for_long_are_shown(monkeypatch, waiting, expected):
    rows = [SimpleNamespace(queue=q, messages=n, oldest_seconds=age, error=error) for q, n, age, error in waiting]
    monkeypatch.setattr(database, "server", FakeServer({"outbox_facts": rows}))
    settings = settings_with(transport="servicebus", service_bus_namespace="example-bus")

    found = list(database.check_outbox(database.Database("", settings, alive_seconds=60)))

    assert levels(found) == expected
    assert all("does not exist" in (judgement.fix or "") for judgement in found if judgement.level is WARNING)


def test_without_a_broker_the_outbox_is_not_judged(judged):
    old = SimpleNamespace(queue="q", messages=3, oldest_seconds=5000.0, error=None)

    assert judged(database.check_outbox, outbox_facts=[old]) == [OK]


@pytest.mark.parametrize(
    ("dead", "live", "expected"), [(500, 10, OK), (200_000, 100, WARNING), (200_000, 5_000_000, OK)]
)
def test_dead_rows_are_judged(judged, dead, live, expected):
    assert judged(database.check_dead_rows, doctor_dead_rows=[]) == [OK]
    worst = row(table="dag_tasks", dead=dead, live=live, vacuumed_seconds_ago=None)
    assert judged(database.check_dead_rows, doctor_dead_rows=[worst]) == [expected]


def instance(role: str, silent_seconds: float = 1.0, version: str = __version__) -> SimpleNamespace:
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
def test_instances_are_judged(judged, instances, open_jobs, queued, expected):
    rows = {
        "doctor_instances": instances,
        "doctor_open_jobs": [row(count=open_jobs)],
        "doctor_queued": [queued_tasks("q", "h", queued)] if queued else [],
    }

    assert judged(database.check_instances, **rows) == expected


@pytest.mark.parametrize(
    ("workers", "needs", "queued", "expected"),
    [
        ([], {("q", "h"): {"w"}}, [], [SKIPPED]),
        ([instance("worker", 100)], {("q", "h"): {"w"}}, [], [SKIPPED]),
        ([instance("worker")], {("q", "h"): {"w"}}, [queued_tasks("q", "h", 1)], [OK]),
        ([instance("worker")], {("q", "other"): {"w", "v"}}, [], [WARNING]),
        ([instance("worker")], {("elsewhere", "h"): {"w"}}, [], [WARNING]),
        ([instance("worker")], {}, [queued_tasks("q", "other", 1)], [PROBLEM]),
    ],
)
def test_handlers_are_judged(judged, workers, needs, queued, expected):
    rows = {"doctor_instances": workers, "doctor_queued": queued}

    assert judged(database.check_handlers, needed_handlers=needs, **rows) == expected


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
    assert "RuntimeError" in results["fails"][0].observation
    assert "hunter2" not in results["fails"][0].observation
    assert "no answer within 0.3 s" in results["hangs"][0].observation
    assert results["works"][0].observation == "the subject"
