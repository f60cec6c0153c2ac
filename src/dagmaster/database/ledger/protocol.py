"""The ledger: the calls that read and write durable state, one protocol for each kind of caller.

    SubmissionLedger     the API and operations: create, rerun and cancel jobs, dead letters, queue limits
    OrchestratorLedger   the orchestrator's loop: claim jobs, and advance them step by step
    WorkerLedger         the worker's loop: claim tasks, report results, renew leases
    PayloadLedger        handlers: large outputs, results of children, checkpoints

There are two implementations: `postgres.PostgresLedger`, and `testing.memory_ledger.MemoryLedger` on a virtual clock.
Both pass one conformance suite. Every call is safe to repeat if its response was lost; most are one transaction. A call
that commits a change also notifies listeners that wait for it, right after the commit and outside the transaction.

Orchestrators advance jobs through a `Step` only. It holds the fence: the rows of the jobs whose claim token still
matches. Workers never write jobs, nodes or events.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypedDict, Unpack
from uuid import UUID

from dagmaster.errors import Conflict, InvalidRequest, NotFound
from dagmaster.jobs.changes import Changes
from dagmaster.jobs.fan import ChildResult
from dagmaster.jobs.model import Checkpoint, DeadLetter, JobMessage, TaskMessage, new_job_id, task_id
from dagmaster.jobs.payload import LOADABLE_BYTES, Encoded, Reference
from dagmaster.jobs.rerun import Rerun
from dagmaster.jobs.routing import DeferredWork
from dagmaster.jobs.states import JobStatus, NodeStatus, Stop, TaskStatus
from dagmaster.jobs.updates import StopRequest, TaskUpdate
from dagmaster.jobs.view import JobView, NodeView
from dagmaster.workflows.graph import Graph, build
from dagmaster.workflows.model import StartNode, Workflow, work_of

SMALL_BYTES = 16_384  # outputs up to this size are read together with their nodes
PAGE_BYTES = 16 * 1024 * 1024  # limit for the children's results that are read at once; at least one is read
OVERRUN_GRACE_SECONDS = 10.0  # a worker ends its overdue tasks itself; after this time the orchestrator does
UPDATES_LIMIT = 2000  # how many updates of a kind one step takes


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
    subscriber: dict[str, str] | None = None  # its `successUri` is the callback_url
    idempotency_key: str | None = None
    request_hash: str = ""  # distinguishes a repeated submission from another one with the same key
    message_id: str | None = None
    traceparent: str | None = None
    asset_id: str | None = None  # the engine does not read it: a trigger carries the end of the job to the asset
    version_ordinal: int | None = None

    @property
    def definition_hash(self) -> str:
        return self.workflow.content_hash()


OPENING_EVENTS = 2  # of a new job: it was created, and its start node is ready


def opening_nodes(workflow: Workflow) -> list[dict[str, Any]]:
    """A new job's nodes: all are pending, except the start node, which is ready."""
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
    """A job as it is stored, with its own nodes, without the children of fan_outs."""

    job_id: UUID
    status: JobStatus
    definition_hash: str
    workflow: Workflow
    input_params: dict[str, Any]
    priority: int
    correlation_id: str | None
    submitted_by: str | None
    nodes: dict[str, NodeView]
    outputs: dict[str, Any]  # small outputs of completed nodes
    result_data: Any = None
    error_message: str | None = None
    last_sequence: int = 0  # number of the last event when the job was read
    stopping: Stop | None = None
    resume_count: int = 0
    deferred_work: list[dict[str, Any]] | None = None
    traceparent: str | None = None

    def view(self, graph: Graph | None = None) -> JobView:
        """The job as the planner sees it; the graph is built from the definition unless the caller has it already."""
        deferred_work = self.deferred_work or ()
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
            deferred={row["node_id"]: DeferredWork(row["handler"], row.get("queue")) for row in deferred_work},
        )


@dataclass(frozen=True, slots=True)
class PendingWork:
    """The jobs of an owner that have to be advanced, by reason."""

    reported: tuple[UUID, ...] = ()
    overdue: tuple[UUID, ...] = ()  # expired leases, tasks past their time, waits that are over
    started: tuple[UUID, ...] = ()  # tasks that have run for a while and still show as dispatched
    next_due_seconds: float | None = None  # until the next wait is over
    owned: int = 0  # how many jobs the owner has in the database


@dataclass(frozen=True, slots=True)
class StepScope:
    """The updates that a step reads in addition to reported results, by job."""

    overdue: frozenset[UUID] = frozenset()
    started: frozenset[UUID] = frozenset()
    withdraw: frozenset[UUID] = frozenset()  # cancel queued tasks: the job is failing
    stop_running: frozenset[UUID] = frozenset()  # also ask the workers to stop running tasks
    wake: Mapping[tuple[UUID, str], int] = field(default_factory=dict)  # how many idle children to run, by fan_out
    limit: int = UPDATES_LIMIT


@dataclass(frozen=True, slots=True)
class OpenJob:
    """A job that a step has locked and that is still ours, with its updates since the previous step."""

    epoch: int
    sequence: int
    stop: StopRequest | None = None
    updates: list[TaskUpdate] = field(default_factory=list)


class Step(Protocol):
    """A transaction in which an orchestrator advances jobs: read `jobs`, decide, `commit`.
    Without a commit it is rolled back."""

    jobs: Mapping[UUID, OpenJob]
    fenced: frozenset[UUID]  # these claims are no longer valid: drop the jobs
    has_more: frozenset[UUID]  # these jobs have more updates than one step takes

    async def commit(self, changes: Sequence[Changes], *, notify: Sequence[str] = ()) -> frozenset[str]:
        """Write, commit, notify these topics. Returns the queues of next attempts: only the database knows these."""
        ...


ChooseRerun = Callable[[LoadedJob], Rerun]


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker reports about one attempt."""

    job_id: UUID
    node_id: str
    attempt: int
    status: TaskStatus  # succeeded | failed | returned | cancelled
    output: Any = None
    error: dict[str, Any] | None = None  # {message, blame, code, …}
    metrics: dict[str, Any] | None = None
    output_ref: Reference | None = None  # instead of the output, if that is stored already


@dataclass(frozen=True, slots=True)
class Demand:
    """How many tasks a worker can claim: `light` handlers share its event loop, `heavy` ones get a process each.
    `free_slots` has the free slots of the queues whose concurrency the worker limits."""

    queues: tuple[str, ...]
    light_handlers: tuple[str, ...] = ()
    light: int = 0
    heavy_handlers: tuple[str, ...] = ()
    heavy: int = 0
    free_slots: Mapping[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return self.light + self.heavy


@dataclass(frozen=True, slots=True)
class Exchange:
    claimed: tuple[TaskMessage, ...]
    accepted: int
    late: tuple[str, ...] = ()  # task ids whose report came too late; recorded and ignored


@dataclass(frozen=True, slots=True)
class Running:
    """A task that a worker holds, with its latest progress and its last log lines, if there are new ones.
    `run_seconds` says how long the handler has run, if it had to wait for a slot after the claim: the wait does not
    count towards its timeout."""

    job_id: UUID
    node_id: str
    attempt: int
    progress: dict[str, Any] | None = None
    log: list[dict[str, Any]] | None = None
    run_seconds: float | None = None


class QueueChange(TypedDict, total=False):
    """Changes of the settings of a queue. Settings that are not given stay; None removes the limit."""

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
    handlers: Sequence[str] = ()  # those that it can route
    queues: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class DeferralReview:
    """Jobs that were released to an orchestrator that knows their handlers, and work that no live process knows."""

    released: frozenset[UUID] = frozenset()
    unroutable: Mapping[UUID, frozenset[DeferredWork]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MessageScope:
    """Which messages an orchestrator takes: those of workflows that it knows. Others wait for one that knows
    their workflow; after `unknown_after_seconds` any orchestrator takes them."""

    workflow_ids: Collection[str] = ()
    unknown_after_seconds: float = 0.0


EVERY_MESSAGE = MessageScope()


def key_conflict(job: NewJob, existing_id: UUID) -> Conflict:
    return Conflict(
        f"the idempotency key '{job.idempotency_key}' was already used for a submission with other inputs",
        code="job.key-conflict",
        hint="use another key, or the same inputs",
        idempotency_key=job.idempotency_key,
        job_id=existing_id,
    )


def dead_letter(message: JobMessage, reason: str, description: str) -> DeadLetter:
    return DeadLetter.model_construct(
        dead_letter_id=new_job_id(0),
        queue=message.queue,
        message_id=message.message_id,
        reason=reason,
        description=description,
        body=message.body,
        created_at=message.enqueued_at,
    )


def dead_letter_of_conflict(message: JobMessage, job: NewJob, existing_id: UUID) -> DeadLetter:
    """The dead letter of a message whose idempotency key belongs to another submission."""
    return dead_letter(message, "KeyConflict", f"{key_conflict(job, existing_id)}; the job of the key is {existing_id}")


def no_such_job(job_id: UUID) -> NotFound:
    return NotFound(f"there is no job {job_id}", code="job.not-found")


def too_large_for_a_template(node_id: str, size_bytes: int) -> InvalidRequest:
    return InvalidRequest(
        f"the output of '{node_id}' has {size_bytes} bytes; a template can load at most {LOADABLE_BYTES}",
        code="output.too-large",
        hint="read the children's results with `results_of`",
        size_bytes=size_bytes,
        limit_bytes=LOADABLE_BYTES,
    )


class SubmissionLedger(Protocol):
    async def create_jobs(self, jobs: Sequence[NewJob]) -> list[UUID]:
        """Create jobs with their nodes and first events. A job that exists already (same id or message) stays as it
        is."""
        ...

    async def create_once(self, job: NewJob, request_hash: str, *, force: bool = False) -> UUID:
        """Create a job under its idempotency key, or return the job that has the key already.

        Conflict: the key belongs to another request. With `force` a new job takes the key over.
        """
        ...

    async def enqueue_message(self, message_id: str, queue: str, body: Any) -> bool: ...

    async def has_message(self, message_id: str, queue: str) -> bool:
        """Whether a message was enqueued: it waits, or has become a job or a dead letter."""
        ...

    async def replay_dead_letter(self, dead_letter_id: UUID, queue: str) -> bool:
        """Put a refused submission back into its queue; false if there is none with this id."""
        ...

    async def drop_dead_letter(self, dead_letter_id: UUID) -> None: ...

    async def load_job(self, job_id: UUID) -> LoadedJob | None:
        """The job, or None if it does not exist (any more)."""
        ...

    async def load_output_references(self, job_id: UUID, node_ids: Sequence[str]) -> dict[str, Any]:
        """The outputs of completed nodes; a large one as the reference under which it is stored."""
        ...

    async def rerun(self, job_id: UUID, choose: ChooseRerun, event_data: Mapping[str, Any]) -> tuple[Rerun, int]:
        """Run an ended job again. `choose` decides which nodes, while the job is locked.

        Returns the choice and how often the job has been resumed. `event_data` (by whom, why) is stored with the event.
        """
        ...

    async def request_cancel(self, job_id: UUID, *, by: str | None, reason: str | None) -> tuple[JobStatus, bool]:
        """Request a job's end; its owner acts on it. Returns the job's state and whether this is the first request."""
        ...

    async def set_queue(self, queue: str, **changes: Unpack[QueueChange]) -> None:
        """Limit how many tasks of a queue run at once over all workers, or pause or resume the queue."""
        ...


class OrchestratorLedger(Protocol):
    async def beat(self, orchestrator: OrchestratorInfo) -> None:
        """Write the heartbeat. Whether the instance still owns a job is decided by the fence alone."""
        ...

    async def take_messages(
        self,
        queue: str,
        limit: int,
        handle: Callable[[JobMessage], NewJob | DeadLetter],
        *,
        scope: MessageScope = EVERY_MESSAGE,
    ) -> list[UUID | str]:
        """Turn waiting messages into jobs or dead letters, each exactly once; returns job ids and refused message ids.
        Idempotency keys count as in `create_once`: a repeated submission makes no second job, another one with the same
        key becomes a dead letter. A message that is enqueued and refused again with the same content becomes no second
        dead letter."""
        ...

    async def claim_jobs(
        self, owner_id: UUID, *, limit: int, orphan_after_seconds: float, unclaimed_after_seconds: float
    ) -> list[Claim]:
        """Claim jobs without an owner: no more than a fair share, except jobs that were not claimed for
        `unclaimed_after_seconds`.

        The active jobs are shared by the instances with a heartbeat within `orphan_after_seconds`. Jobs whose
        deferred work another live orchestrator can route, and this one cannot, are left to that one.
        """
        ...

    async def claim_orphans(
        self, owner_id: UUID, *, limit: int, orphan_after_seconds: float, unclaimed_after_seconds: float
    ) -> list[Claim]:
        """Like `claim_jobs`, and in the same call also claim orphans: jobs whose owner has sent no heartbeat for
        `orphan_after_seconds`. An instance that has sent none itself claims no orphans."""
        ...

    async def load_jobs(self, job_ids: Sequence[UUID]) -> list[LoadedJob]: ...

    async def load_outputs(self, job_id: UUID, node_ids: Sequence[str]) -> dict[str, Any]:
        """The outputs of completed nodes; an error for one that is too large for a template."""
        ...

    async def load_output_references(self, job_id: UUID, node_ids: Sequence[str]) -> dict[str, Any]:
        """The outputs of completed nodes; a large one as the reference under which it is stored."""
        ...

    async def reported_jobs(self, owner_id: UUID) -> tuple[UUID, ...]:
        """Which jobs have reports or a request to cancel."""
        ...

    async def sweep_jobs(self, owner_id: UUID, *, started_after_seconds: float = 0.2) -> PendingWork:
        """Which jobs have reports, expired leases, waits that are over, or tasks to show as running."""
        ...

    def open_jobs(self, owner_id: UUID, claims: Sequence[Claim], scope: StepScope) -> AbstractAsyncContextManager[Step]:
        """Begin a step: lock the jobs whose claims are still valid, and read their updates."""
        ...

    def open_reported_jobs(
        self, owner_id: UUID, claims: Sequence[Claim], scope: StepScope
    ) -> AbstractAsyncContextManager[Step]:
        """Begin a step with those of the jobs that have reports.
        The claims of the others are not checked: none is `fenced`."""
        ...

    async def fail_job(self, owner_id: UUID, claim: Claim, error_message: str) -> bool:
        """Fail a job that cannot be advanced, without reading its values; false if the claim is no longer valid.

        Its nodes and tasks that have not ended are cancelled, and results that were not processed are ignored.
        """
        ...

    async def review_deferred(
        self, claims: Sequence[Claim], *, alive_seconds: float, unknown_after_seconds: float
    ) -> DeferralReview:
        """Release the jobs whose deferred work another live orchestrator can route. For the other jobs, return the work
        that no live process has known for `unknown_after_seconds`."""
        ...

    async def release_unknown(self, owner_id: UUID, owned_ids: Sequence[UUID]) -> int:
        """Release the jobs of this owner that it does not know of: the response to their claim was lost."""
        ...

    async def retire(self, owner_id: UUID) -> int:
        """Stop an orchestrator cleanly: release all its jobs and delete the instance. Returns the number of jobs."""
        ...

    async def maintain(self) -> None:
        """Create partitions for coming events, and delete the rows of instances that stopped long ago."""
        ...


class WorkerLedger(Protocol):
    async def beat_worker(self, worker: WorkerInfo) -> None: ...

    async def exchange(
        self, worker_id: UUID, reports: Sequence[Report], demand: Demand, *, lease_seconds: float
    ) -> Exchange:
        """Report finished tasks and claim new ones, in one statement."""
        ...

    async def report(
        self, worker_id: UUID, reports: Sequence[Report], demand: Demand, *, lease_seconds: float
    ) -> Exchange:
        """Report finished tasks. Claims tasks only if one of the queues has a limit:
        a report frees capacity there, and no notification is sent for that."""
        ...

    async def renew(self, worker_id: UUID, running: Sequence[Running], *, lease_seconds: float) -> frozenset[str]:
        """Renew the leases of running tasks; returns the ids of tasks that this worker no longer holds (stop them)."""
        ...

    async def take_stops(self, worker_id: UUID) -> frozenset[str]:
        """The ids of running tasks that this worker is asked to stop. Each is returned until it has ended: a response
        may be lost."""
        ...

    async def retire_worker(self, worker_id: UUID) -> None: ...


@dataclass(frozen=True, slots=True)
class ClaimedMessage:
    """A message of the outbox that this relay may send. `tries` includes this attempt."""

    job_id: UUID
    node_id: str
    attempt: int
    queue: str
    tries: int
    is_queued: bool  # otherwise its task was claimed already, or has ended

    @property
    def task_id(self) -> str:
        return task_id(self.job_id, self.node_id, self.attempt)


class Outbox(Protocol):
    """Tasks whose ids are not yet sent to a message broker. Tasks and their messages are committed together."""

    async def claim_messages(
        self,
        limit: int,
        *,
        lease_seconds: float,
        limits: Mapping[str, int] | None = None,
        newest: Collection[str] = (),
        newest_limit: int = 0,
    ) -> list[ClaimedMessage]:
        """Claim messages that are due, of each queue the oldest: up to the number in `limits`, or else `limit`. Of the
        queues in `newest`, claim the newest `newest_limit`. After the lease, another relay may send those that are
        neither deleted nor postponed."""
        ...

    async def forget_messages(self, limit: int) -> int:
        """Delete messages whose tasks are no longer queued, among the oldest `limit` per queue. Returns how many."""
        ...

    async def queued_tasks(self, task_ids: Sequence[str]) -> frozenset[str]:
        """Which of these tasks are still queued."""
        ...

    async def count_workers(self, alive_seconds: float) -> Mapping[str, int]:
        """How many workers serve each queue, without those that have sent no heartbeat for `alive_seconds`."""
        ...

    async def delete_messages(self, messages: Sequence[ClaimedMessage]) -> None:
        """Delete messages that the broker has accepted, or that need not be sent."""
        ...

    async def postpone_messages(
        self, messages: Sequence[ClaimedMessage], *, delay_seconds: float, error: str
    ) -> None: ...

    async def fail_tasks(self, messages: Sequence[ClaimedMessage], relay_id: UUID, error: Mapping[str, Any]) -> int:
        """Fail the tasks that are still queued, because their message will never be accepted, and delete the messages.
        Returns the number of failed tasks."""
        ...


class PayloadLedger(Protocol):
    async def store_payload(self, job_id: UUID, encoded: Encoded) -> Reference:
        """Store JSON that is too large for a row. It is deleted again if nothing refers to it in time."""
        ...

    async def load_payload(self, job_id: UUID, reference: Reference) -> Encoded:
        """Exactly the bytes that were stored; an error if they are missing or damaged (payload.missing,
        payload.damaged)."""
        ...

    async def read_results(self, job_id: UUID, node_id: str, offset: int, limit: int) -> list[ChildResult]:
        """Results of a fan_out's children: up to `limit`, as many as fit into memory (PAGE_BYTES), and at least one."""
        ...

    async def read_encoded_results(self, job_id: UUID, node_id: str, offset: int, limit: int) -> list[ChildResult]:
        """The same, to be sent on as JSON: outputs that are payloads stay encoded, as fragments."""
        ...

    async def save_checkpoint(
        self, running: Running, name: str, data: Any, artifacts: Sequence[Mapping[str, Any]] = ()
    ) -> bool:
        """Store a phase's state, if this attempt still holds its task."""
        ...

    async def load_checkpoints(self, job_id: UUID, node_id: str) -> list[Checkpoint]:
        """Oldest first. A retry deletes them, a resume does not."""
        ...
