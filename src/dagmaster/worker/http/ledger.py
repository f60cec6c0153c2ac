"""The WorkerLedger and the PayloadLedger over HTTP: the API calls the ledger in the database.

    HttpLedger ──▶ POST …/exchange, …/report, …/renew, …/stops, PUT …/heartbeat    the worker's loop
    HttpPayloads ──▶ …/tasks/{task_id}/params, output, results, checkpoints         the handler of one task

Responses are not trusted: a task that was not requested, or a payload that does not match its reference, is refused.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import quote
from uuid import UUID

import orjson

from dagmaster.client.limits import MAX_BODY_BYTES
from dagmaster.client.models.base import unexpected
from dagmaster.client.models.worker import (
    MAX_CLAIMED,
    MAX_REPORTS,
    MAX_RESULTS,
    CheckpointReceipt,
    ClaimedTask,
    ExchangeResponse,
    ResultsOfChildren,
    SavedCheckpoints,
    StoredOutput,
    TaskIds,
    WorkerReceipt,
)
from dagmaster.database.ledger.protocol import Demand, Exchange, Report, Running, WorkerInfo
from dagmaster.errors import DagmasterError, InvalidRequest, Unavailable
from dagmaster.jobs import payload
from dagmaster.jobs.fan import ChildResult
from dagmaster.jobs.model import Checkpoint, TaskMessage, task_id
from dagmaster.jobs.payload import LOADABLE_BYTES, Encoded, Reference
from dagmaster.observe import log
from dagmaster.worker.http.requests import WorkerRequests

T = TypeVar("T")
OnExchange = Callable[[Demand, Sequence[TaskMessage]], None]
_RESERVED_BYTES = 200_000  # reserved in a request for everything that is not a report
_MAX_RENEWAL_BYTES = MAX_BODY_BYTES // 2
_MAX_INCOMPLETE_DOWNLOADS = 5  # after this many downloads that end early, a payload counts as damaged
_PAUSE_SECONDS = (0.1, 2.0)
_FREE_SLOTS_NAMES = ("free_slots", "rooms")  # the second is the name in earlier releases
_UNKNOWN_FIELD_SECONDS = 60.0  # after this time, a platform that did not know a field may have been upgraded
_log = log.get("worker")


class HttpLedger:
    """The WorkerLedger. `on_exchange` is called after each exchange, with the demand and the claimed tasks."""

    def __init__(self, requests: WorkerRequests, on_exchange: OnExchange | None = None) -> None:
        self._requests = requests
        self._on_exchange = on_exchange
        self._unknown_until: dict[str, float] = {}  # fields that a platform of an older release does not know
        self._warnings: set[str] = set()  # those that were logged
        self._rotation = 0

    async def beat_worker(self, worker: WorkerInfo) -> None:
        body = {
            "host": worker.host,
            "pid": worker.pid,
            "software_version": worker.software_version,
            "worker_type": worker.worker_type,
            "queues": worker.queues,
            "handlers": worker.handlers,
            "stats": worker.stats,
        }
        await self._requests.send("PUT", worker.worker_id, "/heartbeat", WorkerReceipt, body=body)

    async def exchange(
        self, worker_id: UUID, reports: Sequence[Report], demand: Demand, *, lease_seconds: float
    ) -> Exchange:
        return await self._exchange("/exchange", worker_id, reports, demand, lease_seconds)

    async def report(
        self, worker_id: UUID, reports: Sequence[Report], demand: Demand, *, lease_seconds: float
    ) -> Exchange:
        return await self._exchange("/report", worker_id, reports, demand, lease_seconds)

    async def _exchange(
        self, path: str, worker_id: UUID, reports: Sequence[Report], demand: Demand, lease_seconds: float
    ) -> Exchange:
        """One request, or several if the reports are large. Each is safe to repeat, and only the last one claims."""
        *before, last = list(_batches(map(_report, reports), MAX_BODY_BYTES - _RESERVED_BYTES)) or [[]]
        accepted = 0
        late: list[str] = []
        for batch in before:
            response = await self._send("/report", worker_id, batch, Demand(()), lease_seconds)
            accepted, late = accepted + response.accepted, [*late, *response.late]
        response = await self._claim(path, worker_id, last, demand, lease_seconds)
        claimed = _messages(response.claimed, demand)
        if self._on_exchange is not None:
            self._on_exchange(demand, claimed)
        return Exchange(claimed, accepted + response.accepted, (*late, *response.late))

    async def _claim(
        self, path: str, worker_id: UUID, reports: Sequence[bytes], demand: Demand, lease_seconds: float
    ) -> ExchangeResponse:
        """A platform of an older release knows `free_slots` by its former name, or not at all: each limited queue is
        then requested separately."""
        if not demand.free_slots or not demand.total:
            return await self._send(path, worker_id, reports, replace(demand, free_slots={}), lease_seconds)
        for name in _FREE_SLOTS_NAMES:
            if self._may_know(name):
                try:
                    return await self._send(path, worker_id, reports, demand, lease_seconds, free_slots_name=name)
                except InvalidRequest as error:
                    self._note_unknown(name, error)
        self._warn_once(
            "the platform runs an older release; this worker claims from each limited queue separately",
            hint="upgrade the platform, so that one request claims from all queues",
        )
        return await self._claim_separately(path, worker_id, reports, demand, lease_seconds)

    def _may_know(self, field: str) -> bool:
        """False for a while after the platform has refused the field."""
        return time.monotonic() >= self._unknown_until.get(field, 0.0)

    def _note_unknown(self, field: str, error: InvalidRequest) -> None:
        """Remember that the platform does not know the field, or raise the error if it has another reason."""
        if error.code != "request.invalid" or f"'{field}'" not in error.message:
            raise error
        self._unknown_until[field] = time.monotonic() + _UNKNOWN_FIELD_SECONDS

    def _warn_once(self, warning: str, *, hint: str) -> None:
        if warning not in self._warnings:
            self._warnings.add(warning)
            _log.warning(warning, hint=hint)

    async def _claim_separately(
        self, path: str, worker_id: UUID, reports: Sequence[bytes], demand: Demand, lease_seconds: float
    ) -> ExchangeResponse:
        """Send several requests, none of which can claim more tasks than there are free slots. The first one contains
        the reports. The order of the queues rotates, so that each is the first from time to time."""
        self._rotation += 1
        groups = _queue_groups(demand)
        groups = groups[self._rotation % len(groups) :] + groups[: self._rotation % len(groups)]
        response = ExchangeResponse(claimed=[], accepted=0, late=[])
        is_first = True
        for queues in groups:
            for kind in ("light", "heavy"):
                part = _part_of(demand, queues, kind, response.claimed)
                if not part.total:
                    continue
                try:
                    more = await self._send(path, worker_id, reports if is_first else (), part, lease_seconds)
                except DagmasterError:
                    if is_first:
                        raise
                    return response  # the tasks already claimed must start; the next exchange gets the same error
                _messages(more.claimed, part)  # the response to one request must not have tasks of another
                response = ExchangeResponse(
                    claimed=[*response.claimed, *more.claimed],
                    accepted=response.accepted + more.accepted,
                    late=[*response.late, *more.late],
                )
                is_first = False
        return response

    async def _send(
        self,
        path: str,
        worker_id: UUID,
        reports: Sequence[bytes],
        demand: Demand,
        lease_seconds: float,
        *,
        free_slots_name: str = _FREE_SLOTS_NAMES[0],
    ) -> ExchangeResponse:
        demanded: dict[str, Any] = {
            "queues": demand.queues,
            "light_handlers": demand.light_handlers,
            "light": min(demand.light, MAX_CLAIMED),
            "heavy_handlers": demand.heavy_handlers,
            "heavy": min(demand.heavy, MAX_CLAIMED),
        }
        if demand.free_slots:  # an older platform does not know the field
            demanded[free_slots_name] = {queue: min(count, MAX_CLAIMED) for queue, count in demand.free_slots.items()}
        body = {"reports": list(map(orjson.Fragment, reports)), "demand": demanded, "lease_seconds": lease_seconds}
        content = orjson.dumps(body)
        return await self._requests.send("POST", worker_id, path, ExchangeResponse, content=content)

    async def renew(self, worker_id: UUID, running: Sequence[Running], *, lease_seconds: float) -> frozenset[str]:
        """A platform of an older release refuses `run_seconds`: the renewal is then sent without it."""
        if any(each.run_seconds is not None for each in running):
            if self._may_know("run_seconds"):
                try:
                    return await self._renew(worker_id, running, lease_seconds)
                except InvalidRequest as error:
                    self._note_unknown("run_seconds", error)
                    self._warn_once(
                        "the platform runs an older release; waiting for a slot counts towards the timeout of a task",
                        hint="upgrade the platform",
                    )
            running = [replace(each, run_seconds=None) for each in running]
        return await self._renew(worker_id, running, lease_seconds)

    async def _renew(self, worker_id: UUID, running: Sequence[Running], lease_seconds: float) -> frozenset[str]:
        lost: set[str] = set()
        for batch in _batches(map(_running, running), _MAX_RENEWAL_BYTES, max_items=5000):
            body = {"held": list(map(orjson.Fragment, batch)), "lease_seconds": lease_seconds}
            response = await self._requests.send("POST", worker_id, "/renew", TaskIds, content=orjson.dumps(body))
            lost.update(response.task_ids)
        return frozenset(lost)

    async def take_stops(self, worker_id: UUID) -> frozenset[str]:
        return frozenset((await self._requests.send("POST", worker_id, "/stops", TaskIds)).task_ids)

    async def retire_worker(self, worker_id: UUID) -> None:
        await self._requests.send("DELETE", worker_id, "", WorkerReceipt)


class HttpPayloads:
    """The PayloadLedger of the handler of one task, which the worker must hold. Calls of handlers wait while the
    platform is unavailable, up to `retry_seconds`: a platform that restarts must not fail the attempt."""

    def __init__(self, requests: WorkerRequests, worker_id: UUID, attempt: str, retry_seconds: float) -> None:
        self._requests = requests
        self._worker_id = worker_id
        self._path = f"/tasks/{quote(attempt, safe='')}"
        self._retry_seconds = retry_seconds
        self._incomplete_downloads = 0

    async def store_payload(self, job_id: UUID, encoded: Encoded) -> Reference:
        if len(encoded) > LOADABLE_BYTES:
            raise InvalidRequest(
                f"the output has {len(encoded):,} bytes; the limit without database access is {LOADABLE_BYTES:,}",
                code="output.too-large",
                hint="put large data into storage and return a reference",
            )
        reference = await asyncio.to_thread(payload.reference_to, encoded)
        options = {"content": bytes(encoded), "max_bytes": LOADABLE_BYTES}
        stored = await self._requests.send("PUT", self._worker_id, f"{self._path}/output", StoredOutput, **options)
        payload.check(job_id, reference, stored.model_dump())
        return reference

    async def load_payload(self, job_id: UUID, reference: Reference) -> Encoded:
        try:
            content = (await self._requests.request("GET", self._worker_id, f"{self._path}/params")).content
        except Unavailable as error:
            self._incomplete_downloads += error.code == "server.lost"
            if self._incomplete_downloads >= _MAX_INCOMPLETE_DOWNLOADS:
                raise payload.damaged(job_id, reference, 0) from None
            raise
        payload.check(job_id, reference, await asyncio.to_thread(payload.reference_to, content))
        return content

    async def read_results(self, _job_id: UUID, _node_id: str, offset: int, limit: int) -> list[ChildResult]:
        """The platform reads the node from the task's params."""
        params = {"offset": offset, "limit": min(limit, MAX_RESULTS)}
        response = await self._retry_during_outage(
            lambda: self._requests.send(
                "GET", self._worker_id, f"{self._path}/results", ResultsOfChildren, params=params
            )
        )
        return [ChildResult(**dict(row)) for row in response.results]

    read_encoded_results = read_results

    async def save_checkpoint(
        self, _running: Running, name: str, data: Any, artifacts: Sequence[Mapping[str, Any]] = ()
    ) -> bool:
        body = {"name": name, "data": data, "artifacts": artifacts}
        response = await self._retry_during_outage(
            lambda: self._requests.send(
                "PUT", self._worker_id, f"{self._path}/checkpoints", CheckpointReceipt, body=body
            )
        )
        return response.is_saved

    async def load_checkpoints(self, _job_id: UUID, _node_id: str) -> list[Checkpoint]:
        response = await self._retry_during_outage(
            lambda: self._requests.send("GET", self._worker_id, f"{self._path}/checkpoints", SavedCheckpoints)
        )
        return [Checkpoint.model_construct(**dict(row)) for row in response.checkpoints]

    async def _retry_during_outage(self, call: Callable[[], Awaitable[T]]) -> T:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._retry_seconds
        seconds, longest = _PAUSE_SECONDS
        while True:
            try:
                return await call()
            except Unavailable:
                if loop.time() + seconds > deadline:
                    raise
            await asyncio.sleep(seconds)
            seconds = min(longest, 2 * seconds)


def _report(report: Report) -> bytes:
    body: dict[str, Any] = {
        "job_id": report.job_id,
        "node_id": report.node_id,
        "attempt": report.attempt,
        "status": report.status.value,
    }
    metrics = dict(report.metrics) if report.metrics is not None else None
    optional = {
        "output": report.output,
        "error": report.error,
        "output_ref": report.output_ref,
        "log": metrics.pop("log", None) if metrics is not None else None,
        "metrics": metrics,
    }
    return orjson.dumps(body | {name: value for name, value in optional.items() if value is not None})


def _running(running: Running) -> bytes:
    body: dict[str, Any] = {"job_id": running.job_id, "node_id": running.node_id, "attempt": running.attempt}
    optional = {"progress": running.progress, "log": running.log, "run_seconds": running.run_seconds}
    return orjson.dumps(body | {name: value for name, value in optional.items() if value is not None})


def _batches(encoded: Iterable[bytes], max_bytes: int, max_items: int = MAX_REPORTS) -> Iterator[list[bytes]]:
    """Batches of limited size. An item that is larger is sent alone, and the platform refuses it."""
    batch: list[bytes] = []
    size = 0
    for each in encoded:
        if batch and (size + len(each) > max_bytes or len(batch) == max_items):
            yield batch
            batch, size = [], 0
        batch.append(each)
        size += len(each) + 1
    if batch:
        yield batch


def _queue_groups(demand: Demand) -> list[tuple[str, ...]]:
    """The queues without a limit together, and each limited queue alone."""
    unlimited = tuple(queue for queue in demand.queues if queue not in demand.free_slots)
    limited: list[tuple[str, ...]] = [(queue,) for queue in demand.queues if queue in demand.free_slots]
    return [unlimited, *limited] if unlimited else limited


def _part_of(demand: Demand, queues: tuple[str, ...], kind: str, claimed: Sequence[ClaimedTask]) -> Demand:
    """What may still be claimed from these queues for one kind of handler, as a demand that an older platform knows."""
    handlers = demand.light_handlers if kind == "light" else demand.heavy_handlers
    free = demand.light if kind == "light" else demand.heavy
    count = free - sum(task.handler in handlers for task in claimed)
    if queues[0] in demand.free_slots:
        count = min(count, demand.free_slots[queues[0]] - sum(task.queue in queues for task in claimed))
    part = replace(demand, queues=queues, light=0, heavy=0, free_slots={})
    return replace(part, light=max(0, count)) if kind == "light" else replace(part, heavy=max(0, count))


def _messages(claimed: Sequence[ClaimedTask], demand: Demand) -> tuple[TaskMessage, ...]:
    """The claimed tasks. Raises an error if they do not match the request."""
    light = sum(task.handler in demand.light_handlers for task in claimed)
    heavy = sum(task.handler in demand.heavy_handlers for task in claimed)
    are_wanted = light <= demand.light and heavy <= demand.heavy and light + heavy == len(claimed)
    by_queue = Counter(task.queue for task in claimed)
    are_wanted = are_wanted and all(by_queue[queue] <= count for queue, count in demand.free_slots.items())
    if not are_wanted or not all(task.queue in demand.queues for task in claimed):
        raise unexpected("it has tasks that this worker did not request")
    if any(task.task_id != task_id(task.job_id, task.node_id, task.attempt) for task in claimed):
        raise unexpected("it has a task whose id does not match its job, node and attempt")
    return tuple(TaskMessage(**dict(task)) for task in claimed)
