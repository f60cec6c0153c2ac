"""What the API answers, as far as people are shown it.

A platform may be of another release than the command: what it says beyond this is passed over, and every text in it is made
neutral, since people read it on a terminal. Programs (`--json`) get the answer as it came.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from dagmaster.client.neutral import neutral_value
from dagmaster.errors import Unavailable

Json = dict[str, Any]


class Answer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


A = TypeVar("A", bound=Answer)


def read(kind: type[A], value: Any) -> A:
    try:
        return kind.model_validate(neutral_value(value))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or kind.__name__
        raise unexpected(f"{where}: {first['msg']}") from None


def read_all(kind: type[A], values: Iterable[Any]) -> list[A]:
    return [read(kind, value) for value in values]


def unexpected(what: str) -> Unavailable:
    return Unavailable(
        f"the platform's answer is not understood: {what}",
        code="server.unexpected",
        hint="is it of another version than this command? compare `dagmaster orchestrators ls` and `dagmaster --version`",
    )


def _first_line(text: str) -> str:
    return next(iter(text.splitlines()), "")


class JobLine(Answer):
    """A job in a list."""

    job_id: str
    workflow_id: str
    status: str
    error_message: str | None = None
    created_at: datetime
    completed_at: datetime | None = None

    @property
    def is_over(self) -> bool:
        return self.status not in {"pending", "running"}


class Children(Answer):
    """A fan_out's children, counted."""

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


class Fault(Answer):
    """What went wrong in an attempt, as its handler or the platform told it."""

    message: str | None = None
    code: str | None = None
    hint: str | None = None
    traceback: str | None = None


class Node(Answer):
    """A node, or a fan_out's child. `state` is the word for people: a fan_out runs as long as its children do."""

    node_id: str
    status: str
    state: str
    type: str
    stage: str
    label: str | None = None
    error_message: str | None = None
    error: Fault | None = None
    reason: str | None = None
    attempt: int = 0
    retry_count: int = 0
    max_retries: int = 0
    loss_count: int = 0
    not_before: datetime | None = None
    dispatched_at: datetime | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    progress: Json | None = None
    children: Children | None = None


class Attempt(Answer):
    """One attempt of a node."""

    attempt: int
    status: str
    queue: str
    handler: str
    worker_id: str | None = None
    queued_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    error: Fault | None = None
    accepted: bool | None = None


class NodeFacts(Answer):
    node_id: str
    status: str
    label: str | None = None
    reason: str | None = None
    error_message: str | None = None
    error: Fault | None = None
    retry_count: int = 0
    max_retries: int = 0
    loss_count: int = 0
    total: int | None = None
    failed_count: int | None = None
    completed_at: datetime | None = None


class SavedPhase(Answer):
    """A checkpoint."""

    name: str
    attempt: int
    saved_at: datetime
    artifacts: list[Json] | None = None


class NodeDetail(Answer):
    """A node with its attempts and checkpoints, the last ones first."""

    node: NodeFacts
    type: str
    stage: str
    attempts: list[Attempt]
    checkpoints: list[SavedPhase] = []


class Stage(Answer):
    number: int
    name: str
    status: str
    nodes: int
    completed: int
    children: int
    children_failed: int
    seconds: float | None = None


class Job(Answer):
    job_id: str
    workflow_id: str
    workflow_version: str
    definition_hash: str
    status: str
    priority: int
    owner_id: str | None = None
    epoch: int = 0
    correlation_id: str | None = None
    submitted_by: str | None = None
    idempotency_key: str | None = None
    error_message: str | None = None
    resume_count: int = 0
    last_sequence: int = 0
    deadline_at: datetime | None = None
    cancel_requested_at: datetime | None = None
    cancel_requested_by: str | None = None
    cancel_reason: str | None = None
    stopping: str | None = None
    created_at: datetime
    completed_at: datetime | None = None

    @property
    def is_over(self) -> bool:
        return self.status not in {"pending", "running"}

    @property
    def stop(self) -> str | None:
        """Why it was or is brought to an end, for people."""
        if self.cancel_requested_at is not None:
            by = f" by {_first_line(self.cancel_requested_by)}" if self.cancel_requested_by else ""
            why = f": {_first_line(self.cancel_reason)}" if self.cancel_reason else ""
            return f"cancel asked for{by}{why}"
        return "its deadline has passed" if self.stopping == "deadline" else None


class Primary(Answer):
    """What a job was for, and whether it came about."""

    description: str
    status: str
    details: str


class Secondary(Answer):
    """A node that the job could do without, and had to."""

    node_id: str
    description: str
    importance: str
    status: str
    error: str | None = None
    recovery: str | None = None


class Outcomes(Answer):
    primary: Primary
    secondary: list[Secondary] = []


class Deliverable(Answer):
    count: int
    location: str | None = None
    usable: bool


class JobDetail(Answer):
    """A job and its own nodes at one moment, in the order of the definition's graph."""

    job: Job
    is_over: bool
    seconds: float
    nodes: list[Node]
    stages: list[Stage]
    outcomes: Outcomes | None = None
    deliverables: dict[str, Deliverable] = {}

    @property
    def now(self) -> datetime:
        """The moment this was so, on the platform's clock; of a job that is over, its end."""
        return self.job.created_at + timedelta(seconds=self.seconds)

    def later(self, seconds: float) -> "JobDetail":
        """The same some time later, if nothing has happened since."""
        return self if self.is_over else self.model_copy(update={"seconds": self.seconds + seconds})


class StoppingTask(Answer):
    """A task that its worker was asked to stop."""

    node_id: str
    attempt: int
    worker_id: str | None = None
    requested_at: datetime
    acknowledged_at: datetime | None = None
    finished_at: datetime | None = None


class Cancelling(Answer):
    job_id: str
    status: str
    is_over: bool
    tasks: list[StoppingTask]


class Resumed(Answer):
    """What a resume runs again, or would."""

    job_id: str
    status: str
    nodes: list[str]
    children: dict[str, int]


class LogLine(Answer):
    node_id: str
    attempt: int
    number: int
    at: datetime
    level: str
    text: str


class Reason(Answer):
    """Something that holds a node up."""

    code: str
    detail: str
    queue: str | None = None
    count: int | None = None


class WaitingNode(Answer):
    node_id: str
    reasons: list[Reason]


class Waiting(Answer):
    nodes: list[WaitingNode]


class Event(Answer):
    sequence: int
    created_at: datetime
    event_type: str
    node_id: str | None = None
    attempt: int | None = None


class Workflow(Answer):
    """A workflow in a list."""

    workflow_id: str
    version: str
    name: str
    description: str
    nodes: int
    inputs: list[str]


class Mistake(Answer):
    message: str
    line: int | None = None
    node: str | None = None


class RefusedFile(Answer):
    """A workflow file that the platform could not use."""

    file: str
    problems: list[Mistake]


class Submitted(Answer):
    """What became of a submission."""

    status: str
    job_id: str
    job_status: str
    error_message: str | None = None
    hint: str | None = None
    resume_count: int = 0


class Queue(Answer):
    queue: str
    kind: str
    depth: int
    oldest_age_seconds: float | None = None
    running_count: int
    live_workers: int
    max_running: int | None = None
    is_paused: bool


class RunningTask(Answer):
    task_id: str
    handler: str


class Worker(Answer):
    worker_id: str
    host: str
    pid: int
    software_version: str
    worker_type: str
    queues: list[str]
    handlers: list[str]
    started_at: datetime
    heartbeat_age_seconds: float
    is_alive: bool
    running_count: int
    running: list[RunningTask]


class Orchestrator(Answer):
    owner_id: str
    host: str
    pid: int
    software_version: str
    started_at: datetime
    heartbeat_age_seconds: float
    is_alive: bool
    job_count: int


class JanitorAction(Answer):
    action_type: str
    target_type: str
    target_id: str
    reason: str
    created_at: datetime


class JanitorRun(Answer):
    is_dry_run: bool
    actions: list[JanitorAction]
    left_to_others: list[str] = []
    prunable_jobs: int = 0


class DeadLetter(Answer):
    dead_letter_id: str
    queue: str
    message_id: str | None = None
    reason: str
    description: str
    job_id: str | None = None
    node_id: str | None = None
    created_at: datetime


class SchemaStatus(Answer):
    deployed: bool
    is_current: bool
    software: str
    stored: str | None = None
    pending: list[str]
    server_version: str
    extensions: dict[str, str]
    catalog: str | None = None


class Migrated(Answer):
    changes: list[str]
    pending: list[str]
    is_current: bool
