"""What people ask: jobs, their nodes, children and events. Reads only, and nothing that decides anything.

Lists come in pages by key. A fan_out is its counters; its children are read only where someone asks for them.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self, TypeVar
from uuid import UUID

from psycopg.rows import class_row, dict_row

from dagmaster.client.models.jobs import EventEntry
from dagmaster.client.models.nodes import NodeSummary
from dagmaster.database.connect import Connection, connect, not_deployed, translate_errors
from dagmaster.database.queries import query
from dagmaster.errors import InvalidRequest, NotFound
from dagmaster.jobs.ids import ids_beginning_with
from dagmaster.jobs.states import JOB_TERMINAL, JobStatus, NodeStatus

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Instance:
    """An orchestrator or a worker that lives."""

    role: str
    host: str
    pid: int
    heartbeat_at: datetime


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A job and its own nodes at one moment, in the order of the definition's graph."""

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
class TaskTotals:
    """What the attempts of one node, or of all children of a fan_out, added up to."""

    node_id: str
    tasks: int
    attempts: int
    failed: int
    lost: int
    waited_seconds: float
    ran_seconds: float
    first_at: datetime | None
    last_at: datetime | None


class Reads:
    """One connection for questions, opened when first needed and opened anew after a failure."""

    def __init__(self, dsn: str, role: str = "cli") -> None:
        self._dsn = dsn
        self._role = role
        self._connection: Connection | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def require_schema(self) -> None:
        """Refuse a database that nobody has deployed to."""
        rows = await self._dicts("schema_is_deployed", {})
        if not rows[0]["is_deployed"]:
            raise not_deployed()

    async def live_instances(self, within_seconds: float = 60.0) -> list[Instance]:
        return await self._rows("live_instances", {"within": within_seconds}, Instance)

    async def find_job(self, name: str) -> UUID:
        """The job that an id, the unique beginning of one, or `last` stands for."""
        if name == "last":
            newest = await self._dicts("newest_job", {})
            if not newest:
                raise NotFound("there is no job yet", code="job.not-found")
            return UUID(str(newest[0]["job_id"]))
        first, last = ids_beginning_with(name)
        found = [row["job_id"] for row in await self._dicts("jobs_between", {"first": first, "last": last})]
        if not found:
            raise NotFound(f"no job has the id {name}", code="job.not-found", hint="see `dagmaster jobs ls`")
        if len(found) > 1:
            some = ", ".join(str(job_id) for job_id in found[:3])
            raise InvalidRequest(
                f"several jobs begin with {name}: {some}, …", code="job.ambiguous", hint="type more of it"
            )
        return UUID(str(found[0]))

    async def watch_job(self, job_id: UUID, node_ids: Sequence[str]) -> Snapshot:
        rows = await self._dicts("watch_job", {"job_id": job_id, "node_ids": list(node_ids)})
        if not rows:
            raise NotFound(f"no job has the id {job_id}", code="job.not-found", job_id=str(job_id))
        job = {name: rows[0][f"job_{name}"] for name in _JOB_COLUMNS}
        nodes = tuple(_node({name: row[name] for name in NodeSummary.model_fields}) for row in rows)
        return Snapshot(**{**job, "status": JobStatus(job["status"])}, now=rows[0]["now"], nodes=nodes)

    async def page_children(
        self, job_id: UUID, parent: str, *, limit: int, after: int = -1, status: str | None = None
    ) -> list[NodeSummary]:
        """Children of a fan_out in index order, beginning behind the index `after`."""
        values = {"job_id": job_id, "parent": parent, "limit": limit, "after": after, "status": status}
        return [_node(row) for row in await self._dicts("page_children", values)]

    async def page_events(
        self, job_id: UUID, *, limit: int, after: int = 0, node_id: str | None = None
    ) -> list[EventEntry]:
        values = {"job_id": job_id, "limit": limit, "after": after, "node_id": node_id}
        return await self._rows("page_events", values, EventEntry)

    async def task_totals(self, job_id: UUID) -> dict[str, TaskTotals]:
        found = await self._rows("task_totals", {"job_id": job_id}, TaskTotals)
        return {totals.node_id: totals for totals in found}

    async def _rows(self, name: str, values: Mapping[str, Any], kind: type[T]) -> list[T]:
        async with self._connected() as connection:
            cursor = connection.cursor(row_factory=class_row(kind))
            return await (await cursor.execute(query(name), values)).fetchall()

    async def _dicts(self, name: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        async with self._connected() as connection:
            cursor = connection.cursor(row_factory=dict_row)
            return await (await cursor.execute(query(name), values)).fetchall()

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Connection]:
        """The connection, for one question. It is given up when the answer did not come."""
        if self._connection is None or self._connection.closed:
            self._connection = await connect(self._dsn, role=self._role)
        try:
            with translate_errors():
                yield self._connection
        except BaseException:
            await self.close()
            raise


_JOB_COLUMNS = ("status", "created_at", "started_at", "completed_at", "error_message")


def _node(row: Mapping[str, Any]) -> NodeSummary:
    return NodeSummary(**{**row, "status": NodeStatus(row["status"])})
