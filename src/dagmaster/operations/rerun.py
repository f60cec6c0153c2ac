"""Run an ended job again: resume it where it stopped, or retry a part of it.

A job that has ended has no owner, so a rerun is one transaction of the caller. The next orchestrator that looks for
jobs without an owner claims it.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, Literal
from uuid import UUID

from dagmaster.client.models.jobs import JobPart, Resumed
from dagmaster.database.ledger.protocol import LoadedJob, SubmissionLedger, no_such_job
from dagmaster.errors import Conflict
from dagmaster.jobs import rerun
from dagmaster.jobs.view import JobView


async def resume(
    ledger: SubmissionLedger,
    job_id: UUID,
    *,
    by: str | None = None,
    reason: str | None = None,
    is_dry_run: bool = False,
) -> Resumed:
    """Continue a job from what has succeeded. With `is_dry_run` only report what would run."""
    return await _run_again(ledger, job_id, rerun.resume, {"by": by, "why": reason}, is_dry_run)


async def retry(
    ledger: SubmissionLedger,
    job_id: UUID,
    part: JobPart,
    *,
    by: str | None = None,
    reason: str | None = None,
    is_dry_run: bool = False,
) -> Resumed:
    """Run a part of an ended job again, with everything downstream of it."""
    names = part.model_dump(exclude_none=True)
    job = await _load(ledger, job_id)
    has_completed = await _has_completed(ledger, job, part.node)

    def choose(view: JobView) -> rerun.Rerun:
        return rerun.retry(view, **names, has_completed=has_completed)

    event_data = {"by": by, "why": reason, "retry": names}
    return await _run_again(ledger, job_id, choose, event_data, is_dry_run, resume_count=job.resume_count)


async def _load(ledger: SubmissionLedger, job_id: UUID) -> LoadedJob:
    job = await ledger.load_job(job_id)
    if job is None:
        raise no_such_job(job_id)
    return job


async def _has_completed(ledger: SubmissionLedger, job: LoadedJob, child: str | None) -> bool:
    """Whether this is a child of a fan_out that has completed: only completed children have an output."""
    if child is None or rerun.fan_out_of(job.view(), child) is None:
        return False
    return child in await ledger.load_output_references(job.job_id, [child])


async def _run_again(
    ledger: SubmissionLedger,
    job_id: UUID,
    choose: Callable[[JobView], rerun.Rerun],
    event_data: dict[str, Any],
    is_dry_run: bool,
    *,
    resume_count: int | None = None,
) -> Resumed:
    """With a `resume_count`, Conflict is raised if the job has run again since it had that count."""
    status: Literal["resumed", "dry_run"] = "dry_run" if is_dry_run else "resumed"
    children: dict[str, int] = {}

    def choose_from(job: LoadedJob) -> rerun.Rerun:
        if resume_count not in (None, job.resume_count):
            raise Conflict(
                f"job {job_id} has run again in the meantime",
                code="job.changed",
                hint="check the current state of the job, and repeat the request",
            )
        view = job.view()
        chosen = choose(view)
        children.update(_children(view, chosen))
        return chosen

    if is_dry_run:
        job = await _load(ledger, job_id)
        chosen, count = choose_from(job), job.resume_count
    else:
        present = {name: value for name, value in event_data.items() if value is not None}
        chosen, count = await ledger.rerun(job_id, choose_from, present)
    return Resumed(job_id=job_id, status=status, nodes=chosen.nodes, children=children, resume_count=count)


def _children(view: JobView, chosen: rerun.Rerun) -> dict[str, int]:
    """How many children of each fan_out run: existing ones, and those that a continued fan_out has still to create."""
    counts = Counter(chosen.children)
    counts.update(child.rpartition("__")[0] for child in chosen.single)
    for node_id in set(chosen.nodes).difference(chosen.reexpanded):
        counts[node_id] += view.nodes[node_id].total - view.nodes[node_id].expanded
    return {node_id: counts[node_id] for node_id in view.graph.order if counts[node_id]}
