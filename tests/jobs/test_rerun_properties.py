"""Cancel, resume and retry with random workflows and faults: the history of a job stays consistent, the job ends, and a
resume does not run completed nodes again.
"""

from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from dagmaster.errors import Conflict, NotFound
from dagmaster.jobs.rerun import RESUMABLE, resume, retry
from dagmaster.jobs.states import NodeStatus
from dagmaster.testing.history import findings_of
from dagmaster.workflows.model import EndNode, FanOutNode, StartNode
from tests.jobs.random_workflows import Case, cases
from tests.jobs.simulation import MAX_LOSSES, Simulation

_CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def check(run: Simulation) -> None:
    assert run.all_ended(), run.describe()
    assert findings_of(run.database, max_losses=MAX_LOSSES) == []


def attempts_of(run: Simulation) -> dict[str, int]:
    """The attempts of completed nodes."""
    nodes = run.database.nodes[run.job_id]
    return {name: node.attempt for name, node in nodes.items() if node.status is NodeStatus.COMPLETED}


def run_cancel_and_resume(case: Case) -> None:
    run = Simulation(case)
    run.cancels = 1
    run.run()
    check(run)
    for _ in range(6):
        if run.database.jobs[run.job_id].status not in RESUMABLE:
            break
        done = attempts_of(run)
        try:
            rerun = run.rerun(resume)
        except Conflict:  # all nodes completed: only the outputs of the job could not be rendered
            break
        assert not set(rerun.nodes) & set(done)
        run.run(disorder=30)
        check(run)
        now = {name: node.attempt for name, node in run.database.nodes[run.job_id].items()}
        assert {name: now[name] for name in done} == done
        run.cancels = 0


def run_and_retry(case: Case) -> None:
    run, random = Simulation(case), Random(case.seed)
    run.run()
    check(run)
    for _ in range(3):
        before = {name: node.attempt for name, node in run.database.nodes[run.job_id].items()}
        part = _a_part(run, random)
        if part is None:
            return
        named = run.database.nodes[run.job_id].get(part.get("node", ""))
        is_done = named is not None and named.status is NodeStatus.COMPLETED
        try:
            rerun = run.rerun(lambda view: retry(view, **part, has_completed=is_done))  # noqa: B023 - called at once
        except (Conflict, NotFound):
            continue
        run.run(disorder=30)
        check(run)
        touched = {*rerun.nodes, *rerun.children}
        nodes = run.database.nodes[run.job_id]
        untouched = {
            name
            for name in before
            if name not in touched and nodes[name].parent_node_id not in touched and name not in rerun.single
        }
        assert {name: nodes[name].attempt for name in untouched} == {name: before[name] for name in untouched}


def _a_part(run: Simulation, random: Random) -> dict[str, str] | None:
    definition = run.case.workflow.nodes
    names = [name for name, node in definition.items() if not isinstance(node, StartNode | EndNode)]
    fan_outs = [name for name in names if isinstance(definition[name], FanOutNode)]
    children = [name for name, row in run.database.nodes[run.job_id].items() if row.parent_node_id]
    choices = [{"node": name} for name in names]
    choices += [{"failed_children": name} for name in fan_outs]
    choices += [{"node": name} for name in children if (run.database.nodes[run.job_id][name].fan_out_index or 0) < 3]
    return random.choice(choices) if choices else None


@pytest.mark.requirement("E15")
@settings(max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=_CHECKS)
@given(cases())
def test_a_job_can_be_cancelled_and_resumed_repeatedly(case):
    run_cancel_and_resume(case)


@pytest.mark.requirement("E15")
@settings(max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=_CHECKS)
@given(cases())
def test_parts_of_a_job_can_be_retried_repeatedly(case):
    run_and_retry(case)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(
    max_examples=5_000,
    deadline=None,
    database=None,
    suppress_health_check=_CHECKS,
    phases=[Phase.generate, Phase.shrink],
)
@given(cases(max_blocks=9))
def test_many_more_jobs_can_be_cancelled_resumed_and_retried(case):
    run_cancel_and_resume(case)
    run_and_retry(case)
