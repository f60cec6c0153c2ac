"""Every error is an RFC 9457 problem with a stable code, and contains no secrets."""

import asyncio
import re

import pytest

from dagmaster.client.limits import MAX_BODY_BYTES
from dagmaster.jobs.model import new_job_id
from dagmaster.web.validation import MAX_MISTAKES
from tests.api.serving import V1, api
from tests.web.problems import check

JOB = str(
    new_job_id(1_700_000_000_000, bytes(10))
)  # a constant, because the names of parametrised tests contain it and must be the same in every process


@pytest.mark.requirement("O1")
@pytest.mark.parametrize(
    ("request_", "options", "expected"),
    [
        (("GET", "/nowhere"), {}, (404, "route.not-found")),
        (("DELETE", "/jobs"), {}, (405, "route.method-not-allowed")),
        (("GET", f"/jobs/{JOB}"), {}, (404, "job.not-found")),
        (("GET", "/jobs/not-an-id"), {}, (422, "request.invalid")),
        (("GET", "/jobs"), {"params": {"limit": 201}}, (422, "request.invalid")),
        (("GET", "/jobs"), {"params": {"created_after": "2026-01-01T00:00:00"}}, (422, "request.invalid")),
        (("GET", "/jobs"), {"params": {"workflow_id": "a\0b"}}, (400, "request.not-storable")),
        (("GET", "/dead-letters"), {"params": {"after": "x~y"}}, (400, "request.bad-cursor")),
        (("POST", "/jobs"), {"json": {"workflow_id": "nothing"}}, (404, "workflow.not-found")),
        (
            ("POST", "/jobs"),
            {"json": {"workflow_id": "hello_world", "input_params": {"nam": 1}}},
            (400, "inputs.invalid"),
        ),
        (
            ("POST", "/jobs"),
            {"json": {"workflow_id": "hello_world", "correlation_id": "\0"}},
            (400, "request.not-storable"),
        ),
        (("POST", "/jobs"), {"json": {"workflow_id": "hello_world", "surprise": 1}}, (422, "request.invalid")),
        (
            ("POST", "/jobs"),
            {"content": b"{", "headers": {"content-type": "application/json"}},
            (422, "request.invalid"),
        ),
        (("POST", "/jobs"), {"content": b'{"workflow_id": "hello_world"}'}, (415, "request.media-type")),
        (("POST", "/jobs"), {"data": {"workflow_id": "hello_world"}}, (415, "request.media-type")),
        (("POST", f"/jobs/{JOB}/cancel"), {"content": b"please"}, (415, "request.media-type")),
        (("POST", "/jobs"), {}, (422, "request.invalid")),
        (("PUT", "/queues/dag-jobs"), {"json": {"is_paused": True}}, (409, "queue.of-submissions")),
        (
            ("POST", "/jobs?resume=true&force=true"),
            {"json": {"workflow_id": "hello_world"}},
            (400, "request.contradiction"),
        ),
        (("POST", "/jobs"), {"content": b"x" * (MAX_BODY_BYTES + 1)}, (413, "request.too-large")),
        (("POST", "/bootstrap/rebuild"), {"json": {"confirm": "test"}}, (403, "bootstrap.rebuild-off")),
        (("PUT", "/queues/nothing"), {"json": {"max_running": 1}}, (404, "queue.not-found")),
        (("GET", "/livez"), {"headers": {"host": "evil.example"}}, (403, "request.foreign-host")),
        (
            ("POST", "/bootstrap/deploy"),
            {"headers": {"origin": "http://evil.example"}},
            (403, "request.foreign-origin"),
        ),
        (("POST", "/bootstrap/deploy"), {"headers": {"origin": "null"}}, (403, "request.foreign-origin")),
    ],
)
async def test_each_problem_has_its_status_and_code(shared_database, request_, options, expected):
    method, path = request_

    async with api(shared_database) as client:
        response = await client.request(method, V1 + path, **options)

    check(response, *expected)


@pytest.mark.requirement("O1")
async def test_invalid_requests_list_every_mistake_and_repeat_nothing(shared_database):
    async with api(shared_database) as client:
        response = await client.post(
            f"{V1}/jobs", json={"workflow_id": "", "priority": 11, "callback_url": "hunter2" * 100}
        )

    problem = check(response, 422, "request.invalid")
    assert {error["at"] for error in problem["errors"]} == {"body.workflow_id", "body.priority", "body.callback_url"}
    assert "hunter2" not in response.text


@pytest.mark.requirement("O1")
@pytest.mark.parametrize(
    ("path", "sent", "message"),
    [
        (
            "/jobs",
            {"workflow_id": "x", "priorty": 1},
            "body.priorty: unknown field 'priorty'; did you mean 'priority'?",
        ),
        ("/jobs", {"priority": 1}, "body.workflow_id: is required"),
        ("/jobs", {"workflow_id": "x", "priority": 11}, "body.priority: must be less than or equal to 10"),
        ("/jobs", [], "body: must be an object"),
        (f"/jobs/{JOB}/cancel", {"zzz": 1}, "body.zzz: unknown field 'zzz'; known names are by, reason"),
        (
            f"/jobs/{JOB}/retry",
            {"node": "a", "stage": "b"},
            "body: name either a node, a stage, or a fan_out whose failed",
        ),
    ],
)
async def test_an_error_is_described_in_plain_words(shared_database, path, sent, message):
    async with api(shared_database) as client:
        response = await client.post(V1 + path, json=sent)

    problem = check(response, 422, "request.invalid")
    assert problem["detail"].startswith(message)
    assert "/openapi.json" in problem["hint"]


@pytest.mark.requirement("O1", "X2")
@pytest.mark.parametrize(
    ("sent", "mistake"),
    [
        ({f"platform_i{number}": 1 for number in range(50_000)}, "body: must have at most 200 fields"),
        (
            {"platform_id": "x", "source": {}, "platform_refs": {f"r{number}": [] for number in range(50_000)}},
            "body.platform_refs: must have at most 200 fields",
        ),
        (
            {"platform_id": "x", "source": {"blobs": [1] * 100_000}, "platform_refs": {}},
            "body.source.blobs: must have at most 10000 items",
        ),
        (
            {"platform_id": "x", "source": {"blobs": [1] * 9_000}, "platform_refs": {}},
            "body.source.blobs.0: must be a valid string",
        ),
        (
            {"platform_id": "x", "source": {}, **{f"platform_i{number}": 1 for number in range(100)}},
            "body.platform_refs: is required",
        ),
    ],
)
async def test_the_response_to_thousands_of_mistakes_is_short(shared_database, sent, mistake):
    async with api(shared_database) as client:
        response = await client.post(f"{V1}/submit", json=sent)

    problem = check(response, 422, "request.invalid")
    assert problem["detail"].startswith(mistake)
    assert len(problem["errors"]) <= MAX_MISTAKES
    assert len(response.content) < 10_000


@pytest.mark.requirement("O1")
async def test_the_error_for_invalid_json_has_line_and_column(shared_database):
    async with api(shared_database) as client:
        response = await client.post(
            f"{V1}/jobs", content=b'{"workflow_id": "x",\n "priority": }', headers={"content-type": "application/json"}
        )

    problem = check(response, 422, "request.invalid")
    assert problem["detail"] == "body: not valid JSON: expecting value at line 2, column 14"
    assert (problem["errors"][0]["line"], problem["errors"][0]["column"]) == (2, 14)


@pytest.mark.requirement("O1")
async def test_the_error_for_an_unknown_workflow_names_no_folders(shared_database, tmp_path):
    (tmp_path / "broken.yaml").write_text("workflow_id: broken\nnodes: {}\n")

    async with api(shared_database, workflow_folders=str(tmp_path)) as client:
        response = await client.post(f"{V1}/jobs", json={"workflow_id": "broken"})

    problem = check(response, 404, "workflow.not-found")
    assert "refused: broken.yaml:" in problem["hint"]
    assert str(tmp_path) not in response.text


@pytest.mark.requirement("O1")
async def test_a_misspelt_workflow_gets_a_suggestion(shared_database):
    async with api(shared_database) as client:
        response = await client.post(f"{V1}/jobs", json={"workflow_id": "helo_world"})

    assert check(response, 404, "workflow.not-found")["detail"] == (
        "no workflow is named 'helo_world'; did you mean 'hello_world'?"
    )


@pytest.mark.requirement("O1")
async def test_the_error_for_an_idempotency_key_of_another_workflow_names_that_workflow(shared_database):
    async with api(shared_database) as client:
        first = await client.post(f"{V1}/jobs", json={"workflow_id": "hello_world", "idempotency_key": "mine"})
        other = await client.post(f"{V1}/jobs", json={"workflow_id": "echo_test", "idempotency_key": "mine"})
        inputs = await client.post(
            f"{V1}/jobs",
            json={"workflow_id": "hello_world", "idempotency_key": "mine", "input_params": {"name": "Ada"}},
        )

    problem = check(other, 409, "job.key-conflict")
    message = "the idempotency key 'mine' was already used for a submission of the workflow 'hello_world'"
    assert problem["detail"] == message
    assert problem["facts"]["job_id"] == first.json()["job_id"]
    assert "other inputs" in check(inputs, 409, "job.key-conflict")["detail"]


async def test_the_index_page_links_to_all_pages_and_loads_nothing_from_other_hosts(shared_database):
    async with api(shared_database) as client:
        root = await client.get("/", follow_redirects=True)
        described = (await client.get("/openapi.json")).json()

    assert (root.url.path, root.headers["content-type"]) == ("/docs", "text/html; charset=utf-8")
    assert [path for path in described["paths"] if f"<code>{path}</code>" not in root.text] == []
    assert not {"/", "/docs"} & set(described["paths"])
    assert "http" not in root.text
    assert "<script" not in root.text
    assert "<code>X-Request-ID</code>" in root.text


async def test_the_api_can_be_tried_in_a_browser_without_other_servers(shared_database):
    async with api(shared_database) as client:
        index = (await client.get("/docs")).text
        page = await client.get("/docs/try")
        names = re.findall(r'(?:src|href)="([^"]+)"', page.text)
        loaded = {name: await client.get(f"/docs/{name}", follow_redirects=True) for name in names}
        described = await client.get("/openapi.json")
        refused = await client.get("/docs/assets/redoc.standalone.js")

    assert 'href="docs/try"' in index
    assert {name.rpartition("/")[2] for name in names} == {"swagger-ui.css", "swagger-ui-bundle.js", "try.js", "docs"}
    assert {name: response.status_code for name, response in loaded.items()} == dict.fromkeys(names, 200)
    assert "SwaggerUIBundle" in loaded["assets/swagger-ui-bundle.js"].text
    assert "../openapi.json" in loaded["try.js"].text
    assert described.json()["openapi"].startswith("3.1")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "http" not in policy + page.text
    assert "<script>" not in page.text  # the policy forbids scripts in the page
    assert refused.status_code in {400, 404, 422}


@pytest.mark.requirement("O1")
async def test_the_response_without_a_database_says_when_to_retry():
    async with api("postgresql://nobody@127.0.0.1:1/nothing") as client:
        jobs, submitted, ready, alive, health = await asyncio.gather(
            client.get(f"{V1}/jobs"),
            client.post(f"{V1}/jobs", json={"workflow_id": "hello_world"}),
            client.get("/readyz"),
            client.get("/livez"),
            client.get(f"{V1}/health"),
        )

    for response in (jobs, submitted):
        check(response, 503, "database.unavailable")
        assert response.headers["retry-after"] == "2"
    assert (ready.status_code, ready.json()["is_ready"]) == (503, False)
    assert (alive.status_code, health.status_code) == (200, 200)


@pytest.mark.requirement("D4")
async def test_the_error_for_a_database_without_schema_names_the_command_that_deploys_it(empty_database):
    async with api(empty_database) as client:
        before = await client.get(f"{V1}/jobs")
        ready = await client.get("/readyz")
        deployed = await client.post(f"{V1}/bootstrap/deploy")
        after = await client.get(f"{V1}/jobs")
        ready_now = await client.get("/readyz")

    assert check(before, 503, "database.not-deployed")["hint"] == "run `dagmaster db deploy`"
    assert ready.status_code == 503
    assert deployed.json()["is_current"] is True
    assert (after.status_code, ready_now.status_code) == (200, 200)
