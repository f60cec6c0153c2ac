"""Requests with API keys: the key and the access decision are read in one round trip, and are always current."""

from pathlib import Path

import numpy as np
import psycopg
import pytest
from httpx2 import ASGITransport, AsyncClient

from dagmaster.access.caller import Caller, Scope
from dagmaster.access.sessions import new_session
from dagmaster.assets.states import Clearance
from dagmaster.database import pipeline, prepared_reads
from dagmaster.database.assets.keys import KeyChange, KeyStore
from dagmaster.database.assets.sessions import SignIn
from dagmaster.database.assets.store import AssetStore
from dagmaster.database.schema.platform_role import grant_to_maps
from dagmaster.operations.assets import approve, unpublish
from dagmaster.serving.app import create_app
from dagmaster.settings import load
from dagmaster.storage.location import Edition
from dagmaster.storage.zones import Storage, open_storage
from dagmaster.web.cookies import SESSION
from tests.gateway.kit import key_of
from tests.serving.assets import Assets
from tests.serving.conftest import BOX
from tests.serving.data import collection, item, stored

pytestmark = pytest.mark.requirement("C3", "X1")

REVIEWER = Caller("bob", frozenset({Scope.REVIEWER}))
URLS = (
    "/tiles/dem/info",
    "/tiles/dem/info?version=0&rev=1",
    "/files/silver/silver/cogs/dem/v0/r1/dem.tif",
)


@pytest.fixture
def round_trips(monkeypatch) -> list[list[str]]:
    """The names of the statements that were sent together."""
    sent: list[list[str]] = []

    async def execute_and_note(connection, steps):
        sent.append([step.name for step in steps])
        return await pipeline.execute(connection, steps)

    monkeypatch.setattr(prepared_reads, "execute", execute_and_note)
    return sent


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """A separate storage, because that of other tests has a dataset of the same name."""
    return open_storage(load(storage_folder=tmp_path / "storage"))


@pytest.fixture
def dataset(catalog_database, storage, tmp_path) -> str:
    edition = Edition("dem")
    cog = stored(storage, tmp_path, edition.cog("dem.tif"), np.full((1, 64, 64), 7, np.uint8), BOX)
    Assets(catalog_database).submit("dem", [collection("dem", BOX), item(edition, cog, BOX)])
    return catalog_database


def as_map_server(dsn: str) -> str:
    """The address of the database for a role that has the rights of map servers and no others."""
    role = f"{psycopg.conninfo.conninfo_to_dict(dsn)['dbname']}_serving"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN")
    grant_to_maps(dsn)
    return psycopg.conninfo.make_conninfo(dsn, user=role)


async def test_decisions_take_effect_with_the_next_request_of_a_key(dataset, storage, round_trips):
    keys = {name: await key_of(dataset, name, name) for name in ("viewer", "reviewer")}
    keys["b2b"] = await key_of(dataset, "b2b", "b2b", platform="ddh")
    limited = as_map_server(dataset)
    app = create_app(load(auth_enabled=True), limited, storage=storage)
    transport = ASGITransport(app=app, client=("127.0.0.1", 5))
    async with (
        app.router.lifespan_context(app),
        AsyncClient(transport=transport, base_url="http://localhost") as client,
        AssetStore(dataset) as store,
        KeyStore(dataset) as changed_keys,
    ):

        async def statuses() -> dict[str, set[int]]:
            """The status codes of all URLs, for each caller. One task sends all requests, like one connection."""
            seen: dict[str, set[int]] = {}
            for url in URLS:
                for name, key in {**keys, "no key": None, "stranger": "dgm_abcdefghijkl_no"}.items():
                    response = await client.get(url, headers={"X-API-Key": key} if key else {})
                    seen.setdefault(name, set()).add(response.status_code)
            return seen

        others = {"b2b": {404}, "no key": {404}, "stranger": {401}}
        pending = await statuses()
        await approve.approve(store, "dem", 0, caller=REVIEWER, clearance=Clearance.OUO)
        approved = await statuses()
        round_trips.clear()
        await client.get(URLS[0], headers={"X-API-Key": keys["viewer"]})
        of_one_request = list(round_trips)
        leaks = [
            await client.get(url, headers={"X-API-Key": keys["viewer"]})
            for url in ("/stac/search", "/stac/collections/dem/items", "/stac/collections", "/stac/queryables")
        ]
        await unpublish.unpublish(store, "dem", 0, caller=REVIEWER)
        unpublished = await statuses()
        await approve.approve(store, "dem", 0, caller=REVIEWER)
        again = await statuses()
        await changed_keys.revoke(keys["viewer"].split("_")[1], KeyChange("test"))
        revoked = await statuses()

    assert pending == {"viewer": {404}, "reviewer": {200, 404}, **others}  # no version is published yet
    assert approved == again == {"viewer": {200}, "reviewer": {200}, **others}
    assert unpublished == {"viewer": {404}, "reviewer": {404}, **others}
    assert revoked == {**approved, "viewer": {401}}
    assert of_one_request == [["find_key", "publication_of_dataset"]]
    assert [response.status_code for response in leaks] == [200] * 4
    assert [len(response.json()["features"]) for response in leaks[:2]] == [1, 1]
    with psycopg.connect(dataset) as connection:
        used = connection.execute("SELECT count(*) FROM dagapp.api_keys WHERE last_used_at IS NOT NULL").fetchall()
    assert used == [(3,)]
    for statement in (
        "SELECT FROM dagapp.dag_jobs",
        "SELECT FROM dagapp.platform_secrets",
        "UPDATE dagapp.api_keys SET scopes = '{}'",
        "DELETE FROM dagapp.stac_documents",
        "DELETE FROM pgstac.items",
    ):
        with psycopg.connect(limited) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(statement)


async def test_a_browser_that_signed_in_is_served_with_the_cookie_of_its_session(dataset, storage):
    """The role of map servers may read sessions."""
    app = create_app(load(auth_enabled=True), as_map_server(dataset), storage=storage)
    transport, session = ASGITransport(app=app, client=("127.0.0.1", 5)), new_session()
    cookie = {"Cookie": f"{SESSION}={session.text}"}
    async with (
        app.router.lifespan_context(app),
        AsyncClient(transport=transport, base_url="http://localhost") as client,
        AssetStore(dataset) as store,
        KeyStore(dataset) as keys,
    ):
        await approve.approve(store, "dem", 0, caller=REVIEWER, clearance=Clearance.OUO)
        anonymous = await client.get(URLS[0])
        await keys.sessions.start(session, SignIn("ana", ("viewer",)), lasts_seconds=60, request_id=None)
        signed_in = await client.get(URLS[0], headers=cookie)
        await keys.sessions.end(session.session_id, request_id=None)
        signed_out = await client.get(URLS[0], headers=cookie)

    assert (anonymous.status_code, signed_in.status_code) == (404, 200)
    assert signed_out.status_code in (401, 404)
