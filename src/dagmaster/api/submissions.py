"""Submissions: a platform submits data, and reads the status of its submissions."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Response

from dagmaster.access.caller import Caller
from dagmaster.access.decision import own_platform_of
from dagmaster.access.permissions import Permission
from dagmaster.api.problems import responses
from dagmaster.api.services import Services
from dagmaster.api.visibility import require_visible_platform, visible_result, visible_submission
from dagmaster.client.limits import PREFIX
from dagmaster.client.models.assets import AssetSubmissionRequest, AssetSubmissionResult, SubmissionStatus
from dagmaster.operations.assets.submit import submit_asset
from dagmaster.web.authentication import needs

router = APIRouter(tags=["assets"])

Submitter = Annotated[Caller, Depends(needs(Permission.ASSETS_SUBMIT))]
Reader = Annotated[Caller, Depends(needs(Permission.ASSETS_READ))]
RequestName = Annotated[str, Path(max_length=64, description="The request id of a submission", examples=["order-7"])]

_CREATED = ("new_asset", "new_version", "new_revision")


@router.post(
    "/submit",
    operation_id="submit_asset",
    summary="Submit data of a platform",
    status_code=202,
    response_model=AssetSubmissionResult,
    responses={
        200: {
            "model": AssetSubmissionResult,
            "description": "The data was submitted before (`already_processing`, `already_completed`), or the request "
            "is a dry run",
        },
        202: {
            "description": "An asset, a version or a revision was created, and will be processed",
            "headers": {
                "Location": {"description": "The URL of the status of the submission", "schema": {"type": "string"}}
            },
        },
        **responses(404, 409),
    },
)
async def submit(
    services: Services, caller: Submitter, response: Response, request: AssetSubmissionRequest
) -> AssetSubmissionResult:
    """Asset, version, revision and job exist when the response is sent. The references identify the asset, the label
    identifies the version; without a label, the newest version is used. The outcome is `new_asset` for an unknown
    asset, `new_version` for a new label, and `new_revision` for a known label. A new label is refused while an earlier
    version is not approved. The same source with the same parameters gets `already_processing` or `already_completed`,
    unless its processing failed or `force` is set.

    A repeated request id gets the same response; with other content it is a conflict. With `dry_run` nothing is
    created: the response says what would happen, with `refusal` if the state of the asset does not allow it."""
    require_visible_platform(caller, request.platform_id)
    result = await submit_asset(services.assets, services.library, services.storage, request=request, caller=caller)
    if result.outcome not in _CREATED or result.is_dry_run:
        response.status_code = 200
    if result.request_id is not None:
        response.headers["Location"] = f"{PREFIX}/status/{result.request_id}"
    return visible_result(caller, result)


@router.get(
    "/status/{request_id}",
    operation_id="get_submission_status",
    summary="Get the status of a submission",
    responses=responses(404, 409),
)
async def get_submission_status(services: Services, caller: Reader, request_id: RequestName) -> SubmissionStatus:
    """The status as partners see it, without jobs and nodes. A platform sees its own submissions. For other callers,
    the response is a conflict if several platforms have used the id."""
    submission = await services.assets.submission(request_id, own_platform_of(caller))
    return visible_submission(caller, submission)
