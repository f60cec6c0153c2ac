"""The records of the engine: jobs, node states, tasks (one attempt each), results, events, and running processes.

A record is a row of its table. Keys begin with job_id, a time-ordered UUID, so that the rows of a job are stored
together and the partitions of events follow the age of jobs.
"""

import os
from datetime import datetime
from typing import Annotated, Any, ClassVar, NamedTuple
from uuid import UUID

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    field_validator,
    model_validator,
)

from dagmaster.jobs.states import EventType, JobStatus, NodeStatus, Stop, TaskStatus
from dagmaster.records import ForeignKey, Index, Record, Table

Priority = Annotated[int, Field(ge=0, le=10)]
ShortId = Annotated[str, Field(min_length=1, max_length=64)]
StoredId = Annotated[str, Field(max_length=64)]
CallbackUrl = Annotated[str, Field(max_length=512)]

_HOT = {
    "autovacuum_vacuum_scale_factor": 0.02,
    "autovacuum_vacuum_threshold": 500,
    "autovacuum_vacuum_cost_limit": 1000,
}


def _as_object(value: Any) -> Any:
    return value if isinstance(value, dict) else {"unreadable": value}


# An object in a row. In a row that was changed by hand it may be another value, which is then shown as `unreadable`.
StoredJson = Annotated[dict[str, Any], BeforeValidator(_as_object)]
StoredJsonList = Annotated[
    list[StoredJson], BeforeValidator(lambda value: value if isinstance(value, list) else [value])
]


def new_job_id(unix_milliseconds: int, randomness: bytes | None = None) -> UUID:
    """A version 7 UUID: ids sort by the time they were created."""
    tail = int.from_bytes(randomness or os.urandom(10), "big")
    value = (unix_milliseconds & (1 << 48) - 1) << 80 | tail
    value = value & ~(0xF << 76) | 0x7 << 76
    return UUID(int=value & ~(0x3 << 62) | 0x2 << 62)


def task_id(job_id: UUID, node_id: str, attempt: int) -> str:
    return f"{job_id}_{node_id}_{attempt}"


def task_key(task_id: str) -> tuple[UUID, str, int]:
    """The job, node and attempt of a task id. Raises ValueError if it is not a task id."""
    job_id, _, remainder = task_id.partition("_")
    node_id, _, attempt = remainder.rpartition("_")
    if not node_id or not (attempt.isascii() and attempt.isdigit()):
        raise ValueError(f"not a task id: {task_id[:100]!r}")
    return UUID(job_id), node_id, int(attempt)


def child_id(parent: str, index: int) -> str:
    return f"{parent}__{index}"


class WorkflowDefinition(Record):
    """A workflow as it was when a job was submitted. It never changes: its key is the hash of its content."""

    table: ClassVar[Table] = Table(
        "dag_workflow_definitions",
        key=("definition_hash",),
        defaults={"created_at": "dagapp.clock()"},
        indexes=(Index("dag_workflow_definitions_by_workflow", ("workflow_id", "created_at")),),
    )
    definition_hash: str
    workflow_id: str
    workflow_version: str
    body: dict[str, Any]
    created_at: datetime


class Job(Record):
    table: ClassVar[Table] = Table(
        "dag_jobs",
        key=("job_id",),
        foreign_keys=(ForeignKey(("definition_hash",), "dag_workflow_definitions", ("definition_hash",), "RESTRICT"),),
        indexes=(
            Index("dag_jobs_active", ("owner_id",), where="status IN ('pending', 'running')"),
            Index("dag_jobs_by_status", ("status", "job_id")),
            Index("dag_jobs_one_per_message", ("message_id",), unique=True, where="message_id IS NOT NULL"),
            Index("dag_jobs_by_workflow", ("workflow_id", "job_id")),
            Index("dag_jobs_by_submitter", ("submitted_by", "job_id"), where="submitted_by IS NOT NULL"),
            Index("dag_jobs_by_definition", ("definition_hash",)),  # for retention: which definitions are used
            Index("dag_jobs_by_correlation", ("correlation_id",), where="correlation_id IS NOT NULL"),
            # For streams: the jobs that ended after a given time. A job is added to it only when it ends.
            Index("dag_jobs_by_end", ("completed_at",), where="completed_at IS NOT NULL"),
        ),
        checks={"priority": "priority BETWEEN 0 AND 10"},
        defaults={
            "created_at": "dagapp.clock()",
            "updated_at": "dagapp.clock()",
            "epoch": "0",
            "priority": "0",
            "resume_count": "0",
            "version": "0",
            "last_sequence": "0",
        },
        storage={"fillfactor": 70, **_HOT},
    )
    private: ClassVar[frozenset[str]] = frozenset({"claim_token"})

    job_id: UUID
    workflow_id: str
    workflow_version: str
    definition_hash: str
    status: JobStatus
    input_params: StoredJson
    priority: Priority = 0
    owner_id: UUID | None = None
    owner_heartbeat_at: datetime | None = None
    claim_token: UUID | None = None
    epoch: int = 0
    correlation_id: StoredId | None = None
    submitted_by: StoredId | None = None
    callback_url: CallbackUrl | None = None
    idempotency_key: str | None = None
    message_id: StoredId | None = None
    traceparent: StoredId | None = None  # of the trace that its submission belongs to; NULL if it is not traced
    asset_id: str | None = None
    version_ordinal: int | None = None
    deadline_at: datetime | None = None
    deferred_work: list[dict[str, Any]] | None = None  # nodes whose handler or queue no owner knew so far
    result_data: JsonValue = None
    error_message: str | None = None
    cancel_requested_at: datetime | None = None
    cancel_requested_by: StoredId | None = None
    cancel_reason: str | None = None
    stopping: Stop | None = None  # why its owner is stopping it
    resume_count: int = 0
    last_sequence: int = 0
    version: int = 0
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None = None
    completed_at: datetime | None = None

    @field_validator("deferred_work", mode="before")
    @classmethod
    def _only_objects(cls, value: Any) -> Any:
        return [work for work in value if isinstance(work, dict)] if isinstance(value, list) else None


class JobWords(Record):
    """The search words of a job: those of its id, workflow, submitter, correlation id, idempotency key, asset id,
    inputs and error. Triggers on `dag_jobs` write them."""

    table: ClassVar[Table] = Table(
        "dag_job_search",
        key=("job_id",),
        # A search scans the pending list of the index sequentially, so the limit (kB) is low.
        indexes=(
            Index("dag_job_search_by_words", ("document",), method="gin", storage=(("gin_pending_list_limit", 256),)),
        ),
        types={"document": "tsvector"},
    )
    job_id: UUID
    document: str


class NodeState(Record):
    """A node of a job, or a fan_out's child (`parent_node_id`, `fan_out_index`).

    `not_before` is set only while a ready node waits for its time. A fan_out has `total` children, of which `expanded`
    exist and `remaining` have not ended; `idle_count` of them wait to run again since the job was resumed (`is_idle` on
    the child). If the fan_out itself runs again, its children become stale (`stale_count`): they are reused in their
    order, with new params, before further ones are created.

    `progress` is no longer used: the progress of an attempt is in its task. The column stays for older processes.
    """

    table: ClassVar[Table] = Table(
        "dag_node_states",
        key=("job_id", "node_id"),
        foreign_keys=(ForeignKey(("job_id",), "dag_jobs", ("job_id",)),),
        # No index may use `status`, not even in its condition: every transition would have to update it.
        indexes=(
            Index("dag_node_states_waiting", ("job_id", "not_before"), where="not_before IS NOT NULL"),
            Index("dag_node_states_idle", ("job_id", "parent_node_id", "fan_out_index"), where="is_idle"),
        ),
        checks={
            "remaining": "remaining >= 0 AND expanded <= total",
            "waiting": "not_before IS NULL OR status = 'ready'",
        },
        defaults={
            "retry_count": "0",
            "loss_count": "0",
            "attempt": "0",
            "max_retries": "0",
            "version": "0",
            "run": "1",
        },
        computed={"task_id": "CASE WHEN attempt > 0 THEN job_id::text || '_' || node_id || '_' || attempt::text END"},
        types={"fan_out_index": "integer", "attempt": "integer"},
        storage={"fillfactor": 60, **_HOT},
    )
    job_id: UUID
    node_id: str
    status: NodeStatus
    task_id: str | None = None
    parent_node_id: str | None = None
    fan_out_index: int | None = None
    label: str | None = None
    input_params: StoredJson | None = None
    output: JsonValue = None
    output_ref: StoredJson | None = None
    error_message: str | None = None
    error: StoredJson | None = None
    reason: str | None = None
    attempt: int = 0
    retry_count: int = 0
    loss_count: int = 0
    max_retries: int = 0
    not_before: datetime | None = None
    progress: StoredJson | None = None
    total: int | None = None
    expanded: int | None = None
    remaining: int | None = None
    failed_count: int | None = None
    cancelled_count: int | None = None
    idle_count: int | None = None
    stale_count: int | None = None
    is_idle: bool | None = None
    dispatched_at: datetime | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    version: int = 0
    run: int = 1


class Task(Record):
    """One attempt of a node, written when the node is dispatched. It is the message in the queue."""

    table: ClassVar[Table] = Table(
        "dag_tasks",
        key=("job_id", "node_id", "attempt"),
        indexes=(
            Index("dag_tasks_one_live", ("job_id", "node_id"), unique=True, where="status IN ('queued', 'running')"),
            Index("dag_tasks_waiting", ("queue", "handler", "priority DESC", "position"), where="status = 'queued'"),
            Index("dag_tasks_running", ("job_id", "node_id"), where="status = 'running'"),
            Index("dag_tasks_expiring", ("job_id",), where="status = 'queued' AND expires_at IS NOT NULL"),
            Index("dag_tasks_to_stop", ("worker_id",), where="stop_requested_at IS NOT NULL"),
        ),
        retired=("dag_tasks_queued",),
        defaults={
            "available_at": "dagapp.clock()",
            "position": "nextval('dagapp.dag_task_position')",
            "retry_count": "0",
        },
        computed={"task_id": "job_id::text || '_' || node_id || '_' || attempt::text"},
        types={"attempt": "integer", "priority": "smallint"},
        storage={"fillfactor": 70, **_HOT},
    )
    job_id: UUID
    node_id: str
    attempt: int
    task_id: str
    queue: str
    handler: str
    priority: int
    position: int
    status: TaskStatus
    params: dict[str, Any] | None = None
    params_ref: dict[str, Any] | None = None
    timeout_seconds: float
    retry_count: int = 0
    traceparent: str | None = None  # of the step that dispatched it
    worker_id: UUID | None = None
    lease_until: datetime | None = None
    available_at: datetime
    expires_at: datetime | None = None
    stop_requested_at: datetime | None = None
    stop_seen_at: datetime | None = None  # when the worker passed the request on to the handler
    started_at: datetime | None = None
    finished_at: datetime | None = None
    progress: dict[str, Any] | None = None
    log: list[dict[str, Any]] | None = None  # its last lines while it runs; the report has all of them


class TaskResult(Record):
    """What a worker reported for one attempt. `accepted` is false if the report came too late."""

    table: ClassVar[Table] = Table(
        "dag_task_results",
        key=("job_id", "node_id", "attempt"),
        indexes=(Index("dag_task_results_unprocessed", ("job_id",), where="NOT processed"),),
        defaults={"reported_at": "dagapp.clock()", "processed": "false", "accepted": "true"},
        computed={"task_id": "job_id::text || '_' || node_id || '_' || attempt::text"},
        types={"attempt": "integer"},
        storage={"fillfactor": 80, **_HOT},
    )
    job_id: UUID
    node_id: str
    attempt: int
    task_id: str
    status: TaskStatus
    output: JsonValue = None
    output_ref: dict[str, Any] | None = None
    error_message: str | None = None
    error: dict[str, Any] | None = None
    metrics: dict[str, Any] | None = None
    worker_id: UUID
    started_at: datetime | None = None
    reported_at: datetime
    processed: bool
    accepted: bool


class JobEvent(Record):
    """One transition. `sequence` has no gaps within a job; `event_status` is the state after the transition.

    `checkpoint_name` is no longer written. The column stays for older processes.
    """

    table: ClassVar[Table] = Table(
        "dag_job_events",
        key=(),
        indexes=(Index("dag_job_events_sequence", ("job_id", "sequence"), unique=True),),
        defaults={"event_id": "nextval('dagapp.dag_event_id')", "created_at": "dagapp.clock()"},
        types={"attempt": "integer"},
        partition_by="RANGE (job_id)",
    )
    event_id: int
    job_id: UUID | None
    sequence: int | None
    node_id: str | None = None
    event_type: EventType
    event_status: str | None = None
    attempt: int | None = None
    epoch: int | None = None
    event_data: dict[str, Any] | None = None
    checkpoint_name: str | None = None
    created_at: datetime


class OrchestratorRecord(Record):
    table: ClassVar[Table] = Table(
        "orchestrators",
        key=("owner_id",),
        defaults={"started_at": "dagapp.clock()", "heartbeat_at": "dagapp.clock()", "stats": "'{}'::jsonb"},
        storage={"fillfactor": 50},
    )
    owner_id: UUID
    host: str
    pid: int
    software_version: str
    handlers: list[str] | None = None  # those that it can route; NULL in rows of earlier versions
    queues: list[str] | None = None
    started_at: datetime
    heartbeat_at: datetime
    stats: dict[str, Any] = {}
    workflow_generation: int | None = None  # of the workflows that it has read; NULL before the first comparison
    workflow_count: int | None = None
    workflows_refused: int | None = None
    workflows_read_at: datetime | None = None


class CacheGeneration(Record):
    """How often a cache was invalidated. Every process has the cache; one with an older generation reads it again."""

    table: ClassVar[Table] = Table("cache_generations", key=("cache",), defaults={"invalidated_at": "dagapp.clock()"})

    cache: str
    generation: int = 1
    invalidated_at: datetime
    invalidated_by: Annotated[str, Field(max_length=200)]


class WorkerRecord(Record):
    table: ClassVar[Table] = Table(
        "workers",
        key=("worker_id",),
        defaults={"started_at": "dagapp.clock()", "heartbeat_at": "dagapp.clock()", "stats": "'{}'::jsonb"},
        storage={"fillfactor": 50},
    )
    worker_id: UUID
    host: str
    pid: int
    software_version: str
    worker_type: str
    queues: list[str]
    handlers: list[str]
    started_at: datetime
    heartbeat_at: datetime
    stats: dict[str, Any] = {}


class Checkpoint(Record):
    """The last state that a handler saved under a name, kept for later attempts. It is valid while its `artifacts` are
    unchanged."""

    table: ClassVar[Table] = Table(
        "dag_checkpoints",
        key=("job_id", "node_id", "name"),
        foreign_keys=(ForeignKey(("job_id",), "dag_jobs", ("job_id",)),),
        defaults={"saved_at": "dagapp.clock()"},
        types={"attempt": "integer"},
    )
    job_id: UUID
    node_id: str
    name: str
    attempt: int
    data: JsonValue
    saved_at: datetime
    artifacts: list[dict[str, Any]] | None = None


class Payload(Record):
    """JSON that is too large for a row. A row refers to it by its hash; then it `is_kept`. A payload that no row refers
    to, because its worker died before the report, is deleted some time after it was stored."""

    table: ClassVar[Table] = Table(
        "dag_payloads",
        key=("job_id", "sha256"),
        indexes=(Index("dag_payloads_unused", ("stored_at",), where="NOT is_kept"),),
        defaults={"stored_at": "dagapp.clock()", "is_kept": "false"},
    )
    job_id: UUID
    sha256: str
    size_bytes: int
    stored_at: datetime
    is_kept: bool


class PayloadPart(Record):
    """A part of a payload, so that no process has to hold all of it."""

    table: ClassVar[Table] = Table(
        "dag_payload_parts", key=("job_id", "sha256", "part"), types={"part": "integer", "data": "bytea"}
    )
    job_id: UUID
    sha256: str
    part: int
    data: bytes


class JobMessage(Record):
    """A submission that a producer sent to the queue `dag-jobs`, and that no orchestrator has processed yet."""

    table: ClassVar[Table] = Table(
        "dag_job_messages",
        key=("message_id",),
        defaults={"enqueued_at": "dagapp.clock()"},
    )
    message_id: str
    queue: str
    body: JsonValue
    enqueued_at: datetime


class OutboxMessage(Record):
    """A task whose id is not yet sent to the message broker. It is written with the task and deleted when the broker
    has acknowledged the id. The transport `postgres` writes none."""

    table: ClassVar[Table] = Table(
        "dag_outbox",
        key=("job_id", "node_id", "attempt"),
        indexes=(Index("dag_outbox_due", ("queue", "not_before")),),
        defaults={"not_before": "dagapp.clock()", "written_at": "dagapp.clock()", "tries": "0"},
        types={"attempt": "integer", "tries": "integer"},
        storage={**_HOT},
    )
    job_id: UUID
    node_id: str
    attempt: int
    queue: str
    not_before: datetime  # when it may be sent; while an orchestrator sends it, when another one may try
    tries: int = 0
    error: str | None = None
    written_at: datetime


class DeadLetter(Record):
    """A message that could not be processed, with the reason, for an operator. If `reason` is `PoisonTask`, the row
    describes a task whose workers were lost too often: `message_id` is its task id, `queue` its queue, and `body` has
    its handler and params."""

    table: ClassVar[Table] = Table(
        "dag_dead_letters",
        key=("dead_letter_id",),
        defaults={"dead_letter_id": "gen_random_uuid()", "created_at": "dagapp.clock()"},
    )
    dead_letter_id: UUID
    queue: str
    message_id: str | None = None
    reason: str
    description: str
    body: JsonValue = None
    created_at: datetime


class IdempotencyKey(Record):
    """A submitter's key and the job that it belongs to. `request_hash` distinguishes a repeated request from another
    one with the same key."""

    table: ClassVar[Table] = Table(
        "dag_idempotency_keys",
        key=("submitted_by", "idempotency_key"),
        indexes=(Index("dag_idempotency_keys_by_job", ("job_id",)),),
        defaults={"created_at": "dagapp.clock()"},
    )
    submitted_by: str
    idempotency_key: str
    request_hash: str
    job_id: UUID
    created_at: datetime


class QueueSettings(Record):
    """How many tasks of a queue may run at once, over all workers. A queue without a row is open and unlimited."""

    table: ClassVar[Table] = Table(
        "dag_queues",
        key=("queue",),
        checks={"max_running": "max_running > 0"},
        defaults={"updated_at": "dagapp.clock()", "is_paused": "false"},
        types={"max_running": "integer"},
    )
    queue: str
    max_running: int | None = None
    is_paused: bool = False
    updated_at: datetime


class JanitorAction(Record):
    """An action or a finding of the janitor. `target_id` is a job, a task, a queue or a session."""

    table: ClassVar[Table] = Table(
        "dag_janitor_actions",
        key=("action_id",),
        indexes=(
            Index("dag_janitor_actions_by_time", ("created_at", "action_id")),
            Index("dag_janitor_actions_by_target", ("target_id", "action_type", "created_at")),
        ),
        defaults={"action_id": "gen_random_uuid()", "created_at": "dagapp.clock()"},
    )
    action_id: UUID
    run_id: UUID
    action_type: str
    target_type: str
    target_id: str
    reason: str
    detail: dict[str, Any] | None = None
    created_at: datetime


RECORDS: tuple[type[Record], ...] = (
    WorkflowDefinition,
    Job,
    JobWords,
    NodeState,
    Task,
    TaskResult,
    JobEvent,
    OrchestratorRecord,
    CacheGeneration,
    WorkerRecord,
    Checkpoint,
    Payload,
    PayloadPart,
    JobMessage,
    OutboxMessage,
    DeadLetter,
    IdempotencyKey,
    QueueSettings,
    JanitorAction,
)


class Subscriber(BaseModel):
    """The URLs of callbacks, with the names of OGC API - Processes: for processing that has succeeded, has begun, or
    has failed. A callback without a URL is not sent."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    successUri: CallbackUrl  # noqa: N815
    inProgressUri: CallbackUrl | None = None  # noqa: N815
    failedUri: CallbackUrl | None = None  # noqa: N815

    @property
    def urls(self) -> dict[str, str]:
        return {name: url for name, url in self.model_dump().items() if url is not None}


class Submission(BaseModel):
    """The request to submit a job; also the body of a message in the queue `dag-jobs`. `submitted_at` is deprecated: it
    is accepted and ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    workflow_id: ShortId
    inputs: dict[str, Any] = Field(
        {}, validation_alias=AliasChoices("inputs", "input_params"), description="Also accepted as `input_params`"
    )
    correlation_id: ShortId | None = None
    submitted_by: ShortId | None = None
    callback_url: CallbackUrl | None = None
    subscriber: Subscriber | None = Field(None, description="Replaces `callback_url`: one URL per kind of callback")
    idempotency_key: ShortId | None = None
    priority: Priority = 0
    submitted_at: datetime | None = None
    message_id: ShortId | None = None

    @model_validator(mode="before")
    @classmethod
    def _inputs_have_one_name(cls, value: Any) -> Any:
        if isinstance(value, dict) and {"inputs", "input_params"} <= value.keys():
            raise ValueError(
                "both `inputs` and `input_params` were sent; they are two names of one field: send `inputs`"
            )
        return value


class TaskMessage(NamedTuple):
    """A task as its worker claimed it. Params that are too large for a message are kept by reference (`params_ref`).

    A tuple, because one is made for every task: a Pydantic model takes five times as long.
    """

    task_id: str
    job_id: UUID
    node_id: str
    attempt: int
    handler: str
    params: dict[str, Any]
    queue: str
    timeout_seconds: float
    retry_count: int = 0
    losses: int = 0  # workers lost in earlier attempts; reported from the second loss on
    params_ref: dict[str, Any] | None = None
    traceparent: str | None = None
