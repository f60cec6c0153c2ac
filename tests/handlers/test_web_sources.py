"""A file on a web server is downloaded once per job, from the address that was checked, and GDAL reads the copy."""

import pytest
from tests.raster.rasters import noise, write_raster
from tests.storage import test_download
from tests.storage.test_download import certificate, server

from dagmaster.errors import InvalidRequest, NotAllowed, Unavailable, UnfitData
from dagmaster.handlers.raster.sources import SourceParams, checksum_of, etag_of, facts_of_source, find_source
from dagmaster.settings import Settings
from dagmaster.storage import open_storage
from dagmaster.testing.trial import JOB_ID

__all__ = ["certificate", "server"]

pytestmark = pytest.mark.requirement("X2", "S1")


@pytest.fixture
def storage(tmp_path):
    return open_storage(Settings(storage_folder=tmp_path / "storage", allow_https_sources=True))


@pytest.fixture
def names(monkeypatch):
    """The next results of the resolver for each host. The address of this machine is treated as public, as if the test
    ran on the internet."""
    responses: dict[str, list[list[str]]] = {}
    monkeypatch.setattr("dagmaster.storage.sources.is_public", lambda address: address == "127.0.0.1")
    monkeypatch.setattr("dagmaster.storage.sources._addresses", lambda host: responses[host].pop(0))
    return responses


def find(storage, url, **params):
    return find_source(storage, SourceParams(blob_name=url, **params), JOB_ID)


def test_a_file_is_downloaded_once_and_its_copy_is_read(server, storage, names, tmp_path, monkeypatch):
    write_raster(tmp_path / "dem.tif", noise(1, 60, 80))
    monkeypatch.setattr(test_download, "CONTENT", (tmp_path / "dem.tif").read_bytes())
    names["files.test"] = [["127.0.0.1"], ["169.254.169.254"]]
    url = f"{server.url}/a/my%20dem.tif?x=1"

    first = find(storage, url)
    again = find(storage, url, etag=etag_of(storage, first))

    assert first == again
    assert len(server.requests) == 1
    assert names["files.test"] == [["169.254.169.254"]]  # the resolver was not asked again
    assert first.url is None
    assert first.gdal_path.startswith(str(tmp_path))
    assert str(JOB_ID) in first.gdal_path
    assert facts_of_source(storage, first, None).width > 0
    assert checksum_of(storage, first)
    assert list(storage.scratch_jobs()) == []


def test_files_with_the_same_name_at_two_urls_are_stored_separately(server, storage, names):
    names["files.test"] = [["127.0.0.1"], ["127.0.0.1"]]

    one, other = (find(storage, f"{server.url}/{folder}/dem.tif") for folder in ("a", "b"))

    assert one.name == other.name
    assert one.location != other.location
    assert len(server.requests) == 2


@pytest.mark.parametrize("address", ["10.0.0.1", "169.254.169.254", "::1", "::ffff:10.0.0.1", "64:ff9b::a9fe:a9fe"])
def test_no_request_is_sent_to_a_host_with_a_private_address(server, storage, names, address):
    names["files.test"] = [["127.0.0.1", address]]

    with pytest.raises(NotAllowed) as refused:
        find(storage, f"{server.url}/a.tif")

    assert refused.value.code == "source.private"
    assert server.requests == []


def test_a_redirect_to_a_private_address_is_not_followed(server, storage, names):
    server.redirects = {"/a.tif": "https://inside.test/latest/meta-data"}
    names |= {"files.test": [["127.0.0.1"]], "inside.test": [["169.254.169.254"]]}

    with pytest.raises(NotAllowed, match=r"inside\.test"):
        find(storage, f"{server.url}/a.tif")


def test_private_servers_are_refused_for_jobs_even_with_allow_private_sources(server, tmp_path, names):
    """ALLOW_PRIVATE_SOURCES is for `dagmaster process`, whose user can reach these servers anyway."""
    names["files.test"] = [["10.0.0.1"]]
    settings = Settings(storage_folder=tmp_path, allow_https_sources=True, allow_private_sources=True)

    with pytest.raises(NotAllowed):
        find(open_storage(settings), f"{server.url}/a.tif")


@pytest.mark.parametrize(
    ("path", "kind"), [("status/404", UnfitData), ("status/403", InvalidRequest), ("status/500", Unavailable)]
)
def test_only_server_errors_are_reported_as_retryable(server, storage, names, path, kind):
    names["files.test"] = [["127.0.0.1"]]

    with pytest.raises(kind):
        find(storage, f"{server.url}/{path}")


def test_a_file_above_the_limit_is_refused(server, tmp_path, names):
    names["files.test"] = [["127.0.0.1"]]
    settings = Settings(storage_folder=tmp_path, allow_https_sources=True, max_download_mb=1)

    with pytest.raises(InvalidRequest) as refused:
        find(open_storage(settings), f"{server.url}/endless.tif")

    assert refused.value.code == "source.too-large"
