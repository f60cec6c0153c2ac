"""Write layers into the external database.

Each write is one transaction in the external database, and has a generation. A write with an older generation than the
last one is refused, so that a delayed or repeated write never undoes a later change. Errors contain neither the address
nor its credentials.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

import orjson
import psycopg

from dagmaster import faults
from dagmaster.client.models.layers import LayerInfo
from dagmaster.database.connect import Connection, connect, require_address
from dagmaster.database.queries import query
from dagmaster.database.session import dicts
from dagmaster.errors import Conflict, InvalidRequest, Unavailable
from dagmaster.observe.redaction import redact

Json = dict[str, Any]
STATEMENT_SECONDS: Final = 8.0
_BATCH_ITEMS = 500


@dataclass(frozen=True, slots=True)
class ExternalContent:
    """The content of a layer in the external database. The documents are complete: their URLs are absolute."""

    layer: LayerInfo
    collection: Json
    items: Sequence[Json]


class ExternalCatalog:
    """Opens a connection for each write, because writes are rare."""

    def __init__(self, dsn: str, *, statement_seconds: float = STATEMENT_SECONDS) -> None:
        self._dsn = dsn
        self._statement_seconds = statement_seconds

    async def put(self, dataset_id: str, layer: str, generation: int, content: ExternalContent | None) -> bool:
        """Write a layer, or without content remove it. False if a later state was written already."""
        async with self._connected() as connection:
            async with connection.transaction():
                is_written = await _put(connection, dataset_id, layer, generation, content)
                faults.reach("external_database.before-commit")
            faults.reach("external_database.after-commit")
            return is_written

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Connection]:
        try:
            require_address(self._dsn, "EXTERNAL_DATABASE_URL")
            connection = await connect(
                self._dsn, role="external", statement_timeout_seconds=self._statement_seconds, lock_timeout_seconds=3
            )
            try:
                yield connection
            finally:
                await connection.close()
        except psycopg.Error as error:
            raise _failed(error.diag.message_primary or type(error).__name__) from None
        except OSError as error:
            raise _failed(type(error).__name__) from None
        except (Unavailable, InvalidRequest) as error:
            raise _failed(error.message if error.code != "database.unavailable" else "no connection") from None


async def _put(
    connection: Connection, dataset_id: str, layer: str, generation: int, content: ExternalContent | None
) -> bool:
    has_catalog = await _ensure_tables(connection)
    key = {"dataset_id": dataset_id, "layer": layer}
    advanced = await dicts(connection, "external_advance", {**key, "generation": generation})
    if not advanced:
        return False
    if has_catalog and advanced[0]["is_new"]:
        await _require_free(connection, dataset_id)
    if content is not None:
        await connection.execute(query("external_put_layer"), _values(content.layer))
        if has_catalog:
            await _put_documents(connection, dataset_id, content)
        return True
    await connection.execute(query("external_remove_layer"), key)
    if has_catalog:
        await connection.execute(query("external_remove_collection"), {"dataset_id": dataset_id})
    return True


async def _ensure_tables(connection: Connection) -> bool:
    """Create the tables if they are missing. Returns whether the database has pgSTAC."""
    (row,) = await dicts(connection, "external_is_ready", {})
    if row["is_installation"]:
        raise Conflict(
            "EXTERNAL_DATABASE_URL is the database of a dagmaster installation",
            code="external.is-installation",
            hint="set EXTERNAL_DATABASE_URL to another database",
        )
    if not row["has_tables"]:
        await connection.execute(schema().encode())
    return bool(row["has_catalog"])


async def _require_free(connection: Connection, dataset_id: str) -> None:
    """A collection that exists before the first write was not written by dagmaster."""
    (row,) = await dicts(connection, "external_has_collection", {"dataset_id": dataset_id})
    if row["exists"]:
        raise Conflict(
            f"the external database has a collection '{dataset_id}' that was not written by dagmaster",
            code="external.collection-taken",
            hint="remove or rename that collection there",
        )


def schema() -> str:
    """The statements that create the tables of the external database."""
    return resources.files("dagmaster.database").joinpath("sql", "external", "schema.sql").read_text(encoding="utf-8")


async def _put_documents(connection: Connection, dataset_id: str, content: ExternalContent) -> None:
    await connection.execute(query("external_put_collection"), {"content": _dumped(content.collection)})
    ids = [str(item["id"]) for item in content.items]
    await connection.execute(query("external_remove_items"), {"dataset_id": dataset_id, "ids": ids})
    for start in range(0, len(content.items), _BATCH_ITEMS):
        batch = content.items[start : start + _BATCH_ITEMS]
        await connection.execute(query("external_put_items"), {"items": _dumped(list(batch))})


def _values(layer: LayerInfo) -> dict[str, Any]:
    values = layer.model_dump()
    return {**values, "style": _dumped(values["style"]), "bbox": _dumped(values["bbox"])}


def _dumped(value: Any) -> str:
    return orjson.dumps(value).decode()


def _failed(reason: str) -> Unavailable:
    return Unavailable(
        f"the external database could not be changed: {redact(reason)}",
        code="external.unavailable",
        hint="check EXTERNAL_DATABASE_URL and that server; the change is retried until it succeeds",
    )
