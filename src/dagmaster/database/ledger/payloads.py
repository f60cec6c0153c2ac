"""Payloads in the database: stored in parts in one transaction, read part by part and checked.

No call holds more than one part beside the payload itself, and a reader that passes parts on holds no more than two.
"""

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from uuid import UUID

from dagmaster.database.connect import Connection
from dagmaster.database.queries import query
from dagmaster.jobs import payload
from dagmaster.jobs.payload import Encoded, Reference

PART_BYTES = 1024 * 1024

ReadPart = Callable[[dict[str, Any]], Awaitable[bytes | None]]


async def store(
    connection: Connection, job_id: UUID, reference: Reference, encoded: Encoded, *, is_kept: bool = False
) -> None:
    """Inside a transaction. `is_kept` where that writes what refers to it too. What is there already is mended by it."""
    key = {"job_id": job_id, "sha256": reference["sha256"]}
    head = {**key, "size_bytes": reference["bytes"], "is_kept": is_kept}
    await connection.execute(query("store_payload"), head, prepare=True)
    whole = memoryview(encoded)
    for part, first in enumerate(range(0, len(whole), PART_BYTES)):
        values = {**key, "part": part, "data": whole[first : first + PART_BYTES]}
        await connection.execute(query("store_payload_part"), values, prepare=True)


async def load(connection: Connection, job_id: UUID, reference: Reference) -> bytearray:
    async def read(values: dict[str, Any]) -> bytes | None:
        row = await (await connection.execute(query("load_payload_part"), values, prepare=True, binary=True)).fetchone()
        return row[0] if row else None

    whole = bytearray()
    async for part in parts(read, job_id, reference):
        whole += part
    return whole


async def parts(read: ReadPart, job_id: UUID, reference: Reference) -> AsyncIterator[bytes]:
    """The parts of a payload. The last one is given only when all of them are what was stored: who gets fewer bytes than the
    reference says has got nothing."""
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
