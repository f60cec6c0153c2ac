"""Rebuild a job from its events, and report every step that the states, the graph or the retry policy do not allow."""

from collections.abc import Iterable, Mapping
from typing import cast
from uuid import UUID

from dagmaster.jobs import states
from dagmaster.jobs.history.dependencies import Dependencies, Dependency
from dagmaster.jobs.history.findings import FINDINGS_PER_JOB, FindingCode, HistoryFinding
from dagmaster.jobs.history.rebuilt import AttemptState, FanOutCounts, RebuiltJob, RebuiltNode
from dagmaster.jobs.history.rows import EventRow, NodeRow
from dagmaster.jobs.retry import LOSS_POLICY
from dagmaster.jobs.states import JOB_TERMINAL, NODE_TERMINAL, Blame, EventType, JobStatus, NodeStatus, SkipReason
from dagmaster.workflows.graph import Graph
from dagmaster.workflows.model import FanOutNode, Importance, Retry, work_of

_ROUNDING_SECONDS = 0.002  # waits are written with three decimals


# Statuses of events are strings here: an event may have a status that no enum has.
_StatusMoves = Mapping[str, frozenset[str]]
_JOB_MOVES, _JOB_RERUNS = cast(_StatusMoves, states.JOB_MOVES), cast(_StatusMoves, states.JOB_RERUNS)
_NODE_MOVES, _NODE_RERUNS = cast(_StatusMoves, states.NODE_MOVES), cast(_StatusMoves, states.NODE_RERUNS)
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


class Replay:
    """Rebuilds one job from its events and reports every step that is not legal."""

    def __init__(
        self,
        job_id: UUID | None = None,
        graph: Graph | None = None,
        nodes: Iterable[NodeRow] = (),
        *,
        max_losses: int | None = None,
    ) -> None:
        """`nodes` are the rows of the definition's own nodes."""
        self.job_id = job_id
        self.graph = graph
        self.rebuilt = RebuiltJob()
        self.max_losses = max_losses
        self.hidden = 0
        self.dependencies = Dependencies(self.rebuilt, graph, {row.node_id: row for row in nodes})
        self._sequence = 0
        self._epoch = 0
        self._failed_critical: set[str] = set()  # critical nodes that have failed so far
        self._end: EventRow | None = None
        self._is_stopping = False
        self._definition: str | None = None

    def _report(self, code: FindingCode, message: str, node_id: str | None = None) -> None:
        if len(self.rebuilt.findings) < FINDINGS_PER_JOB:
            self.rebuilt.findings.append(HistoryFinding(self.job_id, node_id, code, message))
        else:
            self.hidden += 1

    def _report_event(self, code: FindingCode, event: EventRow, message: str) -> None:
        self._report(code, f"event {event.sequence}: {message}", event.node_id)

    def add_event(self, event: EventRow) -> None:
        """Add the next event, in the order of `sequence`."""
        self.rebuilt.events += 1
        self._check_order(event)
        expected = _STATUS_OF.get(event.event_type)
        if expected is not None and event.event_status != expected:
            self._report_event(FindingCode.EVENT, event, f"{event.event_type} has the status '{event.event_status}'")
        if event.node_id is not None:
            self._add_node_event(event, event.node_id)
        elif event.event_type == EventType.JOB_CREATED:
            self._open(event)
        elif event.event_type == EventType.JOB_STOPPING:
            self._is_stopping = True
        elif event.event_status is not None:
            self._move_job(event, event.event_status)

    def _check_order(self, event: EventRow) -> None:
        if event.sequence != self._sequence + 1:
            self._report(FindingCode.SEQUENCE, f"event {event.sequence} follows {self._sequence}")
        if event.sequence == 1 and event.event_type != EventType.JOB_CREATED:
            self._report(FindingCode.OPENING, f"the first event is {event.event_type}, not job_created")
        self._sequence = event.sequence
        epoch = event.epoch or 0
        if epoch < self._epoch:
            self._report(
                FindingCode.EPOCH, f"event {event.sequence} has epoch {epoch}, but follows one with epoch {self._epoch}"
            )
        self._epoch = max(self._epoch, epoch)

    def _open(self, event: EventRow) -> None:
        if self.rebuilt.status is not None:
            self._report(FindingCode.OPENING, f"event {event.sequence} creates the job again")
            return
        self.rebuilt.status = JobStatus.PENDING
        self._definition = (event.event_data or {}).get("definition_hash")
        names = (event.event_data or {}).get("nodes") or ()
        self.rebuilt.nodes = {name: RebuiltNode(NodeStatus.PENDING) for name in names}
        if self.graph is not None and set(names) != set(self.graph.workflow.nodes):
            self._report(FindingCode.OPENING, "job_created names other nodes than the definition has")
            self.graph = self.dependencies.graph = None  # its rules do not apply to this job

    def _move_job(self, event: EventRow, to: str) -> None:
        previous = self.rebuilt.status or "no state"
        if to in _JOB_RERUNS.get(previous, ()):
            self.rebuilt.reruns += 1
            self._end = None
            self._is_stopping = False
        elif to not in _JOB_MOVES.get(previous, ()):
            self._report_event(FindingCode.TRANSITION, event, f"the job went from {previous} to {to}")
        self.rebuilt.status = to
        if to in JOB_TERMINAL:
            self._end = event

    def _add_node_event(self, event: EventRow, node_id: str) -> None:
        node = self.rebuilt.nodes.get(node_id) or self._add_child(event, node_id)
        to = event.event_status
        if node is None or to is None:
            return
        if self._end is not None and to not in _NODE_RERUNS.get(node.status, ()):
            ended = f"the job had ended with event {self._end.sequence}"
            self._report(FindingCode.AFTER_END, f"event {event.sequence} ({event.event_type}), although {ended}")
        previous, node.status = node.status, to
        self._check_move(event, node, previous)
        self._count(node, previous, to)
        if to == NodeStatus.PENDING and event.is_reexpanded:
            self._restart_fan_out(node_id)
        match to:
            case NodeStatus.READY:
                self._ready(event, node_id, node, previous)
            case NodeStatus.DISPATCHED:
                self._dispatched(event, node_id, node)
            case NodeStatus.RUNNING:
                self._started(event, node_id, node)
            case NodeStatus.COMPLETED:
                self._completed(event, node_id, node)
            case NodeStatus.FAILED:
                self._failed(event, node_id, node)
            case NodeStatus.CANCELLED if node.is_live:
                is_ignored = (event.event_data or {}).get("reason") == states.NOT_ADVANCED
                self._ends(event, node_id, node, AttemptState.IGNORED if is_ignored else AttemptState.WITHDRAWN)
            case NodeStatus.SKIPPED:
                self._skipped(event, node_id, node)
        self._note_failure(node_id, node)

    def _add_child(self, event: EventRow, node_id: str) -> RebuiltNode | None:
        """A child of a fan_out starts as ready. No other node appears after the job was created."""
        parent, _, number = node_id.rpartition("__")
        is_child = number.isdigit() and parent in self.rebuilt.nodes and self._is_fan_out(parent)
        if not is_child or event.event_status != NodeStatus.READY:
            self._report(
                FindingCode.TRANSITION,
                f"event {event.sequence} ({event.event_type}) is of a node that no event created",
                node_id,
            )
            if not is_child:
                return None
        node = self.rebuilt.nodes[node_id] = RebuiltNode(NodeStatus.PENDING, parent)
        self.rebuilt.child_counts.setdefault(parent, FanOutCounts()).expanded += 1
        return node

    def _restart_fan_out(self, fan_out: str) -> None:
        """A fan_out runs again: its children are stale until the new run reuses them."""
        for child in self.rebuilt.nodes.values():
            if child.parent_node_id == fan_out:
                child.is_stale = True
        self.rebuilt.child_counts[fan_out] = FanOutCounts()

    def _is_fan_out(self, node_id: str) -> bool:
        return self.graph is None or isinstance(self.graph.workflow.nodes.get(node_id), FanOutNode)

    def _check_move(self, event: EventRow, node: RebuiltNode, previous: str) -> None:
        to = node.status
        if to in _NODE_RERUNS.get(previous, ()):
            node.run += 1
            node.retry_count = node.loss_count = 0
            node.reason = node.blame = node.chosen = None
            if event.is_reexpanded:
                node.total = None
        elif to not in _NODE_MOVES.get(previous, ()):
            self._report_event(FindingCode.TRANSITION, event, f"went from {previous} to {to}")

    def _count(self, node: RebuiltNode, previous: str, to: str) -> None:
        """Update the counters of a child's fan_out."""
        if node.parent_node_id is None:
            return
        counts = self.rebuilt.child_counts[node.parent_node_id]
        if node.is_stale:
            counts.stale_count += (to == NodeStatus.PENDING) - (previous == NodeStatus.PENDING)
            if to == NodeStatus.READY:
                node.is_stale = False
                counts.expanded += 1
            return
        for state, step in ((previous, -1), (to, 1)):
            counts.ended += step * (state in NODE_TERMINAL)
            counts.failed_count += step * (state == NodeStatus.FAILED)
            counts.cancelled_count += step * (state == NodeStatus.CANCELLED)
        counts.idle_count += (to == NodeStatus.PENDING) - (previous == NodeStatus.PENDING and node.run > 1)

    def _note_failure(self, node_id: str, node: RebuiltNode) -> None:
        """Remember which critical nodes have failed: no task may be dispatched after that."""
        if self.graph is None:
            return
        owner = node.parent_node_id or node_id
        if self.graph.workflow.nodes[owner].importance is not Importance.CRITICAL:
            return
        failed = self.rebuilt.nodes[owner].status == NodeStatus.FAILED or self.dependencies.exceeds_tolerance(owner)
        (self._failed_critical.add if failed else self._failed_critical.discard)(owner)

    # Attempts

    def _dispatched(self, event: EventRow, node_id: str, node: RebuiltNode) -> None:
        if node.is_live:
            self._report_event(FindingCode.ATTEMPT, event, "a second attempt before the first has ended")
        if event.attempt != node.attempt + 1:
            self._report_event(FindingCode.ATTEMPT, event, f"attempt {event.attempt} follows {node.attempt}")
        if self._is_stopping:
            self._report_event(FindingCode.WHILE_FAILING, event, "dispatched while the job was stopping")
        if self._failed_critical:
            failed = ", ".join(sorted(self._failed_critical))
            self._report_event(FindingCode.WHILE_FAILING, event, f"dispatched after {failed} had failed")
        if node.attempt == 0 and node.parent_node_id is None:
            self._check_fan_in(event, node_id)
        node.attempt_states += AttemptState.QUEUED.value

    def _started(self, event: EventRow, node_id: str, node: RebuiltNode) -> None:
        if self._is_current(event, node_id, node):
            node.attempt_states = node.attempt_states[:-1] + AttemptState.RUNNING.value

    def _is_current(self, event: EventRow, node_id: str, node: RebuiltNode) -> bool:
        if node.is_live and event.attempt == node.attempt:
            return True
        self._report(
            FindingCode.ATTEMPT,
            f"event {event.sequence} ({event.event_type}) is of attempt {event.attempt}, which is not live",
            node_id,
        )
        return False

    def _ends(self, event: EventRow, node_id: str, node: RebuiltNode, end: AttemptState) -> None:
        if self._is_current(event, node_id, node):
            node.attempt_states = node.attempt_states[:-1] + end.value

    def _completed(self, event: EventRow, node_id: str, node: RebuiltNode) -> None:
        if event.attempt is not None:
            self._ends(event, node_id, node, AttemptState.SUCCEEDED)
        elif self._needs_worker(node_id, node):
            self._report_event(FindingCode.ATTEMPT, event, "completed without a worker")
        else:
            self._check_fan_in(event, node_id)
            node.gathered = self._completed_children(node_id)
        data = event.event_data or {}
        node.chosen = list(data["next"]) if "next" in data else node.chosen
        node.total = data.get("total", node.total)

    def _needs_worker(self, node_id: str, node: RebuiltNode) -> bool:
        if node.parent_node_id is not None:
            return True
        own = self.graph.workflow.nodes.get(node_id) if self.graph else None
        return own is not None and not isinstance(own, FanOutNode) and work_of(own) is not None

    def _failed(self, event: EventRow, node_id: str, node: RebuiltNode) -> None:
        error = (event.event_data or {}).get("error") or {}
        node.blame = str(error.get("blame", Blame.HANDLER))
        if event.attempt is None:
            if node.is_live:
                self._report_event(FindingCode.ATTEMPT, event, "failed without a worker while an attempt is live")
            return
        match error.get("code"):
            case "task.lost":
                end = AttemptState.LOST
            case "task.overran":
                is_queued = node.attempt_states[-1:] == AttemptState.QUEUED.value
                end = AttemptState.EXPIRED if is_queued else AttemptState.OVERRAN
            case _:
                end = AttemptState.FAILED
        self._ends(event, node_id, node, end)

    # Retries

    def _ready(self, event: EventRow, node_id: str, node: RebuiltNode, previous: str) -> None:
        if event.event_type == EventType.NODE_RETRIED:
            self._retried(event, node_id, node)
        elif node.parent_node_id is None and previous == NodeStatus.PENDING:
            self._check_start(event, node_id)

    def _retried(self, event: EventRow, node_id: str, node: RebuiltNode) -> None:
        data = event.event_data or {}
        wait = float(data.get("wait_seconds") or 0)
        match data.get("reason"):
            case "returned":
                self._ends(event, node_id, node, AttemptState.RETURNED)
                self._check_wait(event, wait, None, 0)
            case "lost":
                self._ends(event, node_id, node, AttemptState.LOST)
                node.loss_count += 1
                # The first loss is retried at once: waiting for the end of the lease was enough delay.
                self._check_wait(event, wait, LOSS_POLICY if node.loss_count > 1 else None, node.loss_count - 1)
            case _ if node.blame == Blame.ENVIRONMENT:
                node.loss_count += 1
                self._check_wait(event, wait, LOSS_POLICY, node.loss_count)
            case _:
                self._retried_failure(event, node_id, node, wait)
        if self.max_losses is not None and node.loss_count > self.max_losses:
            self._report_event(FindingCode.RETRY, event, f"loss {node.loss_count} of at most {self.max_losses}")

    def _retried_failure(self, event: EventRow, node_id: str, node: RebuiltNode, wait: float) -> None:
        node.retry_count += 1
        if node.blame == Blame.DATA:
            self._report_event(FindingCode.RETRY, event, "retried a failure that is blamed on the data")
        policy = self._policy(node.parent_node_id or node_id)
        if policy is None:
            return
        if node.retry_count > policy.max_attempts:
            allowed = f"retry {node.retry_count} of at most {policy.max_attempts}"
            self._report_event(FindingCode.RETRY, event, f"{allowed}")
        self._check_wait(event, wait, policy, node.retry_count)

    def _policy(self, node_id: str) -> Retry | None:
        if self.graph is None or node_id not in self.graph.workflow.nodes:
            return None
        work = work_of(self.graph.workflow.nodes[node_id])
        return work.retry if work else Retry(max_attempts=0)

    def _check_wait(self, event: EventRow, wait: float, policy: Retry | None, nth: int) -> None:
        longest = 0.0
        if policy is not None:
            growth = 2.0 ** (min(nth, 31) - 1) if policy.backoff == "exponential" else 1.0
            longest = min(policy.max_delay_seconds, policy.initial_delay_seconds * growth)
        shortest = longest / 2 if policy is not None and policy.jitter else longest
        if not shortest - _ROUNDING_SECONDS <= wait <= longest + _ROUNDING_SECONDS:
            bounds = f"{shortest:g} to {longest:g} s"
            self._report_event(FindingCode.WAIT, event, f"waits {wait:g} s; the policy requires {bounds}")

    def _check_start(self, event: EventRow, node_id: str) -> None:
        if self.graph is None or node_id == self.graph.start:
            return
        needed, options = self.dependencies.of(node_id)
        for source, state in needed.items():
            if state in (Dependency.WAIT, Dependency.FAILED):
                self._report_event(FindingCode.START, event, f"started although '{source}' {state}")
        if options and Dependency.COMPLETED not in options.values():
            self._report_event(FindingCode.START, event, "started although none of any_of completed")
        if needed and not options and set(needed.values()) == {Dependency.NOT_TAKEN}:
            self._report_event(FindingCode.START, event, "started on a branch that was not taken")

    def _skipped(self, event: EventRow, node_id: str, node: RebuiltNode) -> None:
        node.reason = (event.event_data or {}).get("reason")
        if self.graph is None or node.parent_node_id is not None:
            self._check_skipped_child(event, node_id, node)
            return
        needed, options = (set(states.values()) for states in self.dependencies.of(node_id))
        has_failed_dependency = Dependency.FAILED in needed or (
            not options & {Dependency.COMPLETED, Dependency.WAIT}
            and bool(options & {Dependency.FAILED, Dependency.OPTIONAL_FAILED})
        )
        is_not_taken = options == {Dependency.NOT_TAKEN} or (not options and needed == {Dependency.NOT_TAKEN})
        is_upstream = node.reason == SkipReason.UPSTREAM_FAILED
        if not (has_failed_dependency if is_upstream else is_not_taken and not has_failed_dependency):
            self._report_event(
                FindingCode.SKIP, event, f"skipped as '{node.reason}', which its dependencies do not allow"
            )

    def _check_skipped_child(self, event: EventRow, node_id: str, node: RebuiltNode) -> None:
        """Only stale children may be skipped."""
        if node.parent_node_id is not None and not (node.is_stale and node.reason == SkipReason.NOT_IN_THIS_RUN):
            self._report_event(FindingCode.SKIP, event, f"a child was skipped as '{node.reason}'")

    def _check_fan_in(self, event: EventRow, node_id: str) -> None:
        """A fan_in starts when all children have ended and no more of them failed than are tolerated."""
        fan_out = self.graph.fan_out_of.get(node_id) if self.graph else None
        if fan_out is None or fan_out not in self.rebuilt.nodes:
            return
        counts = self.rebuilt.children_of(fan_out)
        if self.dependencies.has_open_children(fan_out):
            total = max(counts.expanded, self.dependencies.total(fan_out))
            children = f"{counts.ended} of {total} children of '{fan_out}'"
            self._report_event(FindingCode.FAN_IN, event, f"started when {children} had ended")
        elif self.dependencies.exceeds_tolerance(fan_out):
            failed = f"{counts.failed_count + counts.cancelled_count} children of '{fan_out}' failed"
            self._report_event(FindingCode.FAN_IN, event, f"started although {failed}")

    def _completed_children(self, fan_in: str) -> int | None:
        fan_out = self.graph.fan_out_of.get(fan_in) if self.graph else None
        if fan_out is None:
            return None
        counts = self.rebuilt.children_of(fan_out)
        return counts.ended - counts.failed_count - counts.cancelled_count


def replay(events: Iterable[EventRow], job_id: UUID | None = None, graph: Graph | None = None) -> RebuiltJob:
    """A job as its events describe it. Without a graph only the order and the legality of the steps are checked."""
    replayed = Replay(job_id, graph)
    for event in events:
        replayed.add_event(event)
    return replayed.rebuilt
