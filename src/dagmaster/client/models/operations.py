"""What operators see: orchestrators, workers, queues, dead letters, janitor actions, statistics and health."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import ConfigDict, Field

from dagmaster.client.models.base import ApiModel, Extensible, RequestModel
from dagmaster.jobs.model import DeadLetter, JanitorAction, OrchestratorRecord, WorkerRecord
from dagmaster.jobs.states import JobStatus, TaskStatus


class OwnedJob(ApiModel):
    """A job that an orchestrator owns."""

    job_id: UUID
    workflow_id: str
    status: Extensible[JobStatus]
    created_at: datetime
    started_at: datetime | None = None


class OrchestratorSummary(OrchestratorRecord):
    """An orchestrator, with the oldest jobs that it owns."""

    heartbeat_age_seconds: float
    is_alive: bool
    job_count: int
    jobs: list[OwnedJob]


class RunningTask(ApiModel):
    """A task that a worker runs."""

    task_id: str
    handler: str
    queue: str
    started_at: datetime | None = None
    progress: dict[str, Any] | None = None


class WorkerSummary(WorkerRecord):
    """A worker, with those of its running tasks that started first."""

    heartbeat_age_seconds: float
    is_alive: bool
    running_count: int
    running: list[RunningTask]


class QueueSummary(ApiModel):
    """A queue. Its kind is `tasks`, or `submissions` for the queue from which orchestrators take new jobs."""

    queue: str
    kind: str
    depth: int
    oldest_age_seconds: float | None = None
    running_count: int
    live_workers: int
    max_running: int | None = None
    is_paused: bool
    enqueued_per_minute: float | None = Field(
        None, description="Tasks created in the last minute, by live orchestrators"
    )
    started_per_minute: float | None = Field(None, description="Tasks started in the last minute, by live workers")
    finished_per_minute: float | None = Field(None, description="Tasks finished in the last minute, by live workers")


class TaskLease(ApiModel):
    """A running task and its lease, which its worker renews. `remaining_seconds` is negative if the lease has
    expired."""

    task_id: str
    job_id: UUID
    node_id: str
    attempt: int
    workflow_id: str | None = None
    handler: str
    queue: str
    worker_id: UUID | None = None
    worker_host: str | None = None
    is_worker_alive: bool
    started_at: datetime | None = None
    lease_until: datetime | None = None
    remaining_seconds: float | None = None


class OldestTransaction(ApiModel):
    """The transaction that has been open for the longest time. VACUUM cannot remove rows deleted since then."""

    seconds: float
    who: str
    state: str | None = None


class TableHealth(ApiModel):
    """A table with its indexes and partitions. Rows are estimates."""

    table: str
    bytes: int
    live_rows: int
    dead_rows: int
    partitions: int = 0
    vacuumed_at: datetime | None = None


class EventPartition(ApiModel):
    """A partition of the table of events: the events of the jobs of one month."""

    partition: str
    bytes: int
    rows: int


class DatabaseHealth(ApiModel):
    """The state of the database server, as far as the platform depends on it."""

    version: str
    database: str
    database_bytes: int
    connections: int
    max_connections: int
    oldest_transaction: OldestTransaction | None = None
    tables: list[TableHealth] = Field(description="The largest first")
    partitions: list[EventPartition] = []


class QueueLimits(RequestModel):
    """The number of tasks of a queue that may run at the same time, over all workers."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"max_running": 4, "is_paused": False}]})

    max_running: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(None, description="Null means no limit")
    is_paused: bool = Field(False, description="No task of the queue is started; running tasks continue")


class DeadLetterSummary(DeadLetter):
    """A message that could not be processed, or a task that was given up. Replaying a task resumes its job."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)

    is_replayable: bool
    job_id: UUID | None = None
    node_id: str | None = None


class Replayed(ApiModel):
    """The result of a replay. A submission was put back into its queue; it becomes a job, or a dead letter with a new
    id. For a task, its job was resumed."""

    dead_letter_id: UUID
    queue: str
    message_id: str | None
    job_id: UUID | None


class JanitorRun(ApiModel):
    """One run of the janitor. `actions` of a dry run are those that it would take; they are not stored."""

    run_id: UUID
    is_dry_run: bool
    actions: list[JanitorAction]
    left_to_others: list[str] = Field(
        [], description="Kinds of checks that another instance was running at the same time"
    )
    prunable_jobs: int = Field(0, description="Jobs past retention that are not deleted yet; counted up to 10,000")


class TaskCount(ApiModel):
    """The number of tasks of a queue in one status."""

    queue: str
    status: Extensible[TaskStatus]
    count: int


class WorkflowStatistics(ApiModel):
    """The recent jobs of a workflow: their number by result, and their durations."""

    workflow_id: str
    jobs: int
    active: int
    completed: int
    not_completed: int
    p50_seconds: float | None
    p95_seconds: float | None


class Stats(ApiModel):
    """Statistics of the platform."""

    jobs: dict[JobStatus, int]
    tasks: list[TaskCount]
    are_tasks_complete: bool = Field(description="False if there are so many tasks that only live ones were counted")
    events: int = Field(description="The number of stored events, as PostgreSQL estimates it")
    dead_letters: int
    watchers: int = Field(description="The number of open event streams of this instance")
    database_bytes: int
    recent_hours: int
    recent: list[WorkflowStatistics] = Field(description="The jobs of the last `recent_hours` hours, by workflow")


class HealthCheck(ApiModel):
    """One check of the platform's health."""

    name: str
    is_ok: bool
    detail: str
    hint: str | None = None


class ProcessLiveness(ApiModel):
    """`alive`, unless a restart of the process would help."""

    status: Literal["alive", "stuck"] = "alive"
    silent_seconds: float = Field(0.0, description="Seconds since the orchestrator's loop last made progress")


class ReadinessReport(ApiModel):
    """Ready when all checks are ok."""

    is_ready: bool
    checks: list[HealthCheck]


class Health(ReadinessReport):
    """Readiness, with the numbers that operators need first."""

    version: str
    database_seconds: float | None = Field(description="The response time of the database")
    live_orchestrators: int | None
    live_workers: int | None
