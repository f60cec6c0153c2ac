"""What one transaction writes to one job: rows, counters and events.

The planner fills a `Changes`, and a ledger writes it. Events are numbered after the job's last one, which the ledger
read under the job's lock. A row is written once in a transaction: several transitions are merged into its last state.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from dagmaster.jobs.routing import DeferredWork
from dagmaster.jobs.states import EventType, JobStatus, NodeStatus, Stop
from dagmaster.workflows.model import Aggregation


@dataclass(slots=True)
class NodeChange:
    """The last state that a node reaches in this transaction. None leaves a column as it is.

    Unlike a `NodeView`, it has only the columns that change, and it counts children by difference, because other
    transactions count too. `takes_result`: the output is the one that this attempt reported. `wait_seconds`: the node
    is ready, but is not dispatched before this delay is over.
    """

    node_id: str
    status: NodeStatus
    attempt: int | None = None
    retry_count: int | None = None
    loss_count: int | None = None
    max_retries: int | None = None
    reason: str | None = None
    error: dict[str, Any] | None = None
    output: Any = None
    takes_result: bool = False
    input_params: dict[str, Any] | None = None
    wait_seconds: float | None = None
    total: int | None = None
    expanded: int | None = None
    ended: int = 0  # children of a fan_out that ended in this transaction
    ended_failed: int = 0  # … of these, how many failed
    ended_cancelled: int = 0  # … and were cancelled
    woken: int = 0  # children that no longer wait to run again
    settled_stale: int = 0  # stale children that were reused or closed
    label: str | None = None  # of a reused child
    started_at: datetime | None = None
    finished_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class NewChild:
    """A child of a fan_out, created together with its first task. Its params are in the task."""

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
    params: dict[str, Any] | None  # None if they are a payload, see `params_ref`
    timeout_seconds: float
    retry_count: int
    queue_timeout_seconds: float | None = None
    params_ref: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class NextAttempt:
    """A node's next task. Handler, queue, timeout and params are those of the previous attempt."""

    node_id: str
    attempt: int
    retry_count: int


@dataclass(frozen=True, slots=True)
class PoisonedTask:
    """A task whose worker was lost too often. It becomes a dead letter for an operator."""

    node_id: str
    attempt: int
    description: str


@dataclass(frozen=True, slots=True)
class FanInCompletion:
    """A fan_in that completes with the results of its children, which the ledger gathers."""

    node_id: str
    fan_out: str
    aggregation: Aggregation


class NewEvent(NamedTuple):
    sequence: int
    type: EventType
    node_id: str | None = None
    status: str | None = None
    attempt: int | None = None
    data: dict[str, Any] | None = None
    at: datetime | None = None  # None: the time of the ledger's clock


@dataclass(frozen=True, slots=True)
class JobTransition:
    status: JobStatus
    result_data: Any = None
    error_message: str | None = None


@dataclass(slots=True)
class Changes:
    job_id: UUID
    epoch: int
    sequence: int  # of the last event
    priority: int = 0
    promoted: list[str] = field(default_factory=list)  # nodes that pass through `ready` to another state
    nodes: list[NodeChange] = field(default_factory=list)
    children: dict[str, list[NewChild]] = field(default_factory=dict)  # by fan_out
    tasks: list[NewTask] = field(default_factory=list)
    next_attempts: list[NextAttempt] = field(default_factory=list)
    poisoned: list[PoisonedTask] = field(default_factory=list)
    completed_fan_ins: list[FanInCompletion] = field(default_factory=list)
    events: list[NewEvent] = field(default_factory=list)
    job_moves: list[JobTransition] = field(default_factory=list)
    stopping: Stop | None = None  # set if this transaction begins to stop the job
    traceparent: str | None = None  # of this step, for the tasks that it dispatches
    deferred: Mapping[str, DeferredWork] | None = None  # every node that waits for a route; None: unchanged
    payloads: dict[str, bytes] = field(default_factory=dict)  # payloads that the rows refer to, by hash

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
        """Every change has an event, except `deferred`: nodes wait for an orchestrator that knows their handler."""
        return not self.events and self.deferred is None
