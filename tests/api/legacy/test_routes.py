"""The API of the old system, with real jobs and with assets."""

import json
from typing import Any
from uuid import UUID

import pytest

from dagmaster.errors import HandlerFailed
from dagmaster.handlers.registry import Registration
from tests.api.serving import api, ok
from tests.engine.harness import engine, workflow
from tests.gateway.kit import bearer, key_of
from tests.operations.kit import Kit, opened

pytestmark = pytest.mark.requirement("O3")

STAGED = workflow(
    """
    workflow_id: staged
    idempotent: true
    inputs:
      count: {type: integer, default: 3}
      failures: {type: integer, default: 0}
    nodes:
      start: {type: start, next: scheme}
      scheme:
        handler: give
        stage: scheme
        params: {value: {total_tiles: "{{ inputs.count }}", grid_dimensions: [3, 1]}}
        next: tiles
      tiles:
        type: fan_out
        stage: tiles
        source: [0, 1, 2]
        task:
          handler: give
          params: {value: {cog_blob: "cogs/{{ item }}.tif", size_mb: 2.5}}
        next: gathered
      gathered: {type: fan_in, stage: tiles, next: register}
      register:
        handler: fail_at_first
        stage: register
        params: {failures: "{{ inputs.failures }}"}
        retry: {max_attempts: 0}
        next: finish
      finish: {handler: give, stage: finish, params: {value: {item_count: 3}}, next: end}
      end: {type: end}
    outputs:
      items: "{{ nodes.finish.output.item_count }}"
    """
)
_failures: dict[UUID, int] = {}


async def fail_at_first(ctx: Any) -> dict[str, str]:
    """Fails the first `failures` times for each job."""
    _failures[ctx.job_id] = count = _failures.get(ctx.job_id, 0) + 1
    if count <= ctx.params["failures"]:
        raise HandlerFailed("the catalogue is closed")
    return {"stac_collection_id": "dem"}


HANDLERS = [Registration("fail_at_first", "tests.api.legacy.test_routes:fail_at_first")]


def refused_with(answer: Any, status: int, code: str) -> Any:
    """The body of a problem response, which must have the fields that old clients read."""
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (status, code), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert (problem["error"], problem["message"]) == (problem["code"], problem["detail"])
    return problem


async def test_a_job_is_submitted_polled_and_has_a_result_in_the_old_form(database):
    async with engine(database, handlers=HANDLERS) as running:
        running.add(STAGED)
        async with api(database, running) as client:
            submitted = await ok(client.post("/api/jobs/submit/staged", json={"count": 3}))
            await running.wait(UUID(submitted["job_id"]))
            status = await ok(client.get(submitted["status_url"]))
            again = await ok(client.post("/api/jobs/submit/staged", json={"count": 3}))
            forced = await ok(client.post("/api/jobs/submit/staged", json={"count": 3, "force_reprocess": True}))
            tasks = await ok(client.get(f"/api/dbadmin/tasks/{submitted['job_id']}", params={"stage": 2}))
            page = await ok(client.get(f"/api/dbadmin/tasks/{submitted['job_id']}", params={"limit": 2, "offset": 2}))
            await running.wait(UUID(forced["job_id"]))

    assert submitted["status"] == "queued"
    assert submitted.keys() >= {"queue", "message_id", "created_at", "jobId", "statusUrl", "messageId", "createdAt"}
    assert submitted["served_by"] == "dagmaster"
    assert (status["status"], status["stage"], status["totalStages"], status["total_stages"]) == ("completed", 4, 4, 4)
    assert status["jobId"] == status["job_id"] == submitted["job_id"]
    assert status["parameters"] == {"count": 3, "failures": 0}
    assert status["stageResults"].keys() == {"1", "2", "3", "4"}
    assert status["stageResults"]["2"].keys() == {"completed_at", "task_count", "success_count", "checkpoint"}
    assert [status["stageResults"][n]["task_count"] for n in "1234"] == [1, 3, 1, 1]
    ends = [status["stageResults"][n]["completed_at"] for n in "1234"]
    assert ends == sorted(ends)
    result = status["result_data"]
    assert result["items"] == 3
    assert (result["stage_1"]["total_tiles"], result["stage_1"]["grid_dimensions"]) == (3, [3, 1])
    cogs = ("cogs_created", "total_size_mb", "average_cog_size_mb")
    assert [result["stage_2"][name] for name in cogs] == [3, 7.5, 2.5]
    assert "cogs_created" not in result["stage_1"]
    assert result["stage_4"]["item_count"] == 3
    assert (status["resumable"], status["resume_from_stage"], status["resume_hint"]) == (False, None, None)
    assert status["duration_seconds"] > 0
    assert (again["status"], again["job_id"], again["result_data"]) == (
        "already_completed",
        submitted["job_id"],
        {"items": 3},
    )
    assert forced["status"] == "queued"
    assert forced["job_id"] != submitted["job_id"]
    assert [(task["task_index"], task["status"], task["stage"]) for task in tasks["tasks"]] == [
        ("0", "completed", 2),
        ("1", "completed", 2),
        ("2", "completed", 2),
    ]
    assert tasks["tasks"][0]["result_data"]["cog_blob"] == "cogs/0.tif"
    assert tasks["tasks"][0]["task_type"] == "give"
    assert (tasks["count"], tasks["next_offset"]) == (3, None)
    assert [task["task_index"] for task in page["tasks"]] == ["1", "2"]
    assert page["nextOffset"] == 4


async def test_a_failed_job_has_a_hint_for_resuming_and_is_resumed_or_retried_by_stage(database):
    async with engine(database, handlers=HANDLERS) as running:
        running.add(STAGED)
        async with api(database, running) as client:
            body = {"failures": 2}
            job_id = (await ok(client.post("/api/jobs/submit/staged", json=body)))["job_id"]
            await running.wait(UUID(job_id))
            failed = await ok(client.get(f"/api/jobs/status/{job_id}"))
            repeated = await ok(client.post("/api/jobs/submit/staged", json=body))
            never = await client.post(f"/api/jobs/retry-stage/{job_id}/4")
            unknown = await client.post(f"/api/jobs/retry-stage/{job_id}/5")
            resumed = await ok(client.post("/api/jobs/submit/staged", json={**body, "resume": True}))
            await running.wait(UUID(job_id), until=("failed",))
            retried = await ok(client.post(f"/api/jobs/retry-stage/{job_id}/3"))
            await running.wait(UUID(job_id), until=("completed",))
            over = await client.post(f"/api/jobs/retry-stage/{job_id}/3")
            status = await ok(client.get(f"/api/jobs/status/{job_id}"))

    assert (failed["status"], failed["stage"], failed["resumable"]) == ("failed", 3, True)
    assert (failed["resume_from_stage"], failed["resumeFromStage"]) == (3, 3)
    assert failed["resume_hint"] == "POST /api/jobs/submit/staged with resume=true"
    assert "the catalogue is closed" in failed["error_details"]
    assert failed["stage_results"].keys() == {"1", "2"}
    assert failed["result_data"].keys() == {"stage_1", "stage_2", "stage_3"}
    assert (repeated["status"], repeated["failed_stage"], repeated["completed_stages"]) == (
        "previously_failed",
        3,
        ["1", "2"],
    )
    assert repeated["job_id"] == job_id
    assert refused_with(never, 409, "legacy.stage-not-reached")["message"].startswith("stage 4 of job")
    assert refused_with(unknown, 404, "stage.not-found")["error"] == "stage.not-found"
    assert (resumed["status"], resumed["resumed_from_stage"], resumed["resume_count"]) == ("resumed", 3, 1)
    assert {name: retried[name] for name in ("status", "job_id", "stage")} == {
        "status": "stage_retry_initiated",
        "job_id": job_id,
        "stage": 3,
    }
    refused_with(over, 409, "legacy.not-retryable")
    assert status["status"] == "completed"


@pytest.fixture
async def kit(catalog_database, tmp_path):
    async with opened(catalog_database, tmp_path) as opened_kit:
        opened_kit.put("floods.tif", b"pixels")
        yield opened_kit


async def test_a_submitted_raster_becomes_a_submission_of_the_platform_legacy(kit: Kit, tmp_path):
    operator = bearer(await key_of(kit.dsn, "old client", "operator"))
    author = bearer(await key_of(kit.dsn, "author", "author"))
    async with api(kit.dsn, auth_enabled=True, storage_folder=tmp_path) as client:
        path, body = "/api/jobs/submit/raster_cog_docker", {"blob_name": "floods.tif", "container_name": "bronze"}
        refused = await client.post(path, json=body, headers=author)
        submitted = await ok(client.post(path, json=body, headers=operator))
        running = await ok(client.post(path, json=body, headers=operator))
        await kit.end_job(submitted["job_id"], "failed")
        failed = await ok(client.post(path, json={"blob_path": "bronze/floods.tif"}, headers=operator))
        forced = await ok(client.post(path, json=body, headers=operator, params={"force_reprocess": "true"}))
        await kit.write_documents("floods", 0, 2)
        await kit.end_job(forced["job_id"])
        completed = await ok(client.post(path, json=body, headers=operator))
        missing = await client.post(path, json={"blob_name": "nothing.tif"}, headers=operator)
        status = await ok(client.get(submitted["status_url"], headers=operator))
    revisions = await kit.rows(
        "SELECT a.platform_id, a.dataset_id, r.revision, r.job_id::text, r.submitted_by FROM dagapp.asset_revisions r "
        "JOIN dagapp.geospatial_assets a USING (asset_id) ORDER BY revision"
    )

    refused_with(refused, 403, "auth.not-allowed")
    assert [answer["status"] for answer in (submitted, running, failed, forced, completed)] == [
        "queued",
        "already_processing",
        "previously_failed",
        "queued",
        "already_completed",
    ]
    assert failed["job_id"] == submitted["job_id"] != forced["job_id"]
    assert [tuple(row.values()) for row in revisions] == [
        ("legacy", "floods", 1, submitted["job_id"], "old client"),
        ("legacy", "floods", 2, forced["job_id"], "old client"),
    ]
    refused_with(missing, 400, "source.not-found")
    assert status["parameters"]["tile_above_mb"] == 1e9


async def test_two_files_of_one_old_collection_become_two_datasets(kit: Kit, tmp_path):
    kit.put("other.tif", b"more pixels")
    async with api(kit.dsn, storage_folder=tmp_path) as client:
        for blob in ("floods.tif", "other.tif"):
            body = {"blob_name": blob, "collection_id": "hazards"}
            assert (await ok(client.post("/api/jobs/submit/process_large_raster", json=body)))["status"] == "queued"
    datasets = await kit.rows("SELECT dataset_id FROM dagapp.geospatial_assets ORDER BY dataset_id")
    cancelled = await kit.rows("SELECT 1 FROM dagapp.dag_jobs WHERE cancel_requested_at IS NOT NULL")

    assert [row["dataset_id"][:-9] for row in datasets] == ["hazards-floods", "hazards-other"]
    assert cancelled == []


async def test_responses_to_invalid_requests_have_the_fields_that_old_clients_read(kit: Kit, tmp_path):
    async with api(kit.dsn, storage_folder=tmp_path) as client:
        responses = {
            "workflow.not-found": await client.post("/api/jobs/submit/nothing", json={}),
            "request.contradiction": await client.post(
                "/api/jobs/submit/echo_test?resume=true", json={"force_reprocess": True}
            ),
            "job.not-found": await client.get(f"/api/jobs/status/{'0' * 64}"),
            "request.invalid": await client.post("/api/jobs/submit/echo_test", content=b"[1]"),
            "inputs.invalid": await client.post("/api/jobs/submit/raster_cog_docker", json={"blob_name": 7}),
        }
        flag = await client.post("/api/jobs/submit/echo_test", json={"resume": "yes"})
        dots = await client.get("/api/jobs/status/..%2f..%2fadmin")
        number = await client.post(f"/api/jobs/retry-stage/{'0' * 64}/0")
        floods = await client.post("/api/jobs/submit/process_fathom_stack", json={"region_code": "RWA"})
        plain = await client.post("/api/jobs/submit/raster_validate", content=b'{"blob_name": "floods.tif"}')
        other = await client.get("/api/v1/jobs/nothing")

    statuses = {code: answer.status_code for code, answer in responses.items()}
    assert {code: refused_with(answer, statuses[code], code)["code"] for code, answer in responses.items()}
    assert set(statuses.values()) == {400, 404}
    assert flag.status_code == 400
    assert dots.status_code in (404, 422)
    assert number.status_code == 422
    problem = refused_with(floods, 404, "workflow.not-found")
    assert "'process_fathom_stack' stands for the workflow 'flood_stack'" in problem["message"]
    assert "LEGACY_SHARES=process_fathom_stack=100" in problem["hint"]
    assert plain.json()["status"] == "queued"  # old clients send no content type
    assert "message" not in other.json()


async def test_stac_register_manual_accepts_the_list_of_tasks_of_a_job(kit: Kit, tmp_path):
    job = "0198b2c4-7c1e-7a10-8f00-2f6f6e1c9a01"
    tasks = {"job_id": job, "jobId": job, "stage": 2, "count": 0, "tasks": [], "next_offset": None, "nextOffset": None}
    async with api(kit.dsn, storage_folder=tmp_path) as client:
        submitted = await ok(client.post("/api/jobs/submit/stac_register_manual", json=tasks))
    (row,) = await kit.rows("SELECT workflow_id, input_params FROM dagapp.dag_jobs")

    assert submitted["status"] == "queued"
    assert row["workflow_id"] == "stac_register"
    assert row["input_params"]["dataset_id"] == f"job-{job}"
    assert "tasks" not in json.dumps(row["input_params"])
