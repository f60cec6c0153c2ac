"""`dagmaster verify-history`: hold what was written about jobs against the rules."""

import asyncio
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from dagmaster.cli.command import Command, State, pass_state
from dagmaster.errors import InvalidRequest

if TYPE_CHECKING:
    from dagmaster.database.history import HistoryReport

_MOST_FINDINGS_SHOWN = 200


@click.command("verify-history", cls=Command)
@click.argument("job", required=False)
@click.option("--all", "everything", is_flag=True, help="Every job")
@pass_state
def verify_history(state: State, job: str | None, everything: bool) -> int:
    """Check that a job's events, nodes, tasks and results tell one possible story.

    JOB is an id, the beginning of one, or `last`. Exit code 1 if something is wrong.
    """
    if (job is None) == (not everything):
        raise InvalidRequest("name a job, or say --all", code="usage")
    report = asyncio.run(_verified(state, job))
    if state.json:
        state.emit(public(report))
    else:
        _print(state, report)
    return 0 if report.is_clean else 1


async def _verified(state: State, job: str | None) -> "HistoryReport":
    from dagmaster.database.history import verify
    from dagmaster.database.reads import Reads

    job_ids: list[UUID] | None = None
    if job is not None:
        async with Reads(state.dsn) as reads:
            job_ids = [await reads.find_job(job)]
    return await verify(state.dsn, job_ids, lambda report: _show_progress(state, report))


def _show_progress(state: State, report: "HistoryReport") -> None:
    """A long check shows that it lives, to a person."""
    if sys.stderr.isatty() and not state.json:
        click.echo(f"\r{report.jobs_checked} jobs, {report.events_checked} events …\r", nl=False, err=True)


def public(report: "HistoryReport") -> dict[str, Any]:
    return {
        "is_clean": report.is_clean,
        "jobs_checked": report.jobs_checked,
        "events_checked": report.events_checked,
        "tasks_checked": report.tasks_checked,
        "findings": [asdict(finding) for finding in report.findings],
    }


def summary(report: "HistoryReport") -> str:
    checked = f"{report.jobs_checked} jobs, {report.events_checked} events, {report.tasks_checked} tasks checked"
    return f"{checked}: {'clean' if report.is_clean else f'{len(report.findings)} findings'}"


def _print(state: State, report: "HistoryReport") -> None:
    for finding in report.findings[:_MOST_FINDINGS_SHOWN]:
        where = f"{finding.job_id} {finding.node_id}" if finding.node_id else str(finding.job_id)
        state.say(f"{where}: {finding.code}: {finding.message}")
    if len(report.findings) > _MOST_FINDINGS_SHOWN:
        state.say(f"… {len(report.findings) - _MOST_FINDINGS_SHOWN} more; all with --json")
    state.say(summary(report))
