"""Reads that only the old API needs: the tasks of a stage, and totals over the children of a fan_out."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import JsonValue

from dagmaster.database.reads.session import ReadSession
from dagmaster.jobs.model import StoredJson
from dagmaster.jobs.states import NodeStatus

MAX_TASK_BYTES = 16_384  # of the params or the output of a task in a list; larger ones are left out


@dataclass(frozen=True, slots=True)
class ChildrenFacts:
    """Totals over the children of one fan_out."""

    node_id: str
    completed_at: datetime | None
    cogs_created: int
    total_size_mb: float


@dataclass(frozen=True, slots=True)
class OldTask:
    """A node that workers run, or a child of a fan_out."""

    node_id: str
    parent_node_id: str | None
    fan_out_index: int | None
    task_id: str | None
    status: NodeStatus
    input_params: StoredJson | None
    output: JsonValue
    error_message: str | None
    retry_count: int
    dispatched_at: datetime | None
    started_at: datetime | None
    completed_at: datetime | None


class LegacyReads(ReadSession):
    async def children_facts(self, job_id: UUID, fan_outs: Sequence[str], *, with_outputs: bool) -> list[ChildrenFacts]:
        """`with_outputs`: also read the outputs. Otherwise only the time at which the last child ended."""
        if not fan_outs:
            return []
        values = {"job_id": job_id, "fan_outs": list(fan_outs), "with_outputs": with_outputs}
        return await self._many("legacy_children", values, ChildrenFacts)

    async def output_fields(
        self, job_id: UUID, node_ids: Sequence[str], names: Sequence[str]
    ) -> dict[str, dict[str, Any]]:
        """These fields of the outputs of nodes, by node."""
        values = {"job_id": job_id, "node_ids": list(node_ids), "names": list(names)}
        return {row["node_id"]: row["fields"] for row in await self._dicts("legacy_output_fields", values)}

    async def old_tasks(self, job_id: UUID, node_ids: Sequence[str], *, limit: int, offset: int) -> list[OldTask]:
        """Tasks of these nodes and of their children, in the given order and by index."""
        values = {"job_id": job_id, "node_ids": list(node_ids), "limit": limit, "offset": offset}
        return await self._many("legacy_tasks", {**values, "max_bytes": MAX_TASK_BYTES}, OldTask)
