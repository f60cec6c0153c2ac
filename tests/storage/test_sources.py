"""What a job may read from: blobs always, everything else only where it is allowed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagmaster.errors import InvalidRequest, NotAllowed
from dagmaster.settings import load
from dagmaster.storage import BLOBS_ONLY, SourceRules, Zone, find_source, open_storage

pytestmark = pytest.mark.requirement("S1")

ALL = SourceRules(allow_local=True, allow_https=True, allow_vsi=True)


@pytest.fixture
def storage(tmp_path):
    return open_storage(load(DAGMASTER_DATA=tmp_path))


def public(_host: str) -> list[str]:
    return ["93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946"]


def test_a_blob_is_always_read(storage, tmp_path):
    source = find_source("bronze/2024/dem.tif", storage)
    named = find_source("2024/dem.tif", storage, container="bronze")

    assert source == named
    assert source.gdal_path == str(tmp_path / "storage/bronze/bronze/2024/dem.tif")
    assert (source.name, source.location.zone) == ("dem.tif", Zone.BRONZE)


@pytest.mark.parametrize(
    ("text", "rules", "setting"),
    [
        ("/data/dem.tif", SourceRules(allow_https=True, allow_vsi=True), "ALLOW_LOCAL_SOURCES"),
        ("https://example.org/dem.tif", SourceRules(allow_local=True, allow_vsi=True), "ALLOW_HTTPS_SOURCES"),
        ("/vsis3/bucket/dem.tif", SourceRules(allow_local=True, allow_https=True), "ALLOW_VSI_SOURCES"),
        ("/vsizip//data/a.zip/dem.tif", SourceRules(allow_vsi=True), "ALLOW_LOCAL_SOURCES"),
        ("/vsizip/data/a.zip/dem.tif", SourceRules(allow_vsi=True), "ALLOW_LOCAL_SOURCES"),
    ],
)
def test_each_other_kind_needs_its_own_permission(storage, text, rules, setting):
    with pytest.raises(NotAllowed) as refused:
        find_source(text, storage, rules, lookup=public)
    assert (refused.value.code, setting in refused.value.hint) == ("source.not-allowed", True)
    with pytest.raises(NotAllowed):
        find_source(text, storage, BLOBS_ONLY, lookup=public)

    assert find_source(text, storage, ALL, lookup=public).gdal_path.endswith(text)


def test_nothing_else_is_allowed_by_default():
    assert SourceRules.of(load()) == BLOBS_ONLY
    assert SourceRules.of(load(allow_local_sources=True)) == SourceRules(allow_local=True)


def test_a_signature_is_not_shown(storage):
    source = find_source("https://acc.blob.example/c/dem.tif?sig=SECRET", storage, ALL, lookup=public)
    other = find_source("/vsicurl/https://acc.blob.example/c/dem.tif?sig=SECRET", storage, ALL, lookup=public)

    assert source.gdal_path == other.gdal_path == "/vsicurl/https://acc.blob.example/c/dem.tif?sig=SECRET"
    assert source.name == other.name == "dem.tif"
    assert "SECRET" not in repr(source) + repr(other)


@pytest.mark.parametrize(
    "text",
    [
        "http://example.org/x",
        "ftp://x/y",
        "file:///etc/passwd",
        "https://",
        "https://u:p@host/x",
        "gs://b/k",
        "https://[::1/x",
    ],
)
def test_only_https_addresses_without_passwords(storage, text):
    with pytest.raises(InvalidRequest) as refused:
        find_source(text, storage, ALL, lookup=public)

    assert refused.value.code == "source.bad-address"


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "fe80::1%eth0", "::ffff:10.0.0.1", "0.0.0.0", "224.0.0.1"],
)
@pytest.mark.parametrize(
    "form", ["https://inside/x.tif", "/vsicurl/https://inside/x.tif", "/vsizip//vsicurl/https://inside/x.zip/x"]
)
def test_servers_inside_the_network_are_not_asked(storage, address, form):
    with pytest.raises(NotAllowed) as refused:
        find_source(form, storage, ALL, lookup=lambda _host: ["93.184.216.34", address])

    assert refused.value.code == "source.private"


@pytest.mark.parametrize(
    "text",
    [
        "/vsimem/x",
        "/vsistdin/",
        "/vsisubfile/0_10,/etc/passwd",
        "/vsicrypt/key=x,file=/x",
        "/vsicurl?url=http://x",
        "/vsicurl",
        "/vsizip/vsimem/x",
        "/vsizip/{/vsimem/x}/y",
        "/vsizip//vsigzip//vsistdin/x",
    ],
)
def test_other_vsi_paths_are_refused(storage, text):
    with pytest.raises(NotAllowed) as refused:
        find_source(text, storage, ALL, lookup=public)

    assert refused.value.code == "source.bad-vsi"


@given(st.text(max_size=60).map(lambda text: text.replace("://", "")))
def test_without_permission_nothing_leads_out_of_the_zone(tmp_path_factory, text):
    folder = tmp_path_factory.getbasetemp()
    storage = open_storage(load(DAGMASTER_DATA=folder))

    try:
        source = find_source(text, storage)
    except InvalidRequest:
        return

    assert source.gdal_path == str(folder / "storage/bronze" / text)
