"""The transitions that the planner makes: each moves a node or the job to a new state and records its event.

A draft starts with a view and ends with a new view and the changes to write. It checks every transition against the
tables of `states`, so that a mistake of the planner fails here and not in the database.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from dagmaster.jobs.changes import Changes, FanInCompletion, JobTransition, NewChild, NewTask, NextAttempt, NodeChange
from dagmaster.jobs.fan import tolerated
from dagmaster.jobs.retry import RetrySchedule
from dagmaster.jobs.states import JOB_MOVES, NODE_MOVES, EventType, JobStatus, NodeStatus, SkipReason
from dagmaster.jobs.updates import (
    Due,
    Expired,
    Failed,
    Idle,
    Lost,
    Overran,
    Returned,
    Started,
    StopRequest,
    Succeeded,
    Withdrawn,
)
from dagmaster.jobs.view import JobView, NodeView
from dagmaster.workflows.model import Aggregation, ConditionalNode, FanOutNode

_JOB_EVENTS = {
    JobStatus.RUNNING: EventType.JOB_STARTED,
    JobStatus.COMPLETED: EventType.JOB_COMPLETED,
    JobStatus.PARTIAL_SUCCESS: EventType.JOB_PARTIAL_SUCCESS,
    JobStatus.FAILED: EventType.JOB_FAILED,
    JobStatus.CANCELLED: EventType.JOB_CANCELLED,
}
_AttemptEnd = Succeeded | Failed | Returned | Lost | Overran
_UpdateOfNode = _AttemptEnd | Expired | Started | Due | Idle | Withdrawn

_VIEW_FIELDS = frozenset(NodeView._fields)
_ROW_FIELDS = frozenset(NodeChange.__dataclass_fields__)


@dataclass(slots=True)
class _Countdown:
    """Children of one fan_out that ended in this transaction."""

    ended: int = 0
    failed: int = 0
    cancelled: int = 0
    woken: int = 0


class Draft:
    def __init__(self, view: JobView, epoch: int, sequence: int) -> None:
        self.view = replace(view, nodes=dict(view.nodes), outputs=dict(view.outputs), deferred=dict(view.deferred))
        self._deferred_before = view.deferred
        self.changes = Changes(view.job_id, epoch, sequence, view.priority)
        self._rows: dict[str, NodeChange] = {}
        self._countdowns: dict[str, _Countdown] = {}
        self.touched: set[str] = set()  # nodes of the definition whose successors must be considered

    def node(self, node_id: str) -> NodeView:
        return self.view.nodes[node_id]

    def finish(self) -> Changes:
        self.changes.nodes.extend(self._rows.values())
        deferred = self.view.deferred
        for node_id in [node_id for node_id in deferred if self.node(node_id).status is not NodeStatus.READY]:
            del deferred[node_id]
        if deferred != self._deferred_before:
            self.changes.deferred = deferred
        return self.changes

    # Moving

    def _move(self, node_id: str, to: NodeStatus, **facts: Any) -> None:
        """Move a node of the definition, in the view and in the rows. Passing through `ready` is a separate move."""
        state = self.view.nodes[node_id]
        if to not in NODE_MOVES[state.status]:
            raise AssertionError(f"node {node_id} cannot go from {state.status} to {to}")
        if to is NodeStatus.READY:
            self.changes.promoted.append(node_id)
        view_facts = {name: value for name, value in facts.items() if name in _VIEW_FIELDS}
        message = (facts.get("error") or {}).get("message")
        self.view.nodes[node_id] = state._replace(status=to, error_message=message, **view_facts)
        self._write(node_id, to, facts)
        self.touched.add(node_id)

    def _write(self, node_id: str, to: NodeStatus, facts: Mapping[str, Any]) -> None:
        row = self._rows.get(node_id)
        if row is None:
            row = self._rows[node_id] = NodeChange(node_id, to)
        row.status = to
        row.wait_seconds = None  # a delay applies only to the state for which it was set
        for name, value in facts.items():
            if name in _ROW_FIELDS:
                setattr(row, name, value)

    # Nodes of the definition

    def make_ready(self, node_id: str) -> None:
        self._move(node_id, NodeStatus.READY)
        self.changes.record(EventType.NODE_READY, node=node_id, status=NodeStatus.READY)

    def skip(self, node_id: str, reason: SkipReason) -> None:
        self._move(node_id, NodeStatus.SKIPPED, reason=reason.value)
        self.changes.record(
            EventType.NODE_SKIPPED, node=node_id, status=NodeStatus.SKIPPED, data={"reason": reason.value}
        )

    def cancel(self, node_id: str, reason: str) -> None:
        self._move(node_id, NodeStatus.CANCELLED, reason=reason)
        self.changes.record(
            EventType.NODE_CANCELLED, node=node_id, status=NodeStatus.CANCELLED, data={"reason": reason}
        )

    def complete_without_worker(self, node_id: str, output: Any = None, *, chosen: tuple[str, ...] = ()) -> None:
        """Complete a node that needs no worker. Its event records the decision (branch, number of children)."""
        self._move(node_id, NodeStatus.COMPLETED, output=output, chosen=chosen)
        if output is not None:
            self.view.outputs[node_id] = output
        state = self.view.nodes[node_id]
        data: dict[str, Any] | None = None
        if isinstance(self.view.graph.workflow.nodes[node_id], ConditionalNode):
            data = {"next": list(chosen)}
        elif state.is_sized:
            data = {"total": state.total}
        self.changes.record(EventType.NODE_COMPLETED, node=node_id, status=NodeStatus.COMPLETED, data=data)

    def gather(self, node_id: str, fan_out: str, aggregation: Aggregation) -> None:
        """Complete a fan_in; the ledger adds the results of its children."""
        self._move(node_id, NodeStatus.COMPLETED)
        self.changes.completed_fan_ins.append(FanInCompletion(node_id, fan_out, aggregation))
        self.changes.record(EventType.NODE_COMPLETED, node=node_id, status=NodeStatus.COMPLETED)

    def fail_without_worker(self, node_id: str, error: dict[str, Any], schedule: RetrySchedule | None = None) -> None:
        """Fail a ready node that no worker has received."""
        self._move(node_id, NodeStatus.FAILED, error=error)
        self.changes.record(EventType.NODE_FAILED, node=node_id, status=NodeStatus.FAILED, data={"error": error})
        if schedule:
            self._retry(node_id, schedule)

    def dispatch(self, node_id: str, task: NewTask, max_retries: int) -> None:
        stored_params = task.params if task.params_ref is None else {"params_ref": task.params_ref}
        self._move(
            node_id, NodeStatus.DISPATCHED, attempt=task.attempt, input_params=stored_params, max_retries=max_retries
        )
        self.changes.tasks.append(task)
        self._dispatched(node_id, task.attempt)

    def redispatch(self, update: _UpdateOfNode) -> None:
        """Dispatch the node's next attempt with the params of the previous one."""
        self._next_attempt(update, update.retry_count, update.loss_count)

    def _next_attempt(self, update: _UpdateOfNode, retry_count: int, loss_count: int) -> None:
        attempt = update.attempt + 1
        facts = {"attempt": attempt, "retry_count": retry_count, "loss_count": loss_count, "wait_seconds": None}
        if update.parent_node_id is None:
            self._move(update.node_id, NodeStatus.DISPATCHED, **facts)
        else:
            self._move_child(update, NodeStatus.DISPATCHED, **facts)
        self.changes.next_attempts.append(NextAttempt(update.node_id, attempt, retry_count))
        self._dispatched(update.node_id, attempt)

    def _dispatched(self, node_id: str, attempt: int) -> None:
        self.changes.record(EventType.NODE_DISPATCHED, node=node_id, status=NodeStatus.DISPATCHED, attempt=attempt)
        if self.view.status is JobStatus.PENDING:
            self.move_job(JobStatus.RUNNING)

    def _retry(self, node_id: str, schedule: RetrySchedule) -> None:
        self._move(
            node_id,
            NodeStatus.READY,
            retry_count=schedule.retry_count,
            loss_count=schedule.loss_count,
            wait_seconds=schedule.wait_seconds,
        )
        self.changes.record(
            EventType.NODE_RETRIED,
            node=node_id,
            status=NodeStatus.READY,
            data={"wait_seconds": round(schedule.wait_seconds, 3)},
        )

    # What workers reported, for nodes of the definition and children alike

    def _move_child(self, update: _UpdateOfNode, to: NodeStatus, **facts: Any) -> None:
        """Move a child. Children are not in the view; their fan_out counts them when they end."""
        row = self._rows.get(update.node_id)
        previous = row.status if row else update.status
        if to not in NODE_MOVES[previous]:
            raise AssertionError(f"node {update.node_id} cannot go from {previous} to {to}")
        if to is NodeStatus.READY:
            self.changes.promoted.append(update.node_id)
        self._write(update.node_id, to, facts)

    def _move_any(self, update: _UpdateOfNode, to: NodeStatus, **facts: Any) -> None:
        if update.parent_node_id is None:
            self._move(update.node_id, to, **facts)
        else:
            self._move_child(update, to, **facts)

    def started(self, update: Started | _AttemptEnd) -> None:
        """Record once that a node runs, with the time that its worker reported."""
        if update.status is not NodeStatus.DISPATCHED or update.started_at is None:
            return
        self._move_any(update, NodeStatus.RUNNING, started_at=update.started_at)
        self._record_started(update, update.started_at)

    def _record_started(self, update: _UpdateOfNode, at: datetime | None) -> None:
        self.changes.record(
            EventType.NODE_STARTED,
            node=update.node_id,
            status=NodeStatus.RUNNING,
            attempt=update.attempt,
            data={"worker_id": getattr(update, "worker_id", None)},
            at=at,
        )

    def succeeded(self, update: Succeeded) -> None:
        if update.parent_node_id is None:
            self.started(update)
            self._move(
                update.node_id,
                NodeStatus.COMPLETED,
                takes_result=True,
                attempt=update.attempt,
                finished_at=update.finished_at,
            )
            if update.has_output:
                self.view.outputs[update.node_id] = update.output
        else:
            # This is the most frequent update, so both transitions of the child are written as one row.
            if update.status is NodeStatus.DISPATCHED:
                self._record_started(update, update.started_at)
            self._rows[update.node_id] = NodeChange(
                update.node_id,
                NodeStatus.COMPLETED,
                update.attempt,
                takes_result=True,
                started_at=update.started_at,
                finished_at=update.finished_at,
            )
            self._countdown(update.parent_node_id).ended += 1
        self.changes.record(
            EventType.NODE_COMPLETED,
            node=update.node_id,
            status=NodeStatus.COMPLETED,
            attempt=update.attempt,
            at=update.finished_at,
        )

    def failed(
        self, update: Failed | Lost | Overran | Expired, error: dict[str, Any], schedule: RetrySchedule | None
    ) -> None:
        if not isinstance(update, Expired):
            self.started(update)
        at = getattr(update, "finished_at", None)
        self._move_any(update, NodeStatus.FAILED, error=error, finished_at=at)
        self.changes.record(
            EventType.NODE_FAILED,
            node=update.node_id,
            status=NodeStatus.FAILED,
            attempt=update.attempt,
            data={"error": error},
            at=at,
        )
        if schedule is None:
            if update.parent_node_id is not None:
                counts = self._countdown(update.parent_node_id)
                counts.ended += 1
                counts.failed += 1
            return
        self.ready_again(update, schedule, wait=True)

    def ready_again(
        self, update: _UpdateOfNode, schedule: RetrySchedule, *, wait: bool, reason: str | None = None
    ) -> None:
        """Make a node ready that was returned, lost or failed: at once, or after a wait."""
        waits = schedule.wait_seconds > 0 and wait
        counts = {"retry_count": schedule.retry_count, "loss_count": schedule.loss_count}
        self._move_any(
            update, NodeStatus.READY, **counts, started_at=None, wait_seconds=schedule.wait_seconds if waits else None
        )
        data: dict[str, Any] = {"wait_seconds": round(schedule.wait_seconds, 3)} if waits else {}
        if reason:
            data["reason"] = reason
        self.changes.record(
            EventType.NODE_RETRIED,
            node=update.node_id,
            status=NodeStatus.READY,
            attempt=update.attempt,
            data=data or None,
        )
        if not waits:
            self._next_attempt(update, schedule.retry_count, schedule.loss_count)

    def resume_child(self, update: Idle) -> None:
        """Run a child again after its job was resumed; its retries are counted from 0."""
        assert update.parent_node_id is not None
        self._move_child(update, NodeStatus.READY)
        self.changes.record(EventType.NODE_READY, node=update.node_id, status=NodeStatus.READY)
        self._next_attempt(update, 0, 0)
        self._countdown(update.parent_node_id).woken += 1

    def reuse_child(self, update: Idle, child: NewChild, task: NewTask) -> None:
        """Reuse a child of an earlier run in this run, with new params."""
        assert update.parent_node_id is not None
        self._move_child(update, NodeStatus.READY)
        self.changes.record(EventType.NODE_READY, node=update.node_id, status=NodeStatus.READY)
        self._move_child(
            update,
            NodeStatus.DISPATCHED,
            attempt=task.attempt,
            retry_count=0,
            loss_count=0,
            max_retries=child.max_retries,
            label=child.label,
        )
        self.changes.tasks.append(task)
        self._dispatched(update.node_id, task.attempt)
        self._take_stale_child(update.parent_node_id, expands=1)

    def close_child(self, update: Idle, to: NodeStatus, reason: str) -> None:
        """Close a child of an earlier run that this run does not have."""
        assert update.parent_node_id is not None
        self._move_child(update, to, reason=reason)
        type_ = EventType.NODE_SKIPPED if to is NodeStatus.SKIPPED else EventType.NODE_CANCELLED
        self.changes.record(type_, node=update.node_id, status=to, data={"reason": reason})
        self._take_stale_child(update.parent_node_id, expands=0)

    def _take_stale_child(self, fan_out: str, expands: int) -> None:
        """One stale child less; with `expands`=1 it counts as created in this run."""
        state = self.view.nodes[fan_out]
        expanded = state.expanded + expands
        self.view.nodes[fan_out] = state._replace(stale_count=state.stale_count - 1, expanded=expanded)
        row = self._rows.get(fan_out)
        facts: dict[str, Any] = {"expanded": expanded} if expands else {}
        self._amend(fan_out, settled_stale=(row.settled_stale if row else 0) + 1, **facts)
        self.touched.add(fan_out)

    def withdrawn(self, update: Withdrawn | Due | Idle | _AttemptEnd, reason: str) -> None:
        self._move_any(update, NodeStatus.CANCELLED, reason=reason)
        self.changes.record(
            EventType.NODE_CANCELLED,
            node=update.node_id,
            status=NodeStatus.CANCELLED,
            attempt=update.attempt or None,
            data={"reason": reason},
        )
        if update.parent_node_id is not None:
            counts = self._countdown(update.parent_node_id)
            counts.ended += 1
            counts.cancelled += 1
            counts.woken += isinstance(update, Idle)

    # Fan-outs

    def size_fan_out(self, node_id: str, total: int) -> None:
        """Set how many children a fan_out will have, before the first of them exists."""
        state = self.view.nodes[node_id]
        self.view.nodes[node_id] = state._replace(total=total, remaining=total, is_sized=True)
        self._amend(node_id, total=total, expanded=0)

    def add_children(self, node_id: str, children: list[NewChild], tasks: list[NewTask]) -> None:
        state = self.view.nodes[node_id]
        self.changes.children.setdefault(node_id, []).extend(children)
        self.changes.tasks.extend(tasks)
        record = self.changes.record
        for child in children:
            record(EventType.NODE_READY, node=child.node_id, status=NodeStatus.READY)
            self._dispatched(child.node_id, 1)
        expanded = state.expanded + len(children)
        self.view.nodes[node_id] = state._replace(expanded=expanded)
        self._amend(node_id, expanded=expanded)

    def _amend(self, node_id: str, **facts: Any) -> None:
        """Change columns of a node without moving it."""
        row = self._rows.get(node_id)
        if row is None:
            row = self._rows[node_id] = NodeChange(node_id, self.view.nodes[node_id].status)
        for name, value in facts.items():
            setattr(row, name, value)

    def _countdown(self, fan_out: str) -> _Countdown:
        counts = self._countdowns.get(fan_out)
        if counts is None:
            counts = self._countdowns[fan_out] = _Countdown()
        return counts

    def exceeds_tolerance(self, fan_out: str) -> bool:
        """Whether more children failed or were cancelled than are tolerated, including those of this transaction."""
        counts, state = self._countdown(fan_out), self.view.nodes[fan_out]
        node = self.view.graph.workflow.nodes[fan_out]
        assert isinstance(node, FanOutNode)
        return state.unsuccessful_count + counts.failed + counts.cancelled > tolerated(node, state.total)

    def settle_countdowns(self) -> None:
        """Subtract the children that ended in this transaction from the counters, once per fan_out."""
        for fan_out, counts in self._countdowns.items():
            state = self.view.nodes[fan_out]
            self.view.nodes[fan_out] = state._replace(
                remaining=state.remaining - counts.ended,
                failed_count=state.failed_count + counts.failed,
                cancelled_count=state.cancelled_count + counts.cancelled,
                idle_count=state.idle_count - counts.woken,
            )
            self._amend(
                fan_out,
                ended=counts.ended,
                ended_failed=counts.failed,
                ended_cancelled=counts.cancelled,
                woken=counts.woken,
            )
            self.touched.add(fan_out)

    # The job

    def stop(self, request: StopRequest) -> None:
        """Stop the job from now on."""
        self.view = replace(self.view, stopping=request.stop)
        self.changes.stopping = request.stop
        event_data = {"reason": request.stop.value, "by": request.by, "why": request.reason}
        data = {name: value for name, value in event_data.items() if value is not None}
        self.changes.record(EventType.JOB_STOPPING, data=data)

    def move_job(
        self, to: JobStatus, *, result: Any = None, error_message: str | None = None, reason: str | None = None
    ) -> None:
        if to not in JOB_MOVES[self.view.status]:
            raise AssertionError(f"job {self.view.job_id} cannot go from {self.view.status} to {to}")
        self.view = replace(self.view, status=to)
        self.changes.job_moves.append(JobTransition(to, result, error_message))
        facts = {"error_message": error_message, "reason": reason}
        data = {name: value for name, value in facts.items() if value}
        self.changes.record(_JOB_EVENTS[to], status=to, data=data or None)
