"""Payloads: JSON that is too large for a row, stored in a table of its own and named by the hash of its content.

    value ──▶ encoded ──▶ reference {"sha256": …, "bytes": …}     stored in rows and messages
                     └──▶ payload, in parts                       checked against the reference when it is read

The ledger stores and loads them.
"""

import hashlib
from typing import Any
from uuid import UUID

from dagmaster.errors import NotFound, UnfitData

INLINE_BYTES = 262_144  # the limit of one output in a row, and of a whole message in a queue
LOADABLE_BYTES = 16 * 1024 * 1024  # the limit of an output that a template loads, and of params
TRANSACTION_BYTES = 32 * 1024 * 1024  # the limit of params and results in one transaction; further ones wait

Reference = dict[str, Any]
Encoded = bytes | bytearray


def reference_to(encoded: Encoded) -> Reference:
    return {"sha256": hashlib.sha256(encoded).hexdigest(), "bytes": len(encoded)}


def by_reference(reference: Reference) -> dict[str, Any]:
    """How an output that is too large for a row is shown."""
    return {"output_ref": reference}


def is_payload(reference: Reference) -> bool:
    """Whether this refers to a payload, not to the rows of children."""
    return "sha256" in reference


def check(job_id: UUID, reference: Reference, actual: Reference) -> None:
    """Raise an error if the bytes that were read differ from those that were stored."""
    if actual["bytes"] != reference["bytes"] or actual["sha256"] != reference["sha256"]:
        raise damaged(job_id, reference, actual["bytes"])


def missing(job_id: UUID, sha256: str) -> NotFound:
    return NotFound(
        f"job {job_id} has no payload {sha256}",
        code="payload.missing",
        hint="run `dagmaster verify-history`; retry the node that wrote it",
        job_id=str(job_id),
        sha256=sha256,
    )


def damaged(job_id: UUID, reference: Reference, read_bytes: int) -> UnfitData:
    return UnfitData(
        f"payload {reference['sha256']} of job {job_id} is damaged: "
        f"{read_bytes:,} of {reference['bytes']:,} bytes were "
        "read, and their hash does not match",
        code="payload.damaged",
        hint="run `dagmaster verify-history --payloads`; retry the node that wrote it",
        job_id=str(job_id),
        sha256=reference["sha256"],
        size_bytes=read_bytes,
    )
