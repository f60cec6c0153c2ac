"""What raster handlers write, and the params that all outputs share."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from dagmaster import faults
from dagmaster.database.assets.documents import refuse_other_writer
from dagmaster.database.connect import translate_errors
from dagmaster.dataset_ids import job_dataset_id
from dagmaster.errors import Conflict, UnfitData
from dagmaster.handlers.context import SyncContext
from dagmaster.storage.location import Edition, Location, Zone
from dagmaster.storage.store import StorageTier
from dagmaster.storage.zones import Storage

_MEGABYTE = 1_000_000


class GridParams(BaseModel):
    model_config = ConfigDict(frozen=True)

    target_crs: str = "EPSG:4326"
    resolution: tuple[float, float] | float | None = None


def in_silver(storage: Storage, blob: str) -> Location:
    return storage.location(blob, zone=Zone.SILVER)


def writable_edition(ctx: SyncContext, dataset_id: str, ordinal: int, revision: int) -> Edition:
    """An edition, if this job may write its objects. Raises UnfitData if another job processes it.

    The params name the edition, and a workflow of a user can pass any params. So each task checks it.
    """
    edition = Edition(dataset_id, ordinal, revision)
    if edition.dataset_id != job_dataset_id(ctx.job_id):
        with translate_errors(), ctx.connect() as connection:
            refuse_other_writer(connection, edition, ctx.job_id)
    return edition


def publish(storage: Storage, blob: str, content: Path | bytes, tier: StorageTier = StorageTier.HOT) -> Location:
    """Write an object under its final name.

    The same content may exist from an earlier attempt; other content is an error.
    """
    location = in_silver(storage, blob)
    faults.reach("handler.before-publish")
    try:
        if isinstance(content, bytes):
            storage.put(location, content, create_only=True)
        else:
            storage.put_file(location, content, move=True, create_only=True, tier=tier)
    except Conflict as error:  # a retry would find the same object
        raise UnfitData(error.message, code=error.code, hint="submit it again: that makes a new revision") from error
    faults.reach("handler.after-publish")
    return location


def megabytes(size_bytes: int) -> float:
    return round(size_bytes / _MEGABYTE, 3)
