"""A collection of several versions describes the newest one, and keeps the mosaics of the others."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagmaster.stac.validate import problems
from dagmaster.stac.values import Version
from dagmaster.stac.versions import joined
from tests.stac.documents import a_collection

pytestmark = pytest.mark.requirement("C1")


def collection_of(ordinal: int, revision: int = 1, **more) -> dict:
    collection = a_collection(version=Version(ordinal, revision), **more)
    href = collection["assets"]["mosaic"]["href"]
    collection["assets"]["mosaic"]["href"] = href.replace("mosaic.json", f"v{ordinal}/r{revision}/mosaic.json")
    return collection


def mosaics(collection: dict) -> dict[str, str]:
    return {key: asset["href"].split("/", 3)[3][-22:] for key, asset in collection["assets"].items() if "mosaic" in key}


def editions(collection: dict) -> set[tuple[str, int, int]]:
    return {
        (key, asset["dagmaster:version_ordinal"], asset["dagmaster:revision"])
        for key, asset in collection["assets"].items()
        if key.startswith("mosaic")
    }


def test_a_collection_describes_the_newest_version_and_keeps_the_mosaic_of_the_older():
    old, new = collection_of(0), collection_of(1)

    collection = joined(old, new)

    assert problems(collection) == []
    assert editions(collection) == {("mosaic", 1, 1), ("mosaic-v0", 0, 1)}
    assert collection["assets"]["tiling_scheme-v0"] == old["assets"]["tiling_scheme"]
    assert collection["renders"]["v0"]["assets"] == ["mosaic-v0"]
    assert collection["version"] == new["version"]


def test_a_revision_replaces_only_its_own_version():
    collection = joined(joined(collection_of(0), collection_of(1)), collection_of(1, 2))
    older = joined(collection, collection_of(0, 2))

    assert editions(collection) == {("mosaic", 1, 2), ("mosaic-v0", 0, 1)}
    assert editions(older) == {("mosaic", 1, 2), ("mosaic-v0", 0, 2)}
    assert older["dagmaster:revision"] == 2
    assert older["version"] == "1"


def test_a_version_that_becomes_one_file_loses_its_mosaic():
    single = collection_of(0, 2)
    del single["assets"]["mosaic"], single["assets"]["tiling_scheme"]

    collection = joined(joined(collection_of(0), collection_of(1)), single)

    assert editions(collection) == {("mosaic", 1, 1)}
    assert "v0" not in collection["renders"]


def test_joining_does_not_change_its_arguments_and_keeps_the_first_creation_time():
    old, new = (
        collection_of(0) | {"created": "2024-01-01T00:00:00Z"},
        collection_of(1) | {"created": "2025-01-01T00:00:00Z"},
    )
    before = copy.deepcopy((old, new))

    collection = joined(old, new)

    assert (old, new) == before
    assert collection["created"] == "2024-01-01T00:00:00Z"


def test_summaries_of_both_versions_are_combined():
    old, new = collection_of(0), collection_of(1)
    new["summaries"] = {"proj:code": ["EPSG:3031"], "gsd": [1.0]}

    assert joined(old, new)["summaries"] == {"proj:code": ["EPSG:3031", "EPSG:4326"], "gsd": [1.0, 96.699]}
    assert joined(old, new | {"dagmaster:version_ordinal": 0})["summaries"] == new["summaries"]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), min_size=1, max_size=6))
def test_each_version_is_listed_once_with_its_last_revision_in_any_order(arrivals):
    collection = collection_of(*arrivals[0])
    for arrival in arrivals[1:]:
        collection = joined(collection, collection_of(*arrival))

    newest = max(ordinal for ordinal, _ in arrivals)
    expected = {("mosaic" if o == newest else f"mosaic-v{o}", o, r) for o, r in dict(arrivals).items()}
    assert editions(collection) == expected
    assert collection["dagmaster:version_ordinal"] == newest
