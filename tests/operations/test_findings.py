"""Findings of checks are stored with the revision, and kept even if its job fails or is deleted."""

from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.types.json import Jsonb

from dagmaster.assets.states import Clearance
from dagmaster.client.models.assets import FindingInfo, RevisionInfo
from dagmaster.database.schema.deploy import deploy
from dagmaster.operations.assets.approve import approve
from tests.operations.kit import BOB, Kit

pytestmark = pytest.mark.requirement("A3")

WARNING = {
    "code": "raster.no-nodata",
    "severity": "warn",
    "message": "no nodata value is declared",
    "advice": "declare one",
    "fix": "declare-nodata",
    "stage": "processing",
    "count": 3,
    "places": ["r0c0.tif", "r0c1.tif"],
}
NOTE = {"code": "raster.large", "severity": "info", "message": "the file is large", "advice": "", "fix": None}


async def revision_of(kit: Kit, asset_id: str) -> RevisionInfo:
    (version,) = (await kit.store.asset(asset_id)).versions
    return version.revisions[0]


async def end(kit: Kit, status: str = "completed", dataset: str = "dem", **result: Any) -> str:
    submitted = await kit.submit(dataset)
    await kit.write_documents(dataset, 0, 1)
    await kit.end_job(submitted.job_id, status, **result)
    return submitted.asset_id


async def set_node(kit: Kit, job_id: UUID | None, node_id: str, status: str, *, output: Any, error: Any) -> None:
    """Set the state of a node directly, without the transitions that lead to it."""
    async with await psycopg.AsyncConnection.connect(kit.dsn) as connection:
        await connection.execute("SET session_replication_role = replica")
        await connection.execute(
            "INSERT INTO dagapp.dag_node_states (job_id, node_id, status, output, error) VALUES (%s, %s, %s, %s, %s) "
            "ON CONFLICT (job_id, node_id) DO UPDATE "
            "SET status = excluded.status, output = excluded.output, error = excluded.error",
            [job_id, node_id, status, Jsonb(output), Jsonb(error)],
        )


async def test_findings_are_kept_after_their_job_is_deleted(kit: Kit) -> None:
    asset_id = await end(kit, findings=[NOTE, WARNING])
    await approve(kit.store, asset_id, 0, caller=BOB, clearance=Clearance("ouo"))
    job_id = (await revision_of(kit, asset_id)).job_id
    await kit.execute("DELETE FROM dagapp.dag_jobs WHERE job_id = %s", job_id)

    revision = await revision_of(kit, asset_id)

    assert revision.findings == [
        FindingInfo(
            code="raster.no-nodata",
            severity="warn",
            message="no nodata value is declared",
            hint="declare one",
            fix="declare-nodata",
            stage="processing",
            count=3,
            places=["r0c0.tif", "r0c1.tif"],
        ),
        FindingInfo(code="raster.large", severity="info", message="the file is large"),
    ]


async def test_a_job_without_findings_has_none(kit: Kit) -> None:
    asset_id = await end(kit, blob_path="x")

    assert (await revision_of(kit, asset_id)).findings == []
    assert await kit.rows("SELECT findings FROM dagapp.asset_revisions") == [{"findings": []}]


async def test_findings_of_any_shape_do_not_keep_a_job_from_ending(kit: Kit) -> None:
    elements = [None, 1, "text", [], {}, {"code": "no-message"}, {"message": "no code"}, {"code": "", "message": ""}]
    for number, reported in enumerate(["text", 7, None, {"code": 1}, elements]):
        asset_id = await end(kit, dataset=f"dem{number}", findings=reported)

        revision = await revision_of(kit, asset_id)
        assert (revision.processing_state, revision.findings) == ("completed", [])


async def test_the_findings_that_a_handler_reports_are_limited(kit: Kit) -> None:
    odd = {"code": "c" * 500, "message": "m" * 9000, "severity": "loud", "count": 10**15, "places": [1, "p" * 999]}
    many = [{"code": f"c{number}", "message": "again"} for number in range(300)]
    asset_id = await end(kit, findings=[odd, odd, *many])

    findings = (await revision_of(kit, asset_id)).findings

    assert len(findings) == 99  # a hundred were read, two of them with the same code
    assert (len(findings[0].code), len(findings[0].message), findings[0].severity) == (200, 2000, "info")
    assert (findings[0].count, [len(place) for place in findings[0].places]) == (1, [300])


async def test_a_job_that_fails_keeps_the_findings_of_its_nodes(kit: Kit) -> None:
    submitted = await kit.submit("dem")
    await set_node(kit, submitted.job_id, "validate", "completed", output={"findings": [WARNING]}, error=None)
    error = {"code": "raster.broken", "message": "block 7 cannot be read", "hint": "copy it again", "blame": "data"}
    await set_node(kit, submitted.job_id, "cog", "failed", output=None, error=error)
    await kit.end_job(submitted.job_id, "failed")

    findings = (await revision_of(kit, submitted.asset_id)).findings

    assert [(finding.severity, finding.code, finding.hint) for finding in findings] == [
        ("error", "raster.broken", "copy it again"),
        ("warn", "raster.no-nodata", "declare one"),
    ]


async def test_a_resumed_job_has_the_findings_of_its_last_run(kit: Kit) -> None:
    asset_id = await end(kit, "failed", findings=[WARNING])
    job_id = (await revision_of(kit, asset_id)).job_id
    resume = "UPDATE dagapp.dag_jobs SET status = 'running', resume_count = resume_count + 1 WHERE job_id = %s"
    await kit.execute(resume, job_id)
    while_it_runs = (await revision_of(kit, asset_id)).findings
    await kit.end_job(job_id, findings=[NOTE])

    assert while_it_runs == []
    assert [finding.code for finding in (await revision_of(kit, asset_id)).findings] == ["raster.large"]


async def test_a_migration_takes_findings_from_jobs_that_still_exist(kit: Kit) -> None:
    asset_id = await end(kit, findings=[WARNING])
    await kit.execute("UPDATE dagapp.asset_revisions SET findings = NULL")
    before = (await revision_of(kit, asset_id)).findings

    deploy(kit.dsn)

    assert before == []
    assert [finding.code for finding in (await revision_of(kit, asset_id)).findings] == ["raster.no-nodata"]


async def test_a_migration_does_not_change_revisions_whose_job_was_deleted(kit: Kit) -> None:
    asset_id = await end(kit, findings=[WARNING])
    job_id = (await revision_of(kit, asset_id)).job_id
    await kit.execute("DELETE FROM dagapp.dag_jobs WHERE job_id = %s", job_id)
    await kit.execute("UPDATE dagapp.asset_revisions SET findings = NULL")

    deploy(kit.dsn)

    assert (await revision_of(kit, asset_id)).findings == []
