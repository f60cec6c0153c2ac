"""Complete files and ranges of files, and files that are never served."""

import hashlib
from pathlib import Path
from urllib.parse import quote

import pytest

from dagmaster.errors import Unavailable
from dagmaster.serving import files
from dagmaster.serving.access import AccessDecisions
from dagmaster.storage.location import Edition, Location, Zone
from dagmaster.storage.zones import Storage
from tests.serving.data import collection, item

pytestmark = pytest.mark.requirement("C2")

COG = "/files/silver/silver/cogs/plain/v0/r1/plain.tif"


@pytest.fixture
def whole(client):
    return client.get(COG).content


def test_a_file_is_served_unchanged(client, whole, storage):
    response = client.get(COG)
    stored = storage.get(Location(Zone.SILVER, "silver", "cogs/plain/v0/r1/plain.tif"))

    assert hashlib.sha256(whole).digest() == hashlib.sha256(stored).digest()
    assert response.headers["content-type"] == "image/tiff; application=geotiff; profile=cloud-optimized"
    assert response.headers["accept-ranges"] == "bytes"
    assert int(response.headers["content-length"]) == len(stored)


def test_head_has_the_same_headers_without_the_file(client, whole):
    response = client.head(COG)

    assert (response.status_code, response.content) == (200, b"")
    assert int(response.headers["content-length"]) == len(whole)
    assert response.headers["etag"] == client.get(COG).headers["etag"]


@pytest.mark.parametrize(
    ("byte_range", "part"),
    [
        ("bytes=0-9", slice(0, 10)),
        ("bytes=100-", slice(100, None)),
        ("bytes=-7", slice(-7, None)),
        ("bytes=5-5", slice(5, 6)),
        ("bytes=1000-99999999", slice(1000, None)),
        ("bytes=-99999999", slice(None)),
    ],
)
def test_a_range_of_a_file_is_served(client, whole, byte_range, part):
    response = client.get(COG, headers={"Range": byte_range})

    assert response.content == whole[part]
    if len(response.content) < len(whole):
        first = len(whole[: part.start]) if (part.start or 0) >= 0 else len(whole) + part.start
        assert response.status_code == 206
        assert response.headers["content-range"] == f"bytes {first}-{first + len(response.content) - 1}/{len(whole)}"


@pytest.mark.parametrize("byte_range", ["bytes=5-2", "bytes=-", "lines=1-2", "bytes=0-1,4-5", "bytes=x-y", "bytes=1"])
def test_an_unsupported_range_gives_the_whole_file(client, whole, byte_range):
    response = client.get(COG, headers={"Range": byte_range})

    assert (response.status_code, response.content) == (200, whole)


@pytest.mark.parametrize("byte_range", ["bytes=99999999-", "bytes=99999999-999999999", "bytes=-0"])
def test_a_range_beyond_the_file_is_refused(client, whole, byte_range):
    response = client.get(COG, headers={"Range": byte_range})

    assert response.status_code == 416
    assert response.headers["content-range"] == f"bytes */{len(whole)}"


def test_a_range_of_a_replaced_file_gives_the_whole_file(client, whole):
    etag = client.get(COG).headers["etag"]

    same = client.get(COG, headers={"Range": "bytes=0-9", "If-Range": etag})
    other = client.get(COG, headers={"Range": "bytes=0-9", "If-Range": '"old"'})

    assert (same.status_code, other.status_code) == (206, 200)
    assert other.content == whole


def test_a_file_that_the_client_has_is_not_modified(client):
    etag = client.get(COG).headers["etag"]

    response = client.get(COG, headers={"If-None-Match": etag})

    assert (response.status_code, response.content) == (304, b"")


def test_only_the_requested_part_of_a_file_is_read(client, whole, monkeypatch):
    etag, read = client.get(COG).headers["etag"], []
    get_range = Storage.get_range

    def note(storage, location, start, length):
        read.append((start, length))
        return get_range(storage, location, start, length)

    monkeypatch.setattr(Storage, "get_range", note)
    client.head(COG)
    client.get(COG, headers={"If-None-Match": etag})
    client.get(COG, headers={"Range": "bytes=99999999-"})
    assert read == []

    client.get(COG, headers={"Range": "bytes=100-299"})
    assert read == [(100, 200)]

    read.clear()
    monkeypatch.setattr(files, "CHUNK_BYTES", 100)  # a larger part is streamed in chunks
    part = client.get(COG, headers={"Range": "bytes=100-349"})
    assert read == [(100, 100), (200, 100), (300, 50)]
    assert (part.status_code, part.content) == (206, whole[100:350])


def test_a_read_error_is_reported_as_a_problem_before_the_response_starts(client, monkeypatch):
    def fail(*_arguments):
        raise Unavailable("the storage does not respond", code="storage.unavailable")

    monkeypatch.setattr(Storage, "get_range", fail)
    response = client.get(COG, headers={"Range": "bytes=0-99"})

    assert (response.status_code, response.json()["code"]) == (503, "storage.unavailable")


@pytest.mark.parametrize(
    "path",
    [
        "/files/bronze/bronze/secret.tif",  # raw data
        "/files/silver/silver/3f1b9a52-0000-4000-8000-000000000000/part.tif",  # an intermediate object
        "/files/silver/silver/cogs/plain/v0/r1/",  # a folder
        "/files/silver/silver/cogs",
        "/files/silver/silver/",
        "/files/silver/",
        "/files/silver/silver/none.tif",
        "/files/gold/silver/x.tif",
        "/files/silver/silver/%2e%2e/%2e%2e/bronze/bronze/secret.tif",
        "/files/silver/silver/..%2f..%2fbronze%2fbronze%2fsecret.tif",
        "/files/silver/..%2fbronze/bronze/secret.tif",
        "/files/silver/silver//etc/passwd",
        "/files/silver/silver/%2Fetc%2Fpasswd",
        "/files/silver/silver/..%5c..%5csecret.tif",
        "/files/silver/silver/a%00.tif",
        "/files/silver/silver/a%0d%0aX-Bad:1",
        "/files/silver/silver/.incoming/x",
        "/files/silver/.scratch/x",
        "/files/silver/silver/cogs/.hidden.tif",
        "/files/silver/silver/" + "x" * 3000,
        "/files/silver/silver/http://127.0.0.1/x.tif",
        "/files/SILVER/silver/cogs/plain/v0/r1/plain.tif",
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_no_other_files_are_served(client, path, method):
    response = client.request(method, path)

    assert response.status_code == 404, response.text
    assert b"raw data" not in response.content


@pytest.mark.parametrize(
    "blob",
    [
        "cogs/plain/v0/r0/plain.tif",  # the first revision is 1
        "cogs/plain/v0/r01/plain.tif",
        "cogs/plain/v00/r1/plain.tif",
        "cogs/plain/v\u0660/r1/plain.tif",  # a zero, but not the digit 0
        "cogs/plain/v0/r\u0661/plain.tif",
        "cogs/plain/v-1/r1/plain.tif",
        "cogs/plain/v0/r9999999999/plain.tif",
        "cogs/PLAIN/v0/r1/plain.tif",
        "cogs/pl\u00e4in/v0/r1/plain.tif",
        "cogs/plain' OR 'a'='a/v0/r1/plain.tif",
        "cogs/plain%00/v0/r1/plain.tif",
        "cogs/..%2fplain/v0/r1/plain.tif",
        "cogs/" + "x" * 200 + "/v0/r1/plain.tif",
        "cogs/plain/x/v0/r1/plain.tif",
        "recipes/plain/v0/r1/recipe.json",
        "other/plain/v0/r1/plain.tif",
    ],
)
@pytest.mark.parametrize("zone", ["silver", "external"])
def test_a_name_that_is_not_that_of_a_served_file_is_not_looked_up(client, monkeypatch, zone, blob):
    looked_up = []
    monkeypatch.setattr(AccessDecisions, "readable", lambda *arguments: looked_up.append(arguments))

    response = client.get(f"/files/{zone}/{zone}/{quote(blob)}")

    assert (response.status_code, response.json()["code"]) == (404, "file.not-found")
    assert looked_up == []


def test_a_link_to_a_file_outside_the_storage_is_not_followed(client, storage, tmp_path):
    outside = tmp_path / "outside.tif"
    outside.write_bytes(b"private")
    place = storage.gdal_path(Location(Zone.SILVER, "silver", "cogs/plain/v0/r1/plain.tif")).replace(
        "plain.tif", "l.tif"
    )
    Path(place).symlink_to(outside)

    response = client.get(COG.replace("plain.tif", "l.tif"))

    assert response.status_code in (403, 404)
    assert b"private" not in response.content


@pytest.mark.requirement("C2", "X1")
@pytest.mark.parametrize(
    "blob",
    [
        "cogs/plain/v0/r1/stray.tif",
        "mosaics/plain/v0/r1/mosaic.json",
        "tiling_schemes/plain/v0/r1/tiling_scheme.geojson",
        "stac/plain/v0/r1/note.html",
    ],
)
def test_a_file_that_no_document_of_the_revision_names_is_not_served(client, storage, blob):
    storage.put(storage.location(blob, zone=Zone.SILVER), b"stray")
    storage.put(Location(Zone.SILVER, "another", "cogs/plain/v0/r1/plain.tif"), b"stray")

    assert client.get(f"/files/silver/silver/{blob}").status_code == 404
    assert client.get("/files/silver/another/cogs/plain/v0/r1/plain.tif").status_code == 404
    assert client.get(COG).status_code == 200


def test_scripts_of_an_uploaded_page_do_not_run(client, storage, assets):
    edition, box = Edition("noted"), (10.0, 50.0, 11.0, 51.0)
    page = storage.location(edition.cog("note.html"), zone=Zone.SILVER)
    storage.put(page, b"<script>alert(1)</script>")
    assets.publish(collection("noted", box), [item(edition, page, box)])

    response = client.get("/files/silver/silver/cogs/noted/v0/r1/note.html")
    assets.remove("noted")

    assert response.headers["content-type"] == "application/octet-stream"
    assert response.headers["x-content-type-options"] == "nosniff"


MOSAIC = "/files/silver/silver/mosaics/tiled/v0/r1/mosaic.json"


def test_a_mosaic_is_served_with_the_urls_of_its_cogs(client):
    response = client.get(MOSAIC)
    document = response.json()
    names = {name for names in document["tiles"].values() for name in names}

    assert document["asset_prefix"] == "http://localhost:8003/files/silver/silver/cogs/tiled/v0/r1/"
    assert len(names) == 4
    for name in names:
        assert client.head(document["asset_prefix"] + name).status_code == 200
    assert int(response.headers["content-length"]) == len(response.content)


def test_ranges_of_a_mosaic_together_are_the_whole_mosaic(client):
    whole = client.get(MOSAIC)
    middle = len(whole.content) // 2
    parts = [client.get(MOSAIC, headers={"Range": f"bytes={span}"}) for span in (f"0-{middle - 1}", f"{middle}-")]

    assert b"".join(part.content for part in parts) == whole.content
    assert {part.status_code for part in parts} == {206}
    assert {part.headers["etag"] for part in parts} == {whole.headers["etag"]}
    assert client.get(MOSAIC, headers={"If-None-Match": whole.headers["etag"]}).status_code == 304


def test_the_etag_of_a_mosaic_depends_on_the_address_of_the_server(client):
    other = client.get(MOSAIC, headers={"Host": "127.0.0.1:8003"})

    assert other.json()["asset_prefix"].startswith("http://127.0.0.1:8003/files/")
    assert other.headers["etag"] != client.get(MOSAIC).headers["etag"]


@pytest.mark.parametrize(
    ("prefix", "name", "expected"),
    [
        ("", "a.tif", "http://maps.example/x/files/silver/silver/cogs/d/v0/r1/a.tif"),
        ("part/", "a b.tif", "http://maps.example/x/files/silver/silver/cogs/d/v0/r1/part/a%20b.tif"),
        ("http://127.0.0.1:9/files/silver/silver/", "a.tif", "http://maps.example/x/files/silver/silver/a.tif"),
        ("http://other.example/", "a.tif", "http://other.example/a.tif"),
        ("", "http://other.example/a.tif", "http://other.example/a.tif"),
        ("../../", "a.tif", "../../a.tif"),
    ],
)
def test_the_prefix_of_a_mosaic_becomes_an_absolute_url(prefix, name, expected):
    import json

    from dagmaster.serving.mosaics import with_asset_urls

    stored = json.dumps({"asset_prefix": prefix, "tiles": {"0": [name]}}).encode()
    location = Location(Zone.SILVER, "silver", "mosaics/d/v0/r1/mosaic.json")
    document = json.loads(with_asset_urls(stored, location, "http://maps.example/x/"))

    assert document["asset_prefix"] + document["tiles"]["0"][0] == expected


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"tiles": 7}', b'{"tiles": {"0": [1]}}', b"\xff"])
def test_a_document_that_is_not_a_mosaic_is_served_unchanged(text):
    from dagmaster.serving.mosaics import with_asset_urls

    location = Location(Zone.SILVER, "silver", "mosaics/d/v0/r1/mosaic.json")
    assert with_asset_urls(text, location, "http://maps.example/") == text
