"""Attacks of callers on the gateway and on the orchestrator behind it.

Operations and fields are read from the OpenAPI documents, so that what is added later is attacked too. Elsewhere:
forged and replayed signatures of callbacks (callbacks/test_signing.py) and of links (access/test_links.py,
serving/test_signed_links.py), names that change their address and redirects (callbacks/test_webhook.py), notations of
addresses (test_callback_urls.py, test_ip_addresses.py), hostile rasters (raster/test_attacks.py).
"""

import asyncio
import json
import statistics
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from urllib.parse import quote

import httpx2
import psycopg
import pytest
from fastapi import FastAPI

from dagmaster.database.callbacks.store import PostgresCallbacks
from dagmaster.gateway.app import create_app
from dagmaster.listen import bind
from dagmaster.observe import log
from dagmaster.orchestrator import webhook
from dagmaster.orchestrator.callbacks import CallbackSender
from dagmaster.settings import Settings
from dagmaster.web.server import TimedProtocol, WebServer
from tests import hostile
from tests.api.serving import app_of, ok, served
from tests.callbacks.receivers import receiver
from tests.engine.harness import engine
from tests.gateway.kit import bearer, gateway_dsn, key_of
from tests.operations.kit import Kit, opened
from tests.test_callback_urls import ALWAYS_REFUSED, NEEDS_THE_SETTING, PRIVATE
from tests.web.problems import check

pytestmark = pytest.mark.requirement("X2")

REFS = {"dataset_id": "floods", "resource_id": "r1", "version_id": "2024"}
# They change the schema, end the connection of the test, or stream until the client leaves.
SKIPPED = ("/bootstrap/", "/stream", "/ui")
DESCRIPTIONS: dict[str, dict] = {}


@dataclass
class Site:
    """A gateway and an orchestrator that listen, and a client of each with the key of an administrator."""

    dsn: str
    gateway: httpx2.AsyncClient
    orchestrator: httpx2.AsyncClient
    apps: dict[str, FastAPI]

    def description(self, name: str) -> dict:
        """The OpenAPI document of an app. It is cached, because generating it takes a second."""
        if name not in DESCRIPTIONS:
            DESCRIPTIONS[name] = self.apps[name].openapi()
        return DESCRIPTIONS[name]

    def clients(self):
        return {"gateway": self.gateway, "orchestrator": self.orchestrator}.items()

    async def counts(self) -> dict[str, int]:
        tables = ("dag_jobs", "geospatial_assets", "asset_revisions", "asset_submissions")
        async with await psycopg.AsyncConnection.connect(self.dsn) as connection:
            return {
                table: (await (await connection.execute(f"SELECT count(*) FROM dagapp.{table}")).fetchone())[0]
                for table in tables
            }


@pytest.fixture
async def kit(catalog_database, tmp_path):
    async with opened(catalog_database, tmp_path) as opened_kit:
        opened_kit.put("ddh/floods.tif", b"pixels")
        opened_kit.put("geonode/other.tif", b"pixels")
        yield opened_kit


@asynccontextmanager
async def served_gateway(app):
    """The gateway on a free port."""
    server = WebServer(app, bind("127.0.0.1", 0))
    task = asyncio.create_task(server.run())
    await server.until_started()
    try:
        yield server
    finally:
        server.finish()
        await asyncio.wait_for(task, 20)


@asynccontextmanager
async def site(kit: Kit, folder):
    log.configure("error")
    admin = bearer(await key_of(kit.dsn, "an admin", "admin"))
    async with AsyncExitStack() as stack:
        api = app_of(kit.dsn, auth_enabled=True, storage_folder=folder)
        orchestrator = await stack.enter_async_context(served(api))
        settings = Settings(
            auth_enabled=True,
            gateway_burst=1_000_000,
            gateway_rate_per_second=100_000,
            orchestrator_urls=orchestrator.url,
        )
        app = create_app(settings, await gateway_dsn(kit.dsn))
        gateway = await stack.enter_async_context(served_gateway(app))
        clients = [
            await stack.enter_async_context(httpx2.AsyncClient(base_url=server.url, headers=admin, timeout=30))
            for server in (gateway, orchestrator)
        ]
        yield Site(kit.dsn, *clients, {"gateway": app, "orchestrator": api})


def submission(**changed):
    return {"platform_id": "ddh", "platform_refs": REFS, "source": {"blob": "ddh/floods.tif"}, **changed}


CALLBACK_URLS = [
    *dict.fromkeys([*ALWAYS_REFUSED, *PRIVATE, *NEEDS_THE_SETTING]),
    *(url.replace("http://", "https://", 1) for url in PRIVATE if url.startswith("http://")),
    "http://hub.example/done",
    "https://127.0.0.1/",
    "https://2130706433/",
    "https://0x7f000001/",
    "https://0177.0.0.1/",
    "https://127.1/",
    "https://[::1]/",
    "https://[::ffff:127.0.0.1]/",
    "https://[::ffff:7f00:1]/",
    "https://[64:ff9b::7f00:1]/",
    "https://[fe80::1%25eth0]/",
    "https://169.254.169.254/latest/meta-data/",
    "https://2852039166/",
    "https://[fd00:ec2::254]/",
    "https://168.63.129.16/",
    "https://metadata.google.internal/",
    "https://localhost/",
    "https://localhost./",
    "https://hub.example:22/",
    "https://hub.example:0/",
    "https://user:pw@hub.example/",
    "https://hub.example@127.0.0.1/",
    "https://hub.example\\@127.0.0.1/",
    "https://hub.example#@127.0.0.1/\r\nX: y",
    "file:///etc/passwd",
    "gopher://hub.example/",
    "//hub.example/",
    "https://",
    "",
    "https://ⓛocalhost/",
    "https://10.0.0.1/",
    "https://100.64.0.1/",
    "https://0/",
]
BLOBS = [
    "ddh/../geonode/other.tif",
    "../etc/passwd",
    "/etc/passwd",
    "/vsicurl/http://169.254.169.254/latest",
    "/vsizip/x.zip",
    "https://169.254.169.254/latest/meta-data",
    "https://example.org/x.tif",
    "file:///etc/passwd",
    "ddh/%2e%2e/geonode/other.tif",
    "ddh\\..\\geonode\\other.tif",
    "ddh/floods.tif\x00.png",
    "ddh//floods.tif",
    "ddh/./floods.tif",
    "<VRTDataset/>",
    "WMS:http://127.0.0.1/",
    "ddh/floods.tif?header_file=/etc/passwd",
    "",
    "d" * 5000,
]
CONTAINERS = ["../bronze", "silver", "external", "/", ".", "..", "bronze/ddh", "BRONZE", "bronze\x00", "a" * 5000]


async def test_private_callback_urls_and_foreign_object_names_are_refused_and_nothing_is_created(kit: Kit, tmp_path):
    hub = bearer(await key_of(kit.dsn, "hub", "b2b", platform="ddh"))
    async with site(kit, tmp_path) as place:
        before = await place.counts()
        responses = {}
        for url in CALLBACK_URLS:
            body = submission(callback_url=url)
            responses["partner", url] = await place.gateway.post("/api/platform/submit", json=body, headers=hub)
            job = {"workflow_id": "hello_world", "callback_url": url}
            responses["operator", url] = await place.gateway.post("/api/gateway/submit", json=job)
            responses["dry run", url] = await place.gateway.post(
                "/api/platform/submit", json=body | {"dry_run": True}, headers=hub
            )
            responses["old API", url] = await place.orchestrator.post(
                "/api/jobs/submit/raster_ingest", json={"blob_name": "ddh/floods.tif", "callback_url": url}
            )
            for field in ("successUri", "inProgressUri", "failedUri"):
                subscriber = {"successUri": "https://hub.example/done"} | {field: url}
                responses[field, url] = await place.gateway.post(
                    "/api/platform/submit", json=submission(subscriber=subscriber), headers=hub
                )
        jobs = [{"workflow_id": "hello_world", "callback_url": url} for url in CALLBACK_URLS]
        batches = [
            await ok(place.gateway.post("/api/gateway/submit/batch", json={"submissions": part}))
            for part in (jobs[:60], jobs[60:])
        ]
        for blob in BLOBS:
            for source in ({"blob": blob}, {"blobs": ["ddh/floods.tif", blob]}):
                body = submission(source=source)
                responses["partner", str(source)] = await place.gateway.post(
                    "/api/platform/submit", json=body, headers=hub
                )
                responses["admin", str(source)] = await place.orchestrator.post("/api/v1/submit", json=body)
            upload = {"name": blob, "size_bytes": 3}
            begun = await place.gateway.post("/api/platform/uploads", json=upload, headers=hub)
            if begun.status_code == 201:  # this is a valid name below the prefix of the platform
                assert begun.json()["source"]["blob"] == f"ddh/{blob}"
                assert not {"", ".", ".."} & set(blob.split("/"))
            else:
                responses["upload", blob] = begun
            old = {"blob_name": blob}
            responses["old API", blob] = await place.orchestrator.post("/api/jobs/submit/raster_ingest", json=old)
        for container in CONTAINERS:
            body = submission(source={"container": container, "blob": "ddh/floods.tif"})
            responses["container", container] = await place.gateway.post("/api/platform/submit", json=body, headers=hub)
        after = await place.counts()

    wrong = {case: (answer.status_code, answer.text[:200]) for case, answer in responses.items() if _is_wrong(answer)}
    assert wrong == {}
    entries = [entry for batch in batches for entry in batch["results"]]
    assert {entry["status"] for entry in entries} <= {400, 422}
    assert len(entries) == len(CALLBACK_URLS)
    assert before == after


def _is_wrong(answer) -> bool:
    is_problem = answer.headers["content-type"] == "application/problem+json"
    return answer.status_code not in (400, 403, 404, 422) or not is_problem or "root:" in answer.text


@pytest.mark.requirement("E24")
async def test_a_host_name_that_resolves_to_a_private_address_at_delivery_is_not_called(
    kit: Kit, tmp_path, monkeypatch
):
    """The name is public when a partner submits it. When it is called, its resolver answers with private addresses, or
    the receiver redirects there."""
    hub = bearer(await key_of(kit.dsn, "hub", "b2b", platform="ddh"))
    hosts = {
        "rebound.example": ["127.0.0.1"],
        "mixed.example": ["93.184.216.34", "169.254.169.254"],
        "mapped.example": ["::ffff:10.0.0.1"],
        "metadata.example": ["fd00:ec2::254"],
        "again.example": ["192.168.1.1"],
    }
    connected = []

    async def connect(*where, **_options):
        connected.append(where)
        raise OSError("refused")

    async def resolve(host, _port):
        return hosts[host]

    monkeypatch.setattr(asyncio, "open_connection", connect)
    async with site(kit, tmp_path) as place:
        for number, host in enumerate(hosts):
            kit.put(f"ddh/{number}.tif", b"pixels")
            body = submission(
                callback_url=f"https://{host}/done",
                request_id=host,
                platform_refs={**REFS, "dataset_id": f"d{number}"},
                source={"blob": f"ddh/{number}.tif"},
            )
            await ok(place.gateway.post("/api/platform/submit", json=body, headers=hub), 202)
    for row in await kit.rows("SELECT job_id FROM dagapp.dag_jobs"):
        await kit.end_job(row["job_id"], "failed")
    sender = CallbackSender(
        Settings(), PostgresCallbacks(kit.dsn, "test-callbacks"), send=partial(webhook.send, resolve=resolve)
    )
    await sender.run_once()
    await sender.settle()
    await sender.close()
    events = await kit.rows("SELECT request_id, state FROM dagapp.callback_events ORDER BY request_id")
    deliveries = await kit.rows("SELECT error FROM dagapp.callback_deliveries")

    assert connected == []
    assert {event["request_id"]: event["state"] for event in events} == dict.fromkeys(sorted(hosts), "failed")
    assert len(deliveries) == len(hosts)


async def test_the_proxy_forwards_only_to_its_target(kit: Kit, tmp_path):
    paths = ["..", "../..", "%2e%2e/x", "%252e%252e/x", "/evil.example/", "//evil.example/", "\\evil", "a%5c..%5cb"]
    paths += ["a%0d%0aHost:%20evil", "a%00b", "a%3fb", "@evil.example/", ":80@evil.example/", "http://evil.example/"]
    async with site(kit, tmp_path) as place:
        responses = {}
        for target in ("orchestrator", "worker", "database", "%2e%2e", "http:"):
            for path in paths:
                for method in ("GET", "POST"):
                    url = f"/api/proxy/{target}/{path}"
                    responses[method, url] = await place.gateway.request(method, httpx2.URL(url))

    wrong = {
        case: answer.status_code
        for case, answer in responses.items()
        if answer.status_code not in (400, 404, 405, 422, 503)
    }
    assert wrong == {}
    assert "evil" not in "".join(answer.headers.get("location", "") for answer in responses.values())


async def test_a_server_that_does_not_respond_like_an_orchestrator_is_reported(kit: Kit):
    hub = bearer(await key_of(kit.dsn, "hub", "b2b", platform="ddh"))
    admin = bearer(await key_of(kit.dsn, "an admin", "admin"))
    page = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>"
    not_gzip = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 6\r\n\r\n<html>"
    problem = b"HTTP/1.1 409 No\r\nContent-Type: application/problem+json\r\nContent-Length: 1\r\n\r\n{"
    for response in (page, not_gzip, problem):
        async with receiver(response) as other, AsyncExitStack() as stack:
            settings = Settings(auth_enabled=True, orchestrator_urls=f"http://127.0.0.1:{other.port}")
            gateway = await stack.enter_async_context(served_gateway(create_app(settings, await gateway_dsn(kit.dsn))))
            client = await stack.enter_async_context(httpx2.AsyncClient(base_url=gateway.url, timeout=30))
            one = await client.post("/api/platform/submit", json=submission(), headers=hub)
            many = await client.post("/api/gateway/submit/batch", json={"submissions": [{}]}, headers=admin)

        check(one, 502, "gateway.bad-response")
        assert [entry["status"] for entry in many.json()["results"]] == [502]


async def test_the_proxy_passes_on_any_method(kit: Kit, tmp_path):
    async with site(kit, tmp_path) as place:
        uploads = await place.gateway.options("/api/proxy/orchestrator/api/v1/uploads")
        head = await place.gateway.head(f"/api/proxy/orchestrator/api/v1/uploads/{'0' * 32}")

    assert (uploads.status_code, uploads.headers["tus-version"]) == (204, "1.0.0")
    assert (head.status_code, head.content) == (404, b"")


async def test_malformed_bodies_are_refused_by_every_operation(kit: Kit, tmp_path):
    wrong = {}
    async with site(kit, tmp_path) as place:
        for name, client in place.clients():
            for operation in _attacked(place.description(name), "POST", "PUT", "PATCH"):
                url = hostile.url_of(operation, {})
                for kind, body in hostile.BODIES.items():
                    content_type = {"content-type": "text/plain" if kind == "text" else "application/json"}
                    answer = await client.request(operation.method, url, content=body, headers=content_type)
                    if answer.status_code >= 500 and answer.status_code != 503:
                        wrong[name, operation.name, kind] = answer.text[:300]
        after = await ok(place.orchestrator.get("/api/v1/health"))

    assert wrong == {}
    assert after


async def test_no_field_of_any_operation_is_evaluated(kit: Kit, tmp_path):
    hub = bearer(await key_of(kit.dsn, "hub", "b2b", platform="ddh"))
    wrong, tried = {}, 0
    async with site(kit, tmp_path) as place:
        await ok(place.gateway.post("/api/platform/submit", json=submission(), headers=hub), 202)
        before = await place.counts()
        for name, client in place.clients():
            description = place.description(name)
            for operation in _attacked(description, "GET", "POST", "PUT", "PATCH", "DELETE"):
                for field, request in _injections(description, operation):
                    answer = await client.request(operation.method, **request)
                    tried += 1
                    if reason := _evaluated(answer, field, request):
                        wrong[name, operation.name, field] = reason
        after = await place.counts()
    dump = await _whole_database(kit)

    assert wrong == {}
    assert tried > 500
    assert min(before.values()) == 1
    assert after == before
    assert hostile.EVALUATED not in dump


def _attacked(description, *methods):
    return [each for each in hostile.operations(description, *methods) if not any(s in each.path for s in SKIPPED)]


def _injections(description, operation):
    """Requests with one hostile value each: in the path, in the query, in a field of the body."""
    body = hostile.body_of(description, operation)
    url = hostile.url_of(operation, {})
    for text in hostile.INJECTIONS:
        escaped = quote(text, safe="", errors="surrogatepass")
        for parameter in operation.details.get("parameters", ()):
            if parameter["in"] == "path":
                named = hostile.url_of(operation, {parameter["name"]: escaped})
                yield parameter["name"], _request(named, body)
            elif parameter["in"] == "query":
                yield parameter["name"], _request(f"{url}?{parameter['name']}={escaped}", body)
        for field, changed in hostile.with_injection(body, text) if body is not None else ():
            yield field, _request(url, changed)


def _request(url, body):
    content = b"" if body is None else json.dumps(body).encode()
    return {"url": url, "content": content, "headers": {"content-type": "application/json"}}


def _evaluated(answer, field, request) -> str | None:
    if answer.status_code >= 500 and answer.status_code != 503:
        return f"{answer.status_code} {answer.text[:300]}"
    if hostile.EVALUATED in answer.text:
        return f"evaluated: {answer.text[:300]}"
    if answer.is_success and answer.headers.get("content-type", "").startswith("application/json"):
        sent = [text for text in hostile.INJECTIONS if json.dumps(text).encode() in request["content"]]
        for value in hostile.values_named(answer.json(), field):
            if sent and isinstance(value, str) and value[:3] == sent[0][:3] and value != sent[0]:
                return f"changed: {value[:300]}"
    return None


async def _whole_database(kit: Kit) -> str:
    tables = await kit.rows(
        "SELECT quote_ident(schemaname) || '.' || quote_ident(tablename) AS name FROM pg_tables "
        "WHERE schemaname IN ('dagapp', 'pgstac')"
    )
    parts = []
    for table in tables:
        parts += [str(row) for row in await kit.rows(f"SELECT t::text FROM {table['name']} t")]
    return "\n".join(parts)


@pytest.mark.requirement("W5")
async def test_a_template_in_an_input_is_never_evaluated_by_a_job(database):
    texts = hostile.INJECTIONS[:3]  # the last one cannot be stored
    async with engine(database) as running:
        job = await running.run("echo_test", message=" ".join(texts))
        events = await running.events(job["job_id"])

    assert job["status"] == "completed"
    assert all(text in str(job["result_data"]).replace("\\\\", "\\") for text in texts)
    assert hostile.EVALUATED not in str(job) + str(events)


async def test_ids_of_other_platforms_get_the_same_response_as_unknown_ids(kit: Kit, tmp_path):
    """Every operation that a partner may call gives the same response, in about the same time."""
    hub, other = [
        bearer(await key_of(kit.dsn, name, "b2b", platform=platform))
        for name, platform in (("hub", "ddh"), ("other", "geonode"))
    ]
    async with site(kit, tmp_path) as place:
        receipt = await ok(place.gateway.post("/api/platform/submit", json=submission(), headers=hub), 202)
        (job,) = await kit.rows("SELECT job_id::text FROM dagapp.dag_jobs")
        foreign = {
            "request_id": receipt["request_id"],
            "asset_id": receipt["asset_id"],
            "job_id": job["job_id"],
            "version_ordinal": "0",
            "target": "orchestrator",
            "action": "approve",
        }
        unknown = foreign | {
            "request_id": "0" * 32,
            "asset_id": "0" * 32,
            "job_id": "0198b2c4-7c1e-7a10-8f00-2f6f6e1c9a01",
        }
        differences = {}
        for name, client in place.clients():
            description = place.description(name)
            for operation in _attacked(description, "GET", "POST", "PUT", "PATCH", "DELETE"):
                shown = []
                for known in (foreign, unknown):
                    body = hostile.body_of(description, operation)
                    if isinstance(body, dict) and "request_id" in body:
                        body |= {"request_id": known["request_id"], "clearance_level": None, "reason": "x"}
                    url = hostile.url_of(operation, known)
                    answer = await client.request(operation.method, url, json=body, headers=other)
                    shown.append((answer.status_code, _without_ids(answer, known)))
                if shown[0] != shown[1]:
                    differences[name, operation.name] = shown
        seconds = {
            kind: await _median_seconds(place.gateway, f"/api/platform/status/{known['request_id']}", other)
            for kind, known in (("foreign", foreign), ("unknown", unknown))
        }

    assert differences == {}
    assert max(seconds.values()) < 3 * min(seconds.values()) + 0.02, seconds


@pytest.mark.requirement("G3")
async def test_platforms_can_use_the_same_request_id_without_noticing(kit: Kit, tmp_path):
    hub, other = [
        bearer(await key_of(kit.dsn, name, "b2b", platform=platform))
        for name, platform in (("hub", "ddh"), ("other", "geonode"))
    ]
    first = submission(request_id="order-7", callback_url="https://hub.example/done")
    second = {
        "platform_id": "geonode",
        "platform_refs": {"uuid": "u1", "version": "1"},
        "source": {"blob": "geonode/other.tif"},
        "request_id": "order-7",
        "callback_url": "https://other.example/done",
    }
    async with site(kit, tmp_path) as place:
        receipts, statuses, again = [], [], []
        for body, key in ((first, hub), (second, other)):
            receipts.append(await ok(place.gateway.post("/api/platform/submit", json=body, headers=key), 202))
        for body, key in ((first, hub), (second, other)):
            again.append(await ok(place.gateway.post("/api/platform/submit", json=body, headers=key), 202))
            for client, url in ((place.gateway, "/api/platform/status"), (place.orchestrator, "/api/v1/status")):
                statuses.append(await ok(client.get(f"{url}/order-7", headers=key)))
        changed = await place.gateway.post(
            "/api/platform/submit", json=second | {"version_label": "1", "priority": 3}, headers=other
        )
        listed = await ok(
            place.gateway.get(f"/api/assets/{receipts[1]['asset_id']}/versions/0/requests", headers=other)
        )
        # The clients have the key of an administrator, who sees both requests.
        decision = {"request_id": "order-7", "clearance_level": "public"}
        by_staff = [
            await place.gateway.get("/api/platform/status/order-7"),
            await place.orchestrator.get("/api/v1/status/order-7"),
            await place.gateway.post("/api/platform/approve", json=decision),
        ]
    for row in await kit.rows("SELECT job_id FROM dagapp.dag_jobs"):
        await kit.end_job(row["job_id"], "failed")
    events = await kit.rows("SELECT request_id, platform_id, url FROM dagapp.callback_events ORDER BY platform_id")

    assert receipts == again
    assert [receipt["request_id"] for receipt in receipts] == ["order-7", "order-7"]
    assert receipts[0]["asset_id"] != receipts[1]["asset_id"]
    assert [(status["request_id"], status["asset_id"]) for status in statuses] == [
        ("order-7", receipt["asset_id"]) for receipt in receipts for _ in range(2)
    ]
    check(changed, 409, "submission.id-taken")
    assert [request["request_id"] for request in listed] == ["order-7"]
    for refused in by_staff:
        check(refused, 409, "submission.ambiguous")
    assert [(row["request_id"], row["platform_id"], row["url"]) for row in events] == [
        ("order-7", "ddh", "https://hub.example/done"),
        ("order-7", "geonode", "https://other.example/done"),
    ]


@pytest.mark.requirement("G3")
async def test_platforms_do_not_notice_that_another_one_has_a_dataset_of_the_same_name(kit: Kit, tmp_path):
    hub, other = [
        bearer(await key_of(kit.dsn, name, "b2b", platform=platform))
        for name, platform in (("hub", "ddh"), ("other", "geonode"))
    ]
    body = {
        "platform_id": "geonode",
        "platform_refs": {"uuid": "-".join([REFS["dataset_id"], REFS["resource_id"]]), "version": "1"},
        "source": {"blob": "geonode/other.tif"},
    }
    async with site(kit, tmp_path) as place:

        async def submit(sent, key, status=202):
            return await ok(place.gateway.post("/api/platform/submit", json=sent, headers=key), status)

        before = await submit(body | {"dry_run": True}, other, 200)
        first = await submit(submission(), hub)
        after = await submit(body | {"dry_run": True}, other, 200)
        receipt = await submit(body, other)

    name, asset_id = body["platform_refs"]["uuid"], receipt["asset_id"]
    assert [each["dataset_id"] for each in (before, after, receipt)] == [f"{name}-{asset_id[:8]}"] * 3
    assert first["dataset_id"] == f"{name}-{first['asset_id'][:8]}"


async def test_an_asset_of_another_platform_is_not_found_by_any_of_its_names(kit: Kit, tmp_path):
    hub = bearer(await key_of(kit.dsn, "hub", "b2b", platform="ddh"))
    other_keys = {
        "another platform": bearer(await key_of(kit.dsn, "other", "b2b", platform="geonode")),
        "viewer": bearer(await key_of(kit.dsn, "viewer", "viewer")),
    }
    async with site(kit, tmp_path) as place:
        receipt = await ok(place.gateway.post("/api/platform/submit", json=submission(), headers=hub), 202)
        names = {"asset": receipt["asset_id"], "dataset": receipt["dataset_id"]}
        responses = {
            (who, what, url): await client.get(f"{url}/{name}", headers=key)
            for who, key in other_keys.items()
            for what, name in names.items()
            for client, url in ((place.gateway, "/api/assets"), (place.orchestrator, "/api/v1/assets"))
        }

    for (_who, what, _url), answer in responses.items():
        (other,) = (name for kind, name in names.items() if kind != what)
        assert answer.status_code == 404, answer.text
        assert other not in answer.text


async def test_headers_that_are_not_ascii_are_passed_on(kit: Kit, tmp_path):
    hub = bearer(await key_of(kit.dsn, "hub", "b2b", platform="ddh"))
    async with site(kit, tmp_path) as place:
        responses = {
            (name, value): await place.gateway.post(
                "/api/platform/submit", json=submission(dry_run=True), headers={**hub, name: value}
            )
            for name in ("X-Request-ID", "If-Match", "Accept")
            for value in ("\xe9".encode(), b"a\x80", b"\xff")
        }
        for value in (b"\xff", "\u0663".encode()):
            responses["Upload-Offset", value] = await place.gateway.patch(
                f"/api/platform/uploads/{'0' * 32}", content=b"x", headers={**hub, "Upload-Offset": value}
            )

    codes = {case: (answer.status_code, answer.json().get("code")) for case, answer in responses.items()}
    assert {code for (name, _), code in codes.items() if name != "Upload-Offset"} == {(200, None)}
    assert {code for (name, _), code in codes.items() if name == "Upload-Offset"} == {(415, "upload.media-type")}


def _without_ids(answer, known) -> str:
    text = answer.text
    for value in (*known.values(), answer.headers.get("x-request-id", "")):
        text = text.replace(value, "…") if len(value) > 8 else text
    return text


async def _median_seconds(client, url, headers, count: int = 15) -> float:
    taken = []
    for _ in range(count):
        started = time.perf_counter()
        await client.get(url, headers=headers)
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


HEAD = b"POST /api/platform/submit HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        HEAD[:20],
        HEAD,
        HEAD + b"Content-Length: 100\r\n\r\n{",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nfff\r\n{",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n{}\r\n",
        HEAD + b"Content-Length: 2\r\nContent-Length: 200\r\n\r\n{}",
        HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Content-Length: -5\r\n\r\n",
        HEAD + b"Content-Length: 99999999999999999999\r\n\r\n{}",
    ],
)
async def test_unfinished_requests_and_requests_with_a_wrong_length_are_closed_soon(database, sent, monkeypatch):
    monkeypatch.setattr(TimedProtocol, "head_seconds", 0.3)
    monkeypatch.setattr(TimedProtocol, "body_seconds", 0.3)
    settings = Settings(auth_enabled=True, orchestrator_urls="http://127.0.0.1:1")
    async with served_gateway(create_app(settings, database)) as server:
        host, _, port = server.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        await writer.drain()
        answer = await asyncio.wait_for(reader.read(10_000), 5)
        writer.close()

    assert answer == b"" or answer.split(b" ", 2)[1] in (b"400", b"401", b"408", b"413"), answer
