"""The comparison of valid areas reports data that was lost, and reports nothing for complete outputs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from affine import Affine

from dagmaster.raster.cog.grid import output_grid, tiles_of
from dagmaster.raster.cog.warp import Copy, Warp
from dagmaster.raster.cog.write import make_cog
from dagmaster.raster.source.facts import RasterType, read_facts
from dagmaster.raster.source.pixels import Block
from tests.raster.rasters import write_raster

pytestmark = pytest.mark.requirement("R5")

POLAR = Affine(1000, 0, -450_000, 0, -1000, 350_000)


def polar_scene(folder: Path, *, half: bool = False) -> Path:
    values = np.ones((700, 900), "float32")
    if half:
        values[:, :450] = -1
    return write_raster(folder / "pole.tif", values, crs="EPSG:3031", transform=POLAR, nodata=-1 if half else None)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("raster_type", [RasterType.DEM, RasterType.CATEGORICAL])
def test_a_complete_output_has_the_area_of_its_source(tmp_path: Path, raster_type: RasterType, half: bool) -> None:
    path = polar_scene(tmp_path, half=half)

    area = make_cog(path, tmp_path / "cog.tif", output_grid(read_facts(path)), raster_type=raster_type).valid_area

    assert not area.differs
    assert area.lost_km2 == area.added_km2 == 0
    assert area.source_km2 == area.output_km2
    # The true area of the scene, without its border, where pixels are not compared.
    assert 0.6 < area.source_km2 / (630_000 * 0.95 / (2 if half else 1)) < 1.01


@pytest.mark.parametrize("half", [False, True])
def test_lost_blocks_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, half: bool) -> None:
    path = polar_scene(tmp_path, half=half)
    parts = Warp._parts

    def parts_without_last_block(self: Warp, col: int, row: int) -> Iterator[Any]:
        return parts(self, col, row) if col < 1024 else iter(())

    monkeypatch.setattr(Warp, "_parts", parts_without_last_block)

    area = make_cog(path, tmp_path / "cog.tif", output_grid(read_facts(path)), raster_type=RasterType.DEM).valid_area

    # 116 of 1140 columns, that is a sector of 37°.
    assert area.differs
    assert 6 < area.lost_percent < (14 if not half else 28)


@pytest.mark.parametrize("nodata", [None, 0])
def test_data_that_a_copy_loses_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodata: int | None
) -> None:
    path = write_raster(tmp_path / "a.tif", np.ones((1, 600, 1200), "uint8"), nodata=nodata)
    block = Copy.block

    def all_blocks_but_one(self: Copy, col: int, row: int) -> Block | None:
        return None if (col, row) == (512, 0) else block(self, col, row)

    monkeypatch.setattr(Copy, "block", all_blocks_but_one)

    grid = output_grid(read_facts(path), "EPSG:32633")
    area = make_cog(path, tmp_path / "cog.tif", grid, raster_type=RasterType.DEM).valid_area

    assert area.differs
    assert 30 < area.lost_percent < 45


def test_data_where_the_source_has_none_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.ones((1, 600, 600), "uint8")
    values[:, :, :200] = 0
    path = write_raster(tmp_path / "a.tif", values, nodata=0)
    block = Warp.block

    def all_valid(self: Warp, col: int, row: int) -> Block | None:
        computed = block(self, col, row)
        return computed and Block(computed.values)

    monkeypatch.setattr(Warp, "block", all_valid)

    area = make_cog(path, tmp_path / "cog.tif", output_grid(read_facts(path)), raster_type=RasterType.DEM).valid_area

    assert area.differs
    assert 25 < area.added_percent < 40


def test_each_tile_is_compared_with_its_own_part_of_the_source(tmp_path: Path) -> None:
    path = polar_scene(tmp_path, half=True)
    facts = read_facts(path)
    grid = output_grid(facts, resolution=(0.1, 0.01))
    tiles = tiles_of(grid, 512, 0)

    areas = [
        make_cog(path, tmp_path / "cog.tif", grid, tile.window, raster_type=RasterType.DEM).valid_area for tile in tiles
    ]

    assert len(areas) > 10
    assert not any(area.differs for area in areas)
    assert sum(area.source_km2 > 0 for area in areas) >= 4
