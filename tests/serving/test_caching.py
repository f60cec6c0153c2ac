"""How long responses may be cached: by the client for seconds, and by all caches if the data is public and
the URL names its revision."""

from dataclasses import replace

import numpy as np
import pytest

from dagmaster.storage.location import Edition, Location, Zone
from tests.serving.conftest import BOX
from tests.serving.data import collection, item, stored

pytestmark = pytest.mark.requirement("C2", "C3")

PINNED = "public, max-age=31536000, immutable"
SHORT = "private, max-age=10, must-revalidate"


def pinned(client, dataset):
    (address,) = client.get(f"/tiles/{dataset}/WebMercatorQuad/tilejson.json").json()["tiles"]
    return address.format(z=9, x=270, y=172)


def test_the_latest_version_is_cached_for_seconds_and_revalidated_by_its_etag(client):
    first = client.get("/tiles/plain/preview.png")
    again = client.get("/tiles/plain/preview.png", headers={"If-None-Match": first.headers["etag"]})

    assert first.headers["cache-control"] == SHORT
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    assert again.headers["cache-control"] == SHORT


@pytest.mark.parametrize("given", ["W/{}", '"other", {}', "*"])
def test_etags_are_compared_as_the_standard_requires(client, given):
    etag = client.get("/tiles/plain/info").headers["etag"]

    assert client.get("/tiles/plain/info", headers={"If-None-Match": given.format(etag)}).status_code == 304
    assert client.get("/tiles/plain/info", headers={"If-None-Match": '"other"'}).status_code == 200


@pytest.mark.parametrize("dataset", ["plain", "tiled"])
def test_tiles_from_a_tilejson_are_immutable(client, dataset):
    response = client.get(pinned(client, dataset))

    assert response.status_code == 200
    assert response.headers["cache-control"] == PINNED


@pytest.mark.parametrize("dataset", ["plain", "tiled"])
def test_a_cached_tile_is_reported_as_not_modified_without_rendering(client, dataset, monkeypatch):
    latest = f"/tiles/{dataset}/tiles/WebMercatorQuad/9/270/172.png"
    expected = [(latest, SHORT), (pinned(client, dataset), PINNED)]
    etags = {client.get(address).headers["etag"] for address, _ in expected}
    assert len(etags) == 1
    (etag,) = etags

    monkeypatch.setattr("dagmaster.serving.readers.ReaderInput.open_cog", None)
    for address, kept in expected:
        again = client.get(address, headers={"If-None-Match": etag})
        assert (again.status_code, again.content) == (304, b"")
        assert (again.headers["etag"], again.headers["cache-control"]) == (etag, kept)


def test_the_response_for_a_missing_tile_is_not_cached(client):
    missing = client.get("/tiles/plain/tiles/WebMercatorQuad/9/0/0.png")

    assert (missing.status_code, missing.headers["cache-control"]) == (404, "no-store")
    assert "etag" not in missing.headers


@pytest.mark.parametrize("query", ["version=0", "version=0&rev=1", "version=0&rev=1-abc"])
def test_a_url_without_the_current_tag_is_cached_for_seconds(client, query):
    assert client.get(f"/tiles/plain/preview.png?{query}").headers["cache-control"] == SHORT


def test_errors_are_not_cached(client):
    assert client.get("/tiles/plain/info?version=9").headers["cache-control"] == "no-store"


def test_the_newest_version_is_the_latest_and_older_ones_are_still_served(client):
    def value(version):
        return round(client.get(f"/tiles/dem/point/10.5,50.5?version={version}").json()["values"][0])

    assert value("latest") == value(1) == value(0) + 1


@pytest.fixture
def revised(assets, storage, tmp_path):
    """A dataset with two revisions with different values, of which the first is approved."""
    edition = Edition("revised")
    for revision in (1, 2):
        edition = replace(edition, revision=revision)
        pixels = np.full((1, 256, 256), revision, np.uint8)
        cog = stored(storage, tmp_path, edition.cog("p.tif"), pixels, BOX)
        assets.submit("revised", [collection("revised", BOX), item(edition, cog, BOX)], revision=revision)
        if revision == 1:
            assets.approve("revised", clearance="public")
    yield
    assets.remove("revised")


def test_an_approved_revision_is_served_at_once_and_tiles_of_the_old_one_are_private(client, assets, revised):
    before = client.get("/tiles/revised/preview.png")
    old = pinned(client, "revised")
    assert client.get(old).status_code == 200

    assets.approve("revised")
    after = client.get("/tiles/revised/preview.png", headers={"If-None-Match": before.headers["etag"]})

    assert before.headers["etag"].startswith('"0-1-')
    assert after.status_code == 200
    assert after.headers["etag"].startswith('"0-2-')
    assert client.get(old).headers["cache-control"] == SHORT, "staff can still read it"
    assert client.get(pinned(client, "revised")).headers["cache-control"] == PINNED


def test_a_preview_is_private_and_follows_changes_of_its_documents(client, assets, revised, monkeypatch):
    """Until its review a revision may be processed again."""
    address = "/tiles/revised/point/10.5,50.5?version=0&rev=2"
    now = 0.0
    monkeypatch.setattr(client.app.state.services.resolver._sources, "_clock", lambda: now)
    first = client.get(address)
    assert (first.json()["values"], first.headers["cache-control"]) == ([2], SHORT)
    assert (
        client.get(first.url.copy_set_param("rev", first.headers["etag"].strip('"')[2:])).headers["cache-control"]
        == SHORT
    )

    changed = item(Edition("revised", 0, 2), Location(Zone.SILVER, "silver", "cogs/revised/v0/r1/p.tif"), BOX)
    assets.write_documents("revised", 0, 2, [changed])

    assert client.get(address).json()["values"] == [2], "cached for a second, for maps with many tiles"
    now = 2.0
    assert client.get(address).json()["values"] == [1]

    original = item(Edition("revised", 0, 2), Location(Zone.SILVER, "silver", "cogs/revised/v0/r2/p.tif"), BOX)
    assets.write_documents("revised", 0, 2, [original])
    assets.approve("revised")
    assert client.get(address).json()["values"] == [2], "the cache of the preview is not used after publication"


@pytest.mark.parametrize(
    "path", ["/", "/stac", "/stac/collections", "/stac/search", "/stac/collections/plain", "/livez"]
)
def test_responses_that_depend_on_the_caller_are_private(client, path):
    response = client.get(path)

    assert "public" not in response.headers["cache-control"]
    assert {"authorization", "x-api-key"} <= {name.strip().lower() for name in response.headers["vary"].split(",")}


def test_publicly_cached_responses_do_not_vary_with_the_caller(client):
    assert "vary" not in client.get(pinned(client, "plain")).headers
    assert "Authorization" in client.get("/tiles/plain/preview.png").headers["vary"]


@pytest.mark.parametrize("kind", ["tile", "file"])
def test_only_public_data_is_cached_by_shared_caches(client, assets, revised, kind):
    address = pinned(client, "revised") if kind == "tile" else "/files/silver/silver/cogs/revised/v0/r1/p.tif"
    for kept in (PINNED, SHORT):
        assert client.get(address).headers["cache-control"] == kept
        assert client.get(address, headers={"If-None-Match": "*"}).headers["cache-control"] == kept
        assets.clear("revised", "ouo" if kept == PINNED else "public")


def test_a_version_that_is_no_longer_exposed_is_private(client, assets, revised, storage):
    """Only staff can read it."""
    old = pinned(client, "revised")
    cog = Location(Zone.SILVER, "silver", "cogs/revised/v0/r1/p.tif")
    assets.submit("revised", [collection("revised", BOX), item(Edition("revised", 1), cog, BOX)], ordinal=1)
    assert client.get(old).headers["cache-control"] == PINNED

    assets.approve("revised", 1)

    assert client.get(old).headers["cache-control"] == SHORT


def test_a_file_of_a_preview_is_private(client, revised):
    response = client.get("/files/silver/silver/cogs/revised/v0/r2/p.tif")

    assert (response.status_code, response.headers["cache-control"]) == (200, SHORT)


INVALID = [
    ("tiles/WebMercatorQuad/9/0/0.png", 404),
    ("tiles/WebMercatorQuad/99/0/0.png", 404),
    ("tiles/WebMercatorQuad/9/270/172.gif", 400),
    ("tiles/WebMercatorQuad/9/270/172.png?colormap_name=nonsense", 400),
    ("tiles/WebMercatorQuad/x/270/172.png", 422),
    ("preview.png?max_size=4000", 422),
    ("point/500,0", 422),
    ("point/100,0", 404),
    ("statistics?histogram_bins=400", 422),
]


@pytest.mark.parametrize(("path", "status"), INVALID)
def test_an_invalid_request_is_refused_even_with_if_none_match(client, path, status):
    for condition in ("*", " * ", None):
        headers = {} if condition is None else {"If-None-Match": condition}
        response = client.get(f"/tiles/plain/{path}", headers=headers)
        assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json")


@pytest.mark.parametrize(("path", "status"), [(path, status) for path, status in INVALID if status != 404])
def test_invalid_parameters_are_refused_even_with_the_current_etag(client, path, status):
    etag = client.get("/tiles/plain/info").headers["etag"]

    assert client.get(f"/tiles/plain/{path}", headers={"If-None-Match": etag}).status_code == status


@pytest.mark.parametrize("path", ["tiles/WebMercatorQuad/9/270/172.png", "preview.png", "info", "statistics"])
def test_if_none_match_with_a_star_is_not_modified_for_existing_content(client, path):
    response = client.get(f"/tiles/plain/{path}", headers={"If-None-Match": "*"})

    assert (response.status_code, response.content) == (304, b"")
    assert response.headers["etag"] == client.get(f"/tiles/plain/{path}").headers["etag"]
