"""Wait for the end of a job: silently, with a live display, or line by line.

Ctrl-C only stops watching; the exit code then says that the outcome is unknown. If the platform becomes unavailable,
the command tries to reconnect, because the job continues when the platform does.
"""

import sys
import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from dagmaster.cli.command import INTERRUPTED, State, end_the_line
from dagmaster.cli.printable import one_line
from dagmaster.client.feed import Feed, Reconnection
from dagmaster.client.json_client import JsonClient
from dagmaster.client.models.base import Json, read, read_all
from dagmaster.client.models.jobs import JobDetail, JobSummary, PublicJob
from dagmaster.client.models.nodes import ErrorFacts, FailedNode, WaitingNodes, WaitReason
from dagmaster.errors import Unavailable
from dagmaster.quantities import counted

T = TypeVar("T")
MOST_FAILURES_SHOWN = 5
_MOST_FAULTS = 3
_TICK_SECONDS = 0.25
_POLL_SECONDS = 2.0  # the progress that handlers report is not an event
_QUIET_SECONDS = 2.0
_WAITING_SECONDS = 5.0
_REMEDIES = {
    "no_orchestrator": "start one with `dagmaster orchestrator`",
    "no_worker": "start one with `dagmaster worker --queues {queue}`",
    "unknown_handler": "start an orchestrator and a worker that have its package, with its queue in KNOWN_QUEUES",
    "queue_paused": "resume it with `dagmaster queues resume {queue}`",
    "queue_limited": "raise the limit with `dagmaster queues limit {queue} N`",
}


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
        outcome = patiently(reconnection, lambda: WatchOutcome.ask(state.client, job_id))
    except KeyboardInterrupt:
        return detached(state, job_id)
    print_outcome(state, outcome)
    return 0 if outcome.status == "completed" else 1


def detached(state: State, job_id: str, *, what: str = "the job continues") -> int:
    """Say how to watch the job again; returns the exit code."""
    command = f"dagmaster jobs watch {job_id}"
    if state.json:
        state.emit({"job_id": job_id, "status": "detached", "watch": command}, line=True)
        return INTERRUPTED
    end_the_line()
    # On its own line, because a terminal would break the id.
    state.note(f"detached: {what}; watch it with:\n  {command}")
    return INTERRUPTED


def patiently(reconnection: Reconnection, ask: Callable[[], T]) -> T:
    """The answer, as soon as the platform is available."""
    while True:
        try:
            answer = ask()
        except Unavailable as error:
            reconnection.wait(error)
        else:
            reconnection.succeeded()
            return answer


def _wait(state: State, job_id: str, reconnection: Reconnection) -> None:
    """Poll less often the longer it takes: the end is noticed after a twentieth of the time, at most two seconds."""
    begun = time.monotonic()
    printed: list[str] = []
    blockers = Blockers(state.client, job_id)
    while not patiently(reconnection, lambda: read(JobSummary, state.client.job_line(job_id))).is_over:
        waited = time.monotonic() - begun
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
    detail = patiently(reconnection, lambda: read(JobDetail, client.job(job_id)))
    asked_at = changed_at = time.monotonic()
    display, blockers = display or _display(state, heartbeat_seconds), Blockers(client, job_id)
    feed = Feed(client, job_id, detail.job.last_sequence)
    try:
        while True:
            now = time.monotonic()
            display.show(detail.later(now - asked_at), blockers.read(is_quiet=now - changed_at > _QUIET_SECONDS))
            if detail.is_over:
                return detail
            on_tick()
            has_news = _paced(feed, now)
            if has_news or time.monotonic() - asked_at > _POLL_SECONDS:
                before, detail = detail, patiently(reconnection, lambda: read(JobDetail, client.job(job_id)))
                asked_at = time.monotonic()
                changed_at = changed_at if _state_of(detail) == _state_of(before) else asked_at
    finally:
        feed.close()
        display.close()


def _state_of(detail: JobDetail) -> object:
    """Everything that changes only when the job advances: heartbeats and running times do not count."""
    job = detail.job.model_dump(exclude={"owner_heartbeat_at", "updated_at", "version"}, warnings=False)
    return job, [node.model_dump(exclude={"seconds"}, warnings=False) for node in detail.nodes]


def _paced(feed: Feed, drawn_at: float) -> bool:
    """Whether there are new events. Returns half a tick after the last drawing at the earliest: a busy job has many."""
    has_news = feed.wait(_TICK_SECONDS)
    time.sleep(max(0.0, drawn_at + _TICK_SECONDS / 2 - time.monotonic()))
    return has_news


def _display(state: State, heartbeat_seconds: float) -> Display:
    from dagmaster.cli.live import JsonLines, Lines, LiveTable

    if state.json:
        return JsonLines(state)
    if sys.stdout.isatty():
        return LiveTable(state.console)
    return Lines(state.say, heartbeat_seconds)


class Blockers:
    """What blocks a job until a person acts. Asked for from time to time while the job does not change."""

    def __init__(self, client: JsonClient, job_id: str) -> None:
        self._client = client
        self._job_id = job_id
        self._asked_at: float | None = None
        self._lines: list[str] = []

    def read(self, *, is_quiet: bool) -> list[str]:
        now = time.monotonic()
        if not is_quiet:
            self._lines = []
        elif self._asked_at is None or now - self._asked_at > _WAITING_SECONDS:
            self._asked_at = now
            try:
                self._lines = blockers_of(read(WaitingNodes, self._client.waiting(self._job_id)))
            except Unavailable:
                self._lines = []  # the request for the job itself reports it
        return self._lines


def blockers_of(waiting: WaitingNodes) -> list[str]:
    """Each reason outside the job, once, with its remedy."""
    blocked: dict[str, list[str]] = {}
    for node in waiting.nodes:
        for line in filter(None, map(_blocker, node.reasons)):
            blocked.setdefault(line, []).append(node.node_id)
    return [f"{', '.join(nodes[:3])}{', …' if len(nodes) > 3 else ''}: {line}" for line, nodes in blocked.items()]


def _blocker(reason: WaitReason) -> str | None:
    if remedy := _REMEDIES.get(reason.code):
        return f"{reason.detail}; {remedy.format(queue=reason.queue)}"
    if reason.code == "orphaned":
        return reason.detail
    if reason.code == "queued" and reason.count:
        return f"{counted(reason.count, 'task')} ahead of it in queue {reason.queue}"
    return None


class WatchOutcome:
    """How a job ended: its record, its failed nodes, and the first of the failed children."""

    def __init__(self, answer: Json, failed: list[Json]) -> None:
        self._job: Json = answer["job"]
        self._seconds = answer["seconds"]
        self._failed = failed
        self.detail = read(JobDetail, answer)
        self.failed = read_all(FailedNode, failed)

    @classmethod
    def ask(cls, client: JsonClient, job_id: str) -> "WatchOutcome":
        answer = client.job(job_id)
        detail = read(JobDetail, answer)
        return cls(answer, [] if detail.job.status == "completed" else failures(client, answer))

    @property
    def status(self) -> str:
        return self.detail.job.status

    @property
    def result(self) -> object:
        return self._job.get("result_data")

    def public(self) -> Json:
        return {
            "job_id": self._job["job_id"],
            "workflow_id": self._job["workflow_id"],
            "status": self._job["status"],
            "seconds": self._seconds,
            "result": self.result,
            "error": self._job.get("error_message"),
            "failed_nodes": [failure_facts(node) for node in self._failed],
        }


def failures(client: JsonClient, answer: Json) -> list[Json]:
    """Failed nodes, and the first failed children of each fan_out; the first few with their whole error."""
    failed: list[Json] = []
    for raw, node in zip(answer["nodes"], read(JobDetail, answer).nodes, strict=True):
        if node.status == "failed":
            failed.append(raw)
        if node.children and node.children.failed:
            children, _ = client.nodes(
                answer["job"]["job_id"], MOST_FAILURES_SHOWN, parent=raw["node_id"], status="failed"
            )
            failed += children
    return _with_faults(client, answer["job"]["job_id"], failed)


def _with_faults(client: JsonClient, job_id: str, failed: list[Json]) -> list[Json]:
    """Lists contain messages only. For the first few nodes, ask for the whole error."""
    node_ids = [node["node_id"] for node in failed if node.get("attempt")][:_MOST_FAULTS]
    faults = {node_id: client.node(job_id, node_id)["node"].get("error") for node_id in node_ids}
    return [{**node, "error": _without_traceback(faults.get(node["node_id"]))} for node in failed]


def _without_traceback(fault: Json | None) -> Json | None:
    return {name: value for name, value in fault.items() if name != "traceback"} if fault else None


def failure_facts(node: Json) -> Json:
    names = ("node_id", "status", "label", "error_message", "error", "attempt", "max_retries")
    return {name: node.get(name) for name in names}


def print_outcome(state: State, outcome: WatchOutcome) -> None:
    if state.json:
        state.emit(outcome.public(), line=True)
        return
    job = outcome.detail.job
    if outcome.status == "completed":
        state.emit(outcome.result)
        state.note(f"completed {_how_long(outcome.detail, 'in')}")
        return
    word = outcome.status.replace("_", " ")
    state.note(f"{word} {_how_long(outcome.detail, 'after')}: {reason_of(outcome.detail)}")
    for line in failure_lines(outcome.failed):
        state.note(line)
    state.note(f"details: dagmaster jobs show {job.job_id}")
    if remedy := remedy_for(job):
        state.note(remedy)
    if outcome.result is not None:
        state.emit(outcome.result)


def _how_long(detail: JobDetail, word: str) -> str:
    """The time between an end and a resume is not work, so it is not counted as duration."""
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
    return f"run what is missing with: dagmaster jobs resume {job.job_id} (--dry-run shows what that is)"


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
