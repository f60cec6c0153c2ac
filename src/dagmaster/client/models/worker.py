"""What a worker without database access sends to the platform, and the responses.

Requests come from other networks: every list, text and number has a limit. The limits are those of dagmaster's own
worker, which therefore never exceeds them.
"""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import AliasChoices, AwareDatetime, ConfigDict, Field, JsonValue

from dagmaster.client.models.base import ApiModel, RequestModel
from dagmaster.jobs.states import Blame

PROTOCOL = 1  # of the requests in this module; raised when an older worker could no longer work
OLDEST_PROTOCOL = 1
MAX_REPORTS = 500
MAX_CLAIMED = 200  # of each kind
MAX_HELD = 12_000
MAX_RESULTS = 1000
MAX_WAIT_SECONDS = 30.0
MAX_QUEUES = 100
MAX_HANDLERS = 2000

_MAX_INT32 = 2**31 - 1
ShortName = Annotated[str, Field(min_length=1, max_length=200)]
Queues = Annotated[list[ShortName], Field(min_length=1, max_length=MAX_QUEUES)]
Handlers = Annotated[list[ShortName], Field(max_length=MAX_HANDLERS)]
Count = Annotated[int, Field(ge=0, le=MAX_CLAIMED)]
LeaseSeconds = Annotated[
    float, Field(gt=0, le=86_400, description="A lease that is longer than that of the platform is shortened")
]
RunSeconds = Annotated[float, Field(ge=0, le=1e8, allow_inf_nan=False)]
ExactInteger = Annotated[int, Field(ge=-(2**53), le=2**53)]
FiniteNumber = Annotated[float, Field(ge=-1e15, le=1e15, allow_inf_nan=False)]
Hash = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class WorkerStart(RequestModel):
    """A worker that starts. `protocol` is the version of the requests that it sends."""

    host: ShortName
    software_version: Annotated[str, Field(max_length=64)]
    protocol: Annotated[int, Field(ge=0, le=_MAX_INT32)]


class StartedWorker(ApiModel):
    """`worker_id` is used in all further requests; it belongs to the caller. `queues` are those that the key allows,
    null for all. Leases last for `lease_seconds` at most."""

    worker_id: UUID
    caller: str
    queues: list[str] | None
    lease_seconds: float
    software_version: str
    protocol: int


class WorkerHeartbeat(RequestModel):
    """What `dagmaster workers ls` shows about the worker."""

    host: ShortName
    pid: Annotated[int, Field(ge=0, le=_MAX_INT32)]
    software_version: Annotated[str, Field(max_length=64)]
    worker_type: Annotated[str, Field(max_length=64)]
    queues: Queues
    handlers: Handlers
    stats: Annotated[
        dict[
            Annotated[str, Field(max_length=64)],
            ExactInteger | FiniteNumber | Annotated[str, Field(max_length=200)] | dict[ShortName, FiniteNumber],
        ],
        Field(max_length=64),
    ] = {}


class WorkerReceipt(ApiModel):
    worker_id: UUID


class AttemptKey(RequestModel):
    """One attempt of a node."""

    job_id: UUID
    node_id: ShortName
    attempt: Annotated[int, Field(ge=1, le=_MAX_INT32)]


class OutputReference(RequestModel):
    """A large output that was already sent."""

    sha256: Hash
    bytes: Annotated[int, Field(ge=0, le=2**40)]


class SentLogLine(RequestModel):
    """A line that an attempt logged, with the time of its worker's clock."""

    number: Annotated[int, Field(ge=1, le=_MAX_INT32)]
    at: AwareDatetime
    level: Literal["debug", "info", "warning", "error", "critical"]
    text: Annotated[str, Field(max_length=4000)]


class AttemptError(RequestModel):
    """Why an attempt failed. `blame` is the cause, which decides about retries. Additional fields are stored."""

    model_config = ConfigDict(extra="allow")

    message: Annotated[str, Field(max_length=10_000)]
    blame: Blame
    code: Annotated[str, Field(max_length=200)] = "handler.failed"


class AttemptReport(AttemptKey):
    """How an attempt ended. An output of more than 256 KB is sent before the report, which names it in `output_ref`."""

    status: Literal["succeeded", "failed", "returned", "cancelled"]
    output: JsonValue = None
    error: AttemptError | None = Field(None, description="Required if the attempt failed")
    metrics: dict[Annotated[str, Field(max_length=200)], JsonValue] | None = None
    log: Annotated[list[SentLogLine], Field(max_length=200)] | None = None
    output_ref: OutputReference | None = None


class TaskDemand(RequestModel):
    """How many tasks the worker can take: `light` is the number for handlers that share its event loop, `heavy` that
    for handlers that run in a process of their own."""

    queues: Annotated[list[ShortName], Field(max_length=MAX_QUEUES)] = []
    light_handlers: Handlers = []
    light: Count = 0
    heavy_handlers: Handlers = []
    heavy: Count = 0
    free_slots: Annotated[dict[ShortName, Count], Field(max_length=MAX_QUEUES)] = Field(
        {},
        validation_alias=AliasChoices("free_slots", "rooms"),
        description="Free slots of the queues whose concurrency the worker limits. Also accepted as `rooms`",
    )


class ExchangeRequest(RequestModel):
    reports: Annotated[list[AttemptReport], Field(max_length=MAX_REPORTS)] = []
    demand: TaskDemand
    lease_seconds: LeaseSeconds


class ClaimedTask(ApiModel):
    """A task that the worker holds now. Params of more than 256 KB are loaded separately, by `params_ref`."""

    task_id: str
    job_id: UUID
    node_id: str
    attempt: int
    handler: str
    params: dict[str, Any]
    queue: str
    timeout_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    retry_count: int
    losses: int = 0
    params_ref: dict[str, Any] | None = None
    traceparent: str | None = Field(None, description="The trace that it belongs to, if it is traced")


class ExchangeResponse(ApiModel):
    """`late` has the ids of tasks that the worker no longer held when it reported: the report is not accepted."""

    claimed: list[ClaimedTask]
    accepted: int
    late: list[str]


class HeldAttempt(AttemptKey):
    """A task that the worker holds, with its progress and its last log lines if there are new ones."""

    progress: dict[Annotated[str, Field(max_length=200)], JsonValue] | None = None
    log: Annotated[list[SentLogLine], Field(max_length=100)] | None = None
    run_seconds: RunSeconds | None = Field(
        None,
        description="Set if the handler had to wait for a slot after the claim: the seconds that it has run, 0 while "
        "it waits. The wait does not count towards the timeout of the task",
    )


class RenewRequest(RequestModel):
    held: Annotated[list[HeldAttempt], Field(max_length=MAX_HELD)]
    lease_seconds: LeaseSeconds


class TaskIds(ApiModel):
    task_ids: list[str]


class WaitRequest(RequestModel):
    """Wait for a task of one of these queues that one of these handlers can run."""

    queues: Queues
    handlers: Handlers
    seconds: Annotated[float, Field(ge=0, le=MAX_WAIT_SECONDS)]


class QueuesWithTasks(ApiModel):
    """`queues` is empty if no task appeared in time."""

    queues: list[str]


class StoredOutput(ApiModel):
    sha256: str
    bytes: int


class CheckpointRequest(RequestModel):
    name: ShortName
    data: JsonValue = None
    artifacts: Annotated[list[dict[ShortName, JsonValue]], Field(max_length=1000)] = []


class CheckpointReceipt(ApiModel):
    """`is_saved` is false if the worker no longer holds the task."""

    is_saved: bool


class NodeCheckpoint(ApiModel):
    job_id: UUID
    node_id: str
    name: str
    attempt: int
    data: JsonValue = None
    saved_at: datetime
    artifacts: list[dict[str, Any]] | None = None


class SavedCheckpoints(ApiModel):
    """Oldest first."""

    checkpoints: list[NodeCheckpoint]


class ResultOfChild(ApiModel):
    index: int
    node_id: str
    status: str
    output: JsonValue = None
    error_message: str | None = None


class ResultsOfChildren(ApiModel):
    """Results in the order of the index. An empty list marks the end."""

    results: list[ResultOfChild]
