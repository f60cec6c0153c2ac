"""Rebuild jobs and nodes from their events alone, and say where history and rows disagree.

    events ──▶ tell ──▶ the rebuilt job          (every step legal, in order, allowed by the graph and the retry policy)
    rows   ──▶ node, task, result ──▶ compared   (the fold of the events is what the tables hold, attempt by attempt)
           ──▶ finish                            (what must hold of a job that has ended, and nothing left over)

An `Audit` is fed row by row, in any order but for events, which come by sequence: it holds some hundred bytes a node, so a
hundred thousand children are checked while they stream by. Nothing here asks the planner or `view` what is right: the rules
are written down a second time, naively. Jobs that still run are held only to what is true at any time.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import floor
from typing import Any, NamedTuple
from uuid import UUID

from dagmaster.jobs import states
from dagmaster.jobs.retry import LOSS_POLICY
from dagmaster.jobs.states import Blame, EventType, JobStatus, NodeStatus, SkipReason, TaskStatus
from dagmaster.workflows.graph import Graph
from dagmaster.workflows.model import ConditionalNode, FanInNode, FanOutNode, Importance, Retry, work_of

FINDINGS_A_JOB = 200  # one broken job must not drown the others
OUTPUTS_FAILED = "the workflow's outputs"
_ROUNDING_SECONDS = 0.002  # waits are written with three decimals


class FindingCode(StrEnum):
    """What kind of damage."""

    SEQUENCE = "sequence"  # events are numbered 1..n without gaps
    OPENING = "opening"  # the first event creates the job, with the nodes of its definition
    TRANSITION = "transition"  # a step that the state tables don't have
    EVENT = "event"  # an event whose type and state contradict each other
    EPOCH = "epoch"  # an event of an owner that had been replaced
    ATTEMPT = "attempt"  # attempts are numbered 1..n, one at a time
    START = "start"  # a node went before what it waits for allowed it
    SKIP = "skip"  # a node was skipped without a reason to
    AFTER_END = "after-end"  # something happened after the job had ended
    WHILE_FAILING = "while-failing"  # dispatched although a critical node had failed for good
    RETRY = "retry"  # more retries than the policy allows, or one that it forbids
    WAIT = "wait"  # a wait outside the bounds of the policy
    FAN_IN = "fan-in"  # a fan_in that went without all its children, or gathered others
    COUNTERS = "counters"  # a fan_out's counters don't count its children
    JOB_ROW = "job-row"  # the row of the job is not what its events say
    NODE_ROW = "node-row"  # the row of a node is not what its events say
    ROW_WITHOUT_EVENTS = "row-without-events"  # a row that no event created
    EVENTS_WITHOUT_ROW = "events-without-row"  # events of a row that does not exist
    TASK_MISSING = "task-missing"  # dispatched by the events, but there is no task
    TASK_UNTOLD = "task-untold"  # a task that no event tells of
    TASK_STATUS = "task-status"  # the status of a task is not what the events say
    RESULT = "result"  # a result that is missing, or fits no attempt
    RESULT_OUTPUT = "result-output"  # a node's output is not what its accepted result says
    RESULT_UNPROCESSED = "result-unprocessed"  # accepted and never handled
    PAYLOAD = "payload"  # what is referred to is not there, or not what was stored
    UNENDED = "unended"  # the job has ended, this has not
    OUTCOME = "outcome"  # the job's outcome doesn't follow from its nodes
    DEFINITION = "definition"  # the definition is missing, unreadable or another
    ORPHAN = "orphan"  # rows of a job that doesn't exist
    MORE = "more"  # further findings that were not listed


@dataclass(frozen=True, slots=True)
class HistoryFinding:
    job_id: UUID | None
    node_id: str | None
    code: FindingCode
    message: str

    def __str__(self) -> str:
        place = f"job {self.job_id}" + (f" node '{self.node_id}'" if self.node_id else "")
        return f"[{self.code}] {place}: {self.message}"


# --- rows ------------------------------------------------------------------------------------------------------------


class Event(NamedTuple):
    sequence: int
    node_id: str | None
    type: str
    status: str | None
    attempt: int | None
    epoch: int | None
    data: Mapping[str, Any] | None


class JobRow(NamedTuple):
    job_id: UUID
    status: str
    definition_hash: str
    last_sequence: int
    epoch: int
    resume_count: int


class NodeRow(NamedTuple):
    """`chosen` is a conditional's branch, `gathered` how many results a fan_in says it has."""

    node_id: str
    status: str
    parent: str | None
    fan_out_index: int | None
    attempt: int
    retry_count: int
    loss_count: int
    run: int
    total: int | None = None
    expanded: int | None = None
    remaining: int | None = None
    failed: int | None = None
    cancelled: int | None = None
    idle: int | None = None
    stale: int | None = None
    chosen: tuple[str, ...] | None = None
    gathered: int | None = None


class TaskRow(NamedTuple):
    node_id: str
    attempt: int
    status: str


class ResultRow(NamedTuple):
    node_id: str
    attempt: int
    status: str
    accepted: bool
    processed: bool
    is_other_output: bool = False  # its node completed with this attempt, and holds another output


# --- what is rebuilt -------------------------------------------------------------------------------------------------


class AttemptState(StrEnum):
    """How an attempt stands by the events: one letter, so that a node's attempts are a short text."""

    QUEUED = "q"
    RUNNING = "r"
    SUCCEEDED = "s"
    FAILED = "f"
    OVERRAN = "o"
    EXPIRED = "x"
    LOST = "l"
    RETURNED = "b"
    WITHDRAWN = "w"


_LIVE = frozenset({AttemptState.QUEUED.value, AttemptState.RUNNING.value})
_REPORTED = (AttemptState.SUCCEEDED, AttemptState.FAILED, AttemptState.RETURNED)
_T = TaskStatus
# A worker ends its task by itself; the event follows when an orchestrator has read the result.
_BY_WORKER = frozenset({_T.SUCCEEDED.value, _T.FAILED.value, _T.RETURNED.value, _T.CANCELLED.value})
_TASK_OF: dict[str, frozenset[str]] = {
    AttemptState.QUEUED.value: frozenset({_T.QUEUED.value, _T.RUNNING.value}) | _BY_WORKER,
    AttemptState.RUNNING.value: frozenset({_T.RUNNING.value}) | _BY_WORKER,
    AttemptState.SUCCEEDED.value: frozenset({_T.SUCCEEDED.value}),
    AttemptState.FAILED.value: frozenset({_T.FAILED.value}),
    AttemptState.OVERRAN.value: frozenset({_T.FAILED.value}),
    AttemptState.EXPIRED.value: frozenset({_T.CANCELLED.value}),
    AttemptState.LOST.value: frozenset({_T.LOST.value}),
    AttemptState.RETURNED.value: frozenset({_T.RETURNED.value}),
    # Given back to (or lost by) a job that is failing or to end: it is not tried again.
    AttemptState.WITHDRAWN.value: frozenset({_T.CANCELLED.value, _T.RETURNED.value, _T.LOST.value}),
}
_RESULT_OF: dict[str, frozenset[str]] = {
    AttemptState.SUCCEEDED.value: frozenset({_T.SUCCEEDED.value}),
    AttemptState.FAILED.value: frozenset({_T.FAILED.value}),
    AttemptState.RETURNED.value: frozenset({_T.RETURNED.value}),
    AttemptState.WITHDRAWN.value: frozenset({_T.RETURNED.value, _T.CANCELLED.value}),
}


@dataclass(slots=True)
class RebuiltNode:
    """A node as its events tell. `trace` has a letter (`End`) for each attempt."""

    status: str
    parent: str | None = None
    trace: str = ""
    run: int = 1
    retries: int = 0
    losses: int = 0
    reason: str | None = None
    blame: str | None = None
    has_row: bool = False
    tasks: int = 0
    results: int = 0
    unread: int = 0  # tasks that ended without an event so far, less the results that wait to be read
    is_stale: bool = False  # a child of a run before: not counted until it is taken up
    chosen: tuple[str, ...] | None = None  # of a conditional, in this run
    total: int | None = None  # of a fan_out, in this run
    gathered: int | None = None  # of a fan_in: how many children had completed when it went

    @property
    def attempts(self) -> int:
        return len(self.trace)

    @property
    def is_live(self) -> bool:
        return self.trace[-1:] in _LIVE


@dataclass(slots=True)
class ChildCounts:
    """The children of one fan_out."""

    born: int = 0
    ended: int = 0
    failed: int = 0
    cancelled: int = 0
    idle: int = 0
    stale: int = 0


@dataclass(slots=True)
class RebuiltJob:
    status: str | None = None
    nodes: dict[str, RebuiltNode] = field(default_factory=dict)
    families: dict[str, ChildCounts] = field(default_factory=dict)
    findings: list[HistoryFinding] = field(default_factory=list)
    events: int = 0
    reruns: int = 0


def replay(events: Iterable[Event], job_id: UUID | None = None, graph: Graph | None = None) -> RebuiltJob:
    """A job as its events tell it. Without a graph only order and legality of the steps are checked."""
    audit = Audit(job_id, graph)
    for event in events:
        audit.tell(event)
    return audit.rebuilt


def _plain(moves: Mapping[Any, Iterable[Any]]) -> dict[str, frozenset[str]]:
    return {str(state): frozenset(map(str, targets)) for state, targets in moves.items()}


_JOB_MOVES, _JOB_RERUNS = _plain(states.JOB_MOVES), _plain(states.JOB_RERUNS)
_NODE_MOVES, _NODE_RERUNS = _plain(states.NODE_MOVES), _plain(states.NODE_RERUNS)
_JOB_TERMINAL = frozenset(map(str, states.JOB_TERMINAL))
_NODE_TERMINAL = frozenset(map(str, states.NODE_TERMINAL))
_STATUS_OF: dict[str, str] = {
    EventType.JOB_CREATED: JobStatus.PENDING,
    EventType.JOB_STARTED: JobStatus.RUNNING,
    EventType.JOB_COMPLETED: JobStatus.COMPLETED,
    EventType.JOB_PARTIAL_SUCCESS: JobStatus.PARTIAL_SUCCESS,
    EventType.JOB_FAILED: JobStatus.FAILED,
    EventType.JOB_CANCELLED: JobStatus.CANCELLED,
    EventType.JOB_RESUMED: JobStatus.RUNNING,
    EventType.NODE_READY: NodeStatus.READY,
    EventType.NODE_DISPATCHED: NodeStatus.DISPATCHED,
    EventType.NODE_STARTED: NodeStatus.RUNNING,
    EventType.NODE_COMPLETED: NodeStatus.COMPLETED,
    EventType.NODE_FAILED: NodeStatus.FAILED,
    EventType.NODE_RETRIED: NodeStatus.READY,
    EventType.NODE_SKIPPED: NodeStatus.SKIPPED,
    EventType.NODE_CANCELLED: NodeStatus.CANCELLED,
    EventType.NODE_RESET: NodeStatus.PENDING,
}


class _Dependency(StrEnum):
    """What a dependency says at the moment its successor moves."""

    WAIT = "has not ended"
    GO = "completed"
    VOID = "was skipped by a branch"
    EMPTY = "failed but is optional"
    BROKEN = "failed"


class Audit:
    """One job under examination."""

    def __init__(
        self,
        job_id: UUID | None = None,
        graph: Graph | None = None,
        nodes: Iterable[NodeRow] = (),
        *,
        max_losses: int | None = None,
    ) -> None:
        """`nodes` are the rows of the definition's own nodes; they say which branches were chosen."""
        self.job_id = job_id
        self.graph = graph
        self.rebuilt = RebuiltJob()
        self.max_losses = max_losses
        self.hidden = 0
        self._own = {row.node_id: row for row in nodes}
        self._sequence = 0
        self._epoch = 0
        self._standing: set[str] = set()  # critical nodes that have failed, as things stand
        self._end: Event | None = None
        self._is_stopping = False
        self._definition: str | None = None

    def _find(self, code: FindingCode, message: str, node_id: str | None = None) -> None:
        if len(self.rebuilt.findings) < FINDINGS_A_JOB:
            self.rebuilt.findings.append(HistoryFinding(self.job_id, node_id, code, message))
        else:
            self.hidden += 1

    # --- events ------------------------------------------------------------------------------------------------------

    def tell(self, event: Event) -> None:
        """The next event, by sequence."""
        self.rebuilt.events += 1
        self._in_order(event)
        said = _STATUS_OF.get(event.type)
        if said is not None and event.status != said:
            self._find(FindingCode.EVENT, f"event {event.sequence}: {event.type} says '{event.status}'", event.node_id)
        if event.node_id is not None:
            self._tell_node(event, event.node_id)
        elif event.type == EventType.JOB_CREATED:
            self._open(event)
        elif event.type == EventType.JOB_STOPPING:
            self._is_stopping = True
        elif event.status is not None:
            self._move_job(event, event.status)

    def _in_order(self, event: Event) -> None:
        if event.sequence != self._sequence + 1:
            self._find(FindingCode.SEQUENCE, f"event {event.sequence} follows {self._sequence}")
        if event.sequence == 1 and event.type != EventType.JOB_CREATED:
            self._find(FindingCode.OPENING, f"the first event is {event.type}, not job_created")
        self._sequence = event.sequence
        epoch = event.epoch or 0
        if epoch < self._epoch:
            self._find(
                FindingCode.EPOCH, f"event {event.sequence} is of epoch {epoch}, after one of epoch {self._epoch}"
            )
        self._epoch = max(self._epoch, epoch)

    def _open(self, event: Event) -> None:
        if self.rebuilt.status is not None:
            self._find(FindingCode.OPENING, f"event {event.sequence} creates the job again")
            return
        self.rebuilt.status = JobStatus.PENDING
        self._definition = (event.data or {}).get("definition_hash")
        names = (event.data or {}).get("nodes") or ()
        self.rebuilt.nodes = {name: RebuiltNode(NodeStatus.PENDING) for name in names}
        if self.graph is not None and set(names) != set(self.graph.workflow.nodes):
            self._find(FindingCode.OPENING, "job_created names other nodes than the definition has")
            self.graph = None  # it would only mislead

    def _move_job(self, event: Event, to: str) -> None:
        was = self.rebuilt.status or "nothing"
        if to in _JOB_RERUNS.get(was, ()):
            self.rebuilt.reruns += 1
            self._end = None
            self._is_stopping = False
        elif to not in _JOB_MOVES.get(was, ()):
            self._find(FindingCode.TRANSITION, f"event {event.sequence}: the job went from {was} to {to}")
        self.rebuilt.status = to
        if to in _JOB_TERMINAL:
            self._end = event

    def _tell_node(self, event: Event, node_id: str) -> None:
        node = self.rebuilt.nodes.get(node_id) or self._birth(event, node_id)
        to = event.status
        if node is None or to is None:
            return
        if self._end is not None and to not in _NODE_RERUNS.get(node.status, ()):
            ended = f"the job had ended with event {self._end.sequence}"
            self._find(FindingCode.AFTER_END, f"event {event.sequence} ({event.type}), though {ended}", node_id)
        was, node.status = node.status, to
        self._check_move(event, node_id, node, was)
        self._count(node, was, to)
        if (event.data or {}).get("anew") and to == NodeStatus.PENDING:
            self._begin_anew(node_id)
        match to:
            case NodeStatus.READY:
                self._ready(event, node_id, node, was)
            case NodeStatus.DISPATCHED:
                self._dispatched(event, node_id, node)
            case NodeStatus.RUNNING:
                self._started(event, node_id, node)
            case NodeStatus.COMPLETED:
                self._completed(event, node_id, node)
            case NodeStatus.FAILED:
                self._failed(event, node_id, node)
            case NodeStatus.CANCELLED if node.is_live:
                self._ends(event, node_id, node, AttemptState.WITHDRAWN)
            case NodeStatus.SKIPPED:
                self._skipped(event, node_id, node)
        self._weigh(node_id, node)

    def _birth(self, event: Event, node_id: str) -> RebuiltNode | None:
        """A fan_out's child begins as ready; nothing else appears after the job's creation."""
        parent, _, number = node_id.rpartition("__")
        is_child = number.isdigit() and parent in self.rebuilt.nodes and self._is_fan_out(parent)
        if not is_child or event.status != NodeStatus.READY:
            self._find(
                FindingCode.TRANSITION, f"event {event.sequence} ({event.type}) is of a node that nobody made", node_id
            )
            if not is_child:
                return None
        node = self.rebuilt.nodes[node_id] = RebuiltNode(NodeStatus.PENDING, parent)
        self.rebuilt.families.setdefault(parent, ChildCounts()).born += 1
        return node

    def _begin_anew(self, fan_out: str) -> None:
        """A fan_out is run again: its children are those of a run before, until they are taken up."""
        for child in self.rebuilt.nodes.values():
            if child.parent == fan_out:
                child.is_stale = True
        self.rebuilt.families[fan_out] = ChildCounts()

    def _is_fan_out(self, node_id: str) -> bool:
        return self.graph is None or isinstance(self.graph.workflow.nodes.get(node_id), FanOutNode)

    def _check_move(self, event: Event, node_id: str, node: RebuiltNode, was: str) -> None:
        to = node.status
        if to in _NODE_RERUNS.get(was, ()):
            node.run += 1
            node.retries = node.losses = 0
            node.reason = node.blame = node.chosen = None
            if (event.data or {}).get("anew"):
                node.total = None
        elif to not in _NODE_MOVES.get(was, ()):
            self._find(FindingCode.TRANSITION, f"event {event.sequence}: went from {was} to {to}", node_id)

    def _count(self, node: RebuiltNode, was: str, to: str) -> None:
        """Keep the counters of a child's family."""
        if node.parent is None:
            return
        family = self.rebuilt.families[node.parent]
        if node.is_stale:
            family.stale += (to == NodeStatus.PENDING) - (was == NodeStatus.PENDING)
            if to == NodeStatus.READY:
                node.is_stale = False
                family.born += 1
            return
        for state, step in ((was, -1), (to, 1)):
            family.ended += step * (state in _NODE_TERMINAL)
            family.failed += step * (state == NodeStatus.FAILED)
            family.cancelled += step * (state == NodeStatus.CANCELLED)
        family.idle += (to == NodeStatus.PENDING) - (was == NodeStatus.PENDING and node.run > 1)

    def _weigh(self, node_id: str, node: RebuiltNode) -> None:
        """Remember which critical nodes have failed, as things stand: nothing may go out any more."""
        if self.graph is None:
            return
        owner = node.parent or node_id
        if self.graph.workflow.nodes[owner].importance is not Importance.CRITICAL:
            return
        failed = self.rebuilt.nodes[owner].status == NodeStatus.FAILED or self._exceeds_tolerance(owner)
        (self._standing.add if failed else self._standing.discard)(owner)

    # Attempts

    def _dispatched(self, event: Event, node_id: str, node: RebuiltNode) -> None:
        if node.is_live:
            self._find(FindingCode.ATTEMPT, f"event {event.sequence}: a second attempt while one is live", node_id)
        if event.attempt != node.attempts + 1:
            self._find(
                FindingCode.ATTEMPT, f"event {event.sequence}: attempt {event.attempt} follows {node.attempts}", node_id
            )
        if self._is_stopping:
            self._find(
                FindingCode.WHILE_FAILING, f"event {event.sequence}: dispatched though the job was to end", node_id
            )
        if self._standing:
            because = ", ".join(sorted(self._standing))
            self._find(
                FindingCode.WHILE_FAILING, f"event {event.sequence}: dispatched after {because} had failed", node_id
            )
        if node.attempts == 0 and node.parent is None:
            self._check_fan_in(event, node_id)
        node.trace += AttemptState.QUEUED.value

    def _started(self, event: Event, node_id: str, node: RebuiltNode) -> None:
        if self._is_current(event, node_id, node):
            node.trace = node.trace[:-1] + AttemptState.RUNNING.value

    def _is_current(self, event: Event, node_id: str, node: RebuiltNode) -> bool:
        if node.is_live and event.attempt == node.attempts:
            return True
        self._find(
            FindingCode.ATTEMPT,
            f"event {event.sequence} ({event.type}) is of attempt {event.attempt}, not a live one",
            node_id,
        )
        return False

    def _ends(self, event: Event, node_id: str, node: RebuiltNode, end: AttemptState) -> None:
        if self._is_current(event, node_id, node):
            node.trace = node.trace[:-1] + end.value

    def _completed(self, event: Event, node_id: str, node: RebuiltNode) -> None:
        if event.attempt is not None:
            self._ends(event, node_id, node, AttemptState.SUCCEEDED)
        elif self._needs_worker(node_id, node):
            self._find(FindingCode.ATTEMPT, f"event {event.sequence}: completed without a worker", node_id)
        else:
            self._check_fan_in(event, node_id)
            node.gathered = self._completed_children(node_id)
        data = event.data or {}
        node.chosen = tuple(data["next"]) if "next" in data else node.chosen
        node.total = data.get("total", node.total)

    def _needs_worker(self, node_id: str, node: RebuiltNode) -> bool:
        if node.parent is not None:
            return True
        own = self.graph.workflow.nodes.get(node_id) if self.graph else None
        return own is not None and not isinstance(own, FanOutNode) and work_of(own) is not None

    def _failed(self, event: Event, node_id: str, node: RebuiltNode) -> None:
        error = (event.data or {}).get("error") or {}
        node.blame = str(error.get("blame", Blame.HANDLER))
        if event.attempt is None:
            if node.is_live:
                self._find(
                    FindingCode.ATTEMPT, f"event {event.sequence}: failed inside while an attempt is live", node_id
                )
            return
        match error.get("code"):
            case "task.lost":
                end = AttemptState.LOST
            case "task.overran":
                end = AttemptState.EXPIRED if node.trace[-1:] == AttemptState.QUEUED.value else AttemptState.OVERRAN
            case _:
                end = AttemptState.FAILED
        self._ends(event, node_id, node, end)

    # Retries

    def _ready(self, event: Event, node_id: str, node: RebuiltNode, was: str) -> None:
        if event.type == EventType.NODE_RETRIED:
            self._retried(event, node_id, node)
        elif node.parent is None and was == NodeStatus.PENDING:
            self._check_start(event, node_id)

    def _retried(self, event: Event, node_id: str, node: RebuiltNode) -> None:
        data = event.data or {}
        wait = float(data.get("wait_seconds") or 0)
        match data.get("reason"):
            case "returned":
                self._ends(event, node_id, node, AttemptState.RETURNED)
                self._check_wait(event, node_id, wait, None, 0)
            case "lost":
                self._ends(event, node_id, node, AttemptState.LOST)
                node.losses += 1
                # The first loss goes out at once: its lease was wait enough.
                self._check_wait(event, node_id, wait, LOSS_POLICY if node.losses > 1 else None, node.losses - 1)
            case _ if node.blame == Blame.ENVIRONMENT:
                node.losses += 1
                self._check_wait(event, node_id, wait, LOSS_POLICY, node.losses)
            case _:
                self._retried_failure(event, node_id, node, wait)
        if self.max_losses is not None and node.losses > self.max_losses:
            self._find(
                FindingCode.RETRY, f"event {event.sequence}: loss {node.losses} of at most {self.max_losses}", node_id
            )

    def _retried_failure(self, event: Event, node_id: str, node: RebuiltNode, wait: float) -> None:
        node.retries += 1
        if node.blame == Blame.DATA:
            self._find(FindingCode.RETRY, f"event {event.sequence}: bad data is never tried again", node_id)
        policy = self._policy(node.parent or node_id)
        if policy is None:
            return
        if node.retries > policy.max_attempts:
            allowed = f"retry {node.retries} of at most {policy.max_attempts}"
            self._find(FindingCode.RETRY, f"event {event.sequence}: {allowed}", node_id)
        self._check_wait(event, node_id, wait, policy, node.retries)

    def _policy(self, node_id: str) -> Retry | None:
        if self.graph is None or node_id not in self.graph.workflow.nodes:
            return None
        work = work_of(self.graph.workflow.nodes[node_id])
        return work.retry if work else Retry(max_attempts=0)

    def _check_wait(self, event: Event, node_id: str, wait: float, policy: Retry | None, nth: int) -> None:
        longest = 0.0
        if policy is not None:
            growth = 2.0 ** (min(nth, 31) - 1) if policy.backoff == "exponential" else 1.0
            longest = min(policy.max_delay_seconds, policy.initial_delay_seconds * growth)
        shortest = longest / 2 if policy is not None and policy.jitter else longest
        if not shortest - _ROUNDING_SECONDS <= wait <= longest + _ROUNDING_SECONDS:
            bounds = f"{shortest:g} to {longest:g} s"
            self._find(FindingCode.WAIT, f"event {event.sequence}: waits {wait:g} s; the policy says {bounds}", node_id)

    # Order

    def _dependency_states(self, target: str) -> tuple[list[tuple[str, _Dependency]], list[tuple[str, _Dependency]]]:
        assert self.graph is not None
        all_of, any_of = self.graph.all_of.get(target, ()), self.graph.any_of.get(target, ())
        return [(s, self._dependency_state(s, target)) for s in all_of], [
            (s, self._dependency_state(s, target)) for s in any_of
        ]

    def _dependency_state(self, source: str, target: str) -> _Dependency:
        assert self.graph is not None
        node = self.graph.workflow.nodes[source]
        state = self.rebuilt.nodes.get(source)
        if state is None or state.status not in _NODE_TERMINAL:
            return _Dependency.WAIT
        match state.status:
            case NodeStatus.SKIPPED:
                return _Dependency.VOID if state.reason == SkipReason.BRANCH_NOT_TAKEN else _Dependency.BROKEN
            case NodeStatus.CANCELLED:
                return _Dependency.BROKEN
            case NodeStatus.FAILED if node.importance is not Importance.OPTIONAL:
                return _Dependency.BROKEN
            case NodeStatus.COMPLETED if isinstance(node, ConditionalNode):
                return _Dependency.GO if self._was_chosen(source, target) else _Dependency.VOID
            case NodeStatus.COMPLETED if not isinstance(node, FanOutNode):
                return _Dependency.GO
        if self._has_open_children(source):
            return _Dependency.WAIT
        if state.status == NodeStatus.COMPLETED and (
            not self._exceeds_tolerance(source) or self.graph.fan_out_of.get(target) == source
        ):
            return _Dependency.GO
        return _Dependency.EMPTY if node.importance is Importance.OPTIONAL else _Dependency.BROKEN

    def _was_chosen(self, conditional: str, target: str) -> bool:
        """As its event says, or else the row, which knows only the node's last run. Who is on no branch only waits for it."""
        assert self.graph is not None
        if target not in self.graph.branch_targets[conditional]:
            return True
        chosen = self.rebuilt.nodes[conditional].chosen
        if chosen is not None:
            return target in chosen
        row = self._own.get(conditional)
        if row is None or row.chosen is None or row.run != self.rebuilt.nodes[conditional].run:
            return True
        return target in row.chosen

    def _has_open_children(self, fan_out: str) -> bool:
        family = self.rebuilt.families.get(fan_out)
        if family is not None and family.ended < family.born:
            return True
        if self.rebuilt.nodes[fan_out].status != NodeStatus.COMPLETED:
            return False
        return (family.born if family else 0) < self._total(fan_out)

    def _total(self, fan_out: str) -> int:
        """How many children it has in this run; as its event says, or else the row, which knows only the last run."""
        row, family, node = self._own.get(fan_out), self.rebuilt.families.get(fan_out), self.rebuilt.nodes[fan_out]
        if node.total is not None:
            return node.total
        if row is not None and row.total is not None and row.run == node.run:
            return row.total
        return family.born if family else 0

    def _is_size_known(self, fan_out: str) -> bool:
        row, node = self._own.get(fan_out), self.rebuilt.nodes[fan_out]
        return node.total is not None or row is None or row.run == node.run

    def _exceeds_tolerance(self, fan_out: str) -> bool:
        node = self.graph.workflow.nodes[fan_out] if self.graph else None
        family = self.rebuilt.families.get(fan_out)
        if family is None or not isinstance(node, FanOutNode):
            return False
        share = node.tolerate
        if isinstance(share, float) and not self._is_size_known(fan_out):
            return False
        allowed = floor(share * self._total(fan_out)) if isinstance(share, float) else share
        return family.failed + family.cancelled > allowed

    def _check_start(self, event: Event, node_id: str) -> None:
        if self.graph is None or node_id == self.graph.start:
            return
        needed, options = self._dependency_states(node_id)
        for source, word in needed:
            if word in (_Dependency.WAIT, _Dependency.BROKEN):
                self._find(FindingCode.START, f"event {event.sequence}: went although '{source}' {word}", node_id)
        if options and all(word is not _Dependency.GO for _, word in options):
            self._find(FindingCode.START, f"event {event.sequence}: went although none of any_of completed", node_id)
        if needed and not options and all(word is _Dependency.VOID for _, word in needed):
            self._find(FindingCode.START, f"event {event.sequence}: went on a branch that was not taken", node_id)

    def _skipped(self, event: Event, node_id: str, node: RebuiltNode) -> None:
        node.reason = (event.data or {}).get("reason")
        if self.graph is None or node.parent is not None:
            self._check_left_out(event, node_id, node)
            return
        needed, options = ({word for _, word in words} for words in self._dependency_states(node_id))
        lost = _Dependency.BROKEN in needed or (
            not options & {_Dependency.GO, _Dependency.WAIT} and bool(options & {_Dependency.BROKEN, _Dependency.EMPTY})
        )
        void = options == {_Dependency.VOID} or (not options and needed == {_Dependency.VOID})
        if not (lost if node.reason == SkipReason.UPSTREAM_FAILED else void and not lost):
            self._find(
                FindingCode.SKIP, f"event {event.sequence}: skipped as '{node.reason}', which is not so", node_id
            )

    def _check_left_out(self, event: Event, node_id: str, node: RebuiltNode) -> None:
        """Only children of a run before may be skipped."""
        if node.parent is not None and not (node.is_stale and node.reason == SkipReason.NOT_IN_THIS_RUN):
            self._find(FindingCode.SKIP, f"event {event.sequence}: a child was skipped as '{node.reason}'", node_id)

    def _check_fan_in(self, event: Event, node_id: str) -> None:
        """A fan_in goes when all children have ended, and no more of them failed than are tolerated."""
        fan_out = self.graph.fan_out_of.get(node_id) if self.graph else None
        if fan_out is None or fan_out not in self.rebuilt.nodes:
            return
        family = self.rebuilt.families.get(fan_out, ChildCounts())
        if self._has_open_children(fan_out):
            of = f"{family.ended} of {max(family.born, self._total(fan_out))} children of '{fan_out}'"
            self._find(FindingCode.FAN_IN, f"event {event.sequence}: went when {of} had ended", node_id)
        elif self._exceeds_tolerance(fan_out):
            failed = f"{family.failed + family.cancelled} children of '{fan_out}' failed"
            self._find(FindingCode.FAN_IN, f"event {event.sequence}: went although {failed}", node_id)

    # --- rows --------------------------------------------------------------------------------------------------------

    def node(self, row: NodeRow) -> None:
        """Compare a node's row with its events. After the last event."""
        node = self.rebuilt.nodes.get(row.node_id)
        if node is None:
            self._find(FindingCode.ROW_WITHOUT_EVENTS, f"a row ({row.status}), but no event", row.node_id)
            return
        node.has_row = True
        told: dict[str, tuple[Any, Any]] = {
            "status": (row.status, node.status),
            "attempt": (row.attempt, node.attempts),
            "run": (row.run, node.run),
            "parent": (row.parent, node.parent),
            "retry_count": (row.retry_count, node.retries),
            "loss_count": (row.loss_count, node.losses),
        }
        if node.chosen is not None and row.chosen is not None:
            told["branch"] = (row.chosen, node.chosen)
        if node.total is not None:
            told["total"] = (row.total, node.total)
        if node.parent is not None:
            told["fan_out_index"] = (row.fan_out_index, int(row.node_id.rpartition("__")[2]))
        for name, (is_now, should_be) in told.items():
            if is_now != should_be:
                message = f"{name} is {is_now} in its row and {should_be} by its events"
                self._find(FindingCode.NODE_ROW, message, row.node_id)
        if node.parent is None:
            self._check_counters(row)
            self._check_gathered(row)

    def _check_counters(self, row: NodeRow) -> None:
        family = self.rebuilt.families.get(row.node_id, ChildCounts())
        if row.total is None:
            if family.born:
                self._find(FindingCode.COUNTERS, f"{family.born} children, but no total", row.node_id)
            if (row.stale or 0) != family.stale:
                message = f"stale_count is {row.stale or 0}, by its children {family.stale}"
                self._find(FindingCode.COUNTERS, message, row.node_id)
            return
        told = {
            "expanded": (row.expanded, family.born),
            "remaining": (row.remaining, row.total - family.ended),
            "failed_count": (row.failed, family.failed),
            "cancelled_count": (row.cancelled, family.cancelled),
            "idle_count": (row.idle, family.idle),
            "stale_count": (row.stale, family.stale),
        }
        if row.status == NodeStatus.COMPLETED:
            told["total"] = (row.total, family.born)
        for name, (is_now, should_be) in told.items():
            if (is_now or 0) != should_be:
                self._find(FindingCode.COUNTERS, f"{name} is {is_now or 0}, by its children {should_be}", row.node_id)

    def _check_gathered(self, row: NodeRow) -> None:
        """A fan_in's own count is that of the children that had completed when it went (concat counts their items)."""
        own = self.graph.workflow.nodes.get(row.node_id) if self.graph else None
        if not isinstance(own, FanInNode) or own.handler or own.aggregation == "concat" or row.gathered is None:
            return
        good = self.rebuilt.nodes[row.node_id].gathered
        if row.status == NodeStatus.COMPLETED and row.gathered != good:
            self._find(
                FindingCode.FAN_IN, f"gathered {row.gathered} results, but {good} children completed", row.node_id
            )

    def _completed_children(self, fan_in: str) -> int | None:
        fan_out = self.graph.fan_out_of.get(fan_in) if self.graph else None
        if fan_out is None:
            return None
        family = self.rebuilt.families.get(fan_out, ChildCounts())
        return family.ended - family.failed - family.cancelled

    def _attempt(self, node_id: str, attempt: int) -> tuple[RebuiltNode, str] | None:
        """The node and the letter of one of its attempts, if the events tell of it."""
        node = self.rebuilt.nodes.get(node_id)
        if node is None or not 0 < attempt <= node.attempts:
            return None
        return node, node.trace[attempt - 1]

    def task(self, row: TaskRow) -> None:
        """Compare a task with the events of its attempt."""
        found = self._attempt(row.node_id, row.attempt)
        if found is None:
            self._find(
                FindingCode.TASK_UNTOLD, f"task of attempt {row.attempt}, but no event dispatched it", row.node_id
            )
            return
        node, end = found
        node.tasks += 1
        if row.status not in _TASK_OF[end]:
            said = f"attempt {row.attempt} {AttemptState(end).name.lower()} by its events, but its task is {row.status}"
            self._find(FindingCode.TASK_STATUS, said, row.node_id)
        elif end in _LIVE and row.status in _BY_WORKER:
            node.unread += 1

    def result(self, row: ResultRow) -> None:
        """Compare a result with the events of its attempt."""
        found = self._attempt(row.node_id, row.attempt)
        if found is None:
            self._find(FindingCode.RESULT, f"result of attempt {row.attempt}, but no event dispatched it", row.node_id)
            return
        node, end = found
        if not row.accepted:
            if not row.processed:
                self._find(FindingCode.RESULT, f"late result of attempt {row.attempt} waits to be handled", row.node_id)
        elif not row.processed:
            self._unprocessed(row, node, end)
        elif row.status not in _RESULT_OF.get(end, ()):
            said = f"accepted result '{row.status}' of attempt {row.attempt}, which {AttemptState(end).name.lower()} by its events"
            self._find(FindingCode.RESULT, said, row.node_id)
        else:
            node.results += end != AttemptState.WITHDRAWN
            if row.is_other_output:
                self._find(FindingCode.RESULT_OUTPUT, f"its output is not that of attempt {row.attempt}", row.node_id)

    def _unprocessed(self, row: ResultRow, node: RebuiltNode, end: str) -> None:
        node.unread -= 1
        if end not in _LIVE or self._end is not None:
            message = f"accepted result of attempt {row.attempt} was never handled"
            self._find(FindingCode.RESULT_UNPROCESSED, message, row.node_id)

    # --- the end -----------------------------------------------------------------------------------------------------

    def finish(self, job: JobRow) -> list[HistoryFinding]:
        """What only shows when everything has been seen."""
        self._check_job(job)
        for node_id, node in self.rebuilt.nodes.items():
            self._check_leftovers(node_id, node)
        if self._end is not None:
            self._check_ended()
            self._check_outcome(self._end)
        if self.hidden:
            more = HistoryFinding(self.job_id, None, FindingCode.MORE, f"{self.hidden} more findings in this job")
            self.rebuilt.findings.append(more)
        return self.rebuilt.findings

    def _check_job(self, job: JobRow) -> None:
        told: dict[str, tuple[Any, Any]] = {
            "status": (job.status, self.rebuilt.status),
            "last_sequence": (job.last_sequence, self._sequence),
            "resume_count": (job.resume_count, self.rebuilt.reruns),
        }
        for name, (is_now, should_be) in told.items():
            if is_now != should_be:
                self._find(FindingCode.JOB_ROW, f"{name} is {is_now} in its row and {should_be} by its events")
        if self._definition not in (None, job.definition_hash):
            self._find(FindingCode.DEFINITION, "its row names another definition than the one it started with")
        if job.epoch < self._epoch:
            self._find(FindingCode.EPOCH, f"its row is of epoch {job.epoch}, its events of epoch {self._epoch}")

    def _check_leftovers(self, node_id: str, node: RebuiltNode) -> None:
        if not node.has_row:
            self._find(FindingCode.EVENTS_WITHOUT_ROW, f"events ({node.status}), but no row", node_id)
        if node.tasks < node.attempts:
            missing = f"{node.attempts} attempts were dispatched, but {node.tasks} have a task"
            self._find(FindingCode.TASK_MISSING, missing, node_id)
        reported = sum(node.trace.count(end.value) for end in _REPORTED)
        if node.results < reported:
            message = f"{reported} attempts were reported by a worker, but {node.results} have an accepted result"
            self._find(FindingCode.RESULT, message, node_id)
        if node.unread:
            what = "a task has ended, but there is no result to read" if node.unread > 0 else "a result of a live task"
            self._find(FindingCode.RESULT, what, node_id)

    def _check_ended(self) -> None:
        for node_id, node in self.rebuilt.nodes.items():
            if node.status not in _NODE_TERMINAL:
                self._find(FindingCode.UNENDED, f"is {node.status}, though the job has ended", node_id)
            elif node.is_live:
                self._find(FindingCode.UNENDED, f"attempt {node.attempts} is live, though the job has ended", node_id)

    def _check_outcome(self, end: Event) -> None:
        if self.graph is None or self.rebuilt.status == JobStatus.CANCELLED:
            return
        expected, why = self._expected_outcome()
        data = end.data or {}
        # A job may also fail by itself: its deadline, or outputs that can't be rendered.
        by_itself = "reason" in data or str(data.get("error_message", "")).startswith(OUTPUTS_FAILED)
        if self.rebuilt.status == expected or (self.rebuilt.status == JobStatus.FAILED and by_itself):
            return
        message = f"ended as {self.rebuilt.status}, but its nodes make it {expected}"
        self._find(FindingCode.OUTCOME, message + (f" (see '{why}')" if why else ""))

    def _expected_outcome(self) -> tuple[str, str | None]:
        assert self.graph is not None
        bad: dict[Importance, str] = {}
        for node_id, node in self.graph.workflow.nodes.items():
            state = self.rebuilt.nodes.get(node_id)
            if state is None or node.type in ("start", "end"):
                continue
            is_lost = state.status == NodeStatus.SKIPPED and state.reason != SkipReason.BRANCH_NOT_TAKEN
            if is_lost or state.status in (NodeStatus.FAILED, NodeStatus.CANCELLED) or self._exceeds_tolerance(node_id):
                bad.setdefault(node.importance, node_id)
        if Importance.CRITICAL in bad:
            return JobStatus.FAILED, bad[Importance.CRITICAL]
        if Importance.IMPORTANT in bad:
            return JobStatus.PARTIAL_SUCCESS, bad[Importance.IMPORTANT]
        return JobStatus.COMPLETED, None
