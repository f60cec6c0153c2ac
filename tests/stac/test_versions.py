"""A collection through the versions of its dataset: it describes the newest one, and the others can still be served."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagmaster.stac.validate import problems
from dagmaster.stac.values import Version
from dagmaster.stac.versions import joined
from tests.stac.documents import a_collection

pytestmark = pytest.mark.requirement("C1")


def of_version(ordinal: int, revision: int = 1, **more) -> dict:
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


def test_a_newer_version_speaks_and_the_older_one_stays():
    old, new = of_version(0), of_version(1)

    collection = joined(old, new)

    assert problems(collection) == []
    assert editions(collection) == {("mosaic", 1, 1), ("mosaic-v0", 0, 1)}
    assert collection["assets"]["tiling_scheme-v0"] == old["assets"]["tiling_scheme"]
    assert collection["renders"]["v0"]["assets"] == ["mosaic-v0"]
    assert collection["version"] == new["version"]


def test_a_revision_replaces_its_own_version_only():
    collection = joined(joined(of_version(0), of_version(1)), of_version(1, 2))
    older = joined(collection, of_version(0, 2))

    assert editions(collection) == {("mosaic", 1, 2), ("mosaic-v0", 0, 1)}
    assert editions(older) == {("mosaic", 1, 2), ("mosaic-v0", 0, 2)}
    assert older["dagmaster:revision"] == 2
    assert older["version"] == "1"


def test_a_version_that_is_one_file_now_has_no_mosaic_any_more():
    single = of_version(0, 2)
    del single["assets"]["mosaic"], single["assets"]["tiling_scheme"]

    collection = joined(joined(of_version(0), of_version(1)), single)

    assert editions(collection) == {("mosaic", 1, 1)}
    assert "v0" not in collection["renders"]


def test_what_is_known_is_not_touched_and_created_stays():
    old, new = of_version(0) | {"created": "2024-01-01T00:00:00Z"}, of_version(1) | {"created": "2025-01-01T00:00:00Z"}
    before = copy.deepcopy((old, new))

    collection = joined(old, new)

    assert (old, new) == before
    assert collection["created"] == "2024-01-01T00:00:00Z"


def test_summaries_of_both_versions_are_combined():
    old, new = of_version(0), of_version(1)
    new["summaries"] = {"proj:code": ["EPSG:3031"], "gsd": [1.0]}

    assert joined(old, new)["summaries"] == {"proj:code": ["EPSG:3031", "EPSG:4326"], "gsd": [1.0, 96.699]}
    assert joined(old, new | {"dagmaster:version_ordinal": 0})["summaries"] == new["summaries"]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), min_size=1, max_size=6))
def test_in_any_order_each_version_is_there_once_as_it_came_last(arrivals):
    collection = of_version(*arrivals[0])
    for arrival in arrivals[1:]:
        collection = joined(collection, of_version(*arrival))

    newest = max(ordinal for ordinal, _ in arrivals)
    expected = {("mosaic" if o == newest else f"mosaic-v{o}", o, r) for o, r in dict(arrivals).items()}
    assert editions(collection) == expected
    assert collection["dagmaster:version_ordinal"] == newest
