"""Payloads: JSON that is too large for a row, kept beside the rows of its job and named by the hash of its content.

    value ──▶ encoded ──▶ reference {"sha256": …, "bytes": …}     what rows and messages hold
                     └──▶ payload, in parts                        what is read, and checked against the reference

Which database call stores and loads them is the ledger's matter.
"""

import hashlib
from typing import Any
from uuid import UUID

from dagmaster.errors import NotFound, UnfitData

INLINE_BYTES = 262_144  # what a row holds of one output, and what a queue's message holds in all
LOADABLE_BYTES = 16 * 1024 * 1024  # what a template may load, and params may have
TRANSACTION_BYTES = 32 * 1024 * 1024  # of params and results that an orchestrator writes at once; the rest waits

Reference = dict[str, Any]
Encoded = bytes | bytearray


def reference_to(encoded: Encoded) -> Reference:
    return {"sha256": hashlib.sha256(encoded).hexdigest(), "bytes": len(encoded)}


def by_reference(reference: Reference) -> dict[str, Any]:
    """How an output that is too large to hand around shows itself."""
    return {"output_ref": reference}


def is_payload(reference: Reference) -> bool:
    """Whether this refers to a payload, and not to children's rows."""
    return "sha256" in reference


def check(job_id: UUID, reference: Reference, found: Reference) -> None:
    """What was read must be what was stored."""
    if found["bytes"] != reference["bytes"] or found["sha256"] != reference["sha256"]:
        raise damaged(job_id, reference, found["bytes"])


def missing(job_id: UUID, sha256: str) -> NotFound:
    return NotFound(
        f"job {job_id} has no payload {sha256}",
        code="payload.missing",
        hint="run `dagmaster verify-history`; retry the node that made it",
        job_id=str(job_id),
        sha256=sha256,
    )


def damaged(job_id: UUID, reference: Reference, found_bytes: int) -> UnfitData:
    return UnfitData(
        f"payload {reference['sha256']} of job {job_id} is damaged: {found_bytes:,} of {reference['bytes']:,} bytes were "
        "read, and they are not those that were stored",
        code="payload.damaged",
        hint="run `dagmaster verify-history --payloads`; retry the node that made it",
        job_id=str(job_id),
        sha256=reference["sha256"],
        size_bytes=found_bytes,
    )
