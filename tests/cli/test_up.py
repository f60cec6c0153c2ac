"""`dagmaster up` with real processes and real signals."""

import errno
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace

import psycopg
import pytest

from dagmaster.cli.main import describe_error
from dagmaster.errors import Conflict, DagmasterError, Unavailable
from dagmaster.listen import bind
from dagmaster.local import children
from dagmaster.local.children import ChildProcess
from dagmaster.local.discovery import hold
from dagmaster.local.embedded import Cluster
from dagmaster.local.platform import LocalPlatform, stopping_on_signals
from dagmaster.settings import Settings
from tests.cli.processes import Up, alive, call, eventually, start, up

pytestmark = pytest.mark.requirement("P1")

# A crash is detected sooner than with the defaults.
FAST_DETECTION = {
    "HEARTBEAT_INTERVAL_SEC": "0.3",
    "ORPHAN_THRESHOLD_SEC": "2",
    "ORPHAN_SCAN_INTERVAL_SEC": "0.3",
    "TASK_LEASE_SEC": "2",
    "LEASE_RENEW_SEC": "0.4",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A data folder for all tests of this file: each start but the first finds earlier data."""
    folder = tmp_path_factory.mktemp("up")
    yield folder
    Cluster.at(folder).remove()
    shutil.rmtree(folder)


def test_up_runs_jobs_and_leaves_nothing_running(folder):
    with up(folder, "--workers", "2", GATEWAY_ENABLED="true") as platform:
        everything = platform.pids()
        reported = {platform.facts["postgres_pid"], *(child["pid"] for child in platform.facts["children"])}
        done = call("submit", "hello_world", "-p", "name=Ada", "--wait", "--json", "--data", str(folder))
        published = folder / "platform.json"
        mode = stat.S_IMODE(published.stat().st_mode)
        code, _, err = platform.end(signal.SIGINT)

    assert len(platform.facts["children"]) == 4
    assert reported <= everything
    assert json.loads(done.stdout)["result"] == {"message": "Hello, Ada!"}
    assert mode == 0o600
    assert err == ""
    assert code == 0
    assert not alive(everything)
    assert not published.exists()


def test_a_second_up_on_the_same_data_is_refused_and_earlier_jobs_are_listed(folder):
    with up(folder) as platform:
        second = call("up", "--json", "--data", str(folder))
        jobs = call("jobs", "ls", "--json", "--data", str(folder))
        platform.end()

    assert second.returncode == 4
    assert json.loads(second.stderr)["error"]["facts"]["pid"] == platform.pid
    assert [job["status"] for job in json.loads(jobs.stdout)["jobs"]] == ["completed"]


def test_kill_9_leaves_nothing_running_and_the_next_start_finishes_the_job(folder, sleepy_process):
    with up(folder) as platform:
        job_id = call("submit", str(sleepy_process), "-p", "seconds=1.5", "--data", str(folder)).stdout.strip()
        # The child process of the handler must exist, so that its end can be checked.
        eventually(lambda: _has_rows(platform, "SELECT FROM dagapp.dag_tasks WHERE status = 'running'"))
        everything = platform.pids()
        os.kill(platform.pid, signal.SIGKILL)
        eventually(lambda: not alive(everything))
        after = call("jobs", "ls", "--data", str(folder))

    with up(folder, **FAST_DETECTION) as platform:
        worker = next(child["pid"] for child in platform.facts["children"] if child["role"] == "worker")
        os.kill(worker, signal.SIGKILL)
        eventually(lambda: not _has_rows(platform, "SELECT FROM dagapp.dag_jobs WHERE status = 'running'"), 30)
        shown = call("jobs", "show", job_id, "--json", "--data", str(folder))
        history = call("verify-history", "--all", "--json", "--data", str(folder))
        _, _, err = platform.end()

    assert len(everything) > 4
    assert after.returncode == 5
    assert "no platform is running" in after.stderr
    assert f"worker 1 (process {worker}) was ended by SIGKILL; restarting in" in err
    assert json.loads(shown.stdout)["job"]["status"] == "completed"
    assert json.loads(history.stdout)["findings"] == []


def test_ctrl_c_while_starting_stops_all_started_processes(folder):
    process = start("up", "--data", str(folder))
    server = eventually(lambda: Cluster.at(folder).server_pid())

    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)

    assert process.returncode == 0
    assert out.index("stopping …") < out.index("everything stopped")
    assert not alive({server})


class TestStopSignals:
    @pytest.fixture
    def local(self, tmp_path):
        return LocalPlatform(Settings(), tmp_path, "", print)

    def test_an_interrupt_that_a_library_swallows_is_detected_by_the_supervisor(self, local):
        with stopping_on_signals(local):
            with suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            local.supervise()
            pytest.fail("the supervisor continues")

        assert local.is_interrupted

    def test_a_process_that_is_being_started_is_recorded_before_a_signal_is_handled(self, local, monkeypatch):
        """The signal arrives between the fork and the assignment of the process."""
        child = ChildProcess("worker", 1, {})

        def interrupted_start(_command, **options):
            command, as_given = ["/bin/sh", "-c", "kill -TERM $$; sleep 60"], options["preexec_fn"]
            process = subprocess.Popen(command, preexec_fn=as_given)  # noqa: PLW1509
            signal.raise_signal(signal.SIGTERM)
            return process

        monkeypatch.setattr(
            children, "subprocess", SimpleNamespace(Popen=interrupted_start, DEVNULL=subprocess.DEVNULL)
        )
        with stopping_on_signals(local):
            child.start()
            pytest.fail("the signal was lost")

        assert local.is_interrupted
        assert child.pid
        assert child._process.wait(10) == -signal.SIGTERM  # the child does not inherit the blocked signals


@pytest.fixture
def untouched(tmp_path: Path) -> Iterator[Path]:
    """A data folder in which nothing may be created."""
    folder = tmp_path / "untouched"
    yield folder
    cluster = Cluster.at(folder)
    is_left = cluster.folder.exists()
    cluster.remove()
    assert not is_left


def test_a_port_in_use_is_reported_before_anything_is_created(untouched):
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        result = call("up", "--data", str(untouched), API_PORT=str(port))

    assert result.returncode == 5
    assert result.stderr == (
        f"error: port {port} of 127.0.0.1 is already in use\n"
        "hint: choose another port with API_PORT=… (0 takes a free one)\n"
    )


@pytest.mark.parametrize("endpoint", ["API", "HEALTH"])
def test_an_address_open_to_all_is_reported_before_anything_is_created(untouched, endpoint):
    result = call("up", "--data", str(untouched), **{f"{endpoint}_HOST": "0.0.0.0"})

    assert result.returncode == 2
    assert f"set {endpoint}_HOST=127.0.0.1, or {endpoint}_INSECURE=true" in result.stderr
    assert "restart" not in result.stderr


def test_a_default_port_in_use_is_replaced_by_a_free_one(tmp_path):
    local = LocalPlatform(Settings(), tmp_path, "", print)

    with ExitStack() as held:
        with suppress(Conflict):  # another process uses port 8000
            held.enter_context(bind("127.0.0.1", 8000))
        port = held.enter_context(local._api_socket()).getsockname()[1]
        with pytest.raises(Conflict):  # reserved until an orchestrator binds it
            bind("127.0.0.1", port)

    assert port not in {0, 8000}


class LateDatabase:
    """A database that takes a long time to start, and then fails."""

    def __init__(self, meanwhile):
        self._meanwhile = meanwhile

    def launch(self, meanwhile):
        meanwhile()
        self._meanwhile()
        raise Unavailable("no database", code="cluster.start")

    def stop(self):
        pass


def test_roles_are_loaded_while_the_database_starts_and_do_not_connect_before_it_is_ready(tmp_path, capfd):
    settings = Settings(DAGMASTER_DATA=str(tmp_path), API_PORT="0", SERVING_ENABLED="false", HEALTH_ENABLED="false")
    local = LocalPlatform(settings, tmp_path, "postgresql://postgres@127.0.0.1:1/none", str, log_level="info")
    local.cluster = LateDatabase(lambda: eventually(lambda: all(_is_waiting(child.pid) for child in local.children)))

    with pytest.raises(Unavailable, match="no database"), local.running():
        pass

    assert [child.role for child in local.children] == ["orchestrator", "worker"]
    assert not alive({child.pid for child in local.children})
    assert "waiting for the database" not in "".join(capfd.readouterr())


def _is_waiting(pid: int) -> bool:
    """Whether a process waits for a pipe, after it has loaded all its modules."""
    return Path(f"/proc/{pid}/wchan").read_text() in {"pipe_read", "anon_pipe_read"}


@pytest.mark.parametrize("role", ["orchestrator", "worker"])
def test_a_role_that_waits_for_its_parent_ends_with_it(role):
    inside, outside = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "dagmaster", role, f"--hold={inside}"],
        pass_fds=[inside],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "DATABASE_URL": "postgresql://postgres@127.0.0.1:1/none", "API_ENABLED": "false"},
    )
    os.close(inside)

    os.close(outside)
    try:
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()

    assert process.returncode == 5
    assert "the process that started this one has ended" in err


@pytest.mark.parametrize("code", [2, 3])
def test_a_child_with_a_configuration_error_is_not_restarted(code):
    lines: list[str] = []
    child = ChildProcess("worker", 1, {})
    child._process = subprocess.Popen([sys.executable, "-c", f"raise SystemExit({code})"])
    child._process.wait()

    child.supervise(lines.append)
    child.supervise(lines.append)

    assert child.is_given_up
    assert len(lines) == 1
    assert f"ended with exit code {code}; it is not restarted" in lines[0]


def test_a_platform_ends_at_once_if_a_child_has_a_configuration_error(folder):
    result = call("up", "--data", str(folder), CRASH_POINT="nowhere")

    assert result.returncode == 5
    assert "CRASH_POINT: " in result.stderr
    assert "does not start" in result.stderr
    assert "restarting" not in result.stderr


def test_a_folder_that_cannot_be_used_is_refused(tmp_path):
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/platform.lock").symlink_to(tmp_path / "elsewhere")
    folders = {
        "/proc/nothing": "No such file or directory",
        str(tmp_path / "linked"): "platform.lock is a symbolic link",
        str(tmp_path / ("long" * 100)): "File name too long",
    }

    refused = {folder: call("up", "--data", folder) for folder in folders}

    for folder, result in refused.items():
        assert result.returncode == 2
        assert f"cannot be used: {folders[folder]}\nhint: choose another one with --data\n" in result.stderr
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("number", "code"), [(errno.EACCES, 3), (errno.EROFS, 3), (errno.ENOSPC, 5), (errno.ENAMETOOLONG, 2)]
)
def test_the_exit_code_depends_on_the_system_error_of_the_data_folder(tmp_path, monkeypatch, number, code):
    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("dagmaster.local.discovery.os.open", refuse)

    with pytest.raises(DagmasterError) as raised, hold(tmp_path):
        pass

    assert describe_error(raised.value)[0] == code


def test_a_second_signal_skips_the_grace_period(folder, sleepy_process):
    """The platform has a running handler and a long grace period."""
    with up(folder, SHUTDOWN_GRACE_SEC="60") as platform:
        call("submit", str(sleepy_process), "-p", "seconds=60", "--data", str(folder))
        eventually(lambda: _has_rows(platform, "SELECT FROM dagapp.dag_tasks WHERE status = 'running'"))
        everything = platform.pids()
        started = time.monotonic()
        platform.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        code, _, err = platform.end(signal.SIGTERM)

    assert code == 0
    assert time.monotonic() - started < 15
    assert "had to be killed" in err
    assert not alive(everything)


def _has_rows(platform: Up, sql: str) -> bool:
    """Whether a query returns rows."""
    with psycopg.connect(platform.facts["database_url"]) as connection:
        return connection.execute(sql).rowcount > 0


def test_a_process_that_fails_again_and_again_is_restarted_every_15_seconds():
    child = ChildProcess("worker", 1, {}, failures=5000)
    child._started_at = time.monotonic()

    child._schedule_restart(1, lambda _text: None)

    assert child._start_at == pytest.approx(time.monotonic() + 15, abs=1)
