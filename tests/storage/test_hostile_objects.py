"""Malicious rasters in an object store are refused like local ones, by range requests, before GDAL opens them."""

import time

import numpy as np
import pytest
import rasterio
from affine import Affine

from dagmaster.errors import Unavailable
from dagmaster.gdal_library import OpenedFile
from dagmaster.raster.source.opening import opened, size_of
from dagmaster.raster.validation.check import check
from dagmaster.storage import Zone
from tests.object_stores.servers import length_of
from tests.raster.test_attacks import ATTACKS, tiff_bytes

pytestmark = pytest.mark.requirement("X2")

TEXTS = [name for name, (_, verdict) in ATTACKS.items() if "header-too-large" in verdict]


@pytest.fixture
def stored(object_storage, place):
    """The path with which GDAL reads an object of this content."""

    def put(content: bytes, name: str = "scene.tif") -> str:
        location = place(name, Zone.BRONZE)
        object_storage.put(location, content)
        return object_storage.gdal_path(location)

    return put


def codes_of(path: str) -> set[str]:
    return {finding.code for finding in check(path, remote=True).findings}


def test_long_texts_in_the_header_of_an_object_are_refused_after_one_range_request(stored, object_server):
    assert len(TEXTS) == 3
    for name in TEXTS:
        path = stored(ATTACKS[name][0])
        before, started = len(object_server.requests()), time.monotonic()

        refused = codes_of(path)

        reads = [each for each in object_server.requests()[before:] if each.method == "GET"]
        assert refused == {"raster.header-too-large"}, name
        assert sum(map(length_of, reads)) <= 16_384, name
        assert time.monotonic() - started < 5, "GDAL would need minutes"


def test_a_directory_at_the_end_of_a_large_object_is_found_without_a_copy(stored, object_server):
    bomb = ATTACKS["300000 entries of metadata"][0]
    # The first directory is moved to the end, after 7 MB of other data; its offset is at position 4.
    count = int.from_bytes(bomb[8:10], "little")
    directory = bomb[8 : 8 + 2 + count * 12 + 4]
    path = stored(bomb[:4] + len(bomb).to_bytes(4, "little") + bomb[8:] + directory)
    before = len(object_server.requests())

    refused = codes_of(path)

    reads = [each for each in object_server.requests()[before:] if each.method == "GET"]
    assert refused == {"raster.header-too-large"}
    assert sum(map(length_of, reads)) < 100_000


@pytest.mark.parametrize("name", ["good", "1e9 by 1e9", "65535 bands", "vrt of passwd", "two bytes"])
def test_other_malicious_headers_get_the_same_verdict_as_in_a_local_file(stored, tmp_path, name):
    content, _ = ATTACKS[name]
    local = tmp_path / "scene.tif"
    local.write_bytes(content)

    remote = check(stored(content), remote=True)

    expected = check(local)
    assert remote.verdict == expected.verdict
    assert [finding.code for finding in remote.findings] == [finding.code for finding in expected.findings]
    assert (remote.facts and remote.facts.size_bytes) == (expected.facts and expected.facts.size_bytes)


def test_empty_objects_and_objects_that_refer_to_another_file_are_refused(object_storage, place, stored, tmp_path):
    image = tmp_path / "scene.img"
    profile = {"crs": "EPSG:32633", "transform": Affine(1, 0, 0, 0, -1, 0), "dtype": "uint8", "count": 1}
    with rasterio.open(image, "w", driver="HFA", width=64, height=64, USE_SPILL="YES", **profile) as file:
        file.write(np.ones((1, 64, 64), "uint8"))
    object_storage.put_file(place("scene.ige", Zone.BRONZE), tmp_path / "scene.ige")

    indirect = codes_of(stored(image.read_bytes(), "scene.img"))
    empty = codes_of(stored(b"", "empty.tif"))

    assert indirect == {"raster.indirect"}
    assert empty == {"raster.empty"}


def test_an_object_whose_header_cannot_be_read_is_not_opened(stored, object_storage, place, monkeypatch):
    path = stored(tiff_bytes())
    missing = object_storage.gdal_path(place("none.tif", Zone.BRONZE))

    def broken(_file: OpenedFile, length: int, _start: int) -> bytes:
        raise OSError(f"only 0 of {length} bytes could be read")

    with pytest.raises(Unavailable) as not_found, opened(missing, remote=True):
        pass
    assert size_of(path) == len(tiff_bytes())
    monkeypatch.setattr(OpenedFile, "read", broken)
    with pytest.raises(Unavailable) as refused, opened(path, remote=True):
        pass

    assert (not_found.value.code, refused.value.code) == ("raster.unreachable", "raster.unreachable")
    assert "AZURE" not in not_found.value.message
    assert size_of(missing) == 0
