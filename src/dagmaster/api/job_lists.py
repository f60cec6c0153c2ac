"""Lists of jobs: their filters, the progress of the listed jobs, and counts."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from fastapi import Depends, Query
from pydantic import AwareDatetime, Field

from dagmaster.api.services import ApiServices
from dagmaster.client.models.jobs import JobCount, JobCounts, JobSummary
from dagmaster.client.moments import parse_moment
from dagmaster.database.reads.jobs import JobFilters, ListedJob
from dagmaster.jobs import estimates
from dagmaster.jobs.states import JobStatus
from dagmaster.web.pages import CommaSeparated

MAX_COUNTED = 1000
MAX_WORDS_LENGTH = 200

ListedNames = CommaSeparated[Annotated[str, Field(max_length=64)]]


async def filters_of(
    *,
    status: Annotated[
        CommaSeparated[JobStatus] | None, Query(description="Only jobs with one of these statuses")
    ] = None,
    workflow_id: Annotated[ListedNames | None, Query(description="Only jobs of one of these workflows")] = None,
    submitted_by: Annotated[ListedNames | None, Query(description="Only jobs of one of these submitters")] = None,
    correlation_id: Annotated[
        str | None, Query(max_length=64, description="Only jobs with this correlation id")
    ] = None,
    q: Annotated[
        str | None,
        Query(
            max_length=MAX_WORDS_LENGTH,
            description="Only jobs with all of these words, or beginnings of words, in their id, workflow, submitter, "
            "correlation id, idempotency key, asset id, inputs or error",
        ),
    ] = None,
    created_after: Annotated[AwareDatetime | None, Query(description="Only jobs created at this time or later")] = None,
    created_before: Annotated[AwareDatetime | None, Query(description="Only jobs created before this time")] = None,
    since: Annotated[
        str | None, Query(max_length=64, description="Like `created_after`: a time with a zone, or an age such as `2h`")
    ] = None,
    until: Annotated[
        str | None,
        Query(max_length=64, description="Like `created_before`: a time with a zone, or an age such as `2h`"),
    ] = None,
) -> JobFilters:
    return JobFilters(
        statuses=status,
        workflow_ids=workflow_id,
        submitters=submitted_by,
        correlation_id=correlation_id,
        words=words_in(q),
        created_after=max(filter(None, (created_after, _moment(since, "since"))), default=None),
        created_before=min(filter(None, (created_before, _moment(until, "until"))), default=None),
    )


Filters = Annotated[JobFilters, Depends(filters_of)]


def words_in(text: str | None) -> str | None:
    """The text without characters that PostgreSQL cannot store; None if it has no letter or digit."""
    text = (text or "").replace("\x00", " ").strip()
    return text if any(character.isalnum() for character in text) else None


def _moment(text: str | None, name: str) -> datetime | None:
    return parse_moment(text, name, requires_zone=True) if text else None


async def summaries(services: ApiServices, jobs: Sequence[ListedJob]) -> list[JobSummary]:
    """The jobs of a page with their progress and estimates. The cost depends on the length of the page alone."""
    progress = await services.reads.progress_of_jobs((each.job.job_id, each.definition_hash) for each in jobs)
    usual = await services.run_history.usual_seconds({each.job.workflow_id for each in jobs if not each.job.is_over})
    result: list[JobSummary] = []
    for job, now in ((each.job, each.now) for each in jobs):
        elapsed = round(max(0.0, ((job.completed_at or now) - job.created_at).total_seconds()), 3)
        counts = progress.get(job.job_id)
        eta = None
        if not job.is_over:
            eta = estimates.of_job(elapsed, counts.fraction if counts else None, usual.get(job.workflow_id))
        update = {
            "elapsed_seconds": elapsed,
            "eta_seconds": None if eta is None else round(eta, 1),
            "progress": counts,
        }
        result.append(job.model_copy(update=update))
    return result


async def counts_of(services: ApiServices, filters: JobFilters) -> JobCounts:
    """Each status is counted up to a limit; the jobs of a search are counted together."""
    counts = await services.reads.job_counts(filters, MAX_COUNTED + 1)
    is_cut = filters.words is not None and sum(counts.values()) > MAX_COUNTED
    by_status = {
        status: JobCount(count=min(count, MAX_COUNTED), is_exact=count <= MAX_COUNTED and not is_cut)
        for status in JobStatus
        for count in (counts.get(status, 0),)
    }
    total = sum(each.count for each in by_status.values())
    return JobCounts(
        by_status=by_status, total=JobCount(count=total, is_exact=all(each.is_exact for each in by_status.values()))
    )
