"""Draw life cycles as Mermaid state diagrams, from the same tables that the planner and the database obey."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from dagmaster.jobs import states

Moves = Mapping[StrEnum, frozenset[StrEnum]]


@dataclass(frozen=True, slots=True)
class LifeCycle:
    """What one kind of row may go through. A revival is a way back, which also raises the counter named."""

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
        """Where a state may go by itself, in the order in which the states are declared."""
        return [target for target in self.states if target in self.moves[state]]

    def revived(self, state: StrEnum) -> list[StrEnum]:
        return [target for target in self.states if target in self.reruns.get(state, ())]


JOB = LifeCycle("job", states.JOB_INITIAL, states.JOB_MOVES, states.JOB_TERMINAL, states.JOB_RERUNS, "resume_count")  # type: ignore[arg-type]
NODE = LifeCycle("node", states.NODE_INITIAL, states.NODE_MOVES, states.NODE_TERMINAL, states.NODE_RERUNS, "run")  # type: ignore[arg-type]
TASK = LifeCycle("task", states.TASK_INITIAL, states.TASK_MOVES, states.TASK_TERMINAL, {})  # type: ignore[arg-type]


def mermaid(cycle: LifeCycle) -> str:
    """The diagram: first where rows begin, then every move, then where they may rest for good."""
    return "\n".join(["stateDiagram-v2", *(f"    {line}" for line in _lines(cycle)), ""])


def _lines(cycle: LifeCycle) -> Iterator[str]:
    for state in cycle.states:
        if state in cycle.initial:
            yield f"[*] --> {state}"
    for state in cycle.states:
        for target in cycle.after(state):
            yield f"{state} --> {target}"
        for target in cycle.revived(state):
            yield f"{state} --> {target} : {cycle.counter} + 1"
    for state in cycle.states:
        if state in cycle.terminal:
            yield f"{state} --> [*]"
