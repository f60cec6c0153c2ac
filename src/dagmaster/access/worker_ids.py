"""Ids of workers that reach the platform over HTTP.

    random bits (8 bytes) │ hash of these bits and of the caller's name (8 bytes)

The id of a worker is in rows, logs and responses, so it is no secret; leases and reports are fenced by it. It belongs
to the caller that it was issued to, and every process can check that without a table: a caller with another name cannot
act as this worker, even if it knows the id.
"""

import hashlib
import hmac
import secrets
from uuid import UUID

_RANDOM_BYTES = 8


def new_worker_id(caller: str) -> UUID:
    return _id_of(secrets.token_bytes(_RANDOM_BYTES), caller)


def is_worker_of(worker_id: UUID, caller: str) -> bool:
    return hmac.compare_digest(_id_of(worker_id.bytes[:_RANDOM_BYTES], caller).bytes, worker_id.bytes)


def _id_of(random_bits: bytes, caller: str) -> UUID:
    """A UUID of version 8, whose content each application defines."""
    head = bytearray(random_bits)
    head[6] = head[6] & 0x0F | 0x80
    tail = bytearray(hashlib.sha256(b"dagmaster worker " + head + caller.encode()).digest()[:_RANDOM_BYTES])
    tail[0] = tail[0] & 0x3F | 0x80
    return UUID(bytes=bytes(head + tail))
