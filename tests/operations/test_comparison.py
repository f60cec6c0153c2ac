"""The differences of two revisions, computed from their documents, whatever the documents contain."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagmaster.client.models.asset_pages import Difference, RevisionFacts
from dagmaster.client.models.assets import VersionInfo
from dagmaster.database.assets.reads import Documents
from dagmaster.operations.assets.compare import differences, facts_of

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


def facts(documents: Documents) -> RevisionFacts:
    now = datetime.now(UTC)
    version = VersionInfo(
        version_ordinal=3,
        version_label="2024",
        revision=7,
        approval_state="pending_review",
        processing_state="completed",
        created_at=now,
        updated_at=now,
    )
    return facts_of(version, 6, documents)


def test_the_facts_have_extent_crs_size_and_bands():
    revision = facts(documents())

    assert (revision.version_ordinal, revision.version_label, revision.revision) == (3, "2024", 6)
    assert revision.bbox == [10.0, 46.0, 12.0, 47.0]
    assert (revision.crs, revision.width, revision.height, revision.size_bytes) == ("EPSG:4326", 300, 200, 1000)
    assert revision.bands[0]["statistics"] == {"minimum": 0, "maximum": 9, "mean": 5.0, "stddev": 1.5}
    assert "raster:histogram" not in revision.bands[0]


def test_only_differences_are_listed_and_numbers_have_their_difference():
    before = facts(documents())
    after = facts(documents(west=9.0, crs="EPSG:3857", mean=7.5, size=900))

    assert differences(before, after) == [
        Difference(field="bbox", before=[10.0, 46.0, 12.0, 47.0], after=[9.0, 46.0, 12.0, 47.0]),
        Difference(field="crs", before="EPSG:4326", after="EPSG:3857"),
        Difference(field="size_bytes", before=1000, after=900, delta=-100),
        Difference(field="bands.1.statistics.mean", before=5.0, after=7.5, delta=2.5),
    ]


def test_an_added_band_is_a_difference():
    one = documents()
    bands = one.item["assets"]["data"]["bands"]
    two = Documents(one.collection, {**one.item, "assets": {"data": {"bands": [*bands, {"name": "slope"}]}}}, 1, 1000)

    fields = {difference.field: difference.after for difference in differences(facts(one), facts(two))}

    assert fields["band_count"] == 2
    assert fields["bands.2.name"] == "slope"


def test_a_mosaic_has_the_bands_of_its_collection():
    collection = {"assets": {"mosaic": {"bands": [{"name": "whole"}]}}}

    revision = facts(Documents(collection, documents().item, 40, 1))

    assert [band["name"] for band in revision.bands] == ["whole"]
    assert revision.width is None


@given(collection=documents_of_any_shape, item=documents_of_any_shape, other=documents_of_any_shape)
def test_documents_of_any_shape_can_be_compared(collection: Any, item: Any, other: Any):
    as_object = [value if isinstance(value, dict) else None for value in (collection, item, other)]
    before = facts(Documents(as_object[0], as_object[1], 1, None))
    after = facts(Documents(as_object[2], as_object[1], 2, 5))

    differences(before, after)

    assert differences(before, before) == [] or "nan" in repr(before).lower()
