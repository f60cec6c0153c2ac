"""Overviews, computed block by block: each level from the one below, half as wide and high.

Nodata does not affect valid pixels: only valid pixels are averaged, or counted for the most frequent class. A pixel of
an overview is valid if any of the four pixels below it is.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from rasterio.enums import Resampling

from dagmaster.raster.source.pixels import Block, Rules, Valid, Values
from dagmaster.raster.source.window import BLOCK, Window

HALF = BLOCK // 2


class Sink(Protocol):
    """Where the blocks of a level are written."""

    def write(self, window: Window, block: Block) -> None: ...


def sizes(width: int, height: int) -> list[tuple[int, int]]:
    """Sizes of the image and its overviews: halved and rounded up, until one block is enough."""
    result = [(width, height)]
    while max(result[-1]) > BLOCK:
        width, height = result[-1]
        result.append(((width + 1) // 2, (height + 1) // 2))
    return result


@dataclass(slots=True)
class PyramidLevel:
    """One image of the pyramid. Blocks are added row by row, halved, and passed to the next level."""

    width: int
    height: int
    sink: Sink
    halve: Callable[[Block], Block]
    fill: float
    above: "PyramidLevel | None" = None
    _pieces: dict[tuple[int, int], Block] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, int]:
        return -(-self.height // BLOCK), -(-self.width // BLOCK)

    def put(self, row: int, col: int, block: Block | None) -> None:
        """A block without valid pixels is None, and is not written to the file."""
        window = self._window(row, col)
        if block is not None:
            block = _cropped(block, window)
            self.sink.write(window, block)
        if self.above is not None:
            self.above._take(row, col, None if block is None else self.halve(block), self.shape)

    def _take(self, row: int, col: int, piece: Block | None, below: tuple[int, int]) -> None:
        if piece is not None:
            self._pieces[row % 2, col] = piece
        is_last_of_row = col == below[1] - 1
        if is_last_of_row and (row % 2 == 1 or row == below[0] - 1):
            for own_col in range(self.shape[1]):
                self.put(row // 2, own_col, self._joined(self._window(row // 2, own_col), own_col))
            self._pieces.clear()

    def _joined(self, window: Window, col: int) -> Block | None:
        places = [(half, 2 * col + side) for half in (0, 1) for side in (0, 1)]
        pieces = {place: self._pieces[place] for place in places if place in self._pieces}
        if not pieces:
            return None
        first = next(iter(pieces.values()))
        depth = max((len(piece.valid) for piece in pieces.values() if piece.valid is not None), default=1)
        values = np.full((len(first.values), window.height, window.width), self.fill, first.values.dtype)
        valid = np.zeros((depth, window.height, window.width), dtype=np.bool_)
        for (half, side), piece in pieces.items():
            height, width = piece.values.shape[1:]
            top, left = half * HALF, (side - 2 * col) * HALF
            values[:, top : top + height, left : left + width] = piece.values
            valid[:, top : top + height, left : left + width] = True if piece.valid is None else piece.valid
        return Block(values, None if valid.all() else valid)

    def _window(self, row: int, col: int) -> Window:
        left, top = col * BLOCK, row * BLOCK
        return Window(left, top, min(BLOCK, self.width - left), min(BLOCK, self.height - top))


def halving(resampling: Resampling, rules: Rules) -> Callable[[Block], Block]:
    """The function that reduces a block to its part of the overview."""
    reduce = _vote if resampling is Resampling.mode else _average

    def halve(block: Block) -> Block:
        values, valid = _even(block.values), None if block.valid is None else _even(block.valid)
        if valid is None:
            halved = Block(reduce(values, None))
        else:
            any_valid = valid[:, 0::2, 0::2] | valid[:, 0::2, 1::2] | valid[:, 1::2, 0::2] | valid[:, 1::2, 1::2]
            halved = Block(reduce(values, valid), any_valid)
            np.copyto(halved.values, halved.values.dtype.type(rules.fill), where=~any_valid)
        if reduce is _average:
            rules.avoid_nodata(halved.values, halved.valid)
        return halved

    return halve


def _average(values: Values, valid: Valid | None) -> Values:
    if values.dtype.kind == "f":
        return _average_of_floats(values, valid)
    wide = _wider(values.dtype)
    if valid is None:
        rows = np.add(values[:, 0::2], values[:, 1::2], dtype=wide)
        total = rows[:, :, 0::2] + rows[:, :, 1::2]
        total += 2
        total >>= 2
        return total.astype(values.dtype)
    count, total = _four(valid.astype(wide)), _four(np.where(valid, values, 0).astype(wide))
    np.maximum(count, 1, out=count)
    mean: Values = (2 * total + count) // (2 * count)
    return mean.astype(values.dtype)


def _average_of_floats(values: Values, valid: Valid | None) -> Values:
    if valid is None:
        return _four(values * values.dtype.type(0.25))
    count = np.maximum(_four(valid.astype(np.float64)), 1)
    mean: Values = _four(np.where(valid, values, 0).astype(np.float64)) / count
    return mean.astype(values.dtype)


def _vote(values: Values, valid: Valid | None) -> Values:
    """The most frequent class of the four; the first of them in a tie."""
    four = np.stack(_corners(values))
    may_vote = (
        np.ones(four.shape, np.bool_) if valid is None else np.broadcast_to(np.stack(_corners(valid)), four.shape)
    )
    votes = [
        sum((four[other] == four[one]) & may_vote[other] for other in range(4)) * may_vote[one] for one in range(4)
    ]
    winner = np.argmax(np.stack(votes), axis=0)
    chosen: Values = np.take_along_axis(four, winner[np.newaxis], axis=0)[0]
    return chosen


def _corners(array: Any) -> list[Any]:
    return [array[:, 0::2, 0::2], array[:, 0::2, 1::2], array[:, 1::2, 0::2], array[:, 1::2, 1::2]]


def _four(array: Values) -> Values:
    rows = array[:, 0::2] + array[:, 1::2]
    total: Values = rows[:, :, 0::2] + rows[:, :, 1::2]
    return total


def _even(array: Any) -> Any:
    """With the last row and column repeated, if their number is odd."""
    height, width = array.shape[1:]
    if height % 2 or width % 2:
        return np.pad(array, ((0, 0), (0, height % 2), (0, width % 2)), mode="edge")
    return array


def _cropped(block: Block, window: Window) -> Block:
    if block.values.shape[1:] == (window.height, window.width):
        return block
    valid = None if block.valid is None else block.valid[:, : window.height, : window.width]
    return Block(block.values[:, : window.height, : window.width], None if valid is None or valid.all() else valid)


def _wider(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """A type for the sum of four values with a margin; 64-bit sums may overflow."""
    kind = "u" if dtype.kind == "u" else "i"
    return np.dtype(f"{kind}{min(8, 2 * dtype.itemsize)}")
