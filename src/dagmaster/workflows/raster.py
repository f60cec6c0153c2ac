"""The raster workflows that ship with dagmaster, by id, and which of them is used unless another is chosen."""

RASTER_INGEST = "raster_ingest"  # one file: one COG, or tiles if it is large
LARGE_RASTER = "process_large_raster"  # one file: always tiles and a mosaic
RASTER_COLLECTION = "raster_collection"  # several files: one COG per file


def workflow_for_files(count: int) -> str:
    return RASTER_INGEST if count == 1 else RASTER_COLLECTION
