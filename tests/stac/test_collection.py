"""Collections have the fields that their items share, and the extent of all items."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import pystac
import pytest

from dagmaster.errors import InvalidRequest
from dagmaster.raster.source.facts import BandFacts
from dagmaster.stac.collection import CollectionAssets
from dagmaster.stac.validate import problems
from dagmaster.stac.values import Links
from dagmaster.stac.when import ItemTime
from tests.stac.documents import DATASET, HOST, PALETTE, a_collection, an_item, cog, facts

pytestmark = pytest.mark.requirement("C1")


def test_the_example_collection_is_valid():
    document = a_collection()

    assert problems(document) == []
    assert document["id"] == "wellington-dem"
    assert document["assets"]["mosaic"]["roles"] == ["index"]
    assert document["assets"]["mosaic"]["bands"][0]["statistics"]["count"] == 1152
    assert document["assets"]["tiling_scheme"]["type"] == "application/geo+json"
    assert document["summaries"] == {"proj:code": ["EPSG:4326"], "gsd": [96.699]}
    assert document["renders"] == an_item()["properties"]["renders"]
    assert document["platform:id"] == "ddh"


def test_item_assets_contain_common_fields_and_no_address():
    asset = a_collection()["item_assets"]["data"]

    assert asset["bands"][0]["data_type"] == "float32"
    assert not {"href", "file:size", "file:checksum", "proj:shape", "proj:transform"} & asset.keys()
    assert not {"statistics", "raster:histogram"} & asset["bands"][0].keys()


def test_documents_are_unchanged_by_pystac():
    document = a_collection()

    assert pystac.Collection.from_dict(document).to_dict(transform_hrefs=False) == document
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_the_interval_includes_all_items():
    items = [
        an_item(when=ItemTime(datetime(2021, 5, 1, tzinfo=UTC))),
        an_item(),
        an_item(when=ItemTime(datetime(2023, 5, 1, tzinfo=UTC), datetime(2025, 1, 1, tzinfo=UTC))),
    ]

    [interval] = a_collection(items=items)["extent"]["temporal"]["interval"]

    assert interval == ["2021-05-01T00:00:00Z", "2025-01-01T00:00:00Z"]


def test_the_extent_of_the_whole_collection_can_be_given():
    when = ItemTime(datetime(2020, 1, 1, tzinfo=UTC), datetime(2020, 12, 31, tzinfo=UTC))

    document = a_collection(when=when, bbox=(170.0, -20.0, -175.0, -10.0))

    assert document["extent"]["temporal"]["interval"] == [["2020-01-01T00:00:00Z", "2020-12-31T00:00:00Z"]]
    assert document["extent"]["spatial"]["bbox"] == [[170.0, -20.0, -175.0, -10.0]]
    assert problems(document) == []


def test_a_collection_with_classes_lists_them():
    band = BandFacts("uint8", color="palette", nodata=0, palette=PALETTE)
    items = [an_item(cog=cog(facts(band), raster_type="categorical", statistics=[None]))]

    document = a_collection(items=items, assets=None)

    assert "classification:classes" in document["item_assets"]["data"]
    assert problems(document) == []


def test_the_map_links_extension_is_not_declared_without_a_tile_server():
    document = a_collection(links=Links(collection=f"{HOST}/stac/collections/wellington-dem"))

    assert not any("web-map-links" in address for address in document["stac_extensions"])
    assert problems(document) == []


def test_a_dataset_without_metadata_has_a_valid_collection():
    document = a_collection(
        dataset=replace(DATASET, title=None, description=None, keywords=(), providers=(), license="other")
    )

    assert document["description"] == "Raster dataset wellington-dem"
    assert problems(document) == []


def test_invalid_collections_are_refused():
    with pytest.raises(InvalidRequest, match="at least one item"):
        a_collection(items=[])
    with pytest.raises(InvalidRequest, match="cannot be published"):
        a_collection(assets=CollectionAssets(mosaic="/data/mosaic.json"))
