"""Wait for the end of a job: silently, with a live display, or line by line.

Ctrl-C only stops watching; the exit code then says that the outcome is unknown. If the platform becomes unavailable,
the command tries to reconnect, because the job continues when the platform does.
"""

import sys
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from dagmaster.cli.command import INTERRUPTED, State, end_the_line
from dagmaster.client.blockers import Blockers
from dagmaster.client.escaping import one_line
from dagmaster.client.feed import Feed, Reconnection
from dagmaster.client.models.base import read
from dagmaster.client.models.jobs import JobDetail, JobSummary, PublicJob
from dagmaster.client.models.nodes import ErrorFacts, FailedNode, NodeSummary
from dagmaster.client.outcome import JobOutcome
from dagmaster.quantities import counted

_TICK_SECONDS = 0.25
_POLL_SECONDS = 2.0  # if the stream of events signals no change: it may be interrupted
_QUIET_SECONDS = 2.0


class Display(Protocol):
    def show(self, detail: JobDetail, blockers: Sequence[str] = ()) -> None: ...

    def close(self) -> None: ...


def follow(state: State, job_id: str, *, live: bool) -> int:
    """Wait for the end of a job and print the outcome; returns the exit code."""
    try:
        reconnection = Reconnection(state.note, job_id)
        if live:
            watch(state, job_id, reconnection)
        else:
            _wait(state, job_id, reconnection)
        outcome = reconnection.call(lambda: JobOutcome.fetch(state.client, job_id))
    except KeyboardInterrupt:
        return detached(state, job_id)
    print_outcome(state, outcome)
    return 0 if outcome.status == "completed" else 1


def detached(state: State, job_id: str, *, state_text: str = "the job continues") -> int:
    """Say how to watch the job again; returns the exit code."""
    command = f"dagmaster jobs watch {job_id}"
    if state.json:
        state.emit({"job_id": job_id, "status": "detached", "watch": command}, line=True)
        return INTERRUPTED
    end_the_line()
    # On its own line, because a terminal would break the id.
    state.note(f"detached: {state_text}; watch it with:\n  {command}")
    return INTERRUPTED


def _wait(state: State, job_id: str, reconnection: Reconnection) -> None:
    """Poll less often the longer the job takes: the interval is a twentieth of the time so far, at most two seconds."""
    started = time.monotonic()
    printed: list[str] = []
    blockers = Blockers(state.client, job_id)
    while not reconnection.call(lambda: read(JobSummary, state.client.job_summary(job_id))).is_over:
        waited = time.monotonic() - started
        for line in blockers.read(is_quiet=waited > _QUIET_SECONDS):
            if line not in printed:
                printed.append(line)
                state.note(f"note: {line}")
        time.sleep(min(2.0, max(0.02, waited / 20)))


def watch(
    state: State,
    job_id: str,
    reconnection: Reconnection,
    *,
    on_tick: Callable[[], None] = lambda: None,
    heartbeat_seconds: float = 30.0,
    display: Display | None = None,
) -> JobDetail:
    """Show a job until it has ended; returns its last state."""
    client = state.client
    detail = reconnection.call(lambda: read(JobDetail, client.job(job_id)))
    fetched_at = changed_at = time.monotonic()
    display, blockers = display or _display(state, heartbeat_seconds), Blockers(client, job_id)
    feed = Feed(client, job_id, detail.job.last_sequence)
    try:
        while True:
            now = time.monotonic()
            display.show(detail.later(now - fetched_at), blockers.read(is_quiet=now - changed_at > _QUIET_SECONDS))
            if detail.is_over:
                return detail
            on_tick()
            has_events = _wait_for_events(feed, now)
            if has_events or time.monotonic() - fetched_at > _POLL_SECONDS:
                before, detail = detail, reconnection.call(lambda: read(JobDetail, client.job(job_id)))
                fetched_at = time.monotonic()
                changed_at = changed_at if _state_of(detail) == _state_of(before) else fetched_at
    finally:
        feed.close()
        display.close()


def _state_of(detail: JobDetail) -> object:
    """Everything that changes only when the job advances: heartbeats, running times and estimates do not count."""
    job = detail.job.model_dump(exclude={"owner_heartbeat_at", "updated_at", "version"}, warnings=False)
    stored = {*NodeSummary.model_fields, "state", "children"}
    return job, [node.model_dump(include=stored, warnings=False) for node in detail.nodes]


def _wait_for_events(feed: Feed, drawn_at: float) -> bool:
    """Wait for events, up to a tick; returns whether there are any. It returns half a tick after `drawn_at` or later:
    a job with many events is not redrawn for each of them."""
    has_events = feed.wait(_TICK_SECONDS)
    time.sleep(max(0.0, drawn_at + _TICK_SECONDS / 2 - time.monotonic()))
    return has_events


def _display(state: State, heartbeat_seconds: float) -> Display:
    from dagmaster.cli.live import JsonLines, Lines, LiveTable

    if state.json:
        return JsonLines(state)
    if sys.stdout.isatty():
        return LiveTable(state.console)
    return Lines(state.say, heartbeat_seconds)


def print_outcome(state: State, outcome: JobOutcome) -> None:
    if state.json:
        state.emit(outcome.public(), line=True)
        return
    job = outcome.detail.job
    if outcome.status == "completed":
        state.emit(outcome.result)
        state.note(f"completed {_duration_text(outcome.detail, 'in')}")
        return
    word = outcome.status.replace("_", " ")
    state.note(f"{word} {_duration_text(outcome.detail, 'after')}: {reason_of(outcome.detail)}")
    for line in failure_lines(outcome.failed):
        state.note(line)
    state.note(f"details: dagmaster jobs show {job.job_id}")
    if remedy := remedy_for(job):
        state.note(remedy)
    if outcome.result is not None:
        state.emit(outcome.result)


def _duration_text(detail: JobDetail, word: str) -> str:
    """For a resumed job, the time since its submission: it includes pauses, so it is not called a duration."""
    if resumed := detail.job.resume_count:
        return f"{detail.seconds:.2f} s after its submission, resumed {counted(resumed, 'time')}"
    return f"{word} {detail.seconds:.2f} s"


def reason_of(detail: JobDetail) -> str:
    """Why a job did not complete."""
    job = detail.job
    if job.status == "cancelled" and job.stop_reason:
        return job.stop_reason
    if job.error_message:
        return job.error_message
    missing = [
        f"{node.importance} node '{node.node_id}' {node.status}{f': {one_line(node.error)}' if node.error else ''}"
        for node in (detail.outcomes.secondary if detail.outcomes else [])
    ]
    return "; ".join(missing) or "no reason was recorded"


def remedy_for(job: PublicJob) -> str | None:
    """What to do about a job that did not complete."""
    if not job.is_over or job.status == "completed":
        return None
    return f"run the missing nodes with: dagmaster jobs resume {job.job_id} (--dry-run lists them)"


def failure_lines(failed: list[FailedNode]) -> list[str]:
    """The failed nodes, with the hints of their handlers."""
    lines = []
    for node in failed:
        label, attempt = f" ({node.label})" if node.label else "", f", attempt {node.attempt}" if node.attempt else ""
        lines.append(f"  {node.node_id}{label}{attempt}: {fault_text(node.error, node.error_message)}")
        if node.error and node.error.hint:
            lines.append(f"    hint: {node.error.hint}")
    return lines


def fault_text(fault: ErrorFacts | None, message: str | None) -> str:
    text = (fault.message if fault else None) or message or "no reason was recorded"
    return f"{text} [{fault.code}]" if fault and fault.code else text
