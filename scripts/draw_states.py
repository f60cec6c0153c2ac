"""Write docs/states.md from the transition tables in jobs/states.py.
With --check: only say whether it is up to date."""

import sys
from enum import StrEnum
from pathlib import Path

from dagmaster.jobs.diagrams import JOB, NODE, TASK, LifeCycle, mermaid
from dagmaster.jobs.states import JobStatus, NodeStatus, TaskStatus

PAGE = Path(__file__).parent.parent / "docs" / "states.md"

INTRODUCTION = """\
# States

This page is drawn by `scripts/draw_states.py` from the tables in `src/dagmaster/jobs/states.py`. The planner asks these
tables before every move, and the database's triggers are generated from them: a transition that is not here is
impossible. A test compares this page with the tables.

States are lower case everywhere: in the database, in events and on screen. An arrow with a text, such as `run + 1`, is
a way back out of a terminal state: the database lets it pass only where the same update raises that counter by one.
"""

# By kind first: members of different enums are equal where their texts are.
MEANINGS: dict[str, dict[StrEnum, str]] = {
    "job": {
        JobStatus.PENDING: "created; nothing has been sent to a worker yet",
        JobStatus.RUNNING: "at least one task has been dispatched",
        JobStatus.COMPLETED: "every node has ended and no failure counts",
        JobStatus.PARTIAL_SUCCESS: (
            "every critical node completed or was skipped by a branch, an important one fell short"
        ),
        JobStatus.FAILED: "a critical node failed for good, or the workflow's outputs could not be rendered",
        JobStatus.CANCELLED: "ended on request",
    },
    "node": {
        NodeStatus.PENDING: "waits for the nodes it depends on",
        NodeStatus.READY: "may go; with `not_before` it waits for its next attempt, a fan_out is making its children",
        NodeStatus.DISPATCHED: "its task is in the queue, or was claimed a moment ago",
        NodeStatus.RUNNING: "a worker is running its task",
        NodeStatus.COMPLETED: "has its output",
        NodeStatus.FAILED: "failed; final unless the same transaction retries it",
        NodeStatus.SKIPPED: "will not run: `reason` is `branch_not_taken` or `upstream_failed`",
        NodeStatus.CANCELLED: "will not run, or was taken back: `reason` says why",
    },
    "task": {
        TaskStatus.QUEUED: "waits for a worker that offers its handler",
        TaskStatus.RUNNING: "a worker holds it under a lease",
        TaskStatus.SUCCEEDED: "its worker reported an output in time",
        TaskStatus.FAILED: "its worker reported an error, or it ran past its time",
        TaskStatus.LOST: "its lease lapsed",
        TaskStatus.RETURNED: "its worker gave it back while shutting down; costs no retry",
        TaskStatus.CANCELLED: "taken back, or waited in its queue longer than allowed",
    },
}


def render() -> str:
    return "\n".join([INTRODUCTION, *(_section(cycle) for cycle in (JOB, NODE, TASK))])


def _section(cycle: LifeCycle) -> str:
    title = "Task (one attempt of a node)" if cycle is TASK else cycle.name.capitalize()
    rows = "".join(f"| {state} | {MEANINGS[cycle.name][state]} | {_next(cycle, state)} |\n" for state in cycle.states)
    return f"## {title}\n\n```mermaid\n{mermaid(cycle)}```\n\n| state | meaning | may become |\n|---|---|---|\n{rows}"


def _next(cycle: LifeCycle, state: StrEnum) -> str:
    ways = [*cycle.after(state), *(f"{target} ({cycle.counter} + 1)" for target in cycle.rerun(state))]
    return ", ".join(ways) or "nothing"


def main(arguments: list[str]) -> int:
    if "--check" in arguments:
        is_current = PAGE.exists() and PAGE.read_text() == render()
        print(f"{PAGE.name} is {'up to date' if is_current else 'not up to date: run scripts/draw_states.py'}")
        return 0 if is_current else 1
    PAGE.write_text(render())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
