"""What the API asks beyond `reads`: pages by key, why nodes wait, who lives, how full the queues are.

The same questions as everyone's, through a small pool: any number of callers share a handful of connections. Rows come
back as the API's response models, or as the dataclasses below. Nothing here reads all children of a job.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

import orjson
from psycopg.types.json import set_json_dumps, set_json_loads
from psycopg_pool import AsyncConnectionPool
from pydantic import TypeAdapter

from dagmaster.client.models.jobs import JobSummary, StoppingTask, TimelineEntry
from dagmaster.client.models.nodes import Attempt, JobLogLine, NodeSummary, SavedCheckpoint
from dagmaster.client.models.operations import (
    DeadLetterSummary,
    OrchestratorSummary,
    QueueSummary,
    TaskCount,
    WorkerSummary,
    WorkflowStatistics,
)
from dagmaster.database.connect import BY_KEY, Connection, conninfo, translate_errors
from dagmaster.database.ledger.protocol import PAGE_BYTES
from dagmaster.database.reads.jobs import Reads
from dagmaster.errors import NotFound
from dagmaster.jobs import payload
from dagmaster.jobs.fan import ChildResult
from dagmaster.jobs.model import (
    JanitorAction,
    Job,
    NodeState,
    QueueSettings,
)
from dagmaster.jobs.payload import Reference
from dagmaster.jobs.states import TASK_TERMINAL, JobStatus, TaskStatus
from dagmaster.workflows.graph import Graph, build
from dagmaster.workflows.model import Workflow

T = TypeVar("T")
POOL_SIZE = 6
MOST_IN_FRONT = 1000  # of more than these nobody wants to know exactly how many
MOST_ATTEMPTS = 200
MOST_PROGRESS = 50
CHILDREN_PAGE = 500
_GRAPHS_KEPT = 256
_COUNTABLE_BYTES = 64 * 1024 * 1024
# Questions have optional filters: a plan for all of them at once would use none of the indexes. A page is the first rows
# of an index; a bitmap would collect all the others too, to sort them.
PLANNING = {**BY_KEY, "enable_bitmapscan": "off", "plan_cache_mode": "force_custom_plan"}


@dataclass(frozen=True, slots=True)
class JobBrief:
    """What questions about a part of a job need to know of the job."""

    status: JobStatus
    definition_hash: str
    owner_id: UUID | None
    last_sequence: int
    now: datetime


@dataclass(frozen=True, slots=True)
class EventPosition:
    """How far a job's events have come, and the state it was in then."""

    job_id: UUID
    status: JobStatus
    last_sequence: int


@dataclass(frozen=True, slots=True)
class NodeProgress:
    """What the running attempt of a node says of itself."""

    job_id: UUID
    node_id: str
    attempt: int
    progress: dict[str, Any]


@dataclass(frozen=True, slots=True)
class LiveTask:
    """A node's queued or running task. `live_workers` could run it, `serving_workers` serve its queue; `in_front` is counted
    up to MOST_IN_FRONT."""

    node_id: str
    status: TaskStatus
    queue: str
    handler: str
    priority: int
    queued_at: datetime
    started_at: datetime | None
    worker_id: UUID | None
    worker_host: str | None
    worker_pid: int | None
    progress: dict[str, Any] | None
    live_workers: int
    serving_workers: int
    in_front: int | None


@dataclass(frozen=True, slots=True)
class Sizes:
    events_estimate: int
    tasks_estimate: int
    tasks_bytes: int
    dead_letters: int
    database_bytes: int


@dataclass(frozen=True, slots=True)
class Liveness:
    """`beat_age_seconds` is of the orchestrator that was asked for, None where it has shown no sign yet."""

    fingerprint: str
    database: str
    beat_age_seconds: float | None
    live_orchestrators: int
    live_workers: int


class ApiReads(Reads):
    """Questions through a pool. `open` it before the first one; a server that is away then does not matter."""

    def __init__(self, dsn: str, role: str = "api", size: int = POOL_SIZE) -> None:
        super().__init__(dsn, role)
        self._graphs: dict[str, Graph] = {}
        self._pool: AsyncConnectionPool[Connection] = AsyncConnectionPool(
            conninfo(dsn, role, 15, 3, 10, settings=PLANNING),
            kwargs={"autocommit": True},
            min_size=0,
            max_size=size,
            open=False,
            configure=_configure,
            check=AsyncConnectionPool.check_connection,
            name=f"dagmaster-{role}",
            timeout=5,
        )

    async def open(self) -> None:
        await self._pool.open()

    async def close(self) -> None:
        await self._pool.close()

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Connection]:
        with translate_errors():
            async with self._pool.connection() as connection:
                yield connection

    async def _many(self, name: str, values: Mapping[str, Any], kind: type[T]) -> list[T]:
        return _adapter(kind).validate_python(await self._dicts(name, values))

    async def _first(self, name: str, values: Mapping[str, Any], kind: type[T]) -> T | None:
        return next(iter(await self._many(name, values, kind)), None)

    # Jobs

    async def jobs(
        self,
        *,
        limit: int,
        after: UUID | None = None,
        status: str | None = None,
        workflow_id: str | None = None,
        submitted_by: str | None = None,
        correlation_id: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
    ) -> list[JobSummary]:
        """Newest first, beginning behind the job `after`."""
        values = {
            "limit": limit, "after": after, "status": status, "workflow_id": workflow_id, "submitted_by": submitted_by,
            "correlation_id": correlation_id, "created_after": created_after, "created_before": created_before,
        }  # fmt: skip
        return await self._many("api_jobs", values, JobSummary)

    async def job(self, job_id: UUID) -> Job:
        return _found(await self._first("api_job", {"job_id": job_id}, Job), job_id)

    async def stopping_tasks(self, job_id: UUID, limit: int = 100) -> list[StoppingTask]:
        return await self._many("api_stopping_tasks", {"job_id": job_id, "limit": limit}, StoppingTask)

    async def brief(self, job_id: UUID) -> JobBrief:
        return _found(await self._first("api_job_brief", {"job_id": job_id}, JobBrief), job_id)

    async def graph(self, definition_hash: str) -> Graph:
        """The graph of a kept definition. Definitions never change, so those used lately are at hand."""
        known = self._graphs.get(definition_hash)
        if known is None:
            rows = await self._dicts("api_definition", {"definition_hash": definition_hash})
            while len(self._graphs) >= _GRAPHS_KEPT:
                self._graphs.pop(next(iter(self._graphs)))
            known = self._graphs[definition_hash] = build(Workflow.model_validate(rows[0]["body"]))
        return known

    async def heads(self, job_ids: Sequence[UUID]) -> list[EventPosition]:
        return await self._many("api_heads", {"job_ids": list(job_ids)}, EventPosition)

    async def node(self, job_id: UUID, node_id: str) -> NodeState:
        node = await self._first("api_node", {"job_id": job_id, "node_id": node_id}, NodeState)
        if node is None:
            await self.brief(job_id)
            raise NotFound(f"job {job_id} has no node '{node_id}'", code="node.not-found", node_id=node_id)
        return node

    async def attempts(self, job_id: UUID, node_id: str) -> list[Attempt]:
        """The last ones first, with the lines they logged."""
        values = {"job_id": job_id, "node_id": node_id, "limit": MOST_ATTEMPTS}
        rows = await self._dicts("api_attempts", values)
        for row in rows:
            row["log"] = (row["metrics"] or {}).pop("log", None) or row["log"] or []
        return _adapter(Attempt).validate_python(rows)

    async def checkpoints(self, job_id: UUID, node_id: str) -> list[SavedCheckpoint]:
        """The last ones first."""
        values = {"job_id": job_id, "node_id": node_id, "limit": MOST_ATTEMPTS}
        return _adapter(SavedCheckpoint).validate_python(await self._dicts("api_checkpoints", values))

    # Outputs

    async def payload_reference(self, job_id: UUID, sha256: str) -> Reference:
        rows = await self._dicts("payload_size", {"job_id": job_id, "sha256": sha256})
        if not rows:
            raise payload.missing(job_id, sha256)
        return {"sha256": sha256, "bytes": rows[0]["size_bytes"]}

    async def payload_part(self, values: dict[str, Any]) -> bytes | None:
        rows = await self._dicts("load_payload_part", values)
        return rows[0]["data"] if rows else None

    async def children(self, job_id: UUID, fan_out: str) -> AsyncIterator[ChildResult]:
        """All children of a fan_out, a page at a time."""
        (found,) = await self._dicts("fan_out_total", {"job_id": job_id, "node_id": fan_out})
        offset = 0
        while offset < found["total"]:
            count = min(CHILDREN_PAGE, found["total"] - offset)
            values = {"job_id": job_id, "node_id": fan_out, "offset": offset, "limit": count, "most_bytes": PAGE_BYTES}
            page = await self._many("read_results", values, ChildResult)
            if not page:
                return
            for row in page:
                yield row
            offset += len(page)

    async def log_lines(
        self,
        job_id: UUID,
        *,
        limit: int,
        after: tuple[str, int, int] = ("", 0, 0),
        node_id: str | None = None,
        attempt: int | None = None,
        is_running: bool = False,
    ) -> list[JobLogLine]:
        """By node, attempt and number; of a fan_out those of its children too."""
        values = {
            "job_id": job_id, "limit": limit, "after_node": after[0], "after_attempt": after[1], "after_number": after[2],
            "node_id": node_id, "attempt": attempt,
        }  # fmt: skip
        return await self._many("api_running_log_lines" if is_running else "api_log_lines", values, JobLogLine)

    async def progress(self, job_ids: Sequence[UUID]) -> list[NodeProgress]:
        """What running attempts of these jobs say of themselves; of each job the first MOST_PROGRESS."""
        return await self._many("api_progress", {"job_ids": list(job_ids), "most": MOST_PROGRESS}, NodeProgress)

    async def may_report(self, worker_id: UUID, job_id: UUID, node_id: str, attempt: int) -> bool:
        """Whether a report of this attempt is this worker's to make: it holds the task, or the task is over."""
        values = {"job_id": job_id, "node_id": node_id, "attempt": attempt}
        for row in await self._dicts("api_task_holder", values):
            return row["worker_id"] == worker_id or TaskStatus(row["status"]) in TASK_TERMINAL
        return False

    async def timeline(
        self, job_id: UUID, *, limit: int, after: tuple[str, int] = ("", 0), status: str | None = None
    ) -> list[TimelineEntry]:
        values = {
            "job_id": job_id, "limit": limit, "after_node": after[0], "after_attempt": after[1], "status": status,
        }  # fmt: skip
        return await self._many("api_timeline", values, TimelineEntry)

    # Why nodes wait

    async def live_tasks(self, job_id: UUID, node_ids: Sequence[str], within_seconds: float) -> dict[str, LiveTask]:
        values = {"job_id": job_id, "node_ids": list(node_ids), "within": within_seconds, "most": MOST_IN_FRONT}
        return {task.node_id: task for task in await self._many("api_live_tasks", values, LiveTask)}

    async def unfinished_children(self, job_id: UUID, parent: str, *, limit: int, after: str = "") -> list[NodeSummary]:
        values = {"job_id": job_id, "parent": parent, "limit": limit, "after": after}
        return await self._many("api_unfinished_children", values, NodeSummary)

    async def queued_children(self, job_id: UUID, parents: Sequence[str]) -> dict[str, str]:
        """One queued child of each fan_out that has any."""
        rows = await self._dicts("api_first_queued_child", {"job_id": job_id, "parents": list(parents)})
        return {row["parent"]: row["node_id"] for row in rows}

    async def next_retries(self, job_id: UUID) -> dict[str, datetime]:
        rows = await self._dicts("api_next_retry", {"job_id": job_id})
        return {row["parent"]: row["due_at"] for row in rows}

    async def queue_settings(self) -> dict[str, QueueSettings]:
        return {found.queue: found for found in await self._many("api_queue_settings", {}, QueueSettings)}

    async def running_in(self, queues: Sequence[str]) -> dict[str, int]:
        rows = await self._dicts("api_queue_running", {"queues": list(queues)})
        return {row["queue"]: row["count"] for row in rows}

    # Operations

    async def orchestrators(
        self, *, limit: int, within_seconds: float, after: UUID | None = None
    ) -> list[OrchestratorSummary]:
        values = {"limit": limit, "after": after, "within": within_seconds}
        return await self._many("api_orchestrators", values, OrchestratorSummary)

    async def workers(self, *, limit: int, within_seconds: float, after: UUID | None = None) -> list[WorkerSummary]:
        values = {"limit": limit, "after": after, "within": within_seconds}
        return await self._many("api_workers", values, WorkerSummary)

    async def queues(
        self, known: Sequence[str], job_queue: str, *, within_seconds: float, only: str | None = None
    ) -> list[QueueSummary]:
        values = {"known": list(known), "job_queue": job_queue, "within": within_seconds, "only": only}
        return await self._many("api_queues", values, QueueSummary)

    async def dead_letters(
        self, job_queue: str, *, limit: int, after: tuple[datetime, UUID] | None = None, reason: str | None = None
    ) -> list[DeadLetterSummary]:
        after_at, after_id = after or (None, None)
        values = {"job_queue": job_queue, "limit": limit, "after_at": after_at, "after_id": after_id, "reason": reason}
        return await self._many("api_dead_letters", values, DeadLetterSummary)

    async def dead_letter(self, job_queue: str, dead_letter_id: UUID) -> DeadLetterSummary:
        values = {"job_queue": job_queue, "dead_letter_id": dead_letter_id}
        found = await self._first("api_dead_letter", values, DeadLetterSummary)
        if found is None:
            raise NotFound(f"no dead letter has the id {dead_letter_id}", code="dead-letter.not-found")
        return found

    async def janitor_actions(
        self,
        *,
        limit: int,
        after: tuple[datetime, UUID] | None = None,
        action_type: str | None = None,
        target_id: str | None = None,
        run_id: UUID | None = None,
        since: datetime | None = None,
    ) -> list[JanitorAction]:
        after_at, after_id = after or (None, None)
        values = {
            "limit": limit, "after_at": after_at, "after_id": after_id, "action_type": action_type,
            "target_id": target_id, "run_id": run_id, "since": since,
        }  # fmt: skip
        return await self._many("janitor_actions", values, JanitorAction)

    async def jobs_by_status(self) -> dict[str, int]:
        return {row["status"]: row["count"] for row in await self._dicts("api_jobs_by_status", {})}

    async def recent_workflows(self, hours: int) -> list[WorkflowStatistics]:
        return await self._many("api_recent_workflows", {"hours": hours}, WorkflowStatistics)

    async def sizes(self) -> Sizes:
        (sizes,) = await self._many("api_sizes", {}, Sizes)
        return sizes

    async def task_counts(self, sizes: Sizes) -> tuple[list[TaskCount], bool]:
        """Tasks by queue and state, and whether that is all of them: of a large table only the live ones are counted."""
        is_all = sizes.tasks_bytes <= _COUNTABLE_BYTES
        return await self._many("api_task_counts" if is_all else "api_live_task_counts", {}, TaskCount), is_all

    async def liveness(self, owner_id: UUID | None, within_seconds: float) -> Liveness | None:
        """None where the schema is there but was never finished."""
        return await self._first("api_liveness", {"owner_id": owner_id, "within": within_seconds}, Liveness)

    async def database_name(self) -> str:
        return str((await self._dicts("api_database_name", {}))[0]["database"])


async def _configure(connection: Connection) -> None:
    set_json_dumps(orjson.dumps, connection)
    set_json_loads(orjson.loads, connection)


def _adapter(kind: type[T]) -> TypeAdapter[list[T]]:
    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(list[kind])  # type: ignore[valid-type]
    return _adapters[kind]


_adapters: dict[type, TypeAdapter[Any]] = {}


def _found(row: T | None, job_id: UUID) -> T:
    if row is None:
        raise NotFound(f"no job has the id {job_id}", code="job.not-found", job_id=str(job_id))
    return row
