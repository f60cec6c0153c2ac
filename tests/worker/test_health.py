"""A worker's health: reported while handlers run, while the loop hangs and while the database is unavailable."""

import asyncio
import http.client
import json
import re
import socket
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from worker_fakes import Bench, a_registry, a_task, until, working

from dagmaster.errors import Conflict, InvalidRequest
from dagmaster.handlers.registry import Registration
from dagmaster.listen import HEALTH, bind, bind_or_any
from dagmaster.observe.probes import Probes
from dagmaster.worker.health import WorkerHealth
from dagmaster.worker.process_pool import Pool

pytestmark = pytest.mark.requirement("H4")

HANG_SECONDS = 0.3


def send(url: str, path: str, host: str = "localhost", method: str = "GET") -> tuple[int, Any]:
    """Send a request from a thread, with a client that does not use the event loop."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=5)
    connection.request(method, path, headers={"Host": host})
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, json.loads(text) if text.startswith("{") else text


@asynccontextmanager
async def probed(bench: Bench, **more: Any) -> AsyncIterator[Probes]:
    subject = WorkerHealth(bench.worker, bench.settings)
    with Probes(bind("127.0.0.1", 0), subject, stuck_after_seconds=HANG_SECONDS, **more) as probes:
        yield probes


async def get(probes: Probes, path: str, **more: Any) -> tuple[int, Any]:
    return await asyncio.to_thread(send, probes.url, path, **more)


async def test_running_tasks_are_reported_with_their_process() -> None:
    light, heavy = a_task("sleep", "light", seconds=60), a_task("sleep_blocking", "heavy", seconds=60)
    async with working(light, heavy) as bench, probed(bench) as probes:
        await until(lambda: any(child["task_id"] for child in bench.worker.children))
        status, health = await get(probes, "/health")

    running = {task["task_id"]: task for task in health["running"]}
    assert status == 200
    assert (health["is_alive"], health["is_ready"]) == (True, True)
    assert running.keys() == {light.task_id, heavy.task_id}
    assert running[light.task_id]["handler"] == "sleep"
    assert 0 <= running[light.task_id]["seconds"] < 10
    assert [child["task_id"] for child in health["children"]] == [heavy.task_id]
    assert health["queues"] == list(bench.settings.worker_queue)
    assert "sleep" in health["handlers"]
    assert set(health["versions"]) == {"dagmaster", "python"}
    assert health["last_exchange_seconds"] < 10
    assert health["last_renewal_seconds"] < 10


_released = threading.Event()


async def hangs(_ctx: Any) -> None:
    """Block the loop, which an async handler must not do."""
    assert _released.wait(15)


async def test_a_hanging_loop_is_not_alive_and_its_task_is_reported() -> None:
    responses: dict[str, tuple[int, Any]] = {}

    def probe_until_hanging(url: str) -> None:
        try:
            while (response := send(url, "/livez"))[0] != 503:
                time.sleep(0.02)
            responses.update(livez=response, readyz=send(url, "/readyz"), health=send(url, "/health"))
        finally:
            _released.set()

    registry = a_registry(Registration("hangs", f"{__name__}:hangs"))
    async with working(task := a_task("hangs"), registry=registry) as bench, probed(bench) as probes:
        watcher = threading.Thread(target=probe_until_hanging, args=(probes.url,))
        watcher.start()
        await bench.report_of(task)
        await asyncio.to_thread(watcher.join)
        after = await get(probes, "/livez")

    status, health = responses["livez"]
    assert status == 503
    assert not health["is_alive"]
    assert health["checks"][0]["name"] == "event loop"
    assert responses["readyz"][0] == 503
    assert [running["handler"] for running in responses["health"][1]["running"]] == ["hangs"]
    assert after[0] == 200


async def test_a_worker_without_a_database_is_alive_but_not_ready() -> None:
    async with working() as bench, probed(bench) as probes:
        await until(lambda: bench.worker.renewed_at is not None)
        before = await get(probes, "/readyz")
        bench.ledger.is_down = True

        async def is_unready() -> bool:
            return (await get(probes, "/readyz"))[0] == 503

        async with asyncio.timeout(10):
            while not await is_unready():
                await asyncio.sleep(0.01)
        not_ready, alive = await get(probes, "/readyz"), await get(probes, "/livez")
        bench.ledger.is_down = False
        async with asyncio.timeout(10):
            while await is_unready():
                await asyncio.sleep(0.01)

    assert before[0] == 200
    assert [check["name"] for check in not_ready[1]["checks"] if not check["is_ok"]] == ["database"]
    assert alive[0] == 200


async def test_a_worker_that_stops_is_not_ready() -> None:
    async with working(task := a_task("sleep", seconds=60)) as bench, probed(bench) as probes:
        await bench.is_running(task)
        bench.worker.stop(grace_seconds=1)
        status, health = await get(probes, "/readyz")

    assert status == 503
    assert [check["name"] for check in health["checks"] if not check["is_ok"]] == ["claiming"]


async def test_metrics_are_in_the_format_of_prometheus() -> None:
    async with working(task := a_task("echo"), a_task("sleep", "long", seconds=60)) as bench, probed(bench) as probes:
        await bench.report_of(task)
        status, text = await get(probes, "/metrics")

    samples = dict(re.findall(r"^(\w+(?:\{[^}]*\})?) ([0-9.e+-]+)$", text, re.MULTILINE))
    helped = set(re.findall(r"^# HELP (\w+) \S", text, re.MULTILINE))
    typed = dict(re.findall(r"^# TYPE (\w+) (counter|gauge|histogram)$", text, re.MULTILINE))
    assert status == 200
    assert samples['dagmaster_worker_tasks_total{outcome="succeeded"}'] == "1.0"
    assert samples["dagmaster_worker_claimed_total"] == "2.0"
    assert samples["dagmaster_worker_running"] == "1.0"
    assert samples['dagmaster_worker_task_duration_seconds_count{handler="echo",outcome="succeeded"}'] == "1.0"
    assert samples['dagmaster_worker_slots{kind="plain"}'] == "2.0"
    names = {re.sub("_(bucket|count|sum)$", "", name.partition("{")[0]) for name in samples}
    assert helped == set(typed) == names
    assert all(kind == "counter" for name, kind in typed.items() if name.endswith("_total"))


async def test_the_metric_of_plain_slots_has_the_slots_of_the_executor() -> None:
    class Cluster(Pool):
        slots: int | None = 7

    bench = Bench(executor=Cluster(memory_mb=100))
    slots = {sample.labels["kind"]: sample.value for sample in _samples(bench, "dagmaster_worker_slots")}

    assert slots == {"async": bench.settings.worker_slots, "plain": 7}


def _samples(bench: Bench, name: str) -> list[Any]:
    metrics = WorkerHealth(bench.worker, bench.settings).metrics()
    return [sample for metric in metrics for sample in metric.samples if sample.name == name]


async def test_requests_for_other_hosts_are_refused_unless_allowed() -> None:
    async with working() as bench:
        async with probed(bench) as probes:
            foreign = await get(probes, "/health", host="evil.example")
            unknown = await get(probes, "/api/v1/jobs")
            head = await get(probes, "/livez", method="HEAD")
        async with probed(bench, is_open_to_all=True) as probes:
            known = await get(probes, "/livez", host="worker-7.example")

    assert (foreign[0], unknown[0], head, known[0]) == (403, 404, (200, ""), 200)


async def test_slow_clients_do_not_block_others() -> None:
    async with working() as bench, probed(bench) as probes:
        host, _, port = probes.url.removeprefix("http://").partition(":")
        slow = [socket.create_connection((host, int(port))) for _ in range(5)]
        started = time.monotonic()
        status, _ = await get(probes, "/livez")
        for connection in slow:
            connection.close()

    assert status == 200
    assert time.monotonic() - started < 3


async def test_the_port_is_released() -> None:
    async with working() as bench:
        async with probed(bench) as probes:
            port = int(probes.url.rpartition(":")[2])
        with bind("127.0.0.1", port, endpoint=HEALTH) as taken:
            assert taken.getsockname()[1] == port


def test_another_port_is_used_if_it_is_taken_and_public_addresses_are_refused() -> None:
    with bind("127.0.0.1", 0, endpoint=HEALTH) as first:
        port = first.getsockname()[1]
        with pytest.raises(Conflict) as taken:
            bind("127.0.0.1", port, endpoint=HEALTH)
        with bind_or_any("127.0.0.1", port, endpoint=HEALTH) as second:
            other = second.getsockname()[1]
    with pytest.raises(InvalidRequest) as refused:
        bind_or_any("0.0.0.0", 0, endpoint=HEALTH)

    assert other != port
    assert taken.value.code == "health.port-taken"
    assert refused.value.code == "health.not-loopback"
    assert "HEALTH_INSECURE" in (refused.value.hint or "")


async def test_probes_that_end_before_their_thread_starts_release_the_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread may start late on a busy machine. An exception in it would fail the test."""
    began = threading.Event()
    serve = Probes._serve

    def late(probes: Probes) -> None:
        began.set()
        probes._stopped.wait()
        serve(probes)

    monkeypatch.setattr(Probes, "_serve", late)
    async with working() as bench:
        port = bind("127.0.0.1", 0)
        number = port.getsockname()[1]
        with Probes(port, WorkerHealth(bench.worker, bench.settings), stuck_after_seconds=HANG_SECONDS):
            assert began.wait(5)
        bind("127.0.0.1", number).close()
