"""Windows of pixels, and the blocks that all processing is done in."""

import math
from dataclasses import dataclass

BLOCK = 512  # pixels; the unit of warping and of the COG


@dataclass(frozen=True, slots=True)
class Window:
    """A rectangle of pixels of a grid."""

    col: int
    row: int
    width: int
    height: int

    def blocks(self) -> tuple[int, int]:
        """How many rows and columns of blocks cover it."""
        return math.ceil(self.height / BLOCK), math.ceil(self.width / BLOCK)
