"""What people do to jobs that exist: resume one that has ended, cancel one that runs [E14 E15].

A job that has ended has no owner: a resume is one transaction of whoever is asked, and the next orchestrator that looks claims the
job. A job that runs has one: the request is written to its row, and the owner acts on it at its next look.
"""

from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict

from dagmaster.database.ledger import Claim, Ledger, LoadedJob, no_such_job
from dagmaster.errors import Conflict
from dagmaster.jobs import revival
from dagmaster.jobs.states import JOB_TERMINAL, JobStatus
from dagmaster.jobs.view import JobView, node_view
from dagmaster.workflows.graph import build


class Resumed(BaseModel):
    """What a resume runs again (or would)."""

    model_config = ConfigDict(frozen=True)

    job_id: UUID
    status: Literal["resumed", "dry_run"]
    nodes: tuple[str, ...]
    children: dict[str, int]
    resume_count: int


class Cancelling(BaseModel):
    model_config = ConfigDict(frozen=True)

    job_id: UUID
    status: Literal["cancelling"] = "cancelling"
    is_new: bool


async def resume(
    ledger: Ledger, job_id: UUID, *, by: str | None = None, reason: str | None = None, is_dry_run: bool = False
) -> Resumed:
    """Let a job go on from what has succeeded. With `is_dry_run` only say what would run."""
    if is_dry_run:
        found = await ledger.load_jobs([Claim(job_id, job_id, 0)])
        if not found:
            raise no_such_job(job_id)
        chosen = _what_to_resume(found[0])
        return _resumed(job_id, "dry_run", chosen, found[0].resume_count)
    facts: dict[str, Any] = {"by": by, "why": reason}
    chosen, count = await ledger.revive(
        job_id, _what_to_resume, {name: value for name, value in facts.items() if value is not None}
    )
    return _resumed(job_id, "resumed", chosen, count)


def _resumed(
    job_id: UUID, status: Literal["resumed", "dry_run"], chosen: revival.Revival, resume_count: int
) -> Resumed:
    return Resumed(
        job_id=job_id, status=status, nodes=chosen.nodes, children=chosen.children, resume_count=resume_count
    )


def _what_to_resume(job: LoadedJob) -> revival.Revival:
    return revival.resume(view_of(job))


def view_of(job: LoadedJob) -> JobView:
    nodes = {state.node_id: node_view(state, job.workflow.nodes[state.node_id]) for state in job.nodes}
    return JobView(job.job_id, build(job.workflow), job.input_params, job.status, job.priority, nodes=nodes)


async def cancel(ledger: Ledger, job_id: UUID, *, by: str | None = None, reason: str | None = None) -> Cancelling:
    """Ask for a job's end. Asking again changes nothing; a job that has ended can't be cancelled."""
    status, is_new = await ledger.request_cancel(job_id, by=by, reason=reason)
    if JobStatus(status) in JOB_TERMINAL:
        raise Conflict(f"job {job_id} has ended already: it is {status.value}", code="job.ended", status=status.value)
    return Cancelling(job_id=job_id, is_new=is_new)
