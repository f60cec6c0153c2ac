"""The sources of a job: blobs are always allowed, others only by a setting."""

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


def test_a_blob_is_always_allowed(storage, tmp_path):
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
    ],
)
def test_each_other_kind_of_source_needs_its_own_setting(storage, text, rules, setting):
    with pytest.raises(NotAllowed) as refused:
        find_source(text, storage, rules)
    assert (refused.value.code, setting in refused.value.hint) == ("source.not-allowed", True)
    with pytest.raises(NotAllowed):
        find_source(text, storage, BLOBS_ONLY)

    allowed = find_source(text, storage, ALL)
    assert text in (allowed.url, allowed.gdal_path)


def test_gdal_never_gets_a_url(storage):
    """GDAL would resolve the name of the host itself, and follow redirects."""
    source = find_source("https://example.org/dem.tif", storage, ALL)

    assert (source.gdal_path, source.url) == ("", "https://example.org/dem.tif")


def test_only_blobs_are_allowed_by_default():
    assert SourceRules.of(load()) == BLOBS_ONLY
    assert SourceRules.of(load(allow_local_sources=True)) == SourceRules(allow_local=True)


def test_a_signature_is_not_shown(storage):
    source = find_source("https://acc.blob.example/c/dem.tif?sig=SECRET", storage, ALL)

    assert source.url == "https://acc.blob.example/c/dem.tif?sig=SECRET"
    assert source.name == "dem.tif"
    assert "SECRET" not in repr(source)


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
def test_only_https_urls_without_passwords_are_accepted(storage, text):
    with pytest.raises(InvalidRequest) as refused:
        find_source(text, storage, ALL)

    assert refused.value.code == "source.bad-address"


@pytest.mark.parametrize(
    "text",
    [
        "/vsimem/x",
        "/vsistdin/",
        "/vsisubfile/0_10,/etc/passwd",
        "/vsicrypt/key=x,file=/x",
        "/vsicurl?url=http://x",
        "/vsicurl",
        "/vsicurl/https://example.org/x.tif",
        "/vsicurl_streaming/https://example.org/x.tif",
        "/vsis3_streaming/bucket/x.tif",
        "/vsizip//data/a.zip/x.tif",
        "/vsizip/data/a.zip/x.tif",
        "/vsitar//vsicurl/https://example.org/x.tar",
        "/vsizip/vsimem/x",
        "/vsizip/{/vsimem/x}/y",
        "/vsizip//vsigzip//vsistdin/x",
    ],
)
def test_other_vsi_paths_are_refused(storage, text):
    with pytest.raises(NotAllowed) as refused:
        find_source(text, storage, ALL)

    assert refused.value.code == "source.bad-vsi"


@given(st.text(max_size=60).map(lambda text: text.replace("://", "")))
def test_by_default_every_source_is_inside_the_bronze_zone(tmp_path_factory, text):
    folder = tmp_path_factory.getbasetemp()
    storage = open_storage(load(DAGMASTER_DATA=folder))

    try:
        source = find_source(text, storage)
    except InvalidRequest:
        return

    assert source.gdal_path == str(folder / "storage/bronze" / text)
