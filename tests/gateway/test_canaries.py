"""Recognisable secrets in every place that holds one: none of them appears anywhere else.

Settings and routes are enumerated, so that those which are added later are covered. These columns hold secrets by
design: `platform_secrets.secret` signs callbacks, `link_keys.secret` signs links; the URL of a callback is kept where
it is called from. Keys and sessions are kept as hashes only.
"""

import os
import re
import subprocess
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import quote

import httpx2
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from dagmaster.errors import HandlerFailed
from dagmaster.gateway.app import create_app
from dagmaster.handlers.registry import Registration
from dagmaster.local.embedded import find_binaries
from dagmaster.observe import log
from dagmaster.settings import Settings
from tests import hostile
from tests.api.legacy.old_server import OLD_ID, old_server
from tests.api.serving import app_of, ok, served
from tests.engine.harness import engine, fast_settings, workflow
from tests.gateway.kit import bearer, gateway_dsn, key_of
from tests.gateway.test_hostile_callers import served_gateway
from tests.operations.kit import opened

pytestmark = pytest.mark.requirement("X3")

PASSWORD = "canary7password7of7the7database"
SAS = "canary7signature7of7a7sas"
TOKEN = "canary7token7in7a7log7line"
CALLBACK = "canary7token7of7a7callback7url"
OF_REQUEST = "canary7key7that7does7not7exist"
LEAKY = workflow(
    """
    workflow_id: leaky
    nodes:
      start: {type: start, next: leak}
      leak: {handler: leak, retry: {max_attempts: 0}, next: end}
      end: {type: end}
    """
)
# Where a canary may be found, by design.
OF_CALLBACKS = {"dagapp.dag_jobs", "dagapp.asset_submissions", "dagapp.callback_events"}
OF_SECRETS = {"dagapp.platform_secrets"}
_ROWS = re.compile(r"^COPY (\S+) [^\n]*\n(.*?)^\\\.$", re.MULTILINE | re.DOTALL)


async def leak(ctx: Any) -> None:
    """As a handler does whose library puts the request into its messages."""
    ctx.logger.info(f"opening with token={TOKEN}")
    ctx.logger.warning("opening", password=TOKEN, url=f"https://acct.blob.core.windows.net/c/b?sv=1&sig={SAS}")
    raise HandlerFailed(f"GET https://acct.blob.core.windows.net/c/b.tif?sv=2024&sig={SAS}: 403; password={TOKEN}")


def secret_settings(**given: str) -> dict[str, str]:
    """A canary for every setting that is a secret."""
    names = [name for name, field in Settings.model_fields.items() if not field.repr]
    assert len(names) >= 8
    canaries = {name: given.get(name) or _canary(name) for name in names}
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


async def test_no_secret_appears_where_it_does_not_belong(secret_dsn, tmp_path, capfd):
    keys = {scope: await key_of(secret_dsn, scope, scope) for scope in ("admin", "operator", "gateway")}
    keys["b2b"] = await key_of(secret_dsn, "hub", "b2b", platform="ddh")
    gateway_role = await gateway_dsn(secret_dsn)
    answers: list[str] = []
    async with AsyncExitStack() as stack:
        old = stack.enter_context(old_server("500"))
        secrets = secret_settings(
            database_url=secret_dsn, gateway_database_url=gateway_role, gateway_key=keys["gateway"]
        )
        others = {"auth_enabled": True, "legacy_url": old.url, "legacy_shares": "demo=100"}
        running = await stack.enter_async_context(
            engine(secret_dsn, handlers=[Registration("leak", "tests.gateway.test_canaries:leak")])
        )
        log.configure("debug", "json")
        running.add(LEAKY)
        app = app_of(secret_dsn, running, storage_folder=tmp_path, **secrets, **others)
        orchestrator = await stack.enter_async_context(served(app))
        front_app = create_app(
            fast_settings(orchestrator_urls=orchestrator.url, gateway_burst=100_000, **secrets, **others), gateway_role
        )
        front = await stack.enter_async_context(served_gateway(front_app))
        kit = await stack.enter_async_context(opened(secret_dsn, tmp_path))
        kit.put("ddh/floods.tif", b"pixels")
        sent = await _use(running, front.url, orchestrator.url, keys)
        asset, job, signing = (sent.pop(name) for name in ("asset_id", "job_id", "signing_secret"))
        answers += sent.values()
        known = {"asset_id": asset, "job_id": job, "request_id": "order-7", "node_id": "leak", "version_ordinal": "0"}
        for url, description in ((front.url, front_app.openapi()), (orchestrator.url, app.openapi())):
            answers += await _read_everything(url, description, keys["admin"], known | {"platform_id": "ddh"})
    logs = "".join(capfd.readouterr())
    dump = _dump(secret_dsn)

    canaries = {
        "the database's password": PASSWORD,
        "the password of the gateway's role": conninfo_to_dict(gateway_role)["password"],
        "a SAS": SAS,
        "a token in a message": TOKEN,
        "the token of a callback_url": CALLBACK,
        "a key that does not exist": OF_REQUEST,
        "the secret of a platform": signing.removeprefix("whsec_"),
        **{f"the key {name}": key.rpartition("_")[2] for name, key in keys.items()},
        **{name: value for name, value in secrets.items() if value.startswith("canary7")},
        **{name: re.search("canary7[a-z7]+", value)[0] for name, value in secrets.items() if "hooks.example" in value},
    }
    assert len(answers) > 60
    assert '"level": "debug"' in logs or '"level":"debug"' in logs  # the logs were captured
    assert "leak" in dump
    leaks = {
        (what, place)
        for what, canary in canaries.items()
        for place, text in (("logs", logs), *(("an answer", answer) for answer in answers))
        if canary in text
    }
    assert leaks == set()
    tables = _by_table(dump)
    allowed = {CALLBACK: OF_CALLBACKS, canaries["the secret of a platform"]: OF_SECRETS}
    stored = {
        (what, table)
        for what, canary in canaries.items()
        for table, rows in tables.items()
        if canary in rows and table not in allowed.get(canary, ())
    }
    assert stored == set()
    # The search finds what is there, and messages with secrets were written without them.
    assert CALLBACK in tables["dagapp.dag_jobs"]
    assert canaries["the secret of a platform"] in tables["dagapp.platform_secrets"]
    assert "sig=***" in tables["dagapp.dag_node_states"]
    assert "sig=***" in "".join(answers)
    assert "token=***" in "".join(answers)  # a log line of the handler


async def _use(running: Any, front: str, orchestrator: str, keys: dict[str, str]) -> dict[str, str]:
    """Submissions that succeed and that fail; their answers, and the ids of what was created."""
    sent = {}
    submission = {
        "platform_id": "ddh",
        "platform_refs": {"dataset_id": "floods", "resource_id": "r1", "version_id": "2024"},
        "source": {"blob": "ddh/floods.tif"},
        "callback_url": f"https://hub.example/done?token={CALLBACK}",
        "request_id": "order-7",
    }
    sas = {"blob": f"https://acct.blob.core.windows.net/c/b.tif?sv=2024&sig={SAS}"}
    async with httpx2.AsyncClient(timeout=30) as client:
        hub, operator, admin = (bearer(keys[name]) for name in ("b2b", "operator", "admin"))
        receipt = await client.post(f"{front}/api/platform/submit", json=submission, headers=hub)
        assert receipt.status_code == 202, receipt.text
        requests = {
            "SAS of a partner": (f"{front}/api/platform/submit", {**submission, "source": sas, "request_id": "b"}, hub),
            "SAS of an operator": (f"{orchestrator}/api/v1/submit", {**submission, "source": sas}, operator),
            "SAS of the old API": (f"{orchestrator}/api/jobs/submit/raster_ingest", {"blob_name": sas["blob"]}, admin),
            "forwarded": (f"{orchestrator}/api/jobs/submit/demo", {"x": 1}, operator),
            "unknown key": (f"{front}/api/platform/submit", {}, bearer(f"dgm_abc_{OF_REQUEST}")),
            "bad callback": (
                f"{front}/api/gateway/submit",
                {"workflow_id": "echo_test", "callback_url": f"https://127.0.0.1/?token={CALLBACK}"},
                operator,
            ),
        }
        for name, (url, body, headers) in requests.items():
            answer = await client.post(url, json=body, headers=headers)
            assert answer.status_code >= 400, (name, answer.text)
            sent[name] = answer.text
        asked = await client.get(f"{orchestrator}/api/jobs/status/{OLD_ID}", headers=operator)
        body = {"workflow_id": "leaky", "callback_url": f"https://hub.example/done?token={CALLBACK}"}
        job = await ok(client.post(f"{front}/api/gateway/submit", json=body, headers=operator), 202)
        await running.wait(job["job_id"], until=("failed",))
        secret = await ok(client.post(f"{orchestrator}/api/v1/platforms/ddh/rotate-secret", json={}, headers=admin))
    sent["signing_secret"] = secret["secret"]
    return {
        **sent,
        "receipt": receipt.text,
        "old": asked.text,
        "asset_id": receipt.json()["asset_id"],
        "job_id": job["job_id"],
    }


async def _read_everything(url: str, description: dict, key: str, known: dict[str, str]) -> list[str]:
    """Every operation that reads, with ids that exist where there are any."""
    answers = []
    async with httpx2.AsyncClient(base_url=url, headers=bearer(key), timeout=30) as client:
        paths = [hostile.url_of(each, known) for each in hostile.operations(description, "GET")]
        for path in [*paths, "/metrics", "/openapi.json"]:
            if "stream" in path or path.endswith("/events/live"):
                continue
            answer = await client.get(path)
            assert answer.status_code < 500 or answer.status_code in (502, 503), (path, answer.text[:300])
            answers.append(answer.text + str(answer.headers))
    return answers


def _dump(dsn: str) -> str:
    command = [str(find_binaries() / "pg_dump"), "--no-owner", "--dbname", dsn]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env={**os.environ})
    return done.stdout


def _by_table(dump: str) -> dict[str, str]:
    """The rows of each table, and under "" everything else."""
    tables = {match[1]: match[2] for match in _ROWS.finditer(dump)}
    return {**tables, "": _ROWS.sub("", dump)}
