"""What one transaction writes to one job: rows, counters and events, ready for a ledger to carry out.

The planner's decisions end up here. Event sequences follow on from the job's last one, which the ledger handed over under the
job's lock. A row appears once in a transaction: what happens to it in several steps is merged into its last state.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from dagmaster.jobs.states import EventType, JobStatus, NodeStatus, Stop
from dagmaster.workflows.model import Aggregation


@dataclass(slots=True)
class NodeChange:
    """The last state a node reaches in this transaction. None leaves a column as it is. Its draft fills it in."""

    node_id: str
    status: NodeStatus
    attempt: int | None = None
    retry_count: int | None = None
    loss_count: int | None = None
    max_retries: int | None = None
    reason: str | None = None
    error: dict[str, Any] | None = None
    output: Any = None
    takes_result: bool = False  # the output is the one that this attempt reported
    input_params: dict[str, Any] | None = None
    wait_seconds: float | None = None  # ready, but not before
    total: int | None = None
    expanded: int | None = None
    ended: int = (
        0  # of a fan_out: children that ended in this transaction, and how many of them failed or were cancelled
    )
    ended_failed: int = 0
    ended_cancelled: int = 0
    woken: int = 0  # … and children that no longer wait to run again
    taken: int = 0  # … and of a run before that were taken up, or left out
    label: str | None = None  # of a child that was taken up
    started_at: datetime | None = None
    finished_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class NewChild:
    """A fan_out's child, born with its first task. Its parameters are on the task."""

    node_id: str
    index: int
    label: str | None
    max_retries: int


@dataclass(frozen=True, slots=True)
class NewTask:
    node_id: str
    attempt: int
    queue: str
    handler: str
    params: dict[str, Any] | None  # None where they are kept by reference
    timeout_seconds: float
    retry_count: int
    queue_timeout_seconds: float | None = None
    params_ref: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class NextAttempt:
    """A node's next task: handler, queue, time and parameters are those of the attempt before."""

    node_id: str
    attempt: int
    retry_count: int


@dataclass(frozen=True, slots=True)
class PoisonedTask:
    """A task that its environment did not survive, again and again: kept among the dead letters for people to look into."""

    node_id: str
    attempt: int
    description: str


@dataclass(frozen=True, slots=True)
class FanInCompletion:
    """A fan_in completes with its children's results, gathered by the ledger."""

    node_id: str
    fan_out: str
    aggregation: Aggregation


@dataclass(frozen=True, slots=True)
class NewEvent:
    sequence: int
    type: EventType
    node_id: str | None = None
    status: str | None = None
    attempt: int | None = None
    data: dict[str, Any] | None = None
    at: datetime | None = None  # None: the ledger's clock


@dataclass(frozen=True, slots=True)
class JobChange:
    status: JobStatus
    result_data: Any = None
    error_message: str | None = None


@dataclass(slots=True)
class Changes:
    job_id: UUID
    epoch: int
    sequence: int  # of the last event
    priority: int = 0
    promoted: list[str] = field(default_factory=list)  # nodes that pass through `ready` on their way to another state
    nodes: list[NodeChange] = field(default_factory=list)
    children: dict[str, list[NewChild]] = field(default_factory=dict)  # by fan_out
    tasks: list[NewTask] = field(default_factory=list)
    next_attempts: list[NextAttempt] = field(default_factory=list)
    poisoned: list[PoisonedTask] = field(default_factory=list)
    completed_fan_ins: list[FanInCompletion] = field(default_factory=list)
    events: list[NewEvent] = field(default_factory=list)
    job_moves: list[JobChange] = field(default_factory=list)
    stopping: Stop | None = None  # from now on
    payloads: dict[str, bytes] = field(default_factory=dict)  # what the rows above refer to, by hash

    def record(
        self,
        type_: EventType,
        *,
        node: str | None = None,
        status: str | None = None,
        attempt: int | None = None,
        data: dict[str, Any] | None = None,
        at: datetime | None = None,
    ) -> None:
        self.sequence += 1
        self.events.append(NewEvent(self.sequence, type_, node, status, attempt, data, at))

    @property
    def is_empty(self) -> bool:
        """Every change comes with an event."""
        return not self.events
