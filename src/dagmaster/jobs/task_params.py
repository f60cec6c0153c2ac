"""Params and results as JSON: what stays in a row, what becomes a payload, and how much a transaction writes."""

from dataclasses import dataclass, replace
from typing import Any

import orjson

from dagmaster.errors import InvalidRequest
from dagmaster.jobs.changes import Changes, NewTask
from dagmaster.jobs.model import TaskMessage, task_id
from dagmaster.jobs.payload import (
    INLINE_BYTES,
    LOADABLE_BYTES,
    TRANSACTION_BYTES,
    Reference,
    by_reference,
    reference_to,
)
from dagmaster.workflows.expressions import fits
from dagmaster.workflows.storable import encode

_SURELY_INLINE_BYTES = INLINE_BYTES // 2  # fits into a message whatever the other fields are
_MANY = 10**9  # more attempts, retries or losses than can occur
_TRACEPARENT = "0" * 55  # as long as the traceparent of every traced task


@dataclass(slots=True)
class ByteBudget:
    """How many bytes of params and results a transaction may still write, and how long it may still render templates,
    for all its jobs together. Once it is spent, further tasks wait for the next transaction."""

    bytes_left: int = TRANSACTION_BYTES
    render_seconds_left: float = 0.25

    @property
    def is_spent(self) -> bool:
        return self.bytes_left <= 0 or self.render_seconds_left <= 0


class _EncodedText:
    """JSON text. Its hash is computed once, and only if it is needed."""

    __slots__ = ("_reference", "text")

    def __init__(self, text: bytes) -> None:
        self.text = text
        self._reference: Reference | None = None

    @property
    def reference(self) -> Reference:
        if self._reference is None:
            self._reference = reference_to(self.text)
        return self._reference


class ParamsWriter:
    """Encodes the params of tasks and the outputs of a job into the changes of one transaction."""

    def __init__(self, changes: Changes, budget: ByteBudget, max_params_bytes: int) -> None:
        self.changes = changes
        self.budget = budget
        self.max_params_bytes = max_params_bytes
        self._shared: dict[int, _EncodedText | None] = {}

    def share(self, params: dict[str, Any]) -> None:
        """Encode these params once, for many children. The caller must keep the dict: it is recognised by its id()."""
        self._shared[id(params)] = None

    def task(self, task: NewTask, noun: str = "the params") -> NewTask:
        """The task as its row stores it: params that would make its message too large are kept by reference."""
        assert task.params is not None
        encoded = self._encoded(task.params, noun)
        size = len(encoded.text)
        if size <= _SURELY_INLINE_BYTES or size + self._envelope_bytes(task) <= INLINE_BYTES:
            self.budget.bytes_left -= size
            return task
        return replace(task, params=None, params_ref=self._keep(encoded))

    def output(self, name: str, value: Any) -> Any:
        """One of the workflow's outputs for the job's row: the value, or a reference if it is large."""
        text = encode(value, f"'{name}'") if fits(value, 2 * LOADABLE_BYTES) else None
        if text is not None and len(text) <= INLINE_BYTES:
            return value
        if text is None or len(text) > LOADABLE_BYTES:
            raise InvalidRequest(
                f"'{name}' has {_size(text, LOADABLE_BYTES)} bytes; the limit is {LOADABLE_BYTES:,}",
                code="output.too-large",
                hint="return less data, or let a handler write it to storage",
            )
        return by_reference(self._keep(_EncodedText(text)))

    def _encoded(self, params: dict[str, Any], noun: str) -> _EncodedText:
        """Params as JSON. Raises InvalidRequest if they are too large, or JSON cannot represent them."""
        shared = self._shared.get(id(params))
        if shared is not None:
            return shared
        limit = self.max_params_bytes
        # Far beyond the limit the exact size does not matter, and encoding could exhaust the memory.
        text = encode(params, noun) if fits(params, 2 * limit) else None
        if text is None or len(text) > limit:
            raise InvalidRequest(
                f"{noun} have {_size(text, limit)} bytes; the limit is {limit:,}",
                code="params.too-large",
                hint="pass large data by reference, e.g. with results_of",
            )
        encoded = _EncodedText(text)
        if id(params) in self._shared:
            self._shared[id(params)] = encoded
        return encoded

    def _envelope_bytes(self, task: NewTask) -> int:
        """The maximum size of a message without its params, for any attempt."""
        job_id = self.changes.job_id
        message = TaskMessage(
            task_id=task_id(job_id, task.node_id, _MANY),
            job_id=job_id,
            node_id=task.node_id,
            attempt=_MANY,
            handler=task.handler,
            params={},
            queue=task.queue,
            timeout_seconds=task.timeout_seconds,
            retry_count=_MANY,
            losses=_MANY,
            traceparent=_TRACEPARENT,
        )
        return len(orjson.dumps(message._asdict()))

    def _keep(self, encoded: _EncodedText) -> Reference:
        """Add a payload to those that the transaction writes, unless it is already one of them."""
        payloads, reference = self.changes.payloads, encoded.reference
        if reference["sha256"] not in payloads:
            payloads[reference["sha256"]] = encoded.text
            self.budget.bytes_left -= reference["bytes"]
        return reference


def _size(text: bytes | None, limit: int) -> str:
    return f"more than {2 * limit:,}" if text is None else f"{len(text):,}"
