"""For partners: submit data, read its status, decide on versions. No response mentions jobs or nodes."""

from http import HTTPStatus
from typing import Annotated, Any, Literal
from uuid import uuid4

import httpx2
import orjson
from fastapi import APIRouter, Depends, Path, Request, Response

from dagmaster.access.caller import Caller
from dagmaster.access.decision import own_platform_of
from dagmaster.access.permissions import Permission
from dagmaster.client.limits import PREFIX
from dagmaster.client.models.gateway import PartnerDecision, PartnerReceipt, PartnerStatus, PartnerSubmission
from dagmaster.errors import NotFound
from dagmaster.gateway.forward import ForwardedRequest, encoded, headers_of, json_of, passed_back
from dagmaster.gateway.services import GatewayServices, Services
from dagmaster.web.authentication import needs
from dagmaster.web.problems import MEDIA_TYPE
from dagmaster.web.validation import responses

router = APIRouter(prefix="/api/platform", tags=["partners"])

Submitter = Annotated[Caller, Depends(needs(Permission.ASSETS_SUBMIT))]
Reader = Annotated[Caller, Depends(needs(Permission.ASSETS_READ))]
Decider = Annotated[Caller, Depends(needs(Permission.ASSETS_DECIDE))]
RequestName = Annotated[str, Path(max_length=64, description="The request id of a submission", examples=["order-7"])]

_RECEIPT_FIELDS = frozenset(PartnerReceipt.model_fields) - {"request_id", "status", "status_url"}


@router.post(
    "/submit",
    operation_id="platform_submit",
    summary="Submit data of a platform",
    status_code=202,
    response_model=PartnerReceipt,
    responses={
        200: {"model": PartnerReceipt, "description": "The data was submitted before, or the request is a dry run"},
        **responses(404, 409, 429, 504),
    },
)
async def submit(services: Services, caller: Submitter, request: Request, submission: PartnerSubmission) -> Response:
    """The request is recorded before the response is sent. A repeated `request_id` gets the same response."""
    _require_own(caller, submission.platform_id)
    request_id = submission.request_id or uuid4().hex
    # The parameters are forwarded unchanged: the orchestrator reports what is wrong with them.
    fields = submission.model_dump(mode="json", exclude_none=True, exclude={"parameters"})
    body = fields | {"parameters": submission.parameters, "request_id": request_id}
    forwarded = ForwardedRequest(
        "POST",
        f"{PREFIX}/submit",
        {**headers_of(request), "content-type": "application/json"},
        body=encoded(body),
        is_repeatable=not submission.force,
    )
    response = await services.forwarder.send(forwarded)
    if not response.is_success:
        return partner_problem(response, request)
    receipt = _receipt(request_id, json_of(response))
    headers = {} if receipt.status_url is None else {"Location": receipt.status_url}
    return _json(receipt.model_dump(mode="json"), response.status_code, headers)


@router.get(
    "/status/{request_id}",
    operation_id="platform_status",
    summary="Get the status of a submission",
    responses=responses(404, 409, 429),
)
async def status(services: Services, caller: Reader, request_id: RequestName) -> PartnerStatus:
    """Works while no orchestrator is available."""
    return await read_request(services, caller, request_id)


@router.post(
    "/{action}",
    operation_id="platform_decide",
    summary="Approve, reject or unpublish the version of a request",
    response_model=PartnerStatus,
    responses=responses(404, 409, 429, 504),
)
async def decide(
    *,
    services: Services,
    caller: Decider,
    request: Request,
    action: Literal["approve", "reject", "unpublish"],
    decision: PartnerDecision,
) -> Response:
    """The orchestrator checks whether the caller is allowed to decide: keys of a platform are allowed if
    `b2b_may_approve` of the platform is set."""
    submission = await read_request(services, caller, decision.request_id)
    body: dict[str, Any] = {"reason": decision.reason}
    if action == "approve":
        body["clearance_level"] = decision.clearance_level
    if action != "unpublish":
        body["revision"] = submission.revision
    forwarded = ForwardedRequest(
        "POST",
        f"{PREFIX}/assets/{submission.asset_id}/versions/{submission.version_ordinal}/{action}",
        {**headers_of(request), "content-type": "application/json"},
        body=encoded({name: value for name, value in body.items() if value is not None}),
    )
    response = await services.forwarder.send(forwarded)
    if not response.is_success:
        return partner_problem(response, request)
    changed = await read_request(services, caller, decision.request_id)
    return _json(changed.model_dump(mode="json"), HTTPStatus.OK)


async def read_request(services: GatewayServices, caller: Caller, request_id: str) -> PartnerStatus:
    """The request, if the caller may see it; otherwise NotFound, as for a request that does not exist."""
    request = await services.reads.request(request_id, own_platform_of(caller))
    if request is None:
        raise NotFound("there is no such submission", code="submission.not-found")
    return request


def _require_own(caller: Caller, platform_id: str) -> None:
    if own_platform_of(caller) not in (None, platform_id):
        raise NotFound(f"there is no platform '{platform_id}'", code="platform.not-found")


def _receipt(request_id: str, result: dict[str, Any]) -> PartnerReceipt:
    is_dry = bool(result.get("is_dry_run"))
    return PartnerReceipt(
        request_id=request_id,
        status="dry_run" if is_dry else "received",
        status_url=None if is_dry else f"/api/platform/status/{request_id}",
        **{name: result.get(name) for name in _RECEIPT_FIELDS},
    )


def partner_problem(response: httpx2.Response, request: Request) -> Response:
    """A problem of an orchestrator, without facts about jobs and nodes."""
    if response.headers.get("content-type", "").partition(";")[0] != MEDIA_TYPE:
        return passed_back(response)
    problem = json_of(response)
    facts = problem.get("facts") or {}
    problem["instance"] = request.url.path
    problem["facts"] = {name: value for name, value in facts.items() if "job" not in name and "node" not in name}
    passed = passed_back(response)
    return Response(orjson.dumps(problem), status_code=response.status_code, headers=_without_length(passed))


def _without_length(response: Response) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if name != "content-length"}


def _json(content: Any, status_code: int, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(content), status_code=status_code, media_type="application/json", headers=headers)
