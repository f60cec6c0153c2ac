"""The display of a running job, drawn from invented snapshots."""

import io
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console

from dagmaster.cli.command import State
from dagmaster.cli.follow import failure_lines, watch
from dagmaster.cli.live import Lines, LiveTable
from dagmaster.cli.show import print_jobs, print_page
from dagmaster.client.blockers import blockers_of
from dagmaster.client.feed import Reconnection
from dagmaster.client.models.jobs import JobDetail, JobSummary, PublicJob
from dagmaster.client.models.nodes import ChildCounts, FailedNode, PublicNode, WaitingNodes
from dagmaster.client.node_remarks import counts_of
from dagmaster.client.outcome import JobPage

pytestmark = pytest.mark.requirement("M3")

NOW = datetime(2026, 1, 1, tzinfo=UTC)
JOB_ID = "00000000-0000-0000-0000-000000000007"
COUNTS = {"total": 100, "done": 38, "running": 8, "retrying": 3, "waiting": 49, "failed": 2, "cancelled": 0}


def a_node(node_id: str, state: str = "pending", **more: object) -> PublicNode:
    given = {"node_id": node_id, "status": state, "state": state, "type": "task", "stage": node_id, **more}
    return PublicNode.model_validate(given)


def a_job(*nodes: PublicNode, status: str = "running", seconds: float = 1.0) -> JobDetail:
    job = PublicJob(
        job_id=JOB_ID,
        workflow_id="made",
        workflow_version="1",
        definition_hash="0",
        status=status,
        priority=0,
        created_at=NOW,
        updated_at=NOW,
        input_params={},
    )
    return JobDetail(job=job, is_over=status != "running", seconds=seconds, nodes=list(nodes), stages=[])


def a_fan_out(state: str = "running", **counts: int) -> PublicNode:
    return a_node("spread", state, children=ChildCounts(**{**COUNTS, **counts}))


def drawn(detail: JobDetail, height: int = 40, blockers: tuple[str, ...] = ()) -> str:
    console = Console(
        file=io.StringIO(), width=140, height=height, force_terminal=True, color_system=None, markup=False
    )
    table = LiveTable(console)
    table.show(detail, blockers)
    table.close()
    return console.file.getvalue()


def listed(*jobs: JobSummary, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, markup=False)
    print_jobs(console, jobs, NOW + timedelta(hours=3))
    return console.file.getvalue().splitlines()


def test_a_fan_out_is_shown_as_one_line_with_its_counts():
    node = a_fan_out()

    assert counts_of(node) == "38/100 done, 8 running, 3 retrying, 49 waiting, 2 failed"
    assert "38/100 done" in drawn(a_job(node))


def test_a_retry_is_shown_with_its_time_and_reason():
    node = a_node(
        "n0", "ready", retry_count=2, max_retries=5, error_message="HTTP 503", not_before=NOW + timedelta(seconds=39)
    )

    text = drawn(a_job(node))

    assert "retry 2 of 5 in 38.0 s; HTTP 503" in text


def test_losses_are_shown_separately_from_retries():
    lost = a_node("n0", "ready", loss_count=1, max_retries=3, not_before=NOW + timedelta(seconds=1.4))
    both = a_node("n1", "running", loss_count=2, retry_count=1, max_retries=3)

    text = drawn(a_job(lost, both))

    assert "next attempt in 0.4 s (lost 1 time)" in text
    assert "1 of 3 retries, lost 2 times" in text


def test_a_cancelled_fan_out_has_no_waiting_children():
    node = a_fan_out("cancelled", running=0, cancelled=11)

    assert counts_of(node) == "38/100 done, 2 failed, 11 cancelled"


def test_a_failure_without_an_attempt_is_shown_without_a_number():
    never_ran = FailedNode.model_validate(dict(a_node("n0", "failed", error_message="no such input")))

    assert failure_lines([never_ran]) == ["  n0: no such input"]


def test_the_age_of_a_job_is_at_least_its_duration():
    """The Date header of a response has whole seconds, and may be too early."""
    running, over = a_job(seconds=3.7), a_job(status="completed", seconds=3.7)

    pages = [JobPage({"job": {}}, detail, [], None, NOW + timedelta(seconds=2)) for detail in (running, over)]

    for page in pages:
        console = Console(file=io.StringIO(), width=200, markup=False)
        print_page(console, page)
        assert "UTC, 4 s ago" in console.file.getvalue()


def test_reasons_outside_the_job_are_shown_with_a_remedy():
    reasons = [
        {"code": "queue_limited", "detail": "queue q runs 2 tasks, its limit is 2", "queue": "q"},
        {"code": "queued", "detail": "queued for 3.1 s, tasks ahead of it: 7", "queue": "q", "count": 7},
        {"code": "waiting_for_nodes", "detail": "waits for a"},
    ]
    waiting = WaitingNodes.model_validate(
        {"status": "running", "nodes": [{"node_id": "n0", "status": "ready", "reasons": reasons}]}
    )

    assert blockers_of(waiting) == [
        "n0: queue q runs 2 tasks, its limit is 2; raise the limit with `dagmaster queues limit q N`",
        "n0: 7 tasks ahead of it in queue q",
    ]


def test_a_small_screen_shows_failed_and_running_nodes_and_counts_the_others():
    nodes = [a_node(f"n{number}") for number in range(100)]
    nodes[77], nodes[88] = a_node("n77", "failed", error_message="broken"), a_node("n88", "running")

    text = drawn(a_job(*nodes), height=15)

    assert "broken" in text
    assert "n88" in text
    assert "93 more: " in text
    assert text.count("pending") < 15


def test_the_reasons_why_a_job_waits_are_shown_below_it():
    assert "n0: no live worker" in drawn(a_job(a_node("n0", "dispatched")), blockers=("n0: no live worker",))


def test_messages_of_handlers_are_not_interpreted_as_markup():
    node = a_node("n0", "failed", error_message="[red]:smile: not markup[/red]")

    assert "[red]:smile: not markup[/red]" in drawn(a_job(node))


def test_elapsed_time_advances_between_two_snapshots():
    detail = a_job(a_node("n0", "running", dispatched_at=NOW), seconds=10)

    assert "13.0 s" in drawn(detail.later(3))
    assert detail.model_copy(update={"is_over": True}).later(3).seconds == 10


class _FeedWithoutChanges:
    """A feed that always reports an update, although nothing has changed."""

    def __init__(self, *_: object) -> None: ...

    def wait(self, _seconds: float) -> bool:
        return True

    def close(self) -> None: ...


class _Paused:
    """A platform on which a job does not advance until a client has requested why it waits."""

    def __init__(self) -> None:
        self.was_explained = False

    def job(self, _job_id: str) -> dict[str, Any]:
        status = "completed" if self.was_explained else "running"
        return a_job(a_node("n0", "dispatched"), status=status).model_dump(mode="json")

    def waiting(self, _job_id: str) -> dict[str, Any]:
        self.was_explained = True
        reason = {"code": "queue_paused", "detail": "q is paused", "queue": "q"}
        return {"status": "running", "nodes": [{"node_id": "n0", "status": "dispatched", "reasons": [reason]}]}


@pytest.mark.timeout(20)
def test_the_reason_why_a_job_makes_no_progress_is_shown(monkeypatch, capsys):
    monkeypatch.setattr("dagmaster.cli.follow.Feed", _FeedWithoutChanges)
    monkeypatch.setattr("dagmaster.cli.follow._QUIET_SECONDS", 0.3)
    state = State()
    state.client = _Paused()

    watch(state, JOB_ID, Reconnection(state.note, JOB_ID))

    assert "n0: q is paused; resume it with `dagmaster queues resume q`" in capsys.readouterr().out


def test_lines_show_each_change_once_and_counts_once_a_second():
    shown = []
    lines = Lines(shown.append, heartbeat_seconds=60)

    lines.show(a_job(a_fan_out()))
    lines.show(a_job(a_fan_out()), ("no worker",))
    lines.show(a_job(a_fan_out(done=48, waiting=39)), ("no worker",))
    ended = a_fan_out("completed", done=98, running=0, retrying=0, waiting=0)
    lines.show(a_job(ended, status="completed", seconds=2))

    assert [line.split("s  ", 1)[1] for line in shown] == [
        "spread: running, 38/100 done, 8 running, 3 retrying, 49 waiting, 2 failed",
        "job running",
        "no worker",
        "spread: completed, 98/100 done, 2 failed",
        "job completed",
    ]


A_FAILED_JOB = JobSummary(
    job_id=JOB_ID,
    workflow_id="a_workflow_with_a_long_name",
    status="partial_success",
    created_at=NOW,
    completed_at=NOW,
    error_message="it broke\nbadly",
)


def test_a_wide_list_of_jobs_shows_all_columns():
    row = listed(A_FAILED_JOB, width=200)[1].split()

    assert row == [
        JOB_ID,
        "a_workflow_with_a_long_name",
        "!",
        "partial",
        "success",
        "2026-01-01",
        "00:00:00",
        "3",
        "h",
        "0.0",
        "it",
        "broke",
    ]


def test_a_narrow_list_of_jobs_shows_complete_ids():
    for width in (120, 100, 80, 60, 20):
        first = listed(A_FAILED_JOB, width=width)[1]

        assert JOB_ID in first
        assert "partial success" in first

    assert max(map(len, listed(A_FAILED_JOB, width=80))) <= 80


def test_a_narrow_list_of_jobs_shows_complete_names_and_errors():
    narrow = listed(
        A_FAILED_JOB, A_FAILED_JOB.model_copy(update={"workflow_id": "short", "error_message": None}), width=80
    )

    assert [line.strip() for line in narrow[2:4]] == ["a_workflow_with_a_long_name", "it broke"]
    assert narrow[5].strip() == "short"

    long = "the server answered 503 again and again"
    one = A_FAILED_JOB.model_copy(update={"workflow_id": "short", "status": "failed", "error_message": long})

    assert [line.split() for line in listed(one, width=80)[1:]] == [
        [JOB_ID, "short", "✖", "failed", "3", "h"],
        long.split(),
    ]
