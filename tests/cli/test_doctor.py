"""`dagmaster doctor` reports problems with their fixes, and also works without a platform or database."""

import contextlib
import os
import socket
import struct
import threading
import time
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from dagmaster import __version__
from dagmaster.database.maintenance import server
from dagmaster.doctor.findings import FindingLevel, Judgement
from dagmaster.local.embedded import Cluster
from tests.conftest import administrator
from tests.doctor.test_checks import levels

pytestmark = pytest.mark.requirement("M3")

OK, WARNING, PROBLEM, SKIPPED = FindingLevel.OK, FindingLevel.WARNING, FindingLevel.PROBLEM, FindingLevel.SKIPPED


def by_check(result) -> dict[str, list[Judgement]]:
    checks: dict[str, list[Judgement]] = {}
    for finding in result.json["findings"]:
        judgement = Judgement(FindingLevel(finding["level"]), finding["observation"], finding["fix"])
        checks.setdefault(finding["check"], []).append(judgement)
    return checks


DATABASE_CHECKS = {
    "postgres",
    "postgres-settings",
    "connections",
    "postgis",
    "listen",
    "clock",
    "transactions",
    "rights",
    "schema",
    "instances",
    "handlers",
    "dead-rows",
    "outbox",
}


@pytest.fixture
def free_ports(monkeypatch):
    """Use any free ports, because other tests on this machine may use the default ones."""
    for name in ("API_PORT", "HEALTH_PORT"):
        monkeypatch.setenv(name, "0")


def test_the_doctor_works_without_a_platform(dagmaster, free_ports):
    result = dagmaster("doctor", "--json")
    checks = by_check(result)

    assert result.code == 0
    assert result.json["is_healthy"] is True
    assert levels(checks["platform"]) == [WARNING]
    assert "dagmaster up" in checks["platform"][0].fix
    assert {name for name in DATABASE_CHECKS if levels(checks[name]) == [SKIPPED]} == DATABASE_CHECKS
    assert levels(checks["postgres-programs"]) == levels(checks["data-folder"]) == levels(checks["workflows"]) == [OK]


def test_the_doctor_works_with_invalid_settings(dagmaster, free_ports, monkeypatch):
    for name, value in {"TASK_LEASE_SEC": "nan", "HEARTBEAT_INTERVAL_SEC": "90", "DAGMASTER_DATTA": "x"}.items():
        monkeypatch.setenv(name, value)

    result = dagmaster("doctor")
    checks = by_check(dagmaster("doctor", "--json"))

    assert result.code == 1
    assert "PROBLEM settings           TASK_LEASE_SEC=nan: expected number above 0 up to 86400" in result.out
    assert "2 problems, 2 warnings" in result.out
    assert levels(checks["settings"]) == [PROBLEM, PROBLEM, WARNING]


@pytest.mark.parametrize(
    ("address", "expected_text"),
    [
        ("postgresql://me:hunter2@127.0.0.1:1/db", "Connection refused"),
        ("mysql://me:hunter2@host/db", "it begins with mysql"),
        ("postgresql://me:hunter2@nowhere.invalid/db", "failed to resolve host"),
    ],
)
def test_the_doctor_works_if_the_database_is_unreachable(dagmaster, free_ports, monkeypatch, address, expected_text):
    monkeypatch.setenv("DATABASE_URL", address)

    result = dagmaster("doctor", "--json")
    checks = by_check(result)

    assert result.code == 1
    assert levels(checks["postgres"]) == [PROBLEM]
    assert expected_text in checks["postgres"][0].observation
    assert {name for name in DATABASE_CHECKS if levels(checks[name]) == [SKIPPED]} == DATABASE_CHECKS - {"postgres"}
    assert "hunter2" not in result.out + result.err


def test_a_server_that_never_responds_is_reported_after_a_timeout(dagmaster, free_ports, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("DATABASE_URL", f"postgresql://me@127.0.0.1:{silent.getsockname()[1]}/db")
        started = time.monotonic()
        result = dagmaster("doctor", "--json")

    assert result.code == 1
    assert levels(by_check(result)["postgres"]) == [PROBLEM]
    assert time.monotonic() - started < 20


def test_the_fix_for_a_missing_schema_is_to_deploy_it(dagmaster, free_ports, monkeypatch, empty_database):
    monkeypatch.setenv("DATABASE_URL", empty_database)

    result = dagmaster("doctor", "--json")
    checks = by_check(result)

    assert result.code == 1
    assert [finding.fix for finding in checks["schema"]] == ["run `dagmaster db deploy`"]
    # A busy machine may respond slowly, which is a warning.
    assert all(levels(checks[name]) in ([OK], [WARNING]) for name in ("postgres", "listen", "clock"))
    assert levels(checks["instances"]) == [SKIPPED]
    # The server of these tests runs without durability.
    assert {finding.observation.split()[0] for finding in checks["postgres-settings"]} == {
        "fsync",
        "full_page_writes",
        "synchronous_commit",
    }


def test_every_check_runs_on_a_deployed_database(dagmaster, free_ports, monkeypatch, database):
    monkeypatch.setenv("DATABASE_URL", database)
    with psycopg.connect(database, autocommit=True) as connection:
        if connection.execute("SELECT FROM pg_available_extensions WHERE name = 'postgis'").rowcount:
            connection.execute("CREATE EXTENSION postgis")
        add_instance(connection, "orchestrators", __version__, 1)
        add_instance(connection, "orchestrators", __version__, 300)
        add_instance(connection, "workers", "0.0.1", 1)

    checks = by_check(dagmaster("doctor", "--json"))

    assert not any("check failed" in each.observation for group in checks.values() for each in group)
    assert levels(checks["schema"]) == levels(checks["rights"]) == levels(checks["dead-rows"]) == [OK]
    assert levels(checks["instances"]) == [OK, OK, WARNING, WARNING]
    assert "without a heartbeat: orchestrator host-a" in checks["instances"][2].observation
    assert "some processes have version 0.0.1" in checks["instances"][3].observation
    assert set(levels(checks["handlers"])) == {WARNING}
    assert "no running worker offers" in checks["handlers"][0].observation


def add_instance(connection, table: str, version: str, silent_seconds: float) -> None:
    key, more, values = (
        ("owner_id", "", "")
        if table == "orchestrators"
        else ("worker_id", ", worker_type, queues, handlers", ", 'general', '{dag-worker-tasks}', '{noop}'")
    )
    connection.execute(
        f"INSERT INTO dagapp.{table} ({key}, host, pid, software_version, heartbeat_at{more}) "
        f"VALUES (%s, 'host-a', 5, %s, clock_timestamp() - make_interval(secs => %s){values})",
        [uuid4(), version, silent_seconds],
    )


def test_the_fix_for_an_older_schema_is_to_migrate_it(dagmaster, free_ports, monkeypatch, database):
    monkeypatch.setenv("DATABASE_URL", database)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("ALTER TABLE dagapp.workers DROP COLUMN worker_type")

    (finding,) = by_check(dagmaster("doctor", "--json"))["schema"]

    assert finding.level is PROBLEM
    assert "worker_type" in finding.observation
    assert "dagmaster db migrate" in finding.fix


def test_the_database_is_checked_even_if_the_data_folder_cannot_be_used(
    dagmaster, free_ports, monkeypatch, database, tmp_path
):
    monkeypatch.setenv("DATABASE_URL", database)
    (tmp_path / "platform.lock").symlink_to(tmp_path / "elsewhere")

    checks = by_check(dagmaster("doctor", "--json", "--data", str(tmp_path)))

    assert levels(checks["platform"]) == [PROBLEM]
    assert "platform.lock is a symbolic link" in checks["platform"][0].observation
    assert levels(checks["postgres"]) == levels(checks["schema"]) == [OK]


def test_a_read_only_database_is_reported_as_read_only(dagmaster, free_ports, monkeypatch, database):
    monkeypatch.setenv("DATABASE_URL", database)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {connection.info.dbname} SET default_transaction_read_only = on")

    (finding,) = by_check(dagmaster("doctor", "--json"))["postgres"]

    assert finding.level is PROBLEM
    assert "default_transaction_read_only is on" in finding.observation


def test_the_suggested_grants_are_sufficient(dagmaster, free_ports, monkeypatch, cluster, database):
    """After the suggested fix, no rights are missing."""
    with administrator(cluster) as connection:
        connection.execute("DROP ROLE IF EXISTS plain")
        connection.execute("CREATE ROLE plain LOGIN")
    monkeypatch.setenv("DATABASE_URL", database.replace("postgres@", "plain@"))

    (before,) = by_check(dagmaster("doctor", "--json"))["rights"]
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(before.fix.removeprefix("as its owner: "))
    after = by_check(dagmaster("doctor", "--json"))
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("DROP OWNED BY plain")

    assert before.level is PROBLEM
    assert "USAGE on schema dagapp" in before.observation
    assert levels(after["rights"]) == levels(after["schema"]) == [OK]
    assert "role plain has all rights that the engine needs" in after["rights"][0].observation
    assert levels(after["instances"]) == [WARNING, WARNING]


@pytest.mark.alone
def test_lost_notifications_are_detected(cluster, database):
    """A pooler that gives each transaction another connection loses notifications."""
    assert server.notify_seconds(database) < 1

    with without_notifications(str(cluster.socket_folder / ".s.PGSQL.5432")) as folder:
        lost = server.notify_seconds(database.replace(str(cluster.socket_folder), folder))

    assert lost is None


@contextlib.contextmanager
def without_notifications(server_socket: str):
    """A folder with a socket that forwards everything to the server and back, except for notifications."""
    folder = Path("/tmp", f"dagmaster-doctor-{os.getpid()}")
    folder.mkdir(mode=0o700)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(folder / ".s.PGSQL.5432"))
    listening.listen()
    threading.Thread(target=_serve, args=(listening, server_socket), daemon=True).start()
    try:
        yield str(folder)
    finally:
        listening.close()
        (folder / ".s.PGSQL.5432").unlink()
        folder.rmdir()


def _serve(listening: socket.socket, server_socket: str) -> None:
    with contextlib.suppress(OSError):
        while True:
            client, _ = listening.accept()
            server = socket.socket(socket.AF_UNIX)
            server.connect(server_socket)
            for target, arguments in ((_forward, (client, server)), (_forward_without_notifications, (server, client))):
                threading.Thread(target=target, args=arguments, daemon=True).start()


def _forward(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


def _forward_without_notifications(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError, struct.error), source.makefile("rb") as stream:
        while head := stream.read(5):
            body = stream.read(struct.unpack("!I", head[1:])[0] - 4)
            if head[:1] != b"A":
                sink.sendall(head + body)
        sink.shutdown(socket.SHUT_RDWR)


def test_the_offset_of_the_clock_is_measured(database):
    right, late = server.clock(database), server.clock(database, now=lambda: time.time() - 100)

    assert abs(right.offset_seconds) <= right.uncertainty_seconds + 0.05
    assert late.offset_seconds == pytest.approx(100, abs=0.5)


def test_an_open_transaction_is_reported(database):
    with psycopg.connect(database, application_name="forgotten") as connection:
        connection.execute("SELECT 1")
        oldest = server.row(database, "doctor_oldest_transaction")

    assert oldest is not None
    assert "forgotten" in oldest.who
    assert oldest.state == "idle in transaction"


def test_settings_are_those_of_the_server_and_not_of_the_session(database):
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {connection.info.dbname} SET idle_session_timeout = '30s'")

    settings = server.settings(database)

    assert settings["jit"] == "on"
    assert float(settings["idle_session_timeout"]) == 30
    assert float(settings["shared_buffers"]) >= 1 << 20


def test_ports_in_use_are_reported(dagmaster, monkeypatch):
    # Two ports, because the checks run concurrently and each binds its port.
    with socket.create_server(("127.0.0.1", 0)) as other_program, socket.create_server(("127.0.0.1", 0)) as other:
        monkeypatch.setenv("API_PORT", str(other_program.getsockname()[1]))
        monkeypatch.setenv("HEALTH_PORT", str(other.getsockname()[1]))
        other_program.close()
        other.close()
        free = by_check(dagmaster("doctor", "--json"))

    with socket.create_server(("127.0.0.1", 0)) as other_program:
        monkeypatch.setenv("API_PORT", str(other_program.getsockname()[1]))
        monkeypatch.setenv("HEALTH_PORT", str(other_program.getsockname()[1]))
        closing = threading.Thread(target=_close_connections, args=(other_program,), daemon=True)
        closing.start()
        taken = by_check(dagmaster("doctor", "--json"))

    assert levels(free["api-port"]) == levels(free["health-port"]) == [OK]
    assert (levels(taken["api-port"]), levels(taken["health-port"])) == ([PROBLEM], [WARNING])


def _close_connections(listening: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            listening.accept()[0].close()


def test_files_that_others_can_read_and_files_in_place_of_a_folder_are_reported(dagmaster, free_ports, tmp_path):
    folder = tmp_path / "open"
    folder.mkdir()
    (folder / "platform.json").write_text("{}")
    (folder / "platform.json").chmod(0o644)
    (tmp_path / "file").write_text("")

    readable = by_check(dagmaster("doctor", "--json", "--data", str(folder)))["data-folder"]
    in_the_way = by_check(dagmaster("doctor", "--json", "--data", str(tmp_path / "file" / "data")))["data-folder"]

    assert [finding.fix for finding in readable if finding.level is PROBLEM] == [
        f"chmod go= {folder / 'platform.json'}"
    ]
    assert in_the_way[0].observation == f"{tmp_path / 'file'} is not a folder"


def test_a_private_cluster_that_others_can_read_is_reported(dagmaster, free_ports, tmp_path):
    cluster = Cluster.at(tmp_path / "data")
    cluster.folder.mkdir(parents=True)
    try:
        cluster.folder.chmod(0o755)
        os.chown(cluster.folder, cluster.user.pw_uid, cluster.user.pw_gid)
        results = by_check(dagmaster("doctor", "--json", "--data", str(tmp_path / "data")))["data-folder"]
    finally:
        cluster.folder.rmdir()

    assert f"chmod go= {cluster.folder}" in [finding.fix for finding in results]


def test_refused_workflow_files_are_reported(dagmaster, free_ports, monkeypatch, tmp_path):
    (tmp_path / "bad.yaml").write_text("workflow_id: bad\nnodes:\n  a: {handler: no_such, next: b}\n")
    monkeypatch.setenv("WORKFLOW_FOLDERS", str(tmp_path))
    refused = by_check(dagmaster("doctor", "--json"))["workflows"]
    monkeypatch.setenv("WORKFLOW_FOLDERS", str(tmp_path / "nowhere"))
    (missing,) = by_check(dagmaster("doctor", "--json"))["workflows"]

    assert set(levels(refused)) == {PROBLEM}
    assert "bad.yaml" in refused[0].observation
    assert (missing.level, missing.fix) == (PROBLEM, "correct WORKFLOW_FOLDERS")


def test_a_running_platform_is_healthy(on_platform, platform, free_ports):
    checks = by_check(on_platform("doctor", "--json"))

    well = ("platform", "api", "postgres", "schema", "listen", "clock", "rights", "instances", "handlers")
    assert {name: set(levels(checks[name])) for name in well} == {name: {OK} for name in well}
    assert str(platform.pid) in checks["platform"][0].observation
    assert __version__ in checks["api"][0].observation


def test_the_doctor_uses_the_heartbeat_threshold_of_the_running_platform(on_platform, platform, free_ports):
    """`up` treats an instance as dead after seconds, other platforms after a minute."""
    with psycopg.connect(platform.facts["database_url"], autocommit=True) as connection:
        add_instance(connection, "orchestrators", __version__, 20)

    results = by_check(on_platform("doctor", "--json"))["instances"]

    assert levels(results) == [OK, OK, WARNING]
    assert "without a heartbeat: orchestrator host-a/5" in results[2].observation


def test_a_server_that_is_not_the_api_is_reported(dagmaster, free_ports):
    with socket.create_server(("127.0.0.1", 0)) as other_program:
        threading.Thread(target=_close_connections, args=(other_program,), daemon=True).start()
        (finding,) = by_check(
            dagmaster("doctor", "--json", "--server", f"http://127.0.0.1:{other_program.getsockname()[1]}")
        )["api"]

    assert finding.level is PROBLEM
    assert "--server" in finding.fix
