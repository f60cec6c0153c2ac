"""Compare the rows of a job with the job that its events describe."""

from typing import Any

from dagmaster.jobs.history.findings import FindingCode, HistoryFinding
from dagmaster.jobs.history.rebuilt import (
    ENDED_BY_WORKER,
    LIVE,
    REPORTED,
    RESULT_STATUSES,
    TASK_STATUSES,
    AttemptState,
    RebuiltNode,
)
from dagmaster.jobs.history.replay import Replay
from dagmaster.jobs.history.rows import EventRow, JobRow, NodeRow, ResultRow, TaskRow
from dagmaster.jobs.states import NODE_TERMINAL, JobStatus, NodeStatus, SkipReason
from dagmaster.workflows.model import FanInNode, Importance

_OUTPUTS_FAILED = "the workflow's outputs"  # the error of a job whose outputs could not be rendered begins with this


class Audit(Replay):
    """One job: first its events, then its rows, then `finish`."""

    def check_node(self, row: NodeRow) -> None:
        """Compare a node's row with its events, after the last event."""
        node = self.rebuilt.nodes.get(row.node_id)
        if node is None:
            self._report(FindingCode.ROW_WITHOUT_EVENTS, f"has a row ({row.status}), but no event", row.node_id)
            return
        node.has_row = True
        expected: dict[str, Any] = {
            "status": node.status,
            "attempt": node.attempt,
            "run": node.run,
            "parent_node_id": node.parent_node_id,
            "retry_count": node.retry_count,
            "loss_count": node.loss_count,
        }
        if node.chosen is not None and row.chosen is not None:
            expected["chosen"] = node.chosen
        if node.total is not None:
            expected["total"] = node.total
        if node.parent_node_id is not None:
            expected["fan_out_index"] = int(row.node_id.rpartition("__")[2])
        for name, value in expected.items():
            if (stored := getattr(row, name)) != value:
                message = f"{name} is {stored} in its row, but {value} according to its events"
                self._report(FindingCode.NODE_ROW, message, row.node_id)
        if node.parent_node_id is None:
            self._check_counters(row)
            self._check_gathered(row)

    def _check_counters(self, row: NodeRow) -> None:
        counts = self.rebuilt.children_of(row.node_id)
        expected = {"stale_count": counts.stale_count}
        if row.total is not None:
            expected |= {
                "expanded": counts.expanded,
                "remaining": row.total - counts.ended,
                "failed_count": counts.failed_count,
                "cancelled_count": counts.cancelled_count,
                "idle_count": counts.idle_count,
            }
        elif counts.expanded:
            self._report(FindingCode.COUNTERS, f"has {counts.expanded} children, but no total", row.node_id)
        if row.total is not None and row.status == NodeStatus.COMPLETED:
            expected["total"] = counts.expanded
        for name, value in expected.items():
            if (stored := getattr(row, name) or 0) != value:
                message = f"{name} is {stored}, but {value} according to its children"
                self._report(FindingCode.COUNTERS, message, row.node_id)

    def _check_gathered(self, row: NodeRow) -> None:
        """A fan_in counts the children that had completed when it started (concat counts their items)."""
        own = self.graph.workflow.nodes.get(row.node_id) if self.graph else None
        if not isinstance(own, FanInNode) or own.handler or own.aggregation == "concat" or row.gathered is None:
            return
        expected = self.rebuilt.nodes[row.node_id].gathered
        if row.status == NodeStatus.COMPLETED and row.gathered != expected:
            self._report(
                FindingCode.FAN_IN, f"gathered {row.gathered} results, but {expected} children completed", row.node_id
            )

    def _attempt(self, node_id: str, attempt: int) -> tuple[RebuiltNode, str] | None:
        """The node and the state of one of its attempts, if an event dispatched it."""
        node = self.rebuilt.nodes.get(node_id)
        if node is None or not 0 < attempt <= node.attempt:
            return None
        return node, node.attempt_states[attempt - 1]

    def check_task(self, row: TaskRow) -> None:
        """Compare a task with the events of its attempt."""
        match = self._attempt(row.node_id, row.attempt)
        if match is None:
            self._report(
                FindingCode.TASK_WITHOUT_EVENT,
                f"attempt {row.attempt} has a task, but no event dispatched it",
                row.node_id,
            )
            return
        node, end = match
        node.tasks += 1
        if row.status not in TASK_STATUSES[end]:
            state = AttemptState(end).name.lower()
            message = f"attempt {row.attempt} is '{state}' according to its events, but its task is '{row.status}'"
            self._report(FindingCode.TASK_STATUS, message, row.node_id)
        elif end in LIVE and row.status in ENDED_BY_WORKER:
            node.unread += 1

    def check_result(self, row: ResultRow) -> None:
        """Compare a result with the events of its attempt."""
        match = self._attempt(row.node_id, row.attempt)
        if match is None:
            self._report(
                FindingCode.RESULT, f"attempt {row.attempt} has a result, but no event dispatched it", row.node_id
            )
            return
        node, end = match
        if not row.accepted:
            if not row.processed:
                self._report(
                    FindingCode.RESULT,
                    f"the late result of attempt {row.attempt} is not marked as processed",
                    row.node_id,
                )
        elif not row.processed:
            self._unprocessed(row, node, end)
        elif row.status not in RESULT_STATUSES.get(end, ()):
            state = AttemptState(end).name.lower()
            message = f"attempt {row.attempt} is '{state}' according to its events, but its result is '{row.status}'"
            self._report(FindingCode.RESULT, message, row.node_id)
        else:
            node.results += end not in (AttemptState.WITHDRAWN, AttemptState.IGNORED)
            if row.is_other_output:
                message = f"its output differs from the result of attempt {row.attempt}"
                self._report(FindingCode.RESULT_OUTPUT, message, row.node_id)

    def _unprocessed(self, row: ResultRow, node: RebuiltNode, end: str) -> None:
        node.unread -= 1
        if end not in LIVE or self._end is not None:
            message = f"the accepted result of attempt {row.attempt} was never processed"
            self._report(FindingCode.RESULT_UNPROCESSED, message, row.node_id)

    def finish(self, job: JobRow) -> list[HistoryFinding]:
        """Run the checks that need all events and rows. Returns every finding."""
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
        expected = {
            "status": self.rebuilt.status,
            "last_sequence": self._sequence,
            "resume_count": self.rebuilt.reruns,
        }
        for name, value in expected.items():
            if (stored := getattr(job, name)) != value:
                message = f"{name} is {stored} in its row, but {value} according to its events"
                self._report(FindingCode.JOB_ROW, message)
        if job.is_overdue:
            self._report(FindingCode.OVERDUE, f"is {job.status}, although its deadline is over")
        if job.is_unconcluded:
            self._report(FindingCode.UNCONCLUDED, f"is {job.status}, although all its nodes have ended")
        if self._definition not in (None, job.definition_hash):
            self._report(FindingCode.DEFINITION, "its row names another definition than the one it started with")
        if job.epoch < self._epoch:
            self._report(FindingCode.EPOCH, f"its row has epoch {job.epoch}, its events have epoch {self._epoch}")

    def _check_leftovers(self, node_id: str, node: RebuiltNode) -> None:
        if not node.has_row:
            self._report(FindingCode.EVENTS_WITHOUT_ROW, f"has events ({node.status}), but no row", node_id)
        if node.tasks < node.attempt:
            missing = f"{node.attempt} attempts were dispatched, but {node.tasks} have a task"
            self._report(FindingCode.TASK_MISSING, missing, node_id)
        reported = sum(node.attempt_states.count(end.value) for end in REPORTED)
        if node.results < reported:
            message = f"{reported} attempts were reported by a worker, but {node.results} have an accepted result"
            self._report(FindingCode.RESULT, message, node_id)
        if node.unread:
            problem = (
                "a task has ended without a result" if node.unread > 0 else "a task that has not ended has a result"
            )
            self._report(FindingCode.RESULT, problem, node_id)

    def _check_ended(self) -> None:
        for node_id, node in self.rebuilt.nodes.items():
            if node.status not in NODE_TERMINAL:
                self._report(FindingCode.UNENDED, f"is {node.status}, although the job has ended", node_id)
            elif node.is_live:
                message = f"attempt {node.attempt} has not ended, although the job has"
                self._report(FindingCode.UNENDED, message, node_id)

    def _check_outcome(self, end: EventRow) -> None:
        if self.graph is None or self.rebuilt.status == JobStatus.CANCELLED:
            return
        expected, reason = self._expected_outcome()
        data = end.event_data or {}
        # A job may also fail although its nodes did not: by its deadline, or if its outputs cannot be rendered.
        has_own_failure = "reason" in data or str(data.get("error_message", "")).startswith(_OUTPUTS_FAILED)
        if self.rebuilt.status == expected or (self.rebuilt.status == JobStatus.FAILED and has_own_failure):
            return
        message = f"ended as {self.rebuilt.status}, but according to its nodes it is {expected}"
        self._report(FindingCode.OUTCOME, message + (f" (see '{reason}')" if reason else ""))

    def _expected_outcome(self) -> tuple[str, str | None]:
        assert self.graph is not None
        unsuccessful: dict[Importance, str] = {}
        for node_id, node in self.graph.workflow.nodes.items():
            state = self.rebuilt.nodes.get(node_id)
            if state is None or node.type in ("start", "end"):
                continue
            has_failed_dependency = state.status == NodeStatus.SKIPPED and state.reason != SkipReason.BRANCH_NOT_TAKEN
            if (
                has_failed_dependency
                or state.status in (NodeStatus.FAILED, NodeStatus.CANCELLED)
                or self.dependencies.exceeds_tolerance(node_id)
            ):
                unsuccessful.setdefault(node.importance, node_id)
        if Importance.CRITICAL in unsuccessful:
            return JobStatus.FAILED, unsuccessful[Importance.CRITICAL]
        if Importance.IMPORTANT in unsuccessful:
            return JobStatus.PARTIAL_SUCCESS, unsuccessful[Importance.IMPORTANT]
        return JobStatus.COMPLETED, None
