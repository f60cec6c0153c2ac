"""`dagmaster verify-history`: check the recorded history of jobs against the rules."""

from typing import TYPE_CHECKING
from uuid import UUID

import click

from dagmaster.cli.command import Command, State, pass_state
from dagmaster.errors import InvalidRequest
from dagmaster.quantities import counted

if TYPE_CHECKING:
    from dagmaster.database.maintenance.history import HistoryReport

_MAX_FINDINGS_SHOWN = 200


@click.command("verify-history", cls=Command)
@click.argument("job", required=False)
@click.option("--all", "everything", is_flag=True, help="Check every job")
@click.option("--payloads", is_flag=True, help="Read large outputs and params too, and compare their hashes")
@pass_state
def verify_history(state: State, job: str | None, everything: bool, payloads: bool) -> int:
    """Check that a job's events, nodes, tasks and results are consistent.

    JOB is an id, the beginning of one, or `last`. The exit code is 1 if something is wrong. Reads the database
    directly: the one of DATABASE_URL or POSTGRES_HOST, else that of the platform running on this machine.
    """
    import asyncio

    if (job is None) == (not everything):
        raise InvalidRequest("give a job or --all", code="usage")
    state.require_no_server("the history is read from the database", "set DATABASE_URL")
    report = asyncio.run(_verified(state, job, reads_payloads=payloads))
    state.print_result(report.public(), lambda: _print(state, report))
    return 0 if report.is_clean else 1


async def _verified(state: State, job: str | None, *, reads_payloads: bool) -> "HistoryReport":
    from dagmaster.database.maintenance.history import verify
    from dagmaster.database.reads.jobs import JobReads

    job_ids: list[UUID] | None = None
    if job is not None:
        async with JobReads(state.dsn) as reads:
            job_ids = [await reads.find_job(job)]
    return await verify(state.dsn, job_ids, lambda report: _show_progress(state, report), reads_payloads=reads_payloads)


def _show_progress(state: State, report: "HistoryReport") -> None:
    state.show_progress(f"{counted(report.jobs_checked, 'job')}, {counted(report.events_checked, 'event')}")


def _print(state: State, report: "HistoryReport") -> None:
    for finding in report.findings[:_MAX_FINDINGS_SHOWN]:
        where = f"{finding.job_id} {finding.node_id}" if finding.node_id else str(finding.job_id)
        state.say(f"{where}: {finding.code}: {finding.message}")
    if len(report.findings) > _MAX_FINDINGS_SHOWN:
        state.say(f"… {len(report.findings) - _MAX_FINDINGS_SHOWN} more; --json lists all")
    state.say(report.summary)
