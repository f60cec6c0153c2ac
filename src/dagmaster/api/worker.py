"""The ledger of workers that have no access to the database: one route for each of its calls.

    start ──▶ worker_id ──▶ wait ──▶ exchange (report, claim) ──▶ renew, stops, heartbeat ──▶ … ──▶ retire
                                         └──▶ tasks/{task_id}: params, results, checkpoints, output

The rules are the same as for workers with database access, because the same ledger applies them: leases, and fencing by
the id of the worker. Three checks are added. An id belongs to the caller that it was issued to; a key may be limited to
queues; and only the worker that holds a task may read its params and results, and write its output and checkpoints.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any
from uuid import UUID

import orjson
from fastapi import APIRouter, Depends, Path, Query, Request
from starlette.responses import Response, StreamingResponse

from dagmaster import __version__
from dagmaster.access.caller import Caller
from dagmaster.access.permissions import Permission
from dagmaster.access.worker_ids import new_worker_id
from dagmaster.api import worker_requests as requests
from dagmaster.api.outputs import stored_response
from dagmaster.api.problems import responses
from dagmaster.api.services import ApiServices, Services
from dagmaster.client.models.worker import (
    MAX_RESULTS,
    OLDEST_PROTOCOL,
    PROTOCOL,
    CheckpointReceipt,
    CheckpointRequest,
    ExchangeRequest,
    ExchangeResponse,
    QueuesWithTasks,
    RenewRequest,
    ResultsOfChildren,
    SavedCheckpoints,
    StartedWorker,
    StoredOutput,
    TaskIds,
    WaitRequest,
    WorkerHeartbeat,
    WorkerReceipt,
    WorkerStart,
)
from dagmaster.database.ledger.protocol import Running
from dagmaster.database.notify.notifier import RESULTS
from dagmaster.database.reads.remote_workers import TaskReferences
from dagmaster.errors import Conflict, Unavailable
from dagmaster.jobs.payload import LOADABLE_BYTES
from dagmaster.web.authentication import needs

MAX_OUTPUTS = 4  # that one caller may send at the same time

PREFIX = "/worker"
router = APIRouter(prefix=PREFIX, tags=["workers"])


async def _worker(
    worker_id: Annotated[UUID, Path(description="The id that the worker got when it started")],
    caller: Annotated[Caller, Depends(needs(Permission.TASKS_EXECUTE))],
) -> UUID:
    requests.require_own(worker_id, caller)
    return worker_id


WorkerCaller = Annotated[Caller, Depends(needs(Permission.TASKS_EXECUTE))]
OwnWorker = Annotated[UUID, Depends(_worker)]
TaskId = Annotated[
    str, Path(max_length=260, description="The id of the task: job, node and attempt, joined by underscores")
]


@router.post("/start", operation_id="start_worker", summary="Start a worker", responses=responses(409))
async def start_worker(services: Services, caller: WorkerCaller, start: WorkerStart) -> StartedWorker:
    """The platform issues the id of the worker. Nothing is stored until its first heartbeat."""
    if not OLDEST_PROTOCOL <= start.protocol <= PROTOCOL:
        is_old = start.protocol < OLDEST_PROTOCOL
        raise Conflict(
            f"this worker is too {'old' if is_old else 'new'} for the platform, which is version {__version__}",
            code="worker.too-old" if is_old else "worker.too-new",
            hint=f"install version {__version__} of dagmaster on the worker"
            + ("" if is_old else ", or upgrade the platform"),
            version=__version__,
        )
    return StartedWorker(
        worker_id=new_worker_id(caller.name),
        caller=caller.name,
        queues=None if caller.queues is None else sorted(caller.queues),
        lease_seconds=services.settings.task_lease_sec,
        software_version=__version__,
        protocol=PROTOCOL,
    )


@router.put(
    "/{worker_id}/heartbeat",
    operation_id="beat_worker",
    summary="Send the heartbeat of a worker",
    responses=responses(),
)
async def beat_worker(
    services: Services, caller: WorkerCaller, worker_id: OwnWorker, heartbeat: WorkerHeartbeat
) -> WorkerReceipt:
    requests.require_queues(heartbeat.queues, caller)
    info = requests.info_of(worker_id, heartbeat)
    async with services.lease_ledgers.acquire() as ledger:
        await ledger.beat_worker(info)
    return WorkerReceipt(worker_id=worker_id)


@router.delete("/{worker_id}", operation_id="retire_worker", summary="Stop a worker", responses=responses())
async def retire_worker(services: Services, worker_id: OwnWorker) -> WorkerReceipt:
    """The worker is no longer listed. Tasks that it still holds are lost when their leases expire."""
    async with services.lease_ledgers.acquire() as ledger:
        await ledger.retire_worker(worker_id)
    return WorkerReceipt(worker_id=worker_id)


@router.post(
    "/{worker_id}/wait", operation_id="wait_for_tasks", summary="Wait until there are tasks", responses=responses()
)
async def wait_for_tasks(
    services: Services, caller: WorkerCaller, _worker_id: OwnWorker, wait_request: WaitRequest
) -> QueuesWithTasks:
    """Responds at once if there are tasks, and at the latest after `seconds`. Then the worker claims tasks with
    `exchange`."""
    requests.require_queues(wait_request.queues, caller)
    queues = await services.task_watch.wait(wait_request.queues, wait_request.handlers, wait_request.seconds)
    return QueuesWithTasks(queues=sorted(queues))


@router.post(
    "/{worker_id}/exchange",
    operation_id="exchange_tasks",
    summary="Report finished tasks and claim new ones",
    response_model=ExchangeResponse,
    responses=responses(404),
)
async def exchange_tasks(
    services: Services, caller: WorkerCaller, worker_id: OwnWorker, exchange: ExchangeRequest
) -> Response:
    """A report counts if the worker still holds the task; a repeated report gets the same response. Reports and claims
    are one transaction, with two exceptions, which follow in transactions of their own: claims from a queue that got a
    limit since the last exchange, and the record of reports that came too late."""
    return await _exchange(services, caller, worker_id, exchange, is_claiming=True)


@router.post(
    "/{worker_id}/report",
    operation_id="report_tasks",
    summary="Report finished tasks",
    response_model=ExchangeResponse,
    responses=responses(404),
)
async def report_tasks(
    services: Services, caller: WorkerCaller, worker_id: OwnWorker, exchange: ExchangeRequest
) -> Response:
    """Like `exchange`, but new tasks are claimed only if a queue has a limit, because reports free capacity there."""
    return await _exchange(services, caller, worker_id, exchange, is_claiming=False)


async def _exchange(
    services: ApiServices, caller: Caller, worker_id: UUID, sent: ExchangeRequest, *, is_claiming: bool
) -> Response:
    demand = requests.demand_of(sent.demand)
    requests.require_queues(demand.queues, caller)
    reports = requests.reports_of(sent.reports)
    lease_seconds = min(sent.lease_seconds, services.settings.task_lease_sec)
    async with services.exchange_ledgers.acquire() as ledger:
        call = ledger.exchange if is_claiming else ledger.report
        response = await call(worker_id, reports, demand, lease_seconds=lease_seconds)
    return Response(requests.encoded_response(response), media_type="application/json")


@router.post("/{worker_id}/renew", operation_id="renew_leases", summary="Renew leases", responses=responses())
async def renew_leases(services: Services, worker_id: OwnWorker, renewal: RenewRequest) -> TaskIds:
    """Returns the tasks that the worker no longer holds; it must stop them."""
    running = [requests.running_of(each) for each in renewal.held]
    lease_seconds = min(renewal.lease_seconds, services.settings.task_lease_sec)
    async with services.lease_ledgers.acquire() as ledger:
        lost = await ledger.renew(worker_id, running, lease_seconds=lease_seconds)
    return TaskIds(task_ids=sorted(lost))


@router.post(
    "/{worker_id}/stops", operation_id="take_stops", summary="Get the requests to stop tasks", responses=responses()
)
async def take_stops(services: Services, worker_id: OwnWorker) -> TaskIds:
    """The tasks that must stop. Each is returned until it has ended."""
    async with services.lease_ledgers.acquire() as ledger:
        return TaskIds(task_ids=sorted(await ledger.take_stops(worker_id)))


@router.post(
    "/{worker_id}/running",
    operation_id="show_running",
    summary="Notify orchestrators that tasks are running",
    responses=responses(),
)
async def show_running(services: Services, worker_id: OwnWorker) -> WorkerReceipt:
    """The nodes of the tasks then become `running` at once, and not only at the next poll of their orchestrators."""
    services.notifier.notify(RESULTS)
    return WorkerReceipt(worker_id=worker_id)


# The params, results, output and checkpoints of a task

_CONTENT: dict[int | str, dict[str, Any]] = {
    200: {"description": "The JSON as it was stored", "content": {"application/json": {"schema": {}}}},
    **responses(404),
}


@router.get(
    "/{worker_id}/tasks/{task_id}/params",
    operation_id="load_params",
    summary="Load the large params of a task",
    response_class=StreamingResponse,
    responses=_CONTENT,
)
async def load_params(services: Services, worker_id: OwnWorker, task_id: TaskId) -> Response:
    """The params are streamed. If they turn out to be damaged, the connection is closed before the end."""
    job_id, _, _ = attempt = requests.attempt_of(task_id)
    references = await _require_held(services, worker_id, attempt)
    if references.params_ref is None:
        raise Conflict("the params of this task were sent with the task", code="task.no-params-ref")
    return await stored_response(services.reads, job_id, references.params_ref)


@router.get(
    "/{worker_id}/tasks/{task_id}/results",
    operation_id="read_results",
    summary="Read the results that a task refers to",
    response_model=ResultsOfChildren,
    responses=responses(404),
)
async def read_results(
    services: Services,
    worker_id: OwnWorker,
    task_id: TaskId,
    offset: Annotated[int, Query(ge=0, le=2**31 - 1, description="Index of the first child")],
    limit: Annotated[int, Query(ge=1, le=MAX_RESULTS)],
) -> Response:
    """The results of the fan_out that `results_of` in the params of the task names: up to `limit`, and fewer if they
    are large."""
    job_id, _, _ = attempt = requests.attempt_of(task_id)
    references = await _require_held(services, worker_id, attempt)
    node_id, window = requests.window_of(await _results_of(services, job_id, references), offset, limit)
    async with services.payload_ledgers.acquire() as ledger:
        rows = await ledger.read_encoded_results(job_id, node_id, window.start, len(window)) if window else []
    results = [
        {name: getattr(row, name) for name in ("index", "node_id", "status", "output", "error_message")} for row in rows
    ]
    return Response(orjson.dumps({"results": results}), media_type="application/json")


async def _results_of(services: ApiServices, job_id: UUID, references: TaskReferences) -> Any:
    """The field `results_of` of the params, which may be stored as a payload."""
    if references.params_ref is None:
        return references.results_of
    async with services.payload_ledgers.acquire() as ledger:
        params = orjson.loads(await ledger.load_payload(job_id, references.params_ref))
    return params.get("results_of")


@router.put(
    "/{worker_id}/tasks/{task_id}/output",
    operation_id="store_output",
    summary="Send a large output before its report",
    responses=responses(404),
    openapi_extra={
        "requestBody": {
            "required": True,
            "description": f"The output as JSON, at most {LOADABLE_BYTES // 1024 // 1024} MB",
            "content": {"application/json": {"schema": {}}},
        }
    },
)
async def store_output(
    services: Services, caller: WorkerCaller, worker_id: OwnWorker, task_id: TaskId, request: Request
) -> StoredOutput:
    """The response is the reference for the report. An output that is never reported is deleted."""
    job_id, _, _ = attempt = requests.attempt_of(task_id)
    with _limit_outputs(services.sending_outputs, caller):
        content = await _body_of(request)
        await asyncio.to_thread(requests.checked_payload, content)
        await _require_held(services, worker_id, attempt)
        async with services.payload_ledgers.acquire() as ledger:
            reference = await ledger.store_payload(job_id, content)
    return StoredOutput(**reference)


@contextmanager
def _limit_outputs(sending: "Counter[str]", caller: Caller) -> Iterator[None]:
    """Limit the outputs that a caller sends at once: each is in memory until it is stored."""
    if sending[caller.name] >= MAX_OUTPUTS:
        raise Unavailable(
            f"this caller is already sending {MAX_OUTPUTS} outputs",
            code="worker.too-many-outputs",
            hint="try again later",
        )
    sending[caller.name] += 1
    try:
        yield
    finally:
        sending[caller.name] -= 1
        if not sending[caller.name]:
            del sending[caller.name]


async def _body_of(request: Request) -> bytes:
    content = bytearray()
    async for piece in request.stream():
        content += piece
        if len(content) > LOADABLE_BYTES:
            raise requests.too_large_payload()
    return bytes(content)


@router.get(
    "/{worker_id}/tasks/{task_id}/checkpoints",
    operation_id="load_checkpoints",
    summary="Load the checkpoints of a task's node",
    responses=responses(404),
)
async def load_checkpoints(services: Services, worker_id: OwnWorker, task_id: TaskId) -> SavedCheckpoints:
    job_id, node_id, _ = attempt = requests.attempt_of(task_id)
    await _require_held(services, worker_id, attempt)
    async with services.payload_ledgers.acquire() as ledger:
        saved = await ledger.load_checkpoints(job_id, node_id)
    return SavedCheckpoints.model_validate({"checkpoints": [row.model_dump() for row in saved]})


@router.put(
    "/{worker_id}/tasks/{task_id}/checkpoints",
    operation_id="save_checkpoint",
    summary="Save a checkpoint",
    responses=responses(),
)
async def save_checkpoint(
    services: Services, worker_id: OwnWorker, task_id: TaskId, checkpoint: CheckpointRequest
) -> CheckpointReceipt:
    """Replaces the node's checkpoint of the same name."""
    attempt = requests.attempt_of(task_id)
    name = requests.checked_checkpoint(checkpoint)
    if await services.reads.held_task(worker_id, *attempt) is None:
        return CheckpointReceipt(is_saved=False)
    async with services.payload_ledgers.acquire() as ledger:
        is_saved = await ledger.save_checkpoint(Running(*attempt), name, checkpoint.data, checkpoint.artifacts)
    return CheckpointReceipt(is_saved=is_saved)


async def _require_held(services: ApiServices, worker_id: UUID, attempt: tuple[UUID, str, int]) -> TaskReferences:
    held = await services.reads.held_task(worker_id, *attempt)
    if held is None:
        raise requests.not_held(worker_id)
    return held
