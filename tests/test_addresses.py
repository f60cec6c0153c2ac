"""The URLs of the map server are built and parsed in one module."""

import pytest

from dagmaster.addresses import Addresses, location_of, rebased
from dagmaster.errors import InvalidRequest
from dagmaster.settings import load
from dagmaster.storage.location import Location, Zone

MAPS = Addresses("https://maps.example.org/")


def test_each_url_is_below_the_base():
    assert MAPS.catalog() == "https://maps.example.org/stac/"
    assert MAPS.item("dem", "dem-v0") == "https://maps.example.org/stac/collections/dem/items/dem-v0"
    assert MAPS.map("dem") == "https://maps.example.org/tiles/dem/map"
    assert MAPS.map("dem", 0) == "https://maps.example.org/tiles/dem/map?version=0"
    assert MAPS.preview("dem", 1) == "https://maps.example.org/tiles/dem/preview.png?version=1"
    assert MAPS.tilejson("dem", 1) == "https://maps.example.org/tiles/dem/WebMercatorQuad/tilejson.json?version=1"
    assert (
        MAPS.xyz("dem", "version=1")
        == "https://maps.example.org/tiles/dem/tiles/WebMercatorQuad/{z}/{x}/{y}.png?version=1"
    )


def test_urls_can_have_more_parameters():
    assert (
        MAPS.map("dem", 0, rev="2", token="a&b") == "https://maps.example.org/tiles/dem/map?version=0&rev=2&token=a%26b"
    )
    assert MAPS.tilejson("dem") == "https://maps.example.org/tiles/dem/WebMercatorQuad/tilejson.json"


def test_the_urls_of_a_search_contain_its_id():
    search = "https://maps.example.org/searches/s1"

    assert MAPS.search_info("s1") == f"{search}/info"
    assert MAPS.search_tilejson("s1") == f"{search}/WebMercatorQuad/tilejson.json"
    assert MAPS.search_xyz("s1", "tilesize=512") == f"{search}/tiles/WebMercatorQuad/{{z}}/{{x}}/{{y}}?tilesize=512"


@pytest.mark.parametrize(
    ("url", "is_of_dataset"),
    [
        (MAPS.collection("dem"), True),
        (MAPS.items("dem") + "?limit=1", True),
        (MAPS.item("dem", "dem-v0"), True),
        (MAPS.map("dem", 0), True),
        (MAPS.xyz("dem", "version=0"), True),
        (MAPS.collection("dem2"), False),
        (MAPS.map("dem2"), False),
        (MAPS.collections(), False),
        (MAPS.catalog(), False),
        (Addresses("https://elsewhere.example").collection("dem"), False),
        (MAPS.file(Location(Zone.SILVER, "silver", "cogs/dem/v0/r1/a.tif")), False),
    ],
)
def test_the_urls_of_a_dataset_are_recognised(url, is_of_dataset):
    assert MAPS.is_of_dataset(url, "dem") is is_of_dataset
    assert MAPS.is_file(url) is ("/files/" in url)


def test_stored_documents_have_paths_without_a_base():
    stored = MAPS.stored()

    assert stored.file(Location(Zone.SILVER, "silver", "cogs/dem/v0/r1/a.tif")) == (
        "/files/silver/silver/cogs/dem/v0/r1/a.tif"
    )
    assert stored.catalog() == "/stac/"
    assert stored.item("dem", "dem-v0") == "/stac/collections/dem/items/dem-v0"
    assert stored.xyz("dem", "version=1") == "/tiles/dem/tiles/WebMercatorQuad/{z}/{x}/{y}.png?version=1"


def test_without_a_public_url_the_base_is_the_port_of_this_machine():
    assert Addresses.of(load(serving_port=8123)).base == "http://localhost:8123"
    assert Addresses.of(load(public_url="https://maps.example.org/")).base == "https://maps.example.org"


@pytest.mark.parametrize("blob", ["cogs/dem/v0/r1/a.tif", "with space/ünder #1.tif"])
def test_the_location_of_a_file_is_read_from_its_url(blob):
    location = Location(Zone.SILVER, "silver", blob)

    assert location_of(MAPS.file(location)) == location
    assert location_of(MAPS.file(location).replace("maps.example.org", "elsewhere:8000")) == location
    assert location_of(MAPS.stored().file(location)) == location


@pytest.mark.parametrize(
    "url",
    [
        "https://maps.example.org/files/bronze/bronze/a.tif",
        "https://maps.example.org/files/silver/silver/../a.tif",
        "https://maps.example.org/tiles/dem/map",
        "ftp://maps.example.org/files/silver/silver/a.tif",
        "/files/bronze/bronze/a.tif",
        "/other/files/silver/silver/a.tif",
        "//elsewhere/files/silver/silver/a.tif",
        "files/silver/silver/a.tif",
        "/files/silver/silver/../a.tif",
    ],
)
def test_other_urls_have_no_location(url):
    assert location_of(url) is None


def test_raw_data_has_no_url():
    with pytest.raises(InvalidRequest, match="raw data is not served"):
        MAPS.file(Location(Zone.BRONZE, "bronze", "a.tif"))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://localhost:8000/tiles/dem/map?version=0", "http://localhost:9000/tiles/dem/map?version=0"),
        ("http://127.0.0.1:8000/files/silver/silver/a.tif", "http://localhost:9000/files/silver/silver/a.tif"),
        ("http://[::1]:8000/stac/collections/dem", "http://localhost:9000/stac/collections/dem"),
        ("https://maps.example.org/stac/", "https://maps.example.org/stac/"),
        ("http://localhost:8000/other", "http://localhost:8000/other"),
        ("/tiles/dem/map?version=0", "http://localhost:9000/tiles/dem/map?version=0"),
        ("/files/silver/silver/a.tif", "http://localhost:9000/files/silver/silver/a.tif"),
        ("/stac/", "http://localhost:9000/stac/"),
        ("/stac", "http://localhost:9000/stac"),
        ("/other", "/other"),
        ("/files/bronze/bronze/a.tif", "/files/bronze/bronze/a.tif"),
        ("//elsewhere/stac/", "//elsewhere/stac/"),
    ],
)
def test_stored_urls_of_this_machine_get_the_current_base(url, expected):
    assert rebased(url, "http://localhost:9000/") == expected


def test_stored_urls_of_the_requested_host_get_its_base():
    url = "https://maps.example.org:8443/stac/collections/dem"

    assert (
        rebased(url, "https://maps.example.org/", "maps.example.org") == "https://maps.example.org/stac/collections/dem"
    )


@pytest.mark.parametrize("addresses", [MAPS, MAPS.stored(), Addresses("")])
@pytest.mark.parametrize(
    ("href", "is_served"),
    [
        ("/files/silver/silver/cogs/dem/v0/r1/a.tif", True),
        ("/files/external/external/a.tif", True),
        ("/tiles/dem/tiles/WebMercatorQuad/{z}/{x}/{y}.png?version=0", True),
        ("/stac/", True),
        ("/stac/collections/dem", True),
        ("http://localhost:8123/stac/collections/dem", True),
        ("/files/bronze/bronze/a.tif", False),
        ("/files/silver/silver/../../a.tif", False),
        ("/files/silver/silver/%2e%2e/a.tif", False),
        ("/files/silver/silver/a\\b.tif", False),
        ("/etc/passwd", False),
        ("/stacks", False),
        ("//evil.example.org/stac/", False),
        ("//evil.example.org/files/silver/silver/a.tif", False),
        ("stac/", False),
        ("https://evil.example.org/stac/", False),
        ("", False),
    ],
)
def test_paths_in_stored_documents_are_treated_like_urls(addresses, href, is_served):
    assert addresses.serves(href) is is_served
    assert addresses.allows(href) is is_served
