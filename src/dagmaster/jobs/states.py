"""The states of jobs, nodes and tasks, and every transition that exists.

These tables are the only place that defines transitions. The planner uses them, the triggers of the database are
generated from them, verify-history checks every event against them, and docs/states.md is drawn from them.
"""

from collections.abc import Mapping
from enum import StrEnum


class JobStatus(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    PARTIAL_SUCCESS = "partial_success"
    FAILED = "failed"
    CANCELLED = "cancelled"


class NodeStatus(StrEnum):
    PENDING = "pending"
    READY = "ready"
    DISPATCHED = "dispatched"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"


class TaskStatus(StrEnum):
    """The state of one attempt of a node."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    LOST = "lost"
    RETURNED = "returned"  # given back without a result
    CANCELLED = "cancelled"


_J, _N, _T = JobStatus, NodeStatus, TaskStatus

JOB_MOVES: Mapping[JobStatus, frozenset[JobStatus]] = {
    _J.PENDING: frozenset({_J.RUNNING, _J.COMPLETED, _J.FAILED, _J.CANCELLED}),
    _J.RUNNING: frozenset({_J.COMPLETED, _J.PARTIAL_SUCCESS, _J.FAILED, _J.CANCELLED}),
    _J.COMPLETED: frozenset(),
    _J.PARTIAL_SUCCESS: frozenset(),
    _J.FAILED: frozenset(),
    _J.CANCELLED: frozenset(),
}
# These transitions also raise `resume_count`; a resume or a retry on request makes them.
JOB_RERUNS: Mapping[JobStatus, frozenset[JobStatus]] = {
    state: frozenset({_J.RUNNING}) for state in (_J.FAILED, _J.PARTIAL_SUCCESS, _J.CANCELLED, _J.COMPLETED)
}

# One transaction may contain several transitions of a row: dispatched → running → completed is dispatched → completed.
NODE_MOVES: Mapping[NodeStatus, frozenset[NodeStatus]] = {
    _N.PENDING: frozenset({_N.READY, _N.SKIPPED, _N.CANCELLED}),
    _N.READY: frozenset({_N.DISPATCHED, _N.COMPLETED, _N.FAILED, _N.SKIPPED, _N.CANCELLED}),
    _N.DISPATCHED: frozenset({_N.RUNNING, _N.COMPLETED, _N.FAILED, _N.READY, _N.CANCELLED}),
    _N.RUNNING: frozenset({_N.COMPLETED, _N.FAILED, _N.READY, _N.CANCELLED}),
    _N.COMPLETED: frozenset(),
    _N.FAILED: frozenset({_N.READY}),
    _N.SKIPPED: frozenset(),
    _N.CANCELLED: frozenset(),
}
# These transitions also raise `run`; a resume or a retry on request makes them.
NODE_RERUNS: Mapping[NodeStatus, frozenset[NodeStatus]] = {
    state: frozenset({_N.PENDING}) for state in (_N.FAILED, _N.SKIPPED, _N.CANCELLED, _N.COMPLETED)
}

TASK_MOVES: Mapping[TaskStatus, frozenset[TaskStatus]] = {
    _T.QUEUED: frozenset({_T.RUNNING, _T.CANCELLED}),
    _T.RUNNING: frozenset({_T.SUCCEEDED, _T.FAILED, _T.LOST, _T.RETURNED, _T.CANCELLED}),
    _T.SUCCEEDED: frozenset(),
    _T.FAILED: frozenset(),
    _T.LOST: frozenset(),
    _T.RETURNED: frozenset(),
    _T.CANCELLED: frozenset(),
}

JOB_INITIAL = frozenset({_J.PENDING})
# The start node is created as ready. A child of a fan_out starts as ready too, and is written with its first dispatch.
NODE_INITIAL = frozenset({_N.PENDING, _N.READY, _N.DISPATCHED})
TASK_INITIAL = frozenset({_T.QUEUED})

JOB_TERMINAL = frozenset(state for state, moves in JOB_MOVES.items() if not moves)
# A failed node may be retried: `failed` is final only if the planner schedules no retry.
NODE_TERMINAL = frozenset({_N.COMPLETED, _N.FAILED, _N.SKIPPED, _N.CANCELLED})
TASK_TERMINAL = frozenset(state for state, moves in TASK_MOVES.items() if not moves)
NODE_LIVE = frozenset({_N.DISPATCHED, _N.RUNNING})  # with a task that is queued or running


class SkipReason(StrEnum):
    BRANCH_NOT_TAKEN = "branch_not_taken"
    UPSTREAM_FAILED = "upstream_failed"
    NOT_IN_THIS_RUN = "not_in_this_run"  # a child of an earlier run that this run does not have


class Stop(StrEnum):
    """Why a job is stopped before it has ended."""

    CANCELLED = "cancelled"
    DEADLINE = "deadline"


NOT_ADVANCED = "not_advanced"  # the reason of a job that failed because it could not be advanced, and of its nodes


class Blame(StrEnum):
    """The cause that a failure is attributed to. It decides about retries."""

    DATA = "data"
    ENVIRONMENT = "environment"
    HANDLER = "handler"
    ENGINE = "engine"


class EventType(StrEnum):
    JOB_CREATED = "job_created"
    JOB_STARTED = "job_started"
    JOB_COMPLETED = "job_completed"
    JOB_PARTIAL_SUCCESS = "job_partial_success"
    JOB_FAILED = "job_failed"
    JOB_CANCELLED = "job_cancelled"
    JOB_STOPPING = "job_stopping"
    JOB_RESUMED = "job_resumed"
    NODE_READY = "node_ready"
    NODE_DISPATCHED = "node_dispatched"
    NODE_STARTED = "node_started"
    NODE_COMPLETED = "node_completed"
    NODE_FAILED = "node_failed"
    NODE_RETRIED = "node_retried"
    NODE_SKIPPED = "node_skipped"
    NODE_CANCELLED = "node_cancelled"
    NODE_RESET = "node_reset"
