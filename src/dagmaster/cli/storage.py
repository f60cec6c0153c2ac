"""`dagmaster verify-storage`: compare the objects of the zones with what the database names."""

from datetime import timedelta
from typing import TYPE_CHECKING

import click

from dagmaster.cli.command import Command, State, pass_state
from dagmaster.quantities import counted

if TYPE_CHECKING:
    from dagmaster.operations.verify_storage import StorageReport

_MAX_SHOWN = 200


@click.command("verify-storage", cls=Command)
@click.option("--checksums", is_flag=True, help="Read each object completely, and compare its SHA-256")
@click.option(
    "--min-age",
    "min_age_hours",
    type=click.FloatRange(min=0),
    default=24.0,
    show_default=True,
    metavar="HOURS",
    help="Do not report unreferenced objects that are younger than this",
)
@click.option(
    "--limit",
    type=click.IntRange(1, 1_000_000),
    default=1000,
    show_default=True,
    help="List at most this many findings of each kind; all are counted",
)
@pass_state
def verify_storage(state: State, checksums: bool, min_age_hours: float, limit: int) -> int:
    """Compare the objects of the zones with those that the database and the catalogue refer to.

    Finds objects that are missing or have another size, unreferenced objects, leftovers of uploads, and items of the
    catalogue that differ from their documents. Changes nothing. The exit code is 1 if something that is served is
    missing or damaged. Reads the database and the storage directly, with the settings of an orchestrator.
    """
    import asyncio

    from dagmaster.operations.verify_storage import verify_storage as verify
    from dagmaster.storage import open_storage

    state.require_no_server(
        "the database and the storage are read directly", "set DATABASE_URL, and the settings of the zones"
    )
    report = asyncio.run(
        verify(
            state.dsn,
            open_storage(state.settings),
            reads_content=checksums,
            min_age=timedelta(hours=min_age_hours),
            limit=limit,
            on_progress=lambda report: _show_progress(state, report),
        )
    )
    state.print_result(report.public(), lambda: _print(state, report))
    return 1 if report.served else 0


def _show_progress(state: State, report: "StorageReport") -> None:
    done = f"{counted(report.objects, 'object')}, {counted(report.references, 'reference')}"
    state.show_progress(f"{done}, {report.objects_read} read" if report.objects_read else done)


def _print(state: State, report: "StorageReport") -> None:
    for finding in report.findings[:_MAX_SHOWN]:
        state.say(f"{finding.code}: {finding.message}")
    if report.counts.total() > (shown := min(len(report.findings), _MAX_SHOWN)):
        state.say(f"… {report.counts.total() - shown} more; with --json, up to --limit of each kind are listed")
    state.say(report.summary)
