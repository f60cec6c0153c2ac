"""The planner compared with a naive reference: random workflows, workers and faults, and always the same outcome.

Each case runs one job through the real planner over the ledger in memory (`simulation`), then compares the state of
each node with the reference, and checks the history.
"""

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from dagmaster.testing.history import findings_of
from dagmaster.workflows.model import FanInNode, FanOutNode, Importance
from tests.jobs.random_workflows import Case, cases
from tests.jobs.reference import DONE, FAILED, LOST, SKIPPED, Reference
from tests.jobs.simulation import MAX_LOSSES, Simulation

pytestmark = pytest.mark.requirement("W6", "W7", "W8", "E1", "E4", "E6", "E7", "E12")

STATES = {
    ("completed", None): DONE,
    ("failed", None): FAILED,
    ("skipped", "branch_not_taken"): SKIPPED,
    ("skipped", "upstream_failed"): LOST,
}
_CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def run_and_compare(case: Case) -> None:
    run = Simulation(case)
    run.run()

    expected = Reference(case, MAX_LOSSES)
    status = run.database.jobs[run.job_id].status
    assert findings_of(run.database, max_losses=MAX_LOSSES) == []
    assert run.all_ended()
    assert status == expected.outcome()
    if expected.has_critical_failure():
        _agrees_so_far(run, expected)
    else:
        _agrees(run, expected)


def _agrees(run: Simulation, expected: Reference) -> None:
    """Every node, child and fan_in has the state and result of the reference."""
    states = run.states()
    for name, node in expected.nodes.items():
        assert STATES[states[name]] == expected.state(name), name
        if isinstance(node, FanOutNode):
            _children_agree(run, expected, name)
        if isinstance(node, FanInNode) and node.handler is None and expected.state(name) == DONE:
            _gathered_agrees(run, expected, name)


def _children_agree(run: Simulation, expected: Reference, name: str) -> None:
    children = {k: v[0] for k, v in run.states().items() if k.rpartition("__")[0] == name}
    failed = expected.failures(name)
    total = range(expected.total(name))
    assert children == {f"{name}__{i}": "failed" if i in failed else "completed" for i in total}


def _gathered_agrees(run: Simulation, expected: Reference, name: str) -> None:
    fan_out = run.graph.fan_out_of[name]
    output = run.database.nodes[run.job_id][name].output
    failed = expected.failures(fan_out)
    assert isinstance(output, dict)
    assert output["count"] == expected.total(fan_out) - len(failed)
    assert [entry["index"] for entry in output.get("failed", [])] == failed  # type: ignore[union-attr, call-overload, index]


def _agrees_so_far(run: Simulation, expected: Reference) -> None:
    """In a failing job no new nodes start: a node has the state of the reference, or did not run."""
    for name in expected.nodes:
        state = STATES.get(run.states()[name], "cancelled")
        assert state in (expected.state(name), LOST, FAILED, "cancelled"), name
    blamed = [
        name
        for name, node in expected.nodes.items()
        if node.importance is Importance.CRITICAL
        and (run.states()[name][0] == "failed" or (run.database.nodes[run.job_id][name].failed_count or 0) > 0)
    ]
    assert blamed


@settings(max_examples=200, deadline=None, derandomize=True, database=None, suppress_health_check=_CHECKS)
@given(cases())
def test_every_job_ends_as_the_reference_predicts(case):
    run_and_compare(case)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(
    max_examples=20_000,
    deadline=None,
    database=None,
    suppress_health_check=_CHECKS,
    phases=[Phase.generate, Phase.shrink],
)
@given(cases(max_blocks=9))
def test_many_more_jobs_end_as_the_reference_predicts(case):
    run_and_compare(case)
