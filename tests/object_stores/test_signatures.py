"""No signature (SAS) and no token leaves the process that uses it.

A platform has its zones in Azurite, which it accesses with a managed identity, as in Azure. Jobs succeed and fail; then
everything is searched for the signatures that Azurite has really received, and for tokens: logs of all processes,
responses and streams of the API and the map server, callbacks, all files, a dump of the whole database, and the
objects.
"""

import re
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import httpx2
import pytest

from dagmaster.assets.states import Clearance
from dagmaster.client.models.assets import AssetSubmissionRequest, AssetSubmissionResult, SourceReference
from dagmaster.database.assets.external_copies import PostgresExternalCopies
from dagmaster.database.assets.store import AssetStore
from dagmaster.database.callbacks.store import PostgresCallbacks
from dagmaster.database.notify.notifier import JOBS
from dagmaster.observe import log
from dagmaster.operations.assets.approve import approve
from dagmaster.operations.assets.submit import submit_asset
from dagmaster.orchestrator.callbacks import CallbackSender
from dagmaster.orchestrator.external_copies import ExternalCopyChore
from dagmaster.serving.app import create_app as create_map_app
from dagmaster.storage import Folder, Storage, Zone, open_storage
from tests.api.serving import app_of, served
from tests.callbacks.receivers import receiver
from tests.engine.harness import Engine, engine, fast_settings
from tests.engine.test_raster_jobs import scene
from tests.gateway.kit import key_of
from tests.gateway.test_canaries import Places, _by_table, _dump, _files_of, _read_everything, _read_streams
from tests.gateway.test_hostile_callers import served_gateway
from tests.object_stores.servers import Azurite, IdentityService
from tests.published import ADMIN

pytestmark = [pytest.mark.requirement("S3"), pytest.mark.requirement("X3"), pytest.mark.timeout(240)]

# Signatures in any encoding, including those that were never used, and tokens. `sig=***` is a redacted signature.
SECRETS = re.compile(
    r"(?i:sig(?:=|%3D)(?!\*)[\w%+/]{20}|skoid(?:=|%3D)|SharedAccessSignature=(?!\*))|eyJhbGciOi[\w-]{20}"
)
FILES = ("good.tif", "cut.tif", "text.tif", "gone.tif")


def signatures_in(server: Azurite) -> set[str]:
    """The signatures that Azurite has received, encoded and decoded."""
    encoded = set(re.findall(r"sig=([^&\s\"]{20,})", server.log.read_text(errors="replace")))
    return encoded | {unquote(each) for each in encoded}


@dataclass(frozen=True)
class Platform:
    settings: dict[str, str]
    azurite: Azurite
    identity: IdentityService


@pytest.fixture
def platform(azurite: Azurite, identity_service: IdentityService, tmp_path: Path, monkeypatch) -> Platform:
    """The settings of all processes; the processes of handlers read them from the environment."""
    settings = {name: value for name, value in azurite.settings.items() if name != "AZURE_STORAGE_ACCOUNT_KEY"}
    settings |= {
        "IDENTITY_ENDPOINT": identity_service.url,
        "DAGMASTER_DATA": str(tmp_path),
        "LOG_LEVEL": "debug",
        **{f"{zone.upper()}_CONTAINER": f"signed-{zone}" for zone in Zone},
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    fields = {name if name == "DAGMASTER_DATA" else name.lower(): value for name, value in settings.items()}
    return Platform(fields, azurite, identity_service)


def put_files(storage: Storage, folder: Path) -> None:
    storage.create_containers()
    good = scene(folder / "good.tif", 700, 600).read_bytes()
    contents = (good, good[: len(good) // 2], b"no raster", good)
    for name, content in zip(FILES, contents, strict=True):
        storage.put(storage.location(name), content)


async def submit(
    running: Engine, store: AssetStore, storage: Storage, name: str, callback: str
) -> AssetSubmissionResult:
    request = AssetSubmissionRequest(
        platform_id="local",
        platform_refs={"dataset": f"signed-{name.partition('.')[0]}"},
        source=SourceReference(blob=name),
        callback_url=callback,
    )
    submitted = await submit_asset(store, running.library, storage, request=request, caller=ADMIN)
    if name == "gone.tif":
        storage.delete(storage.location(name))
    running.notifier.notify(JOBS)
    return submitted


async def test_no_output_contains_a_signature_or_token(platform, catalog_database, tmp_path, capfd):
    places, dsn = Places(), catalog_database
    key = await key_of(dsn, "admin", "admin")
    others = {"auth_enabled": True, "allow_private_webhooks": True, **platform.settings}
    storage = open_storage(fast_settings(**others))
    put_files(storage, tmp_path)
    async with AsyncExitStack() as stack:
        hook = await stack.enter_async_context(receiver())
        running = await stack.enter_async_context(engine(dsn, task_lease_sec=20.0, lease_renew_sec=5.0, **others))
        log.configure("debug", "json")
        store = await stack.enter_async_context(AssetStore(dsn))
        app, map_app = app_of(dsn, running, **others), create_map_app(fast_settings(**others), dsn)
        orchestrator = await stack.enter_async_context(served(app))
        maps = await stack.enter_async_context(served_gateway(map_app))
        statuses = {}
        for name in FILES:
            submitted = await submit(running, store, storage, name, hook.url)
            statuses[name] = (await running.wait(submitted.job_id, 60))["status"]
            if name == "good.tif":
                good = submitted
        await approve(store, good.asset_id, 0, caller=ADMIN, clearance=Clearance.PUBLIC)
        await export(running, others)
        await send_callbacks(dsn, others)
        places.add("tiles", *await read_tiles(maps.url, storage))
        known = {"asset_id": good.asset_id, "job_id": str(good.job_id), "collection_id": "signed-good", "limit": "10"}
        known |= {"version_ordinal": "0", "platform_id": "local", "request_id": good.request_id, "node_id": "validate"}
        places.add("the orchestrator", *await _read_everything(orchestrator.url, app.openapi(), key, known))
        places.add("the map server", *await _read_everything(maps.url, map_app.openapi(), key, known))
        places.add("streams", await _read_streams(orchestrator.url, key, str(good.job_id)))
        places.add("callbacks", *(f"{each.line} {each.headers} {each.body.decode()}" for each in hook.requests))
    places.add("logs", "".join(capfd.readouterr()))
    places.add("files", *_files_of(tmp_path))
    places.texts |= {table: [rows] for table, rows in _by_table(_dump(dsn)).items()}
    for zone in (Zone.SILVER, Zone.EXTERNAL):
        objects = storage.list(Folder(zone, storage.containers[zone]))
        places.add(f"objects of {zone}", *(storage.get(each.location).decode("latin-1") for each in objects))

    received = signatures_in(platform.azurite)
    assert {status for name, status in statuses.items() if name != "good.tif"} == {"failed"}
    assert statuses["good.tif"] == "completed"
    assert places.with_any({each: each for each in received}) == set()
    traces = {
        place: match[0] for place, texts in places.texts.items() for text in texts if (match := SECRETS.search(text))
    }
    assert traces == {}
    # The search covers all these places, and signatures were really used.
    assert len(received) >= 10
    filled = {table for table, texts in places.texts.items() if "".join(texts).strip()}
    assert {"dagapp.stac_documents", "dagapp.dag_tasks", "dagapp.callback_events"} <= filled
    assert any(table.startswith("dagapp.dag_job_events") for table in filled), "its partitions"
    assert any(
        table.startswith("pgstac._items") and "signed-good" in rows for table, (rows, *_) in places.texts.items()
    )
    assert len(places.texts["callbacks"]) >= 4
    assert "signed-good" in "".join(places.texts["objects of external"])
    assert SECRETS.search(f"x?sp=r&sig={next(iter(received))}")
    assert SECRETS.search(platform.identity.token(0))


async def export(running: Engine, settings: dict[str, object]) -> None:
    copies = PostgresExternalCopies(running.dsn)
    await ExternalCopyChore(fast_settings(**settings), copies, running.library).run_once()
    await copies.close()
    running.notifier.notify(JOBS)
    (job,) = await running.rows("SELECT job_id FROM dagapp.dag_jobs WHERE workflow_id = 'external_export'")
    await running.wait(job["job_id"], until=("completed",))


async def send_callbacks(dsn: str, settings: dict[str, object]) -> None:
    sender = CallbackSender(fast_settings(**settings), PostgresCallbacks(dsn, "test-callbacks"))
    while await sender.run_once():  # callbacks of one request follow each other
        await sender.settle()
    await sender.close()


async def read_tiles(url: str, storage: Storage) -> list[str]:
    """The responses of the map server for a file in a store, and for one that was deleted."""
    (cog,) = storage.list(Folder(Zone.SILVER, storage.containers[Zone.SILVER], "cogs/signed-good"))
    paths = ["/tiles/signed-good/info?version=0", f"/files/silver/{cog.location.path}"]
    texts, codes = [], []
    async with httpx2.AsyncClient(base_url=url, timeout=30) as client:
        for path in (*paths, "/tiles/signed-good/preview.png?version=0", *paths):
            response = await client.get(path)
            texts.append(response.content.decode("latin-1") + str(response.headers))
            codes.append(response.status_code)
            if path.startswith("/tiles/signed-good/preview"):
                storage.delete(cog.location)
    assert codes[:3] == [200, 200, 200]
    assert codes[4] == 404
    return texts
