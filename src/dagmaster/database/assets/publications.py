"""The facts that decide who may read a version of an asset; documents of revisions; keys of signed links."""

import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dagmaster.access.decision import Publication
from dagmaster.assets.states import Clearance, Exposure
from dagmaster.database.connect import Connection
from dagmaster.database.pipeline import Call
from dagmaster.database.queries import query
from dagmaster.database.session import dicts

Json = dict[str, Any]
# The rows of a statement, by its name and values.
ReadDicts = Callable[[str, Mapping[str, Any]], Awaitable[list[Json]]]
_ASSET_ID = re.compile(r"[0-9a-f]{32}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class LayerTexts:
    """Published metadata of a layer. Equal digests mean equal metadata."""

    digest: str
    metadata: Json = field(compare=False)


@dataclass(frozen=True, slots=True)
class AssetPublication:
    """An asset and one of its versions, as access decisions need them.

    `version` is None if the asset does not have the requested version. `latest` describes the latest approved version;
    None if no version is approved. `processed_revision` is the requested revision if its processing completed and it
    is still stored; if the request names no revision, the newest such revision. `metadata` is the published metadata of
    the layer `raster`.
    """

    asset_id: str
    dataset_id: str
    latest: Publication | None
    version: Publication | None
    processed_revision: int | None
    metadata: LayerTexts | None = None

    def chosen_revision(self, requested: int | None) -> int | None:
        """The requested revision; if none is requested, the approved one, or else the newest one that was processed.
        None if the version has no such revision."""
        approved = self.version.approved_revision if self.version else None
        return approved if approved is not None and requested in (None, approved) else self.processed_revision


@dataclass(frozen=True, slots=True)
class LinkKey:
    key_id: str
    secret: str


async def read_publication(
    read: ReadDicts, name: str, ordinal: int | None = None, revision: int | None = None
) -> AssetPublication | None:
    """By the id of an asset or of its dataset."""
    call = publication_call(name, ordinal, revision)
    if call is None:
        return None
    rows = await read(call.name, call.values)
    return _publication(rows[0]) if rows else None


def publication_call(name: str, ordinal: int | None, revision: int | None) -> Call | None:
    """The call that reads a publication; None if the name is not valid. A dataset id never looks like an asset id."""
    if not _NAME.fullmatch(name):
        return None
    statement = "publication_of_asset" if _ASSET_ID.fullmatch(name) else "publication_of_dataset"
    return Call(statement, {"name": name, "ordinal": ordinal, "revision": revision})


def _publication(row: Json) -> AssetPublication:
    latest, ordinal = row["latest"], row["version_ordinal"]
    asset = (row["platform_id"], Clearance(row["clearance_state"]), Exposure(row["exposure"]), latest)
    is_deleted = row["is_asset_deleted"]
    version = None
    if ordinal is not None:
        version = Publication(
            *asset,
            ordinal,
            row["approved_revision"],
            is_withdrawn=is_deleted or row["is_version_withdrawn"],
            is_deleted=is_deleted or row["is_version_deleted"],
        )
    return AssetPublication(
        asset_id=row["asset_id"],
        dataset_id=row["dataset_id"],
        # `latest` is an approved version; which of its revisions is approved does not matter here.
        latest=None if latest is None else Publication(*asset, latest, 1, is_deleted),
        version=version,
        processed_revision=row["processed_revision"],
        metadata=LayerTexts(row["layer_digest"], row["layer_metadata"]) if row["layer_metadata"] else None,
    )


async def read_documents(
    connection: Connection, dataset_id: str, ordinal: int, revision: int, ids: Sequence[str]
) -> dict[str, Json]:
    """Documents of a revision by their ids. The collection has the empty id."""
    values = {"dataset": dataset_id, "ordinal": ordinal, "revision": revision, "ids": list(ids)}
    return {row["document_id"]: row["content"] for row in await dicts(connection, "revision_documents", values)}


async def read_items(
    connection: Connection, dataset_id: str, ordinal: int, revision: int, *, after: str, limit: int
) -> list[Json]:
    """The items of a revision whose ids follow `after`, in the order of their ids."""
    values = {"dataset": dataset_id, "ordinal": ordinal, "revision": revision, "after": after, "limit": limit}
    return [row["content"] for row in await dicts(connection, "revision_items", values)]


async def read_hrefs(connection: Connection, dataset_id: str, ordinal: int, revision: int) -> list[str]:
    """The hrefs of all assets in the documents of a revision."""
    values = {"dataset": dataset_id, "ordinal": ordinal, "revision": revision}
    return [row["href"] for row in await dicts(connection, "revision_hrefs", values) if row["href"]]


async def read_signing_secret(read: ReadDicts, key_id: str) -> str | None:
    rows = await read("signing_key", {"key_id": key_id})
    return rows[0]["secret"] if rows else None


async def ensure_signing_key(connection: Connection) -> LinkKey:
    """The key that signs new links: the newest one. All servers share it; the first that needs a key creates it."""
    while not (rows := await dicts(connection, "newest_signing_key", {})):
        await connection.execute(query("add_first_signing_key"), {"secret": secrets.token_urlsafe(_SECRET_BYTES)})
    return LinkKey(rows[0]["key_id"], rows[0]["secret"])
