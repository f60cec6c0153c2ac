"""Callers of the API: the permissions of each scope, the recorded actor, and that no key is ever written anywhere."""

import asyncio
import json
from contextlib import asynccontextmanager

import psycopg
import pytest
import structlog

from dagmaster.access.caller import Scope
from dagmaster.access.permissions import ALLOWED, Permission
from dagmaster.api.app import create_app
from dagmaster.client.models.assets import KeyRequest
from dagmaster.database.assets.keys import KeyChange, KeyStore
from dagmaster.handlers.registry import installed
from dagmaster.library.workflows import WorkflowLibrary
from dagmaster.observe import log
from dagmaster.operations.keys import create_key
from dagmaster.settings import load
from dagmaster.web.authentication import permission_of, routes_of
from tests.api.serving import V1, api, app_of, ok, served
from tests.engine.harness import engine, until, workflow
from tests.web.issuer import AUDIENCE, issuer
from tests.web.problems import check

pytestmark = pytest.mark.requirement("X1")

GATED = """
    workflow_id: gated
    nodes:
      start: {type: start, next: busy}
      busy: {handler: gate, next: end}
      end: {type: end}
"""
HELLO = """
workflow_id: mine
nodes:
  start: {type: start, next: greet}
  greet: {handler: hello_world, next: end}
  end: {type: end}
"""
APP = create_app(load(), "postgresql://nobody@127.0.0.1:1/none", WorkflowLibrary({}), installed())
ROUTES = sorted(
    (method, route.path, permission_of(route))
    for route in routes_of(APP.routes)
    for method in route.methods - {"HEAD"}
    if route.path.startswith("/api/")
)


def url_of(path):
    """The path of a route with valid ids."""
    url = path.replace("{job_id}", "0198b2c4-7c1e-7a10-8f00-2f6f6e1c9a01").replace(
        "{dead_letter_id}", "b8a1f6a2-2a44-4a38-9c1f-0d5f0f0f7a11"
    )
    return f"{url}?after=invalid" if path.endswith("/stream") else url  # a stream of changes never ends


@asynccontextmanager
async def keys_of(dsn, *scopes):
    """A key for each scope, by its name."""
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "INSERT INTO dagapp.platforms (platform_id, display_name, required_refs) VALUES ('hub', 'Hub', '{dataset}')"
        )
    async with KeyStore(dsn) as store:
        yield {
            scope: (
                await create_key(
                    store,
                    KeyRequest(name=f"a {scope}", scopes=[scope], platform_id="hub" if scope == "b2b" else None),
                    KeyChange("test"),
                )
            ).key
            for scope in scopes
        }


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


async def test_every_scope_can_use_exactly_the_routes_that_it_allows(database):
    """A request that is not refused may still be invalid: the ids in its path do not exist."""
    async with keys_of(database, *Scope) as keys, api(database, auth_enabled=True) as client:
        for method, path, permission in ROUTES:
            url = url_of(path)
            anonymous = await client.request(method, url)
            assert (anonymous.status_code == 401) == (permission is not Permission.ANYONE), (method, path)
            for scope, key in keys.items():
                if permission is Permission.SCHEMA_WRITE and scope == "admin":
                    continue  # it would change the schema
                response = await client.request(method, url, headers=bearer(key))
                is_allowed = permission is Permission.ANYONE or permission in ALLOWED[scope]
                assert (response.status_code == 403) == (not is_allowed), (method, path, scope, response.text)
                assert response.status_code != 401


async def test_submitting_a_definition_requires_its_own_permission(database):
    async with (
        engine(database, workers=0) as running,
        keys_of(database, "author", "operator") as keys,
        api(database, running, auth_enabled=True) as client,
    ):
        body = {"workflow_id": "mine", "definition": HELLO}
        author = await client.post(f"{V1}/jobs", json=body, headers=bearer(keys["author"]))
        operator = await client.post(f"{V1}/jobs", json=body, headers=bearer(keys["operator"]))

    assert author.status_code == 202
    problem = check(operator, 403, "auth.not-allowed")
    assert problem["facts"]["permission"] == "workflows:write"


@pytest.mark.requirement("X3")
async def test_the_caller_is_recorded_as_the_actor_even_if_the_request_names_another(database):
    async with (
        engine(database) as running,
        keys_of(database, "author", "operator") as keys,
        api(database, running, auth_enabled=True) as client,
    ):
        client.headers.update(bearer(keys["author"]))
        body = {"workflow_id": "gated", "definition": GATED, "submitted_by": "another person"}
        job_id = (await ok(client.post(f"{V1}/jobs", json=body), 202))["job_id"]
        await until(lambda: running.rows("SELECT 1 FROM dagapp.dag_tasks WHERE status = 'running'"))
        client.headers.update(bearer(keys["operator"]))
        cancelled = await ok(
            client.post(f"{V1}/jobs/{job_id}/cancel", params={"wait": 20}, json={"by": "another person"}), 202
        )
        await ok(client.post(f"{V1}/jobs/{job_id}/resume", json={"by": "another person"}), 202)
        job = (await ok(client.get(f"{V1}/jobs/{job_id}")))["job"]
        events = await ok(client.get(f"{V1}/jobs/{job_id}/events", params={"limit": 200}))
        await ok(client.post(f"{V1}/jobs/{job_id}/cancel", params={"wait": 20}), 202)

    assert job["submitted_by"] == "a author"
    assert cancelled["requested_by"] == "a operator"
    resumed = [event for event in events["items"] if event["event_type"] == "job_resumed"]
    assert resumed[0]["event_data"]["by"] == "a operator"
    assert "another person" not in json.dumps(events)


async def test_idempotency_keys_of_different_callers_are_different(database):
    body = {"workflow_id": "hello_world", "idempotency_key": "same", "submitted_by": "same"}
    async with (
        engine(database, workers=0) as running,
        keys_of(database, "author", "operator") as keys,
        api(database, running, auth_enabled=True) as client,
    ):
        jobs = [
            (await client.post(f"{V1}/jobs", json=body, headers=bearer(keys[scope]))).json()["job_id"]
            for scope in ("author", "author", "operator")
        ]

    assert jobs[0] == jobs[1] != jobs[2]


async def test_a_worker_key_reports_a_task_and_nothing_else(database):
    async with (
        engine(database) as running,
        keys_of(database, "worker", "admin") as keys,
        api(database, running, auth_enabled=True) as client,
    ):
        job_id = await running.submit(workflow(GATED))
        await until(lambda: running.rows("SELECT 1 FROM dagapp.dag_tasks WHERE status = 'running'"))
        report = {
            "task_id": f"{job_id}_busy_1",
            "worker_id": str(running.workers[0].worker_id),
            "status": "succeeded",
            "output": {"by": "http"},
        }
        url = f"{V1}/callbacks/task-result"
        anonymous = await client.post(url, json=report)
        reported = await ok(client.post(url, json=report, headers=bearer(keys["worker"])))
        await running.wait(job_id)
        read = await client.get(f"{V1}/jobs/{job_id}", headers=bearer(keys["worker"]))

    check(anonymous, 401, "auth.required")
    assert reported == {"accepted": True}
    check(read, 403, "auth.not-allowed")


async def test_probes_show_no_details_to_anonymous_callers(database):
    async with (
        engine(database, workers=0) as running,
        keys_of(database, "operator") as keys,
        api(database, running, auth_enabled=True) as client,
    ):
        anonymous = await client.get("/readyz")
        operator = await client.get("/readyz", headers=bearer(keys["operator"]))
        metrics = await client.get("/metrics")

    assert {check["detail"] for check in anonymous.json()["checks"]} == {""}
    assert "" not in {check["detail"] for check in operator.json()["checks"]}
    check(metrics, 401, "auth.required")


async def test_a_token_of_the_issuer_is_accepted_and_its_outage_is_reported(database):
    with issuer() as local:
        chosen = {"auth_enabled": True, "oidc_issuer": local.url, "oidc_audience": AUDIENCE}
        async with api(database, **chosen) as client:
            caller = await ok(client.get(f"{V1}/caller", headers=bearer(local.token(roles=["operator"]))))
            expired = await client.get(f"{V1}/caller", headers=bearer(local.token(exp=1)))
            no_roles = await client.get(f"{V1}/jobs", headers=bearer(local.token(roles=[])))
        local.answers["/keys"] = (500, b"")
        async with api(database, **chosen) as client:
            away = await client.get(f"{V1}/caller", headers=bearer(local.token()))

    assert (caller["name"], caller["scopes"]) == ("oidc:ada", ["operator"])
    check(expired, 401, "auth.expired")
    check(no_roles, 403, "auth.not-allowed")
    check(away, 503, "auth.issuer-unavailable")
    assert away.headers["retry-after"]


async def test_without_authentication_credentials_are_ignored(database):
    async with api(database) as client:
        caller = await ok(client.get(f"{V1}/caller", headers=bearer("dgm_nonsense")))

    assert (caller["name"], caller["scopes"], caller["is_authentication_enabled"]) == ("local", ["admin"], False)


@pytest.fixture
def restored_logs():
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.mark.requirement("X3")
@pytest.mark.usefixtures("restored_logs")
async def test_a_key_appears_in_no_log_error_event_or_table(database, capfd):
    """The key is sent to a real port with every mistake that a client can make."""
    async with (
        engine(database, workers=0) as running,
        keys_of(database, "author", "admin") as keys,
        served(app_of(database, running, auth_enabled=True)) as server,
    ):
        log.configure("debug", "json")
        key = keys["author"]
        responses = await asyncio.to_thread(_misuse, server.url, key, keys["admin"])
    secrets = [text.split("_", 2)[2] for text in (key, keys["admin"])]

    with psycopg.connect(database) as connection:
        tables = connection.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'dagapp'::regnamespace AND relkind IN ('r', 'p')"
        ).fetchall()
        stored = " ".join(
            str(connection.execute(f"SELECT string_agg(t::text, ' ') FROM dagapp.{table} AS t").fetchone())
            for (table,) in tables
        )
    written = "".join(capfd.readouterr())
    assert '"event": "request"' in written
    for secret in secrets:
        assert secret not in written
        assert secret not in stored
        for response in responses:
            assert secret not in response


def _misuse(url, key, admin):
    from httpx2 import Client

    with Client(base_url=url, headers={"Authorization": f"Bearer {admin}"}, timeout=20) as client:
        responses = [
            client.get(f"{V1}/jobs", headers={"Authorization": key}),
            client.get(f"{V1}/jobs", headers={"Authorization": f"Basic {key}"}),
            client.get(f"{V1}/jobs", headers={"Authorization": f"Bearer {key} {key}"}),
            client.get(f"{V1}/jobs", headers={"X-API-Key": key}),
            client.get(f"{V1}/jobs", headers={"X-API-Key": f"{key}x", "Authorization": f"Bearer {key}x"}),
            client.get(f"{V1}/jobs", params={"after": key}),
            client.get(f"{V1}/jobs", params={"since": key}),
            client.get(f"{V1}/{key}"),
            client.get(f"{V1}/jobs/{key}"),
            client.get(f"{V1}/workflows/{key}"),
            client.get(f"{V1}/dead-letters", params={"after": key}),
            client.get(f"{V1}/janitor/actions", params={"after": key}),
            client.put(f"{V1}/queues/{key}", json={"is_paused": True}),
            client.post(f"{V1}/keys/{key}/revoke", json={"reason": "leaked"}),
            client.post(f"{V1}/keys", json={"name": key, "scopes": [key]}),
            client.post(f"{V1}/keys", json={"name": f"of {key}"[:64], "scopes": ["viewer"], key: 1}),
            client.post(f"{V1}/jobs", json={"workflow_id": key[:64]}),
            client.post(f"{V1}/jobs", json={"workflow_id": "hello_world", key: 1}),
            client.post(f"{V1}/workflows/validate", content=f"workflow_id: {key}"),
            client.post(f"{V1}/callbacks/task-result", json={"task_id": key, "worker_id": "w", "status": "succeeded"}),
        ]
    assert {response.status_code for response in responses} >= {400, 401, 404, 422}
    return [response.text for response in responses]
