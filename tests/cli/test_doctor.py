"""`dagmaster doctor` finds what is wrong and says how to fix it, and works where nothing else does."""

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import psycopg
import pytest

from dagmaster import __version__
from dagmaster.cli.doctor import database as on_database
from dagmaster.cli.doctor import findings, machine
from dagmaster.cli.doctor.findings import FindingLevel, HealthFinding, Judgement
from dagmaster.database.maintenance import server
from dagmaster.database.maintenance.server import Clock
from dagmaster.database.schema.deploy import Status
from dagmaster.errors import Unavailable
from dagmaster.local.embedded import Cluster
from tests.conftest import administrator

pytestmark = pytest.mark.requirement("M3")

GB = 1 << 30
OK, WARNING, PROBLEM, SKIPPED = FindingLevel.OK, FindingLevel.WARNING, FindingLevel.PROBLEM, FindingLevel.SKIPPED


def row(**columns) -> SimpleNamespace:
    """A row as a query returns it."""
    return SimpleNamespace(**columns)


def levels(findings: Iterable[HealthFinding | Judgement]) -> list[FindingLevel]:
    """Each warning and each problem says how to fix it."""
    findings = list(findings)
    assert all(finding.found for finding in findings)
    assert all(finding.fix for finding in findings if finding.level in {WARNING, PROBLEM})
    assert not any(finding.fix for finding in findings if finding.level in {OK, SKIPPED})
    return [finding.level for finding in findings]


# --- judging ---------------------------------------------------------------------------------------------------------


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

    assert levels(on_database.judge_server(row(version="15.4", **facts), answer_seconds, is_pooled)) == expected


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
    assert levels(on_database.judge_server_settings(SETTINGS | changed)) == [expected]


@pytest.mark.parametrize(("used", "expected"), [(10, OK), (80, WARNING), (96, PROBLEM)])
def test_the_number_of_connections_is_judged(used, expected):
    assert levels(on_database.judge_connections(SETTINGS, used, worker_processes=2)) == [expected]


@pytest.mark.parametrize(
    ("extension", "expected"),
    [(None, WARNING), (row(available="3.3", installed=None), OK), (row(available="3.3", installed="3.3"), OK)],
)
def test_postgis_is_judged(extension, expected):
    assert levels(on_database.judge_extension(extension)) == [expected]


@pytest.mark.parametrize(
    ("deployed", "stored", "pending", "expected"),
    [(True, "a", [], None), (False, None, ["deploy"], "deploy"), (True, "b", ["add a column"], "migrate")],
)
def test_schemas_are_judged(deployed, stored, pending, expected):
    (finding,) = on_database.judge_schema(Status(deployed, "a", stored, pending, {}, "15", {}))

    assert finding.level is (PROBLEM if expected else OK)
    assert expected is None or f"dagmaster db {expected}" in finding.fix


@pytest.mark.parametrize(("deployed", "expected"), [("a", OK), ("b", PROBLEM), (None, PROBLEM)])
def test_fingerprints_of_schemas_are_judged(deployed, expected):
    assert levels(on_database.judge_fingerprint(deployed, "a")) == [expected]


@pytest.mark.parametrize(("seconds", "expected"), [(0.002, OK), (0.9, WARNING), (None, PROBLEM)])
def test_notifications_are_judged(seconds, expected):
    assert levels(on_database.judge_notifications(seconds)) == [expected]


@pytest.mark.parametrize(
    ("offset", "uncertainty", "expected"),
    [(0.01, 0.001, OK), (-1.5, 0.01, WARNING), (2.0, 1.9, OK), (90.0, 0.01, PROBLEM), (-90.0, 0.01, PROBLEM)],
)
def test_clocks_are_judged(offset, uncertainty, expected):
    """What may be the network's doing is not the clock's."""
    assert levels(on_database.judge_clock(Clock(offset, uncertainty))) == [expected]


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

    assert levels(on_database.judge_rights(role, lacking, "dagapp")) == [expected]


@pytest.mark.parametrize(("seconds", "expected"), [(1, OK), (600, WARNING), (7200, PROBLEM)])
def test_open_transactions_are_judged(seconds, expected):
    assert levels(on_database.judge_transaction(None)) == [OK]
    oldest = row(seconds=seconds, who="process 5", state="idle in transaction")
    assert levels(on_database.judge_transaction(oldest)) == [expected]


@pytest.mark.parametrize(
    ("dead", "live", "expected"), [(500, 10, OK), (200_000, 100, WARNING), (200_000, 5_000_000, OK)]
)
def test_dead_rows_are_judged(dead, live, expected):
    assert levels(on_database.judge_dead_rows(None)) == [OK]
    worst = row(table="dag_tasks", dead=dead, live=live, vacuumed_seconds_ago=None)
    assert levels(on_database.judge_dead_rows(worst)) == [expected]


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

    judgements = on_database.judge_instances(instances, open_jobs, waiting, alive_seconds=60, our_version="1")

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
    assert levels(on_database.judge_handlers(needs, workers, queued, alive_seconds=60)) == expected


# --- looking ---------------------------------------------------------------------------------------------------------


def test_a_check_that_fails_or_hangs_is_a_finding_and_stops_no_other():
    release = threading.Event()

    def fail():
        raise RuntimeError("postgresql://me:hunter2@host")

    begun = time.monotonic()
    results = findings.run(
        {"fails": fail, "hangs": lambda: [*[], release.wait(30)], "works": lambda: [findings.ok("fine")]},
        patience_seconds=0.3,
    )
    release.set()

    assert [(finding.check, finding.level) for finding in results] == [
        ("fails", PROBLEM),
        ("hangs", PROBLEM),
        ("works", OK),
    ]
    assert time.monotonic() - begun < 5
    assert "RuntimeError" in results[0].found
    assert "hunter2" not in results[0].found
    assert "no answer within 0.3 s" in results[1].found


def by_check(result) -> dict[str, list[HealthFinding]]:
    checks: dict[str, list[HealthFinding]] = {}
    for finding in result.json["findings"]:
        checks.setdefault(finding["check"], []).append(
            HealthFinding(**{**finding, "level": FindingLevel(finding["level"])})
        )
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
}


@pytest.fixture
def free_ports(monkeypatch):
    """Other tests of this machine may hold the usual ones."""
    for name in ("API_PORT", "HEALTH_PORT"):
        monkeypatch.setenv(name, "0")


def test_it_works_where_nothing_runs(dagmaster, free_ports):
    result = dagmaster("doctor", "--json")
    checks = by_check(result)

    assert result.code == 0
    assert result.json["is_healthy"] is True
    assert levels(checks["platform"]) == [WARNING]
    assert "dagmaster up" in checks["platform"][0].fix
    assert {name for name in DATABASE_CHECKS if levels(checks[name]) == [SKIPPED]} == DATABASE_CHECKS
    assert levels(checks["postgres-programs"]) == levels(checks["data-folder"]) == levels(checks["workflows"]) == [OK]


def test_it_works_with_invalid_settings(dagmaster, free_ports, monkeypatch):
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
def test_it_works_where_the_database_is_down(dagmaster, free_ports, monkeypatch, address, expected_text):
    monkeypatch.setenv("DATABASE_URL", address)

    result = dagmaster("doctor", "--json")
    checks = by_check(result)

    assert result.code == 1
    assert levels(checks["postgres"]) == [PROBLEM]
    assert expected_text in checks["postgres"][0].found
    assert {name for name in DATABASE_CHECKS if levels(checks[name]) == [SKIPPED]} == DATABASE_CHECKS - {"postgres"}
    assert "hunter2" not in result.out + result.err


def test_a_server_that_never_answers_is_not_waited_for(dagmaster, free_ports, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        monkeypatch.setenv("DATABASE_URL", f"postgresql://me@127.0.0.1:{deaf.getsockname()[1]}/db")
        begun = time.monotonic()
        result = dagmaster("doctor", "--json")

    assert result.code == 1
    assert levels(by_check(result)["postgres"]) == [PROBLEM]
    assert time.monotonic() - begun < 20


def test_a_database_without_the_schema_is_to_be_deployed(dagmaster, free_ports, monkeypatch, empty_database):
    monkeypatch.setenv("DATABASE_URL", empty_database)

    result = dagmaster("doctor", "--json")
    checks = by_check(result)

    assert result.code == 1
    assert [finding.fix for finding in checks["schema"]] == ["run `dagmaster db deploy`"]
    assert levels(checks["postgres"]) == levels(checks["listen"]) == levels(checks["clock"]) == [OK]
    assert levels(checks["instances"]) == [SKIPPED]
    # The server of these tests has given up durability.
    assert {finding.found.split()[0] for finding in checks["postgres-settings"]} == {
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

    assert not any("check failed" in each.found for group in checks.values() for each in group)
    assert levels(checks["schema"]) == levels(checks["rights"]) == levels(checks["dead-rows"]) == [OK]
    assert levels(checks["instances"]) == [OK, OK, WARNING, WARNING]
    assert "silent: orchestrator host-a" in checks["instances"][2].found
    assert "some run version 0.0.1" in checks["instances"][3].found
    assert set(levels(checks["handlers"])) == {WARNING}
    assert "no running worker offers" in checks["handlers"][0].found


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


def test_an_older_schema_is_to_be_migrated(dagmaster, free_ports, monkeypatch, database):
    monkeypatch.setenv("DATABASE_URL", database)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("ALTER TABLE dagapp.workers DROP COLUMN worker_type")

    (finding,) = by_check(dagmaster("doctor", "--json"))["schema"]

    assert finding.level is PROBLEM
    assert "worker_type" in finding.found
    assert "dagmaster db migrate" in finding.fix


def test_a_read_only_database_is_reported_as_read_only(dagmaster, free_ports, monkeypatch, database):
    monkeypatch.setenv("DATABASE_URL", database)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {connection.info.dbname} SET default_transaction_read_only = on")

    (finding,) = by_check(dagmaster("doctor", "--json"))["postgres"]

    assert finding.level is PROBLEM
    assert "default_transaction_read_only is on" in finding.found


def test_the_rights_that_it_names_are_the_ones_that_are_needed(dagmaster, free_ports, monkeypatch, cluster, database):
    """What it says to do is done, and then it finds nothing more."""
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
    assert "USAGE on schema dagapp" in before.found
    assert levels(after["rights"]) == levels(after["schema"]) == [OK]
    assert "role plain has all rights that the engine needs" in after["rights"][0].found
    assert levels(after["instances"]) == [WARNING, WARNING]


def test_a_notification_that_is_lost_on_the_way_is_noticed(cluster, database):
    """As a pooler loses it that gives each transaction another connection."""
    assert server.notify_seconds(database) < 1

    with without_notifications(str(cluster.socket_folder / ".s.PGSQL.5432")) as folder:
        lost = server.notify_seconds(database.replace(str(cluster.socket_folder), folder))

    assert lost is None


@contextlib.contextmanager
def without_notifications(server_socket: str):
    """A folder with a socket that leads to the server, and keeps its notifications to itself."""
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
            for target, arguments in ((_pass_on, (client, server)), (_pass_on_most, (server, client))):
                threading.Thread(target=target, args=arguments, daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


def _pass_on_most(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError, struct.error), source.makefile("rb") as stream:
        while head := stream.read(5):
            body = stream.read(struct.unpack("!I", head[1:])[0] - 4)
            if head[:1] != b"A":
                sink.sendall(head + body)
        sink.shutdown(socket.SHUT_RDWR)


def test_a_clock_that_is_off_is_measured(database):
    right, late = server.clock(database), server.clock(database, now=lambda: time.time() - 100)

    assert abs(right.offset_seconds) <= right.uncertainty_seconds + 0.05
    assert late.offset_seconds == pytest.approx(100, abs=0.5)


def test_a_transaction_that_was_left_open_is_reported(database):
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
    # Two, since the checks run side by side and each tries its port.
    with socket.create_server(("127.0.0.1", 0)) as stranger, socket.create_server(("127.0.0.1", 0)) as other:
        monkeypatch.setenv("API_PORT", str(stranger.getsockname()[1]))
        monkeypatch.setenv("HEALTH_PORT", str(other.getsockname()[1]))
        stranger.close()
        other.close()
        free = by_check(dagmaster("doctor", "--json"))

    with socket.create_server(("127.0.0.1", 0)) as stranger:
        monkeypatch.setenv("API_PORT", str(stranger.getsockname()[1]))
        monkeypatch.setenv("HEALTH_PORT", str(stranger.getsockname()[1]))
        hang_up = threading.Thread(target=_hang_up, args=(stranger,), daemon=True)
        hang_up.start()
        taken = by_check(dagmaster("doctor", "--json"))

    assert levels(free["api-port"]) == levels(free["health-port"]) == [OK]
    assert (levels(taken["api-port"]), levels(taken["health-port"])) == ([PROBLEM], [WARNING])


def _hang_up(listening: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            listening.accept()[0].close()


def test_files_that_others_can_read_or_that_block_a_folder_are_reported(dagmaster, free_ports, tmp_path):
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
    assert in_the_way[0].found == f"{tmp_path / 'file'} is not a folder"


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
    assert "bad.yaml" in refused[0].found
    assert (missing.level, missing.fix) == (PROBLEM, "correct WORKFLOW_FOLDERS")


def test_a_running_platform_is_healthy(on_platform, platform, free_ports):
    checks = by_check(on_platform("doctor", "--json"))

    well = ("platform", "api", "postgres", "schema", "listen", "clock", "rights", "instances", "handlers")
    assert {name: set(levels(checks[name])) for name in well} == {name: {OK} for name in well}
    assert str(platform.pid) in checks["platform"][0].found
    assert __version__ in checks["api"][0].found


def test_silence_is_measured_as_the_running_platform_does(on_platform, platform, free_ports):
    """`up` takes an instance for dead within seconds, others within a minute."""
    with psycopg.connect(platform.facts["database_url"], autocommit=True) as connection:
        add_instance(connection, "orchestrators", __version__, 20)

    results = by_check(on_platform("doctor", "--json"))["instances"]

    assert levels(results) == [OK, OK, WARNING]
    assert "silent: orchestrator host-a/5" in results[2].found


def test_a_server_that_is_not_the_api_is_reported(dagmaster, free_ports):
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        threading.Thread(target=_hang_up, args=(stranger,), daemon=True).start()
        (finding,) = by_check(
            dagmaster("doctor", "--json", "--server", f"http://127.0.0.1:{stranger.getsockname()[1]}")
        )["api"]

    assert finding.level is PROBLEM
    assert "--server" in finding.fix
