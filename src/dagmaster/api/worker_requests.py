"""Translates requests of workers into arguments of the ledger, and its results into responses. No I/O.

What a worker sends is checked again, because the client need not be dagmaster's own worker. Secrets are removed from
texts, and long texts are shortened, as the worker itself does. Values that PostgreSQL cannot store are refused here,
because one of them would fail the whole statement.
"""

import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any
from uuid import UUID

import orjson

from dagmaster.access.caller import Caller
from dagmaster.access.worker_ids import is_worker_of
from dagmaster.client.models.worker import (
    AttemptReport,
    CheckpointRequest,
    HeldAttempt,
    SentLogLine,
    TaskDemand,
    WorkerHeartbeat,
)
from dagmaster.database.ledger.protocol import Demand, Exchange, Report, Running, WorkerInfo
from dagmaster.errors import InvalidRequest, NotAllowed, NotFound
from dagmaster.jobs.payload import INLINE_BYTES, LOADABLE_BYTES
from dagmaster.jobs.states import TaskStatus
from dagmaster.worker import reported
from dagmaster.worker.outcome import MAX_MESSAGE, MAX_NAME, MAX_TRACEBACK
from dagmaster.workflows.storable import encode

MAX_FACTS_BYTES = 65_536  # the size of an error, or of metrics, as JSON
MAX_LINE = 500
_RATES = frozenset({"started_per_minute", "finished_per_minute"})
_TASK_ID = re.compile(
    r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})_(.{1,200})_([1-9][0-9]{0,8})", re.DOTALL | re.IGNORECASE
)


def require_own(worker_id: UUID, caller: Caller) -> None:
    """Refuse a caller that acts as a worker of another caller."""
    if not is_worker_of(worker_id, caller.name):
        raise NotAllowed(
            f"worker {worker_id} does not belong to this key",
            code="worker.not-yours",
            hint="a worker gets its id when it starts, and uses it with the same key",
        )


def require_queues(queues: Collection[str], caller: Caller) -> None:
    """Refuse a worker that requests tasks of queues that its key does not allow."""
    foreign = [] if caller.queues is None else sorted(set(queues) - caller.queues)
    if foreign:
        allowed = ", ".join(sorted(caller.queues or ()))
        raise NotAllowed(
            "the worker requests queues that its key does not allow",
            code="worker.queue-not-allowed",
            hint=f"serve only the queues of the key: {allowed}",
            queues=sorted(caller.queues or ()),
        )


def attempt_of(task_id: str) -> tuple[UUID, str, int]:
    """The job, the node and the number of a task's attempt."""
    match = _TASK_ID.fullmatch(task_id)
    if match is None:
        raise InvalidRequest("this is not the id of a task", code="task.bad-id", task_id=task_id)
    return UUID(match[1]), _text(match[2], "the node"), int(match[3])


def not_held(worker_id: UUID) -> NotFound:
    """The error is the same for a task that does not exist: a worker learns nothing about tasks of other workers."""
    return NotFound(
        "this worker does not hold this task",
        code="worker.not-held",
        hint="the lease has expired, another worker holds the task, or the task has ended",
        worker_id=str(worker_id),
    )


def demand_of(sent: TaskDemand) -> Demand:
    return Demand(
        tuple(_texts(sent.queues, "a queue")),
        tuple(_texts(sent.light_handlers, "a handler")),
        sent.light,
        tuple(_texts(sent.heavy_handlers, "a handler")),
        sent.heavy,
        dict(zip(_texts(sent.free_slots, "a queue"), sent.free_slots.values(), strict=True)),
    )


def reports_of(sent: Iterable[AttemptReport]) -> list[Report]:
    return [_report(each) for each in sent]


def _report(sent: AttemptReport) -> Report:
    status = TaskStatus(sent.status)
    if (status is TaskStatus.FAILED) != (sent.error is not None):
        raise InvalidRequest(
            "`error` is required for a failed attempt, and not allowed for others", code="task.no-error"
        )
    if sent.output_ref is not None and (sent.output is not None or status is not TaskStatus.SUCCEEDED):
        raise InvalidRequest(
            "`output_ref` is allowed only for an attempt that succeeded, and not with `output`", code="task.two-outputs"
        )
    _require_finite(sent.output, "the output")
    if len(encode(sent.output, "the output")) > INLINE_BYTES:
        raise InvalidRequest(
            f"an output of more than {INLINE_BYTES} bytes must be sent before the report",
            code="output.too-large",
            hint="send it to …/output, and name it with `output_ref`",
            limit_bytes=INLINE_BYTES,
        )
    return Report(
        sent.job_id,
        _text(sent.node_id, "the node"),
        sent.attempt,
        status,
        sent.output,
        _error(sent.error.model_dump(mode="json", exclude_unset=True)) if sent.error else None,
        _metrics(sent.metrics, sent.log),
        sent.output_ref.model_dump() if sent.output_ref else None,
    )


def _error(sent: Mapping[str, Any]) -> dict[str, Any]:
    """The error as `worker.outcome.describe` returns it: texts are limited and have no secrets."""
    limits = {"message": MAX_MESSAGE, "hint": MAX_MESSAGE, "traceback": MAX_TRACEBACK}
    facts = {
        _text(name, "a field of the error"): reported.text(
            value, limits.get(name, MAX_NAME), keep_end=name == "traceback"
        )
        if isinstance(value, str)
        else value
        for name, value in sent.items()
    }
    return _limited(facts, "the error")


def _metrics(sent: Mapping[str, Any] | None, lines: Iterable[SentLogLine] | None) -> dict[str, Any] | None:
    metrics = {name: value for name, value in (sent or {}).items() if name != "log"}
    _limited(metrics, "the metrics")
    if lines is not None:
        metrics["log"] = lines_of(lines)
    return metrics if metrics or sent is not None else None


def lines_of(lines: Iterable[SentLogLine]) -> list[dict[str, Any]]:
    return [
        {
            "number": line.number,
            "at": line.at.isoformat(),
            "level": line.level,
            "text": reported.text(line.text, MAX_LINE),
        }
        for line in lines
    ]


def running_of(sent: HeldAttempt) -> Running:
    progress = None
    if sent.progress is not None:
        counts = {name: value for name, value in sent.progress.items() if name not in ("fraction", "message")}
        progress = reported.progress(sent.progress.get("fraction"), sent.progress.get("message"), counts)
    lines = None if sent.log is None else lines_of(sent.log)
    return Running(sent.job_id, _text(sent.node_id, "the node"), sent.attempt, progress, lines, sent.run_seconds)


def info_of(worker_id: UUID, sent: WorkerHeartbeat) -> WorkerInfo:
    """Rates of queues that the worker does not serve are ignored."""
    stats = {
        _text(name, "a name"): {queue: rate for queue, rate in value.items() if queue in sent.queues}
        if isinstance(value, dict)
        else _text(value, "a value")
        if isinstance(value, str)
        else value
        for name, value in sent.stats.items()
        if isinstance(value, dict) == (name in _RATES)
    }
    return WorkerInfo(
        worker_id,
        reported.text(sent.host, MAX_NAME),
        sent.pid,
        _text(sent.software_version, "the version"),
        reported.text(sent.worker_type, MAX_NAME),
        tuple(_texts(sent.queues, "a queue")),
        tuple(_texts(sent.handlers, "a handler")),
        stats,
    )


def checked_checkpoint(sent: CheckpointRequest) -> str:
    """The name of a checkpoint, if it can be stored."""
    for value, noun in ((sent.data, "the data"), (sent.artifacts, "the artifacts")):
        _require_finite(value, noun)
        encode(value, noun)
    return _text(sent.name, "the name")


def window_of(results_of: Any, offset: int, limit: int) -> tuple[str, range]:
    """The fan_out that a task refers to, and the range of children whose results this request returns."""
    if not isinstance(results_of, dict) or not isinstance(results_of.get("node_id"), str):
        raise InvalidRequest("the params of the task have no `results_of`", code="params.no-results-of")
    first, count = results_of.get("offset") or 0, results_of.get("limit")
    end = offset + limit if count is None else min(offset + limit, first + count)
    return results_of["node_id"], range(max(offset, first), end)


def checked_payload(content: bytes) -> None:
    """Refuse an output that readers could not load. It is read by templates, handlers and people, as JSON."""
    if len(content) > LOADABLE_BYTES:
        raise too_large_payload()
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the output is not JSON: {error}", code="output.not-json") from None
    encode(value, "the output")


def too_large_payload() -> InvalidRequest:
    return InvalidRequest(
        f"an output may have at most {LOADABLE_BYTES} bytes",
        code="output.too-large",
        hint="put large data into storage and return a reference",
        limit_bytes=LOADABLE_BYTES,
    )


def encoded_response(exchange: Exchange) -> bytes:
    """An ExchangeResponse as JSON, written without the model, because these responses are frequent and large."""
    return orjson.dumps(
        {
            "claimed": [task._asdict() for task in exchange.claimed],
            "accepted": exchange.accepted,
            "late": exchange.late,
        }
    )


def _limited(facts: dict[str, Any], noun: str) -> dict[str, Any]:
    _require_finite(facts, noun)
    if len(encode(facts, noun)) > MAX_FACTS_BYTES:
        raise InvalidRequest(f"{noun} may have at most {MAX_FACTS_BYTES} bytes", code="task.too-large")
    return facts


def _require_finite(value: Any, noun: str) -> None:
    """Refuse NaN and infinity: JSON does not have them, but the parser of the web framework accepts them."""
    stack = [value]
    while stack:
        part = stack.pop()
        if isinstance(part, float) and not math.isfinite(part):
            raise InvalidRequest(f"a number in {noun} is not finite", code="value.not-json")
        if isinstance(part, dict):
            stack.extend(part.values())
        elif isinstance(part, list):
            stack.extend(part)


def _texts(values: Iterable[str], noun: str) -> list[str]:
    return [_text(value, noun) for value in values]


def _text(value: str, noun: str) -> str:
    """A text that PostgreSQL can store."""
    if "\x00" in value or not value.isprintable():
        raise InvalidRequest(f"{noun} has characters that are not allowed in a name", code="value.not-text")
    return value
