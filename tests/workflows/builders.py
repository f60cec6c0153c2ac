"""Workflows for tests, as short as the case allows."""

from typing import Any

import pytest

from dagmaster.errors import InvalidWorkflow, WorkflowProblem
from dagmaster.workflows.graph import Graph, build
from dagmaster.workflows.load import read
from dagmaster.workflows.model import Workflow

HANDLERS = dict.fromkeys(
    ["echo", "hello_world", "sleep", "fail", "flaky_echo", "multi_phase", "size_check", "chunk_processor", "make_list"]
)
QUEUES = ("dag-worker-tasks", "container-tasks", "functionapp-tasks")


def a_workflow(nodes: str, *, head: str = "") -> Workflow:
    """A workflow from the lines under `nodes`, which must be valid."""
    return read(text_of(nodes, head=head), "test.yaml", handlers=HANDLERS, queues=QUEUES)


def a_graph(nodes: str, *, head: str = "") -> Graph:
    return build(a_workflow(nodes, head=head))


def text_of(nodes: str, *, head: str = "") -> str:
    return f"workflow_id: test\n{head}nodes:\n{nodes}"


def problems_of(text: str | bytes, **options: Any) -> list[WorkflowProblem]:
    """Every problem of a text that must be refused."""
    with pytest.raises(InvalidWorkflow) as refusal:
        read(text, "test.yaml", **{"handlers": HANDLERS, "queues": QUEUES, **options})
    return refusal.value.problems


def problems_in(nodes: str, *, head: str = "", **options: Any) -> list[WorkflowProblem]:
    return problems_of(text_of(nodes, head=head), **options)


def the_problem(problems: list[WorkflowProblem], words: str) -> WorkflowProblem:
    """The one problem whose message contains the words."""
    matching = [problem for problem in problems if words in problem.message]
    assert len(matching) == 1, f"{words!r} is in {len(matching)} of:\n" + "\n".join(p.at("test.yaml") for p in problems)
    return matching[0]
