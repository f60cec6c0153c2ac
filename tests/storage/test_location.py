"""A valid name of an object is valid in every backend, and cannot refer to anything outside its container."""

import unicodedata
from pathlib import PurePosixPath
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagmaster.dataset_ids import dataset_id_from
from dagmaster.errors import InvalidRequest
from dagmaster.storage import Edition, Folder, Location, Zone, intermediate
from dagmaster.storage.location import job_named

PARTS = st.text(min_size=0, max_size=12) | st.sampled_from(
    ["..", ".", "", "a", "a.tif", " ", "x" * 260, "é", "e\u0301"]
)
CONTAINERS = st.text("abcz019-_.A/", max_size=70) | st.sampled_from(["bronze", "a--b", "abc-", "..", ""])


def attempt(act):
    try:
        return act(), None
    except InvalidRequest as refusal:
        return None, refusal


@pytest.mark.requirement("S1")
@given(container=CONTAINERS, parts=st.lists(PARTS, max_size=6))
def test_a_path_is_refused_or_stays_below_its_container(container, parts):
    path = "/".join([container, *parts])

    location, refusal = attempt(lambda: Location.parse(path, Zone.BRONZE))
    if location is None:
        assert refusal.code in {"storage.bad-container", "storage.bad-blob"}
        assert refusal.message.isprintable()
        return

    assert location.path == path
    pure = PurePosixPath(path)
    assert not pure.is_absolute()
    assert str(pure) == path  # a path library does not normalise it
    assert not {".", ".."} & set(path.split("/"))
    assert all(0 < len(part.encode()) <= 255 for part in path.split("/"))
    assert len(location.blob.encode()) <= 1024
    assert unicodedata.normalize("NFC", path) == path
    assert not any(unicodedata.category(character)[0] == "C" and character.isascii() for character in path)
    assert Location.parse(location.path, "bronze") == location


@pytest.mark.requirement("S1")
@pytest.mark.parametrize(
    "blob",
    [
        "",
        "/etc/passwd",
        "a/../b",
        "..",
        "../x",
        "a/..",
        "./a",
        "a//b",
        "a/",
        "a\\b",
        "a\0b",
        "a\nb",
        "a\x1b[2J",
        "a\u202eb",
        "a\ud800",
        "e\u0301",
        "x" * 256,
        "/".join(["x" * 200] * 6),
        " a",
        "a ",
        "a/ /b",
        "a./b",
        "a\u2028b",
    ],
)
def test_names_that_could_leave_the_container_are_refused(blob):
    with pytest.raises(InvalidRequest) as refused:
        Location(Zone.SILVER, "silver", blob)

    assert refused.value.code == "storage.bad-blob"
    assert refused.value.message.isprintable()
    with pytest.raises(InvalidRequest):
        Folder(Zone.SILVER, "silver", blob or "/")


@pytest.mark.requirement("S1")
@pytest.mark.parametrize(
    "container", ["", "ab", "a" * 64, "Bronze", "a_b", "a--b", "-ab", "ab-", ".scratch", "a.b", "éé é"]
)
def test_container_names_that_azure_or_s3_would_not_accept_are_refused(container):
    with pytest.raises(InvalidRequest) as refused:
        Location(Zone.BRONZE, container, "x")

    assert refused.value.code == "storage.bad-container"


@pytest.mark.requirement("S1")
def test_a_path_consists_of_container_and_blob():
    location = Location.parse("bronze/2024/my dem.tif", "bronze")

    assert location == Location(Zone.BRONZE, "bronze", "2024/my dem.tif")
    assert (str(location), location.name) == ("bronze:bronze/2024/my dem.tif", "my dem.tif")
    assert Folder(Zone.BRONZE, "bronze", "2024") / "my dem.tif" == location
    assert Folder(Zone.BRONZE, "bronze") / "x" == Location(Zone.BRONZE, "bronze", "x")


@pytest.mark.requirement("S4")
def test_final_names_contain_dataset_version_and_revision():
    edition = Edition("dem-2024", ordinal=2, revision=3)

    assert edition.cog("r00c01.tif") == "cogs/dem-2024/v2/r3/r00c01.tif"
    assert edition.mosaic() == "mosaics/dem-2024/v2/r3/mosaic.json"
    assert edition.tiling_scheme() == "tiling_schemes/dem-2024/v2/r3/tiling_scheme.geojson"
    assert edition.stac("item.json") == "stac/dem-2024/v2/r3/item.json"
    job = UUID("01890000-0000-7000-8000-000000000001")
    assert intermediate(job, "a/b.tif") == f"{job}/a/b.tif"


@pytest.mark.requirement("S4")
@pytest.mark.parametrize(
    "bad", [{"dataset_id": "../x"}, {"dataset_id": "A"}, {"dataset_id": ""}, {"ordinal": -1}, {"revision": 0}]
)
def test_an_edition_with_invalid_parts_is_refused(bad):
    with pytest.raises(InvalidRequest):
        Edition(**{"dataset_id": "dem", **bad})


@pytest.mark.requirement("S4")
@given(st.text(max_size=200))
def test_a_dataset_id_from_any_text_is_valid_or_refused(text):
    name, refusal = attempt(lambda: dataset_id_from(text))
    if name is None:
        assert refusal.code == "storage.bad-dataset"
        return

    assert Edition(name).dataset_id == name
    assert dataset_id_from(name) == name


@pytest.mark.requirement("S4")
@pytest.mark.parametrize(
    "name",
    [
        "cogs",
        "",
        "01890000-0000-4000-8000-000000000001",
        "01890000000070008000000000000001",
        "01890000-0000-7000-8000-00000000000A",
        "{01890000-0000-7000-8000-000000000001}",
        "01890000-0000-7000-8000-000000000001 ",
        "urn:uuid:01890000-0000-7000-8000-000000000001",
    ],
)
def test_only_the_exact_notation_of_a_job_id_is_recognised(name):
    assert job_named(name) is None
    assert job_named("01890000-0000-7000-8000-000000000001") == UUID("01890000-0000-7000-8000-000000000001")
