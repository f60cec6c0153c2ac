"""What happened to a job's tasks since the orchestrator last looked: the planner's input.

Each carries the counters of its node, so that a fan_out's child can be judged without being kept in memory.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dagmaster.jobs.states import NodeStatus, Stop


@dataclass(frozen=True, slots=True)
class _NodeUpdate:
    node_id: str
    attempt: int
    parent: str | None
    index: int | None
    was: NodeStatus
    retry_count: int
    loss_count: int


@dataclass(frozen=True, slots=True)
class Succeeded(_NodeUpdate):
    started_at: datetime | None
    finished_at: datetime
    worker_id: str
    output: Any = None  # only for nodes of the definition, and only small ones
    has_output: bool = True


@dataclass(frozen=True, slots=True)
class Failed(_NodeUpdate):
    started_at: datetime | None
    finished_at: datetime
    worker_id: str
    error: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Returned(_NodeUpdate):
    """The task was given back: its worker shuts down, or it was asked to stop."""

    started_at: datetime | None
    finished_at: datetime
    worker_id: str


@dataclass(frozen=True, slots=True)
class Lost(_NodeUpdate):
    """The lease lapsed: the worker is gone, or can't be heard."""

    started_at: datetime | None
    worker_id: str


@dataclass(frozen=True, slots=True)
class Overran(_NodeUpdate):
    """Still running past its time, and the worker did not end it; or it waited in its queue longer than it may."""

    started_at: datetime | None
    worker_id: str | None
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
    """A child that waits to run again since its job was resumed, and may now."""


@dataclass(frozen=True, slots=True)
class Withdrawn(_NodeUpdate):
    """A queued (or running) task was taken back because its job is failing."""


@dataclass(frozen=True, slots=True)
class StopRequest:
    """A job is to end before its time: people ask for it, or its deadline has passed."""

    stop: Stop
    by: str | None = None
    why: str | None = None


TaskUpdate = Succeeded | Failed | Returned | Lost | Overran | Started | Due | Idle | Withdrawn
