"""Which layers an asset has. A raster asset has one; those of vectors will have the names of their tables."""

from typing import Final

RASTER: Final = "raster"
LAYERS: Final = (RASTER,)
