"""Write docs/states.md from the transition tables in jobs/states.py. With --check, only compare them."""

import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from dagmaster.jobs import states
from dagmaster.jobs.states import JobStatus, NodeStatus, TaskStatus

PAGE = Path(__file__).parent.parent / "docs" / "states.md"

INTRODUCTION = """\
# States

`scripts/draw_states.py` writes this page from the tables in `src/dagmaster/jobs/states.py`. The planner checks these
tables before every transition, and the triggers of the database are generated from them: a transition that is not on
this page is impossible. A test compares this page with the tables.

States are written in lower case everywhere: in the database, in events and on screen. An arrow with a text, such as
`run + 1`, leaves a terminal state. The database accepts it only if the same update increases that counter by one.
"""

# One dictionary per life cycle, because members of different enums are equal if their texts are equal.
MEANINGS: dict[str, dict[StrEnum, str]] = {
    "job": {
        JobStatus.PENDING: "created; nothing has been sent to a worker yet",
        JobStatus.RUNNING: "at least one task has been dispatched",
        JobStatus.COMPLETED: "every critical and important node completed or was skipped by a branch",
        JobStatus.PARTIAL_SUCCESS: "every critical node completed or was skipped by a branch; an important one did not",
        JobStatus.FAILED: "a critical node failed for good, the deadline passed, the workflow's outputs could not be "
        "rendered, or the job could not be advanced",
        JobStatus.CANCELLED: "stopped on request",
    },
    "node": {
        NodeStatus.PENDING: "waits for the nodes that it depends on",
        NodeStatus.READY: "can be dispatched; with `not_before` it waits for a retry; a fan_out creates its children",
        NodeStatus.DISPATCHED: "its task is in the queue, or a worker has just claimed it",
        NodeStatus.RUNNING: "a worker is running its task",
        NodeStatus.COMPLETED: "completed with an output",
        NodeStatus.FAILED: "failed; final unless the same transaction retries it",
        NodeStatus.SKIPPED: "will not run: `reason` says why, such as `branch_not_taken` or `upstream_failed`",
        NodeStatus.CANCELLED: "will not run, or was stopped: `reason` says why",
    },
    "task": {
        TaskStatus.QUEUED: "waits for a worker that has its handler",
        TaskStatus.RUNNING: "a worker holds it under a lease",
        TaskStatus.SUCCEEDED: "its worker reported an output in time",
        TaskStatus.FAILED: "its worker reported an error, or its timeout passed",
        TaskStatus.LOST: "its lease expired",
        TaskStatus.RETURNED: "its worker gave it back without a result, for example because the worker stops; "
        "this uses up neither a retry nor a loss",
        TaskStatus.CANCELLED: "cancelled, or it waited in its queue longer than allowed",
    },
}

Moves = Mapping[Any, frozenset[Any]]  # members of one of the enums


@dataclass(frozen=True, slots=True)
class LifeCycle:
    """The states of one kind of row. A rerun leads back from a final state and increments `counter`."""

    name: str
    initial: Collection[StrEnum]
    moves: Moves
    terminal: Collection[StrEnum]
    reruns: Moves
    counter: str = ""

    @property
    def states(self) -> tuple[StrEnum, ...]:
        return tuple(self.moves)

    def after(self, state: StrEnum) -> list[StrEnum]:
        """The states that may follow, in the order of their declaration."""
        return [target for target in self.states if target in self.moves[state]]

    def rerun(self, state: StrEnum) -> list[StrEnum]:
        return [target for target in self.states if target in self.reruns.get(state, ())]


JOB = LifeCycle("job", states.JOB_INITIAL, states.JOB_MOVES, states.JOB_TERMINAL, states.JOB_RERUNS, "resume_count")
NODE = LifeCycle("node", states.NODE_INITIAL, states.NODE_MOVES, states.NODE_TERMINAL, states.NODE_RERUNS, "run")
TASK = LifeCycle("task", states.TASK_INITIAL, states.TASK_MOVES, states.TASK_TERMINAL, {})


def render() -> str:
    return "\n".join([INTRODUCTION, *(_section(cycle) for cycle in (JOB, NODE, TASK))])


def _section(cycle: LifeCycle) -> str:
    title = "Task (one attempt of a node)" if cycle is TASK else cycle.name.capitalize()
    rows = "".join(f"| {state} | {MEANINGS[cycle.name][state]} | {_next(cycle, state)} |\n" for state in cycle.states)
    return f"## {title}\n\n```mermaid\n{mermaid(cycle)}```\n\n| state | meaning | may become |\n|---|---|---|\n{rows}"


def _next(cycle: LifeCycle, state: StrEnum) -> str:
    targets = [*cycle.after(state), *(f"{target} ({cycle.counter} + 1)" for target in cycle.rerun(state))]
    return ", ".join(targets) or "none"


def mermaid(cycle: LifeCycle) -> str:
    """The diagram: initial states, transitions, final states."""
    return "\n".join(["stateDiagram-v2", *(f"    {line}" for line in _mermaid_lines(cycle)), ""])


def _mermaid_lines(cycle: LifeCycle) -> Iterator[str]:
    for state in cycle.states:
        if state in cycle.initial:
            yield f"[*] --> {state}"
    for state in cycle.states:
        for target in cycle.after(state):
            yield f"{state} --> {target}"
        for target in cycle.rerun(state):
            yield f"{state} --> {target} : {cycle.counter} + 1"
    for state in cycle.states:
        if state in cycle.terminal:
            yield f"{state} --> [*]"


def main(arguments: list[str]) -> int:
    if "--check" in arguments:
        is_current = PAGE.exists() and PAGE.read_text() == render()
        print(f"{PAGE.name} is {'up to date' if is_current else 'not up to date: run scripts/draw_states.py'}")
        return 0 if is_current else 1
    PAGE.write_text(render())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
