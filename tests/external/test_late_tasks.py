"""A task that still runs after its job ended, or that lost the database, leaves nothing in the external zone."""

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import psycopg
import pytest

from dagmaster.addresses import Addresses
from dagmaster.assets.states import Clearance
from dagmaster.errors import DagmasterError, Unavailable, UnfitData
from dagmaster.handlers.export import copying, withdrawal
from dagmaster.handlers.export.exporter import WorkerCopy
from dagmaster.operations.assets.approve import approve
from dagmaster.orchestrator.external_copies import ExternalCopyChore
from dagmaster.settings import Settings
from dagmaster.storage import Location
from tests.external.kit import copies, end, external_files, jobs, processed
from tests.operations.kit import BOB, Kit

pytestmark = pytest.mark.requirement("A5", "E3")


WITHDRAWN = "UPDATE dagapp.asset_revisions SET export_due_at = NULL, withdrawal_due_at = now()"


class Interrupted(WorkerCopy):
    """Executes a statement after each object that is copied, as if it happened during the copy."""

    def __init__(self, dsn: str, statement: str) -> None:
        self._dsn, self._statement = dsn, statement

    def copy(self, storage: Any, source: Location, target: Location, job_id: UUID) -> None:
        super().copy(storage, source, target, job_id)
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(self._statement)


def context(kit: Kit, job_id: UUID, exporter: WorkerCopy) -> Any:
    """The context of a handler, with the real database and storage."""
    return SimpleNamespace(
        job_id=job_id,
        storage=kit.storage,
        addresses=Addresses.of(Settings()),
        exporter=exporter,
        cancelled=False,
        shutting_down=False,
        connect=lambda: psycopg.connect(kit.dsn, application_name="late-task"),
        progress=lambda *_facts, **_counts: None,
    )


async def exporting(kit: Kit, chore: ExternalCopyChore) -> UUID:
    """A running job that exports a dataset."""
    await processed(kit)
    await approve(kit.store, "dem", 0, caller=BOB, clearance=Clearance.PUBLIC)
    await chore.run_once()
    job_id = (await jobs(kit))[-1]["job_id"]
    await kit.execute("UPDATE dagapp.dag_jobs SET status = 'running' WHERE job_id = %s", job_id)
    return job_id


@pytest.mark.parametrize(
    "statement",
    [
        WITHDRAWN,
        "UPDATE dagapp.dag_jobs SET status = 'failed' WHERE workflow_id = 'external_export'",
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'late-task'",
    ],
    ids=["withdrawn", "ended", "unreachable"],
)
async def test_an_object_that_is_written_too_late_is_removed_again(
    kit: Kit, chore: ExternalCopyChore, tmp_path, statement: str
):
    job_id = await exporting(kit, chore)
    current = context(kit, job_id, WorkerCopy())
    plan = copying.plan(current, copying.PlanParams(asset_id="dem", version_ordinal=0))
    params = copying.CopyParams(target=plan.target, batch=plan.batches[0])

    with pytest.raises(DagmasterError):
        copying.copy(context(kit, job_id, Interrupted(kit.dsn, statement)), params)

    assert external_files(tmp_path) == {}


class Failing(Interrupted):
    """The storage fails after the object was written."""

    def copy(self, storage: Any, source: Location, target: Location, job_id: UUID) -> None:
        super().copy(storage, source, target, job_id)
        raise Unavailable("the storage does not respond", code="storage.unavailable")


@pytest.mark.parametrize(
    ("statement", "code", "is_kept"),
    [
        (WITHDRAWN, "external.not-current", False),
        ("SELECT 1", "storage.unavailable", True),
    ],
    ids=["withdrawn", "current"],
)
async def test_after_an_error_of_the_storage_an_object_is_kept_only_if_the_export_is_current(
    kit: Kit, chore: ExternalCopyChore, tmp_path, *, statement: str, code: str, is_kept: bool
):
    job_id = await exporting(kit, chore)
    plan = copying.plan(context(kit, job_id, WorkerCopy()), copying.PlanParams(asset_id="dem", version_ordinal=0))
    params = copying.CopyParams(target=plan.target, batch=plan.batches[0])

    with pytest.raises(DagmasterError) as error:
        copying.copy(context(kit, job_id, Failing(kit.dsn, statement)), params)

    assert error.value.code == code
    assert bool(external_files(tmp_path)) is is_kept


async def test_copies_that_a_late_withdrawal_removed_are_exported_again(
    kit: Kit, chore: ExternalCopyChore, tmp_path, monkeypatch
):
    """The withdrawal checks the decision first; while it removes copies, the dataset is approved and exported again."""
    job_id = await exporting(kit, chore)
    await end(kit, job_id)
    await kit.execute("UPDATE dagapp.asset_revisions SET withdrawal_due_at = now()")
    await kit.execute("UPDATE dagapp.geospatial_assets SET clearance_state = 'ouo', made_public_at = NULL")
    await chore.run_once()
    late = (await jobs(kit))[-1]["job_id"]
    await kit.execute("UPDATE dagapp.dag_jobs SET status = 'running' WHERE job_id = %s", late)
    ctx = context(kit, late, WorkerCopy())
    target = withdrawal.check(ctx, copying.NamedRevision(asset_id="dem", version_ordinal=0)).target
    clear_external = kit.storage.clear_external

    def clear(edition: Any) -> int:
        count = clear_external(edition)
        with psycopg.connect(kit.dsn, autocommit=True) as connection:
            exported = "external_copies = 'all', is_external_job_running = false, withdrawal_due_at = NULL"
            connection.execute(f"UPDATE dagapp.asset_revisions SET {exported}")
        return count

    monkeypatch.setattr(kit.storage, "clear_external", clear)
    with pytest.raises(UnfitData, match="no longer current"):
        withdrawal.remove(ctx, withdrawal.TargetParams(target=target))

    assert (await copies(kit)).state == "due"
