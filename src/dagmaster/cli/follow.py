"""Stay with a job until it is over: silently, with a live picture, or line by line.

Ctrl-C only ends the watching. A platform that goes away for a while is waited for: the job outlives it too.
"""

import sys
import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from dagmaster.cli.answers import Job, JobDetail, JobLine, Json, Node, Waiting, read, read_all
from dagmaster.cli.client import Client
from dagmaster.cli.command import State, end_the_line
from dagmaster.cli.feed import Feed, Patience
from dagmaster.errors import Unavailable

T = TypeVar("T")
MOST_FAILURES_SHOWN = 5
_TICK_SECONDS = 0.25
_LOOK_ANYWAY_SECONDS = 2.0  # what handlers say of their progress is no event
_QUIET_SECONDS = 3.0
_ASK_WHY_SECONDS = 5.0
_REMEDIES = {
    "no_orchestrator": "start one with `dagmaster orchestrator`",
    "no_worker": "start one with `dagmaster worker --queues {queue}`",
    "queue_paused": "open it with `dagmaster queues resume {queue}`",
}


class Display(Protocol):
    def show(self, detail: JobDetail, held_up: Sequence[str] = ()) -> None: ...

    def close(self) -> None: ...


def follow(state: State, job_id: str, *, live: bool) -> int:
    """Wait for the end of a job and tell it; the answer is the exit code."""
    try:
        patience = Patience(state, job_id)
        if live:
            watch(state, job_id, patience)
        else:
            _wait(state, job_id, patience)
        outcome = patiently(patience, lambda: Outcome.ask(state.client, job_id))
    except KeyboardInterrupt:
        say_detached(state, job_id)
        return 0
    tell(state, outcome)
    return 0 if outcome.status == "completed" else 1


def say_detached(state: State, job_id: str) -> None:
    again = f"dagmaster jobs watch {job_id}"
    if state.json:
        state.emit({"job_id": job_id, "status": "detached", "watch": again}, line=True)
        return
    end_the_line()
    state.note(f"detached: the job goes on; watch it with: {again}")


def patiently(patience: Patience, ask: Callable[[], T]) -> T:
    while True:
        try:
            answer = ask()
        except Unavailable as error:
            patience.bear(error)
        else:
            patience.relieved()
            return answer


def _wait(state: State, job_id: str, patience: Patience) -> None:
    """Ask less often the longer it takes: a long job is noticed a twentieth of its time later, at most two seconds."""
    begun = time.monotonic()
    told: list[str] = []
    why = HoldUps(state.client, job_id)
    while not patiently(patience, lambda: read(JobLine, state.client.job_line(job_id))).is_over:
        waited = time.monotonic() - begun
        for line in why.look(is_quiet=waited > _QUIET_SECONDS):
            if line not in told:
                told.append(line)
                state.note(f"note: {line}")
        time.sleep(min(2.0, max(0.02, waited / 20)))


def watch(
    state: State,
    job_id: str,
    patience: Patience,
    *,
    on_tick: Callable[[], None] = lambda: None,
    heartbeat_seconds: float = 30.0,
) -> JobDetail:
    """Show a job until it is over; how it was then is the answer."""
    client = state.client
    detail = patiently(patience, lambda: read(JobDetail, client.job(job_id)))
    asked_at = changed_at = time.monotonic()
    display, why = _display(state, heartbeat_seconds), HoldUps(client, job_id)
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
                detail = patiently(patience, lambda: read(JobDetail, client.job(job_id)))
                asked_at = time.monotonic()
                changed_at = asked_at if has_news else changed_at
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
        self._asked_at = 0.0
        self._lines: list[str] = []

    def look(self, *, is_quiet: bool) -> list[str]:
        now = time.monotonic()
        if not is_quiet:
            self._lines = []
        elif now - self._asked_at > _ASK_WHY_SECONDS:
            self._asked_at = now
            try:
                self._lines = hold_ups(read(Waiting, self._client.waiting(self._job_id)))
            except Unavailable:
                self._lines = []  # whoever asks for the job itself tells it
        return self._lines


def hold_ups(waiting: Waiting) -> list[str]:
    """Each reason that time alone does not mend, once, with what to do about it."""
    held: dict[str, list[str]] = {}
    for node in waiting.nodes:
        for reason in node.reasons:
            if remedy := _REMEDIES.get(reason.code):
                line = f"{reason.detail}; {remedy.format(queue=reason.queue)}"
                held.setdefault(line, []).append(node.node_id)
    return [f"{', '.join(nodes[:3])}{', …' if len(nodes) > 3 else ''}: {line}" for line, nodes in held.items()]


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
    """Failed nodes, and for each fan_out with failed children the first few of them."""
    failed: list[Json] = []
    for raw, node in zip(answer["nodes"], read(JobDetail, answer).nodes, strict=True):
        if node.status == "failed":
            failed.append(raw)
        if node.children and node.children.failed:
            children, _ = client.nodes(
                answer["job"]["job_id"], MOST_FAILURES_SHOWN, parent=raw["node_id"], status="failed"
            )
            failed += children
    return failed


def failure_facts(node: Json) -> Json:
    return {name: node.get(name) for name in ("node_id", "status", "label", "error_message", "attempt", "max_retries")}


def tell(state: State, outcome: Outcome) -> None:
    if state.json:
        state.emit(outcome.public(), line=True)
        return
    job, seconds = outcome.detail.job, outcome.detail.seconds
    if outcome.status == "completed":
        state.emit(outcome.result)
        state.note(f"completed in {seconds:.2f} s")
        return
    word = outcome.status.replace("_", " ")
    state.note(f"{word} after {seconds:.2f} s: {job.error_message or 'no reason was recorded'}")
    for line in failure_lines(outcome.failed):
        state.note(line)
    state.note(f"look closer with: dagmaster jobs show {job.job_id}")
    if remedy := remedy_for(job):
        state.note(remedy)
    if outcome.result is not None:
        state.emit(outcome.result)


def remedy_for(job: Job) -> str | None:
    """What helps a job that ended with something missing."""
    if not job.is_over or job.status == "completed":
        return None
    return f"run what is missing with: dagmaster jobs resume {job.job_id} (what that is: --dry-run)"


def failure_lines(failed: list[Node]) -> list[str]:
    return [
        f"  {node.node_id}{f' ({node.label})' if node.label else ''}, attempt {node.attempt}: {node.error_message}"
        for node in failed
    ]
