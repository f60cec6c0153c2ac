"""The rows that the history check reads: tuples with the names of the columns.

They are not the records of `jobs/model`: a check of a hundred thousand children reads only these columns, and compares
statuses as stored, including those that no enum has.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple
from uuid import UUID


class EventRow(NamedTuple):
    job_id: UUID | None
    sequence: int
    node_id: str | None
    event_type: str
    event_status: str | None
    attempt: int | None
    epoch: int | None
    event_data: Mapping[str, Any] | None

    @property
    def is_reexpanded(self) -> bool:
        """Whether the node was reset so that it expands again. Processes of earlier releases write `anew`."""
        data = self.event_data or {}
        return bool(data.get("is_reexpanded") or data.get("anew"))


class JobRow(NamedTuple):
    job_id: UUID
    status: str
    definition_hash: str
    last_sequence: int
    epoch: int
    resume_count: int
    is_overdue: bool = False  # its deadline is over, and it has not ended
    is_unconcluded: bool = False  # all its nodes have ended, and it has not


class NodeRow(NamedTuple):
    """`chosen` is the branch of a conditional, `gathered` the number of results in the output of a fan_in."""

    job_id: UUID
    node_id: str
    status: str
    parent_node_id: str | None
    fan_out_index: int | None
    attempt: int
    retry_count: int
    loss_count: int
    run: int
    total: int | None = None
    expanded: int | None = None
    remaining: int | None = None
    failed_count: int | None = None
    cancelled_count: int | None = None
    idle_count: int | None = None
    stale_count: int | None = None
    chosen: list[str] | None = None
    gathered: int | None = None


class TaskRow(NamedTuple):
    job_id: UUID
    node_id: str
    attempt: int
    status: str


class ResultRow(NamedTuple):
    """`is_other_output`: the node completed with this attempt, but its row holds another output."""

    job_id: UUID
    node_id: str
    attempt: int
    status: str
    accepted: bool
    processed: bool
    is_other_output: bool = False
