"""Draw life cycles as Mermaid state diagrams, from the tables that the planner and the database use."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from dagmaster.jobs import states

Moves = Mapping[StrEnum, frozenset[StrEnum]]


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


JOB = LifeCycle("job", states.JOB_INITIAL, states.JOB_MOVES, states.JOB_TERMINAL, states.JOB_RERUNS, "resume_count")  # type: ignore[arg-type]
NODE = LifeCycle("node", states.NODE_INITIAL, states.NODE_MOVES, states.NODE_TERMINAL, states.NODE_RERUNS, "run")  # type: ignore[arg-type]
TASK = LifeCycle("task", states.TASK_INITIAL, states.TASK_MOVES, states.TASK_TERMINAL, {})  # type: ignore[arg-type]


def mermaid(cycle: LifeCycle) -> str:
    """The diagram: initial states, transitions, final states."""
    return "\n".join(["stateDiagram-v2", *(f"    {line}" for line in _lines(cycle)), ""])


def _lines(cycle: LifeCycle) -> Iterator[str]:
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
