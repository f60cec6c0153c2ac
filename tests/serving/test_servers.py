"""Two map servers with authentication on one database: keys and decisions apply to both."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest
from starlette.testclient import TestClient

from dagmaster.access.keys import parse_key
from dagmaster.access.sessions import SessionText, new_session
from dagmaster.client.models.assets import CreatedKey, KeyRequest
from dagmaster.database.assets.keys import KeyChange, KeyStore
from dagmaster.database.assets.sessions import SignIn
from dagmaster.operations.keys import create_key, revoke_key
from dagmaster.serving.app import create_app
from dagmaster.settings import load
from dagmaster.storage.location import Edition
from dagmaster.storage.zones import Storage
from tests.serving.assets import Assets
from tests.serving.conftest import BOX
from tests.serving.data import collection, item, stored

pytestmark = pytest.mark.requirement("C3", "X1")


def key_of(dsn: str, scope: str) -> CreatedKey:
    async def create() -> CreatedKey:
        async with KeyStore(dsn) as keys:
            request = KeyRequest(name=f"{scope}-{uuid4().hex[:8]}", scopes=[scope])
            return await create_key(keys, request, KeyChange("test"))

    return asyncio.run(create())


def revoke(dsn: str, key: CreatedKey) -> None:
    async def revoked() -> None:
        async with KeyStore(dsn) as keys:
            await revoke_key(keys, key.key_id, KeyChange("test"))

    asyncio.run(revoked())


def session_of(dsn: str, key: CreatedKey) -> SessionText:
    async def started() -> SessionText:
        text, hash_of_key = new_session(), parse_key(key.key).hash
        async with KeyStore(dsn) as keys:
            person = SignIn(key.name, tuple(key.scopes), None, key.key_id, hash_of_key)
            await keys.sessions.start(text, person, lasts_seconds=600, request_id=None)
        return text

    return asyncio.run(started())


@pytest.fixture
def servers(served: str, storage: Storage) -> Iterator[tuple[TestClient, TestClient]]:
    """Two map servers with authentication, on one database."""
    apps = [create_app(load(auth_enabled=True), served, storage=storage) for _ in range(2)]
    with (
        TestClient(apps[0], base_url="http://localhost:8003") as first,
        TestClient(apps[1], base_url="http://localhost:8003") as second,
    ):
        yield first, second


Submit = Callable[..., None]


@pytest.fixture
def dataset(assets: Assets) -> Iterator[str]:
    name = f"shared-{uuid4().hex[:8]}"
    yield name
    assets.remove(name)


@pytest.fixture
def submit(assets: Assets, storage: Storage, tmp_path: Path, dataset: str) -> Submit:
    """Submit and process a revision of the dataset."""

    def submitted(ordinal: int = 0, revision: int = 1) -> None:
        edition = Edition(dataset, ordinal, revision)
        cog = stored(storage, tmp_path, edition.cog("x.tif"), np.full((1, 64, 64), 7, np.uint8), BOX)
        described = collection(dataset, BOX, **{"dagmaster:version_ordinal": ordinal})
        assets.submit(dataset, [described, item(edition, cog, BOX)], ordinal=ordinal, revision=revision)

    return submitted


def test_the_key_decides_what_a_caller_can_read(servers, served, assets, dataset, submit):
    client, _ = servers
    submit()
    assets.approve(dataset, 0, "ouo")
    viewer, reviewer = key_of(served, "viewer"), key_of(served, "reviewer")
    paths = [
        f"/tiles/{dataset}/WebMercatorQuad/tilejson.json",
        f"/stac/collections/{dataset}",
        f"/files/silver/silver/cogs/{dataset}/v0/r1/x.tif",
    ]

    def statuses(headers: dict[str, str]) -> list[int]:
        return [client.get(path, headers=headers).status_code for path in paths]

    assert statuses({}) == [404] * 3
    assert client.get("/stac/collections/plain").status_code == 200  # public
    assert client.get("/metrics").status_code == 401
    assert statuses({"X-API-Key": viewer.key}) == [200] * 3
    assert statuses({"Authorization": f"Bearer {reviewer.key}"}) == [200] * 3
    assert statuses({"X-API-Key": f"{viewer.key[:-4]}AAAA"}) == [401] * 3
    revoke(served, viewer)
    assert statuses({"X-API-Key": viewer.key}) == [401] * 3
    assert statuses({"X-API-Key": reviewer.key}) == [200] * 3


def test_a_session_can_read_what_its_key_can_read(servers, served, assets, dataset, submit):
    client, _ = servers
    submit()
    assets.approve(dataset, 0, "ouo")
    viewer = key_of(served, "viewer")
    session = session_of(served, viewer)
    cookie = {"Cookie": f"dagmaster_session={session.text}"}
    own_page = {**cookie, "Origin": "http://localhost:8003", "X-CSRF-Token": session.csrf_token}
    path, search = f"/tiles/{dataset}/WebMercatorQuad/tilejson.json", {"collections": [dataset]}

    read = client.get(path, headers=cookie)
    search_result = client.post("/stac/search", json=search, headers=own_page)
    foreign = client.post("/stac/search", json=search, headers=cookie)
    metrics = client.get("/metrics", headers=cookie)
    revoke(served, viewer)
    revoked = client.get(path, headers=cookie)
    public = client.get("/stac/collections/plain", headers=cookie)
    ended = client.get("/metrics", headers=cookie)

    assert (read.status_code, search_result.json()["features"][0]["collection"]) == (200, dataset)
    assert "Cookie" in read.headers["vary"]
    assert (foreign.status_code, foreign.json()["code"]) == (403, "request.foreign-origin")
    assert metrics.status_code == 403
    assert (revoked.status_code, public.status_code) == (404, 200)
    assert (ended.status_code, ended.json()["code"]) == (401, "auth.session-ended")


def test_pages_of_other_sites_can_read_public_data(servers):
    client, _ = servers
    site = {"Origin": "https://portal.example.org"}
    request = {"Access-Control-Request-Method": "GET", "Access-Control-Request-Headers": "x-api-key"}

    preflight = client.options("/stac/search", headers={**site, **request})
    answer = client.get("/stac/collections/plain", headers=site)

    assert preflight.status_code == 200
    assert "x-api-key" in preflight.headers["access-control-allow-headers"].lower()
    for response in (preflight, answer):
        assert response.headers["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in response.headers


def test_decisions_take_effect_with_the_next_request_on_every_server(servers, served, assets, dataset, submit):
    viewer, reviewer = key_of(served, "viewer"), key_of(served, "reviewer")

    def readable(key: CreatedKey | None = None, **query: int) -> bool:
        """Whether the caller can read the tiles and the files of a version on both servers."""
        headers = {"X-API-Key": key.key} if key else {}
        ordinal, revision = query.get("version", 0), query.get("rev", 1)
        ids = set()
        for client in servers:
            tiles = client.get(f"/tiles/{dataset}/WebMercatorQuad/tilejson.json", params=query, headers=headers)
            blob = f"cogs/{dataset}/v{ordinal}/r{revision}/x.tif"
            ids |= {tiles.status_code, client.get(f"/files/silver/silver/{blob}", headers=headers).status_code}
        assert ids in ({200}, {404}), ids
        return ids == {200}

    def listed(key: CreatedKey | None = None) -> set[str]:
        """The items that both servers find."""
        headers = {"X-API-Key": key.key} if key else {}
        both = [client.get("/stac/search", params={"collections": dataset}, headers=headers) for client in servers]
        first, second = ({feature["id"] for feature in response.json()["features"]} for response in both)
        assert first == second
        return first

    submit()
    assert (readable(viewer), readable(reviewer, version=0), listed(reviewer)) == (False, True, set())

    assets.approve(dataset, 0, "public")
    assert (readable(), readable(viewer), listed()) == (True, True, {f"{dataset}-v0"})

    submit(revision=2)
    assets.reject(dataset)
    assert (readable(), readable(viewer, version=0, rev=2), readable(reviewer, version=0, rev=2)) == (True, False, True)

    assets.clear(dataset, "ouo")
    assert (readable(), readable(viewer), listed(), listed(viewer)) == (False, True, set(), {f"{dataset}-v0"})

    submit(revision=3)
    assets.approve(dataset)
    submit(ordinal=1)
    assets.approve(dataset, 1)
    assert (readable(viewer, version=0, rev=3), readable(viewer, version=1)) == (False, True)

    assets.expose(dataset, "all-versions")
    assert (readable(viewer, version=0, rev=3), listed(viewer)) == (True, {f"{dataset}-v0", f"{dataset}-v1"})

    assets.unpublish(dataset, 1)
    assert (readable(viewer, version=1), listed(viewer)) == (False, {f"{dataset}-v0"})

    assets.approve(dataset, 1)
    assert (readable(viewer, version=1), listed(viewer)) == (True, {f"{dataset}-v0", f"{dataset}-v1"})

    assets.delete(dataset, 0)
    assert (readable(viewer, version=0, rev=3), listed(viewer)) == (False, {f"{dataset}-v1"})

    assets.delete(dataset)
    assert (readable(viewer, version=1), readable(reviewer, version=1), listed(reviewer)) == (False, False, set())
