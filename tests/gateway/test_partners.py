"""Partners submit, poll and decide over the gateway, and see only their own data."""

import asyncio
import json

import httpx2
import pytest

from dagmaster.errors import Unavailable
from dagmaster.gateway import forward, services
from dagmaster.gateway.forward import ForwardedRequest, Forwarder
from dagmaster.web import backends
from tests.api.serving import ok
from tests.gateway.kit import NO_SERVER, bearer, gateway, key_of
from tests.operations.kit import Kit, opened

pytestmark = pytest.mark.requirement("G1", "G3")


@pytest.fixture
async def kit(catalog_database, tmp_path):
    async with opened(catalog_database, tmp_path) as opened_kit:
        opened_kit.put("ddh/floods.tif", b"pixels")
        opened_kit.put("geonode/other.tif", b"pixels")
        yield opened_kit


def submission(**changed):
    refs = {"dataset_id": "floods", "resource_id": "r1", "version_id": "2024"}
    return {"platform_id": "ddh", "platform_refs": refs, "source": {"blob": "ddh/floods.tif"}, **changed}


async def test_a_partner_submits_data_and_polls_until_it_is_published(kit: Kit, tmp_path):
    hub = bearer(await key_of(kit.dsn, "hub", "b2b", platform="ddh"))
    staff = bearer(await key_of(kit.dsn, "staff", "reviewer"))
    async with gateway(kit.dsn, tmp_path) as client:
        answer = await client.post("/api/platform/submit", json=submission(request_id="order-1"), headers=hub)
        receipt = answer.json()
        again = await ok(client.post("/api/platform/submit", json=submission(request_id="order-1"), headers=hub), 202)
        received = await ok(client.get(receipt["status_url"], headers=hub))
        (row,) = await kit.rows("SELECT job_id FROM dagapp.dag_jobs")
        await kit.write_documents(receipt["dataset_id"], 0, 1)
        await kit.end_job(row["job_id"])
        waiting = await ok(client.get(receipt["status_url"], headers=hub))
        decision = {"request_id": "order-1", "clearance_level": "public"}
        refused = await client.post("/api/platform/approve", json=decision, headers=hub)
        approved = await ok(client.post("/api/platform/approve", json=decision, headers=staff))
        asset = await ok(client.get(f"/api/assets/{receipt['asset_id']}", headers=hub))

    assert answer.status_code == 202, answer.text
    assert answer.headers["location"] == receipt["status_url"] == "/api/platform/status/order-1"
    assert (receipt["outcome"], receipt["version_ordinal"], receipt["revision"]) == ("new_asset", 0, 1)
    assert again == receipt
    assert [page["status"] for page in (received, waiting, approved)] == ["received", "awaiting_review", "published"]
    assert refused.status_code == 403  # the orchestrator verifies the caller again
    assert refused.json()["instance"] == "/api/platform/approve"
    assert asset["versions"][0]["approval_state"] == "approved"
    seen = json.dumps([receipt, received, waiting, asset])
    assert str(row["job_id"]) not in seen
    assert "job" not in seen


async def test_the_reason_of_an_invalid_file_names_no_node(kit: Kit, tmp_path):
    hub = bearer(await key_of(kit.dsn, "hub", "b2b", platform="ddh"))
    async with gateway(kit.dsn, tmp_path) as client:
        receipt = await ok(client.post("/api/platform/submit", json=submission(), headers=hub), 202)
        (row,) = await kit.rows("SELECT job_id FROM dagapp.dag_jobs")
        await kit.end_job(row["job_id"], "failed")
        message = "node 'validate' failed: 'floods.tif' is a text file"
        await kit.execute("UPDATE dagapp.asset_revisions SET error_message = %s, is_unfit = true", message)
        status = await ok(client.get(receipt["status_url"], headers=hub))

    assert (status["status"], status["reason"]) == ("invalid", "'floods.tif' is a text file")


async def test_a_request_id_is_generated_if_none_is_given_and_a_dry_run_creates_nothing(kit: Kit, tmp_path):
    hub = bearer(await key_of(kit.dsn, "hub", "b2b", platform="ddh"))
    operator = bearer(await key_of(kit.dsn, "ops", "operator"))
    async with gateway(kit.dsn, tmp_path) as client:
        dry = await ok(client.post("/api/platform/submit", json=submission(dry_run=True), headers=hub))
        response = await ok(client.post("/api/platform/submit", json=submission(), headers=hub), 202)
        status = await ok(client.get(response["status_url"], headers=hub))
        lookup = await ok(client.get("/api/status/lookup", params={"id": response["request_id"]}, headers=operator))
        (job,) = await kit.rows("SELECT correlation_id FROM dagapp.dag_jobs")

    assert (dry["status"], dry["outcome"]) == ("dry_run", "new_asset")
    assert dry["estimate"].keys() == {"tile_count", "size_bytes", "seconds", "based_on_runs"}
    assert lookup["request"] == status
    assert status["request_id"] == response["request_id"] == job["correlation_id"]


async def test_requests_and_assets_of_others_do_not_exist_for_a_partner(kit: Kit, tmp_path):
    hub = bearer(await key_of(kit.dsn, "hub", "b2b", platform="ddh"))
    other = bearer(await key_of(kit.dsn, "other", "b2b", platform="geonode"))
    viewer = bearer(await key_of(kit.dsn, "viewer", "viewer"))
    async with gateway(kit.dsn, tmp_path) as client:
        receipt = await ok(client.post("/api/platform/submit", json=submission(), headers=hub), 202)
        asset = f"/api/assets/{receipt['asset_id']}"
        unknown = await client.get("/api/platform/status/nothing", headers=other)
        foreign = await client.get(receipt["status_url"], headers=other)
        for_another_platform = await client.post("/api/platform/submit", json=submission(), headers=other)
        lists = [
            (await ok(client.get("/api/assets", headers=who, params=params)))["items"]
            for who, params in ((hub, {}), (other, {}), (other, {"platform_id": "ddh"}))
        ]
        pages = [await client.get(asset, headers=who) for who in (other, viewer)]
        anonymous = await client.get(receipt["status_url"])

    assert (foreign.status_code, for_another_platform.status_code) == (404, 404)
    same = ("status", "code", "detail", "title", "hint")
    assert [foreign.json()[name] for name in same] == [unknown.json()[name] for name in same]
    assert [len(items) for items in lists] == [1, 0, 0]
    assert [page.status_code for page in pages] == [404, 404]
    assert anonymous.status_code == 401


async def test_a_partner_may_submit_only_files_below_its_own_prefix_of_the_bronze_zone(kit: Kit, tmp_path):
    hub = bearer(await key_of(kit.dsn, "hub", "b2b", platform="ddh"))
    async with gateway(kit.dsn, tmp_path) as client:
        responses = [
            await client.post("/api/platform/submit", json=submission(source=source), headers=hub)
            for source in (
                {"blob": "geonode/other.tif"},
                {"blob": "ddh/../geonode/other.tif"},
                {"container": "silver", "blob": "ddh/floods.tif"},
                {"blobs": ["ddh/floods.tif", "geonode/other.tif"]},
                {"blob": "ddhx/floods.tif"},
            )
        ]

    assert all(400 <= answer.status_code < 500 for answer in responses), [answer.text for answer in responses]
    assert await kit.rows("SELECT 1 FROM dagapp.asset_submissions") == []


async def test_while_every_orchestrator_is_down_polling_works_and_submitting_reports_the_outage(kit: Kit, tmp_path):
    hub = bearer(await key_of(kit.dsn, "hub", "b2b", platform="ddh"))
    async with gateway(kit.dsn, tmp_path) as client:
        receipt = await ok(client.post("/api/platform/submit", json=submission(), headers=hub), 202)
    async with gateway(kit.dsn, tmp_path, orchestrators=0, dead=(NO_SERVER,)) as client:
        status = await ok(client.get(receipt["status_url"], headers=hub))
        refused = await client.post("/api/platform/submit", json=submission(), headers=hub)
        ready = await client.get("/readyz")
        live = await client.get("/livez")

    assert status["status"] == "received"
    assert (refused.status_code, refused.json()["code"]) == (503, "gateway.no-orchestrator")
    assert refused.headers["retry-after"]
    assert (ready.status_code, ready.json()["can_forward"], live.status_code) == (200, False, 200)


async def test_polling_works_with_a_gateway_that_was_deployed_before_the_schema(kit: Kit, tmp_path):
    """The view of requests had no column `shown_id` before platforms could use the same request ids."""
    hub = bearer(await key_of(kit.dsn, "hub", "b2b", platform="ddh"))
    await kit.execute("ALTER VIEW dagapp_gateway.requests RENAME COLUMN shown_id TO of_another_release")
    async with gateway(kit.dsn, tmp_path) as client:
        receipt = await ok(client.post("/api/platform/submit", json=submission(request_id="order-1"), headers=hub), 202)
        status = await ok(client.get(receipt["status_url"], headers=hub))
        listed = await ok(client.get(f"/api/assets/{receipt['asset_id']}/versions/0/requests", headers=hub))

    assert (status["request_id"], status["status"]) == ("order-1", "received")
    assert [request["request_id"] for request in listed] == ["order-1"]


async def test_an_orchestrator_that_is_down_is_skipped(kit: Kit, tmp_path):
    hub = bearer(await key_of(kit.dsn, "hub", "b2b", platform="ddh"))
    async with gateway(kit.dsn, tmp_path, orchestrators=2, dead=(NO_SERVER,)) as client:
        responses = [
            await client.post("/api/platform/submit", json=submission(request_id="one"), headers=hub) for _ in range(6)
        ]

    assert {answer.status_code for answer in responses} == {202}
    assert len(await kit.rows("SELECT 1 FROM dagapp.dag_jobs")) == 1


async def test_a_request_without_a_response_is_sent_again_only_if_it_is_repeatable():
    connections = 0

    async def silent(reader, writer):
        nonlocal connections
        connections += 1
        await reader.read(100)
        await asyncio.sleep(30)
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    forwarder = Forwarder([f"http://127.0.0.1:{port}"] * 2, response_seconds=0.3)
    codes = []
    for is_repeatable in (False, True):
        before = connections
        try:
            await forwarder.send(ForwardedRequest("POST", "/x", body=b"{}", is_repeatable=is_repeatable))
        except Exception as error:
            codes.append((error.code, connections - before))
    server.close()

    assert codes == [
        ("gateway.no-response", 1),
        ("gateway.no-response", 2),
    ]  # each of the two orchestrators may have carried it out


async def test_an_orchestrator_that_hangs_gets_no_request_until_it_responds_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(backends, "CHECK_SECONDS", 0.02)
    monkeypatch.setattr(backends, "CONNECT_SECONDS", 0.2)
    hangs, requests = True, []

    async def answer(reader, writer):
        line = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1]
        requests.append(line)
        if not hangs:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
            await writer.drain()
            writer.close()

    async def until(condition):
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.02)

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    forwarder = Forwarder([f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"], response_seconds=20)
    request = ForwardedRequest("POST", "/x", body=b"{}")
    async with forwarder.running():
        await until(lambda: requests.count(b"/livez") > backends.HANGS_AFTER)
        async with asyncio.timeout(5):
            with pytest.raises(Unavailable) as refused:
                await forwarder.send(request)
        was_sent, hangs = b"/x" in requests, False
        await until(lambda: forwarder.can_forward)
        response = await forwarder.send(request)
    server.close()

    assert (refused.value.code, was_sent) == ("gateway.no-orchestrator", False)
    assert response.status_code == 200


async def test_a_response_that_never_ends_is_aborted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(forward, "CONNECT_SECONDS", 0.2)

    async def drip(reader, writer):
        await reader.read(100)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"x")
            await asyncio.sleep(0.05)

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    forwarder = Forwarder([f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"], response_seconds=0.3)
    async with asyncio.timeout(10):
        with pytest.raises(Unavailable) as refused:
            await forwarder.send(ForwardedRequest("GET", "/x"))
    server.close()

    assert refused.value.code == "gateway.no-response"


async def test_a_request_that_gets_no_connection_from_a_full_pool_is_reported_as_not_sent():
    async def silent(reader, writer):
        await reader.read(100)
        await asyncio.sleep(30)
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    forwarder = Forwarder([f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"], response_seconds=1.0)
    many = [forwarder.send(ForwardedRequest("POST", "/x", body=b"{}")) for _ in range(110)]
    errors = await asyncio.gather(*many, return_exceptions=True)
    server.close()

    assert {error.code for error in errors} == {"gateway.no-response", "gateway.no-orchestrator"}


@pytest.mark.parametrize("role", ["orchestrator", "worker"])
async def test_the_error_of_an_unavailable_server_names_its_role(role):
    forwarder = Forwarder([], role=role)

    with pytest.raises(Unavailable) as refused:
        await forwarder.send(ForwardedRequest("GET", "/livez"))

    assert refused.value.message == f"no {role} is available; the request was not carried out"


@pytest.mark.requirement("G2")
async def test_only_operators_and_administrators_reach_jobs_admin_and_proxy(kit: Kit, tmp_path):
    keys = {
        name: bearer(await key_of(kit.dsn, name, name, platform="ddh" if name == "b2b" else None))
        for name in ("b2b", "viewer", "reviewer", "author", "operator", "admin", "worker", "gateway", "monitor")
    }
    paths = [
        "/api/admin/health",
        "/api/admin/config",
        "/api/admin/active-jobs",
        "/api/admin/recent-events",
        "/api/admin/instances",
        "/api/admin/workflows",
        "/api/proxy/health",
        "/api/proxy/orchestrator/api/v1/health",
    ]
    async with gateway(kit.dsn, tmp_path) as client:
        allowed = {
            name: {path for path in paths if (await client.get(path, headers=key)).status_code == 200}
            for name, key in keys.items()
        }
        metrics = {name: (await client.get("/metrics", headers=key)).status_code for name, key in keys.items()}
        jobs = {name: (await client.get("/api/status/jobs", headers=key)).status_code for name, key in keys.items()}
        traversals = [
            await client.get(f"/api/proxy/orchestrator/{path}", headers=keys["admin"])
            for path in ("%2e%2e/x", "a/%2e%2e/b", "%2f%2fevil.example", "a%5cb", "a%3fb=c", "a%0ab")
        ]
        unknown = await client.get("/api/proxy/database/x", headers=keys["admin"])

    assert {name for name, seen in allowed.items() if seen} == {"operator", "admin"}
    assert allowed["operator"] == allowed["admin"] == set(paths)
    assert [name for name, status in jobs.items() if status == 200] == ["reviewer", "author", "operator", "admin"]
    assert [name for name, status in metrics.items() if status == 200] == ["author", "operator", "admin", "monitor"]
    assert {answer.status_code for answer in traversals} <= {400, 404}
    assert unknown.status_code == 422


@pytest.mark.requirement("G2", "X3")
async def test_the_settings_are_shown_without_secrets(kit: Kit, tmp_path):
    operator = bearer(await key_of(kit.dsn, "ops", "operator"))
    async with gateway(kit.dsn, tmp_path, gateway_key="dgm_canary000000_secretsecretsecret") as client:
        config = await ok(client.get("/api/admin/config", headers=operator))

    assert config["gateway_key"] == "***"
    assert "canary" not in json.dumps(config)
    assert config["gateway_port"] == 8001


@pytest.mark.requirement("G2")
async def test_a_batch_has_one_result_for_each_entry(kit: Kit, tmp_path):
    operator = bearer(await key_of(kit.dsn, "ops", "operator"))
    entries = [
        {"workflow_id": "hello_world", "inputs": {"name": "Ada"}},
        {"workflow_id": "nothing_like_it"},
        {"workflow_id": "hello_world", "inputs": {"name": 7}},
        {"workflow_id": "echo_test", "idempotency_key": "k"},
        7,
    ]
    async with gateway(kit.dsn, tmp_path) as client:
        answer = await ok(client.post("/api/gateway/submit/batch", json={"submissions": entries}, headers=operator))
        single = await ok(client.post("/api/gateway/submit", json=entries[0], headers=operator), 202)
        job = await ok(client.get(f"/api/status/job/{single['job_id']}", headers=operator))
        nodes = await ok(client.get(f"/api/status/job/{single['job_id']}/nodes", headers=operator))
        events = await ok(client.get(f"/api/status/job/{single['job_id']}/events", headers=operator))
        stats = await ok(client.get("/api/status/stats", headers=operator))
        status = await ok(client.get("/api/status/lookup", params={"id": single["job_id"]}, headers=operator))

    assert [result["status"] for result in answer["results"]] == [202, 404, 400, 202, 400]
    assert (job["workflow_id"], job["submitted_by"]) == ("hello_world", "ops")
    assert {node["node_id"] for node in nodes["items"]} >= {"start", "greet", "end"}
    assert events["items"][0]["event_type"] == "job_created"
    assert sum(stats["jobs"].values()) == 3
    assert [each["job_id"] for each in status["jobs"]] == [single["job_id"]]


@pytest.mark.parametrize(("query", "is_repeatable"), [({}, True), ({"force": "true"}, False)])
async def test_a_forced_submission_is_not_sent_twice_because_each_would_start_a_job(
    monkeypatch: pytest.MonkeyPatch, kit: Kit, tmp_path, query: dict[str, str], is_repeatable: bool
):
    operator = bearer(await key_of(kit.dsn, "ops", "operator"))
    sent: list[ForwardedRequest] = []

    async def send(_forwarder: Forwarder, request: ForwardedRequest, _body: object = None) -> httpx2.Response:
        sent.append(request)
        return httpx2.Response(202, json={})

    monkeypatch.setattr(Forwarder, "send", send)
    entry = {"workflow_id": "hello_world", "idempotency_key": "k"}
    async with gateway(kit.dsn, tmp_path) as client:
        await ok(client.post("/api/gateway/submit", json=entry, params=query, headers=operator), 202)
        await ok(
            client.post("/api/gateway/submit/batch", json={"submissions": [entry]}, params=query, headers=operator)
        )

    submitted = [request.is_repeatable for request in sent if request.path.endswith("/jobs")]
    assert submitted == [is_repeatable, is_repeatable]


async def test_a_caller_that_sends_too_many_requests_gets_429(kit: Kit, tmp_path):
    hub = bearer(await key_of(kit.dsn, "hub", "b2b", platform="ddh"))
    other = bearer(await key_of(kit.dsn, "other", "b2b", platform="geonode"))
    limits = {"gateway_rate_per_second": 0.01, "gateway_burst": 3}
    async with gateway(kit.dsn, tmp_path, **limits) as client:
        statuses = [(await client.get("/api/assets", headers=hub)).status_code for _ in range(4)]
        unaffected = await client.get("/api/assets", headers=other)
        refused = await client.get("/api/assets", headers=hub)
        invalid = [
            (await client.get("/api/assets", headers=bearer("dgm_aaaaaaaaaaaa_" + "b" * 43))).status_code
            for _ in range(5)
        ]
        probe = await client.get("/livez", headers=bearer("dgm_aaaaaaaaaaaa_" + "b" * 43))

    assert statuses == [200, 200, 200, 429]
    assert unaffected.status_code == 200
    assert refused.headers["retry-after"]
    assert invalid == [401, 401, 401, 429, 429]
    assert probe.status_code == 200


async def test_the_use_of_keys_is_reported_with_a_key_that_has_no_other_permission(kit: Kit, tmp_path):
    own = await key_of(kit.dsn, "the gateway", "gateway")
    hub = bearer(await key_of(kit.dsn, "hub", "b2b", platform="ddh"))
    async with gateway(kit.dsn, tmp_path, gateway_key=own) as client:
        await ok(client.get("/api/assets", headers=hub))
        refused = [
            (await client.get(path, headers=bearer(own))).status_code for path in ("/api/assets", "/api/status/jobs")
        ]
        await client._transport.app.state.services.authentication._keys.record_uses()
        (row,) = await kit.rows("SELECT last_used_at FROM dagapp.api_keys WHERE name = 'hub'")

    assert refused == [403, 403]
    assert row["last_used_at"] is not None


async def test_uses_of_keys_that_could_not_be_reported_are_reported_later(monkeypatch: pytest.MonkeyPatch):
    class OrchestratorApi:
        def __init__(self, *statuses: int) -> None:
            self.statuses, self.reported = list(statuses), []

        async def send(self, request: ForwardedRequest) -> httpx2.Response:
            self.reported.append(json.loads(request.body)["key_ids"])
            return httpx2.Response(self.statuses.pop(0))

    monkeypatch.setattr(services, "MAX_REPORTED", 2)
    orchestrator = OrchestratorApi(503, 200, 200)
    keys = services.GatewayKeys(None, orchestrator, "dgm_own")
    for key_id in ("a", "b", "c"):
        keys.note_use(key_id)
    with pytest.raises(Unavailable):
        await keys.record_uses()
    for _ in range(3):
        await keys.record_uses()

    assert orchestrator.reported == [["a", "b"], ["a", "b"], ["c"]]


async def test_bodies_that_are_too_large_or_malformed_are_refused(kit: Kit, tmp_path):
    hub = bearer(await key_of(kit.dsn, "hub", "b2b", platform="ddh"))
    json_type = {**hub, "content-type": "application/json"}
    async with gateway(kit.dsn, tmp_path) as client:
        large = await client.post("/api/platform/submit", content=b"x" * 20_000_000, headers=json_type)
        broken = await client.post("/api/platform/submit", content=b"{", headers=json_type)
        unknown = await client.post("/api/platform/submit", json=submission(job_id="x"), headers=hub)
        odd = await client.get("/api/platform/status/%00%ff", headers=hub)
        deep = {
            depth: await client.post(
                "/api/platform/submit",
                content=json.dumps(submission(parameters={"title": 0}))
                .replace(": 0}", f": {'[' * depth}{']' * depth}}}")
                .encode(),
                headers=json_type,
            )
            for depth in (300, 900, 5_000)
        }

    assert (large.status_code, broken.status_code, unknown.status_code) == (413, 422, 422)
    assert odd.status_code in (400, 404, 422)
    assert {depth: answer.status_code for depth, answer in deep.items()} == {300: 400, 900: 400, 5_000: 400}
    assert "nested too deeply" in deep[5_000].json()["detail"]
