"""The transition tables are those of the specification, word for word, and are consistent."""

import re

import pytest

from dagmaster.jobs import states
from dagmaster.jobs.states import JobStatus, NodeStatus, TaskStatus

pytestmark = pytest.mark.requirement("E1")

# In the words of the specification, without its remarks in brackets.
JOB = """
pending → running | completed | failed | cancelled; running → completed | partial_success | failed | cancelled
"""
JOB_RERUN = "failed, partial_success, cancelled → running; completed → running"
NODE = """
pending → ready | skipped | cancelled; ready → dispatched | completed | failed | skipped | cancelled;
dispatched → running | completed | failed | ready | cancelled; running → completed | failed | ready | cancelled;
failed → ready
"""
NODE_RERUN = "failed, skipped, cancelled, completed → pending"
# A queued task that is withdrawn, or waits too long, never runs.
TASK = "queued → running | cancelled; running → succeeded | failed | lost | returned | cancelled"


def moves_of(text):
    moves = {}
    for sentence in re.sub(r"\s+", " ", text).strip().split(";"):
        sources, targets = sentence.split("→")
        for source in sources.split(","):
            moves[source.strip()] = {target.strip() for target in targets.split("|")}
    return moves


@pytest.mark.parametrize(
    ("text", "table"),
    [
        (JOB, states.JOB_MOVES),
        (JOB_RERUN, states.JOB_RERUNS),
        (NODE, states.NODE_MOVES),
        (NODE_RERUN, states.NODE_RERUNS),
        (TASK, states.TASK_MOVES),
    ],
    ids=["job", "job rerun", "node", "node rerun", "task"],
)
def test_the_transitions_are_exactly_those_of_the_specification(text, table):
    assert {state: set(targets) for state, targets in table.items() if targets} == moves_of(text)


@pytest.mark.parametrize(
    ("kind", "table"),
    [(JobStatus, states.JOB_MOVES), (NodeStatus, states.NODE_MOVES), (TaskStatus, states.TASK_MOVES)],
    ids=["job", "node", "task"],
)
def test_every_state_is_in_the_table_and_can_be_reached(kind, table):
    reached = {next(iter(kind))}
    for state in kind:
        reached |= table[state] if state in reached else set()

    assert set(table) == set(kind)
    assert reached | set().union(*table.values()) == set(kind)


def test_only_terminal_states_can_be_rerun():
    assert set(states.JOB_RERUNS) == states.JOB_TERMINAL
    assert set(states.NODE_RERUNS) == states.NODE_TERMINAL


def test_states_are_lower_case_words():
    words = [state.value for kind in (JobStatus, NodeStatus, TaskStatus) for state in kind]

    assert all(re.fullmatch("[a-z_]+", word) for word in words)


def test_live_states_are_neither_terminal_nor_waiting():
    assert not states.NODE_LIVE & states.NODE_TERMINAL
    assert not states.NODE_LIVE & {NodeStatus.PENDING, NodeStatus.READY}
