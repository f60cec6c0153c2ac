"""Stay with a job until it is over: silently, with a live picture, or line by line.

Ctrl-C only ends the watching. A database that goes away for a while is waited for: the job outlives it too.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any, Protocol, TypeVar
from uuid import UUID

from dagmaster.cli.command import State
from dagmaster.database.reads import NodeLine, Reads, Snapshot
from dagmaster.errors import Unavailable
from dagmaster.jobs.model import Job
from dagmaster.jobs.states import JOB_TERMINAL, JobStatus
from dagmaster.workflows.graph import Graph, build

T = TypeVar("T")
REFRESH_SECONDS = 0.25
OUTAGE_PATIENCE_SECONDS = 60.0
MOST_FAILURES_SHOWN = 5


class Display(Protocol):
    def show(self, snapshot: Snapshot) -> None: ...

    def close(self) -> None: ...


def follow(state: State, job_id: UUID, *, live: bool, is_outcome_wanted: bool = True) -> int:
    """Wait for the end of a job and tell it; the answer is the exit code."""
    try:
        return asyncio.run(_follow(state, job_id, live=live, is_outcome_wanted=is_outcome_wanted))
    except KeyboardInterrupt:
        say_detached(state, job_id)
        return 0


def say_detached(state: State, job_id: UUID) -> None:
    again = f"dagmaster jobs watch {job_id}"
    if state.json:
        state.emit({"job_id": str(job_id), "status": "detached", "watch": again}, line=True)
    else:
        state.note(f"\ndetached: the job goes on; watch it with: {again}")


async def _follow(state: State, job_id: UUID, *, live: bool, is_outcome_wanted: bool) -> int:
    async with Reads(state.dsn, "watch") as reads:
        patience = Patience(state)
        if live:
            await watch(state, reads, job_id, patience)
        else:
            await _warn_if_nobody_works(state, reads)
            await _wait(reads, job_id, patience)
        outcome = await Outcome.read(reads, job_id)
    if is_outcome_wanted:
        tell(state, outcome)
    return 0 if outcome.job.status is JobStatus.COMPLETED else 1


async def _wait(reads: Reads, job_id: UUID, patience: "Patience") -> None:
    pause = 0.02
    while await patience.with_(lambda: reads.outcome(job_id)) not in JOB_TERMINAL:
        await asyncio.sleep(pause)
        pause = min(REFRESH_SECONDS, pause * 1.5)


async def watch(
    state: State,
    reads: Reads,
    job_id: UUID,
    patience: "Patience",
    *,
    on_tick: Callable[[], None] = lambda: None,
    heartbeat_seconds: float = 30.0,
) -> Snapshot:
    """Show a job until it is over; the last snapshot is the answer."""
    _, workflow = await reads.show_job(job_id)
    graph = build(workflow)
    await _warn_if_nobody_works(state, reads)
    display = _display(state, job_id, graph, heartbeat_seconds)
    try:
        while True:
            snapshot = await patience.with_(lambda: reads.watch_job(job_id, graph.order))
            display.show(snapshot)
            if snapshot.is_over:
                return snapshot
            on_tick()
            await asyncio.sleep(REFRESH_SECONDS)
    finally:
        display.close()


def _display(state: State, job_id: UUID, graph: Graph, heartbeat_seconds: float) -> Display:
    from dagmaster.cli.live import JsonLines, Lines, Picture

    if state.json:
        return JsonLines(state, job_id)
    if sys.stdout.isatty():
        return Picture(state.console, job_id, graph)
    return Lines(state.say, graph, heartbeat_seconds)


class Patience:
    """Ask again while the database is away, up to a limit, and say so once."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._since: float | None = None

    async def with_(self, ask: Callable[[], Awaitable[T]]) -> T:
        loop = asyncio.get_running_loop()
        while True:
            try:
                answer = await ask()
            except Unavailable as error:
                if self._since is None:
                    self._since = loop.time()
                    self._state.note(f"{error.message}; waiting for it")
                if loop.time() - self._since > OUTAGE_PATIENCE_SECONDS:
                    raise
                await asyncio.sleep(0.5)
            else:
                self._since = None
                return answer


async def _warn_if_nobody_works(state: State, reads: Reads) -> None:
    """A job without anyone to run it waits for ever; the person should know."""
    roles = {instance.role for instance in await reads.live_instances()}
    for role in ("orchestrator", "worker"):
        if role not in roles:
            state.note(f"note: no {role} is alive; the job waits until one is (`dagmaster {role}`, or `dagmaster up`)")


class Outcome:
    """How a job ended: its row, what failed, and the first of its failed children."""

    def __init__(self, job: Job, failed: list[NodeLine]) -> None:
        self.job = job
        self.failed = failed

    @classmethod
    async def read(cls, reads: Reads, job_id: UUID) -> "Outcome":
        job, workflow = await reads.show_job(job_id)
        if job.status is JobStatus.COMPLETED:
            return cls(job, [])
        snapshot = await reads.watch_job(job_id, build(workflow).order)
        return cls(job, await failures(reads, job_id, snapshot))

    def public(self) -> dict[str, Any]:
        took = (self.job.completed_at or self.job.updated_at) - self.job.created_at
        return {
            "job_id": str(self.job.job_id),
            "workflow_id": self.job.workflow_id,
            "status": self.job.status,
            "seconds": round(took.total_seconds(), 3),
            "result": self.job.result_data,
            "error": self.job.error_message,
            "failed_nodes": [failure_facts(node) for node in self.failed],
        }


async def failures(reads: Reads, job_id: UUID, snapshot: Snapshot) -> list[NodeLine]:
    """Failed nodes, and for each fan_out with failed children the first few of them."""
    failed: list[NodeLine] = []
    for node in snapshot.nodes:
        if node.status == "failed":
            failed.append(node)
        if node.failed_count:
            failed += await reads.page_children(job_id, node.node_id, limit=MOST_FAILURES_SHOWN, status="failed")
    return failed


def failure_facts(node: NodeLine) -> dict[str, Any]:
    facts = asdict(node)
    return {name: facts[name] for name in ("node_id", "status", "label", "error_message", "attempt", "max_retries")}


def tell(state: State, outcome: Outcome) -> None:
    from dagmaster.cli.command import as_json

    if state.json:
        state.emit(outcome.public(), line=True)
        return
    facts = outcome.public()
    if outcome.job.status is JobStatus.COMPLETED:
        state.say(as_json(facts["result"]))
        state.note(f"completed in {facts['seconds']:.2f} s")
        return
    state.note(f"{outcome.job.status} after {facts['seconds']:.2f} s: {facts['error'] or 'no reason was recorded'}")
    for line in failure_lines(outcome.failed):
        state.note(line)
    state.note(f"look closer with: dagmaster jobs show {outcome.job.job_id}")
    if facts["result"] is not None:
        state.say(as_json(facts["result"]))


def failure_lines(failed: list[NodeLine]) -> list[str]:
    return [
        f"  {node.node_id}{f' ({node.label})' if node.label else ''}, attempt {node.attempt}: {node.error_message}"
        for node in failed
    ]
