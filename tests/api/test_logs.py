"""Log lines and progress of handlers, read over the API while the handlers run and afterwards."""

import asyncio
import json
import time
from itertools import pairwise
from statistics import median
from typing import Any
from uuid import uuid4

import pytest
from httpx2 import AsyncClient

from dagmaster.handlers.context import Context, SyncContext
from dagmaster.handlers.registry import Registration
from tests.api.serving import V1, api, app_of, ok, pages_of, served
from tests.engine.harness import engine, until, workflow

HANDLERS = [
    Registration("write_log", "tests.api.test_logs:write_log"),
    Registration("reports", "tests.api.test_logs:reports"),
    Registration("reports_plainly", "tests.api.test_logs:reports_plainly", False),
    Registration("write_log_and_wait", "tests.api.test_logs:write_log_and_wait"),
]
LOGGING = """
    workflow_id: logging
    nodes:
      start: {type: start, next: spread}
      spread:
        type: fan_out
        source: [1, 2, 3]
        task: {handler: write_log, params: {item: "{{ item }}"}, retry: {max_attempts: 1, initial_delay_seconds: 0.01}}
        next: gather
      gather: {type: fan_in, next: last}
      last: {handler: write_log, next: end}
      end: {type: end}
"""
ONE = """
    workflow_id: one
    nodes:
      start: {type: start, next: work}
      work: {handler: HANDLER, retry: {max_attempts: 0}, next: end}
      end: {type: end}
"""


async def write_log(ctx: Context, params: dict[str, Any]) -> None:
    ctx.logger.info("begins", item=params.get("item"))
    if params.get("item") == 2 and ctx.attempt == 1:
        ctx.logger.warning("will fail; password=%s", "hunter2")
        raise RuntimeError("the first time")
    ctx.logger.info("ends")


async def write_log_and_wait(ctx: Context) -> None:
    for number in range(30):
        ctx.logger.info("waiting", number=number)
    while not ctx.cancelled and str(ctx.job_id) not in _released:
        await asyncio.sleep(0.01)


async def reports(ctx: Context) -> None:
    end = time.monotonic() + 3.5
    while time.monotonic() < end:
        ctx.progress(0.5, f"{time.time():.3f}", tiles=3)
        await asyncio.sleep(0.01)


def reports_plainly(ctx: SyncContext) -> None:
    end = time.monotonic() + 3.5
    while time.monotonic() < end:
        ctx.progress(0.5, f"{time.time():.3f}", tiles=3)
        time.sleep(0.01)


_released: set[str] = set()


@pytest.mark.requirement("H1")
async def test_log_lines_of_every_attempt_are_listed_in_pages(database):
    async with engine(database, handlers=HANDLERS) as running, api(database, running) as client:
        job = await running.run(workflow(LOGGING))
        path = f"{V1}/jobs/{job['job_id']}/logs"
        pages = await pages_of(client, path, limit=2)
        (of_children,) = await pages_of(client, path, node_id="spread")
        (of_child,) = await pages_of(client, path, node_id="spread__1", attempt=1)
        unknown = [await client.get(path, params={"node_id": "nothing"}), await client.get(f"{V1}/jobs/{uuid4()}/logs")]
        wrong = await client.get(path, params={"after": "nonsense"})

    lines = [line for page in pages for line in page]
    logged = [(line["node_id"], line["attempt"], line["number"], line["text"]) for line in lines]
    assert [len(page) for page in pages] == [2, 2, 2, 2, 2]
    assert logged == [
        ("last", 1, 1, "begins item=None"),
        ("last", 1, 2, "ends"),
        ("spread__0", 1, 1, "begins item=1"),
        ("spread__0", 1, 2, "ends"),
        ("spread__1", 1, 1, "begins item=2"),
        ("spread__1", 1, 2, logged[5][3]),
        ("spread__1", 2, 1, "begins item=2"),
        ("spread__1", 2, 2, "ends"),
        ("spread__2", 1, 1, "begins item=3"),
        ("spread__2", 1, 2, "ends"),
    ]
    assert logged[5][3].startswith("will fail")
    assert "hunter2" not in str(logged)
    assert of_children == lines[2:]
    assert of_child == lines[4:6]
    assert [response.json()["code"] for response in unknown] == ["node.not-found", "job.not-found"]
    assert wrong.json()["code"] == "request.bad-cursor"


@pytest.mark.requirement("H1")
async def test_the_last_log_lines_of_a_running_attempt_can_be_read_before_it_ends(database):
    """They are sent at once, not with the next renewal of the lease."""
    rare_renewals = {"lease_renew_sec": 30, "task_lease_sec": 90}
    async with engine(database, handlers=HANDLERS, **rare_renewals) as running, api(database, running) as client:
        job_id = await running.submit(workflow(ONE.replace("HANDLER", "write_log_and_wait")))
        path = f"{V1}/jobs/{job_id}/logs"

        async def seen() -> list[dict[str, Any]]:
            (lines,) = await pages_of(client, path, running=True)
            return lines

        while_it_runs = await until(seen)
        node = await ok(client.get(f"{V1}/jobs/{job_id}/nodes/work"))
        _released.add(str(job_id))
        await running.wait(job_id)
        (afterwards,) = await pages_of(client, path)
        while_ended = await seen()
        kept = await running.rows("SELECT log FROM dagapp.dag_tasks")

    assert [line["number"] for line in while_it_runs] == list(range(11, 31))
    assert [line["number"] for line in node["attempts"][0]["log"]] == list(range(11, 31))
    assert [line["number"] for line in afterwards] == list(range(1, 31))
    assert while_ended == []
    assert kept == [{"log": None}]


@pytest.mark.requirement("H1")
async def test_a_cancelled_attempt_keeps_its_log_lines(database):
    async with engine(database, handlers=HANDLERS) as running, api(database, running) as client:
        job_id = await running.submit(workflow(ONE.replace("HANDLER", "write_log_and_wait")))
        path = f"{V1}/jobs/{job_id}/logs"
        await until(lambda: running.rows("SELECT 1 FROM dagapp.dag_tasks WHERE log IS NOT NULL"))

        await ok(client.post(f"{V1}/jobs/{job_id}/cancel", params={"wait": 10}), 202)

        (lines,) = await pages_of(client, path)

    assert lines[-1]["text"] == "waiting number=29"


@pytest.mark.requirement("E23")
@pytest.mark.parametrize("handler", ["reports", "reports_plainly"])
async def test_progress_is_shown_in_every_view_within_a_second(database, handler):
    """In the stream, progress has no event id and is sent at most once a second, however often a handler reports it."""
    async with engine(database, handlers=HANDLERS) as running:
        job_id = await running.submit(workflow(ONE.replace("HANDLER", handler)))
        async with served(app_of(database, running)) as server, AsyncClient(base_url=server.url) as client:
            watching = asyncio.create_task(progress_of(client, f"{V1}/jobs/{job_id}/events/stream"))
            await until(lambda: running.rows("SELECT 1 FROM dagapp.dag_tasks WHERE progress IS NOT NULL"))
            shown = await ok(client.get(f"{V1}/jobs/{job_id}"))
            waiting = await ok(client.get(f"{V1}/jobs/{job_id}/waiting"))
            updates = await asyncio.wait_for(watching, 20)

    (node,) = [node for node in shown["nodes"] if node["node_id"] == "work"]
    (reason,) = [node["reasons"][0] for node in waiting["nodes"] if node["node_id"] == "work"]
    assert (node["progress"]["fraction"], node["progress"]["tiles"]) == (0.5, 3)
    assert reason["progress"]["tiles"] == 3
    assert 2 <= len(updates) <= 5
    assert all(later - earlier > 0.9 for (earlier, _), (later, _) in pairwise(updates))
    ages = []
    for at, frame in updates:
        (line,) = frame["nodes"]
        assert (line["node_id"], line["attempt"], line["progress"]["tiles"]) == ("work", 1, 3)
        ages.append(at - float(line["progress"]["message"]))
    assert median(ages) < 1


async def progress_of(client: AsyncClient, path: str) -> list[tuple[float, dict[str, Any]]]:
    """The time and value of each progress report; none of them has an id."""
    fractions, frame = [], {}
    async with client.stream("GET", path, timeout=30) as response:
        async for line in response.aiter_lines():
            name, _, value = line.partition(": ")
            if line:
                frame[name] = value
                continue
            if frame.get("event") == "progress":
                assert "id" not in frame
                fractions.append((time.time(), json.loads(frame["data"])))
            frame = {}
    return fractions
