"""The raster workflows that ship with dagmaster, by id, which of them is used unless another is chosen, and whether a
file becomes tiles or a single COG."""

RASTER_INGEST = "raster_ingest"  # one file: one COG, or tiles if it is large
LARGE_RASTER = "process_large_raster"  # one file: always tiles and a mosaic
RASTER_COLLECTION = "raster_collection"  # several files: one COG per file


def workflow_for_files(count: int) -> str:
    return RASTER_INGEST if count == 1 else RASTER_COLLECTION


def becomes_tiles(tile_above_mb: float | None, *, raw_bytes: float, crosses_antimeridian: bool) -> bool:
    """Whether a file becomes tiles with a mosaic, or a single COG. This is the only place that decides it.

    `tile_above_mb` is the limit for its uncompressed size `raw_bytes`; without one, no tiles are made. A file across
    the antimeridian cannot be a single COG.
    """
    if tile_above_mb is None:
        return False
    return crosses_antimeridian or raw_bytes > tile_above_mb * 1e6
