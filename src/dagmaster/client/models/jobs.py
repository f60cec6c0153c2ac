"""Jobs: submissions, summaries, details, events, and requests to cancel, resume or retry."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import Field, computed_field, field_serializer, model_validator

from dagmaster.client.models.base import ApiModel, Extensible, RequestModel
from dagmaster.client.models.nodes import ErrorFacts, ProgressCounts, PublicNode, StageSummary
from dagmaster.jobs.model import Job, ShortId, StoredJson, Submission
from dagmaster.jobs.states import JobStatus, Stop, TaskStatus
from dagmaster.observe.redaction import redact
from dagmaster.workflows.model import Importance

# A job with a status that this version does not know counts as ended.
_LIVE = (JobStatus.PENDING, JobStatus.RUNNING)
_BoundedId = Annotated[str, Field(json_schema_extra={"minLength": 1, "maxLength": 64})]


class JobRequest(Submission):
    """A submission of a workflow of the platform, or of the one in `definition`."""

    definition: Annotated[str, Field(min_length=1)] | None = Field(
        None,
        description="A workflow file (YAML) to run instead of the platform's workflow; its `workflow_id` must match",
    )


class SubmissionResult(ApiModel):
    """The job of a submission: a new one, or the one of an earlier identical submission."""

    status: Extensible[Literal["accepted", "already_completed", "already_processing", "previously_failed", "resumed"]]
    job_id: UUID
    job_status: Extensible[JobStatus]
    result_data: Any = Field(None, description="The same as `result`, under its old name")
    error_message: str | None = None
    failed_stage: str | None = None
    completed_stages: tuple[str, ...] = ()
    resume_count: int = 0
    hint: str | None = None

    @computed_field(description="The result of a job that has ended")  # type: ignore[prop-decorator]
    @property
    def result(self) -> Any:
        return self.result_data


class SubmissionCheck(ApiModel):
    """A submission that would be accepted: its inputs with their defaults."""

    workflow_id: str
    workflow_version: str
    definition_hash: str
    nodes: int
    inputs: dict[str, Any]


class JobSummary(ApiModel):
    """A job in a list."""

    job_id: UUID
    workflow_id: str
    workflow_version: str = ""
    status: Extensible[JobStatus]
    priority: int = 0
    correlation_id: str | None = None
    submitted_by: str | None = None
    asset_id: str | None = None
    version_ordinal: int | None = None
    error_message: str | None = None
    resume_count: int = 0
    cancel_requested_at: datetime | None = None
    version: int = Field(0, description="Grows with each change of the job")
    sequence: int = Field(0, description="The sequence number of its last event")
    created_at: datetime
    updated_at: datetime | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    elapsed_seconds: float | None = Field(None, description="From its creation to its end, or until now")
    eta_seconds: float | None = Field(None, description="Estimated seconds until its end; null if that is not known")
    progress: ProgressCounts | None = None

    @property
    def is_over(self) -> bool:
        return self.status not in _LIVE


class JobCount(ApiModel):
    """A number of jobs. If `is_exact` is false, there are more."""

    count: int
    is_exact: bool


class JobCounts(ApiModel):
    """How many jobs match a filter, by status."""

    by_status: dict[JobStatus, JobCount]
    total: JobCount


class PublicJob(Job):
    """A job without the secrets that its row contains."""

    status: Extensible[JobStatus]
    stopping: Extensible[Stop] | None = None
    # A client escapes control characters before it validates, so a text may be longer than the row allows.
    correlation_id: _BoundedId | None = None
    submitted_by: _BoundedId | None = None
    message_id: _BoundedId | None = None
    cancel_requested_by: _BoundedId | None = None
    callback_url: Annotated[str, Field(json_schema_extra={"maxLength": 512})] | None = None
    claim_token: UUID | None = Field(None, exclude=True)

    @computed_field(description="Its inputs; `input_params` is their old name")  # type: ignore[prop-decorator]
    @property
    def inputs(self) -> dict[str, Any]:
        return self.input_params

    @computed_field(description="Its result; `result_data` is its old name")  # type: ignore[prop-decorator]
    @property
    def result(self) -> Any:
        return self.result_data

    @field_serializer("callback_url")
    def _without_secrets(self, url: str | None) -> str | None:
        return redact(url) if url else url

    @property
    def is_over(self) -> bool:
        return self.status not in _LIVE

    @property
    def stop_reason(self) -> str | None:
        """Why the job was or is being stopped, as a text for people."""
        if self.cancel_requested_at is not None:
            by = f" by {_first_line(self.cancel_requested_by)}" if self.cancel_requested_by else ""
            reason = f": {_first_line(self.cancel_reason)}" if self.cancel_reason else ""
            return f"cancellation requested{by}{reason}"
        return "its deadline has passed" if self.stopping == Stop.DEADLINE else None


def _first_line(text: str) -> str:
    return next(iter(text.splitlines()), "")


class PrimaryOutcome(ApiModel):
    """The outcome of the critical nodes."""

    description: str
    status: str
    details: str


class SecondaryOutcome(ApiModel):
    """An important or optional node that did not complete. `recovery` is the request that resumes the job; null if the
    job cannot be resumed."""

    node_id: str
    description: str
    importance: Extensible[Importance]
    status: str
    error: str | None = None
    recovery: str | None = None


class Outcomes(ApiModel):
    """What a job achieved."""

    primary: PrimaryOutcome
    secondary: list[SecondaryOutcome] = []


class Deliverable(ApiModel):
    """An entry of a job's result. `usable` is false if its value was not produced."""

    count: int
    location: str | None = None
    usable: bool


class FirstFailure(ApiModel):
    """What went wrong first in a job: the node or child that failed, its error, and the nodes that did not run
    because of it."""

    node_id: str
    parent_node_id: str | None = None
    label: str | None = None
    attempt: int = 0
    failed_at: datetime | None = None
    error_message: str | None = None
    error: ErrorFacts | None = None
    not_run: list[str] = Field([], description="Nodes downstream of it that were skipped or cancelled")


class JobDetail(ApiModel):
    """A job, the nodes of its definition, and a summary of its stages. The result of the job is `job.result`."""

    job: PublicJob
    is_over: bool
    seconds: float = Field(description="From its creation to its end, or until now")
    elapsed_seconds: float | None = Field(None, description="The same as `seconds`")
    eta_seconds: float | None = Field(None, description="Estimated seconds until its end; null if that is not known")
    progress: ProgressCounts | None = None
    first_failure: FirstFailure | None = None
    failed: list[PublicNode] = Field([], description="Nodes of the definition that failed, the first failure first")
    stages: list[StageSummary]
    nodes: list[PublicNode]
    outcomes: Outcomes | None = Field(None, description="What the job achieved, once it has ended")
    deliverables: Mapping[str, Deliverable] = Field(
        {}, description="The entries of its result, and whether they can be used"
    )
    advance_error: str | None = Field(None, description="The error, if orchestrators fail to advance the job")
    trouble: str | None = Field(None, description="The former name of `advance_error`", deprecated=True)

    @property
    def job_id(self) -> UUID:
        return self.job.job_id

    @property
    def status(self) -> JobStatus:
        return self.job.status

    @property
    def result(self) -> Any:
        return self.job.result

    @property
    def now(self) -> datetime:
        """The time of this snapshot by the platform's clock. For a job that has ended, its end."""
        return self.job.created_at + timedelta(seconds=self.seconds)

    def later(self, seconds: float) -> "JobDetail":
        """The same job some time later, if nothing has changed."""
        return self if self.is_over else self.model_copy(update={"seconds": self.seconds + seconds})


class EventEntry(ApiModel):
    """An event of a job."""

    sequence: int
    created_at: datetime
    event_type: str
    node_id: str | None = None
    event_status: str | None = None
    attempt: int | None = None
    epoch: int | None = None
    event_data: StoredJson | None = None
    checkpoint_name: str | None = None


class TimelineEntry(ApiModel):
    """An attempt on the timeline: it waits in its queue until `started_at`, and runs until `finished_at`."""

    node_id: str
    attempt: int
    task_id: str
    parent_node_id: str | None
    label: str | None
    status: Extensible[TaskStatus]
    queue: str
    handler: str
    worker_id: UUID | None
    worker_host: str | None = None
    error_message: str | None = None
    queued_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


ReasonText = Annotated[str, Field(max_length=1000)]


class Intervention(RequestModel):
    """The reason for a request, recorded with the name of the caller. `by` is accepted and ignored."""

    by: Annotated[ShortId | None, Field(deprecated="ignored: the caller is recorded")] = None
    reason: ReasonText | None = None


class JobPart(RequestModel):
    """The part of a job to run again. Exactly one field is set."""

    node: Annotated[str, Field(min_length=1, max_length=80, description="A node, or a child (NODE__INDEX)")] | None = (
        None
    )
    stage: Annotated[str, Field(min_length=1, max_length=64, description="A stage, by name or number")] | None = None
    failed_children: (
        Annotated[str, Field(min_length=1, max_length=64, description="A fan_out whose failed children run again")]
        | None
    ) = None

    @model_validator(mode="after")
    def _is_one(self) -> "JobPart":
        if [self.node, self.stage, self.failed_children].count(None) != 2:
            raise ValueError("name either a node, a stage, or a fan_out whose failed children are to be retried")
        return self


class RetryRequest(Intervention, JobPart):
    """The part of the job to run again, and the reason. `by` is accepted and ignored."""


class StoppingTask(ApiModel):
    """A task that its worker was asked to stop."""

    task_id: str
    node_id: str
    attempt: int
    handler: str
    status: Extensible[TaskStatus]
    worker_id: UUID | None = None
    requested_at: datetime
    acknowledged_at: datetime | None = None
    finished_at: datetime | None = None


class CancelProgress(ApiModel):
    """The progress of a cancellation. `tasks` are those that were running when it was requested, with the time at which
    their worker informed the handler."""

    job_id: UUID
    status: Extensible[JobStatus]
    requested_at: datetime | None = None
    requested_by: str | None = None
    reason: str | None = None
    is_over: bool
    tasks: list[StoppingTask]


class Resumed(ApiModel):
    """What runs again, or would run in a dry run."""

    job_id: UUID
    status: Extensible[Literal["resumed", "dry_run"]]
    nodes: tuple[str, ...] = Field(description="Nodes of the definition, in its order")
    children: dict[str, int] = Field(
        description="The number of children of each fan_out that run: those that failed or were cancelled, and those "
        "that were not created yet. A fan_out that reads its source again is not listed, because its number of "
        "children is not known yet"
    )
    resume_count: int = 0
