"""What happened to the tasks of a job since its last transaction: the input of the planner.

Each update has the counters of its node, so that children of fan_outs need not be kept in memory.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dagmaster.jobs.states import NodeStatus, Stop


@dataclass(frozen=True, slots=True)
class _NodeUpdate:
    node_id: str
    attempt: int
    parent_node_id: str | None
    fan_out_index: int | None
    status: NodeStatus  # of the node, before the update
    retry_count: int
    loss_count: int


@dataclass(frozen=True, slots=True)
class Succeeded(_NodeUpdate):
    started_at: datetime | None
    finished_at: datetime
    worker_id: str
    output: Any = None  # only of nodes of the definition, and only if it is small
    has_output: bool = True


@dataclass(frozen=True, slots=True)
class Failed(_NodeUpdate):
    started_at: datetime | None
    finished_at: datetime
    worker_id: str
    error: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Returned(_NodeUpdate):
    """The worker returned the task: it shuts down, or was asked to stop the task."""

    started_at: datetime | None
    finished_at: datetime
    worker_id: str


@dataclass(frozen=True, slots=True)
class Lost(_NodeUpdate):
    """The lease expired: the worker died or is unreachable."""

    started_at: datetime | None
    worker_id: str


@dataclass(frozen=True, slots=True)
class Overran(_NodeUpdate):
    """The task ran longer than its timeout of `seconds`, and its worker did not end it."""

    started_at: datetime | None
    worker_id: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Expired(_NodeUpdate):
    """The task waited in its queue for longer than `seconds`, and no worker has started it."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Started(_NodeUpdate):
    started_at: datetime | None
    worker_id: str


@dataclass(frozen=True, slots=True)
class Due(_NodeUpdate):
    """A ready node whose wait is over."""


@dataclass(frozen=True, slots=True)
class Idle(_NodeUpdate):
    """A child that waits to run again since its job was resumed, and may run now."""


@dataclass(frozen=True, slots=True)
class Withdrawn(_NodeUpdate):
    """A queued task was withdrawn because its job is failing or stopping."""


@dataclass(frozen=True, slots=True)
class StopRequest:
    """A job is to be stopped: a caller asked for it, or its deadline has passed."""

    stop: Stop
    by: str | None = None
    reason: str | None = None


TaskUpdate = Succeeded | Failed | Returned | Lost | Overran | Expired | Started | Due | Idle | Withdrawn
