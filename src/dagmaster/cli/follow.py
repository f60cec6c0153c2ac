"""Stay with a job until it is over: silently, with a live picture, or line by line.

Ctrl-C only ends the watching; the exit code then says that nothing is known of the outcome. A platform that goes away for a
while is waited for: the job outlives it too.
"""

import sys
import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from dagmaster.cli.command import INTERRUPTED, State, end_the_line
from dagmaster.cli.printable import counted, one_line
from dagmaster.client.answers import Fault, Job, JobDetail, JobLine, Json, Node, Reason, Waiting, read, read_all
from dagmaster.client.client import Client
from dagmaster.client.feed import Feed, Reconnection
from dagmaster.errors import Unavailable

T = TypeVar("T")
MOST_FAILURES_SHOWN = 5
_MOST_FAULTS_ASKED = 3
_TICK_SECONDS = 0.25
_LOOK_ANYWAY_SECONDS = 2.0  # what handlers say of their progress is no event
_QUIET_SECONDS = 2.0
_ASK_WHY_SECONDS = 5.0
_REMEDIES = {
    "no_orchestrator": "start one with `dagmaster orchestrator`",
    "no_worker": "start one with `dagmaster worker --queues {queue}`",
    "queue_paused": "open it with `dagmaster queues resume {queue}`",
    "queue_limited": "raise it with `dagmaster queues limit {queue} N`",
}


class Display(Protocol):
    def show(self, detail: JobDetail, held_up: Sequence[str] = ()) -> None: ...

    def close(self) -> None: ...


def follow(state: State, job_id: str, *, live: bool) -> int:
    """Wait for the end of a job and tell it; the answer is the exit code."""
    try:
        reconnection = Reconnection(state.note, job_id)
        if live:
            watch(state, job_id, reconnection)
        else:
            _wait(state, job_id, reconnection)
        outcome = patiently(reconnection, lambda: Outcome.ask(state.client, job_id))
    except KeyboardInterrupt:
        return detached(state, job_id)
    tell(state, outcome)
    return 0 if outcome.status == "completed" else 1


def detached(state: State, job_id: str, *, what: str = "the job goes on") -> int:
    """Say that someone left before the end; the answer is the exit code."""
    again = f"dagmaster jobs watch {job_id}"
    if state.json:
        state.emit({"job_id": job_id, "status": "detached", "watch": again}, line=True)
        return INTERRUPTED
    end_the_line()
    # On a line of its own: a terminal would break the id.
    state.note(f"detached: {what}; watch it with:\n  {again}")
    return INTERRUPTED


def patiently(reconnection: Reconnection, ask: Callable[[], T]) -> T:
    while True:
        try:
            answer = ask()
        except Unavailable as error:
            reconnection.wait(error)
        else:
            reconnection.succeeded()
            return answer


def _wait(state: State, job_id: str, reconnection: Reconnection) -> None:
    """Ask less often the longer it takes: a long job is noticed a twentieth of its time later, at most two seconds."""
    begun = time.monotonic()
    told: list[str] = []
    why = HoldUps(state.client, job_id)
    while not patiently(reconnection, lambda: read(JobLine, state.client.job_line(job_id))).is_over:
        waited = time.monotonic() - begun
        for line in why.look(is_quiet=waited > _QUIET_SECONDS):
            if line not in told:
                told.append(line)
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
    """Show a job until it is over; how it was then is the answer."""
    client = state.client
    detail = patiently(reconnection, lambda: read(JobDetail, client.job(job_id)))
    asked_at = changed_at = time.monotonic()
    display, why = display or _display(state, heartbeat_seconds), HoldUps(client, job_id)
    feed = Feed(client, job_id, detail.job.last_sequence)
    try:
        while True:
            now = time.monotonic()
            display.show(detail.later(now - asked_at), why.look(is_quiet=now - changed_at > _QUIET_SECONDS))
            if detail.is_over:
                return detail
            on_tick()
            has_news = _paced(feed, now)
            if has_news or time.monotonic() - asked_at > _LOOK_ANYWAY_SECONDS:
                before, detail = detail, patiently(reconnection, lambda: read(JobDetail, client.job(job_id)))
                asked_at = time.monotonic()
                changed_at = changed_at if (detail.job, detail.nodes) == (before.job, before.nodes) else asked_at
    finally:
        feed.close()
        display.close()


def _paced(feed: Feed, drawn_at: float) -> bool:
    """Whether something happened, a tick after the last drawing at the earliest: of a busy job not every event is drawn."""
    has_news = feed.wait(_TICK_SECONDS)
    rest = drawn_at + _TICK_SECONDS / 2 - time.monotonic()
    if rest > 0:
        time.sleep(rest)
    return has_news


def _display(state: State, heartbeat_seconds: float) -> Display:
    from dagmaster.cli.live import JsonLines, Lines, Picture

    if state.json:
        return JsonLines(state)
    if sys.stdout.isatty():
        return Picture(state.console)
    return Lines(state.say, heartbeat_seconds)


class HoldUps:
    """What keeps a job from going on until someone does something; asked for now and then while nothing happens."""

    def __init__(self, client: Client, job_id: str) -> None:
        self._client = client
        self._job_id = job_id
        self._asked_at: float | None = None
        self._lines: list[str] = []

    def look(self, *, is_quiet: bool) -> list[str]:
        now = time.monotonic()
        if not is_quiet:
            self._lines = []
        elif self._asked_at is None or now - self._asked_at > _ASK_WHY_SECONDS:
            self._asked_at = now
            try:
                self._lines = hold_ups(read(Waiting, self._client.waiting(self._job_id)))
            except Unavailable:
                self._lines = []  # whoever asks for the job itself tells it
        return self._lines


def hold_ups(waiting: Waiting) -> list[str]:
    """Each reason that comes from outside the job, once, with what to do about it."""
    held: dict[str, list[str]] = {}
    for node in waiting.nodes:
        for line in filter(None, map(_held_up, node.reasons)):
            held.setdefault(line, []).append(node.node_id)
    return [f"{', '.join(nodes[:3])}{', …' if len(nodes) > 3 else ''}: {line}" for line, nodes in held.items()]


def _held_up(reason: Reason) -> str | None:
    if remedy := _REMEDIES.get(reason.code):
        return f"{reason.detail}; {remedy.format(queue=reason.queue)}"
    if reason.code == "orphaned":
        return reason.detail
    if reason.code == "queued" and reason.count:
        return f"{counted(reason.count, 'task')} in front of it in queue {reason.queue}"
    return None


class Outcome:
    """How a job ended: what the platform says of it, what failed, and the first of its failed children."""

    def __init__(self, answer: Json, failed: list[Json]) -> None:
        self._job: Json = answer["job"]
        self._seconds = answer["seconds"]
        self._failed = failed
        self.detail = read(JobDetail, answer)
        self.failed = read_all(Node, failed)

    @classmethod
    def ask(cls, client: Client, job_id: str) -> "Outcome":
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


def failures(client: Client, answer: Json) -> list[Json]:
    """Failed nodes, and for each fan_out with failed children the first few of them; the first of all with the whole error."""
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


def _with_faults(client: Client, job_id: str, failed: list[Json]) -> list[Json]:
    """A list has messages only. What ran has more to say, and the first few are enough to know what is wrong."""
    asked = [node["node_id"] for node in failed if node.get("attempt")][:_MOST_FAULTS_ASKED]
    faults = {node_id: client.node(job_id, node_id)["node"].get("error") for node_id in asked}
    return [{**node, "error": _without_traceback(faults.get(node["node_id"]))} for node in failed]


def _without_traceback(fault: Json | None) -> Json | None:
    return {name: value for name, value in fault.items() if name != "traceback"} if fault else None


def failure_facts(node: Json) -> Json:
    names = ("node_id", "status", "label", "error_message", "error", "attempt", "max_retries")
    return {name: node.get(name) for name in names}


def tell(state: State, outcome: Outcome) -> None:
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
    state.note(f"look closer with: dagmaster jobs show {job.job_id}")
    if remedy := remedy_for(job):
        state.note(remedy)
    if outcome.result is not None:
        state.emit(outcome.result)


def _how_long(detail: JobDetail, word: str) -> str:
    """The time between an end and its resume is no work: it is not told as such."""
    if resumed := detail.job.resume_count:
        return f"{detail.seconds:.2f} s after its submission, resumed {counted(resumed, 'time')}"
    return f"{word} {detail.seconds:.2f} s"


def reason_of(detail: JobDetail) -> str:
    """Why a job ended with something missing."""
    job = detail.job
    if job.status == "cancelled" and job.stop:
        return job.stop
    if job.error_message:
        return job.error_message
    missing = [
        f"{node.importance} node '{node.node_id}' {node.status}{f': {one_line(node.error)}' if node.error else ''}"
        for node in (detail.outcomes.secondary if detail.outcomes else [])
    ]
    return "; ".join(missing) or "no reason was recorded"


def remedy_for(job: Job) -> str | None:
    """What helps a job that ended with something missing."""
    if not job.is_over or job.status == "completed":
        return None
    return f"run what is missing with: dagmaster jobs resume {job.job_id} (what that is: --dry-run)"


def failure_lines(failed: list[Node]) -> list[str]:
    """What failed, with what its handler advises."""
    lines = []
    for node in failed:
        label, attempt = f" ({node.label})" if node.label else "", f", attempt {node.attempt}" if node.attempt else ""
        lines.append(f"  {node.node_id}{label}{attempt}: {fault_text(node.error, node.error_message)}")
        if node.error and node.error.hint:
            lines.append(f"    hint: {node.error.hint}")
    return lines


def fault_text(fault: Fault | None, message: str | None) -> str:
    told = (fault.message if fault else None) or message or "no reason was recorded"
    return f"{told} [{fault.code}]" if fault and fault.code else told
