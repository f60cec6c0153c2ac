"""Tiles and files of zones in an object store are the same as from a folder, and do not reveal the store."""

import pytest
from starlette.testclient import TestClient

from dagmaster.serving.app import create_app
from dagmaster.settings import load
from dagmaster.storage.location import Folder, Zone
from dagmaster.storage.zones import open_storage

pytestmark = [pytest.mark.requirement("C2"), pytest.mark.requirement("S3")]

COG = "/files/silver/silver/cogs/plain/v0/r1/plain.tif"
PATHS = (
    "/tiles/plain/tiles/WebMercatorQuad/8/135/86.png?version=0",
    "/tiles/tiled/preview.png?version=0",
    "/tiles/dem/point/10.5,50.5?version=0",
    "/tiles/tiled/info?version=0",
    "/files/silver/silver/mosaics/tiled/v0/r1/mosaic.json",
    COG,
)


@pytest.fixture(params=["azurite", "s3_server"])
def server(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def from_objects(server, served, storage, tmp_path):
    remote = open_storage(server.settings_for(tmp_path))
    remote.create_containers()
    for info in storage.list(Folder(Zone.SILVER, "silver")):
        remote.put(info.location, storage.get(info.location))
    with TestClient(create_app(load(), served, storage=remote), base_url="http://localhost:8003") as client:
        yield client


def test_responses_are_the_same_as_from_a_folder(client, from_objects, server):
    for path in PATHS:
        expected, answer = client.get(path), from_objects.get(path)
        assert (answer.status_code, expected.status_code) == (200, 200), path
        assert answer.content == expected.content, path
        _require_no_trace(answer, server)

    part = from_objects.get(COG, headers={"Range": "bytes=100-199"})
    missing = from_objects.get(COG.replace("plain.tif", "none.tif"))

    assert (part.status_code, part.content) == (206, client.get(COG).content[100:200])
    assert part.headers["content-range"].startswith("bytes 100-199/")
    assert missing.status_code == 404
    _require_no_trace(missing, server)


def test_the_error_for_a_deleted_file_does_not_name_its_location_in_the_store(from_objects, server):
    storage = from_objects.app.state.services.storage
    for info in list(storage.list(Folder(Zone.SILVER, "silver", "cogs/scene"))):
        storage.delete(info.location)

    responses = [
        from_objects.get("/tiles/scene/preview.png?version=0"),
        from_objects.get("/files/silver/silver/cogs/scene/v0/r1/scene.tif"),
    ]

    for answer in responses:
        assert answer.status_code >= 400
        _require_no_trace(answer, server)


def _require_no_trace(answer, server) -> None:
    response_text = answer.text + str(answer.headers)
    address = server.settings.get("S3_ENDPOINT") or server.settings["AZURE_STORAGE_ENDPOINT"].removesuffix("/{account}")
    for trace in ("sig=", "/vsi", address.partition("://")[2], "devstoreaccount1", "X-Amz"):
        assert trace not in response_text, trace
