"""Uploads over the API: the protocol, refused requests, and who may see which uploads."""

import asyncio
import base64
import contextlib
import fcntl
import hashlib
import os
from pathlib import Path
from uuid import uuid4

import pytest

from dagmaster import listen
from dagmaster.errors import InvalidRequest
from dagmaster.storage import Location, Zone
from dagmaster.web import uploads as protocol
from dagmaster.web.middleware import RequestMiddleware
from tests.api.serving import V1, api, app_of, ok, pages_of, served
from tests.gateway.kit import bearer, key_of
from tests.web.problems import check

pytestmark = pytest.mark.requirement("G1", "G3")

CHUNK = {"Content-Type": "application/offset+octet-stream"}
DATA = bytes(range(256)) * 20


def digest(data: bytes = DATA) -> str:
    return hashlib.sha256(data).hexdigest()


def at(offset: int, **more: str) -> dict[str, str]:
    return {**CHUNK, "Upload-Offset": str(offset), **more}


def fresh_name() -> str:
    return f"{uuid4().hex}.tif"


def metadata(**values: str) -> str:
    return ",".join(f"{key} {base64.b64encode(value.encode()).decode()}" for key, value in values.items())


@pytest.fixture
async def client(shared_database, tmp_path):
    async with api(shared_database, storage_folder=tmp_path, upload_chunk_mb=2, max_upload_mb=3) as opened:
        yield opened


async def begun(client, **fields):
    request = {"name": fresh_name(), "size_bytes": len(DATA), **fields}
    return await client.post(f"{V1}/uploads", json=request)


async def test_a_file_that_is_sent_in_parts_becomes_an_object_of_its_platform(client, tmp_path):
    answer = await begun(client, name=(name := fresh_name()), sha256=digest())
    where = answer.headers["location"]
    first = await client.patch(where, content=DATA[:1000], headers=at(0))
    response = await client.head(where)
    objects = await ok(client.get(f"{V1}/sources", params={"prefix": f"local/{name}"}))
    last = await client.patch(where, content=DATA[1000:], headers=at(1000))
    upload = await ok(client.get(where))
    listed = await ok(client.get(f"{V1}/sources", params={"prefix": f"local/{name}"}))

    assert answer.status_code == 201
    assert (answer.headers["upload-offset"], answer.json()["state"]) == ("0", "open")
    assert (first.status_code, first.headers["upload-offset"], first.content) == (204, "1000", b"")
    assert (response.status_code, response.headers["upload-offset"]) == (200, "1000")
    assert objects["items"] == []  # the object does not exist before all bytes have arrived
    assert (last.status_code, last.headers["upload-offset"]) == (204, str(len(DATA)))
    assert (tmp_path / f"bronze/bronze/local/{name}").read_bytes() == DATA
    assert upload["source"] == {"container": "bronze", "blob": f"local/{name}"}
    assert (upload["state"], upload["sha256"], upload["size_bytes"]) == ("finished", digest(), len(DATA))
    assert [item["etag"] for item in listed["items"]] == [upload["etag"]]
    assert list((tmp_path / "bronze/.uploads").iterdir()) == []


async def test_uploads_follow_the_specification_of_the_tus_protocol(client):
    described = await client.options(f"{V1}/uploads", headers={})
    sent = {"Tus-Resumable": "1.0.0", "Upload-Length": str(len(DATA))}
    names = metadata(filename=(name := fresh_name()), filetype="image/tiff", sha256=digest())
    created = await client.post(f"{V1}/uploads", headers={**sent, "Upload-Metadata": names})
    where = created.headers["location"]
    response = await client.head(where, headers={"Tus-Resumable": "1.0.0"})
    wrong = await client.patch(where, content=b"x", headers=at(7, **{"Tus-Resumable": "1.0.0"}))
    missing = await client.head(f"{V1}/uploads/{uuid4()}", headers={"Tus-Resumable": "1.0.0"})
    newer = await client.patch(where, content=DATA, headers=at(0, **{"Tus-Resumable": "2.0.0"}))
    typed = await client.patch(where, content=DATA, headers={"Upload-Offset": "0", "Content-Type": "image/tiff"})
    cancelled = await client.delete(where, headers={"Tus-Resumable": "1.0.0"})
    after = await client.head(where)

    assert described.status_code == 204
    assert described.headers["tus-version"] == "1.0.0"
    assert described.headers["tus-max-size"] == "3000000"
    assert set(described.headers["tus-extension"].split(",")) == {"creation", "expiration", "termination"}
    assert created.status_code == 201
    assert created.json()["source"]["blob"] == f"local/{name}"
    assert (response.headers["upload-offset"], response.headers["upload-length"]) == ("0", str(len(DATA)))
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["upload-expires"].endswith("GMT")
    assert f"filename {base64.b64encode(name.encode()).decode()}" in response.headers["upload-metadata"]
    check(wrong, 409, "upload.wrong-offset")
    assert wrong.headers["upload-offset"] == "0"
    assert missing.status_code == 404
    assert "upload-offset" not in missing.headers
    check(newer, 412, "upload.protocol-version")
    check(typed, 415, "upload.media-type")
    assert (cancelled.status_code, after.status_code) == (204, 404)
    for answer in (created, response, wrong, missing, newer, cancelled):
        assert answer.headers["tus-resumable"] == "1.0.0"


REFUSED = (
    ({"size_bytes": 3_000_001}, 413, "upload.too-large"),
    ({"size_bytes": 0}, 400, "upload.empty"),
    ({"size_bytes": -1}, 422, "request.invalid"),
    ({"name": "../up.tif"}, 400, "storage.bad-blob"),
    ({"name": "a/../../up.tif"}, 400, "storage.bad-blob"),
    ({"name": "/etc/passwd"}, 400, "storage.bad-blob"),
    ({"name": "."}, 400, "storage.bad-blob"),
    ({"name": "a//b.tif"}, 400, "storage.bad-blob"),
    ({"name": "a\\b.tif"}, 400, "storage.bad-blob"),
    ({"name": "a\nb.tif"}, 400, "storage.bad-blob"),
    ({"name": "a\u202eb.tif"}, 400, "storage.bad-blob"),
    ({"name": "a\x00.tif"}, 400, "storage.bad-blob"),
    ({"name": "e\u0301.tif"}, 400, "storage.bad-blob"),
    ({"name": "x" * 256}, 400, "storage.bad-blob"),
    ({"name": ""}, 422, "request.invalid"),
    ({"name": "x" * 2000}, 422, "request.invalid"),
    ({"sha256": "abc"}, 422, "request.invalid"),
    ({"sha256": "A" * 64}, 422, "request.invalid"),
    ({"platform_id": "unknown"}, 404, "platform.not-found"),
    ({"platform_id": "../x"}, 422, "request.invalid"),
    ({"colour": "red"}, 422, "request.invalid"),
)


async def test_uploads_with_invalid_names_sizes_or_hashes_are_refused(client, tmp_path):
    for fields, status, code in REFUSED:
        for if_exists in ("refuse", "rename"):
            check(await begun(client, if_exists=if_exists, **fields), status, code)

    assert not list(tmp_path.rglob("*.tif"))


NOT_DESCRIBED = (
    (None, metadata(filename="a.tif"), "upload.not-described"),
    ("ten", metadata(filename="a.tif"), "upload.bad-header"),
    ("9" * 30, metadata(filename="a.tif"), "upload.bad-header"),
    ("10", None, "upload.bad-header"),
    ("10", "filename ***", "upload.bad-header"),
    ("10", "filename //8=", "upload.bad-header"),
    ("10", metadata(filename="a.tif") + ",filename eA==", "upload.bad-header"),
    ("10", metadata(filename="a.tif", sha256="abc"), "upload.bad-header"),
    ("10", metadata(filename="../a.tif"), "storage.bad-blob"),
)


async def test_headers_that_do_not_describe_a_file_are_refused(client):
    for length, described, code in NOT_DESCRIBED:
        headers = {"Upload-Length": length, "Upload-Metadata": described}
        response = await client.post(f"{V1}/uploads", headers={name: text for name, text in headers.items() if text})
        check(response, 400, code)


NOT_FITTING = (
    ("5", b"x", 409, "upload.wrong-offset"),
    ("-1", b"x", 400, "upload.bad-header"),
    ("one", b"x", 400, "upload.bad-header"),
    ("0", DATA + b"x", 400, "upload.too-long"),
    ("0", b"x" * 2_000_001, 413, "request.too-large"),
)


async def test_bytes_with_a_wrong_offset_or_length_are_refused_and_none_is_kept(client):
    for offset, content, status, code in NOT_FITTING:
        where = (await begun(client)).headers["location"]
        refused = await client.patch(where, content=content, headers={**CHUNK, "Upload-Offset": offset})
        check(refused, status, code)
        assert (await client.head(where)).headers["upload-offset"] == "0"


async def test_a_body_of_unknown_length_is_cut_at_the_size_of_the_file(client):
    where = (await begun(client)).headers["location"]

    async def too_much():
        yield DATA[:100]
        yield DATA

    refused = await client.patch(where, content=too_much(), headers=at(0))

    check(refused, 400, "upload.too-long")
    assert (await client.head(where)).headers["upload-offset"] == "100"


async def test_other_requests_keep_their_limit_of_one_megabyte(client):
    where = (await begun(client)).headers["location"]

    check(await client.post(f"{V1}/uploads", content=b" " * 1_100_000), 413, "request.too-large")
    assert (await client.request("DELETE", where, content=b" " * 1_100_000)).status_code == 413


async def test_a_file_with_another_hash_than_announced_is_refused_and_removed(client, tmp_path):
    where = (await begun(client, sha256="0" * 64)).headers["location"]

    refused = await client.patch(where, content=DATA, headers=at(0))

    problem = check(refused, 422, "upload.checksum")
    assert problem["facts"]["actual_sha256"] == digest()
    assert (await client.head(where)).status_code == 404
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


async def uploaded(client, data=DATA, **fields):
    response = await begun(client, size_bytes=len(data), **fields)
    if response.status_code == 201:
        await ok(client.patch(response.headers["location"], content=data, headers=at(0)), 204)
    return response


async def test_an_object_is_never_overwritten(client, tmp_path):
    name, other = fresh_name(), b"other bytes"
    await uploaded(client, name=name)
    refused = await begun(client, name=name, size_bytes=len(other))
    renamed = await uploaded(client, other, name=name, if_exists="rename", sha256=digest(other))
    below = await begun(client, name=f"{name}/below.tif")
    again = await uploaded(client, other, name=name, if_exists="rename", sha256=digest(other))

    check(refused, 409, "upload.name-taken")
    check(below, 409, "upload.name-taken")
    assert (tmp_path / f"bronze/bronze/local/{name}").read_bytes() == DATA
    blob = renamed.json()["source"]["blob"]
    assert blob == f"local/{name.removesuffix('.tif')}-{digest(other)[:8]}.tif"
    assert (tmp_path / f"bronze/bronze/{blob}").read_bytes() == other
    assert (again.status_code, again.json()["upload_id"]) == (200, renamed.json()["upload_id"])


async def test_the_same_file_again_continues_the_same_upload(client):
    name = fresh_name()
    first = await begun(client, name=name, sha256=digest())
    await ok(client.patch(first.headers["location"], content=DATA[:10], headers=at(0)), 204)
    again = await begun(client, name=name, sha256=digest())
    other = await begun(client, name=name, sha256="1" * 64)
    unknown = await begun(client, name=name)

    assert (again.status_code, again.json()["upload_id"]) == (201, first.json()["upload_id"])
    assert again.json()["offset_bytes"] == 10
    check(other, 409, "upload.name-taken")
    check(unknown, 409, "upload.name-taken")


async def test_an_object_that_another_program_wrote_during_the_upload_is_kept(client, tmp_path):
    name = fresh_name()
    where = (await begun(client, name=name)).headers["location"]
    target = tmp_path / f"bronze/bronze/local/{name}"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(b"theirs")

    refused = await client.patch(where, content=DATA, headers=at(0))

    check(refused, 409, "upload.name-taken")
    assert target.read_bytes() == b"theirs"


async def test_a_finished_upload_cannot_be_continued_or_cancelled(client):
    response = await uploaded(client)
    where = response.headers["location"]

    check(await client.delete(where), 409, "upload.finished")
    more = await client.patch(where, content=b"x", headers=at(len(DATA)))
    check(more, 409, "upload.wrong-offset")
    assert more.headers["upload-offset"] == str(len(DATA))
    await ok(client.patch(where, content=b"", headers=at(len(DATA))), 204)  # the last request, repeated


async def _until_locked(file: Path) -> None:
    async with asyncio.timeout(5):
        while True:
            with contextlib.suppress(FileNotFoundError), file.open("rb") as opened:
                try:
                    fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return
            await asyncio.sleep(0.01)


async def test_only_one_of_two_concurrent_requests_writes(shared_database, tmp_path):
    app = app_of(shared_database, storage_folder=tmp_path)
    async with served(app) as server, api(shared_database, storage_folder=tmp_path) as other:
        where = (await begun(other, size_bytes=3000)).headers["location"]
        host, port = server.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"PATCH {where} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3000\r\nUpload-Offset: 0\r\n"
        writer.write(f"{head}Content-Type: {CHUNK['Content-Type']}\r\n\r\n".encode() + b"a" * 1000)
        await _until_locked(tmp_path / "bronze/.uploads" / where.rpartition("/")[2])
        refused = await other.patch(where, content=b"b" * 10, headers=at(0))
        cancelled = await other.delete(where)
        writer.write(b"c" * 2000)
        response = await reader.readuntil(b"\r\n\r\n")
        writer.close()
        upload = await ok(other.get(where))

    check(refused, 423, "upload.locked")
    check(cancelled, 423, "upload.locked")
    assert b" 204 " in response.splitlines()[0]
    assert (upload["state"], upload["sha256"]) == ("finished", digest(b"a" * 1000 + b"c" * 2000))


async def test_bytes_that_arrived_before_the_connection_was_lost_are_kept(shared_database, tmp_path):
    app = app_of(shared_database, storage_folder=tmp_path)
    async with served(app) as server, api(shared_database, storage_folder=tmp_path) as other:
        where = (await begun(other, size_bytes=5000)).headers["location"]
        host, port = server.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        head = f"PATCH {where} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\nUpload-Offset: 0\r\n"
        writer.write(f"{head}Content-Type: {CHUNK['Content-Type']}\r\n\r\n".encode() + b"a" * 1234)
        await _until_locked(tmp_path / "bronze/.uploads" / where.rpartition("/")[2])
        await asyncio.sleep(0.2)
        writer.close()
        async with asyncio.timeout(5):
            while (await other.head(where)).headers["upload-offset"] != "1234":
                await asyncio.sleep(0.02)
            while (response := await other.patch(where, content=b"b" * 3766, headers=at(1234))).status_code == 423:
                await asyncio.sleep(0.02)

    assert response.status_code == 204
    (stored,) = tmp_path.rglob("*.tif")
    assert stored.read_bytes() == b"a" * 1234 + b"b" * 3766


async def test_the_request_of_a_client_that_stops_sending_is_ended(shared_database, tmp_path, monkeypatch):
    monkeypatch.setattr(protocol.body_of, "__defaults__", (0.3,))
    app = app_of(shared_database, storage_folder=tmp_path)
    async with served(app) as server, api(shared_database, storage_folder=tmp_path) as other:
        where = (await begun(other, size_bytes=5000)).headers["location"]
        host, port = server.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"PATCH {where} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\nUpload-Offset: 0\r\n"
        writer.write(f"{head}Content-Type: {CHUNK['Content-Type']}\r\n\r\n".encode() + b"a" * 10)
        answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        response = await other.patch(where, content=b"a" * 10, headers=at(10))
        writer.close()

    assert b" 408 " in answer.splitlines()[0]
    assert (response.status_code, response.headers["upload-offset"]) == (204, "20")


async def test_a_full_disk_is_reported_and_the_written_bytes_are_kept(client, tmp_path, monkeypatch):
    where = (await begun(client, size_bytes=2_500_000)).headers["location"]
    write, free_bytes = os.write, [1_500_000]

    def limited(descriptor, data):
        if not Path(f"/proc/self/fd/{descriptor}").readlink().is_relative_to(tmp_path):
            return write(descriptor, data)
        if not free_bytes[0]:
            free_bytes[0] = 10_000_000  # space is freed right afterwards
            raise OSError(28, "No space left on device")
        written = write(descriptor, data[: free_bytes[0]])
        free_bytes[0] -= written
        return written

    monkeypatch.setattr(os, "write", limited)
    full = await client.patch(where, content=b"x" * 1_900_000, headers=at(0))
    response = await client.head(where)
    last_part = await client.patch(where, content=b"y" * 1_000_000, headers=at(1_500_000))

    check(full, 503, "storage.full")
    assert response.headers["upload-offset"] == "1500000"
    assert last_part.headers["upload-offset"] == "2500000"
    (stored,) = tmp_path.rglob("*.tif")
    assert stored.read_bytes() == b"x" * 1_500_000 + b"y" * 1_000_000


async def test_a_file_larger_than_the_free_disk_space_is_refused_before_it_is_sent(shared_database, tmp_path):
    async with api(shared_database, storage_folder=tmp_path, max_upload_mb=10_000_000) as client:
        check(await begun(client, size_bytes=9_000_000_000_000), 503, "storage.full")


async def test_a_caller_has_a_limited_number_of_unfinished_uploads(database, tmp_path):
    async with api(database, storage_folder=tmp_path, max_open_uploads=3) as client:
        responses = await asyncio.gather(*(begun(client) for _ in range(6)))
        accepted = [response for response in responses if response.status_code == 201]
        await ok(client.delete(accepted[0].headers["location"]), 204)
        after = await begun(client)

    assert len(accepted) == 3
    for response in responses:
        if response.status_code != 201:
            check(response, 429, "upload.too-many")
    assert after.status_code == 201


async def test_a_platform_sees_and_continues_only_its_own_uploads(database, tmp_path):
    hub = bearer(await key_of(database, "hub", "b2b", platform="ddh"))
    other = bearer(await key_of(database, "other", "b2b", platform="geonode"))
    staff = bearer(await key_of(database, "staff", "operator"))
    viewer = bearer(await key_of(database, "viewer", "viewer"))
    async with api(database, storage_folder=tmp_path, auth_enabled=True) as client:
        request = {"name": "a.tif", "size_bytes": len(DATA)}
        response = await client.post(f"{V1}/uploads", json=request, headers=hub)
        where = response.headers["location"]
        foreign = [
            await client.request(method, where, headers={**who, **at(0)}, content=content)
            for who in (other, viewer, {})
            for method, content in (("GET", b""), ("HEAD", b""), ("PATCH", b"x"), ("DELETE", b""))
        ]
        for_another_platform = await client.post(f"{V1}/uploads", json={**request, "platform_id": "ddh"}, headers=other)
        finished = await client.patch(where, content=DATA, headers={**hub, **at(0)})
        await client.post(f"{V1}/uploads", json={**request, "platform_id": "geonode"}, headers=staff)
        seen = {
            name: [item["source"]["blob"] for item in (await ok(client.get(f"{V1}/uploads", headers=who)))["items"]]
            for name, who in (("hub", hub), ("other", other), ("staff", staff))
        }
        objects = [
            (await ok(client.get(f"{V1}/sources", headers=who, params={"prefix": prefix})))["items"]
            for who, prefix in ((hub, ""), (hub, "dd"), (hub, "ddh/a"), (other, ""), (other, "ddh/"), (staff, "ddh/"))
        ]
        audit = await client.get(f"{V1}/audit", headers=bearer(await key_of(database, "boss", "admin")))

    assert response.json()["source"]["blob"] == "ddh/a.tif"
    assert [each.status_code for each in foreign] == [404] * 4 + [403] * 4 + [401] * 4
    assert for_another_platform.status_code == 404
    assert finished.status_code == 204
    assert seen == {"hub": ["ddh/a.tif"], "other": ["geonode/a.tif"], "staff": ["geonode/a.tif", "ddh/a.tif"]}
    assert [len(items) for items in objects] == [1, 1, 1, 0, 0, 1]
    (event,) = [entry for entry in audit.json()["items"] if entry["action"] == "upload_finished"]
    assert (event["actor"], event["platform_id"]) == ("hub", "ddh")
    assert event["detail"]["blob"] == "ddh/a.tif"
    assert (event["detail"]["size_bytes"], event["detail"]["sha256"]) == (len(DATA), digest())


async def test_objects_are_listed_by_name_in_pages(client, tmp_path):
    folder = tmp_path / "bronze/bronze"
    names = ["a-b.tif", "a.tif", "a/b.tif", "a/c/d.tif", "a/cc.tif", "ab.tif", "b/é.tif", "b/x.tif", "z.tif"]
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    (folder / "link.tif").symlink_to("/etc/passwd")

    pages = await pages_of(client, f"{V1}/sources", limit=2)
    below = await ok(client.get(f"{V1}/sources", params={"prefix": "a/c"}))
    missing = await ok(client.get(f"{V1}/sources", params={"prefix": "../", "container": "nothing-here"}))
    bad = await client.get(f"{V1}/sources", params={"container": "../x"})

    assert [item["blob"] for page in pages for item in page] == sorted(names)
    assert {len(page) for page in pages} == {1, 2}
    assert [(item["blob"], item["size_bytes"]) for item in below["items"]] == [("a/c/d.tif", 9), ("a/cc.tif", 8)]
    assert missing["items"] == []
    check(bad, 400, "storage.bad-container")


async def test_an_uploaded_file_can_be_submitted_by_the_returned_source(database, tmp_path):
    hub = bearer(await key_of(database, "hub", "b2b", platform="ddh"))
    async with api(database, storage_folder=tmp_path, auth_enabled=True) as client:
        response = await client.post(f"{V1}/uploads", json={"name": "a.tif", "size_bytes": len(DATA)}, headers=hub)
        await ok(client.patch(response.headers["location"], content=DATA, headers={**hub, **at(0)}), 204)
        refs = {"dataset_id": "floods", "resource_id": "r1", "version_id": "2024"}
        submission = {"platform_id": "ddh", "platform_refs": refs, "source": response.json()["source"]}
        submitted = await client.post(f"{V1}/submit", json=submission, headers=hub)

    assert submitted.status_code == 202, submitted.text


def test_the_larger_limit_of_a_body_applies_only_to_the_exact_paths_of_uploads():
    class Middleware(RequestMiddleware):
        endpoint = listen.API
        uploads_below = "/api/v1/uploads"

    middleware = Middleware(
        None, max_body_bytes=1, max_chunk_bytes=9, own_hosts=(), is_open_to_all=True, authentication=None
    )
    most = {
        (method, path): middleware._max_bytes({"method": method, "path": path})
        for method in ("PATCH", "POST")
        for path in ("/api/v1/uploads/x", "/api/v1/uploads", "/api/v1/uploadsx/y", "/x/api/v1/uploads/x")
    }

    assert {key for key, limit in most.items() if limit == 9} == {("PATCH", "/api/v1/uploads/x")}


def test_the_folder_of_unfinished_uploads_is_not_a_valid_container():
    with pytest.raises(InvalidRequest):
        Location(Zone.BRONZE, ".uploads", str(uuid4()))
