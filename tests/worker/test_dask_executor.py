"""Plain handlers on a Dask cluster of real processes: losses of workers and schedulers, versions, encryption."""

import asyncio
import pickle
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Client
from test_executors import Harness
from test_process_pool import is_alive, note
from tests.dask_cluster import DaskCluster
from worker_fakes import Bench, a_task, until

from dagmaster.doctor import findings, machine
from dagmaster.jobs.states import TaskStatus
from dagmaster.settings import Settings
from dagmaster.worker import frames
from dagmaster.worker.executors import dask, dask_agent
from dagmaster.worker.executors.dask import ClusterAddress, DaskExecutor, cluster_of

pytestmark = pytest.mark.requirement("H1")


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., DaskCluster]]:
    clusters: list[DaskCluster] = []

    def start(workers: int = 1, **options: Any) -> DaskCluster:
        cluster = DaskCluster(tmp_path_factory.mktemp("dask"), **options)
        clusters.append(cluster)
        cluster.start_scheduler()
        cluster.start_workers(workers)
        return cluster

    yield start
    for cluster in clusters:
        cluster.stop()


@pytest.fixture(scope="module")
def shared(start: Callable[..., DaskCluster]) -> DaskCluster:
    """A cluster for tests that do not change it."""
    return start()


@asynccontextmanager
async def connected(cluster: DaskCluster, slots: int = 0, expected: int = 1, **options: Any) -> AsyncIterator[Harness]:
    options = {"memory_mb": 2048, "cancel_grace_seconds": 0.3, "silence_seconds": 10} | options
    executor = DaskExecutor(ClusterAddress(cluster.address, slots), **options)
    await executor.start()
    try:
        await until(lambda: executor.slots >= expected, 30)
        yield Harness(executor)
    finally:
        await executor.close()


async def test_the_time_in_which_a_task_waits_for_a_slot_is_not_reported_as_running(
    shared: DaskCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask, "SHORT_WAIT_SECONDS", 0.05)
    async with connected(shared, slots=10) as harness:
        await harness.run(a_task("sleep_blocking", "warm", seconds=0))
        long = [a_task("sleep_blocking", f"long-{number}", seconds=5) for number in range(2)]
        running = [asyncio.create_task(harness.run(task)) for task in long]
        await until(lambda: len(harness.executor.children) == 2)
        context = harness.context(late := a_task("sleep_blocking", "late", seconds=0.2))
        waiting = asyncio.create_task(harness.run(late, context))
        await until(lambda: context.has_updates)

        assert [context.running().run_seconds for _ in range(2)] == [0.0, 0.0]
        assert context.has_updates  # every renewal of the leases reports it

        await asyncio.gather(*running, waiting)

    seconds = context.running().run_seconds
    assert seconds is not None
    assert 0.2 <= seconds < 10
    assert not context.has_updates


class GrowingConnection:
    """The cluster gets and loses Dask workers until the connection is lost."""

    usable: dict[str, int] = {}
    refuses_all = False
    threads = 0

    async def watch(self, on_update: Callable[[], None]) -> None:
        for threads in (0, 2, 2, 1, 4):
            self.threads = threads
            on_update()


async def test_the_worker_claims_when_the_cluster_has_more_slots_and_after_a_reconnection() -> None:
    slots: list[int] = []
    executor = DaskExecutor(ClusterAddress("tcp://nowhere:1"), memory_mb=1, cancel_grace_seconds=1)
    executor._on_more_slots = lambda: slots.append(executor.slots)

    for _ in range(2):
        await executor._use(GrowingConnection())  # type: ignore[arg-type]

    assert slots == [2, 4] * 2


class LocalComm:
    """One end of a connection in this process. Like a Comm of Dask, it does not limit the messages in flight."""

    def __init__(self, incoming: "asyncio.Queue[Any]", outgoing: "asyncio.Queue[Any]") -> None:
        self._incoming, self._outgoing = incoming, outgoing

    async def read(self) -> Any:
        return await self._incoming.get()

    async def write(self, message: Any) -> None:
        self._outgoing.put_nowait(message)

    async def close(self) -> None: ...

    def abort(self) -> None: ...


class FastChild:
    """A child that sends frames as fast as they are read."""

    pid, peak_mb, tasks_run, resident_mb = 1, None, 0, 0.0
    process = SimpleNamespace(returncode=None)

    def __init__(self) -> None:
        self.sent = 0

    async def receive_packed(self) -> frames.Packed:
        await asyncio.sleep(0)
        self.sent += 1
        frame = {"kind": "log", "number": self.sent}
        return frames.Packed(frames.body_of(frame), frame, bytearray(100_000))

    async def take(self) -> "FastChild":  # the same object plays the pool
        return self

    def sample_peak(self) -> None: ...

    async def kill(self) -> None: ...


async def test_a_child_waits_if_it_sends_faster_than_its_frames_are_received() -> None:
    worker_end, child_end = asyncio.Queue[Any](), asyncio.Queue[Any]()
    child = FastChild()
    relay = asyncio.create_task(dask_agent.FrameRelay(LocalComm(child_end, worker_end), child, 10).run())
    comm = LocalComm(worker_end, child_end)
    remote = dask.RemoteChild(comm, "tcp://there", await comm.read(), SimpleNamespace(release=lambda: None), 10)

    for _ in range(200):
        await asyncio.sleep(0)
    sent_before = child.sent
    taken = [(await remote.receive())[0]["number"] for _ in range(500)]
    await remote.end(is_clean=False, memory_mb=0)
    await asyncio.wait_for(relay, 5)

    assert sent_before <= dask_agent.WINDOW_BYTES // 100_000 + 1
    assert taken == list(range(1, 501))
    assert child.sent - len(taken) <= dask_agent.WINDOW_BYTES // 100_000 + 1


async def test_only_the_tasks_of_a_killed_dask_worker_are_lost(
    start: Callable[..., DaskCluster], tmp_path: Path
) -> None:
    cluster = start(workers=2)
    async with connected(cluster, expected=4) as harness:
        tasks = [a_task("daemonize", f"node-{number}", note=str(tmp_path / f"{number}")) for number in range(4)]
        running = [asyncio.create_task(harness.run(task)) for task in tasks]
        pids = [await note(tmp_path / f"{number}") for number in range(4)]

        cluster.workers[0].kill()

        await until(lambda: sum(run.done() for run in running) == 2)
        for run, processes in zip(running, pids, strict=True):
            if run.done():
                error = run.result().error
                assert error is not None
                assert (error["code"], error["blame"]) == ("worker.cluster-lost", "environment")
                await until(lambda processes=processes: not any(map(is_alive, processes)))
            else:
                assert all(map(is_alive, processes)), "the tasks of the other Dask worker continue"
                run.cancel()
        await asyncio.wait(running)
        assert (await harness.run(a_task("pid"))).status is TaskStatus.SUCCEEDED


async def test_tasks_are_lost_with_a_killed_scheduler_and_the_worker_reconnects(
    start: Callable[..., DaskCluster], tmp_path: Path
) -> None:
    """The worker's loop reports the loss, claims nothing without a scheduler, and continues with the new one."""
    cluster = start()
    lost, later = a_task("spawn", "lost", note=str(tmp_path / "note")), a_task("pid", "later")
    executor = DaskExecutor(ClusterAddress(cluster.address), memory_mb=2048, silence_seconds=10)
    bench = Bench([lost], executor=executor)
    running = asyncio.create_task(bench.worker.run())
    pids = await note(tmp_path / "note")
    assert cluster.scheduler is not None

    cluster.scheduler.kill()
    cluster.scheduler.wait()

    report = await bench.report_of(lost, 20)
    assert report.error is not None
    assert (report.error["code"], report.error["blame"]) == ("worker.cluster-lost", "environment")
    await until(lambda: not any(map(is_alive, pids)))
    await until(lambda: executor.slots == 0)
    assert executor.details()["cluster"]["problem"]
    bench.add(later)
    await asyncio.sleep(0.3)
    assert later in bench.ledger.queued, "the task is left to other workers"

    cluster.start_scheduler()
    cluster.start_workers(1)

    assert (await bench.report_of(later, 40)).status is TaskStatus.SUCCEEDED
    bench.worker.stop(grace_seconds=0)
    await running


async def test_a_task_that_waits_for_a_slot_can_be_stopped(shared: DaskCluster, tmp_path: Path) -> None:
    async with connected(shared, slots=10) as harness:
        busy = [asyncio.create_task(harness.run(a_task("spawn", note=str(tmp_path / f"{n}")))) for n in range(2)]
        for number in range(2):
            await note(tmp_path / f"{number}")
        stopped = a_task("pid", "stopped")
        context = harness.context(stopped)
        waiting = [asyncio.create_task(harness.run(a_task("pid"))), asyncio.create_task(harness.run(stopped, context))]
        await asyncio.sleep(0.3)
        assert not any(run.done() for run in waiting)

        context.cancel()
        assert (await waiting[1]).status is TaskStatus.RETURNED
        for run in busy:
            run.cancel()

        assert (await waiting[0]).status is TaskStatus.SUCCEEDED
        await asyncio.wait(busy)


async def test_a_dask_worker_that_is_silent_is_lost(start: Callable[..., DaskCluster], tmp_path: Path) -> None:
    cluster = start()
    async with connected(cluster, silence_seconds=3) as harness:
        running = asyncio.create_task(harness.run(a_task("spawn", note=str(tmp_path / "note"))))
        pids = await note(tmp_path / "note")

        cluster.workers[0].send_signal(signal.SIGSTOP)

        outcome = await asyncio.wait_for(running, 30)
        assert outcome.error is not None
        assert outcome.error["code"] == "worker.cluster-lost"
        cluster.workers[0].send_signal(signal.SIGCONT)
        await until(lambda: not any(map(is_alive, pids)))


PLATFORM_WORKER = """
import asyncio, sys
sys.path[:0] = [{folder!r}, {root!r}]
from test_dask_executor import ClusterAddress, DaskExecutor, Harness, a_task, until

async def main():
    executor = DaskExecutor(ClusterAddress({address!r}), memory_mb=2048, silence_seconds=2)
    await executor.start()
    await until(lambda: executor.slots, 30)
    await Harness(executor).run(a_task("daemonize", note={note!r}))

asyncio.run(main())
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_no_child_outlives_a_platform_worker_that_is_killed_or_silent(
    shared: DaskCluster, tmp_path: Path, how: signal.Signals
) -> None:
    """When the lease has expired without a renewal, another worker may claim the task."""
    script = PLATFORM_WORKER.format(
        folder=str(Path(__file__).parent),
        root=str(Path(__file__).parents[2]),
        address=shared.address,
        note=str(tmp_path / "note"),
    )
    worker = subprocess.Popen([sys.executable, "-c", script])
    try:
        async with asyncio.timeout(40):
            while not (tmp_path / "note").exists():
                await asyncio.sleep(0.05)
        pids = await note(tmp_path / "note")

        worker.send_signal(how)

        await until(lambda: not any(map(is_alive, pids)), 10)
    finally:
        worker.kill()
        worker.wait()


async def test_a_dask_worker_with_another_version_runs_no_task(
    shared: DaskCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = dask_agent.versions()
    monkeypatch.setattr(dask_agent, "versions", lambda: versions | {"dagmaster": "999.0"})
    executor = DaskExecutor(ClusterAddress(shared.address, slots=5), memory_mb=2048)
    await executor.start()
    try:
        await until(lambda: executor.details()["cluster"]["refused_dask_workers"] != {}, 30)

        (problem,) = executor.details()["cluster"]["refused_dask_workers"].values()
        assert f"it has dagmaster {versions['dagmaster']}" in problem
        assert "this worker has dagmaster 999.0" in problem
        assert executor.slots == 0
    finally:
        await executor.close()


async def test_a_dask_worker_without_the_package_is_not_used(start: Callable[..., DaskCluster], tmp_path: Path) -> None:
    cluster = start()
    without = tmp_path / "without.py"
    without.write_text("import sys\nsys.modules['dagmaster'] = None\n")
    cluster.start_workers(1, "--preload", str(without), threads=7)
    async with connected(cluster, expected=2) as harness:
        await until(lambda: harness.executor.details()["cluster"]["refused_dask_workers"] != {}, 30)

        outcomes = await asyncio.gather(*(harness.run(a_task("pid", f"n{number}")) for number in range(4)))

        assert {outcome.status for outcome in outcomes} == {TaskStatus.SUCCEEDED}
        assert harness.executor.slots == 2
        (problem,) = harness.executor.details()["cluster"]["refused_dask_workers"].values()
        assert "the package dagmaster is not installed there" in problem


@pytest.mark.requirement("X3")
async def test_params_and_results_do_not_pass_through_the_scheduler(shared: DaskCluster, tmp_path: Path) -> None:
    def known(dask_scheduler: Any) -> bytes:
        tasks = {key: (task.run_spec, task.annotations) for key, task in dask_scheduler.tasks.items()}
        events = {topic: list(dask_scheduler.get_events(topic)) for topic in dask_scheduler._broker._topics}
        return pickle.dumps((tasks, events))

    async with connected(shared) as harness, Client(shared.address, asynchronous=True, set_as_default=False) as client:
        task = a_task("poll_flags", note=str(tmp_path / "canary-5f1c"))
        context = harness.context(task)
        running = asyncio.create_task(harness.run(task, context))
        await until(lambda: context.running().progress)

        state = await client.run_on_scheduler(known)

        context.cancel()
        await running
        assert b"poll_flags-" in state
        assert b"canary-5f1c" not in state


@pytest.mark.requirement("X3")
async def test_the_connection_is_encrypted_and_both_sides_show_a_certificate(
    start: Callable[..., DaskCluster], tmp_path: Path
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test"
    subprocess.run([*command.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True)
    tls = ("--tls-ca-file", str(certificate), "--tls-cert", str(certificate), "--tls-key", str(key))
    cluster = start(protocol="tls", tls=tls)
    settings = Settings(
        worker_executor="dask",
        dask_scheduler_address=cluster.address,
        dask_tls_ca=certificate,
        dask_tls_cert=certificate,
        dask_tls_key=key,
    )
    executor = DaskExecutor(cluster_of(settings), memory_mb=2048)
    unencrypted = DaskExecutor(ClusterAddress(cluster.address.replace("tls", "tcp")), memory_mb=2048)
    await executor.start()
    await unencrypted.start()
    try:
        await until(lambda: executor.slots == 2, 30)
        assert (await Harness(executor).run(a_task("pid"))).status is TaskStatus.SUCCEEDED
        await until(lambda: unencrypted.details()["cluster"]["problem"] != "not connected yet", 30)
        assert unencrypted.slots == 0
    finally:
        await executor.close()
        await unencrypted.close()


async def test_the_password_of_the_database_is_not_sent_unencrypted(shared: DaskCluster) -> None:
    async with connected(shared) as harness:
        outcome = await harness.run(a_task("connects"))

    assert outcome.error is not None
    assert outcome.error["code"] == "worker.no-database"
    assert "not encrypted" in outcome.error["message"]


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({}, "requires DASK_SCHEDULER_ADDRESS"),
        ({"dask_scheduler_address": "tcp://10.0.0.7:8786"}, "unless DASK_INSECURE=true"),
        ({"dask_scheduler_address": "tls://10.0.0.7:8786"}, "requires DASK_TLS_CA"),
        ({"dask_scheduler_address": "http://10.0.0.7:8786"}, "must be tls://HOST:PORT"),
        ({"dask_scheduler_address": "tcp://10.0.0.7"}, "must be tls://HOST:PORT"),
    ],
)
def test_invalid_settings_of_dask_are_refused(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Settings(worker_executor="dask", **values)


def doctor_on(address: str) -> list[tuple[str, str]]:
    settings = Settings(worker_executor="dask", dask_scheduler_address=address)
    judgements = findings.run({"dask": machine.check_dask_cluster}, machine.Target(settings))["dask"]
    return [(judgement.level.value, judgement.observation) for judgement in judgements]


async def test_the_doctor_shows_the_workers_and_slots_of_a_cluster(shared: DaskCluster) -> None:
    async with connected(shared, expected=2):  # the Dask worker has registered
        ((level, text),) = await asyncio.to_thread(doctor_on, shared.address)

    assert (level, text) == ("ok", f"{shared.address} responds, 1 Dask worker with 2 slots")


async def test_the_doctor_lists_the_dask_workers_that_cannot_be_used(
    shared: DaskCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask, "problem_of", lambda _answer: "it has dagmaster 0.0.1")
    other = {"client": "1.0", "scheduler": "2.0"}
    monkeypatch.setattr(Client, "get_versions", lambda _client: _versions(other))

    refused, older, none = await asyncio.to_thread(doctor_on, shared.address)

    assert refused[0] == none[0] == "problem"
    assert "cannot run tasks: it has dagmaster 0.0.1" in refused[1]
    assert older == ("warning", f"{shared.address}: the scheduler has distributed 2.0, and this machine has 1.0")
    assert none[1] == f"{shared.address} has no Dask worker that can run tasks"


async def _versions(parts: dict[str, str]) -> dict[str, Any]:
    return {name: {"packages": {"distributed": version}} for name, version in parts.items()} | {"workers": {}}


def test_the_doctor_reports_that_no_scheduler_responds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask, "CONNECT_SECONDS", 1.0)

    ((level, text),) = doctor_on("tcp://127.0.0.1:9")

    assert level == "problem"
    assert text.startswith("tcp://127.0.0.1:9: ")
