"""The COGs that a mosaic contains."""

from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest

from dagmaster.bbox import BBox
from dagmaster.errors import UnfitData
from dagmaster.handlers.calling import to_json
from dagmaster.handlers.raster.mosaic import _gather
from dagmaster.handlers.raster.results import MosaicPart, TilingSchemeResult
from dagmaster.jobs.states import NodeStatus
from dagmaster.raster.analysis.footprint import Footprint
from dagmaster.raster.analysis.mosaic import MosaicAsset
from dagmaster.raster.cog.grid import OutputGrid

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


def test_stored_results_have_the_fields_of_earlier_releases():
    """Workers of another release read these results, or have written them: see the module `results`."""
    grid = {"crs": "EPSG:32633", "origin": [5e5, 6e6], "resolution": [10.0, 10.0], "width": 7, "height": 5}
    scheme = {
        "tiling_scheme_blob": "tiling_schemes/dem/v0/r1/tiling_scheme.geojson",
        "tiling_scheme_container": "silver",
        "tile_list": [{"tile_id": "r000c000", "row": 0, "col": 0, "window": [0, 0, 7, 5], "own": None}],
        "total_tiles": 1,
        "left_out": 0,
        "grid_dimensions": {"rows": 1, "cols": 1},
        "grid": grid,
        "tile_size": 512,
        "overlap": 0,
        "source_crs": None,
        "target_crs": "EPSG:32633",
        "shown_as": {},
        "raster_metadata": {
            "width": 7,
            "height": 5,
            "band_count": 1,
            "data_type": "uint8",
            "size_mb": 0.1,
            "compression": None,
        },
    }
    part = {**cog_result("a.tif"), "findings": []}

    for model, stored in ((TilingSchemeResult, scheme), (MosaicPart, part), (MosaicPart, {**part, "footprint": None})):
        assert to_json(model.model_validate(stored), "result") == stored
    assert TilingSchemeResult.model_validate(scheme).grid == OutputGrid("EPSG:32633", (5e5, 6e6), (10.0, 10.0), 7, 5)
    read = MosaicPart.model_validate(part)
    assert read.asset == MosaicAsset("a.tif", SQUARE, BBox(*BOX), 10.0, "uint8")
    assert read.footprint == Footprint(SQUARE, BBox(*BOX))
    assert [[field.name for field in fields(kind)] for kind in (OutputGrid, MosaicAsset, Footprint)] == [
        ["crs", "origin", "resolution", "width", "height"],
        ["name", "geometry", "bbox", "resolution", "data_type"],
        ["geometry", "bbox"],
    ]


def test_a_tile_without_data_is_counted_but_not_in_the_mosaic():
    gathered = _gather(children_of(cog_result("a.tif"), cog_result("b.tif", is_empty=True), cog_result("c.tif")))

    assert [asset.name for asset in gathered.assets] == ["a.tif", "c.tif"]
    assert (gathered.count, len(gathered.footprints)) == (3, 2)


def test_a_mosaic_of_only_empty_tiles_is_refused():
    with pytest.raises(UnfitData, match="no COG contains data"):
        _gather(children_of(cog_result("a.tif", is_empty=True)))
