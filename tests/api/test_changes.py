"""The stream of changes: every change arrives, also after a lost connection, and callers get only what they may see."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from httpx2 import AsyncClient

from dagmaster.access.caller import Caller, Scope
from dagmaster.api import change_follower
from dagmaster.api.change_follower import Batch, cursor_of, moment_of
from dagmaster.api.changes import frame_of, kinds_of
from dagmaster.client import AsyncClient as DagmasterClient
from dagmaster.client.models.changes import AssetChange
from dagmaster.database.reads.changes import ChangedAsset
from dagmaster.errors import InvalidRequest, NotAllowed
from tests.api.serving import V1, app_of, ok, served
from tests.engine.harness import engine, open_gate, until, workflow
from tests.operations.kit import opened

pytestmark = pytest.mark.requirement("O1")

STEPS = """
    workflow_id: steps
    nodes:
      start: {type: start, next: one}
      one: {handler: echo, next: busy}
      busy: {handler: gate, next: end}
      end: {type: end}
"""
FAN = """
    workflow_id: fan
    nodes:
      start: {type: start, next: prepare}
      prepare: {handler: make_list, params: {count: 4}, next: split}
      split: {type: fan_out, source: "{{ nodes.prepare.output.items }}", task: {handler: echo}, next: end}
      end: {type: end}
"""
FAILING = """
    workflow_id: failing
    nodes:
      start: {type: start, next: one}
      one: {handler: give, params: {fail: true}, retry: {max_attempts: 0}, next: end}
      end: {type: end}
"""
LATE = "UPDATE dagapp.dag_jobs SET updated_at = dagapp.clock(), version = version + 1, correlation_id = 'late'"
ALL = ("jobs", "assets", "queues", "instances")


async def frames(
    client: AsyncClient, last: str | None = None, comments: bool = False, **params: Any
) -> AsyncIterator[dict[str, Any]]:
    """The events of a stream, parsed as a browser does."""
    headers = {} if last is None else {"Last-Event-ID": last}
    async with client.stream("GET", f"{V1}/stream", headers=headers, params=params, timeout=30) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"].startswith("text/event-stream")
        frame: dict[str, str] = {}
        async for line in response.aiter_lines():
            name, _, value = line.partition(": ")
            if line:
                frame[name] = value
            else:
                if "data" in frame:
                    yield {"id": frame.get("id"), "event": frame["event"], **json.loads(frame["data"])}
                elif comments and "id" in frame:
                    yield {"id": frame["id"], "event": "heartbeat"}
                frame = {}


@contextlib.asynccontextmanager
async def stream_of(url: str, last: str | None = None, **params: Any) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    async with AsyncClient(base_url=url) as client, contextlib.aclosing(frames(client, last, **params)) as stream:
        yield stream


async def jobs_until(stream: AsyncIterator[dict[str, Any]], job_id: UUID, status: str) -> list[dict[str, Any]]:
    """The changes of a job, up to one with this status."""
    seen: list[dict[str, Any]] = []
    async with asyncio.timeout(20):
        async for frame in stream:
            seen += [job for job in frame.get("jobs", []) if job["job_id"] == str(job_id)]
            if seen and seen[-1]["status"] == status:
                return seen
    raise AssertionError("the stream has ended")


async def test_a_stream_shows_each_job_from_its_creation_to_its_end(database):
    async with engine(database) as running, served(app_of(database, running)) as server:
        async with AsyncClient(base_url=server.url) as client, contextlib.aclosing(frames(client)) as stream:
            hello = await anext(stream)
            job_id = await running.submit(workflow(STEPS))
            running_changes = await jobs_until(stream, job_id, "running")
            open_gate(job_id)
            changes = running_changes + await jobs_until(stream, job_id, "completed")

        assert hello["event"] == "hello"
        assert set(hello["kinds"]) == set(ALL)
        versions = [change["version"] for change in changes]
        assert versions == sorted(set(versions))
        assert changes[-1]["workflow_id"] == "steps"
        assert changes[-1]["progress"] == {
            "nodes": 4,
            "ended": 4,
            "failed": 0,
            "children": 0,
            "children_ended": 0,
            "children_failed": 0,
            "fraction": 1.0,
        }


async def test_a_client_that_was_disconnected_gets_the_changes_that_it_missed(database):
    async with engine(database) as running, served(app_of(database, running)) as server:
        async with AsyncClient(base_url=server.url) as client:
            async with contextlib.aclosing(frames(client)) as stream:
                cursor = (await anext(stream))["id"]
            # No client is connected while these jobs run, and while one of them runs again.
            ended = (await running.run(workflow(FAN)))["job_id"]
            failed = (await running.run(workflow(FAILING)))["job_id"]
            await ok(client.post(f"{V1}/jobs/{failed}/resume"), 202)
            await running.wait(failed)
            async with contextlib.aclosing(frames(client, cursor, kind="jobs")) as stream:
                hello, missed = await anext(stream), await anext(stream)

        assert hello["id"] is None  # a client that loses its connection here continues after this frame
        jobs = {job["job_id"]: job for job in missed["jobs"]}
        assert jobs[str(ended)]["status"] == "completed"
        assert jobs[str(ended)]["progress"]["children_ended"] == 4
        assert (jobs[str(failed)]["status"], jobs[str(failed)]["resume_count"]) == ("failed", 1)


@pytest.mark.parametrize(
    ("away", "reason"), [(timedelta(minutes=11), "too_old"), (timedelta(days=-1), "too_old"), (timedelta(0), None)]
)
async def test_a_client_that_was_disconnected_for_too_long_must_reload(database, away, reason):
    async with served(app_of(database)) as server, AsyncClient(base_url=server.url) as client:
        cursor = cursor_of(datetime.now(UTC) - away)
        async with contextlib.aclosing(frames(client, cursor, kind="queues")) as stream:
            await anext(stream)
            frame = await anext(stream)

    assert frame["event"] == ("resync" if reason else "queues")
    assert frame.get("reason") == reason


@pytest.mark.parametrize("cursor", ["x", "-1", "1.5", "9" * 18, "\u0661", ""])
def test_an_invalid_cursor_is_refused(cursor):
    with pytest.raises(InvalidRequest) as refused:
        moment_of(cursor)

    assert refused.value.code == "stream.bad-cursor"


async def test_heartbeats_advance_the_cursor(database):
    async with (
        served(app_of(database, heartbeat_seconds=0.7)) as server,
        stream_of(server.url, comments=True, kind="jobs") as stream,
    ):
        cursors = [int((await anext(stream))["id"]) for _ in range(3)]

    assert cursors[0] < cursors[1] < cursors[2]


async def test_a_slow_client_must_reload_and_its_missed_changes_are_not_kept(database, monkeypatch):
    monkeypatch.setattr(change_follower, "KEPT_BATCHES", 2)
    app = app_of(database)
    async with served(app):
        follower = app.state.services.changes
        now = await follower.now()
        watching = follower.watch(None, 5.0)
        first = asyncio.create_task(anext(watching))
        await until(lambda: asyncio.sleep(0, follower.watchers == 1))
        for second in range(5):  # while the client reads nothing
            follower._batches.append(Batch(now + timedelta(seconds=second), are_queues_changed=True))
            follower._count += 1
        follower._wake_all()
        got = await first
        await watching.aclose()

    assert got.resync == "slow"
    assert got.until == now + timedelta(seconds=4)
    assert len(follower._batches) == 2


async def test_very_many_changes_become_one_resync(database, monkeypatch):
    monkeypatch.setattr(change_follower, "MAX_CHANGES", 3)
    async with engine(database) as running, served(app_of(database, running)) as server:
        async with stream_of(server.url, kind="jobs") as stream:
            cursor = (await anext(stream))["id"]
            for _ in range(8):
                await running.submit(workflow(STEPS))
            async with asyncio.timeout(10):
                seen = [frame async for frame in _up_to(stream, "resync")]
        async with stream_of(server.url, cursor, kind="jobs") as stream:
            await anext(stream)
            missed = await anext(stream)

    assert seen[-1]["reason"] == "too_many"
    assert (missed["event"], missed["reason"]) == ("resync", "too_many")


async def _up_to(stream: AsyncIterator[dict[str, Any]], event: str) -> AsyncIterator[dict[str, Any]]:
    async for frame in stream:
        yield frame
        if frame["event"] == event:
            return


async def test_a_change_of_a_transaction_that_commits_late_is_sent(database):
    """The row becomes visible two seconds after its timestamp."""
    async with engine(database) as running, served(app_of(database, running)) as server:
        job_id = await running.submit(workflow(STEPS))
        async with stream_of(server.url, kind="jobs") as stream, asyncio.timeout(20):
            await jobs_until(stream, job_id, "running")
            async with await psycopg.AsyncConnection.connect(database) as connection:
                await connection.execute(LATE)
                await asyncio.sleep(2)
            while (await jobs_until(stream, job_id, "running"))[-1]["correlation_id"] != "late":
                pass  # earlier changes
        open_gate(job_id)
        await running.wait(job_id)


async def test_changes_of_assets_are_streamed(database, tmp_path):
    async with (
        opened(database, tmp_path) as kit,
        served(app_of(database)) as server,
        stream_of(server.url, kind="assets,queues") as stream,
    ):
        await anext(stream)
        submitted = await kit.submit()
        async with asyncio.timeout(5):
            changes = [frame async for frame in _up_to(stream, "assets")]

    (change,) = changes[-1]["assets"]
    assert (change["asset_id"], change["version_ordinal"]) == (submitted.asset_id, 0)
    assert "actor" not in change


def a_change(platform: str, *, clearance: str = "uncleared", is_published: bool = False) -> ChangedAsset:
    change = AssetChange(
        event_id=1,
        asset_id="a",
        dataset_id=f"of-{platform}-{clearance}",
        platform_id=platform,
        action="approved",
        version_ordinal=0,
        created_at=datetime.now(UTC),
    )
    return ChangedAsset(change, clearance, is_published)


ASSETS = (
    a_change("mine"),
    a_change("other"),
    a_change("other", clearance="ouo", is_published=True),
    a_change("other", clearance="public", is_published=True),
)


@pytest.mark.parametrize(
    ("caller", "kinds", "seen"),
    [
        (Caller("r", frozenset({Scope.REVIEWER})), ["jobs", "assets"], [0, 1, 2, 3]),
        (Caller("p", frozenset({Scope.B2B}), "mine"), ["assets"], [0, 3]),
        (Caller("v", frozenset({Scope.VIEWER})), ["assets"], [2, 3]),
        (Caller("a", frozenset({Scope.ADMIN})), list(ALL), [0, 1, 2, 3]),
    ],
)
def test_a_caller_gets_only_what_it_may_see(caller, kinds, seen):
    assert kinds_of(caller, None) == kinds

    frame = frame_of(Batch(datetime.now(UTC), assets=ASSETS, are_queues_changed=True), caller, kinds)

    data = json.loads(frame.partition(b"data: ")[2].partition(b"\n")[0])
    assert [asset["dataset_id"] for asset in data["assets"]] == [ASSETS[each].change.dataset_id for each in seen]
    if caller.has(Scope.VIEWER):
        assert {asset["action"] for asset in data["assets"]} == {"changed"}
    assert (b"event: queues" in frame) == ("queues" in kinds)


def test_a_kind_that_a_caller_may_not_see_is_refused():
    with pytest.raises(NotAllowed):
        kinds_of(Caller("v", frozenset({Scope.VIEWER})), ["assets", "jobs"])


def test_nothing_is_sent_if_a_caller_may_see_no_change_of_a_batch():
    batch = Batch(datetime.now(UTC), assets=(a_change("other"),))

    assert frame_of(batch, Caller("v", frozenset({Scope.VIEWER})), ["assets"]) == b""


async def test_the_python_client_follows_changes(database):
    async with engine(database) as running, served(app := app_of(database, running)) as server:
        async with DagmasterClient(server.url) as client:
            async with contextlib.aclosing(client.changes(["jobs"])) as changes:
                waiting = asyncio.create_task(anext(changes))
                await until(lambda: asyncio.sleep(0, app.state.services.changes.watchers == 1))
                job_id = await running.submit(workflow(STEPS))
                batch = await asyncio.wait_for(waiting, 10)
            open_gate(job_id)
            await running.wait(job_id)
            async with contextlib.aclosing(client.changes(["jobs"], after=batch.cursor)) as changes:
                missed = await asyncio.wait_for(anext(changes), 10)

        assert [job.job_id for job in batch.jobs] == [job_id]
        assert missed.jobs[0].status == "completed"
        assert uuid4() not in {job.job_id for job in missed.jobs}


async def test_a_stream_ends_after_a_time_limit_so_that_credentials_are_checked_again(database, monkeypatch):
    monkeypatch.setattr("dagmaster.api.changes.MAX_SECONDS", 0.5)
    async with served(app_of(database, heartbeat_seconds=0.3)) as server, AsyncClient(base_url=server.url) as client:
        async with asyncio.timeout(10):
            seen = [frame async for frame in frames(client, comments=True)]

    assert seen[0]["event"] == "hello"
