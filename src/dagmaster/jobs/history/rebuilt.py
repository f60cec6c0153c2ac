"""A job as its events describe it, and which rows each state of an attempt allows."""

from dataclasses import dataclass, field
from enum import StrEnum

from dagmaster.jobs.history.findings import HistoryFinding
from dagmaster.jobs.states import TaskStatus


class AttemptState(StrEnum):
    """The state of an attempt according to its events: one letter, so that all attempts of a node are a short text."""

    QUEUED = "q"
    RUNNING = "r"
    SUCCEEDED = "s"
    FAILED = "f"
    OVERRAN = "o"
    EXPIRED = "x"
    LOST = "l"
    RETURNED = "b"
    WITHDRAWN = "w"
    IGNORED = "i"  # its job was failed because it could not be advanced; a report of the worker is ignored


LIVE = frozenset({AttemptState.QUEUED.value, AttemptState.RUNNING.value})
REPORTED = (AttemptState.SUCCEEDED, AttemptState.FAILED, AttemptState.RETURNED)
_T = TaskStatus
# A worker ends its task by itself; the event follows when an orchestrator has read the result.
ENDED_BY_WORKER = frozenset({_T.SUCCEEDED.value, _T.FAILED.value, _T.RETURNED.value, _T.CANCELLED.value})
# The statuses that the task of an attempt may have, and below those of its result, by the state of the attempt.
TASK_STATUSES: dict[str, frozenset[str]] = {
    AttemptState.QUEUED.value: frozenset({_T.QUEUED.value, _T.RUNNING.value}) | ENDED_BY_WORKER,
    AttemptState.RUNNING.value: frozenset({_T.RUNNING.value}) | ENDED_BY_WORKER,
    AttemptState.SUCCEEDED.value: frozenset({_T.SUCCEEDED.value}),
    AttemptState.FAILED.value: frozenset({_T.FAILED.value}),
    AttemptState.OVERRAN.value: frozenset({_T.FAILED.value}),
    AttemptState.EXPIRED.value: frozenset({_T.CANCELLED.value}),
    AttemptState.LOST.value: frozenset({_T.LOST.value}),
    AttemptState.RETURNED.value: frozenset({_T.RETURNED.value}),
    # If a task is returned or lost while its job is failing or stopping, it is not retried.
    AttemptState.WITHDRAWN.value: frozenset({_T.CANCELLED.value, _T.RETURNED.value, _T.LOST.value}),
    AttemptState.IGNORED.value: ENDED_BY_WORKER,
}
RESULT_STATUSES: dict[str, frozenset[str]] = {
    AttemptState.SUCCEEDED.value: frozenset({_T.SUCCEEDED.value}),
    AttemptState.FAILED.value: frozenset({_T.FAILED.value}),
    AttemptState.RETURNED.value: frozenset({_T.RETURNED.value}),
    AttemptState.WITHDRAWN.value: frozenset({_T.RETURNED.value, _T.CANCELLED.value}),
    AttemptState.IGNORED.value: ENDED_BY_WORKER,
}


@dataclass(slots=True)
class RebuiltNode:
    """A node as its events describe it. `attempt_states` has one letter (`AttemptState`) per attempt.

    Unlike a `NodeView`, it also has each attempt, and counts the rows that were compared with it.
    """

    status: str
    parent_node_id: str | None = None
    attempt_states: str = ""
    run: int = 1
    retry_count: int = 0
    loss_count: int = 0
    reason: str | None = None
    blame: str | None = None
    has_row: bool = False
    tasks: int = 0
    results: int = 0
    unread: int = 0  # tasks that ended without an event so far, minus results that wait to be processed
    is_stale: bool = False  # a child of an earlier run; not counted until this run reuses it
    chosen: list[str] | None = None  # the branch of a conditional, in this run
    total: int | None = None  # children of a fan_out, in this run
    gathered: int | None = None  # of a fan_in: children that had completed when it started

    @property
    def attempt(self) -> int:
        return len(self.attempt_states)

    @property
    def is_live(self) -> bool:
        return self.attempt_states[-1:] in LIVE


@dataclass(slots=True)
class FanOutCounts:
    """The children of one fan_out, with the names of its counters."""

    expanded: int = 0
    ended: int = 0
    failed_count: int = 0
    cancelled_count: int = 0
    idle_count: int = 0
    stale_count: int = 0


@dataclass(slots=True)
class RebuiltJob:
    status: str | None = None
    nodes: dict[str, RebuiltNode] = field(default_factory=dict)
    child_counts: dict[str, FanOutCounts] = field(default_factory=dict)
    findings: list[HistoryFinding] = field(default_factory=list)
    events: int = 0
    reruns: int = 0

    def children_of(self, fan_out: str) -> FanOutCounts:
        return self.child_counts.get(fan_out) or FanOutCounts()
