"""Operators: submit jobs of any workflow, one or many."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Body, Request, Response

from dagmaster import __version__
from dagmaster.access.permissions import Permission
from dagmaster.client.limits import PREFIX
from dagmaster.client.models.gateway import BatchResult, BatchResults, BatchSubmission, GatewayHealth
from dagmaster.errors import DagmasterError, InvalidRequest
from dagmaster.gateway.forward import ForwardedRequest, encoded, headers_of, json_of, passed_back
from dagmaster.gateway.services import GatewayServices, Services
from dagmaster.web.authentication import requires
from dagmaster.web.problems import status_of
from dagmaster.web.validation import responses

router = APIRouter(prefix="/api/gateway", tags=["operations"])

AT_ONCE = 8


@router.post(
    "/submit",
    operation_id="gateway_submit",
    summary="Submit a job",
    status_code=202,
    responses=responses(404, 409, 429, 504),
    dependencies=[requires(Permission.JOBS_SUBMIT)],
)
async def submit(services: Services, request: Request, submission: Annotated[dict[str, object], Body()]) -> Response:
    """The body and the query are those of `POST /api/v1/jobs` of the orchestrator."""
    return passed_back(await services.forwarder.send(_forwarded(request, submission)))


@router.post(
    "/submit/batch",
    operation_id="gateway_submit_batch",
    summary="Submit several jobs independently",
    responses=responses(429),
    dependencies=[requires(Permission.JOBS_SUBMIT)],
)
async def submit_batch(services: Services, request: Request, batch: BatchSubmission) -> BatchResults:
    """One result for each entry: an invalid one does not affect the others."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def result_of(submission: object) -> BatchResult:
        async with slots:
            return await _result(services, request, submission)

    return BatchResults(results=await asyncio.gather(*(result_of(entry) for entry in batch.submissions)))


@router.get("/health", operation_id="gateway_health", summary="Get the health of the gateway", responses=responses(429))
async def health(services: Services, _caller: Annotated[object, requires(Permission.ANYONE)]) -> GatewayHealth:
    """The addresses of orchestrators are left out; operators see them under `/api/admin/health`."""
    state = await health_of(services)
    return state.model_copy(update={"orchestrators": []})


async def health_of(services: GatewayServices) -> GatewayHealth:
    try:
        await services.reads.platforms("local")
        can_read = True
    except DagmasterError:
        can_read = False
    can_forward = services.forwarder.can_forward
    return GatewayHealth(
        is_ready=can_read,
        can_read=can_read,
        can_forward=can_forward,
        version=__version__,
        orchestrators=services.forwarder.states(),
    )


def _forwarded(request: Request, submission: dict[str, object]) -> ForwardedRequest:
    return ForwardedRequest(
        "POST",
        f"{PREFIX}/jobs",
        {**headers_of(request), "content-type": "application/json"},
        query=request.url.query,
        body=encoded(submission),
        # With `force`, each request starts a new job.
        is_repeatable=bool(submission.get("idempotency_key")) and "force" not in request.query_params,
    )


async def _result(services: GatewayServices, request: Request, submission: object) -> BatchResult:
    try:
        if not isinstance(submission, dict):
            raise InvalidRequest("an entry must be an object", code="request.invalid")
        response = await services.forwarder.send(_forwarded(request, submission))
        return BatchResult(status=response.status_code, result=json_of(response))
    except DagmasterError as error:
        return BatchResult(status=status_of(error), result={"code": error.code, "detail": error.message})
