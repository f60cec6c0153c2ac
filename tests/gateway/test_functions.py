"""The gateway as an Azure Functions app, called through the package of the host, with a real database."""

import asyncio
import json
import os
import runpy
import subprocess
import sys
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import azure.functions as func
import pytest

from dagmaster.errors import InvalidRequest
from dagmaster.gateway import reads
from dagmaster.gateway.hosted import hosted_gateway
from dagmaster.gateway.services import GatewayServices
from dagmaster.settings import load
from tests.api.serving import app_of, served
from tests.gateway.kit import gateway_dsn, key_of
from tests.operations.kit import Kit, opened

pytestmark = pytest.mark.requirement("G3")

FOLDER = Path(__file__).parents[2] / "deploy" / "functions"
HOST = "https://dagmaster.azurewebsites.net"
SUBMISSION = {
    "platform_id": "ddh",
    "platform_refs": {"dataset_id": "floods", "resource_id": "r1", "version_id": "2024"},
    "source": {"blob": "ddh/floods.tif"},
    "request_id": "order:7",
}


@pytest.fixture
async def kit(catalog_database, tmp_path):
    async with opened(catalog_database, tmp_path) as opened_kit:
        opened_kit.put("ddh/floods.tif", b"pixels")
        yield opened_kit


class Host:
    """Loads function_app.py as the host does, and calls its function with requests."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **environment: str) -> None:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        self.app = runpy.run_path(str(FOLDER / "function_app.py"))["app"]
        (self.function,) = self.app.get_functions()

    async def request(self, method: str, path: str, body: Any = None, **headers: str) -> func.HttpResponse:
        sent = {"Host": "dagmaster.azurewebsites.net", "X-Forwarded-For": "203.0.113.9:4711", **headers}
        if body is not None:
            sent["Content-Type"] = "application/json"
        content = b"" if body is None else json.dumps(body).encode()
        request = func.HttpRequest(method=method, url=f"{HOST}{path}", headers=sent, body=content)
        context = SimpleNamespace(
            function_directory=str(FOLDER),
            function_name="http_app_func",
            invocation_id="1",
            thread_local_storage=None,
            trace_context=None,
            retry_context=None,
        )
        return await self.function.get_user_function()(request, context)


async def test_partners_submit_and_poll_through_the_host(kit: Kit, tmp_path, monkeypatch):
    key = await key_of(kit.dsn, "hub", "b2b", platform="ddh")
    starts, start = [], GatewayServices.running

    @asynccontextmanager
    async def start_slowly(services):
        starts.append(services)
        await asyncio.sleep(0.05)
        async with start(services):
            yield

    monkeypatch.setattr(GatewayServices, "running", start_slowly)
    async with served(app_of(kit.dsn, auth_enabled=True, storage_folder=tmp_path)) as orchestrator:
        host = Host(
            monkeypatch,
            AUTH_ENABLED="true",
            GATEWAY_DATABASE_URL=await gateway_dsn(kit.dsn),
            ORCHESTRATOR_URLS=orchestrator.url,
        )
        # The first requests arrive together: the services must start once.
        probes = await asyncio.gather(*(host.request("GET", "/livez") for _ in range(5)))
        ready = await host.request("GET", "/readyz")
        submitted = await host.request("POST", "/api/platform/submit", SUBMISSION, **{"X-API-Key": key})
        status = await host.request("GET", "/api/platform/status/order%3A7", **{"x-api-key": key})
        unknown = await host.request("GET", "/api/platform/status/nothing", **{"X-API-Key": key})
        no_route = await host.request("GET", "/nowhere", **{"X-API-Key": key})
        anonymous = await host.request("GET", "/api/platform/status/order%3A7")
        forged = await host.request("GET", "/api/platform/status/order%3A7", **{"X-API-Key": f"{key[:-2]}xx"})
        large = await host.request("POST", "/api/platform/submit", {"x": "y" * 1_100_000}, **{"X-API-Key": key})
        await host.app.middleware._app.close()

    assert [probe.status_code for probe in probes] == [200] * 5
    assert json.loads(ready.get_body()) == {"is_ready": True, "can_read": True, "can_forward": True}
    assert submitted.status_code == 202, submitted.get_body()
    assert json.loads(status.get_body())["request_id"] == "order:7"
    assert json.loads(status.get_body())["status"] == "received"
    refused = [unknown, no_route, anonymous, forged, large]
    assert [response.status_code for response in refused] == [404, 404, 401, 401, 413]
    assert {response.mimetype for response in refused} == {"application/problem+json"}
    assert len(starts) == 1


async def test_the_app_stays_alive_if_the_database_is_down_at_startup(tmp_path, monkeypatch):
    unreachable = "postgresql://x@127.0.0.1:1/none"
    monkeypatch.setattr(reads, "pool", partial(reads.pool, wait_seconds=0.5))
    host = Host(
        monkeypatch, AUTH_ENABLED="true", GATEWAY_DATABASE_URL=unreachable, ORCHESTRATOR_URLS="http://127.0.0.1:1"
    )
    alive = await host.request("GET", "/livez")
    ready = await host.request("GET", "/readyz")
    await host.app.middleware._app.close()

    assert (alive.status_code, ready.status_code) == (200, 503)


def test_one_function_handles_every_method_and_path_without_a_prefix(monkeypatch):
    host = Host(
        monkeypatch, AUTH_ENABLED="true", GATEWAY_DATABASE_URL="postgresql://x@y/z", ORCHESTRATOR_URLS="http://x"
    )
    trigger = host.function.get_trigger().get_dict_repr()
    settings = json.loads((FOLDER / "host.json").read_text())

    assert trigger["route"] == "/{*route}"
    assert trigger["authLevel"] == func.AuthLevel.ANONYMOUS  # the gateway verifies callers itself
    assert {str(method) for method in trigger["methods"]} >= {"GET", "POST", "PUT", "PATCH", "DELETE"}
    assert settings["extensions"]["http"]["routePrefix"] == ""
    assert settings["version"] == "2.0"


@pytest.mark.parametrize(
    ("missing", "code"),
    [
        ("auth_enabled", "gateway.no-authentication"),
        ("gateway_database_url", "gateway.no-database"),
        ("orchestrator_urls", "gateway.no-orchestrators"),
    ],
)
def test_the_app_does_not_start_without_authentication_or_required_settings(missing, code):
    given = {"auth_enabled": True, "gateway_database_url": "postgresql://x@y/z", "orchestrator_urls": "http://x"}
    del given[missing]

    with pytest.raises(InvalidRequest) as refusal:
        hosted_gateway(load(**given))

    assert refusal.value.code == code


def test_the_app_is_loaded_without_gdal_and_without_code_that_writes():
    """Checked in a separate process, whose modules are only those that function_app.py imports."""
    program = (
        "import runpy, sys\n"
        f"runpy.run_path({str(FOLDER / 'function_app.py')!r})\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('rasterio', 'numpy', 'osgeo', 'obstore')"
        " or name.startswith(('dagmaster.operations', 'dagmaster.database.ledger', 'dagmaster.handlers'))])"
    )
    environment = {
        "PATH": os.environ["PATH"],
        "AUTH_ENABLED": "true",
        "GATEWAY_DATABASE_URL": "postgresql://x@127.0.0.1:1/none",
        "ORCHESTRATOR_URLS": "http://127.0.0.1:1",
    }
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
