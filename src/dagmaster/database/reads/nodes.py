"""Nodes of a job and children of fan_outs: their attempts, log lines, progress, outputs, and what they wait for.

Lists are read in pages by key: no statement here reads all children of a job.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from dagmaster.client.models.jobs import TimelineEntry
from dagmaster.client.models.nodes import Attempt, JobLogLine, NodeSummary, SavedCheckpoint
from dagmaster.database.ledger.protocol import PAGE_BYTES
from dagmaster.database.reads.jobs import JobReads
from dagmaster.database.reads.session import models
from dagmaster.errors import NotFound
from dagmaster.jobs import payload
from dagmaster.jobs.fan import ChildResult
from dagmaster.jobs.model import NodeState, StoredJson
from dagmaster.jobs.payload import Reference
from dagmaster.jobs.states import TASK_TERMINAL, TaskStatus

MAX_TASKS_AHEAD = 1000  # tasks before another one in a queue are counted up to this number
MAX_ATTEMPTS = 200
MAX_PROGRESS = 50
CHILDREN_PAGE = 500


@dataclass(frozen=True, slots=True)
class ReportedProgress:
    """The progress that the running attempt of a node reported."""

    job_id: UUID
    node_id: str
    attempt: int
    progress: StoredJson


@dataclass(frozen=True, slots=True)
class LiveTask:
    """A node's queued or running task, with the number of live workers that can run it, the number of those that serve
    its queue, and the number of tasks before it, counted up to MAX_TASKS_AHEAD."""

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
    progress: StoredJson | None
    live_workers: int
    serving_workers: int
    tasks_ahead: int | None


class NodeReads(JobReads):
    async def node(self, job_id: UUID, node_id: str) -> NodeState:
        node = await self._first("api_node", {"job_id": job_id, "node_id": node_id}, NodeState)
        if node is None:
            await self.brief(job_id)
            raise NotFound(f"job {job_id} has no node '{node_id}'", code="node.not-found", node_id=node_id)
        return node

    async def page_children(
        self, job_id: UUID, parent: str, *, limit: int, after: int = -1, statuses: Sequence[str] | None = None
    ) -> list[NodeSummary]:
        """Children of a fan_out in index order, starting after the index `after`."""
        values = {"job_id": job_id, "parent": parent, "limit": limit, "after": after}
        values["statuses"] = list(statuses) if statuses else None
        return await self._many("page_children", values, NodeSummary)

    async def attempts(self, job_id: UUID, node_id: str) -> list[Attempt]:
        """The last ones first, with the lines they logged."""
        values = {"job_id": job_id, "node_id": node_id, "limit": MAX_ATTEMPTS}
        rows = await self._dicts("api_attempts", values)
        for row in rows:
            reported = row["metrics"].pop("log", None) if isinstance(row["metrics"], dict) else None
            row["log"] = readable_lines(reported or row["log"], row["queued_at"])
        return models(Attempt, rows)

    async def checkpoints(self, job_id: UUID, node_id: str) -> list[SavedCheckpoint]:
        """The last ones first."""
        values = {"job_id": job_id, "node_id": node_id, "limit": MAX_ATTEMPTS}
        return await self._many("api_checkpoints", values, SavedCheckpoint)

    async def export_rows(self, name: str, job_id: UUID, after: Mapping[str, Any], limit: int) -> list[dict[str, Any]]:
        """A page of one list of the export of a job. `after` is the key of the last row of the previous page."""
        return await self._dicts(name, {**after, "job_id": job_id, "limit": limit})

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
        """By node, attempt and number; for a fan_out also the lines of its children."""
        values = {
            "job_id": job_id,
            "limit": limit,
            "after_node": after[0],
            "after_attempt": after[1],
            "after_number": after[2],
            "node_id": node_id,
            "attempt": attempt,
        }
        rows = await self._dicts("api_running_log_lines" if is_running else "api_log_lines", values)
        lines = [{**row, **_readable(row["line"], row["queued_at"]), "number": row["number"]} for row in rows]
        return models(JobLogLine, lines)

    async def progress(self, job_ids: Sequence[UUID]) -> list[ReportedProgress]:
        """The progress of the running attempts of these jobs; at most MAX_PROGRESS per job."""
        return await self._many("api_progress", {"job_ids": list(job_ids), "most": MAX_PROGRESS}, ReportedProgress)

    async def timeline(
        self,
        job_id: UUID,
        *,
        limit: int,
        after: tuple[str, int] = ("", 0),
        statuses: Sequence[str] | None = None,
        node_ids: Sequence[str] | None = None,
    ) -> list[TimelineEntry]:
        """Attempts by node and number; only those of some nodes, if these are given."""
        values = {
            "job_id": job_id,
            "limit": limit,
            "after_node": after[0],
            "after_attempt": after[1],
            "statuses": list(statuses) if statuses else None,
        }
        if node_ids is None:
            return await self._many("api_timeline", values, TimelineEntry)
        return await self._many("api_timeline_of_nodes", {**values, "node_ids": list(node_ids)}, TimelineEntry)

    async def child_timeline(
        self,
        job_id: UUID,
        parent: str,
        *,
        limit: int,
        after: tuple[int, int] = (0, 0),
        statuses: Sequence[str] | None = None,
    ) -> list[TimelineEntry]:
        """Attempts of the children of a fan_out, by index and number."""
        values = {
            "job_id": job_id,
            "parent": parent,
            "limit": limit,
            "after_index": after[0],
            "after_attempt": after[1],
            "statuses": list(statuses) if statuses else None,
        }
        return await self._many("api_timeline_of_children", values, TimelineEntry)

    async def may_report(self, worker_id: UUID, job_id: UUID, node_id: str, attempt: int) -> bool:
        """Whether this worker may report this attempt: it holds the task, or the task has ended."""
        values = {"job_id": job_id, "node_id": node_id, "attempt": attempt}
        for row in await self._dicts("api_task_holder", values):
            return row["worker_id"] == worker_id or TaskStatus(row["status"]) in TASK_TERMINAL
        return False

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
        rows = await self._dicts("fan_out_total", {"job_id": job_id, "node_id": fan_out})
        offset, total = 0, (rows[0]["total"] if rows else None) or 0
        while offset < total:
            count = min(CHILDREN_PAGE, total - offset)
            values = {"job_id": job_id, "node_id": fan_out, "offset": offset, "limit": count, "max_bytes": PAGE_BYTES}
            page = await self._many("read_results", values, ChildResult)
            if not page:
                return
            for child in page:
                yield child
            offset += len(page)

    # Why nodes wait

    async def live_tasks(self, job_id: UUID, node_ids: Sequence[str], within_seconds: float) -> dict[str, LiveTask]:
        values = {"job_id": job_id, "node_ids": list(node_ids), "within": within_seconds, "most": MAX_TASKS_AHEAD}
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


def readable_lines(lines: Any, queued_at: datetime) -> list[dict[str, Any]]:
    """The log lines of an attempt, without those that are not objects with a number."""
    entries = [line for line in lines if isinstance(line, dict)] if isinstance(lines, list) else []
    return [_readable(line, queued_at) for line in entries if isinstance(line.get("number"), int)]


def _readable(line: dict[str, Any], queued_at: datetime) -> dict[str, Any]:
    """A log line. A row may have been changed by hand: a time that cannot be read is shown as that of the attempt."""
    try:
        at = datetime.fromisoformat(line["at"])
    except (KeyError, TypeError, ValueError):
        at = queued_at
    return {"number": line["number"], "at": at, "level": str(line.get("level")), "text": str(line.get("text"))}
