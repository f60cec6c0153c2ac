"""Jobs: lists by page, one job, its definition, its events, and a snapshot of its nodes.

A fan_out is read as its counters; its children are read only by `reads/nodes`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from dagmaster.client.models.jobs import EventEntry, JobSummary, StoppingTask
from dagmaster.client.models.nodes import NodeSummary
from dagmaster.database.reads.session import ReadSession, models
from dagmaster.errors import InvalidRequest, NotFound
from dagmaster.jobs.ids import ids_beginning_with
from dagmaster.jobs.model import Job
from dagmaster.jobs.states import JOB_TERMINAL, JobStatus
from dagmaster.workflows.graph import Graph, build
from dagmaster.workflows.model import Workflow

T = TypeVar("T")
_GRAPHS_KEPT = 256
_JOB_COLUMNS = ("status", "created_at", "started_at", "completed_at", "error_message")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A job and its own nodes at one moment, in the order of the graph."""

    status: JobStatus
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    error_message: str | None
    now: datetime
    nodes: tuple[NodeSummary, ...]

    @property
    def is_over(self) -> bool:
        return self.status in JOB_TERMINAL

    @property
    def seconds(self) -> float:
        return ((self.completed_at or self.now) - self.created_at).total_seconds()


@dataclass(frozen=True, slots=True)
class JobBrief:
    """The facts of a job that reads of its parts need."""

    status: JobStatus
    definition_hash: str
    owner_id: UUID | None
    last_sequence: int
    now: datetime
    deferred_work: list[dict[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class EventPosition:
    """The number of a job's last event, and the status of the job at that event."""

    job_id: UUID
    status: JobStatus
    last_sequence: int


class JobReads(ReadSession):
    def __init__(self, dsn: str, role: str = "cli") -> None:
        super().__init__(dsn, role)
        self._graphs: dict[str, Graph] = {}

    async def find_job(self, name: str) -> UUID:
        """The job with this id or unique prefix of an id, or the `last` one."""
        if name == "last":
            newest = await self._dicts("newest_job", {})
            if not newest:
                raise NotFound("there is no job yet", code="job.not-found")
            return UUID(str(newest[0]["job_id"]))
        first, last = ids_beginning_with(name)
        matches = [row["job_id"] for row in await self._dicts("jobs_between", {"first": first, "last": last})]
        if not matches:
            raise NotFound(f"no job has the id {name}", code="job.not-found", hint="see `dagmaster jobs ls`")
        if len(matches) > 1:
            some = ", ".join(str(job_id) for job_id in matches[:3])
            raise InvalidRequest(
                f"several jobs begin with {name}: {some}, …", code="job.ambiguous", hint="type more digits of the id"
            )
        return UUID(str(matches[0]))

    async def jobs(
        self,
        *,
        limit: int,
        after: UUID | None = None,
        statuses: Sequence[str] | None = None,
        workflow_id: str | None = None,
        submitted_by: str | None = None,
        correlation_id: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
    ) -> list[JobSummary]:
        """Newest first, starting after the job `after`."""
        values = {
            "limit": limit,
            "after": after,
            "statuses": list(statuses) if statuses else None,
            "workflow_id": workflow_id,
            "submitted_by": submitted_by,
            "correlation_id": correlation_id,
            "created_after": created_after,
            "created_before": created_before,
        }
        return await self._many("api_jobs", values, JobSummary)

    async def job(self, job_id: UUID) -> Job:
        return _existing(await self._first("api_job", {"job_id": job_id}, Job), job_id)

    async def brief(self, job_id: UUID) -> JobBrief:
        return _existing(await self._first("api_job_brief", {"job_id": job_id}, JobBrief), job_id)

    async def graph(self, definition_hash: str) -> Graph:
        """The graph of a stored definition. Definitions never change, so recent ones are cached."""
        graph = self._graphs.get(definition_hash)
        if graph is None:
            rows = await self._dicts("api_definition", {"definition_hash": definition_hash})
            while len(self._graphs) >= _GRAPHS_KEPT:
                self._graphs.pop(next(iter(self._graphs)))
            graph = self._graphs[definition_hash] = _graph_of(rows, definition_hash)
        return graph

    async def watch_job(self, job_id: UUID, node_ids: Sequence[str]) -> Snapshot:
        rows = await self._dicts("watch_job", {"job_id": job_id, "node_ids": list(node_ids)})
        if not rows:
            raise NotFound(f"no job has the id {job_id}", code="job.not-found", job_id=str(job_id))
        job = {name: rows[0][f"job_{name}"] for name in _JOB_COLUMNS}
        nodes = [{name: row[name] for name in NodeSummary.model_fields} for row in rows if row["node_id"] is not None]
        return Snapshot(
            **{**job, "status": JobStatus(job["status"])}, now=rows[0]["now"], nodes=tuple(models(NodeSummary, nodes))
        )

    async def page_events(
        self, job_id: UUID, *, limit: int, after: int = 0, node_id: str | None = None
    ) -> list[EventEntry]:
        values = {"job_id": job_id, "limit": limit, "after": after, "node_id": node_id}
        return await self._many("page_events", values, EventEntry)

    async def heads(self, job_ids: Sequence[UUID]) -> list[EventPosition]:
        return await self._many("api_heads", {"job_ids": list(job_ids)}, EventPosition)

    async def stopping_tasks(self, job_id: UUID, limit: int = 100) -> list[StoppingTask]:
        return await self._many("api_stopping_tasks", {"job_id": job_id, "limit": limit}, StoppingTask)


def _graph_of(rows: list[dict[str, Any]], definition_hash: str) -> Graph:
    try:
        return build(Workflow.model_validate(rows[0]["body"]))
    except (IndexError, KeyError, ValueError) as error:
        raise NotFound(
            "the definition of the job is missing or cannot be read",
            code="definition.unreadable",
            hint="run `dagmaster verify-history`",
            definition_hash=definition_hash,
        ) from error


def _existing(row: T | None, job_id: UUID) -> T:
    if row is None:
        raise NotFound(f"no job has the id {job_id}", code="job.not-found", job_id=str(job_id))
    return row
