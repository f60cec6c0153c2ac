"""The OpenAPI description is complete: it has valid examples and the problems of each route, and responses match it."""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis import checks
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi import checks as openapi_checks

from dagmaster.access.worker_ids import new_worker_id
from dagmaster.api.app import create_app
from dagmaster.api.server import ApiServer
from dagmaster.client.models.assets import KeyRequest
from dagmaster.client.models.uploads import CHUNK_TYPE
from dagmaster.database.assets.keys import KeyChange, KeyStore
from dagmaster.database.assets.uploads import NewUpload, UploadStore
from dagmaster.handlers.registry import installed
from dagmaster.listen import bind
from dagmaster.observe import log
from dagmaster.operations.keys import create_key
from tests.engine.harness import engine, fast_settings, until
from tests.operations.kit import opened
from tests.workflow_library import library_of

pytestmark = pytest.mark.requirement("O1")

EXAMPLES_PER_ROUTE = 8
TIMEOUT_SECONDS = 60  # some requests deploy the schema, and the machine may be busy
CHECKS = (
    checks.not_a_server_error,
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_headers_conformance,
    openapi_checks.response_schema_conformance,
)


def _app(dsn: str) -> Any:
    chosen, registry = fast_settings(), installed()
    return create_app(chosen, dsn, library_of(chosen, registry), registry)


DESCRIPTION: dict[str, Any] = _app("postgresql://nowhere/nothing").openapi()
OPERATIONS = [(path, method, op) for path, ops in DESCRIPTION["paths"].items() for method, op in ops.items()]


def test_every_operation_is_named_tagged_and_lists_its_problems():
    tags = {tag["name"] for tag in DESCRIPTION["tags"]}
    names = [operation["operationId"] for _, _, operation in OPERATIONS]

    assert len(names) == len(set(names))
    for path, _, operation in OPERATIONS:
        assert operation["summary"], path
        assert set(operation["tags"]) <= tags, path
        for status, response in operation["responses"].items():
            if int(status) >= 400 and path not in {"/livez", "/readyz"}:
                assert list(response["content"]) == ["application/problem+json"], (path, status)


@pytest.mark.parametrize("name", sorted(DESCRIPTION["components"]["schemas"]))
def test_every_model_has_a_valid_example(name):
    schema = DESCRIPTION["components"]["schemas"][name]
    if "enum" in schema or name == "JsonValue":
        return

    validator = jsonschema_rs.validator_for(
        {"$ref": f"#/components/schemas/{name}", "components": DESCRIPTION["components"]}, validate_formats=True
    )

    assert schema["examples"]
    for example in schema["examples"]:
        validator.validate(example)


@dataclass(frozen=True)
class Served:
    url: str
    known: dict[str, str]  # an existing id for each path parameter


@pytest.fixture(scope="module")
def served(shared_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The API on a port, in a separate thread, because the tests are not asynchronous."""
    log.configure("error")
    known = asyncio.run(_some_work(shared_database, tmp_path_factory.mktemp("storage")))
    server = ApiServer(_app(shared_database), bind("127.0.0.1", 0))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(server.run(),))
    thread.start()
    yield Served(server.url, known)
    asyncio.run_coroutine_threadsafe(server.stop(), loop).result(10)
    thread.join(20)
    loop.close()


async def _some_work(dsn: str, folder: Path) -> dict[str, str]:
    """A job with children and retries that is over, messages that cannot be processed, and an asset to review."""
    async with engine(dsn) as running:
        job = await running.run("demo", count=20)
        for number in range(3):
            await running.ledger.enqueue_message(f"m-{number}", "dag-jobs", {"workflow_id": "demo", "priority": 99})
        payload = await running.ledger.store_payload(job["job_id"], b'"large"')
        async with KeyStore(dsn) as keys:
            key = await create_key(keys, KeyRequest(name="described", scopes=["viewer"]), KeyChange("test"))
        (letter, *_) = await until(lambda: running.rows("SELECT dead_letter_id FROM dagapp.dag_dead_letters"))
    async with opened(dsn, folder) as kit:
        submitted = await kit.submit(request_id="order-7", callback_url="https://hub.example/done")
        await kit.process(submitted)
        (callback,) = await kit.rows("SELECT callback_id FROM dagapp.callback_events")
    new = NewUpload(upload_id := uuid4(), "local", "bronze", "local/a.tif", 10, None, "local", 3600.0)
    async with UploadStore(dsn, size=1) as uploads:
        await uploads.begin(new, max_uploads=10)
    return {
        "job_id": str(job["job_id"]),
        "definition_hash": job["definition_hash"],
        "node_id": "verify__3",
        "workflow_id": "demo",
        "job_type": "hello_world",
        "stage": "1",
        "queue": "container-tasks",
        "dead_letter_id": str(letter["dead_letter_id"]),
        "sha256": payload["sha256"],
        "asset_id": submitted.asset_id,
        "version_ordinal": "0",
        "request_id": "order-7",
        "platform_id": "local",
        "key_id": key.key_id,
        "callback_id": str(callback["callback_id"]),
        "upload_id": str(upload_id),
        "layer": "raster",
        "name": "asset.reindex",
        "worker_id": str(new_worker_id("local")),
        "task_id": f"{job['job_id']}_verify__3_1",
    }


schemathesis.serializer.alias(CHUNK_TYPE, "application/octet-stream")
# Without the coverage phase, which would generate thousands of cases whenever this module is collected.
config = SchemathesisConfig.from_dict({"phases": {"coverage": {"enabled": False}}})
schema = schemathesis.openapi.from_dict(DESCRIPTION, config=config)


# A stream of changes never ends, and a worker waits for up to half a minute.
@schema.exclude(operation_id=["stream_changes", "wait_for_tasks"]).parametrize()
@settings(
    max_examples=EXAMPLES_PER_ROUTE,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_every_response_matches_its_description(case: Any, served: Served) -> None:
    """A path with parameters is also requested with ids that exist."""
    response = case.call(base_url=served.url, timeout=TIMEOUT_SECONDS)
    case.validate_response(response, checks=CHECKS)

    if case.path_parameters:
        case.path_parameters = {name: served.known[name] for name in case.path_parameters}
        case.validate_response(case.call(base_url=served.url, timeout=TIMEOUT_SECONDS), checks=CHECKS)
