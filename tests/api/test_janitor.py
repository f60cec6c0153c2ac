"""The janitor over the API: its actions in pages, and a run on request."""

from uuid import uuid4

import pytest

from dagmaster.database.ledger.protocol import OrchestratorInfo
from dagmaster.database.maintenance.janitor import PostgresJanitor
from tests.api.serving import V1, api, ok, pages_of
from tests.engine.harness import engine

pytestmark = pytest.mark.requirement("E21")


async def _neglect_a_job(running) -> str:
    job_id, owner = await running.submit("hello_world"), uuid4()
    await running.ledger.beat(OrchestratorInfo(owner, "host", 1, "0"))
    await running.rows(
        "UPDATE dagapp.dag_jobs SET owner_id = %s, claim_token = gen_random_uuid(), epoch = 1,"
        " owner_heartbeat_at = clock_timestamp() - interval '1 hour' WHERE job_id = %s",
        owner,
        job_id,
    )
    return str(job_id)


async def test_a_dry_run_only_reports_and_a_run_acts(database):
    async with (
        engine(database, orchestrators=0, workers=0) as running,
        api(database, running, orphan_threshold_sec=60) as client,
    ):
        job_id = await _neglect_a_job(running)

        dry = await ok(client.post(f"{V1}/janitor/run", params={"dry_run": True}))
        assert [action["target_id"] for action in dry["actions"]] == [job_id]
        assert (await ok(client.get(f"{V1}/janitor/actions")))["items"] == []

        real_run = await ok(client.post(f"{V1}/janitor/run"))
        assert (real_run["is_dry_run"], real_run["left_to_others"], real_run["prunable_jobs"]) == (False, [], 0)
        assert (await ok(client.get(f"{V1}/janitor/actions")))["items"] == real_run["actions"]
        assert (await ok(client.post(f"{V1}/janitor/run")))["actions"] == []


async def test_a_job_that_cannot_be_advanced_shows_the_error_until_it_can(database):
    janitor, owner = PostgresJanitor(database), uuid4()
    async with engine(database, orchestrators=0) as running, api(database, running) as client:
        job_id = await running.submit("hello_world")
        (claim,) = await running.ledger.claim_orphans(
            owner, limit=1, orphan_after_seconds=60, unclaimed_after_seconds=0
        )
        assert (await ok(client.get(f"{V1}/jobs/{job_id}")))["advance_error"] is None

        await janitor.note_stuck(uuid4(), owner, claim, "ValueError: boom")

        detail = await ok(client.get(f"{V1}/jobs/{job_id}"))
        assert detail["advance_error"] == "the job cannot be advanced: ValueError: boom"
        assert detail["trouble"] == detail["advance_error"]
        await running.rows("UPDATE dagapp.dag_jobs SET owner_id = NULL, claim_token = NULL")
        await running.start_orchestrator()
        await running.wait(job_id)
        assert (await ok(client.get(f"{V1}/jobs/{job_id}")))["advance_error"] is None
    await janitor.close()


async def test_actions_are_paged_and_filtered(database):
    async with engine(database, orchestrators=0, workers=0) as running, api(database, running) as client:
        await running.rows(
            "INSERT INTO dagapp.dag_janitor_actions (run_id, action_type, target_type, target_id, reason, created_at)"
            " SELECT gen_random_uuid(), CASE WHEN i %% 2 = 0 THEN 'even' ELSE 'odd' END, 'job', 'job-' || i, '',"
            " timestamptz '2026-01-01 00:00Z' + make_interval(mins => i / 2) FROM generate_series(1, %s) AS i",
            9,
        )
        path = f"{V1}/janitor/actions"

        pages = await pages_of(client, path, limit=4)
        (even,) = await pages_of(client, path, action_type="even")
        (late,) = await pages_of(client, path, since="2026-01-01T00:03:00Z")
        (one,) = await pages_of(client, path, target_id="job-3")
        (run,) = await pages_of(client, path, run_id=one[0]["run_id"])

        assert [len(page) for page in pages] == [4, 4, 1]
        listed = [(item["created_at"], item["action_id"]) for page in pages for item in page]
        assert listed == sorted(listed, reverse=True)
        assert {item["target_id"] for item in even} == {"job-2", "job-4", "job-6", "job-8"}
        assert {item["target_id"] for item in late} == {"job-6", "job-7", "job-8", "job-9"}
        assert [item["target_id"] for item in one] == ["job-3"] == [item["target_id"] for item in run]
        assert (await client.get(path, params={"after": "nonsense"})).status_code == 400
