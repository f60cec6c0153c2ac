"""What people do to jobs that exist: resume or retry one that has ended, cancel one that runs.

A job that has ended has no owner: a resume is one transaction of whoever is asked, and the next orchestrator that looks claims the
job. A job that runs has one: the request is written to its row, and the owner acts on it at its next look.
"""

from collections import Counter
from collections.abc import Callable
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dagmaster.database.ledger.protocol import Claim, Ledger, LoadedJob, no_such_job
from dagmaster.errors import Conflict
from dagmaster.jobs import rerun
from dagmaster.jobs.states import JOB_TERMINAL, JobStatus
from dagmaster.jobs.view import JobView, node_view
from dagmaster.workflows.graph import build


class Resumed(BaseModel):
    """What runs again, or would."""

    model_config = ConfigDict(frozen=True)

    job_id: UUID
    status: Literal["resumed", "dry_run"]
    nodes: tuple[str, ...] = Field(description="Nodes of the definition, in its order")
    children: dict[str, int] = Field(
        description="How many children of each fan_out run: those that failed or were cancelled, and those that were not made "
        "yet. A fan_out that reads its source again is not among them: how many it will have is not known"
    )
    resume_count: int


class Part(BaseModel):
    """What to run again: one of these."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    node: Annotated[str, Field(min_length=1, max_length=80, description="A node, or a child (NODE__INDEX)")] | None = (
        None
    )
    stage: Annotated[str, Field(min_length=1, max_length=64, description="A stage, by name or number")] | None = None
    failed_children: Annotated[str, Field(min_length=1, max_length=64, description="A fan_out")] | None = None

    @model_validator(mode="after")
    def _is_one(self) -> "Part":
        if [self.node, self.stage, self.failed_children].count(None) != 2:
            raise ValueError("name either a node, a stage, or a fan_out whose failed children are meant")
        return self


class Cancelling(BaseModel):
    model_config = ConfigDict(frozen=True)

    job_id: UUID
    status: Literal["cancelling", "cancelled"]
    is_new: bool


async def resume(
    ledger: Ledger, job_id: UUID, *, by: str | None = None, reason: str | None = None, is_dry_run: bool = False
) -> Resumed:
    """Let a job go on from what has succeeded. With `is_dry_run` only say what would run."""
    return await _run_again(ledger, job_id, rerun.resume, {"by": by, "why": reason}, is_dry_run)


async def retry(
    ledger: Ledger,
    job_id: UUID,
    part: Part,
    *,
    by: str | None = None,
    reason: str | None = None,
    is_dry_run: bool = False,
) -> Resumed:
    """Run a part of a job that has ended once more, with everything downstream of it."""
    named = part.model_dump(exclude_none=True)
    seen = await _find(ledger, job_id)
    has_completed = await _has_completed(ledger, seen, part.node)

    def choose(view: JobView) -> rerun.Rerun:
        return rerun.retry(view, **named, has_completed=has_completed)

    facts = {"by": by, "why": reason, "retry": named}
    return await _run_again(ledger, job_id, choose, facts, is_dry_run, resume_count=seen.resume_count)


async def _find(ledger: Ledger, job_id: UUID) -> LoadedJob:
    found = await ledger.load_jobs([Claim(job_id, job_id, 0)])
    if not found:
        raise no_such_job(job_id)
    return found[0]


async def _has_completed(ledger: Ledger, job: LoadedJob, child: str | None) -> bool:
    """Whether that is a child of a fan_out, and has: those that have are the ones with an output."""
    if child is None or rerun.fan_out_of(view_of(job), child) is None:
        return False
    return child in await ledger.load_outputs(job.job_id, [child], resolve=False)


async def _run_again(
    ledger: Ledger,
    job_id: UUID,
    choose: Callable[[JobView], rerun.Rerun],
    facts: dict[str, Any],
    is_dry_run: bool,
    *,
    resume_count: int | None = None,
) -> Resumed:
    """With a `resume_count`: only if the job has not run again since it had that."""
    status: Literal["resumed", "dry_run"] = "dry_run" if is_dry_run else "resumed"
    children: dict[str, int] = {}

    def choose_from(job: LoadedJob) -> rerun.Rerun:
        if resume_count not in (None, job.resume_count):
            raise Conflict(
                f"job {job_id} has run again meanwhile",
                code="job.changed",
                hint="look at what it is now, and ask again",
            )
        view = view_of(job)
        chosen = choose(view)
        children.update(_children(view, chosen))
        return chosen

    if is_dry_run:
        job = await _find(ledger, job_id)
        chosen, count = choose_from(job), job.resume_count
    else:
        known = {name: value for name, value in facts.items() if value is not None}
        chosen, count = await ledger.rerun(job_id, choose_from, known)
    return Resumed(job_id=job_id, status=status, nodes=chosen.nodes, children=children, resume_count=count)


def _children(view: JobView, chosen: rerun.Rerun) -> dict[str, int]:
    """How many children run, by fan_out: those that exist, and those that one which goes on has still to make."""
    found = Counter(chosen.children)
    found.update(child.rpartition("__")[0] for child in chosen.single)
    for node_id in set(chosen.nodes).difference(chosen.anew):
        found[node_id] += view.nodes[node_id].total - view.nodes[node_id].expanded
    return {node_id: found[node_id] for node_id in view.graph.order if found[node_id]}


def view_of(job: LoadedJob) -> JobView:
    nodes = {state.node_id: node_view(state, job.workflow.nodes[state.node_id]) for state in job.nodes}
    return JobView(job.job_id, build(job.workflow), job.input_params, job.status, job.priority, nodes=nodes)


async def cancel(ledger: Ledger, job_id: UUID, *, by: str | None = None, reason: str | None = None) -> Cancelling:
    """Ask for a job's end. Asking again changes nothing, also once it is cancelled; one that has ended otherwise can't be."""
    status, is_new = await ledger.request_cancel(job_id, by=by, reason=reason)
    if status is JobStatus.CANCELLED:
        return Cancelling(job_id=job_id, status="cancelled", is_new=False)
    if status in JOB_TERMINAL:
        raise Conflict(f"job {job_id} has ended already: it is {status.value}", code="job.ended", status=status.value)
    return Cancelling(job_id=job_id, status="cancelling", is_new=is_new)
