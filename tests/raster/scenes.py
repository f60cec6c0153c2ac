"""Small rasters, and statistics by GDAL's tools to compare with."""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from affine import Affine
from rasterio.enums import ColorInterp

NORTH_UP = Affine(0.001, 0, 10, 0, -0.001, 50)


def write(
    path: Path,
    bands: Any,
    *,
    crs: str = "EPSG:4326",
    transform: Affine = NORTH_UP,
    nodata: float | None = None,
    mask: Any = None,
    alpha: bool = False,
    overviews: tuple[int, ...] = (),
) -> Path:
    """A tiled GeoTIFF; bands are (rows, columns) or (band, rows, columns); with `alpha` the last is the alpha band."""
    bands = np.atleast_3d(bands) if bands.ndim == 3 else bands[None]
    count, height, width = bands.shape
    profile = {
        "driver": "GTiff",
        "count": count,
        "height": height,
        "width": width,
        "dtype": bands.dtype.name,
        "crs": crs,
        "transform": transform,
        "nodata": nodata,
        "tiled": True,
        "blockxsize": 128,
        "blockysize": 128,
        "compress": "deflate",
    }
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True), rasterio.open(path, "w", **profile) as dataset:
        if alpha:
            dataset.colorinterp = [*[ColorInterp.gray] * (count - 1), ColorInterp.alpha]
        dataset.write(bands)
        if mask is not None:
            dataset.write_mask(mask)
    if overviews:
        with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True), rasterio.open(path, "r+") as dataset:
            dataset.build_overviews(overviews, rasterio.enums.Resampling.average)
    return path


def smooth(height: int, width: int, *, seed: int = 1) -> Any:
    """Hills between 0 and 1, so that overviews resemble the full resolution."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:height, :width]
    waves = sum(
        np.sin(rows / rng.uniform(40, 90) + rng.uniform(0, 6))
        * np.cos(columns / rng.uniform(40, 90) + rng.uniform(0, 6))
        for _ in range(4)
    )
    return (waves + 4) / 8


def gdalinfo_statistics(*paths: Path) -> list[dict[str, float]]:
    """Exact statistics of all the rasters together, computed by GDAL's tools."""
    together = paths[0].with_name("together.vrt")
    subprocess.run(["gdalbuildvrt", "-q", "-overwrite", together, *paths], check=True)
    completed = subprocess.run(
        ["gdalinfo", "-json", "-stats", "--config", "GDAL_PAM_ENABLED", "NO", together],
        check=True,
        capture_output=True,
        text=True,
    )
    return [band["metadata"][""] for band in json.loads(completed.stdout)["bands"]]
