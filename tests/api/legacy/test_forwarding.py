"""Operation next to the old system, which a small server imitates, with and without faults."""

import re
import time
from pathlib import Path

import pytest
import structlog

import dagmaster
from tests.api.legacy.old_server import OLD_ID, old_server
from tests.api.serving import api, app_of, ok, served
from tests.gateway.kit import NO_SERVER, bearer, key_of

pytestmark = pytest.mark.requirement("O4")

PLANTED = "planted-function-key"


async def count_jobs(client) -> int:
    return len((await ok(client.get("/api/v1/jobs")))["items"])


async def test_submissions_are_forwarded_by_their_shares_and_unknown_jobs_are_requested_from_the_old_system(
    shared_database,
):
    with old_server() as old:
        settings = {"legacy_url": old.url, "legacy_shares": "echo_test=100,hello_world=0", "legacy_key": PLANTED}
        async with api(shared_database, **settings) as client:
            forwarded = await ok(client.post("/api/jobs/submit/echo_test?resume=true", json={"message": "hi"}))
            submitted = await ok(client.post("/api/jobs/submit/hello_world", json={}))
            unlisted = await ok(client.post("/api/jobs/submit/demo", json={}))
            status = await ok(client.get(f"/api/jobs/status/{OLD_ID}"))
            retried = await ok(client.post(f"/api/jobs/retry-stage/{OLD_ID}/3"))
            tasks = await ok(client.get(f"/api/dbadmin/tasks/{OLD_ID}", params={"stage": 2}))
            unknown = await client.get("/api/jobs/status/0198b2c4-7c1e-7a10-8f00-2f6f6e1c9a01")
            own = await ok(client.get(submitted["status_url"]))

    assert (forwarded["job_id"], forwarded["served_by"], forwarded["servedBy"]) == (OLD_ID, "legacy", "legacy")
    assert [response["served_by"] for response in (submitted, unlisted, own)] == ["dagmaster"] * 3
    assert (status["jobId"], status["served_by"]) == (OLD_ID, "legacy")
    assert (retried["status"], retried["served_by"]) == ("stage_retry_initiated", "legacy")
    assert tasks["tasks"] == [{"task_id": "8d471f99635793f6", "score": None}]
    assert unknown.status_code == 404
    assert unknown.json()["served_by"] == "legacy"
    assert old.paths == [
        "/api/jobs/submit/echo_test",
        f"/api/jobs/status/{OLD_ID}",
        f"/api/jobs/retry-stage/{OLD_ID}/3",
        f"/api/dbadmin/tasks/{OLD_ID}?limit=200&offset=0&stage=2",
        "/api/jobs/status/0198b2c4-7c1e-7a10-8f00-2f6f6e1c9a01",
    ]
    assert old.jobs[OLD_ID]["parameters"] == {"message": "hi", "resume": True}
    assert old.received[0][2]["x-functions-key"] == PLANTED


async def test_credentials_of_the_caller_are_not_forwarded_and_forwarding_requires_the_permission(database):
    operator, author = [await key_of(database, scope, scope) for scope in ("operator", "author")]
    with old_server() as old:
        async with api(database, auth_enabled=True, legacy_url=old.url, legacy_shares="*=100") as client:
            headers = {**bearer(operator), "Cookie": "session=1", "X-Request-ID": "mine"}
            await ok(client.post("/api/jobs/submit/anything", json={}, headers=headers))
            refused = [
                await client.post("/api/jobs/submit/anything", json={}),
                await client.post("/api/jobs/submit/anything", json={}, headers=bearer(author)),
                await client.get(f"/api/jobs/status/{OLD_ID}"),
                await client.post(f"/api/jobs/retry-stage/{OLD_ID}/1", headers=bearer(author)),
            ]

    assert [response.status_code for response in refused] == [401, 403, 401, 403]
    assert len(old.received) == 1
    sent = str(old.received)
    assert operator not in sent
    assert "session" not in sent
    assert "x-functions-key" not in sent.lower()


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        ("slow", 504, "legacy.no-response"),
        ("drip", 504, "legacy.no-response"),
        ("cut", 504, "legacy.no-response"),
        ("no HTTP", 504, "legacy.no-response"),
        ("500", 502, "legacy.bad-response"),
        ("html", 502, "legacy.bad-response"),
        ("list", 502, "legacy.bad-response"),
        ("deep", 502, "legacy.bad-response"),
        ("huge", 502, "legacy.bad-response"),
        ("redirect", 502, "legacy.bad-response"),
        ("unauthorized", 502, "legacy.bad-response"),
    ],
)
async def test_a_fault_of_the_old_system_is_reported_and_no_job_runs_on_this_platform_instead(
    shared_database, fault, status, code
):
    with old_server(fault) as old:
        settings = {"legacy_url": old.url, "legacy_shares": "*=100", "legacy_timeout_sec": 0.7, "legacy_key": PLANTED}
        async with api(shared_database, **settings) as client:
            before = await count_jobs(client)
            started = time.monotonic()
            submitted = await client.post("/api/jobs/submit/echo_test", json={})
            seconds = time.monotonic() - started
            response = await client.get(f"/api/jobs/status/{OLD_ID}")
            after = await count_jobs(client)

    for answer in (submitted, response):
        assert (answer.status_code, answer.json()["error"]) == (status, code), answer.text
        assert "hunter2" not in answer.text
        assert PLANTED not in answer.text
    assert seconds < 5
    assert before == after
    assert old.paths == [
        "/api/jobs/submit/echo_test",
        f"/api/jobs/status/{OLD_ID}",
    ]  # one request each, and no redirect is followed


async def test_values_that_json_does_not_have_and_errors_without_json_are_passed_on_in_valid_json(shared_database):
    with old_server("odd numbers") as old:
        async with api(shared_database, legacy_url=old.url) as client:
            odd = await ok(client.get(f"/api/jobs/status/{OLD_ID}"))
            old.fault = "text 400"
            refused = await client.get(f"/api/jobs/status/{OLD_ID}")

    assert (odd["a"], odd["b"], odd["c"]) == (None, None, 10**40)
    assert (refused.status_code, refused.json()["served_by"]) == (400, "legacy")


async def test_an_old_system_that_is_down_is_reported_and_jobs_of_this_platform_are_not_affected(shared_database):
    async with api(shared_database, legacy_url=NO_SERVER, legacy_shares="echo_test=100") as client:
        down = await client.post("/api/jobs/submit/echo_test", json={})
        unknown = await client.get(f"/api/jobs/status/{OLD_ID}")
        submitted = await ok(client.post("/api/jobs/submit/hello_world", json={"name": "x"}))
        status = await ok(client.get(submitted["status_url"]))

    assert [(response.status_code, response.json()["code"]) for response in (down, unknown)] == [
        (503, "legacy.unreachable")
    ] * 2
    assert "retry-after" in down.headers
    assert status["status"] == "queued"


async def test_if_the_old_system_is_read_only_reads_are_forwarded_and_changes_are_not(shared_database):
    with old_server() as old:
        old.jobs[OLD_ID] = {}
        settings = {"legacy_url": old.url, "legacy_shares": "*=100", "legacy_read_only": True}
        async with api(shared_database, **settings) as client:
            submitted = await ok(client.post("/api/jobs/submit/demo", json={"count": 7}))
            status = await ok(client.get(f"/api/jobs/status/{OLD_ID}"))
            retried = await client.post(f"/api/jobs/retry-stage/{OLD_ID}/3")

    assert (submitted["served_by"], status["served_by"]) == ("dagmaster", "legacy")
    assert (retried.status_code, retried.json()["code"]) == (409, "legacy.read-only")
    assert old.paths == [f"/api/jobs/status/{OLD_ID}"]


async def test_a_platform_configured_as_its_own_old_system_does_not_forward_endlessly(shared_database):
    app = app_of(shared_database)
    async with served(app) as server, api(shared_database, legacy_url=server.url, legacy_shares="*=100") as client:
        app.state.services.old_system = client._transport.app.state.services.old_system  # it points to itself
        unknown = await client.get(f"/api/jobs/status/{OLD_ID}")
        submitted = await ok(client.post("/api/jobs/submit/demo", json={"count": 8}))

    assert unknown.status_code == 404
    assert submitted["status"] == "queued"


async def test_the_caller_of_a_forwarded_request_is_logged_without_secrets(shared_database):
    with old_server() as old, structlog.testing.capture_logs() as lines:
        settings = {"legacy_url": old.url, "legacy_shares": "*=100", "legacy_key": PLANTED}
        async with api(shared_database, **settings) as client:
            await ok(client.post("/api/jobs/submit/echo_test", json={"message": "sig=abc"}))

    (line,) = [line for line in lines if "forwarded" in line["event"]]
    assert (line["by"], line["path"], line["status"]) == ("local", "/api/jobs/submit/echo_test", 200)
    assert PLANTED not in str(lines)


def test_no_statement_names_the_schema_of_the_old_system():
    """The old system keeps its tables in the schema `app`."""

    names_app = re.compile(
        r"""(?<![\w.'"/-])"?app"?\s*\.\s*"?(?:jobs|tasks|\w+)"?|SCHEMA\s+(?:IF\s+(?:NOT\s+)?EXISTS\s+)?"?app"?\b|search_path[^;\n]*\bapp\b""",
        re.IGNORECASE,
    )
    root = Path(dagmaster.__file__).parent
    statements = list(root.rglob("*.sql"))
    assert len(statements) > 20
    assert names_app.search("SELECT 1 FROM app.jobs")
    assert names_app.search("DROP SCHEMA IF EXISTS app CASCADE")
    assert [str(path) for path in statements if names_app.search(path.read_text())] == []
