"""The embedded PostgreSQL recovers from crashes, and does not disturb other servers.

These start real servers; each has its own folder and is removed after its test.
"""

import itertools
import multiprocessing
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from dagmaster.errors import Conflict, NotFound, Unavailable
from dagmaster.local import embedded
from dagmaster.local.embedded import MAX_SOCKET_FOLDER_LENGTH, Cluster

pytestmark = pytest.mark.requirement("P1")

IS_ROOT = os.geteuid() == 0
as_root = pytest.mark.skipif(not IS_ROOT, reason="tests what is different for root")
NOBODY = 65534
_numbers = itertools.count(1)

HOLD = """
import sys, time
from pathlib import Path
from dagmaster.local.embedded import Cluster
cluster = Cluster.at(Path(sys.argv[1]) if sys.argv[1] else None, sys.argv[2], fast=True)
cluster.start()
print(cluster.server_pid(), cluster.socket_folder, flush=True)
time.sleep(600)
"""


@pytest.fixture
def new_cluster(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Create clusters, as root by name and otherwise by data folder; all are removed after the test."""
    clusters: list[Cluster] = []

    def new(data_folder: Path | None = None, *, fast: bool = True) -> Cluster:
        folder = data_folder or (None if IS_ROOT else tmp_path)
        clusters.append(Cluster.at(folder, a_name(), fast=fast))
        return clusters[-1]

    yield new
    for cluster in clusters:
        cluster.remove()


def initialise(cluster: Cluster) -> None:
    """Create the data folder without starting the server."""
    with cluster._lock():
        cluster._initialise()


def test_a_cluster_starts_responds_and_stops(new_cluster):
    cluster = new_cluster()

    cluster.start()
    with psycopg.connect(cluster.dsn) as connection:
        extensions = {name for (name,) in connection.execute("SELECT extname FROM pg_extension")}
        shown = [connection.execute(f"SHOW {name}").fetchone() for name in ("listen_addresses", "TimeZone")]
    was_running = cluster.is_running()
    cluster.stop()

    assert was_running
    assert "postgis" in extensions
    assert shown == [("",), ("UTC",)]
    assert not cluster.is_running()
    assert not list(cluster.socket_folder.iterdir())


def test_durability_is_disabled_only_on_request(new_cluster):
    with new_cluster(fast=False) as cluster, psycopg.connect(cluster.dsn) as connection:
        careful = [connection.execute(f"SHOW {name}").fetchone() for name in ("fsync", "synchronous_commit")]
    with new_cluster(fast=True) as cluster, psycopg.connect(cluster.dsn) as connection:
        fast = [connection.execute(f"SHOW {name}").fetchone() for name in ("fsync", "synchronous_commit")]

    assert careful == [("on",), ("on",)]
    assert fast == [("off",), ("off",)]


def test_a_second_start_finds_the_data(new_cluster):
    cluster = new_cluster()
    with cluster:
        write_mark(cluster)

    with cluster:
        assert has_mark(cluster)


def test_a_killed_server_recovers_at_the_next_start(new_cluster):
    cluster = new_cluster(fast=False)
    cluster.start()
    write_mark(cluster)

    os.kill(cluster.server_pid(), signal.SIGKILL)
    cluster.start()

    assert has_mark(cluster)


def test_a_killed_parent_leaves_no_server(new_cluster):
    cluster = new_cluster()
    with holder_of(cluster) as (parent, pid):
        parent.kill()
        parent.wait()

        assert has_ended(pid, within_seconds=20)
    with cluster:
        assert cluster.is_running()


def test_the_data_of_a_running_server_is_not_used_by_a_second_one(new_cluster):
    cluster = new_cluster()
    with holder_of(cluster) as (_, pid), pytest.raises(Conflict, match=f"process {pid}"):
        cluster.start()


def test_another_process_can_stop_the_server(new_cluster):
    cluster = new_cluster()
    with holder_of(cluster) as (_, pid):
        cluster.stop()

        assert has_ended(pid, within_seconds=5)


def test_a_pid_file_with_the_pid_of_another_process_does_not_prevent_a_start(new_cluster):
    """After a power cut the file still exists, and its pid may belong to any process: here to this test."""
    cluster = new_cluster()
    with cluster:
        kept = (cluster.data / "postmaster.pid").read_text()
    stale = kept.replace(kept.split("\n", 1)[0], str(os.getpid()), 1)

    (cluster.data / "postmaster.pid").write_text(stale)
    (cluster.socket_folder / ".s.PGSQL.5432.lock").write_text(stale)
    assert not cluster.is_running()
    with cluster:
        assert cluster.is_running()


def test_an_interrupted_initialisation_is_started_over(new_cluster):
    cluster = new_cluster()
    initialise(cluster)
    cluster.data.rename(cluster.folder / "data.new")
    (cluster.folder / "data.new" / "global" / "pg_control").unlink()

    with cluster:
        assert cluster.is_running()


def test_a_start_that_fails_shows_the_end_of_the_log(new_cluster):
    cluster = new_cluster()
    initialise(cluster)
    (cluster.data / "postgresql.conf").write_text("no_such_setting = 1\n")

    with pytest.raises(Unavailable, match="no_such_setting"):
        cluster.start()


def test_a_cluster_is_started_from_the_main_thread_only(new_cluster):
    """The server gets the signal when the thread that started it ends, not the process."""
    raised: list[BaseException] = []

    def start() -> None:
        try:
            new_cluster().start()
        except RuntimeError as error:
            raised.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()

    assert "main thread" in str(raised)


def test_a_long_data_path_has_a_short_socket_path(new_cluster, tmp_path):
    deep = tmp_path / ("d" * 100) / ("e" * 100)

    with new_cluster(deep) as cluster:
        assert len(str(cluster.socket_folder)) <= MAX_SOCKET_FOLDER_LENGTH
        assert cluster.is_running()


def test_a_checkout_that_others_cannot_read_works_and_stays_unreadable(new_cluster, tmp_path, monkeypatch):
    checkout = tmp_path / "checkout"
    checkout.mkdir(mode=0o700)
    monkeypatch.chdir(checkout)

    with new_cluster(checkout / "data") as cluster:
        assert cluster.is_running()

    assert stat.S_IMODE(checkout.stat().st_mode) == 0o700


@as_root
def test_root_runs_the_server_as_another_user(new_cluster):
    with new_cluster() as cluster:
        owner = Path(f"/proc/{cluster.server_pid()}").stat().st_uid

        assert owner != 0
        assert stat.S_IMODE(cluster.socket_folder.stat().st_mode) == 0o700
        assert cluster.socket_folder.stat().st_uid == owner


@as_root
def test_a_normal_user_can_start_a_cluster():
    """In a folder of that user. The test forks, because only root may be able to read the files of the interpreter."""
    data_folder = Path("/tmp") / f"dagmaster-test-{os.getpid()}"
    data_folder.mkdir(mode=0o700)
    os.chown(data_folder, NOBODY, NOBODY)

    child = multiprocessing.get_context("fork").Process(target=start_unprivileged, args=(data_folder, a_name()))
    child.start()
    child.join(60)
    shutil.rmtree(data_folder)

    assert child.exitcode == 0


def start_unprivileged(data_folder: Path, name: str) -> None:
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    cluster = Cluster.at(data_folder, name, fast=True)
    try:
        cluster.start()
        assert str(cluster.socket_folder).startswith(f"/tmp/dagmaster-{NOBODY}-")
        assert cluster.folder == data_folder / "postgres"
        assert Path(f"/proc/{cluster.server_pid()}").stat().st_uid == NOBODY
    finally:
        cluster.remove()


def test_a_folder_that_others_can_enter_is_refused(new_cluster):
    """With `trust`, every process that reaches the socket is the superuser."""
    cluster = new_cluster()
    cluster.socket_folder.mkdir(mode=0o700)
    cluster.socket_folder.chmod(0o755)
    os.chown(cluster.socket_folder, cluster.user.pw_uid, cluster.user.pw_gid)

    with pytest.raises(Conflict, match="not a private folder"):
        cluster.start()


def test_a_missing_postgresql_is_reported_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(embedded, "_installed", lambda: iter([(13, Path("/old/bin"))]))

    with pytest.raises(NotFound, match="apt-get install postgresql-15-postgis-3"):
        embedded.find_binaries()


def test_data_is_served_by_the_version_of_postgresql_that_created_it(monkeypatch):
    monkeypatch.setattr(embedded, "_installed", lambda: iter([(15, Path("/15")), (17, Path("/17")), (16, Path("/16"))]))

    assert embedded.find_binaries() == Path("/17")
    assert embedded.find_binaries(15) == Path("/15")


# ---------------------------------------------------------------------------------------------------- builders


def a_name() -> str:
    # With the number at the end, a later run can remove what a killed run has left.
    return f"test-{next(_numbers)}-{os.getpid()}"


def write_mark(cluster: Cluster) -> None:
    with psycopg.connect(cluster.dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE mark AS SELECT 42 AS answer")


def has_mark(cluster: Cluster) -> bool:
    with psycopg.connect(cluster.dsn) as connection:
        return connection.execute("SELECT answer FROM mark").fetchone() == (42,)


class holder_of:  # noqa: N801  reads as a phrase
    """Another process that has started this cluster: (that process, the pid of the server)."""

    def __init__(self, cluster: Cluster) -> None:
        is_named = IS_ROOT
        folder = "" if is_named else str(cluster.folder.parent)
        name = cluster.folder.name if is_named else cluster.socket_folder.name.split("-", 2)[-1]
        self.process = subprocess.Popen([sys.executable, "-c", HOLD, folder, name], stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> tuple[subprocess.Popen[str], int]:
        assert self.process.stdout is not None
        return self.process, int(self.process.stdout.readline().split()[0])

    def __exit__(self, *_error: object) -> None:
        self.process.kill()
        self.process.communicate()


def has_ended(pid: int, within_seconds: float) -> bool:
    deadline = time.monotonic() + within_seconds
    while Path(f"/proc/{pid}/cwd").exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
