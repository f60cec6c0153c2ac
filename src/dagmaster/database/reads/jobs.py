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
from dagmaster.database.queries import query
from dagmaster.database.reads.session import ReadSession, models
from dagmaster.database.session import dicts
from dagmaster.errors import InvalidRequest, NotFound
from dagmaster.jobs.ids import ids_beginning_with
from dagmaster.jobs.model import Job
from dagmaster.jobs.states import JOB_TERMINAL, JobStatus
from dagmaster.quantities import first_of
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
    """The few columns of a job that reads of its nodes and events need."""

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


@dataclass(frozen=True, slots=True)
class JobFilters:
    """Which jobs a list has. `words` must all occur in a job."""

    statuses: Sequence[str] | None = None
    workflow_ids: Sequence[str] | None = None
    submitters: Sequence[str] | None = None
    correlation_id: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    words: str | None = None

    def values(self) -> dict[str, Any]:
        workflow_id, workflow_ids = _one_or_many(self.workflow_ids)
        submitted_by, submitters = _one_or_many(self.submitters)
        return {
            "workflow_id": workflow_id,
            "workflow_ids": workflow_ids,
            "submitted_by": submitted_by,
            "submitters": submitters,
            "correlation_id": self.correlation_id,
            "created_after": self.created_after,
            "created_before": self.created_before,
        }


def _one_or_many(values: Sequence[str] | None) -> tuple[str | None, list[str] | None]:
    """The only value, or all of them."""
    distinct = sorted(set(values or ()))
    return (distinct[0], None) if len(distinct) == 1 else (None, distinct or None)


@dataclass(frozen=True, slots=True)
class ListedJob:
    """A job of a list, when it was read, and the hash of its definition."""

    job: JobSummary
    now: datetime
    definition_hash: str


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
            raise InvalidRequest(
                f"several jobs have an id that begins with {name}: {first_of(matches, 3)}",
                code="job.ambiguous",
                hint="type more digits of the id",
            )
        return UUID(str(matches[0]))

    async def jobs(self, filters: JobFilters, *, limit: int, after: UUID | None = None) -> list[ListedJob]:
        """Newest first, starting after the job `after`."""
        status, statuses = _one_or_many(filters.statuses)
        values = {**filters.values(), "limit": limit, "after": after}
        if filters.words is not None:
            all_statuses = statuses or ([status] if status else None)
            rows = await self._search("api_search_jobs", {**values, "words": filters.words, "statuses": all_statuses})
        elif statuses:
            rows = await self._dicts("api_jobs_in_states", {**values, "statuses": statuses})
        else:
            rows = await self._dicts("api_jobs", {**values, "status": status})
        return [_listed(row) for row in rows]

    async def jobs_by_id(self, job_ids: Sequence[UUID]) -> list[ListedJob]:
        return [_listed(row) for row in await self._dicts("api_jobs_by_id", {"job_ids": list(job_ids)})]

    async def job_counts(self, filters: JobFilters, limit: int) -> dict[str, int]:
        """The number of jobs in each state, up to a limit for each; with words, up to a limit for all together."""
        values = {**filters.values(), "limit": limit}
        if filters.words is not None:
            rows = await self._search("api_search_counts", {**values, "words": filters.words})
        else:
            rows = await self._dicts("api_job_counts", {**values, "statuses": [status.value for status in JobStatus]})
        return {row["status"]: row["count"] for row in rows}

    async def _search(self, name: str, values: dict[str, Any]) -> list[dict[str, Any]]:
        async with self._connected() as connection, connection.transaction():
            await connection.execute(query("allow_bitmap_scans"))
            return await dicts(connection, name, values)

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


def _listed(row: dict[str, Any]) -> ListedJob:
    now, definition_hash = row.pop("now"), row.pop("definition_hash")
    (job,) = models(JobSummary, [row])
    return ListedJob(job, now, definition_hash)


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
