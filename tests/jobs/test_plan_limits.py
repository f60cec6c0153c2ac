"""Templates and values that would delay other jobs, or cannot be stored, affect only their own job."""

import textwrap
from dataclasses import replace
from itertools import count
from typing import Any
from uuid import UUID

import orjson
import pytest

from dagmaster.errors import InvalidRequest, InvalidWorkflow
from dagmaster.jobs.model import Submission, TaskMessage, task_id
from dagmaster.jobs.payload import INLINE_BYTES, LOADABLE_BYTES, TRANSACTION_BYTES, reference_to
from dagmaster.jobs.plan import Planner
from dagmaster.jobs.routing import Route
from dagmaster.jobs.states import NodeStatus
from dagmaster.jobs.task_params import ByteBudget
from dagmaster.jobs.view import JobView, NodeView
from dagmaster.library.workflows import WorkflowLibrary
from dagmaster.operations.submit import prepare
from dagmaster.workflows.graph import build
from dagmaster.workflows.load import read
from dagmaster.workflows.storable import encode

MB = 1024 * 1024
FAN = """
    workflow_id: fan
    inputs: {{n: {{type: array, default: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]}}, text: {{type: string, default: ""}}}}
    nodes:
      start: {{type: start, next: split}}
      split:
        type: fan_out
        source: "{{{{ inputs.n }}}}"
        task: {{handler: noop, params: {{x: "{expression}"}}}}
        next: end
      end: {{type: end}}
"""
SINGLE = """
    workflow_id: single
    inputs: {{text: {{type: string, default: ""}}}}
    nodes:
      start: {{type: start, next: a}}
      a: {node}
      end: {{type: end}}
"""


class AnyRoute:
    def route(self, work):
        return Route("q", 60)


def a_view(expression: str) -> JobView:
    workflow = read(textwrap.dedent(FAN.format(expression=expression)), "test")
    nodes = {name: NodeView(NodeStatus.READY if name == "start" else NodeStatus.PENDING) for name in workflow.nodes}
    return JobView(UUID(int=1), build(workflow), {"n": list(range(10))}, nodes=nodes)


@pytest.mark.requirement("E9")
def test_a_slow_expansion_ends_its_transaction_early_and_continues_in_the_next():
    ticks = count()
    planner = Planner(AnyRoute(), clock=lambda: next(ticks) * 0.2, expansion_seconds=0.5)
    view, children = a_view("{{ item }}"), []

    for _ in range(10):
        plan = planner.decide(view, [], epoch=1, sequence=0, checks_all_nodes=True)
        children.append(len(plan.changes.tasks))
        view = plan.view
        if not plan.is_unfinished:
            break

    assert sum(children) == 10
    assert max(children) < 10
    assert view.nodes["split"].status is NodeStatus.COMPLETED


@pytest.mark.requirement("W5")
def test_params_that_do_not_depend_on_the_child_are_rendered_once():
    plan = Planner(AnyRoute()).decide(a_view("{{ inputs.n | length }}"), [], epoch=1, sequence=0, checks_all_nodes=True)

    values = [task.params["x"] for task in plan.changes.tasks]
    assert values == [10] * 10


def decide(view: JobView, **more: Any) -> Any:
    return Planner(AnyRoute()).decide(view, [], epoch=1, sequence=0, checks_all_nodes=True, **more)


def large_view(expression: str, text: Any, children: int = 10) -> JobView:
    return replace(a_view(expression), inputs={"n": list(range(children)), "text": text})


def single_view(node: str, text: Any, job: int = 1) -> JobView:
    workflow = read(textwrap.dedent(SINGLE.format(node=node)), "test")
    nodes = {name: NodeView(NodeStatus.READY if name == "start" else NodeStatus.PENDING) for name in workflow.nodes}
    return JobView(UUID(int=job), build(workflow), {"text": text}, nodes=nodes)


@pytest.mark.requirement("E18")
def test_params_that_children_share_are_encoded_once_and_are_one_payload(monkeypatch):
    encodings = []
    counting = lambda value, what: encodings.append(what) or encode(value, what)  # noqa: E731
    monkeypatch.setattr("dagmaster.jobs.task_params.encode", counting)

    plan = decide(large_view("{{ inputs.text }}", "x" * MB, children=2000))

    expected = orjson.dumps({"x": "x" * MB})
    assert {task.params_ref["sha256"] for task in plan.changes.tasks} == {reference_to(expected)["sha256"]}
    assert plan.changes.payloads == {reference_to(expected)["sha256"]: expected}
    assert encodings.count("the params") == 1
    assert len(plan.changes.tasks) == 2000


@pytest.mark.requirement("E18")
def test_the_message_of_a_traced_task_does_not_exceed_the_limit():
    node = '{handler: noop, params: {x: "{{ inputs.text }}"}, next: end}'
    lengths = range(INLINE_BYTES - 400, INLINE_BYTES, 5)
    tasks = [decide(single_view(node, "x" * length)).changes.tasks[0] for length in lengths]
    largest = max((task for task in tasks if task.params_ref is None), key=lambda task: len(task.params["x"]))

    message = TaskMessage(
        task_id=task_id(UUID(int=1), "a", 1),
        job_id=UUID(int=1),
        node_id="a",
        attempt=1,
        handler=largest.handler,
        params=largest.params,
        queue=largest.queue,
        timeout_seconds=largest.timeout_seconds,
        traceparent=f"00-{'a' * 32}-{'b' * 16}-01",
    )

    assert len(orjson.dumps(message._asdict())) <= INLINE_BYTES


@pytest.mark.requirement("E18")
def test_payloads_above_the_limit_of_a_transaction_wait_for_the_next_one():
    view, payloads, tasks = large_view("{{ [inputs.text, item] }}", ["x" * MB] * 4), [], 0

    while True:
        plan = decide(view)
        payloads.append(sum(map(len, plan.changes.payloads.values())))
        tasks += len(plan.changes.tasks)
        view = plan.view
        if not plan.is_unfinished:
            break

    assert tasks == 10
    assert max(payloads) < TRANSACTION_BYTES + 5 * MB
    assert len(payloads) > 1


@pytest.mark.requirement("E18")
def test_params_in_rows_count_towards_the_limit_of_a_transaction():
    plan = decide(large_view("{{ inputs.text }}", "x" * 100_000, children=2000))

    assert plan.is_unfinished
    assert len(plan.changes.tasks) == TRANSACTION_BYTES // 100_000 + 1
    assert plan.changes.payloads == {}


@pytest.mark.requirement("E18")
def test_jobs_of_one_transaction_share_its_limit():
    node, budget = "{handler: noop, params: {x: '{{ inputs.text }}'}, next: end}", ByteBudget(bytes_left=300_000)
    first = decide(single_view(node, "x" * 400_000), budget=budget)
    second = decide(single_view(node, "x" * 400_000, job=2), budget=budget)
    later = decide(second.view)

    assert (len(first.changes.tasks), first.is_unfinished) == (1, False)
    assert (len(second.changes.tasks), second.is_unfinished) == (0, True)
    assert second.view.nodes["a"].status is NodeStatus.PENDING
    assert (len(later.changes.tasks), later.is_unfinished) == (1, False)


@pytest.mark.requirement("E18")
def test_params_beyond_the_limit_are_refused_with_their_size():
    plan = decide(large_view("{{ inputs.text }}", "x" * LOADABLE_BYTES))

    message = plan.view.nodes["split"].error_message
    assert message.startswith(f"child 0: the params have {LOADABLE_BYTES + 8:,} bytes; the limit is {LOADABLE_BYTES:,}")


@pytest.mark.requirement("E18")
def test_a_conditional_does_not_store_a_large_value():
    branches = "[{condition: '== 1', next: end}, {default: true, next: end}]"
    view = single_view(
        f"{{type: conditional, condition_field: '{{{{ inputs.text }}}}', branches: {branches}}}",
        ["x" * 1000] * 400,
    )

    assert f"the limit is {INLINE_BYTES:,}" in decide(view).view.nodes["a"].error_message


@pytest.mark.requirement("W5")
@pytest.mark.parametrize("expression", ["{{ '\\\\x00' ~ item }}", "{{ '\\\\ud800' ~ item }}"])
def test_text_that_cannot_be_stored_fails_its_node(expression):
    plan = Planner(AnyRoute()).decide(a_view(expression), [], epoch=1, sequence=0, checks_all_nodes=True)

    assert plan.view.nodes["split"].status is NodeStatus.FAILED
    assert "child 0" in (plan.view.nodes["split"].error_message or "")


@pytest.mark.requirement("W11")
def test_inputs_too_deep_to_store_are_refused_at_submission():
    workflow = read(textwrap.dedent(FAN.format(expression="{{ item }}")), "test")
    deep: list = []
    for _ in range(300):
        deep = [deep]

    with pytest.raises(InvalidRequest, match="JSON"):
        prepare(WorkflowLibrary({"fan": workflow}), Submission(workflow_id="fan", input_params={"n": deep}))


@pytest.mark.requirement("W11")
def test_a_text_that_looks_like_an_escaped_nul_is_accepted():
    workflow = read(textwrap.dedent(FAN.format(expression="{{ item }}")), "test")

    job = prepare(WorkflowLibrary({"fan": workflow}), Submission(workflow_id="fan", input_params={"n": ["\\u0000"]}))

    assert job.input_params["n"] == ["\\u0000"]


@pytest.mark.requirement("W4")
@pytest.mark.parametrize(
    "field", ["timeout_seconds: 1e300", "queue_timeout_seconds: 1e300", "retry: {max_attempts: 2147483648}"]
)
def test_times_and_counts_that_are_too_large_are_refused(field):
    work = f"  a: {{handler: noop, {field}, next: end}}"
    text = f"workflow_id: w\nnodes:\n  start: {{type: start, next: a}}\n{work}\n  end: {{type: end}}\n"

    with pytest.raises(InvalidWorkflow):
        read(text, "test")
