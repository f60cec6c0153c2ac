"""The STAC documents of revisions: written by the job that processes a revision, and read by jobs of later
revisions.

Nothing here is published: approval copies the documents of a revision into pgSTAC. A batch is one transaction, and
writing it again changes nothing. Triggers refuse changes once the revision was reviewed.
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import orjson
import psycopg
from psycopg.rows import dict_row

from dagmaster import faults
from dagmaster.database.catalog.pgstac import extent_of
from dagmaster.database.connect import REVIEWED, Connection, ConnectionPool, translate_errors
from dagmaster.database.queries import query
from dagmaster.database.session import dicts
from dagmaster.dataset_ids import RevisionKey, is_of_job, job_dataset_id
from dagmaster.errors import UnfitData

Json = dict[str, Any]

BATCH_ITEMS: Final = 500
BATCH_BYTES: Final = 4 * 2**20  # a review has to wait while a batch is written
COLLECTION: Final = ""  # the document id of a collection
_HINT = "submit it again: that makes a new revision"


class RevisionDocuments:
    """The documents of one revision, as its job writes them, on the connections of the worker."""

    def __init__(self, database: ConnectionPool, key: RevisionKey, job_id: UUID) -> None:
        self._database = database
        self._key = key
        self._job_id = job_id

    async def put_collection(self, collection: Json) -> bool:
        """Store the collection, or replace it. True if it is new."""
        async with self._writing() as connection:
            is_new = bool(await self._missing(connection, [COLLECTION]))
            await self._put(connection, [(COLLECTION, collection)])
        return is_new

    async def put_items(self, items: Sequence[Json]) -> int:
        """Store items, or replace those with the same ids. Returns their number."""
        require_storable(items)
        for batch in _batches([(str(item["id"]), item) for item in items]):
            async with self._writing() as connection:
                await self._put(connection, batch)
        return len(items)

    async def missing(self, item_ids: Sequence[str]) -> list[str]:
        """The given ids for which the revision has no item."""
        with translate_errors():
            async with self._database.connection() as connection:
                return await self._missing(connection, item_ids)

    async def finish(self, item_ids: Sequence[str]) -> tuple[int, Json | None]:
        """Remove all items but these, and set the extent of the collection to that of these items.

        Returns the number of removed items, and the extent, which is None if there are no items.
        """
        async with self._writing() as connection:
            removed = await dicts(connection, "documents_remove_others", self._key.values(ids=list(item_ids)))
            boxes = await dicts(connection, "documents_boxes", self._key.values())
            if not boxes:
                return len(removed), None
            extent = extent_of(boxes)
            await connection.execute(query("documents_set_extent"), self._key.values(extent=_dumped(extent)))
        return len(removed), extent

    async def _missing(self, connection: Connection, ids: Sequence[str]) -> list[str]:
        rows = await dicts(connection, "documents_missing", self._key.values(ids=list(ids)))
        return [row["id"] for row in rows]

    async def _put(self, connection: Connection, documents: Sequence[tuple[str, Json]]) -> None:
        rows = [{"document_id": document_id, "content": content} for document_id, content in documents]
        await connection.execute(query("documents_put"), self._key.values(documents=_dumped(rows)))

    @asynccontextmanager
    async def _writing(self) -> AsyncIterator[Connection]:
        with translate_errors(), _blaming_data(self._key):
            async with self._database.connection() as connection:
                async with connection.transaction():
                    # Any job may write the dataset of another job, as `stac_register` does: it is never published.
                    if not is_of_job(self._key.dataset_id):
                        values = self._key.values(job_id=self._job_id)
                        (row,) = await dicts(connection, "documents_writer", values)
                        _refuse_other_writer(self._key, self._job_id, row)
                    yield connection
                    faults.reach("documents.before-commit")
                faults.reach("documents.after-commit")


def refuse_other_writer(connection: psycopg.Connection[Any], key: RevisionKey, job_id: UUID) -> None:
    """Raise UnfitData unless the job processes this revision of an asset, or the dataset is the job's own.

    A job that an earlier release created, before there were assets, may write a dataset that belongs to no asset: the
    dataset is adopted when the job has ended.
    """
    if key.dataset_id == job_dataset_id(job_id):
        return
    with connection.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(query("documents_writer").encode(), key.values(job_id=job_id)).fetchone()
    assert row is not None
    _refuse_other_writer(key, job_id, row)


def _refuse_other_writer(key: RevisionKey, job_id: UUID, row: Mapping[str, Any]) -> None:
    is_writer = row["job_id"] == job_id if row["has_asset"] else row["is_job_of_earlier_release"]
    if not is_writer:
        raise UnfitData(
            f"this job does not process {key}: it cannot write its results",
            code="revision.other-job",
            hint="submit the file as an asset: `dagmaster assets submit` or `dagmaster process`",
        )
    if row["reviewed_as"] is not None:
        raise UnfitData(f"{key} was reviewed: its documents cannot change", code="revision.reviewed", hint=_HINT)


@dataclass(frozen=True, slots=True)
class EarlierRevision:
    """An earlier revision, as its documents describe it: `properties` are those of its item `item_id`.

    It is the newest completed revision of the same version; if there is none, that of the newest other version.
    `ordinal` is the number of its version. Three fields describe the same version only: `newest` is its newest
    completed revision, `created` is when the first of its items was created, and `times` has the times of its items by
    id, if they differ.
    """

    item_id: str
    ordinal: int
    properties: Json
    newest: int | None
    created: str | None
    times: Mapping[str, Json]


def read_earlier(connection: psycopg.Connection[Any], key: RevisionKey) -> EarlierRevision | None:
    """Read the earlier revision on the connection of a plain handler. None for the first revision of a dataset."""
    with connection.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(query("documents_earlier").encode(), key.values()).fetchone()
    if row is None:
        return None
    return EarlierRevision(
        row["id"], row["ordinal"], row["properties"], row["newest"], row["created"], row["times"] or {}
    )


def require_storable(items: Sequence[Json]) -> None:
    """Refuse items that pgSTAC would refuse, or silently leave out, when they are published."""
    seen: set[str] = set()
    for item in items:
        item_id = item.get("id")
        if not isinstance(item_id, str) or not item_id:
            raise UnfitData("an item has no id", code="catalog.bad-item")
        if item_id in seen:
            raise UnfitData(f"two items have the id '{item_id}'", code="catalog.duplicate-item")
        if item.get("geometry") is None:
            raise UnfitData(f"item '{item_id}' has no geometry", code="catalog.bad-item")
        if not _has_time(item):
            raise UnfitData(
                f"item '{item_id}' has no valid datetime or interval",
                code="catalog.bad-item",
                hint="write 2024-01-31T12:00:00Z, in start_datetime and end_datetime if it is an interval",
            )
        seen.add(item_id)


def _has_time(item: Json) -> bool:
    """Whether the item has an interval, or else a datetime, with time zones."""
    properties = item.get("properties")
    times = properties if isinstance(properties, dict) else {}
    begin, end = times.get("start_datetime"), times.get("end_datetime")
    if begin is None or end is None:
        begin = end = times.get("datetime")
    try:
        begin_at, end_at = datetime.fromisoformat(begin), datetime.fromisoformat(end)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return begin_at.tzinfo is not None and end_at.tzinfo is not None and begin_at <= end_at


def _batches(documents: Sequence[tuple[str, Json]]) -> Iterator[Sequence[tuple[str, Json]]]:
    """Documents that are written in one transaction: limited in number and size."""
    start, size = 0, 0
    for place, (_, content) in enumerate(documents):
        document_size = len(orjson.dumps(content))
        if place > start and (place - start == BATCH_ITEMS or size + document_size > BATCH_BYTES):
            yield documents[start:place]
            start, size = place, 0
        size += document_size
    if documents:
        yield documents[start:]


@contextmanager
def _blaming_data(key: RevisionKey) -> Iterator[None]:
    """Raise UnfitData for errors that a retry would repeat: a reviewed revision, values that JSONB cannot store."""
    try:
        yield
    except psycopg.Error as error:
        message = error.diag.message_primary
        if error.sqlstate == REVIEWED:
            raise UnfitData(str(message), code="revision.reviewed", hint=_HINT) from error
        if (error.sqlstate or "").startswith("22"):
            raise UnfitData(f"documents of {key} cannot be stored: {message}", code="catalog.bad-item") from error
        raise


def _dumped(value: Any) -> str:
    return orjson.dumps(value).decode()
