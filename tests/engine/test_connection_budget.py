"""Each role opens no more connections than its budget, and the documented budgets are those of the code."""

import asyncio
import re
from collections import Counter, deque
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from dagmaster.client.limits import PREFIX
from dagmaster.database import budget
from tests.database.tcp_server import free_port
from tests.engine.processes import Fleet, fleet

pytestmark = [pytest.mark.requirement("M2"), pytest.mark.alone]
ROOT = Path(__file__).parents[2]
PROCESSES = 2
SAMPLES = 5
WORK = """
    workflow_id: work
    nodes:
      start: {type: start, next: spread}
      spread: {type: fan_out, source: [1, 2, 3, 4, 5, 6], task: {handler: sleep, params: {seconds: 0.05}}, next: gather}
      gather: {type: fan_in, next: end}
      end: {type: end}
    """


def test_the_documented_budgets_are_those_of_the_code():
    page = (ROOT / "docs/guides/scale.md").read_text()
    documented = dict(re.findall(r"^\| (\w[\w ]*?) \|.*\| \**(\d+)\** \|$", page, re.MULTILINE))

    assert {name: int(count) for name, count in documented.items()} == {
        "orchestrator": budget.total(budget.orchestrator()),
        "orchestrator without the API": budget.total(budget.orchestrator(has_api=False)),
        "orchestrator with Service Bus": budget.total(budget.orchestrator(has_broker=True)),
        "worker": budget.total(budget.worker(PROCESSES)),
        "map server": budget.total(budget.SERVING),
        "gateway": budget.total(budget.GATEWAY),
    }


class ConnectionCounts:
    """The highest number of connections by application name, sampled while a platform works. A pool that replaces a
    connection opens the new one while the server still ends the old one: a connection counts if it lasts for several
    samples."""

    def __init__(self, running: Fleet) -> None:
        self._fleet = running
        self._recent: deque[Counter[str]] = deque(maxlen=SAMPLES)
        self.highest: Counter[str] = Counter()

    async def watch(self) -> None:
        while True:
            rows = await self._fleet.rows(
                "SELECT application_name AS name, count(*) FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name LIKE 'dagmaster-%%' GROUP BY 1"
            )
            self._recent.append(Counter({row["name"].removeprefix("dagmaster-"): row["count"] for row in rows}))
            if len(self._recent) == SAMPLES:
                for name in self._recent[0]:
                    lasting = min(sample[name] for sample in self._recent)
                    self.highest[name] = max(self.highest[name], lasting)
            await asyncio.sleep(0.01)


def start_process(running: Fleet, role: str, **settings: Any) -> None:
    """Start a process whose connections have the names that they have in production."""
    process = running.process(role)
    process.environment |= {name.upper(): str(value) for name, value in settings.items()}
    process.start(database_url=running.dsn)


async def test_busy_processes_stay_within_their_budgets(database, tmp_path):
    port = free_port()
    async with fleet(database, tmp_path) as running:
        start_process(running, "orchestrator", api_enabled=True, api_port=port)
        start_process(running, "worker", worker_processes=PROCESSES)
        await running.ready(running.processes)
        connection_counts = ConnectionCounts(running)
        watching = asyncio.create_task(connection_counts.watch())
        jobs = await running.submit(WORK, count=20)
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            await _wait_until_ready(client)
            paths = ("/jobs", "/queues", "/assets", f"/jobs/{jobs[0]}", "/keys", "/system/database", "/janitor/actions")
            for _ in range(4):
                await asyncio.gather(*(client.get(f"{PREFIX}{path}") for path in paths for _ in range(10)))
        assert set(await running.wait(jobs, 60)) == {"completed"}
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching

    expected = Counter(budget.orchestrator()) + Counter(budget.worker(PROCESSES))
    del connection_counts.highest["test"]  # the connection that submits
    beyond = {name: count for name, count in connection_counts.highest.items() if count > expected[name]}
    assert beyond == {}, f"all connections: {dict(connection_counts.highest)}"
    assert {"orchestrator", "beat", "listen", "notify", "api", "worker", "lease"} <= connection_counts.highest.keys()


async def _wait_until_ready(client: httpx2.AsyncClient) -> None:
    async with asyncio.timeout(30):
        while True:
            with suppress(httpx2.TransportError):
                if (await client.get("/readyz")).status_code == 200:
                    return
            await asyncio.sleep(0.05)
