"""Distinguish classes from measurements by their values, for integers whose type is not given otherwise."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from dagmaster.raster.source.pixels import Pixels
from dagmaster.raster.source.window import Window

_MAX_CLASSES = 64
_CERTAIN_CLASSES = 12  # this many distinct values or fewer count as classes, even if they change gradually
_MIN_STEP = 0.12  # share of the distinct values; neighbours in a measurement differ by less, on average
_WINDOW_PIXELS = 256  # along a side

PatchValues = NDArray[np.generic]
Mask = NDArray[np.bool_]


def are_classes(patches: Iterable[tuple[PatchValues, Mask]]) -> bool:
    """Whether there are few distinct values, in contiguous areas, that do not change gradually.

    A patch has values and the mask of valid ones. The number of distinct values alone does not decide: a dark
    photograph may have 27. But neighbours that differ have similar values in a measurement, and not in classes.
    """
    patches = list(patches)
    values = np.concatenate([each[valid] for each, valid in patches]) if patches else np.empty(0)
    if values.dtype.kind not in "iu" or values.size < 64:
        return False
    levels = np.unique(values)
    if not 2 <= levels.size <= min(_MAX_CLASSES, values.size // 16):
        return False
    steps = np.concatenate([_steps(np.searchsorted(levels, each), valid) for each, valid in patches])
    unequal = steps[steps > 0]
    if unequal.size == 0 or unequal.size >= steps.size / 2:
        return False
    return bool(levels.size <= _CERTAIN_CLASSES or unequal.mean() >= _MIN_STEP * levels.size)


def holds_classes(source: Pixels) -> bool:
    """Whether the first band of a source has classes, judged by nine windows. All tiles get the same result."""
    width, height = min(_WINDOW_PIXELS, source.width), min(_WINDOW_PIXELS, source.height)
    corners = {
        (int(across * (source.width - width)), int(down * (source.height - height)))
        for across in (0.1, 0.5, 0.9)
        for down in (0.1, 0.5, 0.9)
    }
    patches = []
    for col, row in sorted(corners):
        block = source.read(Window(col, row, width, height))
        valid = np.ones((height, width), np.bool_) if block.valid is None else block.valid[0]
        patches.append((block.values[0], valid))
    return are_classes(patches)


def _steps(ranks: NDArray[np.intp], valid: Mask) -> NDArray[np.intp]:
    """By how many ranks neighbours in a row differ, where both are valid. The rank is that among the distinct
    values."""
    steps: NDArray[np.intp] = np.abs(np.diff(ranks, axis=1))[valid[:, 1:] & valid[:, :-1]]
    return steps
