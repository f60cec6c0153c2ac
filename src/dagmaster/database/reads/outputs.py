"""Download outputs of any size, a part at a time.

An output is in its node's row, in a payload, or gathered from the rows of a fan_out's children, which may refer to
payloads. At most one part or one page is in memory, and a slow reader occupies no connection.
"""

import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import orjson

from dagmaster.database.ledger import payloads
from dagmaster.database.reads.nodes import NodeReads
from dagmaster.errors import NotFound
from dagmaster.jobs import fan, payload
from dagmaster.jobs.fan import ChildResult
from dagmaster.jobs.model import NodeState
from dagmaster.jobs.payload import Reference
from dagmaster.jobs.states import NodeStatus
from dagmaster.workflows.model import Aggregation


@dataclass(frozen=True, slots=True)
class Download:
    """Pieces of JSON. `tag` is the hash of the content; if the output is gathered (`is_weak`), a hash of its source."""

    pieces: AsyncIterator[bytes]
    tag: str
    size_bytes: int | None = None
    is_weak: bool = False


def output_of(reads: NodeReads, node: NodeState) -> Download:
    if node.status is not NodeStatus.COMPLETED:
        raise NotFound(
            f"node '{node.node_id}' is {node.status} and has no output", code="node.no-output", node_id=node.node_id
        )
    if node.output_ref is None:
        return _inline(orjson.dumps(node.output))
    _require_reference(node.output_ref, node.node_id)
    if payload.is_payload(node.output_ref):
        return stored(reads, node.job_id, node.output_ref)
    # Children change only if their fan_in runs again.
    source = orjson.dumps([node.output_ref, node.run, node.version])
    return Download(_gathered(reads, node.job_id, node.output_ref), _hash(source), is_weak=True)


def _require_reference(reference: Any, node_id: str, *, is_payload: bool = False) -> None:
    """Raise an error if a reference in a row is not of a known kind."""
    match reference:
        case {"sha256": str(), "bytes": int()}:
            return
        case {"results_of": str(), "aggregation": mode} if mode in set(Aggregation) and not is_payload:
            return
    raise NotFound(
        f"the output of '{node_id}' is stored under a reference of an unknown kind",
        code="output.unknown-reference",
        hint="run `dagmaster verify-history`; retry the node",
        node_id=node_id,
    )


def stored(reads: NodeReads, job_id: UUID, reference: Reference) -> Download:
    pieces = payloads.parts(reads.payload_part, job_id, reference)
    return Download(pieces, reference["sha256"], reference["bytes"])


def _inline(encoded: bytes) -> Download:
    async def pieces() -> AsyncIterator[bytes]:
        yield encoded

    return Download(pieces(), _hash(encoded), len(encoded))


def _hash(encoded: bytes) -> str:
    return hashlib.sha256(encoded).hexdigest()


async def _gathered(reads: NodeReads, job_id: UUID, reference: Reference) -> AsyncIterator[bytes]:
    """The same output as `fan.aggregate` of all children."""
    mode = Aggregation(reference["aggregation"])
    children = _Children(reads, job_id, reference["results_of"])
    if mode in (Aggregation.COLLECT, Aggregation.CONCAT):
        yield b'{"results":['
        async for piece in _collected(children) if mode is Aggregation.COLLECT else _concatenated(children):
            yield piece
        yield b'],"count":%d' % children.count
    else:
        yield b"{%s" % orjson.dumps(await _combined(mode, children))[1:-1]
    if children.failed:
        yield b',"failed":%s' % orjson.dumps(children.failed)
    yield b"}"


class _Children:
    """The completed children of a fan_out, in order; `failed` lists the others as their fan_in does."""

    def __init__(self, reads: NodeReads, job_id: UUID, fan_out: str) -> None:
        self.count = 0
        self.failed: list[dict[str, Any]] = []
        self._reads, self._job_id, self._fan_out = reads, job_id, fan_out

    async def rows(self) -> AsyncIterator[ChildResult]:
        async for row in self._reads.children(self._job_id, self._fan_out):
            if row.is_completed:
                self.count += 1
                yield row
            else:
                self.failed.append({"index": row.index, "node_id": row.node_id, "error_message": row.error_message})

    def pieces(self, row: ChildResult) -> AsyncIterator[bytes]:
        if row.output_ref is None:
            return _inline(orjson.dumps(row.output)).pieces
        _require_reference(row.output_ref, row.node_id, is_payload=True)
        return stored(self._reads, self._job_id, row.output_ref).pieces

    async def value(self, row: ChildResult) -> Any:
        if row.output_ref is None:
            return row.output
        return orjson.loads(b"".join([piece async for piece in self.pieces(row)]))


async def _collected(children: _Children) -> AsyncIterator[bytes]:
    async for row in children.rows():
        if children.count > 1:
            yield b","
        async for piece in children.pieces(row):
            yield piece


async def _concatenated(children: _Children) -> AsyncIterator[bytes]:
    count = 0
    async for row in children.rows():
        value = await children.value(row)
        items = value if isinstance(value, list) else [value]
        if items:
            yield (b"," if count else b"") + orjson.dumps(items)[1:-1]
        count += len(items)
    children.count = count


async def _combined(mode: Aggregation, children: _Children) -> dict[str, Any]:
    """One value of all: the first, the last, or the sum."""
    result: dict[str, Any] = fan.aggregate(mode, [])
    numbers: list[list[int | float]] = []
    async for row in children.rows():
        if mode is Aggregation.FIRST and children.count > 1:
            continue
        value = await children.value(row)
        if mode is Aggregation.SUM:
            numbers.append(fan.numbers_in(value))
        else:
            result = fan.aggregate(mode, [replace(row, output=value)])
    if mode is Aggregation.SUM:
        result = {"total": fan.total_of(numbers)}
    return {**result, "count": children.count}
