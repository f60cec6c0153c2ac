"""The actions of reviewers: approve, reject, clear, expose, unpublish and delete; and signed links for people without a
key. Operators can repeat exports.

Every change may have an `If-Match` header with the ETag of the asset that the caller has seen. If the asset has changed
since, the change is refused, and the problem lists the events since then. The response is the asset after the change.
"""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Response

from dagmaster.access.caller import Caller
from dagmaster.access.permissions import Permission
from dagmaster.addresses import Addresses
from dagmaster.api.assets import AssetName, Ordinal, etag_of, with_etag, with_urls
from dagmaster.api.problems import responses
from dagmaster.api.services import ApiServices, Services
from dagmaster.api.visibility import visible_part, without_events
from dagmaster.assets.states import Clearance, Exposure
from dagmaster.client.models.assets import (
    ApproveRequest,
    AssetInfo,
    ClearRequest,
    ExposeRequest,
    LinkRequest,
    ReasonRequest,
    RejectRequest,
    SignedLink,
)
from dagmaster.operations.assets.approve import approve
from dagmaster.operations.assets.clear import clear
from dagmaster.operations.assets.delete import delete
from dagmaster.operations.assets.export import export_again
from dagmaster.operations.assets.expose import expose
from dagmaster.operations.assets.link import make_link
from dagmaster.operations.assets.reject import reject
from dagmaster.operations.assets.unpublish import unpublish
from dagmaster.web.authentication import needs

router = APIRouter(prefix="/assets", tags=["assets"])

Reviewer = Annotated[Caller, Depends(needs(Permission.ASSETS_REVIEW))]
Decider = Annotated[Caller, Depends(needs(Permission.ASSETS_DECIDE))]
Operator = Annotated[Caller, Depends(needs(Permission.JOBS_OPERATE))]
Remover = Annotated[Caller, Depends(needs(Permission.ASSETS_DELETE))]
IfMatch = Annotated[
    str | None, Header(alias="If-Match", max_length=200, description="The ETag of the asset that the caller has seen")
]
Reason = Annotated[str | None, Query(max_length=2000, min_length=1, description="The reason, recorded in the history")]

_CHANGE: dict[int | str, dict[str, Any]] = {**with_etag(), **responses(404, 409, 412)}


def _changed(services: ApiServices, response: Response, asset: AssetInfo, caller: Caller | None = None) -> AssetInfo:
    """The asset after the change; with `caller`, only the part that this caller may see."""
    response.headers["ETag"] = etag_of(asset)
    asset = with_urls(asset, Addresses.of(services.settings))
    return asset if caller is None else visible_part(caller, asset, asset.asset_id)


@router.post(
    "/{asset_id}/versions/{version_ordinal}/approve",
    operation_id="approve_version",
    summary="Approve a version",
    responses=_CHANGE,
)
async def approve_version(
    *,
    services: Services,
    caller: Decider,
    response: Response,
    asset_id: AssetName,
    version_ordinal: Ordinal,
    request: ApproveRequest | None = None,
    if_match: IfMatch = None,
) -> AssetInfo:
    """The newest revision is published; from the next request on it is served to those who may see it. The first
    approval of an asset requires a `clearance_level`. A b2b key may approve, reject and unpublish versions of its own
    platform, if `b2b_may_approve` of the platform is set."""
    request = request or ApproveRequest()
    with without_events(caller):
        asset = await approve(
            services.assets,
            asset_id,
            version_ordinal,
            caller=caller,
            clearance=Clearance(request.clearance_level) if request.clearance_level else None,
            revision=request.revision,
            reason=request.reason,
            needs_second_person=services.settings.approval_by_second_person,
            if_match=if_match,
        )
    return _changed(services, response, asset, caller)


@router.post(
    "/{asset_id}/versions/{version_ordinal}/reject",
    operation_id="reject_version",
    summary="Reject a version",
    responses=_CHANGE,
)
async def reject_version(
    *,
    services: Services,
    caller: Decider,
    response: Response,
    asset_id: AssetName,
    version_ordinal: Ordinal,
    request: RejectRequest,
    if_match: IfMatch = None,
) -> AssetInfo:
    """The newest revision is not published. An older revision that was approved is still served."""
    with without_events(caller):
        asset = await reject(
            services.assets,
            asset_id,
            version_ordinal,
            caller=caller,
            reason=request.reason,
            revision=request.revision,
            if_match=if_match,
        )
    return _changed(services, response, asset, caller)


@router.post(
    "/{asset_id}/versions/{version_ordinal}/unpublish",
    operation_id="unpublish_version",
    summary="Unpublish a version",
    responses=_CHANGE,
)
async def unpublish_version(
    *,
    services: Services,
    caller: Decider,
    response: Response,
    asset_id: AssetName,
    version_ordinal: Ordinal,
    request: ReasonRequest | None = None,
    if_match: IfMatch = None,
) -> AssetInfo:
    """The version is no longer served. Its data is kept, and approving it publishes it again."""
    reason = request.reason if request else None
    with without_events(caller):
        asset = await unpublish(
            services.assets, asset_id, version_ordinal, caller=caller, reason=reason, if_match=if_match
        )
    return _changed(services, response, asset, caller)


@router.post(
    "/{asset_id}/versions/{version_ordinal}/export",
    operation_id="export_version",
    summary="Export a version again",
    responses=_CHANGE,
)
async def export_version(
    *,
    services: Services,
    caller: Operator,
    response: Response,
    asset_id: AssetName,
    version_ordinal: Ordinal,
    request: ReasonRequest | None = None,
    if_match: IfMatch = None,
) -> AssetInfo:
    """Copy an approved, public version to the external zone again: after a failure, or to repair its copies. Copies
    that are correct are not written again. `revisions[].external` of the response has the state."""
    reason = request.reason if request else None
    asset = await export_again(
        services.assets, asset_id, version_ordinal, caller=caller, reason=reason, if_match=if_match
    )
    return _changed(services, response, asset)


@router.delete(
    "/{asset_id}/versions/{version_ordinal}",
    operation_id="delete_version",
    summary="Delete a version",
    responses=_CHANGE,
)
async def delete_version(
    *,
    services: Services,
    caller: Remover,
    response: Response,
    asset_id: AssetName,
    version_ordinal: Ordinal,
    reason: Reason = None,
    if_match: IfMatch = None,
) -> AssetInfo:
    """The version is no longer served, and does not block later ones. Its data is removed after `PURGE_DAYS`; 0
    keeps it."""
    asset = await delete(services.assets, asset_id, version_ordinal, caller=caller, reason=reason, if_match=if_match)
    return _changed(services, response, asset)


@router.post(
    "/{asset_id}/clear", operation_id="clear_asset", summary="Change the clearance of an asset", responses=_CHANGE
)
async def clear_asset(
    *,
    services: Services,
    caller: Reviewer,
    response: Response,
    asset_id: AssetName,
    request: ClearRequest,
    if_match: IfMatch = None,
) -> AssetInfo:
    """The clearance decides who may see approved versions: only reviewers, operators and
    administrators (`uncleared`), internal users (`ouo`), or
    everyone (`public`)."""
    level = Clearance(request.clearance_level)
    asset = await clear(services.assets, asset_id, level, caller=caller, reason=request.reason, if_match=if_match)
    return _changed(services, response, asset)


@router.post(
    "/{asset_id}/expose", operation_id="expose_asset", summary="Change the exposure of an asset", responses=_CHANGE
)
async def expose_asset(
    *,
    services: Services,
    caller: Reviewer,
    response: Response,
    asset_id: AssetName,
    request: ExposeRequest,
    if_match: IfMatch = None,
) -> AssetInfo:
    """The exposure decides which approved versions are served: the latest one, or each under its number."""
    exposure = Exposure(request.exposure)
    asset = await expose(services.assets, asset_id, exposure, caller=caller, reason=request.reason, if_match=if_match)
    return _changed(services, response, asset)


@router.post("/{asset_id}/unpublish", operation_id="unpublish_asset", summary="Unpublish an asset", responses=_CHANGE)
async def unpublish_asset(
    *,
    services: Services,
    caller: Reviewer,
    response: Response,
    asset_id: AssetName,
    request: ReasonRequest | None = None,
    if_match: IfMatch = None,
) -> AssetInfo:
    """The versions of the asset are no longer served. Approving a version publishes it again."""
    reason = request.reason if request else None
    asset = await unpublish(services.assets, asset_id, caller=caller, reason=reason, if_match=if_match)
    return _changed(services, response, asset)


@router.delete("/{asset_id}", operation_id="delete_asset", summary="Delete an asset", responses=_CHANGE)
async def delete_asset(
    *,
    services: Services,
    caller: Remover,
    response: Response,
    asset_id: AssetName,
    reason: Reason = None,
    if_match: IfMatch = None,
) -> AssetInfo:
    """The versions of the asset are no longer served. Their data is removed after `PURGE_DAYS`; 0 keeps it. If the
    asset is submitted again, it must be cleared again."""
    asset = await delete(services.assets, asset_id, caller=caller, reason=reason, if_match=if_match)
    return _changed(services, response, asset)


@router.post(
    "/{asset_id}/versions/{version_ordinal}/links",
    operation_id="make_link",
    summary="Create a signed link to a version",
    status_code=201,
    responses=responses(404, 409),
)
async def make_version_link(
    services: Services,
    caller: Reviewer,
    asset_id: AssetName,
    version_ordinal: Ordinal,
    request: LinkRequest | None = None,
) -> SignedLink:
    """Anyone with the link may read this version without a key, until the link expires or the version is unpublished or
    deleted. With `revision`, the link may be to a revision that is not served (a preview). Other links also stop
    working when the asset becomes `uncleared`."""
    request = request or LinkRequest()
    return await make_link(
        services.assets,
        Addresses.of(services.settings),
        asset_id,
        version_ordinal,
        caller=caller,
        valid_seconds=3600 * request.expires_in_hours,
        revision=request.revision,
    )
