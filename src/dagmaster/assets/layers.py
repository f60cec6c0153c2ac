"""The layers of an asset. A raster asset has one; layers of vector assets will have the names of their tables."""

from typing import Final

RASTER: Final = "raster"
LAYERS: Final = (RASTER,)
