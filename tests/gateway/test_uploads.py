"""Partners upload over the gateway, which only passes the bodies on."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from dagmaster.gateway.app import create_app
from dagmaster.gateway.forward import ForwardedRequest, Forwarder
from dagmaster.listen import bind
from dagmaster.roles.gateway import _GatewayServer
from dagmaster.settings import Settings
from tests.api.serving import app_of, ok, served
from tests.gateway.kit import NO_SERVER, bearer, gateway, gateway_dsn, key_of
from tests.web.problems import check

pytestmark = pytest.mark.requirement("G1", "G3")

UPLOADS = "/api/platform/uploads"
DATA = bytes(range(256)) * 400
CHUNK = {"Content-Type": "application/offset+octet-stream", "Tus-Resumable": "1.0.0"}


def at(offset: int) -> dict[str, str]:
    return {**CHUNK, "Upload-Offset": str(offset)}


async def test_a_partner_uploads_a_file_and_submits_it(database, tmp_path):
    hub = bearer(await key_of(database, "hub", "b2b", platform="ddh"))
    other = bearer(await key_of(database, "other", "b2b", platform="geonode"))
    async with gateway(database, tmp_path, dead=(NO_SERVER,), orchestrators=2) as client:
        described = await client.options(UPLOADS, headers=hub)
        request = {"name": "floods.tif", "size_bytes": len(DATA), "sha256": hashlib.sha256(DATA).hexdigest()}
        begun = await client.post(UPLOADS, json=request, headers=hub)
        where = begun.headers["location"]
        offset = 0
        while offset < len(DATA):
            part = await client.patch(where, content=DATA[offset : offset + 30_000], headers={**hub, **at(offset)})
            assert part.status_code == 204, part.text
            offset = int(part.headers["upload-offset"])
            response = await client.head(where, headers=hub)
            assert response.headers["upload-offset"] == str(offset)
        upload = await ok(client.get(where, headers=hub))
        wrong = await client.patch(where, content=b"x", headers={**hub, **at(3)})
        foreign = [
            await client.request(method, where, headers={**other, **at(0)})
            for method in ("GET", "HEAD", "PATCH", "DELETE")
        ]
        listed = [await ok(client.get("/api/platform/sources", headers=who)) for who in (hub, other)]
        refs = {"dataset_id": "floods", "resource_id": "r1", "version_id": "2024"}
        submission = {"platform_id": "ddh", "platform_refs": refs, "source": upload["source"]}
        receipt = await client.post("/api/platform/submit", json=submission, headers=hub)

    assert described.headers["tus-version"] == "1.0.0"
    assert begun.status_code == 201
    assert where == f"{UPLOADS}/{upload['upload_id']}"
    assert (tmp_path / "bronze/bronze/ddh/floods.tif").read_bytes() == DATA
    assert (upload["state"], upload["source"]["blob"]) == ("finished", "ddh/floods.tif")
    problem = check(wrong, 409, "upload.wrong-offset")
    assert problem["instance"] == where
    assert (wrong.headers["upload-offset"], wrong.headers["tus-resumable"]) == (str(len(DATA)), "1.0.0")
    assert [answer.status_code for answer in foreign] == [404, 404, 404, 404]
    assert [[item["blob"] for item in page["items"]] for page in listed] == [["ddh/floods.tif"], []]
    assert receipt.status_code == 202, receipt.text


async def test_the_gateway_refuses_invalid_uploads_without_an_orchestrator(database, tmp_path):
    viewer = bearer(await key_of(database, "viewer", "viewer"))
    hub = bearer(await key_of(database, "hub", "b2b", platform="ddh"))
    where = f"{UPLOADS}/0198b2c4-7c1e-4a10-8f00-2f6f6e1c9a01"
    async with gateway(database, tmp_path, orchestrators=0, dead=(NO_SERVER,), upload_chunk_mb=1) as client:
        large = await client.patch(where, content=b"x" * 1_000_001, headers={**hub, **at(0)})
        forbidden = await client.post(UPLOADS, json={"name": "a", "size_bytes": 1}, headers=viewer)
        anonymous = await client.patch(where, content=b"x", headers=at(0))
        unreachable = await client.patch(where, content=b"x", headers={**hub, **at(0)})
        outside = await client.get(f"{UPLOADS}/..%2f..%2fkeys", headers=hub)

    check(large, 413, "request.too-large")
    assert (forbidden.status_code, anonymous.status_code) == (403, 401)
    check(unreachable, 503, "gateway.no-orchestrator")
    assert outside.status_code in (404, 422)


async def test_bytes_that_reached_the_gateway_before_the_client_disconnected_are_kept(database, tmp_path):
    hub = await key_of(database, "hub", "b2b", platform="ddh")
    async with (
        listening(database, tmp_path) as (address, port),
        httpx2.AsyncClient(base_url=f"http://{address}:{port}", headers=bearer(hub), timeout=20) as client,
    ):
        begun = await client.post(UPLOADS, json={"name": "a.tif", "size_bytes": 3_000_000})
        where = begun.headers["location"]
        part = tmp_path / "bronze/.uploads" / where.rpartition("/")[2]
        _, writer = await asyncio.open_connection(address, port)
        head = f"PATCH {where} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3000000\r\nUpload-Offset: 0\r\n"
        kind = f"Content-Type: {CHUNK['Content-Type']}\r\nX-API-Key: {hub}\r\n\r\n"
        writer.write((head + kind).encode() + b"a" * 2_000_000)
        await writer.drain()
        async with asyncio.timeout(10):
            while not part.exists() or part.stat().st_size < 1_000_000:
                await asyncio.sleep(0.02)
        writer.close()
        async with asyncio.timeout(10):
            while True:
                offset = int((await client.head(where)).headers["upload-offset"])
                remaining = b"a" * (3_000_000 - offset)
                response = await client.patch(where, content=remaining, headers=at(offset))
                if response.status_code == 204:
                    break
                assert response.status_code in (409, 423)
                await asyncio.sleep(0.05)

    assert offset >= 1_000_000
    assert (tmp_path / "bronze/bronze/ddh/a.tif").read_bytes() == b"a" * 3_000_000


@asynccontextmanager
async def listening(dsn: str, folder: Path) -> AsyncIterator[tuple[str, int]]:
    """The gateway on a port."""
    async with served(app_of(dsn, auth_enabled=True, storage_folder=folder)) as api:
        app = create_app(Settings(orchestrator_urls=api.url, auth_enabled=True), await gateway_dsn(dsn))
        bound = bind("127.0.0.1", 0)
        address = bound.getsockname()
        server = _GatewayServer(app, bound)
        task = asyncio.create_task(server.run())
        await server.until_started()
        try:
            yield address
        finally:
            server.stop()
            await asyncio.wait_for(task, 20)


async def test_a_body_is_read_once_although_the_first_orchestrator_is_down(database, tmp_path):
    taken: list[int] = []

    async def body() -> AsyncIterator[bytes]:
        for number in range(3):
            taken.append(number)
            yield b"x" * 10

    hub = bearer(await key_of(database, "hub", "b2b", platform="ddh"))
    async with served(app_of(database, auth_enabled=True, storage_folder=tmp_path)) as api:
        forwarder = Forwarder([NO_SERVER, api.url])
        async with forwarder.running():
            request = ForwardedRequest(
                "PATCH", "/api/v1/uploads/0198b2c4-7c1e-4a10-8f00-2f6f6e1c9a01", {**hub, **at(0)}
            )
            response = await forwarder.send(request, body())

    assert response.status_code == 404
    assert taken == [0, 1, 2]
