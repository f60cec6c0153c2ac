"""Nodes of a job: summaries, details, attempts, log lines, and the reasons why they wait."""

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from pydantic import Field, JsonValue, computed_field

from dagmaster.client.models.base import ApiModel, Extensible, Json, read
from dagmaster.jobs.model import NodeState, StoredJson, StoredJsonList
from dagmaster.jobs.states import JobStatus, NodeStatus, TaskStatus
from dagmaster.workflows.model import Importance


class NodeSummary(ApiModel):
    """A node, or a child of a fan_out. `remaining` is the number of children of a fan_out that have not ended; failed
    and cancelled children have ended."""

    node_id: str
    status: Extensible[NodeStatus]
    parent_node_id: str | None = None
    fan_out_index: int | None = None
    label: str | None = None
    error_message: str | None = None
    reason: str | None = None
    attempt: int = 0
    retry_count: int = 0
    max_retries: int = 0
    loss_count: int = 0
    not_before: datetime | None = None
    total: int | None = None
    expanded: int | None = None
    remaining: int | None = None
    failed_count: int | None = None
    cancelled_count: int | None = None
    dispatched_at: datetime | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    running_count: int = 0
    retrying_count: int = 0
    progress: StoredJson | None = None

    @property
    def ended_count(self) -> int:
        return (self.total or 0) - (self.remaining or 0)

    @property
    def waiting_count(self) -> int:
        """Children that neither ended nor run now: queued, waiting for a retry, or not created yet."""
        return max(0, (self.remaining or 0) - self.running_count)


class ChildCounts(ApiModel):
    """The children of a fan_out by state. `waiting` children are queued or not created yet; `retrying` children wait
    for their next attempt."""

    total: int
    done: int
    running: int
    retrying: int
    waiting: int
    failed: int
    cancelled: int

    @property
    def ended(self) -> int:
        return self.done + self.failed + self.cancelled


class ProgressCounts(ApiModel):
    """The progress of a job: the nodes of its definition and the children of its fan_outs, in total and ended."""

    nodes: int
    ended: int
    failed: int
    children: int
    children_ended: int
    children_failed: int
    fraction: float | None = Field(
        None,
        description="The share of its nodes that ended; a running fan_out counts in proportion to its ended children",
    )


class PublicNode(NodeSummary):
    """A node, or a child of a fan_out. `state` is the status to display: a fan_out runs as long as its children do.
    `not_before` is the time of its next retry."""

    type: str
    stage: str
    importance: Extensible[Importance] = Importance.CRITICAL
    handler: str | None = None
    state: str
    seconds: float | None = None
    elapsed_seconds: float | None = Field(None, description="The same as `seconds`: since it was dispatched")
    eta_seconds: float | None = Field(None, description="Estimated seconds until its end; null if that is not known")
    children: ChildCounts | None = None


class StageSummary(ApiModel):
    """A group of nodes. `seconds` is the time from its first start to its last end."""

    number: int
    name: str
    status: str
    nodes: int
    completed: int
    failed: int = 0
    children: int
    children_failed: int
    started_at: datetime | None = None
    ended_at: datetime | None = None
    seconds: float | None = None
    elapsed_seconds: float | None = Field(None, description="From its first start to its last end, or until now")
    eta_seconds: float | None = Field(None, description="Estimated seconds until its end; null if that is not known")


class LogLine(ApiModel):
    """A line that an attempt logged, with the time of its worker's clock. Numbers start at 1; older lines may have been
    deleted."""

    number: int
    at: datetime
    level: str
    text: str


class JobLogLine(LogLine):
    """A log line, with the attempt that logged it."""

    node_id: str
    attempt: int


class Attempt(ApiModel):
    """One attempt of a node: its task, and the report of its worker. `accepted` is false if the report was too late. An
    attempt that has not started by `expires_at` fails (`queue_timeout_seconds` of the workflow)."""

    attempt: int
    task_id: str
    status: Extensible[TaskStatus]
    queue: str
    handler: str
    priority: int = 0
    params: StoredJson | None = None
    params_ref: StoredJson | None = None
    timeout_seconds: float = 0.0
    retry_count: int = 0
    worker_id: UUID | None = None
    lease_until: datetime | None = None
    queued_at: datetime
    expires_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    progress: StoredJson | None = None
    reported_status: Extensible[TaskStatus] | None = None
    output: JsonValue = None
    output_ref: StoredJson | None = None
    error: StoredJson | None = None
    metrics: StoredJson | None = None
    reported_at: datetime | None = None
    accepted: bool | None = None
    log: list[LogLine] = []


class SavedCheckpoint(ApiModel):
    """A checkpoint of a node, without the handler's data. A later attempt continues after the last valid checkpoint."""

    name: str
    attempt: int
    saved_at: datetime
    artifacts: StoredJsonList | None = None


class NodeRecord(NodeState):
    """The stored state of a node."""

    @computed_field(description="Its params; `input_params` is their old name")  # type: ignore[prop-decorator]
    @property
    def params(self) -> dict[str, Any] | None:
        return self.input_params


class NodeDetail(ApiModel):
    """A node with its attempts and checkpoints, each newest first."""

    node: NodeRecord
    type: str
    stage: str
    attempts: list[Attempt]
    checkpoints: list[SavedCheckpoint] = []
    output_url: str | None = Field(None, description="The URL of the output, if it is too large to be included")


class ErrorFacts(ApiModel):
    """The known fields of an attempt's `error`, as its handler or the platform reported them."""

    message: str | None = None
    code: str | None = None
    hint: str | None = None
    traceback: str | None = None


def error_facts(error: Json | None) -> ErrorFacts | None:
    return read(ErrorFacts, error) if error else None


class FailedNode(PublicNode):
    """A failed node, with the error of its last attempt."""

    error: ErrorFacts | None = None


ReasonCode = Literal[
    "no_orchestrator",
    "orphaned",
    "waiting_for_nodes",
    "waiting_for_one_of",
    "waiting_for_children",
    "max_parallel",
    "expanding",
    "retry",
    "no_worker",
    "unknown_handler",
    "queue_paused",
    "queue_limited",
    "queued",
    "running",
    "due",
]


class WaitReason(ApiModel):
    """A reason why a node waits. The code determines which other fields are set."""

    code: Extensible[ReasonCode]
    detail: str
    nodes: list[str] = []
    seconds: float | None = None
    count: int | None = None
    queue: str | None = None
    handler: str | None = None
    worker_id: UUID | None = None
    progress: StoredJson | None = None


class WaitingNode(ApiModel):
    """A node that has not ended, with the reasons why it waits."""

    node_id: str
    status: Extensible[NodeStatus]
    label: str | None = None
    reasons: list[WaitReason]


class WaitingNodes(ApiModel):
    """Every node that has not ended, with its reasons; or a page of the children of a fan_out."""

    status: Extensible[JobStatus]
    nodes: list[WaitingNode]
    next: str | None = None
