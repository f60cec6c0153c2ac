"""The job types of the old API. A job type is the id of a workflow, or one of the old names."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dagmaster.workflows.raster import RASTER_INGEST, UNREACHABLE_TILE_LIMIT_MB

_NO_TILES_FOR_LARGE_SOURCES: Final = {"tile_above_mb": UNREACHABLE_TILE_LIMIT_MB}


@dataclass(frozen=True, slots=True)
class JobType:
    """The workflow of a job type, and inputs that it sets unless the caller does."""

    workflow_id: str
    inputs: Mapping[str, Any] = field(default_factory=dict)


OLD_NAMES: Final[Mapping[str, JobType]] = {
    "process_fathom_stack": JobType("flood_stack"),
    "process_fathom_merge": JobType("flood_merge"),
    "stac_register_manual": JobType("stac_register"),
    "raster.validate": JobType("raster_validate"),
    "raster_cog_docker": JobType(RASTER_INGEST, _NO_TILES_FOR_LARGE_SOURCES),
    "raster.create_cog": JobType(RASTER_INGEST, _NO_TILES_FOR_LARGE_SOURCES),
}


def job_type_of(name: str) -> JobType:
    return OLD_NAMES.get(name) or JobType(name)
