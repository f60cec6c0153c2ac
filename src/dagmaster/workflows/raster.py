"""The raster workflows that ship with dagmaster, by id, which of them is used unless another is chosen, and whether a
file becomes tiles or a single COG."""

from collections.abc import Mapping
from typing import Any, Final

RASTER_INGEST = "raster_ingest"  # one file: one COG, or tiles if it is large
LARGE_RASTER = "process_large_raster"  # one file: always tiles and a mosaic
RASTER_COLLECTION = "raster_collection"  # several files: one COG per file

TILE_ABOVE_MB: Final = 500.0  # the default of RASTER_INGEST
# As `tile_above_mb`: one COG, however large the source is. Only a source across the antimeridian still becomes tiles.
UNREACHABLE_TILE_LIMIT_MB: Final = 1e9
_FIXED_TILE_LIMITS_MB: Final[Mapping[str, float | None]] = {LARGE_RASTER: 0.0, RASTER_COLLECTION: None}


def workflow_for_files(count: int) -> str:
    return RASTER_INGEST if count == 1 else RASTER_COLLECTION


def tile_limit_of(workflow_id: str, inputs: Mapping[str, Any]) -> float | None:
    """The limit `tile_above_mb` that a job of this workflow passes to `becomes_tiles`, with these inputs.

    None if the workflow makes no tiles, and for a workflow of another package that has no input of this name.
    """
    if workflow_id in _FIXED_TILE_LIMITS_MB:
        return _FIXED_TILE_LIMITS_MB[workflow_id]
    limit_mb = inputs.get("tile_above_mb", TILE_ABOVE_MB if workflow_id == RASTER_INGEST else None)
    return limit_mb if isinstance(limit_mb, int | float) else None


def becomes_tiles(tile_above_mb: float | None, *, raw_bytes: float, crosses_antimeridian: bool) -> bool:
    """Whether a file becomes tiles with a mosaic, or a single COG. This is the only place that decides it.

    `tile_above_mb` is the limit for its uncompressed size `raw_bytes` (`tile_limit_of`); without one, no tiles are
    made. A file across the antimeridian cannot be a single COG.
    """
    if tile_above_mb is None:
        return False
    return crosses_antimeridian or raw_bytes > tile_above_mb * 1e6
