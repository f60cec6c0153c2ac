"""The jobs that an instance owns, as it holds them in memory."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from dagmaster.database.ledger.protocol import UPDATES_LIMIT, Claim, LoadedJob, StepScope
from dagmaster.errors import DagmasterError, Unavailable, place_of
from dagmaster.jobs.rendering import Key
from dagmaster.jobs.routing import DeferredWork
from dagmaster.jobs.view import JobView, is_failing, rerunnable_children
from dagmaster.observe.redaction import redact
from dagmaster.workflows.graph import Graph, build

GRAPHS_KEPT = 256
FENCED = "fenced: this instance no longer owns the job"  # the message in the log
# After this many failed attempts in a row to advance a job, it fails. A job whose statements only take too long gets
# more attempts, because the server may be slow for another reason.
ATTEMPTS = 5
STATEMENT_ATTEMPTS = 20


@dataclass(slots=True)
class Owned:
    """A job that this instance owns, unless it was fenced in the meantime."""

    claim: Claim
    view: JobView | None = None  # None: to be read again before the next decision
    sequence: int = 0  # the last event in the view
    checks_all_nodes: bool = True
    is_failing: bool = False
    failures: int = 0
    set_aside_until: float = 0.0
    queue: str | None = None  # the queue of its last task, if that step created one task
    claimed_at: float = 0.0
    unroutable: frozenset[DeferredWork] = frozenset()  # deferred work whose nodes fail in the next decision
    refused_sums: dict[str, DagmasterError] = field(default_factory=dict)
    traceparent: str | None = None  # of its submission
    traced_steps: int = 0
    rendered: dict[Key, Any] = field(default_factory=dict)  # the outcomes of slow templates, or RENDERING

    def keep(self, job: LoadedJob, graph: Graph) -> None:
        """Take the current state of the job from its rows, which were just read."""
        self.view = replace(job.view(graph), refused_sums=self.refused_sums)
        self.sequence = job.last_sequence
        self.traceparent = job.traceparent
        self.checks_all_nodes = True
        self.is_failing = is_failing(self.view)

    def is_last_attempt(self, error: Exception) -> bool:
        """Whether this error ends the last attempt to advance the job."""
        return self.failures >= (STATEMENT_ATTEMPTS if isinstance(error, Unavailable) else ATTEMPTS)


def failure_of(error: Exception) -> str:
    """Why a job could not be advanced. The text of an unexpected error may contain values, so it is left out."""
    if isinstance(error, DagmasterError):
        return f"the job could not be advanced: {redact(str(error))}"
    return f"the job could not be advanced: {type(error).__qualname__} in {place_of(error)}"


def scope_of(batch: Iterable[Owned], overdue: frozenset[UUID], started: frozenset[UUID]) -> StepScope:
    """The updates that a step with these jobs has to read in addition to reports."""
    failing, ending, wake = set[UUID](), set[UUID](), dict[tuple[UUID, str], int]()
    for owned in batch:
        job_id, view = owned.claim.job_id, owned.view
        if view is None:
            continue
        if owned.is_failing:
            failing.add(job_id)
            if view.stopping or view.graph.workflow.fail_fast:
                ending.add(job_id)
        counts = rerunnable_children(view, UPDATES_LIMIT, unlimited=owned.is_failing)
        wake |= {(job_id, fan_out): count for fan_out, count in counts.items()}
    return StepScope(overdue, started, withdraw=frozenset(failing), stop_running=frozenset(ending), wake=wake)


class GraphCache:
    """Graphs by the hash of their definition, which never changes."""

    def __init__(self) -> None:
        self._graphs: dict[str, Graph] = {}

    def of(self, job: LoadedJob) -> Graph:
        graph = self._graphs.get(job.definition_hash)
        if graph is None:
            if len(self._graphs) >= GRAPHS_KEPT:
                self._graphs.pop(next(iter(self._graphs)))
            graph = self._graphs[job.definition_hash] = build(job.workflow)
        return graph
