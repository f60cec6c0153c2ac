"""Every secret has a recognisable value, a canary, and none of them appears where it does not belong.

Searched: logs of all servers, responses of the orchestrator, the gateway and the map server, streams, received
callbacks, a dump of the database, and every file of the storage. Settings and routes are enumerated, so that those
which are added later are covered. These columns hold secrets by design: `platform_secrets.secret` signs callbacks,
`signing_keys.secret` signs links; the URL of a callback is kept where it is called from. Keys and sessions are kept as
hashes only.
"""

import asyncio
import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx2
import numpy as np
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from dagmaster.database.assets.external_copies import PostgresExternalCopies
from dagmaster.database.callbacks.store import PostgresCallbacks
from dagmaster.errors import HandlerFailed, UnfitData
from dagmaster.gateway.app import create_app
from dagmaster.handlers.registry import Registration
from dagmaster.local.embedded import find_binaries
from dagmaster.observe import log
from dagmaster.orchestrator.callbacks import CallbackSender
from dagmaster.orchestrator.external_copies import ExternalCopyChore
from dagmaster.serving.app import create_app as create_map_app
from dagmaster.settings import Settings
from tests import hostile
from tests.api.legacy.old_server import OLD_ID, old_server
from tests.api.serving import app_of, ok, served
from tests.callbacks.receivers import Received, receiver
from tests.engine.harness import engine, fast_settings, workflow
from tests.gateway.kit import bearer, gateway_dsn, key_of
from tests.gateway.test_hostile_callers import served_gateway
from tests.operations.kit import opened
from tests.serving.data import write_cog
from tests.web.issuer import AUDIENCE, CLIENT, issuer

pytestmark = [pytest.mark.requirement("X3"), pytest.mark.timeout(300)]

PASSWORD = "canary7password7of7the7database"
SAS = "canary7signature7of7a7sas"
TOKEN = "canary7token7in7a7log7line"
CALLBACK = "canary7token7of7a7callback7url"
UNKNOWN_KEY = "canary7key7that7does7not7exist"
SIGNED = f"https://acct.blob.core.windows.net/c/b.tif?sv=2024&sig={SAS}"
NODES = ("leak", "refuse", "chain")
LEAKY = workflow(
    """
    workflow_id: leaky
    nodes:
      start: {type: start, next: [leak, refuse, chain]}
      leak: {handler: leak, importance: optional, retry: {max_attempts: 0}, next: end}
      refuse: {handler: refuse, importance: optional, retry: {max_attempts: 0}, next: end}
      chain: {handler: chain, retry: {max_attempts: 0}, next: end}
      end: {type: end}
    """
)
# Where a canary may be found, by design.
CALLBACK_TABLES = {
    "dagapp.dag_jobs",
    "dagapp.asset_submissions",
    "dagapp.callback_events",
    "dagapp.callback_subscribers",
}
SECRET_TABLES = {"dagapp.platform_secrets"}
REFS = {"dataset_id": "floods", "resource_id": "r1", "version_id": "2024"}
_ROWS = re.compile(r"^COPY (\S+) [^\n]*\n(.*?)^\\\.$", re.MULTILINE | re.DOTALL)


# The handlers below raise errors like those of libraries that put the request into their messages.


async def leak(ctx: Any) -> None:
    ctx.logger.info(f"opening with token={TOKEN}")
    ctx.logger.warning("opening", password=TOKEN, url=SIGNED)
    await ctx.progress(0.5, f"reading {SIGNED}", source=SIGNED)
    raise HandlerFailed(f"GET {SIGNED}: 403; password={TOKEN}")


async def refuse(_ctx: Any) -> None:
    request = {"url": f"https://s3.example/b?X-Amz-Signature={SAS}&X-Amz-Security-Token={TOKEN}"}
    headers = {"Authorization": f"Basic {TOKEN}", "x-api-key": TOKEN, "Cookie": f"dagmaster_session=dgs_a_{TOKEN}"}
    facts = f"AccountName=a;AccountKey={TOKEN};SharedAccessSignature=sv=1&sig={SAS}"
    raise UnfitData(f"{request} {headers} {facts}", code="test.refused", hint=f"use {SIGNED}", url=SIGNED)


async def chain(_ctx: Any) -> None:
    try:
        psycopg.connect(f"postgresql://u:{PASSWORD}@127.0.0.1:1/d?connect_timeout=1")
    except psycopg.Error as error:
        reason = json.dumps({"dsn": f"host=127.0.0.1 password='{PASSWORD}'", "body": json.dumps({"api_key": TOKEN})})
        raise RuntimeError(f"postgresql://u:{PASSWORD}@h/d {reason} {_client_secret()}") from error


def _client_secret() -> str:
    """A message of a library that contains the secret of a setting without its name."""
    return f"the issuer does not know {_canary('oidc_client_secret')}"


def secret_settings(**given: str) -> dict[str, str]:
    """A canary for every setting that is a secret."""
    names = [name for name, field in Settings.model_fields.items() if not field.repr]
    assert len(names) >= 8
    canaries = {name: given.get(name) or _canary(name) for name in names} | {"s3_access_key_id": "a-key"}
    return {(Settings.model_fields[name].alias or name): value for name, value in canaries.items()}


def _canary(name: str) -> str:
    text = f"canary7{name.replace('_', '7')}"
    return f"https://hooks.example/{text}?token={text}" if name.endswith("_url") else text


@pytest.fixture
def secret_dsn(catalog_database, cluster):
    """The database, with a role whose password is a canary."""
    role = "canary_role"
    with psycopg.connect(catalog_database, autocommit=True) as connection:
        connection.execute(f"DROP ROLE IF EXISTS {role}")
        connection.execute(f"CREATE ROLE {role} LOGIN SUPERUSER PASSWORD '{PASSWORD}'")
    facts = conninfo_to_dict(catalog_database)
    host = quote(str(facts["host"]), safe="")
    yield f"postgresql://{role}:{PASSWORD}@{host}:{facts.get('port', 5432)}/{facts['dbname']}"
    with psycopg.connect(make_conninfo(catalog_database, dbname="postgres"), autocommit=True) as connection:
        connection.execute(f"DROP ROLE IF EXISTS {role}")


@dataclass
class Places:
    """All texts that are searched, by the place that they come from."""

    texts: dict[str, list[str]] = field(default_factory=dict)

    def add(self, place: str, *texts: str) -> None:
        self.texts.setdefault(place, []).extend(texts)

    def with_any(self, canaries: dict[str, str]) -> set[tuple[str, str]]:
        return {
            (what, place)
            for what, canary in canaries.items()
            for place, texts in self.texts.items()
            for text in texts
            if canary in text
        }


async def test_no_secret_appears_in_logs_responses_tables_or_files_where_it_does_not_belong(
    secret_dsn, tmp_path, capfd, monkeypatch
):
    monkeypatch.setenv("STORAGE_FOLDER", str(tmp_path))  # read by the child processes of handlers
    keys = {scope: await key_of(secret_dsn, scope, scope) for scope in ("admin", "operator", "gateway", "viewer")}
    keys["b2b"] = await key_of(secret_dsn, "hub", "b2b", platform="ddh")
    gateway_role = await gateway_dsn(secret_dsn)
    places = Places()
    async with AsyncExitStack() as stack:
        old = stack.enter_context(old_server("500"))
        local = stack.enter_context(issuer())
        hook = await stack.enter_async_context(receiver())
        secrets = secret_settings(
            database_url=secret_dsn,
            database_pooler_url=secret_dsn,
            gateway_database_url=gateway_role,
            gateway_key=keys["gateway"],
        )
        others = {
            "auth_enabled": True,
            "legacy_url": old.url,
            "legacy_shares": "demo=100",
            "storage_folder": tmp_path,
            "oidc_issuer": local.url,
            "oidc_audience": AUDIENCE,
            "oidc_client_id": CLIENT,
            "allow_private_webhooks": True,
        }
        handlers = [Registration(name, f"tests.gateway.test_canaries:{name}") for name in NODES]
        running = await stack.enter_async_context(engine(secret_dsn, handlers=handlers, **secrets, **others))
        log.configure("debug", "json")
        running.add(LEAKY)
        app = app_of(secret_dsn, running, **secrets, **others)
        orchestrator = await stack.enter_async_context(served(app))
        gateway_app = create_app(
            fast_settings(orchestrator_urls=orchestrator.url, gateway_burst=100_000, **secrets, **others), gateway_role
        )
        gateway = await stack.enter_async_context(served_gateway(gateway_app))
        map_settings = fast_settings(**secrets, **others)
        map_app = create_map_app(map_settings, secret_dsn)
        maps = await stack.enter_async_context(served_gateway(map_app))
        kit = await stack.enter_async_context(opened(secret_dsn, tmp_path))
        pixels = write_cog(tmp_path / "floods.tif", np.full((1, 64, 64), 7, np.uint8), (10.0, 50.0, 11.0, 51.0))
        kit.put("ddh/floods.tif", pixels.read_bytes())
        site = Site(
            running, gateway.url, orchestrator.url, maps.url, keys, hook.url.replace("a=1", f"token={CALLBACK}")
        )
        known = await _use(site, places)
        places.add("sign-in", *await _sign_in(orchestrator.url, local, secrets["oidc_client_secret"]))
        sender = CallbackSender(map_settings, PostgresCallbacks(secret_dsn, "test-callbacks"))
        while await sender.run_once():  # callbacks of one request follow each other
            await sender.settle()
        await sender.close()
        for place, url, description in (
            ("the gateway", gateway.url, gateway_app.openapi()),
            ("the orchestrator", orchestrator.url, app.openapi()),
            ("the map server", maps.url, map_app.openapi()),
        ):
            places.add(place, *await _read_everything(url, description, keys["admin"], known.ids))
        places.add("streams", await _read_streams(orchestrator.url, keys["admin"], known.ids["job_id"]))
        places.add("callbacks", *_texts_of(hook.requests))
    places.add("logs", "".join(capfd.readouterr()))
    places.add("files", *_files_of(tmp_path))
    tables = _by_table(_dump(secret_dsn))

    canaries = {
        "the database's password": PASSWORD,
        "the password of the gateway's role": conninfo_to_dict(gateway_role)["password"],
        "a SAS": SAS,
        "a token in a message": TOKEN,
        "the token of a callback_url": CALLBACK,
        "a key that does not exist": UNKNOWN_KEY,
        "the secret of a platform": known.signing_secret.removeprefix("whsec_"),
        "the token of a signed link": known.link_token,
        **{f"the key {name}": key.split("_", 2)[2] for name, key in keys.items()},
        **{name: value for name, value in secrets.items() if value.startswith("canary7")},
        **{name: re.search("canary7[a-z7]+", value)[0] for name, value in secrets.items() if "hooks.example" in value},
    }
    assert places.with_any(canaries) == set()
    allowed = {CALLBACK: CALLBACK_TABLES, canaries["the secret of a platform"]: SECRET_TABLES}
    stored = {
        (what, table)
        for what, canary in canaries.items()
        for table, rows in tables.items()
        if canary in rows and table not in allowed.get(canary, ())
    }
    assert stored == set()
    # The search finds texts that exist, and messages with secrets were written without the secrets.
    assert CALLBACK in tables["dagapp.dag_jobs"]
    assert canaries["the secret of a platform"] in tables["dagapp.platform_secrets"]
    assert "oidc_client_secret" in {name.lower() for name in canaries}
    assert "sig=***" in tables["dagapp.dag_node_states"]
    (logs,) = places.texts["logs"]
    assert '"level": "debug"' in logs or '"level":"debug"' in logs
    read = "".join(places.texts["the orchestrator"])
    assert "sig=***" in read
    assert "token=***" in read  # a log line of the handler
    assert "floods" in "".join(places.texts["the map server"])
    assert '"rel":"data"' in "".join(places.texts["the map server"]).replace(" ", "")
    assert "node_failed" in "".join(places.texts["streams"])
    assert {"awaiting_review", "approved", "published"} <= {
        json.loads(request.body)["status"] for request in hook.requests
    }
    assert any("Feature" in text for text in places.texts["files"])


@dataclass(frozen=True)
class Site:
    """All servers, and the keys of their callers."""

    running: Any
    gateway: str
    orchestrator: str
    maps: str
    keys: dict[str, str]
    callback_url: str


@dataclass(frozen=True)
class Known:
    """Ids of objects that exist after the servers were used."""

    ids: dict[str, str]
    signing_secret: str
    link_token: str


async def _use(site: Site, places: Places) -> Known:
    """Submissions that succeed and that fail."""
    gateway, orchestrator = site.gateway, site.orchestrator
    submission = {
        "platform_id": "ddh",
        "platform_refs": REFS,
        "source": {"blob": "ddh/floods.tif"},
        "callback_url": site.callback_url,
        "request_id": "order-7",
    }
    hub, operator, admin = (bearer(site.keys[name]) for name in ("b2b", "operator", "admin"))
    refused = {
        "SAS of a partner": (
            f"{gateway}/api/platform/submit",
            {**submission, "source": {"blob": SIGNED}, "request_id": "b"},
            hub,
        ),
        "SAS in parameters": (
            f"{gateway}/api/platform/submit",
            {**submission, "parameters": {"title": SIGNED}, "request_id": "c"},
            hub,
        ),
        "SAS of an operator": (f"{orchestrator}/api/v1/submit", {**submission, "source": {"blob": SIGNED}}, operator),
        "SAS of the old API": (f"{orchestrator}/api/jobs/submit/raster_ingest", {"blob_name": SIGNED}, admin),
        "SAS of a job": (
            f"{gateway}/api/gateway/submit",
            {"workflow_id": "raster_ingest", "inputs": {"blob_path": SIGNED}},
            operator,
        ),
        "SAS of any input": (
            f"{orchestrator}/api/v1/jobs",
            {"workflow_id": "echo_test", "inputs": {"message": f"/vsicurl/{SIGNED}"}},
            operator,
        ),
        "forwarded": (f"{orchestrator}/api/jobs/submit/demo", {"x": 1}, operator),
        "unknown key": (f"{gateway}/api/platform/submit", {}, bearer(f"dgm_abc_{UNKNOWN_KEY}")),
        "bad callback": (
            f"{gateway}/api/gateway/submit",
            {"workflow_id": "echo_test", "callback_url": f"https://u:{CALLBACK}@127.0.0.1/?token={CALLBACK}"},
            operator,
        ),
        "bad subscriber": (
            f"{gateway}/api/platform/submit",
            {**submission, "callback_url": None, "subscriber": {"successUri": f"ftp://u:{CALLBACK}@127.0.0.1/"}},
            hub,
        ),
    }
    async with httpx2.AsyncClient(timeout=30) as client:
        receipt = await ok(client.post(f"{gateway}/api/platform/submit", json=submission, headers=hub), 202)
        for name, (url, body, headers) in refused.items():
            answer = await client.post(url, json=body, headers=headers)
            assert answer.status_code >= 400, (name, answer.text)
            places.add("answers", answer.text)
        response = await client.get(f"{orchestrator}/api/jobs/status/{OLD_ID}", headers=operator)
        places.add("answers", json.dumps(receipt), response.text)
        subscriber = dict.fromkeys(("successUri", "inProgressUri", "failedUri"), site.callback_url)
        body = {"workflow_id": "leaky", "subscriber": subscriber}
        job = await ok(client.post(f"{gateway}/api/gateway/submit", json=body, headers=operator), 202)
        await site.running.wait(job["job_id"], until=("failed",))
        secret = await ok(client.post(f"{orchestrator}/api/v1/platforms/ddh/rotate-secret", json={}, headers=admin))
        version = f"{orchestrator}/api/v1/assets/{receipt['asset_id']}/versions/0"
        async with asyncio.timeout(60):
            while (await ok(client.get(version, headers=admin)))["processing_state"] != "completed":
                await asyncio.sleep(0.05)
        approval = {"clearance_level": "public"}
        await ok(client.post(f"{version}/approve", json=approval, headers=admin))
        link = await ok(client.post(f"{version}/links", json={}, headers=admin), 201)
        copies = PostgresExternalCopies(site.running.dsn)
        await ExternalCopyChore(Settings(), copies, site.running.library).run_once()
        await copies.close()
        (export,) = await site.running.rows("SELECT job_id FROM dagapp.dag_jobs WHERE workflow_id = 'external_export'")
        await site.running.wait(export["job_id"], until=("completed",))
        token = re.search(r"[?&]token=([^&\"{]+)", json.dumps(link))[1]
        for path in ("/tiles/floods/info", "/tiles/unknown/info", "/files/silver/silver/x.tif"):
            answer = await client.get(f"{site.maps}{path}", params={"token": token, "sig": SAS})
            places.add("answers", answer.text)
    ids = {
        "asset_id": receipt["asset_id"],
        "job_id": job["job_id"],
        "request_id": "order-7",
        "node_id": "leak",
        "version_ordinal": "0",
        "platform_id": "ddh",
        "collection_id": receipt["dataset_id"],
        "limit": "10",
    }
    return Known(ids, secret["secret"], token)


async def _sign_in(orchestrator: str, local: Any, client_secret: str) -> list[str]:
    """Sign in at an issuer whose responses contain the secret of its client."""
    texts = []
    for status, response in (
        (400, {"error": f"unknown client_secret {client_secret}", "error_description": client_secret}),
        (500, {"error": client_secret}),
        (200, {"id_token": client_secret}),
        (200, {"id_token": None, "access_token": client_secret}),
    ):
        local.answers["/token"] = (status, json.dumps(response).encode())
        async with httpx2.AsyncClient(base_url=orchestrator, timeout=30) as browser:
            begun = await browser.get("/api/v1/session/oidc/start")
            back = urlsplit((await browser.get(begun.headers["location"])).headers["location"])
            finished = await browser.get(f"{back.path}?{back.query}")
        assert finished.status_code in (401, 503), finished.text
        texts += [finished.text + str(finished.headers), begun.text + str(begun.headers)]
    return texts


async def _read_everything(url: str, description: dict, key: str, known: dict[str, str]) -> list[str]:
    """Call every operation that reads, with existing ids where there are any."""
    responses = []
    async with httpx2.AsyncClient(base_url=url, headers=bearer(key), timeout=30) as client:
        paths = [hostile.url_of(each, known) for each in hostile.operations(description, "GET")]
        for path in [*paths, "/metrics", "/openapi.json"]:
            if "stream" in path or path.endswith("/events/live"):
                continue
            response = await client.get(path)
            assert response.status_code < 500 or response.status_code in (502, 503), (path, response.text[:300])
            responses.append(response.content.decode("latin-1") + str(response.headers))
    return responses


async def _read_streams(url: str, key: str, job_id: str) -> str:
    """The text that the streams send in a second."""
    texts = []
    async with httpx2.AsyncClient(base_url=url, headers=bearer(key), timeout=30) as client:
        for path in (f"/api/v1/jobs/{job_id}/events/stream", "/api/v1/stream"):
            with suppress(TimeoutError):
                async with asyncio.timeout(1), client.stream("GET", path) as stream:
                    assert stream.status_code == 200, path
                    async for text in stream.aiter_text():
                        texts.append(text)  # noqa: PERF401 - it ends with a timeout
    return "".join(texts)


def _texts_of(requests: list[Received]) -> Iterator[str]:
    """The texts that a partner receives, without the URL that the partner itself has given."""
    for request in requests:
        path = request.line.split()[1]
        assert path.endswith(CALLBACK)
        yield f"{request.line.replace(path, '')} {request.headers} {request.body.decode()}"


def _files_of(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield f"{path} {path.read_bytes().decode('latin-1')}"


def _dump(dsn: str) -> str:
    command = [str(find_binaries() / "pg_dump"), "--no-owner", "--dbname", dsn]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env={**os.environ})
    return done.stdout


def _by_table(dump: str) -> dict[str, str]:
    """The rows of each table, and under "" the other parts of the dump."""
    tables = {match[1]: match[2] for match in _ROWS.finditer(dump)}
    return {**tables, "": _ROWS.sub("", dump)}
