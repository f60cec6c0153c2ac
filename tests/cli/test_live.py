"""What is drawn while a job runs, from made-up snapshots [M3]."""

import io
from datetime import UTC, datetime, timedelta

from rich.console import Console

from dagmaster.cli.answers import Children, Job, JobDetail, JobLine, Node
from dagmaster.cli.live import Lines, Picture, counts_of
from dagmaster.cli.show import print_jobs

NOW = datetime(2026, 1, 1, tzinfo=UTC)
JOB_ID = "00000000-0000-0000-0000-000000000007"
COUNTS = {"total": 100, "done": 38, "running": 8, "retrying": 3, "waiting": 49, "failed": 2, "cancelled": 0}


def a_node(node_id: str, state: str = "pending", **more: object) -> Node:
    given = {"node_id": node_id, "status": state, "state": state, "type": "task", "stage": node_id, **more}
    return Node.model_validate(given)


def a_job(*nodes: Node, status: str = "running", seconds: float = 1.0) -> JobDetail:
    job = Job(
        job_id=JOB_ID, workflow_id="made", workflow_version="1", definition_hash="0", status=status, priority=0,
        created_at=NOW,
    )  # fmt: skip
    return JobDetail(job=job, is_over=status != "running", seconds=seconds, nodes=list(nodes), stages=[])


def a_fan_out(state: str = "running", **counts: int) -> Node:
    return a_node("spread", state, children=Children(**{**COUNTS, **counts}))


def drawn(detail: JobDetail, height: int = 40, held_up: tuple[str, ...] = ()) -> str:
    console = Console(
        file=io.StringIO(), width=140, height=height, force_terminal=True, color_system=None, markup=False
    )
    picture = Picture(console)
    picture.show(detail, held_up)
    picture.close()
    return console.file.getvalue()


def listed(*jobs: JobLine, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, markup=False)
    print_jobs(console, jobs, NOW + timedelta(hours=3))
    return console.file.getvalue().splitlines()


def test_a_fan_out_is_one_line_with_its_counts_m3():
    node = a_fan_out()

    assert counts_of(node) == "38/100 done, 8 running, 3 retrying, 49 waiting, 2 failed"
    assert "38/100 done" in drawn(a_job(node))


def test_a_retry_says_when_and_why_m3():
    node = a_node(
        "n0", "ready", retry_count=2, max_retries=5, error_message="HTTP 503", not_before=NOW + timedelta(seconds=39)
    )

    text = drawn(a_job(node))

    assert "retry 2 of 5 in 38.0 s; HTTP 503" in text


def test_on_a_small_screen_what_fails_and_runs_is_shown_and_the_rest_counted_m3():
    nodes = [a_node(f"n{number}") for number in range(100)]
    nodes[77], nodes[88] = a_node("n77", "failed", error_message="broken"), a_node("n88", "running")

    text = drawn(a_job(*nodes), height=15)

    assert "broken" in text
    assert "n88" in text
    assert "93 more: " in text
    assert text.count("pending") < 15


def test_what_holds_a_job_up_is_drawn_below_it_m3():
    assert "n0: no live worker" in drawn(a_job(a_node("n0", "dispatched")), held_up=("n0: no live worker",))


def test_what_handlers_say_is_never_markup_m3():
    node = a_node("n0", "failed", error_message="[red]:smile: not markup[/red]")

    assert "[red]:smile: not markup[/red]" in drawn(a_job(node))


def test_between_two_looks_the_clock_goes_on_m3():
    detail = a_job(a_node("n0", "running", dispatched_at=NOW), seconds=10)

    assert "13.0 s" in drawn(detail.later(3))
    assert detail.model_copy(update={"is_over": True}).later(3).seconds == 10


def test_lines_tell_changes_once_and_counts_once_a_second_m3():
    said = []
    lines = Lines(said.append, heartbeat_seconds=60)

    lines.show(a_job(a_fan_out()))
    lines.show(a_job(a_fan_out()), ("no worker",))
    lines.show(a_job(a_fan_out(done=48, waiting=39)), ("no worker",))
    ended = a_fan_out("completed", done=98, running=0, retrying=0, waiting=0)
    lines.show(a_job(ended, status="completed", seconds=2))

    assert [line.split("s  ", 1)[1] for line in said] == [
        "spread: running, 38/100 done, 8 running, 3 retrying, 49 waiting, 2 failed",
        "job running",
        "no worker",
        "spread: completed, 98/100 done, 2 failed",
        "job completed",
    ]


A_FAILED_JOB = JobLine(
    job_id=JOB_ID, workflow_id="a_workflow_with_a_long_name", status="partial_success", created_at=NOW, completed_at=NOW,
    error_message="it broke\nbadly",
)  # fmt: skip


def test_a_list_of_jobs_shows_everything_where_there_is_room_m3():
    row = listed(A_FAILED_JOB, width=200)[1].split()

    assert row == [
        JOB_ID, "a_workflow_with_a_long_name", "!", "partial", "success", "2026-01-01", "00:00:00", "3", "h", "0.0",
        "it", "broke",
    ]  # fmt: skip


def test_a_list_of_jobs_keeps_ids_whole_where_it_is_narrow_m3():
    for width in (120, 100, 80, 60, 20):
        first = listed(A_FAILED_JOB, width=width)[1]

        assert JOB_ID in first
        assert "partial success" in first

    assert max(map(len, listed(A_FAILED_JOB, width=80))) <= 80
