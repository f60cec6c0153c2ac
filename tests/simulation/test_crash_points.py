"""Every point at which a process can die, pause or lose its connection, one at a time, for a workflow of each kind.

Each run has one fault: before or after one commit of an orchestrator or a worker. In each run the job
completes, nothing is published twice, and only the tasks of one worker may run a second time.
"""

from typing import Any

import orjson
import pytest

from dagmaster.workflows.load import read
from tests.jobs.random_workflows import Case
from tests.simulation.faults import CallFault, SingleFault
from tests.simulation.world import Mode, World

pytestmark = pytest.mark.requirement("E5", "E7", "E11")

FAULTS = [fault for fault in CallFault if fault not in (CallFault.HANGS, CallFault.CALLER_PAUSES_BEFORE)]
NEVER = 10**9


def a_case(nodes: dict[str, Any], scripts: dict[str, list[str]] | None = None, **values: int) -> Case:
    body = {"workflow_id": "swept", "nodes": nodes}
    return Case(read(orjson.dumps(body), "swept.yaml", handlers=None, queues=None), scripts or {}, values, {})


def work(*after: str, **facts: Any) -> dict[str, Any]:
    return {"handler": "work", "depends_on": {"all_of": list(after)}, **facts}


RETRY = {"max_attempts": 2, "initial_delay_seconds": 1, "max_delay_seconds": 5}
CASES = {
    "chain": a_case(
        {
            "start": {"type": "start"},
            "one": work("start"),
            "two": work("one", retry=RETRY, params={"v": "{{ nodes.one.output.v }}"}),
            "end": {"type": "end", "depends_on": {"all_of": ["two"]}},
        },
        {"two": ["handler"]},
        one=3,
    ),
    "branches": a_case(
        {
            "start": {"type": "start"},
            "one": work("start"),
            "which": {
                "type": "conditional",
                "depends_on": {"all_of": ["one"]},
                "condition": "{{ nodes.one.output.v }} >= 2",
                "on_true": ["many"],
                "on_false": ["few"],
            },
            "many": work("which"),
            "few": work("which"),
            "either": {"handler": "work", "depends_on": {"any_of": ["many", "few"]}},
            "end": {"type": "end", "depends_on": {"all_of": ["either"]}},
        },
        one=2,
    ),
    "fan": a_case(
        {
            "start": {"type": "start"},
            "one": work("start"),
            "spread": {
                "type": "fan_out",
                "depends_on": {"all_of": ["one"]},
                "source": "{{ nodes.one.output['items'] }}",
                "max_parallel": 3,
                "task": {"handler": "child", "retry": RETRY},
            },
            "join": {"type": "fan_in", "fan_out": "spread", "depends_on": {"all_of": ["spread"]}, "handler": "gather"},
            "sum": {
                "type": "fan_in",
                "fan_out": "spread",
                "depends_on": {"all_of": ["spread"]},
                "aggregation": "collect",
            },
            "end": {"type": "end", "depends_on": {"all_of": ["join", "sum"]}},
        },
        {"spread__1": ["environment"]},
        one=5,
    ),
}


def run(case: Case, number: int, fault: CallFault) -> World:
    world = World(3, Mode.LIVENESS, case=case, single_fault=SingleFault(number, fault))
    world.run()
    return world


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name.lower() for fault in FAULTS])
@pytest.mark.parametrize("name", CASES)
def test_a_job_completes_after_any_fault_at_any_commit(name: str, fault: CallFault) -> None:
    undisturbed = run(CASES[name], NEVER, fault)
    commits = undisturbed.single_fault.commits if undisturbed.single_fault else 0
    planned = len(undisturbed.database.tasks)

    worlds = [run(CASES[name], number, fault) for number in range(1, commits + 1)]

    assert commits > 10
    for number, world in enumerate(worlds, 1):
        (job,) = world.database.jobs.values()
        assert job.status == "completed", f"commit {number}: {world.report()}"
        assert len(world.database.tasks) <= planned + 3, (
            f"commit {number}: {world.report()}"
        )  # the tasks that one worker holds
