"""How long answers may be kept: seconds for what is the latest, for ever for what names its revision."""

import asyncio
from dataclasses import replace

import pytest

from dagmaster.errors import NotFound, Unavailable
from dagmaster.serving.sources import CachedResolver, SourceKind, TileSource
from dagmaster.storage.location import Edition, Location, Zone
from tests.serving.conftest import BOX, load_again, remove_item
from tests.serving.data import item, stored

pytestmark = pytest.mark.requirement("C2")

PINNED = "public, max-age=31536000, immutable"
SHORT = "public, max-age=10, must-revalidate"


def pinned(client, dataset):
    (address,) = client.get(f"/tiles/{dataset}/WebMercatorQuad/tilejson.json").json()["tiles"]
    return address.format(z=9, x=270, y=172)


def test_the_latest_is_kept_for_seconds_and_asked_for_by_its_tag(client):
    first = client.get("/tiles/plain/preview.png")
    again = client.get("/tiles/plain/preview.png", headers={"If-None-Match": first.headers["etag"]})

    assert first.headers["cache-control"] == SHORT
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    assert again.headers["cache-control"] == SHORT


@pytest.mark.parametrize("given", ["W/{}", '"other", {}', "*"])
def test_tags_are_compared_as_the_standard_wants(client, given):
    etag = client.get("/tiles/plain/info").headers["etag"]

    assert client.get("/tiles/plain/info", headers={"If-None-Match": given.format(etag)}).status_code == 304
    assert client.get("/tiles/plain/info", headers={"If-None-Match": '"other"'}).status_code == 200


@pytest.mark.parametrize("dataset", ["plain", "tiled"])
def test_tiles_of_a_tilejson_are_kept_for_ever(client, dataset):
    answer = client.get(pinned(client, dataset))

    assert answer.status_code == 200
    assert answer.headers["cache-control"] == PINNED


@pytest.mark.parametrize("dataset", ["plain", "tiled"])
def test_a_cached_tile_is_answered_as_not_modified_without_rendering_it(client, dataset, monkeypatch):
    latest = f"/tiles/{dataset}/tiles/WebMercatorQuad/9/270/172.png"
    asked = [(latest, SHORT), (pinned(client, dataset), PINNED)]
    etags = {client.get(address).headers["etag"] for address, _ in asked}
    assert len(etags) == 1
    (etag,) = etags

    monkeypatch.setattr("dagmaster.serving.tiles.open_for_display", None)
    for address, kept in asked:
        again = client.get(address, headers={"If-None-Match": etag})
        assert (again.status_code, again.content) == (304, b"")
        assert (again.headers["etag"], again.headers["cache-control"]) == (etag, kept)


def test_a_tile_that_is_not_there_is_not_kept(client):
    missing = client.get("/tiles/plain/tiles/WebMercatorQuad/9/0/0.png")

    assert (missing.status_code, missing.headers["cache-control"]) == (404, "no-store")
    assert "etag" not in missing.headers


@pytest.mark.parametrize("query", ["version=0", "version=0&rev=1", "version=0&rev=1-abc"])
def test_what_names_less_than_a_revision_is_kept_for_seconds(client, query):
    assert client.get(f"/tiles/plain/preview.png?{query}").headers["cache-control"] == SHORT


def test_errors_are_not_kept(client):
    assert client.get("/tiles/plain/info?version=9").headers["cache-control"] == "no-store"


def test_the_newest_version_is_the_latest_and_others_stay(client):
    def value(version):
        return round(client.get(f"/tiles/dem/point/10.5,50.5?version={version}").json()["values"][0])

    assert value("latest") == value(1) == value(0) + 1


def test_a_new_revision_is_seen_at_once_and_the_old_ones_tiles_are_refused(client, served, storage, tmp_path):
    import numpy as np

    edition = Edition("plain", 5, 1)
    paths = [
        stored(storage, tmp_path, replace(edition, revision=n).cog("p.tif"), np.full((1, 256, 256), n, np.uint8), BOX)
        for n in (1, 2)
    ]
    load_again(served, item(edition, paths[0], BOX))
    client.app.state.services.resolver.clear()
    try:
        before = client.get("/tiles/plain/preview.png")
        old = pinned(client, "plain")
        assert client.get(old).status_code == 200

        load_again(served, item(replace(edition, revision=2), paths[1], BOX))
        client.app.state.services.resolver.clear()
        after = client.get("/tiles/plain/preview.png", headers={"If-None-Match": before.headers["etag"]})

        assert after.status_code == 200
        assert after.headers["etag"].startswith('"5-2-')
        assert client.get(old).json()["code"] == "version.replaced"
        assert client.get(pinned(client, "plain")).headers["cache-control"] == PINNED
    finally:
        remove_item(served, "plain-v5")


SOURCE = TileSource("x", SourceKind.COG, 0, 1, Location(Zone.SILVER, "silver", "cogs/x/v0/r1/x.tif"), BOX, "abc")


class Counting:
    def __init__(self, error=None):
        self.asked = []
        self.error = error

    async def resolve(self, asset_id, version):
        self.asked.append((asset_id, version))
        await asyncio.sleep(0)
        if self.error:
            raise self.error
        return SOURCE


async def test_concurrent_lookups_share_one_query():
    counting = Counting()
    resolver = CachedResolver(counting, clock=lambda: 0.0)

    found = await asyncio.gather(*(resolver.resolve("x", "latest") for _ in range(30)))

    assert len(counting.asked) == 1
    assert found == [SOURCE] * 30


@pytest.mark.parametrize(("pin", "seconds"), [(None, 1.5), ("1-abc", 30.0)])
async def test_an_answer_is_used_for_a_while(pin, seconds):
    now = 0.0
    counting = Counting()
    resolver = CachedResolver(counting, clock=lambda: now)
    await resolver.resolve("x", "0", pin)

    now = seconds / 2 - 0.1
    await resolver.resolve("x", "0", pin)
    assert len(counting.asked) == 1

    now = seconds + 0.1
    await resolver.resolve("x", "0", pin)
    assert len(counting.asked) == 2


class Slow:
    """Answers when told to."""

    def __init__(self):
        self.answers = []

    async def resolve(self, asset_id, version):
        self.answers.append(asyncio.get_running_loop().create_future())
        return await self.answers[-1]


async def test_a_lookup_of_an_old_entry_does_not_wait_for_its_refresh():
    now, slow, newer = 0.0, Slow(), replace(SOURCE, revision=2)
    resolver = CachedResolver(slow, clock=lambda: now)
    first = asyncio.create_task(resolver.resolve("x", "latest"))
    await settled()
    slow.answers[0].set_result(SOURCE)
    assert await first == SOURCE

    now = 1.0
    assert await asyncio.wait_for(resolver.resolve("x", "latest"), 5) == SOURCE
    assert await asyncio.wait_for(resolver.resolve("x", "latest"), 5) == SOURCE
    await settled()
    assert len(slow.answers) == 2, "one question ahead of its time, for all"

    slow.answers[1].set_result(newer)
    await settled()
    assert await resolver.resolve("x", "latest") == newer


async def test_what_is_older_than_promised_is_not_used_when_the_next_answer_failed():
    now, slow = 0.0, Slow()
    resolver = CachedResolver(slow, clock=lambda: now)
    first = asyncio.create_task(resolver.resolve("x", "latest"))
    await settled()
    slow.answers[0].set_result(SOURCE)
    await first
    now = 1.0
    await resolver.resolve("x", "latest")
    await settled()
    slow.answers[1].set_exception(Unavailable("away"))
    await settled()
    assert await resolver.resolve("x", "latest") == SOURCE, "it is not too old yet"

    now = 1.6
    late = asyncio.create_task(resolver.resolve("x", "latest"))
    await settled()
    assert not late.done()
    slow.answers[2].set_exception(Unavailable("away"))
    with pytest.raises(Unavailable):
        await late


async def settled():
    """Once all that can go on has."""
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.parametrize(("error", "questions"), [(NotFound("no"), 1), (Unavailable("away"), 3)])
async def test_what_is_not_there_is_remembered_and_what_failed_is_asked_again(error, questions):
    counting = Counting(error)
    resolver = CachedResolver(counting, clock=lambda: 0.0)

    for _ in range(3):
        with pytest.raises(type(error)):
            await resolver.resolve("x", "latest")

    assert len(counting.asked) == questions


async def test_a_cancelled_lookup_does_not_cancel_the_others():
    counting = Counting()
    resolver = CachedResolver(counting, clock=lambda: 0.0)
    leaving = asyncio.create_task(resolver.resolve("x", "latest"))
    staying = asyncio.create_task(resolver.resolve("x", "latest"))
    await asyncio.sleep(0)

    leaving.cancel()

    assert await staying == SOURCE


async def test_memory_of_what_was_asked_is_bounded():
    resolver = CachedResolver(Counting(), clock=lambda: 0.0)

    for number in range(1100):
        await resolver.resolve(f"x{number}", "latest")

    assert len(resolver._entries) == 1024
