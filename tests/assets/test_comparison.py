"""The difference of two revisions, computed from their documents, whatever these contain."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagmaster.assets.comparison import Change, Documents, changes_between, summary_of

pytestmark = pytest.mark.requirement("O1")

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
NAMES = ("extent", "spatial", "bbox", "assets", "data", "bands", "properties", "proj:shape", "statistics", "temporal")
documents_of_any_shape = st.recursive(
    json_values,
    lambda inner: st.dictionaries(st.sampled_from(NAMES), inner, max_size=4) | st.lists(inner, max_size=3),
    max_leaves=20,
)


def documents(*, west: float = 10.0, crs: str = "EPSG:4326", mean: float = 5.0, size: int = 1000) -> Documents:
    band = {
        "name": "height",
        "data_type": "float32",
        "nodata": -9999,
        "statistics": {"minimum": 0, "maximum": 9, "mean": mean, "stddev": 1.5},
        "raster:histogram": {"buckets": [1, 2, 3]},
    }
    collection = {
        "title": "Heights",
        "license": "CC-BY-4.0",
        "extent": {"spatial": {"bbox": [[west, 46.0, 12.0, 47.0]]}, "temporal": {"interval": [["2024", None]]}},
    }
    item = {
        "properties": {"proj:code": crs, "gsd": 10.0},
        "assets": {"data": {"proj:shape": [200, 300], "bands": [band]}},
    }
    return Documents(collection, item, 1, size)


def test_the_summary_has_extent_crs_size_and_bands():
    summary = summary_of(documents())

    assert summary.bbox == [10.0, 46.0, 12.0, 47.0]
    assert (summary.crs, summary.width, summary.height, summary.size_bytes) == ("EPSG:4326", 300, 200, 1000)
    assert summary.bands[0]["statistics"] == {"minimum": 0, "maximum": 9, "mean": 5.0, "stddev": 1.5}
    assert "raster:histogram" not in summary.bands[0]


def test_only_what_differs_is_listed_with_the_difference_of_numbers():
    before = summary_of(documents())
    after = summary_of(documents(west=9.0, crs="EPSG:3857", mean=7.5, size=900))

    changes = changes_between(before, after)

    assert changes == [
        Change("bbox", [10.0, 46.0, 12.0, 47.0], [9.0, 46.0, 12.0, 47.0]),
        Change("crs", "EPSG:4326", "EPSG:3857"),
        Change("size_bytes", 1000, 900, -100),
        Change("bands.1.statistics.mean", 5.0, 7.5, 2.5),
    ]


def test_an_added_band_is_a_difference():
    one = documents()
    bands = one.item["assets"]["data"]["bands"]
    two = Documents(one.collection, {**one.item, "assets": {"data": {"bands": [*bands, {"name": "slope"}]}}}, 1, 1000)

    fields = {change.field: change.after for change in changes_between(summary_of(one), summary_of(two))}

    assert fields["band_count"] == 2
    assert fields["bands.2.name"] == "slope"


def test_a_mosaic_has_the_bands_of_the_whole():
    collection = {"assets": {"mosaic": {"bands": [{"name": "whole"}]}}}

    summary = summary_of(Documents(collection, documents().item, 40, 1))

    assert [band["name"] for band in summary.bands] == ["whole"]
    assert summary.width is None


@given(collection=documents_of_any_shape, item=documents_of_any_shape, other=documents_of_any_shape)
def test_documents_of_any_shape_can_be_compared(collection: Any, item: Any, other: Any):
    as_object = [value if isinstance(value, dict) else None for value in (collection, item, other)]
    before = summary_of(Documents(as_object[0], as_object[1], 1, None))
    after = summary_of(Documents(as_object[2], as_object[1], 2, 5))

    changes_between(before, after)

    assert changes_between(before, before) == [] or "nan" in repr(before).lower()
