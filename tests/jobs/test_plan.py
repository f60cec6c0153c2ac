"""Regression tests of single decisions. General properties are in test_plan_properties.py."""

import pytest

from dagmaster.jobs.states import TaskStatus
from dagmaster.testing.history import findings_of
from tests.jobs.random_workflows import Case
from tests.jobs.simulation import Simulation
from tests.workflows.builders import a_workflow

PAIR = """
  start: {type: start, next: [a, b]}
  a: {handler: echo, retry: {max_attempts: 1, initial_delay_seconds: 30, max_delay_seconds: 30}}
  b: {handler: echo, retry: {max_attempts: 1, initial_delay_seconds: 30, max_delay_seconds: 30}}
  end: {type: end, depends_on: {all_of: [a, b]}}
"""


def a_run(nodes, head="", **scripts):
    return Simulation(Case(a_workflow(nodes, head=head), scripts, {}, {}), handlers=("echo",))


def claim_both(**scripts):
    """Let a worker claim both tasks of the pair. Returns the run, and a function that reports one task."""
    run = a_run(PAIR, **scripts)
    run.run_once()
    while len(run.held) < 2:
        run.claim_tasks()
    return run, lambda name: run.report(next(task for task in run.held if task.node_id == name))


@pytest.mark.requirement("E17")
def test_a_job_in_which_nothing_was_dispatched_can_end_in_partial_success():
    """There is no transition from pending to partial_success, so the job passes through running."""
    nodes = """
  start: {type: start, next: choose}
  choose: {type: conditional, importance: important, condition: "{{ inputs.x }} > 1", on_true: end}
  end: {type: end}
"""
    run = a_run(nodes, head="inputs:\n  x: {type: number}\n")

    run.run(disorder=0)

    assert run.database.jobs[run.job_id].status == "partial_success"
    assert findings_of(run.database) == []


@pytest.mark.requirement("E1")
def test_a_returned_task_is_not_dispatched_again_after_a_critical_failure():
    run, report = claim_both(a=["data"], b=["returned"])
    report("a")
    report("b")

    run.run_once()

    assert [task.status for task in run.database.tasks.values()] == [TaskStatus.FAILED, TaskStatus.RETURNED]
    assert run.states()["b"] == ("cancelled", "job_failed")
    assert run.is_over
    assert findings_of(run.database) == []


@pytest.mark.requirement("E1")
def test_a_retry_delay_that_began_with_a_critical_failure_is_ended():
    run, report = claim_both(a=["data"], b=["handler"])
    report("b")
    report("a")

    run.run_once()

    waiting = run.database.nodes[run.job_id]["b"]
    assert (waiting.status, waiting.not_before) == ("cancelled", None)
    assert run.is_over
    assert findings_of(run.database) == []


@pytest.mark.requirement("W6")
def test_a_node_that_is_on_no_branch_runs_whichever_branch_is_taken():
    nodes = """
  start: {type: start, next: choose}
  choose: {type: conditional, condition: "{{ 1 }} > 2", on_true: taken}
  taken: {handler: echo}
  beside: {handler: echo, depends_on: {all_of: [choose]}}
  end: {type: end, depends_on: {all_of: [taken, beside]}}
"""
    run = a_run(nodes)

    run.run(disorder=0)

    assert run.states()["taken"] == ("skipped", "branch_not_taken")
    assert run.states()["beside"] == ("completed", None)


@pytest.mark.requirement("W8")
def test_a_fan_in_that_does_not_follow_its_fan_out_directly_waits_for_the_last_child():
    nodes = """
  start: {type: start, next: [tiles, quick]}
  quick: {handler: echo}
  tiles: {type: fan_out, source: [1, 2], task: {handler: echo}}
  early: {handler: echo, depends_on: {any_of: [quick, tiles]}}
  gather: {type: fan_in, fan_out: tiles, depends_on: {all_of: [early]}}
  end: {type: end, depends_on: {all_of: [gather]}}
"""
    run = a_run(nodes)
    run.run_once()
    for name in ("quick", "early", "tiles__0", "tiles__1"):
        run.claim_tasks()
        while all(task.node_id != name for task in run.held):
            run.claim_tasks()
        assert run.states()["gather"][0] == "pending"
        run.report(next(task for task in run.held if task.node_id == name))
        run.run_once()

    assert run.states()["gather"][0] == "completed"
    run.run(disorder=0)
    assert findings_of(run.database) == []
