"""The ledger: the set-based calls through which the loops read and write durable state.

One protocol, two implementations: `postgres.PostgresLedger` is the real one, `memory.MemoryLedger` its twin with the same
semantics on a virtual clock. Both pass one conformance suite. Every call is one transaction; each is safe to repeat when
its answer was lost.

Orchestrators write through `advance` only: it takes the fence (the rows of the jobs whose claim token still matches), hands
over what happened since the last time, lets the pure planner decide, writes the decision with its events, and commits.
Workers write through `exchange` and `renew`: task and result rows, nothing else.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, TypedDict, Unpack
from uuid import UUID

from dagmaster.errors import Conflict, InvalidRequest, NotFound
from dagmaster.jobs.changes import Changes
from dagmaster.jobs.fan import ChildResult
from dagmaster.jobs.model import Checkpoint, DeadLetter, JobMessage, TaskMessage
from dagmaster.jobs.payload import LOADABLE_BYTES, Encoded, Reference
from dagmaster.jobs.rerun import Rerun
from dagmaster.jobs.states import JobStatus, NodeStatus, Stop, TaskStatus
from dagmaster.jobs.updates import StopRequest, TaskUpdate
from dagmaster.jobs.view import JobView, NodeView
from dagmaster.workflows.graph import Graph, build
from dagmaster.workflows.model import StartNode, Workflow, work_of

SMALL_BYTES = 16_384  # outputs up to this size travel along with other rows
PAGE_BYTES = 16 * 1024 * 1024  # of children's results that are read at once; one is read in any case
OVERRUN_GRACE_SECONDS = 10.0  # a worker ends its tasks by itself; this is for one that does not
LOOK_LIMIT = 2000  # how much news of a kind one transaction takes


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to create, with the definition that it keeps."""

    job_id: UUID
    workflow: Workflow
    input_params: dict[str, Any]
    priority: int = 0
    correlation_id: str | None = None
    submitted_by: str | None = None
    callback_url: str | None = None
    idempotency_key: str | None = None
    message_id: str | None = None

    @property
    def definition_hash(self) -> str:
        return self.workflow.content_hash()


OPENING_EVENTS = 2  # that the job was created, and that its start is ready


def opening_nodes(workflow: Workflow) -> list[dict[str, Any]]:
    """A new job's nodes: all pending, but for the start, which is ready."""
    nodes: list[dict[str, Any]] = []
    for node_id, node in workflow.nodes.items():
        work = work_of(node)
        status = NodeStatus.READY if isinstance(node, StartNode) else NodeStatus.PENDING
        nodes.append({"node_id": node_id, "status": status, "max_retries": work.retry.max_attempts if work else 0})
    return nodes


@dataclass(frozen=True, slots=True)
class Claim:
    """Proof of ownership. The token is remembered from the claim and never read again from the row."""

    job_id: UUID
    token: UUID
    epoch: int


@dataclass(frozen=True, slots=True)
class LoadedJob:
    """A claimed job as it stands: its own nodes, without the children of fan_outs."""

    job_id: UUID
    status: JobStatus
    definition_hash: str
    workflow: Workflow
    input_params: dict[str, Any]
    priority: int
    correlation_id: str | None
    submitted_by: str | None
    nodes: dict[str, NodeView]
    outputs: dict[str, Any]  # the small ones, of completed nodes
    result_data: Any = None
    error_message: str | None = None
    last_sequence: int = 0  # of its events: what was read is as old as that
    stopping: Stop | None = None
    resume_count: int = 0

    def view(self, graph: Graph | None = None) -> JobView:
        """The job as the planner sees it; the graph is built from the definition unless the caller has it already."""
        return JobView(
            self.job_id,
            graph or build(self.workflow),
            self.input_params,
            self.status,
            self.priority,
            self.correlation_id,
            self.submitted_by,
            self.nodes,
            self.outputs,
            stopping=self.stopping,
        )


@dataclass(frozen=True, slots=True)
class PendingWork:
    """Which of an owner's jobs have something to act on, and what kind of thing it is."""

    reported: tuple[UUID, ...] = ()
    overdue: tuple[UUID, ...] = ()  # lapsed leases, tasks past their time, waits that are over
    started: tuple[UUID, ...] = ()  # tasks that have run for a while and still show as dispatched
    next_due_seconds: float | None = None  # until the next wait is over
    owned: int | None = None  # how many jobs the owner has by the rows; None where it was not asked for


@dataclass(frozen=True, slots=True)
class Look:
    """What `advance` shall look at besides reported results, per job."""

    overdue: frozenset[UUID] = frozenset()
    started: frozenset[UUID] = frozenset()
    withdraw: frozenset[UUID] = frozenset()  # take back queued tasks: the job is failing
    stop_running: frozenset[UUID] = frozenset()  # … and ask the workers to stop the running ones
    wake: Mapping[tuple[UUID, str], int] = field(default_factory=dict)  # idle children to take up, of each fan_out
    reported_only: bool = False  # leave jobs without reports alone; whether they are still ours is then not told
    limit: int = LOOK_LIMIT


@dataclass(frozen=True, slots=True)
class Held:
    """The jobs whose fence was taken, and what happened to them."""

    epochs: Mapping[UUID, int]
    sequences: Mapping[UUID, int]
    news: Mapping[UUID, Sequence[TaskUpdate]]
    stops: Mapping[UUID, StopRequest] = field(default_factory=dict)


Decide = Callable[[Held], Sequence[Changes]]
Tell = Callable[[Sequence[str]], Sequence[str]]
"""The topics to ring for queues that get tasks, as soon as they have them."""
Choose = Callable[[LoadedJob], Rerun]


@dataclass(frozen=True, slots=True)
class Advanced:
    fenced: frozenset[UUID]  # no longer ours: drop them
    has_more: frozenset[UUID] = frozenset()  # there is more news than one transaction takes
    queues: frozenset[str] = frozenset()  # got tasks, and nobody was told yet


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker says of one attempt it ran."""

    job_id: UUID
    node_id: str
    attempt: int
    status: TaskStatus  # succeeded | failed | returned | cancelled
    output: Any = None
    error: dict[str, Any] | None = None  # {message, blame, code, …}
    metrics: dict[str, Any] | None = None
    output_ref: Reference | None = None  # instead of the output, where that is stored already


@dataclass(frozen=True, slots=True)
class Demand:
    """How much a worker can take: `light` handlers share its loop, `heavy` ones get a process each."""

    queues: tuple[str, ...]
    light_handlers: tuple[str, ...] = ()
    light: int = 0
    heavy_handlers: tuple[str, ...] = ()
    heavy: int = 0
    is_speculative: bool = False  # nothing says that there are tasks: reports need not wait for a look

    @property
    def total(self) -> int:
        return self.light + self.heavy


@dataclass(frozen=True, slots=True)
class Exchange:
    claimed: tuple[TaskMessage, ...]
    accepted: int
    late: tuple[str, ...] = ()  # task ids whose report came too late; recorded and ignored
    is_told: bool = False  # the topics went along with the commit


@dataclass(frozen=True, slots=True)
class Running:
    """A task that a worker holds, with its latest progress and its last log lines, where there are new ones."""

    job_id: UUID
    node_id: str
    attempt: int
    progress: dict[str, Any] | None = None
    log: list[dict[str, Any]] | None = None


class QueueChange(TypedDict, total=False):
    """What shall be different of a queue. What is not named stays; no limit is None."""

    max_running: int | None
    is_paused: bool


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    worker_id: UUID
    host: str
    pid: int
    software_version: str
    worker_type: str
    queues: tuple[str, ...]
    handlers: tuple[str, ...]
    stats: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OrchestratorInfo:
    owner_id: UUID
    host: str
    pid: int
    software_version: str
    stats: dict[str, Any] = field(default_factory=dict)


def key_conflict(job: NewJob, known_id: UUID) -> Conflict:
    return Conflict(
        f"the idempotency key '{job.idempotency_key}' stands for a submission with other inputs",
        code="job.key-conflict",
        hint="use another key, or the same inputs",
        idempotency_key=job.idempotency_key,
        job_id=known_id,
    )


def no_such_job(job_id: UUID) -> NotFound:
    return NotFound(f"there is no job {job_id}", code="job.not-found")


def too_large_for_a_template(node_id: str, size_bytes: int) -> InvalidRequest:
    return InvalidRequest(
        f"the output of '{node_id}' has {size_bytes} bytes; a template may load {LOADABLE_BYTES}",
        code="output.too-large",
        hint="read the children's results with `results_of`",
        size_bytes=size_bytes,
        limit_bytes=LOADABLE_BYTES,
    )


class Ledger(Protocol):
    # Submitting
    async def create_jobs(self, jobs: Sequence[NewJob]) -> list[UUID]:
        """Create jobs with their nodes and first events; one that exists already (same id or message) is left as it is."""
        ...

    async def create_once(self, job: NewJob, request_hash: str, *, force: bool = False) -> UUID:
        """Create a job under its idempotency key, or answer the job that has the key already.

        Conflict: the key stands for another request. With `force` a new job takes the key over.
        """
        ...

    async def enqueue_message(self, message_id: str, queue: str, body: Any) -> bool: ...

    async def take_messages(
        self, queue: str, limit: int, handle: Callable[[JobMessage], NewJob | DeadLetter]
    ) -> list[UUID | str]:
        """Turn waiting messages into jobs or dead letters, each exactly once; returns job ids and refused message ids."""
        ...

    async def replay_dead_letter(self, dead_letter_id: UUID, queue: str) -> bool:
        """Put a refused submission back into its queue; false if there is none by that id."""
        ...

    async def drop_dead_letter(self, dead_letter_id: UUID) -> None:
        """What it was about is settled."""
        ...

    # Operating
    async def rerun(self, job_id: UUID, choose: Choose, facts: Mapping[str, Any]) -> tuple[Rerun, int]:
        """Let a job that has ended run again: `choose` says what of it, under the job's lock. Answers that, and how often
        the job was resumed by now. `facts` (who, why) are kept with the event."""
        ...

    async def request_cancel(self, job_id: UUID, *, by: str | None, reason: str | None) -> tuple[JobStatus, bool]:
        """Ask for a job's end; its owner acts on it. Answers the job's state, and whether this was the first time."""
        ...

    # Orchestrators
    async def beat(self, orchestrator: OrchestratorInfo) -> None:
        """Show that this instance lives. Whether it still owns a job is decided by the fence alone."""
        ...

    async def claim_jobs(
        self, owner_id: UUID, *, limit: int, orphans: bool = True, orphan_after_seconds: float, patience_seconds: float
    ) -> list[Claim]:
        """Take jobs without owner, and with `orphans` those whose owner has been silent for too long, unless this instance has
        been so too: no more than its fair share, unless they have waited past `patience`."""
        ...

    async def load_jobs(self, job_ids: Sequence[UUID]) -> list[LoadedJob]: ...

    async def load_job(self, job_id: UUID) -> LoadedJob | None:
        """The job, or None if it does not exist (any more)."""
        ...

    async def load_outputs(self, job_id: UUID, node_ids: Sequence[str], *, resolve: bool = True) -> dict[str, Any]:
        """The outputs of completed nodes; of those kept by reference the value, or without `resolve` the reference."""
        ...

    async def pending_work(self, owner_id: UUID, *, sweep: bool, started_after_seconds: float = 0.2) -> PendingWork:
        """Which jobs have reports; with `sweep` also which have lapsed leases, waits that are over, tasks seen running."""
        ...

    async def advance(
        self, owner_id: UUID, claims: Sequence[Claim], look: Look, decide: Decide, *, tell: Tell | None = None
    ) -> Advanced:
        """Take the fence, let `decide` decide, write that, commit. A ledger that can rings what `tell` names right after."""
        ...

    async def release_unknown(self, owner_id: UUID, known: Sequence[UUID]) -> int:
        """Give back what this owner has besides the jobs it knows of: a claim's answer was lost on its way."""
        ...

    async def retire(self, owner_id: UUID) -> int:
        """Clean stop of an orchestrator: give every job back and forget the instance."""
        ...

    async def maintain(self) -> None:
        """Chores that any instance may do at any time: room for coming events, no rows of instances long gone."""
        ...

    # Workers
    async def beat_worker(self, worker: WorkerInfo) -> None: ...

    async def exchange(
        self,
        worker_id: UUID,
        reports: Sequence[Report],
        demand: Demand,
        *,
        lease_seconds: float,
        tell: Sequence[str] = (),
    ) -> Exchange:
        """Hand in what is finished and take new work, in one statement. A ledger that can rings these topics right after."""
        ...

    async def renew(self, worker_id: UUID, held: Sequence[Running], *, lease_seconds: float) -> frozenset[str]:
        """Prolong the leases of running tasks; answers the ids of those that are this worker's no more (stop them)."""
        ...

    async def take_stops(self, worker_id: UUID) -> frozenset[str]:
        """The ids of tasks that this worker is asked to stop, each told once."""
        ...

    async def set_queue(self, queue: str, **changes: Unpack[QueueChange]) -> None:
        """Limit how many tasks of a queue run at once over all workers, pause it, or open it."""
        ...

    async def retire_worker(self, worker_id: UUID) -> None: ...

    # Payloads
    async def store_payload(self, job_id: UUID, encoded: Encoded) -> Reference:
        """Keep JSON that is too large for a row. What nothing refers to in time is deleted again."""
        ...

    async def load_payload(self, job_id: UUID, reference: Reference) -> Encoded:
        """What was stored, to the byte; an error where that can't be had (payload.missing, payload.damaged)."""
        ...

    # Handlers
    async def read_results(
        self, job_id: UUID, node_id: str, offset: int, limit: int, *, decode: bool = True
    ) -> list[ChildResult]:
        """The results of a fan_out's children, as many of the `limit` as fit in memory (PAGE_BYTES), and one in any case. Outputs
        that are payloads come as what they are, or without `decode` as fragments of JSON."""
        ...

    async def save_checkpoint(
        self, running: Running, name: str, data: Any, artifacts: Sequence[Mapping[str, Any]] = ()
    ) -> bool:
        """Keep a phase's state, if this attempt still holds its task."""
        ...

    async def load_checkpoints(self, job_id: UUID, node_id: str) -> list[Checkpoint]:
        """Oldest first. A retry forgets them, a resume does not."""
        ...

    async def now(self) -> datetime: ...
