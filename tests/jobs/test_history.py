"""Rebuilding a job from its events alone, and detecting impossible states. Damage to a database: tests/database."""

import tracemalloc
from functools import cache
from random import Random
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagmaster.jobs.history import FINDINGS_PER_JOB, Audit, EventRow, FindingCode, JobRow, NodeRow, TaskRow, replay
from dagmaster.testing.history import audit, event_of, findings_of
from tests.jobs.random_workflows import Case
from tests.jobs.simulation import Simulation
from tests.workflows.builders import a_graph, a_workflow

pytestmark = pytest.mark.requirement("E4")

FAN = """
  start: {type: start, next: tiles}
  tiles: {type: fan_out, source: [1, 2], task: {handler: echo}, next: gather}
  gather: {type: fan_in, next: end}
  end: {type: end}
"""
JOB = UUID(int=7)


def events_of(*steps):
    """Events from short notes: `node status` or `node status attempt`; the job's own have no node."""
    types = {"ready": "node_ready", "running": "node_started"}
    events = [
        EventRow(JOB, 1, None, "job_created", "pending", None, 0, {"nodes": ["start", "tiles", "gather", "end"]}),
    ]
    for number, step in enumerate(steps, start=2):
        node, status, *attempt = step.split()
        kind = types.get(status, f"node_{status}")
        if node == "job":
            kind = "job_started" if status == "running" else f"job_{status}"
        attempts = int(attempt[0]) if attempt else None
        events.append(EventRow(JOB, number, None if node == "job" else node, kind, status, attempts, 1, None))
    return events


def child(index, *, end="completed"):
    name = f"tiles__{index}"
    return [f"{name} ready", f"{name} dispatched 1", f"{name} running 1", f"{name} {end} 1"]


OPENING = ["start ready", "start completed", "tiles ready"]
CLOSING = ["gather ready", "gather completed", "end ready", "end completed", "job completed"]
SOUND = [
    *OPENING,
    "tiles__0 ready",
    "tiles__0 dispatched 1",
    "job running",
    "tiles__0 running 1",
    "tiles__0 completed 1",
    *child(1),
    "tiles completed",
    *CLOSING,
]


def test_the_events_alone_rebuild_every_state():
    rebuilt = replay(events_of(*SOUND), JOB, a_graph(FAN))

    assert rebuilt.findings == []
    assert rebuilt.status == "completed"
    assert {name: (node.status, node.attempt) for name, node in rebuilt.nodes.items()} == {
        "start": ("completed", 0),
        "tiles": ("completed", 0),
        "tiles__0": ("completed", 1),
        "tiles__1": ("completed", 1),
        "gather": ("completed", 0),
        "end": ("completed", 0),
    }


def test_transitions_are_checked_even_without_a_graph():
    rebuilt = replay(events_of(*OPENING, "tiles completed", "tiles completed"))

    assert [finding.code for finding in rebuilt.findings] == [FindingCode.TRANSITION]


@pytest.mark.parametrize(
    ("steps", "code"),
    [
        (
            [*OPENING, *child(0), "tiles__1 ready", "tiles__1 dispatched 1", "tiles completed", *CLOSING[:2]],
            FindingCode.FAN_IN,
        ),
        ([*OPENING, *child(0, end="failed"), *child(1), "tiles completed", *CLOSING[:2]], FindingCode.FAN_IN),
        ([*OPENING, *child(0), "tiles completed", "gather ready", "tiles__1 ready"], FindingCode.START),
        ([*OPENING, "tiles__0 ready", "tiles__0 dispatched 1", "tiles__0 dispatched 2"], FindingCode.ATTEMPT),
        ([*OPENING, "tiles__0 ready", "tiles__0 dispatched 2"], FindingCode.ATTEMPT),
        ([*OPENING, "tiles__0 ready", "tiles__0 completed"], FindingCode.ATTEMPT),
        ([*OPENING, *child(0, end="failed"), *child(1)], FindingCode.WHILE_FAILING),
        ([*OPENING, "gather__0 ready"], FindingCode.TRANSITION),
        ([*OPENING, "tiles__0 dispatched 1"], FindingCode.TRANSITION),
        ([*OPENING, "gather skipped"], FindingCode.SKIP),
        ([*SOUND, "tiles__0 ready"], FindingCode.AFTER_END),
    ],
)
def test_impossible_events_are_reported(steps, code):
    rows = [NodeRow(JOB, "tiles", "completed", None, None, 0, 0, 0, 1, total=2)]
    check = Audit(JOB, a_graph(FAN), rows)

    for event in events_of(*steps):
        check.add_event(event)

    assert code in {finding.code for finding in check.rebuilt.findings}, check.rebuilt.findings


def test_a_badly_damaged_job_does_not_hide_the_findings_of_others():
    check = Audit(JOB)
    for number in range(1000):
        check.check_task(TaskRow(JOB, "unknown", number, "lost"))

    findings = check.finish(JobRow(JOB, "pending", "", 0, 0, 0))

    assert len(findings) == FINDINGS_PER_JOB + 1
    assert findings[-1].code is FindingCode.MORE
    assert "801 more" in findings[-1].message


def test_a_rerun_node_begins_a_new_run():
    """Resume and retry have events of their own; only the state in the event decides what it means."""
    reruns = [
        EventRow(JOB, len(SOUND) + 2, None, "job_resumed", "running", None, 2, None),
        EventRow(JOB, len(SOUND) + 3, "gather", "node_reset", "pending", None, 2, None),
    ]
    rebuilt = replay([*events_of(*SOUND), *reruns])

    assert rebuilt.findings == []
    assert (rebuilt.status, rebuilt.reruns) == ("running", 1)
    assert (rebuilt.nodes["gather"].status, rebuilt.nodes["gather"].run) == ("pending", 2)


def test_each_of_many_children_takes_a_few_hundred_bytes():
    count = 10_000  # a smaller number is enough, because memory grows linearly
    check = Audit(JOB)
    tracemalloc.start()
    check.add_event(EventRow(JOB, 1, None, "job_created", "pending", None, 0, {"nodes": ["tiles"]}))
    sequence = 1
    for index in range(count):
        for kind, status, attempt in (
            ("node_ready", "ready", None),
            ("node_dispatched", "dispatched", 1),
            ("node_started", "running", 1),
            ("node_completed", "completed", 1),
        ):
            sequence += 1
            check.add_event(EventRow(JOB, sequence, f"tiles__{index}", kind, status, attempt, 1, None))
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert len(check.rebuilt.nodes) == count + 1
    assert used / count < 500


# --- random damage ---------------------------------------------------------------------------------------------------

MIXED = """
  start: {type: start, next: [first, side]}
  first: {handler: work, next: tiles}
  side: {handler: work, importance: optional, next: end}
  tiles: {type: fan_out, source: [0, 1, 2], tolerate: 1, max_parallel: 2, task: {handler: child}, next: gather}
  gather: {type: fan_in, next: choose}
  choose: {type: conditional, condition: "{{ 1 }} > 0", on_true: left, on_false: right}
  left: {handler: work, next: end}
  right: {handler: work, next: end}
  end: {type: end}
"""


@cache
def a_sound_run():
    workflow = a_workflow(MIXED.replace("work", "echo").replace("child", "echo"))
    scripts = {
        "first": ["lost", "handler"],
        "side": ["data"],
        "tiles__1": ["returned", "environment"],
        "tiles__2": ["data"],
    }
    simulation = Simulation(Case(workflow, scripts, {}, {}, seed=3), handlers=("echo",))
    simulation.run()
    assert findings_of(simulation.database) == []
    return simulation


def checked(events):
    simulation = a_sound_run()
    return audit(simulation.database, simulation.job_id, events=events)


def sound_events():
    simulation = a_sound_run()
    return [event_of(event) for event in simulation.database.events[simulation.job_id]]


def test_any_missing_event_is_reported():
    events = sound_events()

    assert checked(events) == []
    assert all(checked(events[:n] + events[n + 1 :]) for n in range(len(events)))


def test_any_missing_event_is_reported_even_if_the_others_were_renumbered():
    """The state tables allow a node without an event of its start; the row of the job shows that one is missing."""
    events = sound_events()

    for n, missing in enumerate(events):
        remaining = [event._replace(sequence=i) for i, event in enumerate(events[:n] + events[n + 1 :], start=1)]
        codes = {finding.code for finding in checked(remaining)}
        assert codes, missing
        assert codes != {FindingCode.JOB_ROW} or missing.node_id is None or missing.event_type == "node_started", (
            missing
        )


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.integers(0, 2**32))
def test_the_check_survives_any_damage(seed):
    random = Random(seed)
    events = sound_events()
    for _ in range(random.randint(1, 6)):
        spot, other = random.randrange(len(events)), random.randrange(len(events))
        source = events[other]
        match random.randrange(4):
            case 0:
                events[spot], events[other] = source, events[spot]
            case 1:
                events.insert(spot, source)
            case 2:
                events[spot] = events[spot]._replace(node_id=source.node_id)
            case 3:
                events[spot] = events[spot]._replace(
                    event_status=source.event_status, attempt=source.attempt, event_data=source.event_data
                )

    assert isinstance(checked(events), list)
