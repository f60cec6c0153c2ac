"""Fan-outs and fan-ins: the number of children, and how their results become one output."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from math import ceil, floor, isfinite
from typing import Any

import orjson

from dagmaster.errors import InvalidRequest
from dagmaster.jobs.model import child_id
from dagmaster.jobs.payload import INLINE_BYTES
from dagmaster.jobs.states import NodeStatus
from dagmaster.workflows.model import Aggregation, FanOutNode

# The range of integers that JSON readers support. The precision exceeds that of any sum of 64-bit floats.
_MIN_INTEGER, _MAX_INTEGER = -(2**63), 2**64 - 1
_EXACT = Context(prec=1_000)


class SumOutOfRange(InvalidRequest):
    """A sum that JSON readers cannot represent: of integers beyond 64 bits, or beyond the largest 64-bit float."""

    default_code = "fan-in.sum-out-of-range"

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message, hint="let the fan_in's handler add the numbers, or return smaller ones", **facts)


@dataclass(frozen=True, slots=True)
class ChildResult:
    """A child of a fan_out that ended, for its fan_in and for handlers. A large output is kept by reference."""

    index: int
    node_id: str
    status: str
    output: Any = None
    error_message: str | None = None
    output_ref: dict[str, Any] | None = None

    @property
    def is_completed(self) -> bool:
        return self.status == NodeStatus.COMPLETED


def batch_count(items: int, batch_size: int | None) -> int:
    return ceil(items / batch_size) if batch_size else items


def tolerated(fan_out: FanOutNode, total: int) -> int:
    """How many failed children this fan_out allows. An integer counts children, a fraction is a share of them."""
    if isinstance(fan_out.tolerate, float):
        return floor(fan_out.tolerate * total)
    return fan_out.tolerate


def fan_out_output(node_id: str, total: int) -> dict[str, Any]:
    """The output of an expanded fan_out. Ids are omitted if their list would be too large for the row."""
    if total * (len(node_id) + 10) > INLINE_BYTES:
        return {"fan_out_count": total}
    return {"fan_out_count": total, "child_node_ids": [child_id(node_id, index) for index in range(total)]}


def aggregate(mode: Aggregation, children: Sequence[ChildResult]) -> dict[str, Any]:
    """The output of a fan_in from its children, in index order. Tolerated failures are listed under `failed`."""
    outputs = [child.output for child in children if child.is_completed]
    failed = [
        {"index": child.index, "node_id": child.node_id, "error_message": child.error_message}
        for child in children
        if not child.is_completed
    ]
    result = _combined(mode, outputs)
    return {**result, "failed": failed} if failed else result


def _combined(mode: Aggregation, outputs: list[Any]) -> dict[str, Any]:
    count = len(outputs)
    match mode:
        case Aggregation.COLLECT:
            return {"results": outputs, "count": count}
        case Aggregation.CONCAT:
            flat = [item for output in outputs for item in (output if isinstance(output, list) else [output])]
            return {"results": flat, "count": len(flat)}
        case Aggregation.SUM:
            return {"total": total_of(outputs), "count": count}
        case Aggregation.FIRST:
            return {"result": outputs[0] if outputs else None, "count": count}
        case Aggregation.LAST:
            return {"result": outputs[-1] if outputs else None, "count": count}


def total_of(outputs: Iterable[Any]) -> int | float:
    """The exact sum of all numbers in these values. A sum of integers is an integer; any other sum is a float."""
    total, is_whole = Decimal(0), True
    for number in (number for output in outputs for number in numbers_in(output)):
        exact = Decimal(orjson.dumps(number).decode())  # as the database reads it
        is_whole = is_whole and exact.as_tuple().exponent >= 0 and _MIN_INTEGER <= exact <= _MAX_INTEGER  # type: ignore[operator]
        total = _EXACT.add(total, exact)
    if is_whole:
        if not _MIN_INTEGER <= total <= _MAX_INTEGER:
            raise SumOutOfRange("the sum of the integers does not fit into 64 bits")
        return int(total)
    if not isfinite(float(total)):
        raise SumOutOfRange("the sum is larger than the largest 64-bit float")
    return float(total)


def numbers_in(value: Any) -> list[int | float]:
    """Every number in a JSON value, at any depth. True and false are not numbers."""
    if isinstance(value, bool):
        return []
    if isinstance(value, int | float):
        return [value]
    if isinstance(value, dict):
        return [number for part in value.values() for number in numbers_in(part)]
    if isinstance(value, list):
        return [number for part in value for number in numbers_in(part)]
    return []


def size_bytes(value: Any) -> int:
    return len(orjson.dumps(value))
