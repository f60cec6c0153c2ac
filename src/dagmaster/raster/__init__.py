"""Rasters: facts about files, validation, output grids, COGs, mosaics and statistics.

A library without jobs, databases or storage: functions take paths and values and return values, in notebooks and in
handlers. The most used names are available from this package, and are imported on first use:

    from dagmaster import raster

    raster.inspect("scene.tif").verdict
    facts = raster.read_facts("scene.tif")
    grid = raster.output_grid(facts, "EPSG:4326")
    raster.make_cog("scene.tif", Path("cog.tif"), grid, raster_type=raster.RasterType.RGB)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dagmaster.raster.analysis.mosaic import mosaic_asset
    from dagmaster.raster.analysis.statistics import BandStatistics, band_statistics
    from dagmaster.raster.cog.coverage import tiles_with_data
    from dagmaster.raster.cog.grid import OutputGrid, Tile, auto_tile_size, output_grid, tiles_of
    from dagmaster.raster.cog.profiles import CogProfile, Tier, profile_of
    from dagmaster.raster.cog.stack import merged, stacked
    from dagmaster.raster.cog.write import CogFacts, make_cog, write_cog
    from dagmaster.raster.source.facts import RasterFacts, RasterType, read_facts
    from dagmaster.raster.source.window import Window
    from dagmaster.raster.validation.findings import Checked, Verdict
    from dagmaster.raster.validation.limits import inspect

_MODULES = {
    "cog.write": ("CogFacts", "make_cog", "write_cog"),
    "cog.coverage": ("tiles_with_data",),
    "source.facts": ("RasterFacts", "RasterType", "read_facts"),
    "validation.findings": ("Checked", "Verdict"),
    "cog.grid": ("OutputGrid", "Tile", "auto_tile_size", "output_grid", "tiles_of"),
    "source.window": ("Window",),
    "validation.limits": ("inspect",),
    "analysis.mosaic": ("mosaic_asset",),
    "cog.profiles": ("CogProfile", "Tier", "profile_of"),
    "cog.stack": ("merged", "stacked"),
    "analysis.statistics": ("BandStatistics", "band_statistics"),
}

__all__ = [
    "BandStatistics",
    "Checked",
    "CogFacts",
    "CogProfile",
    "OutputGrid",
    "RasterFacts",
    "RasterType",
    "Tier",
    "Tile",
    "Verdict",
    "Window",
    "auto_tile_size",
    "band_statistics",
    "inspect",
    "make_cog",
    "merged",
    "mosaic_asset",
    "output_grid",
    "profile_of",
    "read_facts",
    "stacked",
    "tiles_of",
    "tiles_with_data",
    "write_cog",
]


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
