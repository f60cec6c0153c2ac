"""The COGs that a mosaic contains."""

from types import SimpleNamespace
from typing import Any

import pytest

from dagmaster.errors import UnfitData
from dagmaster.handlers.raster.mosaic import _gather
from dagmaster.jobs.states import NodeStatus

pytestmark = pytest.mark.requirement("R7")

BOX = [10.0, 50.0, 11.0, 51.0]
SQUARE = {"type": "Polygon", "coordinates": [[[10, 50], [11, 50], [11, 51], [10, 51], [10, 50]]]}


def cog_result(name: str, *, is_empty: bool = False) -> dict[str, Any]:
    asset = {"name": name, "geometry": SQUARE, "bbox": BOX, "resolution": 10.0, "data_type": "uint8"}
    ground = None if is_empty else {"geometry": SQUARE, "bbox": BOX}
    item = None if is_empty else {"id": name}
    stored = {"cog_container": "silver", "cog_blob": f"cogs/{name}", "size_bytes": 5}
    return {**stored, "partials": [], "asset": asset, "footprint": ground, "stac_item": item}


def children_of(*cogs: dict[str, Any]) -> Any:
    results = [SimpleNamespace(status=NodeStatus.COMPLETED, output=cog) for cog in cogs]
    return SimpleNamespace(results=lambda page: results)


def test_a_tile_without_data_is_counted_but_not_in_the_mosaic():
    gathered = _gather(children_of(cog_result("a.tif"), cog_result("b.tif", is_empty=True), cog_result("c.tif")))

    assert [asset.name for asset in gathered.assets] == ["a.tif", "c.tif"]
    assert (gathered.count, len(gathered.footprints)) == (3, 2)


def test_a_mosaic_of_only_empty_tiles_is_refused():
    with pytest.raises(UnfitData, match="no COG contains data"):
        _gather(children_of(cog_result("a.tif", is_empty=True)))
