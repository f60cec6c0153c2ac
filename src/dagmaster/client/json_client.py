"""A client that returns JSON as the API sent it: one method for each request. The command line prints such JSON."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import BinaryIO, TypeAlias
from uuid import UUID

from dagmaster.client.blocking import EventLoopThread, blocking, iterating
from dagmaster.client.connection import (
    STREAM_TIMEOUT_SECONDS,
    TIMEOUT_SECONDS,
    ApiConnection,
    NamedEvent,
    StreamedEvent,
    named_events,
    streamed_events,
)
from dagmaster.client.json_assets import AssetRequests, AsyncAssetRequests
from dagmaster.client.json_keys import AsyncKeyRequests, KeyRequests
from dagmaster.client.json_layers import AsyncLayerRequests, LayerRequests
from dagmaster.client.json_uploads import AsyncUploadRequests, UploadRequests
from dagmaster.client.limits import MAX_ITEMS
from dagmaster.client.models.base import Json, unexpected
from dagmaster.client.request_parts import segment
from dagmaster.errors import InvalidRequest, NotFound, Unavailable
from dagmaster.jobs.ids import ids_beginning_with
from dagmaster.quantities import first_of

JANITOR_TIMEOUT_SECONDS = 120.0
BULK_TIMEOUT_SECONDS = 120.0
# Deployments and migrations wait for locks.
SCHEMA_TIMEOUT_SECONDS = 900.0
PAUSE_SECONDS = 0.5
MAX_OUTAGE_SECONDS = 60.0
_MAX_LETTERS = 10_000


@dataclass(frozen=True, slots=True)
class Connected:
    """A stream of events has begun."""


@dataclass(frozen=True, slots=True)
class Outage:
    """The platform cannot be reached, or cannot respond. The client reconnects after a pause."""

    error: Unavailable


Update: TypeAlias = StreamedEvent | Connected | Outage


class AsyncJsonClient(AsyncAssetRequests, AsyncLayerRequests, AsyncKeyRequests, AsyncUploadRequests):
    """The requests of the API. Responses are JSON, as the API sent it."""

    def __init__(self, connection: ApiConnection) -> None:
        self.connection = connection

    @property
    def now(self) -> datetime:
        """The time of the last response, by the clock of the platform."""
        return self.connection.now

    async def close(self) -> None:
        await self.connection.close()

    # Jobs

    async def submit(self, submission: Json, *, force: bool = False, resume: bool = False) -> Json:
        """Create a job. With an idempotency key and without `force` the request may be repeated: the platform returns
        the same job."""
        is_repeatable = bool(submission.get("idempotency_key")) and not force
        params = {"force": force, "resume": resume}
        return await self.connection.object(
            "POST", "/jobs", body=submission, params=params, is_repeatable=is_repeatable
        )

    async def cancel(self, job_id: str, request: Json, wait_seconds: float) -> Json:
        """Request the cancellation of a job, or get its progress: a second request changes nothing."""
        return await self.connection.object(
            "POST", f"/jobs/{job_id}/cancel", body=request, params={"wait": wait_seconds}
        )

    async def resume(self, job_id: str, request: Json, *, is_dry_run: bool = False) -> Json:
        return await self.connection.object(
            "POST", f"/jobs/{job_id}/resume", body=request, params={"dry_run": is_dry_run}
        )

    async def retry(self, job_id: str, request: Json, *, is_dry_run: bool = False) -> Json:
        return await self.connection.object(
            "POST", f"/jobs/{job_id}/retry", body=request, params={"dry_run": is_dry_run}
        )

    async def jobs(
        self, /, limit: int, after: str | None = None, **filters: str | Sequence[str] | None
    ) -> tuple[list[Json], str | None]:
        return await self.connection.page("/jobs", limit, after, **filters)

    async def job_counts(self, /, **filters: str | Sequence[str] | None) -> Json:
        params = {name: value for name, value in filters.items() if value is not None}
        return await self.connection.object("GET", "/jobs/counts", params=params)

    async def job(self, job_id: str) -> Json:
        return await self.connection.object("GET", f"/jobs/{job_id}")

    async def job_summary(self, job_id: str) -> Json:
        """The summary of a job: a cheap request, for polling."""
        jobs, _ = await self.jobs(1, _cursor_before(UUID(job_id)))
        if not jobs or jobs[0].get("job_id") != job_id:
            raise _no_job(job_id)
        return jobs[0]

    async def change_jobs(self, request: Json) -> Json:
        """Cancel, resume or retry many jobs."""
        return await self.connection.object("POST", "/jobs/bulk", body=request, timeout=BULK_TIMEOUT_SECONDS)

    async def export_job(self, job_id: str, file: BinaryIO) -> int:
        """Write a job with its whole history to a file, as JSON. Returns its size in bytes."""
        size = 0
        async with self.connection.stream(f"/jobs/{job_id}/export", accept="application/json") as response:
            async for part in response.aiter_bytes():
                size += file.write(part)
        return size

    async def nodes(
        self,
        job_id: str,
        limit: int,
        after: int = -1,
        *,
        parent: str | None = None,
        status: Sequence[str] | None = None,
    ) -> tuple[list[Json], str | None]:
        return await self.connection.page(f"/jobs/{job_id}/nodes", limit, str(after), parent=parent, status=status)

    async def node(self, job_id: str, node_id: str) -> Json:
        """A node with its attempts."""
        return await self.connection.object("GET", f"/jobs/{job_id}/nodes/{segment(node_id)}")

    async def download_output(self, job_id: str, node_id: str, file: BinaryIO) -> int:
        """Write the whole output of a node to a file. Returns its size in bytes."""
        digest, size = hashlib.sha256(), 0
        path = f"/jobs/{job_id}/nodes/{segment(node_id)}/output"
        async with self.connection.stream(path, accept="application/json") as response:
            async for chunk in response.aiter_bytes():
                digest.update(chunk)
                size += file.write(chunk)
        etag = response.headers.get("etag", "")
        if not etag.startswith("W/") and etag.strip('"') != digest.hexdigest():
            raise unexpected("the content does not match its ETag")
        return size

    async def events(
        self, job_id: str, limit: int, after: int = 0, node_id: str | None = None
    ) -> tuple[list[Json], str | None]:
        return await self.connection.page(f"/jobs/{job_id}/events", limit, str(after), node_id=node_id)

    async def timeline(self, job_id: str, limit: int, after: str | None = None) -> tuple[list[Json], str | None]:
        """The attempts of all nodes, with their times."""
        return await self.connection.page(f"/jobs/{job_id}/timeline", limit, after)

    async def logs(
        self,
        job_id: str,
        limit: int,
        after: str | None = None,
        *,
        node_id: str | None = None,
        attempt: int | None = None,
        is_running: bool = False,
    ) -> tuple[list[Json], str | None]:
        return await self.connection.page(
            f"/jobs/{job_id}/logs", limit, after, node_id=node_id, attempt=attempt, running=is_running or None
        )

    async def waiting(self, job_id: str) -> Json:
        return await self.connection.object("GET", f"/jobs/{job_id}/waiting")

    async def find_job(self, name: str) -> str:
        """The id of a job by its id, by the unique beginning of its id, or `last` for the newest job."""
        if name == "last":
            newest, _ = await self.jobs(1)
            if not newest:
                raise NotFound("there is no job yet", code="job.not-found")
            return str(newest[0]["job_id"])
        first, last = ids_beginning_with(name)
        if first == last:
            return str(first)
        jobs, _ = await self.jobs(4, _cursor_before(last))
        matches = [job["job_id"] for job in jobs if UUID(job["job_id"]) >= first]
        if not matches:
            raise _no_job(name)
        if len(matches) > 1:
            message = f"several jobs have an id that begins with {name}: {first_of(matches, 3)}"
            raise InvalidRequest(message, code="job.ambiguous", hint="type more digits of the id")
        return str(matches[0])

    async def follow(self, job_id: str, after: int = 0) -> AsyncIterator[Update]:
        """Every event after a sequence number, once and in order, until the job has ended.

        Each connection continues after the last event that was received, and sequence numbers have no gaps: no event is
        missed or received twice, however often the connection is lost. The caller decides how long an outage may last.
        """
        path = f"/jobs/{job_id}/events/stream"
        while True:
            first_after = after
            headers = {"Last-Event-ID": str(after)}
            stream = self.connection.stream(
                path, accept="text/event-stream", headers=headers, read_seconds=STREAM_TIMEOUT_SECONDS
            )
            try:
                async with stream as response:
                    yield Connected()
                    if response.status_code == HTTPStatus.NO_CONTENT:
                        return
                    async for event in streamed_events(response):
                        if event.sequence is not None and event.sequence > after + 1:
                            break  # the next connection sends the missing events
                        if event.sequence is None:
                            yield event
                        elif event.sequence == after + 1:
                            after = event.sequence
                            yield event
            except Unavailable as error:
                yield Outage(error)
                await asyncio.sleep(PAUSE_SECONDS)
            else:
                if after == first_after:
                    await asyncio.sleep(PAUSE_SECONDS)  # a platform that is stopping ends its streams at once

    async def changes(
        self, kinds: Sequence[str] | None = None, after: str | None = None
    ) -> AsyncIterator[NamedEvent | Connected | Outage]:
        """The changes of the platform, without end. Each connection continues after the last cursor that was received:
        a change may be received twice, but none is missed. The caller decides how long an outage may last."""
        params = {"kind": list(kinds)} if kinds else {}
        while True:
            first_after = after
            headers = {"Last-Event-ID": after} if after else {}
            stream = self.connection.stream(
                "/stream",
                accept="text/event-stream",
                headers=headers,
                params=params,
                read_seconds=STREAM_TIMEOUT_SECONDS,
            )
            try:
                async with stream as response:
                    yield Connected()
                    async for event in named_events(response):
                        after = event.cursor or after
                        yield event
            except Unavailable as error:
                yield Outage(error)
                await asyncio.sleep(PAUSE_SECONDS)
            else:
                if after == first_after:
                    await asyncio.sleep(PAUSE_SECONDS)  # a platform that is stopping ends its streams at once

    # Workflows

    async def workflows(self, limit: int = 10_000) -> list[Json]:
        return (await self.connection.page("/workflows", limit))[0]

    async def refused_workflows(self) -> list[Json]:
        """Workflow files that the platform cannot use."""
        page = await self.connection.object("GET", "/workflows", params={"limit": 1})
        refused = page.get("refused", [])
        if not isinstance(refused, list):
            raise unexpected("`refused` is not a list")
        return refused

    async def workflow(self, workflow_id: str) -> Json:
        return await self.connection.object("GET", f"/workflows/{segment(workflow_id)}")

    async def graph(self, workflow_id: str) -> Json:
        return await self.connection.object("GET", f"/workflows/{segment(workflow_id)}/graph")

    async def validate(self, text: bytes) -> Json:
        return await self.connection.object("POST", "/workflows/validate", content=text, media_type="application/yaml")

    # Operations

    async def queues(self) -> list[Json]:
        return (await self.connection.page("/queues", MAX_ITEMS))[0]

    async def set_queue(self, /, queue: str, **changes: int | bool | None) -> Json:
        """Change `max_running`, `is_paused` or both. A value that is not passed stays as it is."""
        return await self.connection.object("PATCH", f"/queues/{segment(queue)}", body=changes)

    async def leases(self, limit: int, within_seconds: float | None = None) -> list[Json]:
        """Up to `limit` running tasks, at most 200: those whose leases expire first."""
        within = None if within_seconds is None else str(within_seconds)
        return (await self.connection.page("/leases", limit, within_seconds=within))[0]

    async def database_health(self) -> Json:
        return await self.connection.object("GET", "/database")

    async def definitions(self, workflow_id: str, limit: int = 1000) -> list[Json]:
        """The definitions that jobs of a workflow had, newest first."""
        return (await self.connection.page(f"/workflows/{segment(workflow_id)}/definitions", limit))[0]

    async def definition(self, workflow_id: str, definition_hash: str) -> Json:
        path = f"/workflows/{segment(workflow_id)}/definitions/{segment(definition_hash)}"
        return await self.connection.object("GET", path)

    async def workflow_statistics(self, workflow_id: str, days: int = 30) -> Json:
        path = f"/workflows/{segment(workflow_id)}/statistics"
        return await self.connection.object("GET", path, params={"days": days})

    async def job_graph(self, job_id: str) -> Json:
        return await self.connection.object("GET", f"/jobs/{job_id}/graph")

    async def workers(self, limit: int) -> tuple[list[Json], str | None]:
        return await self.connection.page("/workers", limit)

    async def orchestrators(self, limit: int) -> tuple[list[Json], str | None]:
        return await self.connection.page("/orchestrators", limit)

    async def dead_letters(
        self, limit: int, after: str | None = None, reason: str | None = None
    ) -> tuple[list[Json], str | None]:
        return await self.connection.page("/dead-letters", limit, after, reason=reason)

    async def find_dead_letter(self, name: str) -> UUID:
        """The id of a dead letter by its id, or by the unique beginning of its id."""
        return await _id_beginning_with(name, "dead letter", _MAX_LETTERS, self.dead_letters)

    async def dead_letter(self, dead_letter_id: UUID) -> Json:
        return await self.connection.object("GET", f"/dead-letters/{dead_letter_id}")

    async def replay(self, dead_letter_id: UUID) -> Json:
        return await self.connection.object("POST", f"/dead-letters/{dead_letter_id}/replay")

    async def callbacks(
        self, /, limit: int, after: str | None = None, **filters: str | None
    ) -> tuple[list[Json], str | None]:
        return await self.connection.page("/callbacks", limit, after, **filters)

    async def find_callback(self, name: str) -> UUID:
        """The id of a callback by its id, or by the unique beginning of its id, among the newest callbacks."""
        return await _id_beginning_with(name, "callback", MAX_ITEMS, self.callbacks)

    async def callback(self, callback_id: UUID) -> Json:
        return await self.connection.object("GET", f"/callbacks/{callback_id}")

    async def repeat_callback(self, callback_id: UUID) -> Json:
        return await self.connection.object("POST", f"/callbacks/{callback_id}/repeat")

    async def rotate_secret(self, platform_id: str, overlap_seconds: float) -> Json:
        return await self.connection.object(
            "POST", f"/platforms/{segment(platform_id)}/rotate-secret", body={"overlap_seconds": overlap_seconds}
        )

    async def janitor_actions(
        self, /, limit: int, after: str | None = None, **filters: str | None
    ) -> tuple[list[Json], str | None]:
        return await self.connection.page("/janitor/actions", limit, after, **filters)

    async def run_janitor(self, *, is_dry_run: bool) -> Json:
        # The janitor executes several statements, and each may take 10 seconds.
        params = {"dry_run": "true" if is_dry_run else "false"}
        return await self.connection.object("POST", "/janitor/run", params=params, timeout=JANITOR_TIMEOUT_SECONDS)

    # The schema

    async def schema_status(self) -> Json:
        return await self.connection.object("GET", "/bootstrap/status", timeout=SCHEMA_TIMEOUT_SECONDS)

    async def tables(self) -> Json:
        return await self.connection.object("GET", "/bootstrap/tables", timeout=SCHEMA_TIMEOUT_SECONDS)

    async def ddl(self) -> str:
        return (await self.connection.request("GET", "/bootstrap/ddl", expected="text/plain")).text

    async def deploy(self) -> Json:
        return await self.connection.object("POST", "/bootstrap/deploy", timeout=SCHEMA_TIMEOUT_SECONDS)

    async def migrate(self) -> Json:
        return await self.connection.object("POST", "/bootstrap/migrate", timeout=SCHEMA_TIMEOUT_SECONDS)

    async def rebuild(self, confirm: str) -> Json:
        return await self.connection.object(
            "POST", "/bootstrap/rebuild", body={"confirm": confirm}, timeout=SCHEMA_TIMEOUT_SECONDS
        )


class JsonClient(
    AssetRequests[AsyncJsonClient],
    LayerRequests[AsyncJsonClient],
    KeyRequests[AsyncJsonClient],
    UploadRequests[AsyncJsonClient],
):
    """AsyncJsonClient for callers without an event loop. Threads may share it."""

    @classmethod
    def of(
        cls,
        find: Callable[[], str],
        timeout_seconds: float = TIMEOUT_SECONDS,
        *,
        find_key: Callable[[], str | None] = lambda: None,
    ) -> "JsonClient":
        """A client of the platform whose URL `find` returns. It repeats no request."""
        return cls(AsyncJsonClient(ApiConnection(find, timeout_seconds, find_key=find_key)), EventLoopThread())

    @property
    def now(self) -> datetime:
        return self._asynchronous.now

    submit = blocking(AsyncJsonClient.submit)
    cancel = blocking(AsyncJsonClient.cancel)
    resume = blocking(AsyncJsonClient.resume)
    retry = blocking(AsyncJsonClient.retry)
    jobs = blocking(AsyncJsonClient.jobs)
    job_counts = blocking(AsyncJsonClient.job_counts)
    job = blocking(AsyncJsonClient.job)
    job_summary = blocking(AsyncJsonClient.job_summary)
    change_jobs = blocking(AsyncJsonClient.change_jobs)
    export_job = blocking(AsyncJsonClient.export_job)
    nodes = blocking(AsyncJsonClient.nodes)
    node = blocking(AsyncJsonClient.node)
    download_output = blocking(AsyncJsonClient.download_output)
    events = blocking(AsyncJsonClient.events)
    timeline = blocking(AsyncJsonClient.timeline)
    logs = blocking(AsyncJsonClient.logs)
    waiting = blocking(AsyncJsonClient.waiting)
    find_job = blocking(AsyncJsonClient.find_job)
    follow = iterating(AsyncJsonClient.follow)
    changes = iterating(AsyncJsonClient.changes)
    workflows = blocking(AsyncJsonClient.workflows)
    refused_workflows = blocking(AsyncJsonClient.refused_workflows)
    workflow = blocking(AsyncJsonClient.workflow)
    graph = blocking(AsyncJsonClient.graph)
    validate = blocking(AsyncJsonClient.validate)
    queues = blocking(AsyncJsonClient.queues)
    set_queue = blocking(AsyncJsonClient.set_queue)
    leases = blocking(AsyncJsonClient.leases)
    database_health = blocking(AsyncJsonClient.database_health)
    definitions = blocking(AsyncJsonClient.definitions)
    definition = blocking(AsyncJsonClient.definition)
    workflow_statistics = blocking(AsyncJsonClient.workflow_statistics)
    job_graph = blocking(AsyncJsonClient.job_graph)
    workers = blocking(AsyncJsonClient.workers)
    orchestrators = blocking(AsyncJsonClient.orchestrators)
    callbacks = blocking(AsyncJsonClient.callbacks)
    find_callback = blocking(AsyncJsonClient.find_callback)
    callback = blocking(AsyncJsonClient.callback)
    repeat_callback = blocking(AsyncJsonClient.repeat_callback)
    rotate_secret = blocking(AsyncJsonClient.rotate_secret)
    dead_letters = blocking(AsyncJsonClient.dead_letters)
    find_dead_letter = blocking(AsyncJsonClient.find_dead_letter)
    dead_letter = blocking(AsyncJsonClient.dead_letter)
    replay = blocking(AsyncJsonClient.replay)
    janitor_actions = blocking(AsyncJsonClient.janitor_actions)
    run_janitor = blocking(AsyncJsonClient.run_janitor)
    schema_status = blocking(AsyncJsonClient.schema_status)
    tables = blocking(AsyncJsonClient.tables)
    ddl = blocking(AsyncJsonClient.ddl)
    deploy = blocking(AsyncJsonClient.deploy)
    migrate = blocking(AsyncJsonClient.migrate)
    rebuild = blocking(AsyncJsonClient.rebuild)


def _cursor_before(job_id: UUID) -> str | None:
    """The cursor of a page that begins with this job, or with the next older one: ids are in the order of time."""
    return str(UUID(int=job_id.int + 1)) if job_id.int < 2**128 - 1 else None


async def _id_beginning_with(
    name: str, noun: str, maximum: int, newest: Callable[[int], Awaitable[tuple[list[Json], str | None]]]
) -> UUID:
    """The given id, or the only id among the newest entries that begins with `name`."""
    code, field = noun.replace(" ", "-"), f"{noun.replace(' ', '_')}_id"
    try:
        first, last = ids_beginning_with(name)
    except InvalidRequest:
        hint = f"see `dagmaster {code}s ls`"
        raise InvalidRequest(f"'{name}' is not the id of a {noun}", code=f"{code}.bad-id", hint=hint) from None
    if first == last:
        return first
    entries, _ = await newest(maximum)
    matches = [entry_id for entry in entries if first <= (entry_id := UUID(entry[field])) <= last]
    if not matches:
        message = f"none of the newest {maximum:,} {noun}s has an id that begins with {name}"
        raise NotFound(message, code=f"{code}.not-found", hint="give the whole id")
    if len(matches) > 1:
        message = f"several {noun}s have an id that begins with {name}: {first_of(matches, 3)}"
        raise InvalidRequest(message, code=f"{code}.ambiguous", hint="type more digits of the id")
    return matches[0]


def _no_job(name: str) -> NotFound:
    return NotFound(f"no job has the id {name}", code="job.not-found", hint="see `dagmaster jobs ls`")
