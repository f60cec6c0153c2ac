"""Decisions, and starts and ends of jobs, in every order: one job for each decision, and the last decision counts.

SQL statements end the jobs here; the jobs themselves are tested in test_jobs.py and test_crashes.py."""

import asyncio
import os
import random
import subprocess
import sys
from uuid import UUID

import pytest

from dagmaster import faults
from dagmaster.assets.states import Clearance
from dagmaster.database.assets.adopt import AdoptedAssets
from dagmaster.database.assets.external_copies import DueJob, PostgresExternalCopies
from dagmaster.database.ledger.protocol import NewJob
from dagmaster.database.maintenance.assets import PostgresAssetUpkeep
from dagmaster.errors import Conflict, DagmasterError, InvalidRequest, Unavailable
from dagmaster.library.workflows import WorkflowLibrary
from dagmaster.operations.assets.approve import approve
from dagmaster.operations.assets.clear import clear
from dagmaster.operations.assets.delete import delete
from dagmaster.operations.assets.export import export_again, job_of
from dagmaster.operations.assets.unpublish import unpublish
from dagmaster.orchestrator import external_copies as module
from dagmaster.orchestrator.asset_upkeep import AssetUpkeep
from dagmaster.orchestrator.external_copies import ExternalCopyChore
from dagmaster.settings import Settings
from dagmaster.storage import Zone
from dagmaster.storage.location import Edition
from tests.external.kit import copies, end, jobs, processed
from tests.operations.kit import ADA, BOB, Kit

pytestmark = pytest.mark.requirement("A5")

PUBLIC, OUO = Clearance.PUBLIC, Clearance.OUO


async def public(kit: Kit) -> None:
    await processed(kit)
    await approve(kit.store, "dem", 0, caller=BOB, clearance=PUBLIC)


async def newest_job(kit: Kit) -> UUID:
    return (await jobs(kit))[-1]["job_id"]


async def test_only_one_of_many_orchestrators_starts_the_job_of_a_decision(kit: Kit):
    await public(kit)
    chores = [ExternalCopyChore(Settings(), PostgresExternalCopies(kit.dsn), kit.library) for _ in range(8)]

    for _ in range(2):
        await asyncio.gather(*(chore.run_once() for chore in chores))

    (job,) = await jobs(kit)
    assert (job["workflow_id"], job["asset_id"], job["submitted_by"]) == (
        "external_export",
        (await kit.store.asset("dem")).asset_id,
        "dagmaster",
    )
    assert job["input_params"]["blob_path"] == "mosaics/dem/v0/r1/mosaic.json"
    state = await copies(kit)
    assert (state.state, state.job_id) == ("running", job["job_id"])
    await asyncio.gather(*(chore.close() for chore in chores))


async def test_exports_and_withdrawals_that_an_earlier_release_recorded_are_carried_out(
    kit: Kit, chore: ExternalCopyChore
):
    await public(kit)
    columns = "external_copies = DEFAULT, external_due_at = DEFAULT, external_failures = DEFAULT"
    await kit.execute(f"UPDATE dagapp.asset_revisions SET {columns}, export_due_at = '2024-01-01'")

    await chore.run_once()

    assert [job["workflow_id"] for job in await jobs(kit)] == ["external_export"]
    # If a revision is withdrawn before anything was copied, there is nothing to remove.
    await end(kit, await newest_job(kit))
    await kit.execute("UPDATE dagapp.asset_revisions SET external_copies = 'none', withdrawal_due_at = '2024-01-01'")
    await chore.run_once()
    assert len(await jobs(kit)) == 1
    assert (await copies(kit)).due_at is None


@pytest.mark.parametrize("error", [InvalidRequest("no such workflow"), Unavailable("no response")], ids=str)
async def test_a_revision_whose_job_cannot_be_created_does_not_block_later_ones(
    kit: Kit, chore: ExternalCopyChore, monkeypatch, error: DagmasterError
):
    for dataset in ("dem", "later"):
        await processed(kit, dataset)
        await approve(kit.store, dataset, 0, caller=BOB, clearance=PUBLIC)
    seconds, is_broken, attempts = 0.0, True, []

    def make_job(library: WorkflowLibrary, due: DueJob) -> NewJob:
        attempts.append(due.dataset_id)
        if is_broken and due.dataset_id == "dem":
            raise error
        return job_of(library, due)

    monkeypatch.setattr(module, "AT_ONCE", 1)
    monkeypatch.setattr(module, "job_of", make_job)
    chore.clock = lambda: seconds

    await chore._run_once_safely()
    await chore._run_once_safely()
    assert (attempts, chore.started, chore.errors) == (["dem", "later"], 1, 1)
    assert not await chore._run_once_safely()
    assert attempts == ["dem", "later"]  # it is postponed

    for pause in (5, 10, 20):
        seconds += pause
        await chore._run_once_safely()
        await chore._run_once_safely()
    assert attempts == ["dem", "later", *["dem"] * 3]

    is_broken = False
    seconds += module.PAUSES_SECONDS[1]
    await chore._run_once_safely()
    assert (await copies(kit, "dem")).state == "running"
    assert chore._postponed == {}


@pytest.mark.parametrize("point", faults.around("external_copies"))
async def test_one_job_is_started_although_an_orchestrator_dies_while_it_starts_it(
    kit: Kit, chore: ExternalCopyChore, point: str
):
    await public(kit)
    program = f"""
import asyncio
from dagmaster import faults
from dagmaster.database.assets.external_copies import PostgresExternalCopies
from dagmaster.handlers.registry import installed
from dagmaster.library.workflows import load_library
from dagmaster.orchestrator.external_copies import ExternalCopyChore
from dagmaster.settings import Settings
settings = Settings()
library = load_library(settings, installed(), settings.known_queues)
faults.arm({point!r})
asyncio.run(ExternalCopyChore(settings, PostgresExternalCopies({kit.dsn!r}), library).run_once())
"""
    died = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", program], check=False, env=dict(os.environ))
    assert died.returncode == 137
    assert len(await jobs(kit)) == (1 if point.endswith("after-commit") else 0)

    await chore.run_once()

    (job,) = await jobs(kit)
    assert (await copies(kit)).job_id == job["job_id"]


@pytest.mark.parametrize("point", faults.around("external_claim"))
async def test_a_job_that_a_user_submitted_claims_its_revision_again_after_it_died(kit: Kit, point: str):
    await public(kit)
    await chore_posted(kit)
    job_id = await newest_job(kit)
    program = f"""
import sys, psycopg
from uuid import UUID
from dagmaster import faults
from dagmaster.assets.external_copies import ExternalCopyJob
from dagmaster.database.assets.external_copies import ExternalCopySession
with psycopg.connect({kit.dsn!r}) as connection:
    session = ExternalCopySession(connection, UUID({str(job_id)!r}), ExternalCopyJob.EXPORT)
    target = session.find("dem", 0, None)
    faults.arm(sys.argv[1] if len(sys.argv) > 1 else None)
    session.claim(target)
    session.claim(target)
"""

    def run(*arguments: str) -> int:
        command = [sys.executable, "-c", program, *arguments]
        return subprocess.run(command, check=False, env=dict(os.environ)).returncode

    assert await asyncio.to_thread(run, point) == 137
    assert (await copies(kit)).state == ("running" if point.endswith("after-commit") else "due")
    assert await asyncio.to_thread(run) == 0
    state = await copies(kit)
    assert (state.state, state.job_id) == ("running", job_id)
    await end(kit, job_id)
    assert (await copies(kit)).state == "exported"


async def chore_posted(kit: Kit) -> None:
    """A running job that a user submitted: no revision refers to it."""
    from dagmaster.database.ledger.postgres import PostgresLedger
    from dagmaster.jobs.model import Submission
    from tests.engine.harness import submit

    ledger = PostgresLedger(kit.dsn, "test")
    inputs = {"asset_id": "dem", "version_ordinal": 0}
    await submit(ledger, kit.library, [Submission(workflow_id="external_export", inputs=inputs)])
    await ledger.close()
    await kit.execute("UPDATE dagapp.dag_jobs SET status = 'running' WHERE workflow_id = 'external_export'")


async def test_a_failed_export_waits_for_an_operator_who_repeats_it(kit: Kit, chore: ExternalCopyChore):
    await public(kit)
    await chore.run_once()
    await end(kit, await newest_job(kit), "failed")

    await chore.run_once()
    state = await copies(kit)
    assert (state.state, state.error, len(await jobs(kit))) == ("failed", "it broke", 1)

    await export_again(kit.store, "dem", 0, caller=ADA, reason="the disk was full")
    with pytest.raises(Conflict) as changed:
        await export_again(kit.store, "dem", 0, caller=ADA, if_match='"1"')
    await chore.run_once()
    assert changed.value.code == "asset.changed"
    with pytest.raises(Conflict) as running:
        await export_again(kit.store, "dem", 0, caller=ADA)
    assert running.value.code == "export.running"
    assert len(await jobs(kit)) == 2
    await end(kit, await newest_job(kit))

    asset = await kit.store.asset("dem")
    history = [(each.action, each.actor, each.reason) for each in await kit.store.history(asset.asset_id, limit=10)]
    assert history[:3] == [
        ("exported", "dagmaster", None),
        ("export_requested", "ada", "the disk was full"),
        ("export_failed", "dagmaster", "it broke"),
    ]
    keys = {job["idempotency_key"] for job in await jobs(kit)}
    assert len(keys) == 2


async def test_only_approved_and_public_versions_are_exported_again(kit: Kit):
    await processed(kit)
    for approved in (False, True):
        if approved:
            await approve(kit.store, "dem", 0, caller=BOB, clearance=OUO)
        with pytest.raises(Conflict) as refused:
            await export_again(kit.store, "dem", 0, caller=ADA)
        assert refused.value.code == "export.not-public"


async def test_a_failed_withdrawal_is_retried_until_it_succeeds(kit: Kit, chore: ExternalCopyChore):
    await public(kit)
    await chore.run_once()
    await end(kit, await newest_job(kit))
    await unpublish(kit.store, "dem", 0, caller=BOB)

    for failures in (1, 2, 3):
        await chore.run_once()
        await end(kit, await newest_job(kit), "failed")
        state = await copies(kit)
        assert (state.state, state.error) == ("withdrawing", "it broke")
        assert state.retry_at is not None
        await chore.run_once()
        assert len(await jobs(kit, "unpublish")) == failures, "not before the delay is over"
        await kit.execute("UPDATE dagapp.asset_revisions SET external_retry_at = now()")
    await chore.run_once()
    await end(kit, await newest_job(kit))

    assert (await copies(kit)).state == "withdrawn"
    failures = await kit.rows("SELECT 1 FROM dagapp.asset_events WHERE action = 'withdrawal_failed'")
    assert len(failures) == 1


async def test_lowering_the_clearance_cancels_the_running_export_and_removes_its_copies(
    kit: Kit, chore: ExternalCopyChore
):
    await public(kit)
    await chore.run_once()
    export = await newest_job(kit)
    await kit.execute("UPDATE dagapp.dag_jobs SET status = 'running' WHERE job_id = %s", export)
    await clear(kit.store, "dem", OUO, caller=BOB)

    await chore.run_once()
    await chore.run_once()
    (job,) = await jobs(kit)
    assert (job["cancel_requested_by"], len(await jobs(kit, "unpublish"))) == ("dagmaster", 0)

    await end(kit, export, "cancelled")
    assert (await copies(kit)).state == "withdrawing"
    await chore.run_once()
    await end(kit, await newest_job(kit))

    assert (await copies(kit)).state == "withdrawn"
    assert [job["workflow_id"] for job in await jobs(kit)] == ["external_export", "unpublish"]
    assert await kit.rows("SELECT 1 FROM dagapp.asset_events WHERE action = 'export_failed'") == []


async def test_a_version_that_is_approved_during_its_withdrawal_is_exported_afterwards(
    kit: Kit, chore: ExternalCopyChore
):
    await public(kit)
    await chore.run_once()
    await end(kit, await newest_job(kit))
    await unpublish(kit.store, "dem", 0, caller=BOB)
    await chore.run_once()
    withdrawal = await newest_job(kit)

    await approve(kit.store, "dem", 0, caller=BOB)
    await chore.run_once()
    assert len(await jobs(kit)) == 2, "never two jobs at once"
    await end(kit, withdrawal)
    await chore.run_once()
    await end(kit, await newest_job(kit))

    assert (await copies(kit)).state == "exported"
    assert [job["workflow_id"] for job in await jobs(kit)] == ["external_export", "unpublish", "external_export"]


@pytest.mark.parametrize("status", ["cancelled", "failed"])
async def test_an_export_that_an_earlier_decision_cancelled_is_started_again_automatically(
    kit: Kit, chore: ExternalCopyChore, status: str
):
    await public(kit)
    await chore.run_once()
    cancelled = await newest_job(kit)
    await clear(kit.store, "dem", OUO, caller=BOB)
    await chore.run_once()
    await clear(kit.store, "dem", PUBLIC, caller=BOB)
    await end(kit, cancelled, status)

    assert (await copies(kit)).state == "due", "the failure belongs to an earlier decision"
    await chore.run_once()
    await end(kit, await newest_job(kit))
    assert (await copies(kit)).state == "exported"
    assert [job["workflow_id"] for job in await jobs(kit)] == ["external_export"] * 2


async def test_a_decision_that_is_reversed_before_its_job_starts_needs_no_job(kit: Kit, chore: ExternalCopyChore):
    await public(kit)
    await unpublish(kit.store, "dem", 0, caller=BOB)
    await chore.run_once()
    assert (await jobs(kit), (await copies(kit)).state) == ([], "none")

    await approve(kit.store, "dem", 0, caller=BOB)
    await chore.run_once()
    await end(kit, await newest_job(kit))
    await clear(kit.store, "dem", OUO, caller=BOB)
    await clear(kit.store, "dem", PUBLIC, caller=BOB)
    await chore.run_once()
    assert len(await jobs(kit)) == 1
    state = await copies(kit)
    assert (state.state, state.blob_path) == ("exported", "external/x")


async def test_a_new_revision_replaces_the_copies_of_the_old_one(kit: Kit, chore: ExternalCopyChore):
    await public(kit)
    await chore.run_once()
    await end(kit, await newest_job(kit))
    await processed(kit, content=b"second")
    assert (await copies(kit)).state == "exported", "the old revision is served until the new one is approved"

    await approve(kit.store, "dem", 0, caller=BOB)
    await chore.run_once()
    assert [(await copies(kit, revision=number)).state for number in (1, 2)] == ["withdrawing", "running"]
    for job in (await jobs(kit))[1:]:
        await end(kit, job["job_id"])
    assert [(await copies(kit, revision=number)).state for number in (1, 2)] == ["withdrawn", "exported"]


async def test_a_revision_with_external_copies_is_purged_only_after_they_are_removed(
    kit: Kit, chore: ExternalCopyChore
):
    upkeep = AssetUpkeep(
        Settings(purge_days=1), PostgresAssetUpkeep(kit.dsn), kit.storage, AdoptedAssets(kit.dsn, size=1)
    )
    await public(kit)
    await chore.run_once()
    await end(kit, await newest_job(kit))
    await delete(kit.store, "dem", caller=BOB)
    await kit.execute("UPDATE dagapp.geospatial_assets SET deleted_at = now() - interval '9 days'")
    await kit.execute("UPDATE dagapp.asset_versions SET deleted_at = now() - interval '9 days'")

    async def purged() -> bool:
        await upkeep.purge()
        rows = await kit.rows("SELECT purged_at IS NOT NULL AS is_purged FROM dagapp.asset_revisions")
        return rows[0]["is_purged"]

    assert not await purged()
    await chore.run_once()
    assert not await purged(), "its withdrawal runs"
    await kit.execute("UPDATE dagapp.asset_revisions SET withdrawal_due_at = NULL, outputs = '{}'")
    assert not await purged(), "the other columns do not matter"
    await kit.execute("UPDATE dagapp.asset_revisions SET withdrawal_due_at = external_due_at")
    await end(kit, await newest_job(kit))
    assert await purged()
    await upkeep.close()


async def test_an_object_that_is_written_after_the_withdrawal_is_removed(kit: Kit, chore: ExternalCopyChore):
    upkeep = AssetUpkeep(Settings(), PostgresAssetUpkeep(kit.dsn), kit.storage, AdoptedAssets(kit.dsn, size=1))
    await public(kit)
    await chore.run_once()
    await end(kit, await newest_job(kit))
    await unpublish(kit.store, "dem", 0, caller=BOB)
    await chore.run_once()
    await end(kit, await newest_job(kit))
    await kit.execute("UPDATE dagapp.asset_revisions SET withdrawn_at = now() - interval '10 minutes'")

    await upkeep.recheck_withdrawals()
    assert (await copies(kit)).state == "withdrawn", "nothing is there"

    kit.storage.put(kit.storage.location(Edition("dem").cog("late.tif"), zone=Zone.EXTERNAL), b"pixels")
    await upkeep.recheck_withdrawals()
    await upkeep.recheck_withdrawals()
    await chore.run_once()

    assert (await copies(kit)).state == "withdrawing"
    assert len(await jobs(kit, "unpublish")) == 2
    await upkeep.close()


async def test_an_export_whose_job_is_deleted_before_its_end_has_failed(kit: Kit, chore: ExternalCopyChore):
    await public(kit)
    await chore.run_once()
    await kit.execute("DELETE FROM dagapp.dag_jobs WHERE workflow_id = 'external_export'")

    state = await copies(kit)

    assert (state.state, state.error) == ("failed", "its job was deleted")


async def test_only_the_current_job_changes_the_state_of_the_revision(kit: Kit, chore: ExternalCopyChore):
    await public(kit)
    await chore.run_once()
    first = await newest_job(kit)
    await end(kit, first, "failed")
    await export_again(kit.store, "dem", 0, caller=ADA)
    await chore.run_once()
    # The first job is resumed, and ends: it is not the one that exports the revision now.
    await kit.execute("UPDATE dagapp.dag_jobs SET status = 'running', resume_count = 1 WHERE job_id = %s", first)
    await kit.execute("UPDATE dagapp.dag_jobs SET status = 'completed' WHERE job_id = %s", first)

    assert (await copies(kit)).state == "running"


DECISIONS = ("approve", "unpublish", "public", "ouo")


async def decide(kit: Kit, decision: str) -> None:
    try:
        match decision:
            case "approve":
                await approve(kit.store, "dem", 0, caller=BOB)
            case "unpublish":
                await unpublish(kit.store, "dem", 0, caller=BOB)
            case _:
                await clear(kit.store, "dem", Clearance(decision), caller=BOB)
    except Conflict:
        pass  # the state is already as decided


@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", range(4))
async def test_after_events_in_any_order_the_external_zone_matches_the_last_decision(kit: Kit, seed: int):
    """Reviewers, orchestrators and ends of jobs act at the same time. A model of the zone follows the jobs."""
    choose = random.Random(seed)
    await public(kit)
    chores = [ExternalCopyChore(Settings(), PostgresExternalCopies(kit.dsn), kit.library) for _ in range(2)]
    is_outside = False

    async def end_one() -> None:
        nonlocal is_outside
        running = [job for job in await jobs(kit) if job["status"] in ("pending", "running")]
        assert len(running) <= 1, "never two jobs for one revision"
        for job in running:
            status = choose.choice(["completed", "completed", "failed", "cancelled"])
            if status == "completed":
                is_outside = job["workflow_id"] != "unpublish"
            elif job["workflow_id"] != "unpublish":
                is_outside = is_outside or choose.random() < 0.5  # it may have copied something
            await end(kit, job["job_id"], status)

    for _ in range(12):
        await asyncio.gather(
            decide(kit, choose.choice(DECISIONS)), chores[0].run_once(), chores[1].run_once(), return_exceptions=False
        )
        if choose.random() < 0.7:
            await end_one()

    # At the end all jobs complete, and operators repeat failed exports.
    for _ in range(12):
        await kit.execute(
            "UPDATE dagapp.asset_revisions SET external_retry_at = now() WHERE external_retry_at IS NOT NULL"
        )
        if (await copies(kit)).state == "failed":
            await export_again(kit.store, "dem", 0, caller=ADA)
        await asyncio.gather(*(chore.run_once() for chore in chores))
        for job in await jobs(kit):
            if job["status"] in ("pending", "running"):
                is_outside = job["workflow_id"] != "unpublish"
                await end(kit, job["job_id"])

    asset = await kit.store.asset("dem")
    is_public = asset.clearance_state == "public" and asset.versions[0].unpublished_at is None
    state = await copies(kit)
    assert (state.state == "exported", is_outside) == (is_public, is_public), state
    await asyncio.gather(*(chore.close() for chore in chores))
