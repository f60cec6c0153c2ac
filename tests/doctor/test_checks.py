"""Checks of the doctor: each warning and each problem says how to fix it."""

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import orjson
import pytest
import rasterio

from dagmaster import __version__
from dagmaster.client import connection
from dagmaster.database.maintenance.server import Clock, ServerResponse
from dagmaster.database.schema.expected import needed_parts
from dagmaster.doctor import database, findings, machine
from dagmaster.doctor.findings import FindingLevel, Judgement
from dagmaster.errors import Conflict, InvalidWorkflow, NotAllowed, Unavailable, WorkflowProblem
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
    """The levels of findings. Each warning and each problem must say how to fix it, and no other finding."""
    findings = list(findings)
    assert all(finding.observation for finding in findings)
    assert all(finding.fix for finding in findings if finding.level in {WARNING, PROBLEM})
    assert not any(finding.fix for finding in findings if finding.level in {OK, SKIPPED})
    return [finding.level for finding in findings]


def judgements_of(check: Callable[[Any], Iterable[Judgement]], subject: Any) -> list[Judgement]:
    """The judgements of a check, as the doctor shows them: an error that the check raises is a finding."""
    return findings.run({"check": check}, subject)["check"]


def settings_with(**values: Any) -> Settings:
    return Settings().model_copy(update=values)


@pytest.fixture
def target() -> machine.Target:
    return machine.Target(Settings())


def test_settings_are_checked(tmp_path, monkeypatch):
    valid = list(machine.check_settings(machine.target(tmp_path, None)))
    for name, value in {"TASK_LEASE_SEC": "nan", "API_PORT": "x", "DAGMASTER_DATTA": "x"}.items():
        monkeypatch.setenv(name, value)
    target = machine.target(tmp_path, None)
    invalid = list(machine.check_settings(target))

    assert levels(valid) == [OK]
    assert levels(invalid) == [PROBLEM, PROBLEM, WARNING]
    assert {judgement.observation.split("=")[0] for judgement in invalid[:2]} == {"TASK_LEASE_SEC", "API_PORT"}
    assert target.settings.data_folder == tmp_path


def test_secrets_are_redacted_although_other_settings_are_invalid(tmp_path, monkeypatch):
    for name, value in {"TASK_LEASE_SEC": "nan", "POSTGRES_PASSWORD": "correct-horse"}.items():
        monkeypatch.setenv(name, value)

    target = machine.target(tmp_path, None)
    results = findings.run({"check": lambda _: [findings.ok("a server said correct-horse")]}, target)

    assert "correct-horse" not in results["check"][0].observation


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
def test_folders_are_checked(tmp_path, monkeypatch, facts, expected):
    facts = {"path": "", "is_writable": True, "free_bytes": 100 * GB, **facts}
    (tmp_path / "file").touch()
    monkeypatch.setattr(machine.os, "access", lambda *_: facts["is_writable"])
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: SimpleNamespace(free=facts["free_bytes"]))
    settings = settings_with(data_folder=tmp_path / facts["path"], database_url="postgresql://host/db")

    assert levels(machine.check_data_folder(machine.Target(settings))) == [expected]


@pytest.mark.parametrize(
    ("mode", "owner", "expected"), [(0o600, "me", []), (0o640, "me", [PROBLEM]), (0o600, "you", [PROBLEM])]
)
def test_private_files_are_checked(mode, owner, expected):
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
def test_ports_are_checked(monkeypatch, port, holder, is_needed, expected):
    def bind(*_: Any, **__: Any) -> socket.socket:
        if holder is None:
            return socket.socket()
        raise Conflict("in use", code="api.port-taken")

    monkeypatch.setattr(machine, "bind", bind)
    monkeypatch.setattr(machine, "_is_dagmaster", lambda *_: holder == "dagmaster")
    settings = settings_with(api_port=port)
    if not is_needed:
        settings.model_fields_set.discard("api_port")

    assert levels(machine.check_port(API, machine.Target(settings))) == [expected]


def test_a_public_address_is_accepted_for_an_api_with_authentication():
    settings = settings_with(api_host="0.0.0.0", api_port=0, auth_enabled=True)

    assert levels(machine.check_port(API, machine.Target(settings))) == [OK]


def test_a_process_of_dagmaster_is_recognised_on_its_port():
    body = orjson.dumps({"is_ready": False, "checks": []})
    with socket.create_server(("0.0.0.0", 0)) as listening:
        port = listening.getsockname()[1]
        answered = threading.Thread(target=_answer_for_localhost, args=(listening, body), daemon=True)
        answered.start()
        is_dagmaster = machine._is_dagmaster("0.0.0.0", port)
        answered.join()

    assert is_dagmaster
    assert not machine._is_dagmaster("127.0.0.1", port)  # no process listens on the port any more


def _answer_for_localhost(listening: socket.socket, body: bytes) -> None:
    """Respond only to the host name localhost, as all processes of dagmaster do on any address."""
    with listening.accept()[0] as connected:
        status = b"503 Service Unavailable" if b"host: localhost\r\n" in connected.recv(65536).lower() else b"403 No"
        content = body if status.startswith(b"503") else b"{}"
        connected.sendall(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(content), content))


@pytest.mark.parametrize(
    ("is_installed", "is_needed", "expected"), [(True, True, OK), (False, True, PROBLEM), (False, False, OK)]
)
def test_programs_of_postgres_are_checked(monkeypatch, is_installed, is_needed, expected):
    def find_binaries() -> Path:
        if is_installed:
            return Path("/bin")
        raise Unavailable("not installed", code="cluster.not-installed", hint="install it")

    monkeypatch.setattr(machine, "find_binaries", find_binaries)
    settings = settings_with(database_url=None if is_needed else "postgresql://host/db")

    assert levels(judgements_of(machine.check_postgres_programs, machine.Target(settings))) == [expected]


@pytest.mark.parametrize(("size", "expected"), [(GB, OK), (64 << 20, WARNING), (None, WARNING)])
def test_shared_memory_is_checked(target, tmp_path, monkeypatch, size, expected):
    monkeypatch.setattr(machine, "_SHARED_MEMORY", tmp_path if size else tmp_path / "missing")
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: SimpleNamespace(total=size))

    assert levels(machine.check_shared_memory(target)) == [expected]


def test_a_gdal_that_cannot_be_loaded_is_a_problem(target, monkeypatch):
    (loaded,) = judgements_of(machine.check_gdal, target)
    monkeypatch.setitem(sys.modules, "rasterio", None)
    monkeypatch.setattr(machine, "find_spec", lambda _: object())
    (broken,) = judgements_of(machine.check_gdal, target)
    monkeypatch.setattr(machine, "find_spec", lambda _: None)
    (absent,) = judgements_of(machine.check_gdal, target)

    assert loaded.level == OK
    assert loaded.observation.startswith(f"GDAL {rasterio.__gdal_version__}, ")
    assert broken.level == PROBLEM
    assert absent == (OK, "not installed; only workers and map servers need it", None)


@pytest.fixture
def api(monkeypatch) -> Callable[..., list[dict[str, Any]]]:
    """A function that sets the response to all requests, and returns the options and requests of all clients."""
    monkeypatch.setattr(machine, "__version__", "1.2")
    make_client = connection.httpx2.AsyncClient

    def respond_with(body: dict[str, Any]) -> list[dict[str, Any]]:
        clients: list[dict[str, Any]] = []
        is_problem = "type" in body

        def respond(request: httpx2.Request) -> httpx2.Response:
            clients[-1]["request"] = request
            media_type = "application/problem+json" if is_problem else "application/json"
            status = body.get("status", 401) if is_problem else 200
            return httpx2.Response(status, json=body, headers={"Content-Type": media_type})

        def client(**options: Any) -> httpx2.AsyncClient:
            clients.append(options)
            return make_client(**options, transport=httpx2.MockTransport(respond))

        monkeypatch.setattr(connection.httpx2, "AsyncClient", client)
        return clients

    return respond_with


def api_at(url: str, key: str | None = None) -> list[Judgement]:
    return judgements_of(machine.check_api, machine.Target(Settings(), url, key))


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
def test_the_api_is_checked(api, body, expected):
    api(body)

    assert levels(api_at("http://x")) == expected


def test_a_refused_key_is_reported_with_the_message_of_the_api(api):
    api(refusal("auth.invalid-key"))

    assert api_at("http://x") == [(PROBLEM, "why", "what to do")]


def test_the_api_is_requested_with_the_key_of_the_caller(api):
    clients = api(health("1.2"))

    api_at("https://x.example/", "dgm_key")
    api_at("http://127.0.0.1:8000")

    assert [str(each["request"].url) for each in clients] == [
        "https://x.example/api/v1/health",
        "http://127.0.0.1:8000/api/v1/health",
    ]
    assert [each["request"].headers.get("Authorization") for each in clients] == ["Bearer dgm_key", None]
    assert [each["trust_env"] for each in clients] == [
        True,
        False,
    ]  # whether the environment sets proxies and certificate authorities


def test_an_api_that_refuses_connections_is_a_problem():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"

    (finding,) = api_at(url)

    assert finding.level is PROBLEM
    assert url in finding.observation
    assert "--server" in finding.fix


def test_the_hint_of_a_running_platform_is_shown(api):
    advice = {"detail": "the database cannot be reached", "hint": "start PostgreSQL", "code": "database.unavailable"}
    api({"type": "urn:dagmaster:problem:unavailable", "title": "Unavailable", "status": 503, **advice})

    assert api_at("http://x") == [(PROBLEM, "the database cannot be reached", "start PostgreSQL")]


def test_the_fix_for_an_unreachable_api_of_a_worker_names_its_setting():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    settings = settings_with(dag_callback_url=url, database_url=None)

    (finding,) = judgements_of(machine.check_api, machine.Target(settings))

    assert finding.level is PROBLEM
    assert "DAG_CALLBACK_URL" in finding.fix


def test_an_unhealthy_api_is_reported(api):
    api(health("1.2", {"name": "database", "detail": "unreachable", "is_ok": False, "hint": "start it"}))

    assert api_at("http://x") == [(PROBLEM, "http://x is not healthy: database: unreachable", "start it")]


def test_the_finding_for_a_missing_extra_names_it():
    def import_dask(_subject: Any) -> list[Judgement]:
        raise ModuleNotFoundError("No module named 'distributed'", name="distributed")

    ((level, text, fix),) = judgements_of(import_dask, None)

    assert (level, fix) == (PROBLEM, "pip install 'dagmaster[dask]'")
    assert "distributed" in text


def test_workflow_files_are_checked(target, monkeypatch):
    handlers, refused = SimpleNamespace(refused=[]), []
    monkeypatch.setattr(machine, "installed", lambda: handlers)
    monkeypatch.setattr(machine, "load_library", lambda *_: WorkflowLibrary({}, tuple(refused)))
    valid = levels(machine.check_workflows(target))
    refused.append(InvalidWorkflow("a.yaml", [WorkflowProblem("wrong")]))
    handlers.refused.append("package x: broken")

    assert valid == [OK]
    assert levels(machine.check_workflows(target)) == [PROBLEM, PROBLEM]


class FakeServer:
    """Returns the given rows of each query, by its name, and the given results of all other functions."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers

    def rows(self, _dsn: str, query_name: str, **_: Any) -> list[Any]:
        return self.answers[query_name]

    def row(self, dsn: str, query_name: str, **values: Any) -> Any:
        return next(iter(self.rows(dsn, query_name, **values)), None)

    def __getattr__(self, name: str) -> Any:
        return lambda _dsn: self.answers[name]


def database_with(response: ServerResponse | None = None, **settings: Any) -> database.Database:
    return database.Database("", settings_with(**settings), response or ServerResponse(None, 0.01, False))


@pytest.fixture
def judged(monkeypatch):
    """A function that returns the levels of a check for given results of a server and needed handlers."""

    def judge(check, needed_handlers=None, **answers: Any) -> list[FindingLevel]:
        monkeypatch.setattr(database, "_needed_handlers", lambda _: needed_handlers)
        monkeypatch.setattr(database, "server", FakeServer(answers))
        return levels(judgements_of(check, database_with(worker_processes=2)))

    return judge


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, [OK]),
        ({"version_number": 140011}, [PROBLEM]),
        ({"is_standby": True}, [PROBLEM]),
        ({"is_read_only": True}, [PROBLEM]),
        ({"is_pooled": True}, [PROBLEM]),
        ({"response_seconds": 1.5}, [WARNING]),
        ({"version_number": 140011, "is_standby": True}, [PROBLEM, PROBLEM]),
    ],
)
def test_servers_are_checked(facts, expected):
    assert levels(database.check_postgres(database_with(response_of(**facts)))) == expected


def response_of(*, response_seconds: float = 0.01, is_pooled: bool = False, **facts: Any) -> ServerResponse:
    facts = {"version": "15.4", "version_number": 150004, "is_standby": False, "is_read_only": False, **facts}
    return ServerResponse(row(**facts), response_seconds, is_pooled)


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
def test_settings_of_the_server_are_checked(judged, changed, expected):
    assert judged(database.check_postgres_settings, settings=SETTINGS | changed) == [expected]


@pytest.mark.parametrize(("used", "expected"), [(10, OK), (80, WARNING), (96, PROBLEM)])
def test_the_number_of_connections_is_checked(monkeypatch, used, expected):
    monkeypatch.setattr(database, "server", FakeServer({"settings": SETTINGS}))

    judgements = list(database.check_connections(database_with(response_of(connections=used), worker_processes=2)))

    assert levels(judgements) == [expected]
    assert f"{used} of 97 in use" in judgements[0].observation
    assert ("not enough for one more of each" in judgements[0].observation) is (expected is not OK)


def test_an_orchestrator_needs_more_connections_with_a_broker(monkeypatch):
    monkeypatch.setattr(database, "server", FakeServer({"settings": SETTINGS}))
    response = response_of(connections=1)
    with_broker = database_with(response, transport="servicebus", service_bus_namespace="example-bus")

    (usual,), (more,) = (list(database.check_connections(on)) for on in (database_with(response), with_broker))

    assert "an orchestrator takes up to 54" in usual.observation
    assert "an orchestrator takes up to 56" in more.observation


@pytest.mark.parametrize(
    ("extension", "expected"),
    [([], WARNING), ([row(available="3.3", installed=None)], OK), ([row(available="3.3", installed="3.3")], OK)],
)
def test_postgis_is_checked(judged, extension, expected):
    assert judged(database.check_postgis, doctor_extension=extension) == [expected]


ALL_PARTS = [row(name=name) for name in sorted(needed_parts())]
NEWER_PARTS = [*ALL_PARTS, row(name="dag_jobs.of_the_next_release")]


@pytest.mark.parametrize(
    ("deployed", "parts", "pending", "expected"),
    [
        ([row(fingerprint="a")], ALL_PARTS, [], (OK, "")),
        ([], [], ["deploy the schema"], (PROBLEM, "dagmaster db deploy")),
        ([row(fingerprint="b")], ALL_PARTS[1:], ["add a column"], (PROBLEM, "run `dagmaster db migrate`")),
        ([row(fingerprint="a")], ALL_PARTS, ["add an index"], (PROBLEM, "run `dagmaster db migrate`")),  # by hand
        ([row(fingerprint="b")], NEWER_PARTS, ["a column is not part of it"], (WARNING, "leave it as it is")),
    ],
)
def test_schemas_are_checked(monkeypatch, deployed, parts, pending, expected):
    monkeypatch.setattr(database, "server", FakeServer({"deployed_schema": deployed, "deployed_parts": parts}))
    monkeypatch.setattr(database.deploy, "pending", lambda _: pending)
    monkeypatch.setattr(database.deploy, "fingerprint", lambda: "a")

    (finding,) = judgements_of(database.check_schema, database_with())

    level, fix = expected
    assert finding.level is level
    assert fix in (finding.fix or "")


@pytest.mark.parametrize(
    ("deployed", "parts", "expected"),
    [
        ([row(fingerprint="a")], [], OK),
        ([row(fingerprint="b")], [], PROBLEM),
        ([row(fingerprint="b")], ALL_PARTS, WARNING),
        ([], [], PROBLEM),
    ],
)
def test_fingerprints_of_schemas_are_checked(judged, monkeypatch, deployed, parts, expected):
    def refuse(_dsn: str) -> None:
        raise NotAllowed("no right to compare", code="database.not-allowed")

    monkeypatch.setattr(database.deploy, "pending", refuse)
    monkeypatch.setattr(database.deploy, "fingerprint", lambda: "a")

    assert judged(database.check_schema, deployed_schema=deployed, deployed_parts=parts) == [expected]


@pytest.mark.parametrize(("seconds", "expected"), [(0.002, OK), (0.9, WARNING), (None, PROBLEM)])
def test_notifications_are_checked(judged, seconds, expected):
    assert judged(database.check_listen, notify_seconds=seconds) == [expected]


@pytest.mark.parametrize(
    ("offset", "uncertainty", "expected"),
    [(0.01, 0.001, OK), (-1.5, 0.01, WARNING), (2.0, 1.9, OK), (90.0, 0.01, PROBLEM), (-90.0, 0.01, PROBLEM)],
)
def test_clocks_are_checked(judged, offset, uncertainty, expected):
    """A difference that the delay of the network can explain is ignored."""
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
def test_rights_are_checked(judged, has_schema, may_create, lacking, expected):
    role = row(name="plain", is_superuser=False, has_schema=has_schema, may_create=may_create)

    assert judged(database.check_rights, doctor_role=[role], doctor_rights=lacking) == [expected]


@pytest.mark.parametrize(("seconds", "expected"), [(1, OK), (600, WARNING), (7200, PROBLEM)])
def test_open_transactions_are_checked(judged, seconds, expected):
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
def test_ids_that_wait_long_in_the_outbox_because_of_an_error_are_a_warning(monkeypatch, waiting, expected):
    rows = [SimpleNamespace(queue=q, messages=n, oldest_seconds=age, error=error) for q, n, age, error in waiting]
    monkeypatch.setattr(database, "server", FakeServer({"outbox_facts": rows}))
    on = database_with(transport="servicebus", service_bus_namespace="example-bus")

    judgements = list(database.check_outbox(on))

    assert levels(judgements) == expected
    assert all("does not exist" in (judgement.fix or "") for judgement in judgements if judgement.level is WARNING)


def test_the_outbox_is_not_checked_without_a_broker(judged):
    old = SimpleNamespace(queue="q", messages=3, oldest_seconds=5000.0, error=None)

    assert judged(database.check_outbox, outbox_facts=[old]) == [OK]


@pytest.mark.parametrize(
    ("dead", "live", "expected"), [(500, 10, OK), (200_000, 100, WARNING), (200_000, 5_000_000, OK)]
)
def test_dead_rows_are_checked(judged, dead, live, expected):
    worst = row(table="dag_tasks", dead_rows=dead, live_rows=live, vacuumed_at=None)
    other = row(table="dag_jobs", dead_rows=dead - 1, live_rows=0, vacuumed_at=None)
    assert judged(database.check_dead_rows, system_tables=[other, worst]) == [expected]


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
def test_instances_are_checked(judged, instances, open_jobs, queued, expected):
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
def test_handlers_are_checked(judged, workers, needs, queued, expected):
    rows = {"doctor_instances": workers, "doctor_queued": queued}

    assert judged(database.check_handlers, needed_handlers=needs, **rows) == expected


def test_missing_handlers_that_are_not_shown_are_counted(monkeypatch):
    """Those with tasks that wait come first; what only workflows need is a warning."""
    needed = {("q", f"unused_{number}"): {"w"} for number in range(7)} | {("q", "stuck_0"): {"w"}}
    queued = [queued_tasks("q", f"stuck_{number}", number + 1) for number in range(6)]
    monkeypatch.setattr(database, "_needed_handlers", lambda _: needed)
    answers = {"doctor_instances": [instance("worker")], "doctor_queued": queued}
    monkeypatch.setattr(database, "server", FakeServer(answers))

    stuck, unused = judgements_of(database.check_handlers, database_with())

    assert levels([stuck, unused]) == [PROBLEM, WARNING]
    assert stuck.observation.startswith("no running worker offers stuck_0 on q (1 task waiting); stuck_1 on q (2 tasks")
    assert stuck.observation.endswith("stuck_4 on q (5 tasks waiting), and 1 more")
    assert unused.observation.startswith("no running worker offers unused_0 on q (needed by w); ")
    assert unused.observation.endswith("unused_4 on q (needed by w), and 2 more")


def test_each_query_about_instances_and_tasks_runs_once(monkeypatch):
    rows = {"doctor_instances": [instance("worker")], "doctor_open_jobs": [row(count=0)], "doctor_queued": []}
    reads: list[str] = []

    class CountingServer(FakeServer):
        def rows(self, dsn: str, query_name: str, **values: Any) -> list[Any]:
            reads.append(query_name)
            return super().rows(dsn, query_name, **values)

    monkeypatch.setattr(database, "_needed_handlers", lambda _: {})
    monkeypatch.setattr(database, "server", CountingServer(rows))
    on = database_with()

    for check in (database.check_instances, database.check_handlers):
        judgements_of(check, on)

    assert sorted(reads) == sorted(rows)


def test_a_check_that_fails_or_hangs_is_a_finding_and_does_not_stop_the_others():
    release = threading.Event()

    def fail(_subject):
        raise RuntimeError("postgresql://me:hunter2@host")

    started = time.monotonic()
    results = findings.run(
        {"fails": fail, "hangs": lambda _: [*[], release.wait(30)], "works": lambda name: [findings.ok(name)]},
        "the subject",
        timeout_seconds=0.3,
    )
    release.set()

    assert {check: levels(judgements) for check, judgements in results.items()} == {
        "fails": [PROBLEM],
        "hangs": [PROBLEM],
        "works": [OK],
    }
    assert time.monotonic() - started < 5
    assert "RuntimeError" in results["fails"][0].observation
    assert "hunter2" not in results["fails"][0].observation
    assert "no response within 0.3 s" in results["hangs"][0].observation
    assert results["works"][0].observation == "the subject"
