"""Payloads, results of children and checkpoints: what handlers store and load.

A payload is stored in parts in one transaction, and read part by part and checked. No call holds more than one part in
addition to the payload itself, and a reader that passes parts on holds no more than two.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import orjson
from psycopg.rows import class_row, dict_row
from psycopg.types.json import Jsonb

from dagmaster.database.connect import Connection
from dagmaster.database.ledger.connection import LedgerConnection
from dagmaster.database.ledger.protocol import PAGE_BYTES, Running
from dagmaster.database.queries import query
from dagmaster.jobs import payload
from dagmaster.jobs.fan import ChildResult
from dagmaster.jobs.model import Checkpoint
from dagmaster.jobs.payload import Encoded, Reference

PART_BYTES = 1024 * 1024

ReadPart = Callable[[dict[str, Any]], Awaitable[bytes | None]]


class PostgresPayloads(LedgerConnection):
    """The PayloadLedger on PostgreSQL."""

    async def store_payload(self, job_id: UUID, encoded: Encoded) -> Reference:
        reference = await asyncio.to_thread(payload.reference_to, encoded)
        async with self._transaction("store_payload") as connection:
            await store(connection, job_id, reference, encoded)
        return reference

    async def load_payload(self, job_id: UUID, reference: Reference) -> Encoded:
        async with self._connected() as connection:
            return await load(connection, job_id, reference)

    async def read_results(self, job_id: UUID, node_id: str, offset: int, limit: int) -> list[ChildResult]:
        async with self._connected() as connection:
            return await read_results(connection, job_id, node_id, range(offset, offset + limit))

    async def read_encoded_results(self, job_id: UUID, node_id: str, offset: int, limit: int) -> list[ChildResult]:
        async with self._connected() as connection:
            return await read_results(connection, job_id, node_id, range(offset, offset + limit), _as_fragment)

    async def save_checkpoint(
        self, running: Running, name: str, data: Any, artifacts: Sequence[Mapping[str, Any]] = ()
    ) -> bool:
        values = {
            "job_id": running.job_id,
            "node_id": running.node_id,
            "attempt": running.attempt,
            "name": name,
            "data": Jsonb(data),
            "artifacts": Jsonb(artifacts) if artifacts else None,
        }
        return bool(await self._fetch("save_checkpoint", values))

    async def load_checkpoints(self, job_id: UUID, node_id: str) -> list[Checkpoint]:
        async with self._connected() as connection:
            cursor = connection.cursor(row_factory=class_row(Checkpoint))
            await cursor.execute(query("load_checkpoints"), {"job_id": job_id, "node_id": node_id})
            return await cursor.fetchall()


def _as_fragment(encoded: bytearray) -> orjson.Fragment:
    return orjson.Fragment(bytes(encoded))


async def read_results(
    connection: Connection,
    job_id: UUID,
    node_id: str,
    page: range,
    decode: Callable[[bytearray], Any] = orjson.loads,
) -> list[ChildResult]:
    values = {"job_id": job_id, "node_id": node_id, "offset": page.start, "limit": len(page), "max_bytes": PAGE_BYTES}
    results: list[ChildResult] = []
    cursor = connection.cursor(row_factory=class_row(ChildResult))
    for row in await (await cursor.execute(query("read_results"), values, prepare=True)).fetchall():
        if row.output_ref is None:
            results.append(row)
        else:
            output = decode(await load(connection, job_id, row.output_ref))
            results.append(replace(row, output=output, output_ref=None))
    return results


async def store(
    connection: Connection, job_id: UUID, reference: Reference, encoded: Encoded, *, is_kept: bool = False
) -> None:
    """Store a payload in the caller's transaction, and repair it if it is damaged. `is_kept`: the same transaction
    writes the reference to it."""
    key = {"job_id": job_id, "sha256": reference["sha256"]}
    head = {**key, "size_bytes": reference["bytes"], "is_kept": is_kept}
    await connection.execute(query("store_payload"), head, prepare=True)
    data = memoryview(encoded)
    for part, first in enumerate(range(0, len(data), PART_BYTES)):
        values = {**key, "part": part, "data": data[first : first + PART_BYTES]}
        await connection.execute(query("store_payload_part"), values, prepare=True)


async def load(connection: Connection, job_id: UUID, reference: Reference) -> bytearray:
    async def read(values: dict[str, Any]) -> bytes | None:
        cursor = connection.cursor(binary=True, row_factory=dict_row)
        row = await (await cursor.execute(query("load_payload_part"), values, prepare=True)).fetchone()
        return row["data"] if row else None

    data = bytearray()
    async for part in parts(read, job_id, reference):
        data += part
    return data


async def parts(read: ReadPart, job_id: UUID, reference: Reference) -> AsyncIterator[bytes]:
    """The parts of a payload. The last one is yielded only after all of them were checked: a reader that got fewer
    bytes than the reference names must discard them."""
    digest, size, before = hashlib.sha256(), 0, b""
    for part in range(max(1, -(-reference["bytes"] // PART_BYTES))):
        data = await read({"job_id": job_id, "sha256": reference["sha256"], "part": part})
        if data is None:
            if part == 0:
                raise payload.missing(job_id, reference["sha256"])
            raise payload.damaged(job_id, reference, size)
        digest.update(data)
        size += len(data)
        if before:
            yield before
        before = data
    payload.check(job_id, reference, {"sha256": digest.hexdigest(), "bytes": size})
    yield before
