"""The findings that the history check can report about a job."""

from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

FINDINGS_PER_JOB = 200  # one broken job must not hide the findings of the others


class FindingCode(StrEnum):
    """The kind of damage."""

    SEQUENCE = "sequence"  # events are not numbered 1..n without gaps
    OPENING = "opening"  # the first event does not create the job with the nodes of its definition
    TRANSITION = "transition"  # a transition that the state tables do not have
    EVENT = "event"  # the type and the state of an event contradict each other
    EPOCH = "epoch"  # an event of an owner that had been replaced
    ATTEMPT = "attempt"  # attempts are not numbered 1..n, one at a time
    START = "start"  # a node started before its dependencies allowed it
    SKIP = "skip"  # a node was skipped without a reason
    AFTER_END = "after-end"  # something happened after the job had ended
    WHILE_FAILING = "while-failing"  # a task was dispatched after a critical node had failed for good
    RETRY = "retry"  # more retries than the policy allows, or one that it forbids
    WAIT = "wait"  # a wait outside the bounds of the policy
    FAN_IN = "fan-in"  # a fan_in started before all its children had ended, or gathered a wrong number of results
    COUNTERS = "counters"  # the counters of a fan_out differ from its children
    JOB_ROW = "job-row"  # the row of the job differs from its events
    NODE_ROW = "node-row"  # the row of a node differs from its events
    ROW_WITHOUT_EVENTS = "row-without-events"  # no event created this row
    EVENTS_WITHOUT_ROW = "events-without-row"  # the row of these events does not exist
    TASK_MISSING = "task-missing"  # an event dispatched a task that does not exist
    TASK_WITHOUT_EVENT = "task-untold"  # no event dispatched this task
    TASK_STATUS = "task-status"  # the status of a task differs from the events
    RESULT = "result"  # a result is missing, or belongs to no attempt
    RESULT_OUTPUT = "result-output"  # the output of a node differs from its accepted result
    RESULT_UNPROCESSED = "result-unprocessed"  # an accepted result was never processed
    PAYLOAD = "payload"  # a payload is missing, or differs from what was stored
    UNENDED = "unended"  # the job has ended, this node or attempt has not
    OVERDUE = "overdue"  # the job has not ended, although its deadline is over
    UNCONCLUDED = "unconcluded"  # the job has not ended, although all its nodes have
    OUTCOME = "outcome"  # the outcome of the job does not follow from its nodes
    DEFINITION = "definition"  # the definition is missing, unreadable or another one
    ORPHAN = "orphan"  # rows of a job that does not exist
    MORE = "more"  # further findings that are not listed


@dataclass(frozen=True, slots=True)
class HistoryFinding:
    job_id: UUID | None
    node_id: str | None
    code: FindingCode
    message: str

    def __str__(self) -> str:
        place = f"job {self.job_id}" + (f" node '{self.node_id}'" if self.node_id else "")
        return f"[{self.code}] {place}: {self.message}"
