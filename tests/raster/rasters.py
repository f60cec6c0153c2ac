"""Small rasters for tests, from arrays."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from affine import Affine
from rasterio.errors import NotGeoreferencedWarning
from rasterio.transform import from_origin

UTM33 = "EPSG:32633"
TRANSFORM = from_origin(500_000, 5_000_000, 10, 10)


def write_raster(
    path: Path,
    values: Any,
    *,
    crs: Any = UTM33,
    transform: Affine | None = TRANSFORM,
    after: Any = None,
    **profile: Any,
) -> Path:
    """`values` is rows × columns or bands × rows × columns; `after` is called with the open dataset."""
    values = np.asarray(values)
    values = values[np.newaxis] if values.ndim == 2 else values
    count, height, width = values.shape
    options = {"driver": "GTiff", "dtype": values.dtype, "crs": crs, "transform": transform, **profile}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        with rasterio.open(path, "w", width=width, height=height, count=count, **options) as dataset:
            dataset.write(values)
            if after:
                after(dataset)
    return path


def noise(*shape: int, dtype: str = "uint8", low: int = 1, high: int = 254, seed: int = 7) -> Any:
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


def hills(rows: int, columns: int, low: float = 100.0, high: float = 900.0) -> Any:
    y, x = np.mgrid[0 : 1 : rows * 1j, 0 : 1 : columns * 1j]
    wave = (np.sin(5 * x) * np.cos(4 * y) + 1) / 2
    return (low + (high - low) * wave).astype("float32")
