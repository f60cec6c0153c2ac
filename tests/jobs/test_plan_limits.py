"""Templates and values that would hold up others, or that can't be stored, stay the matter of their own job [E27, W5]."""

import textwrap
from itertools import count
from uuid import UUID

import pytest

from dagmaster.errors import InvalidRequest, InvalidWorkflow
from dagmaster.jobs.model import Submission
from dagmaster.jobs.plan import Planner, Route
from dagmaster.jobs.states import NodeStatus
from dagmaster.jobs.view import JobView, NodeView
from dagmaster.operations.catalog import Catalog
from dagmaster.operations.submit import prepare
from dagmaster.workflows.graph import build
from dagmaster.workflows.load import read

FAN = """
    workflow_id: fan
    inputs: {{n: {{type: array, default: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]}}}}
    nodes:
      start: {{type: start, next: split}}
      split: {{type: fan_out, source: "{{{{ inputs.n }}}}", task: {{handler: noop, params: {{x: "{expression}"}}}}, next: end}}
      end: {{type: end}}
"""


class AnyRoute:
    def route(self, work):
        return Route("q", 60)


def a_view(expression: str) -> JobView:
    workflow = read(textwrap.dedent(FAN.format(expression=expression)), "test")
    nodes = {name: NodeView(NodeStatus.READY if name == "start" else NodeStatus.PENDING) for name in workflow.nodes}
    return JobView(UUID(int=1), build(workflow), {"n": list(range(10))}, nodes=nodes)


def test_e27_a_slow_expansion_ends_its_transaction_early_and_goes_on_in_the_next():
    ticks = count()
    planner = Planner(AnyRoute(), clock=lambda: next(ticks) * 0.2, expansion_seconds=0.5)
    view, made = a_view("{{ item }}"), []

    for _ in range(10):
        plan = planner.decide(view, [], epoch=1, sequence=0, look_at_all=True)
        made.append(len(plan.changes.tasks))
        view = plan.view
        if not plan.is_unfinished:
            break

    assert sum(made) == 10
    assert max(made) < 10
    assert view.nodes["split"].status is NodeStatus.COMPLETED


def test_w5_params_that_do_not_depend_on_the_child_are_rendered_once():
    plan = Planner(AnyRoute()).decide(a_view("{{ inputs.n | length }}"), [], epoch=1, sequence=0, look_at_all=True)

    values = [task.params["x"] for task in plan.changes.tasks]
    assert values == [10] * 10


@pytest.mark.parametrize("expression", ["{{ '\\\\x00' ~ item }}", "{{ '\\\\ud800' ~ item }}"])
def test_w5_text_that_can_not_be_stored_fails_its_node(expression):
    plan = Planner(AnyRoute()).decide(a_view(expression), [], epoch=1, sequence=0, look_at_all=True)

    assert plan.view.nodes["split"].status is NodeStatus.FAILED
    assert "child 0" in (plan.view.nodes["split"].error_message or "")


def test_w11_inputs_too_deep_to_store_are_refused_at_submission():
    workflow = read(textwrap.dedent(FAN.format(expression="{{ item }}")), "test")
    deep: list = []
    for _ in range(300):
        deep = [deep]

    with pytest.raises(InvalidRequest, match="JSON"):
        prepare(Catalog({"fan": workflow}), Submission(workflow_id="fan", input_params={"n": deep}))


def test_w11_the_text_of_an_escape_is_no_nul():
    workflow = read(textwrap.dedent(FAN.format(expression="{{ item }}")), "test")

    job = prepare(Catalog({"fan": workflow}), Submission(workflow_id="fan", input_params={"n": ["\\u0000"]}))

    assert job.input_params == {"n": ["\\u0000"]}


@pytest.mark.parametrize(
    "field", ["timeout_seconds: 1e300", "queue_timeout_seconds: 1e300", "retry: {max_attempts: 2147483648}"]
)
def test_w4_times_and_counts_beyond_reason_are_refused(field):
    work = f"  a: {{handler: noop, {field}, next: end}}"
    text = f"workflow_id: w\nnodes:\n  start: {{type: start, next: a}}\n{work}\n  end: {{type: end}}\n"

    with pytest.raises(InvalidWorkflow):
        read(text, "test")
