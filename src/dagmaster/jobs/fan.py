"""Fan-outs and fan-ins: the number of children, and how their results become one output."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor
from typing import Any

import orjson

from dagmaster.jobs.model import child_id
from dagmaster.jobs.payload import INLINE_BYTES
from dagmaster.jobs.states import NodeStatus
from dagmaster.workflows.model import Aggregation, FanOutNode


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
            return {"total": sum(number for output in outputs for number in _numbers(output)), "count": count}
        case Aggregation.FIRST:
            return {"result": outputs[0] if outputs else None, "count": count}
        case Aggregation.LAST:
            return {"result": outputs[-1] if outputs else None, "count": count}


def _numbers(value: Any) -> list[int | float]:
    """Every number in a JSON value, however deep. True and false are not numbers."""
    if isinstance(value, bool):
        return []
    if isinstance(value, int | float):
        return [value]
    if isinstance(value, dict):
        return [number for part in value.values() for number in _numbers(part)]
    if isinstance(value, list):
        return [number for part in value for number in _numbers(part)]
    return []


def size_bytes(value: Any) -> int:
    return len(orjson.dumps(value))
