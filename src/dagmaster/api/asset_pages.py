"""Data for the pages of assets: the review queue, the comparison of two versions, the provenance of a version, and the
requests of its platform with their callbacks."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query

from dagmaster.access.caller import Caller
from dagmaster.access.decision import may_preview
from dagmaster.access.permissions import Permission, may
from dagmaster.api.assets import AssetName, Ordinal, Reader, read_asset, version_of
from dagmaster.api.problems import responses
from dagmaster.api.services import ApiServices, Services
from dagmaster.client.models.asset_pages import (
    AssetRequestInfo,
    Provenance,
    ReviewPage,
    RevisionFacts,
    VersionComparison,
)
from dagmaster.client.models.assets import AssetInfo, VersionInfo
from dagmaster.client.models.pages import Page
from dagmaster.database.assets.reads import Documents
from dagmaster.errors import NotAllowed, NotFound
from dagmaster.observe.redaction import redact_value
from dagmaster.operations.assets.compare import differences, facts_of
from dagmaster.web.authentication import requires
from dagmaster.web.pages import SEPARATOR, Cursor, Limit, bad_cursor, joined, moment_and_name, page_of

router = APIRouter(tags=["assets"])

MAX_COUNTED = 1000
RevisionNumber = Annotated[
    int | None, Query(ge=1, le=2**31 - 1, description="The revision; by default the newest one that was processed")
]
_MAX_INTEGER = 2**31 - 1


@router.get(
    "/reviews",
    operation_id="list_reviews",
    summary="List versions that wait for a review, the oldest first",
    responses=responses(),
    dependencies=[requires(Permission.ASSETS_REVIEW)],
)
async def list_reviews(
    services: Services,
    platform_id: Annotated[str | None, Query(max_length=64, description="Only versions of this platform")] = None,
    after: Cursor = None,
    limit: Limit = 50,
) -> ReviewPage:
    rows = await services.assets.review_queue(limit=limit + 1, after=_review_cursor(after), platform_id=platform_id)
    count = await services.assets.review_count(MAX_COUNTED + 1, platform_id)
    page = page_of(
        rows,
        limit,
        lambda review: joined(joined(review.waiting_since.isoformat(), review.asset_id), review.version_ordinal),
    )
    return ReviewPage(items=page.items, next=page.next, total=min(count, MAX_COUNTED), is_exact=count <= MAX_COUNTED)


@router.get(
    "/assets/{asset_id}/compare",
    operation_id="compare_versions",
    summary="Compare two versions of an asset",
    responses=responses(404),
)
async def compare_versions(
    *,
    services: Services,
    caller: Reader,
    asset_id: AssetName,
    before: Annotated[int, Query(alias="from", ge=0, le=_MAX_INTEGER, description="The number of a version, from 0")],
    after: Annotated[int, Query(alias="to", ge=0, le=_MAX_INTEGER, description="The number of another version")],
    before_revision: Annotated[
        int | None,
        Query(
            alias="from_revision",
            ge=1,
            le=_MAX_INTEGER,
            description="The revision of version `from`; by default the newest one that was processed",
        ),
    ] = None,
    after_revision: Annotated[
        int | None,
        Query(
            alias="to_revision",
            ge=1,
            le=_MAX_INTEGER,
            description="The revision of version `to`; by default the newest one that was processed",
        ),
    ] = None,
) -> VersionComparison:
    """Compares extent, CRS, size, bands and statistics, as the STAC documents of both versions state them. Two
    revisions of one version can be compared too."""
    asset = await read_asset(services, caller, asset_id)
    first = await _facts(services, asset, version_of(asset, before), before_revision)
    second = await _facts(services, asset, version_of(asset, after), after_revision)
    return VersionComparison(
        asset_id=asset.asset_id, before=first, after=second, differences=differences(first, second)
    )


async def _facts(services: ApiServices, asset: AssetInfo, version: VersionInfo, requested: int | None) -> RevisionFacts:
    revision = _revision_of(version, requested)
    documents = await services.assets.documents(asset.dataset_id, version.version_ordinal, revision)
    if documents.collection is None:
        raise NotFound(
            f"revision {revision} of version {version.version_ordinal} has no STAC documents",
            code="revision.no-documents",
            hint="the revision was not processed, or its data was deleted",
        )
    return facts_of(version, revision, documents)


def _revision_of(version: VersionInfo, requested: int | None) -> int:
    """A revision that the caller may see; by default the newest one that was processed."""
    visible = {revision.revision: revision for revision in version.revisions}
    if requested is not None:
        if requested not in visible:
            raise NotFound(f"the version has no revision {requested}", code="revision.not-found")
        return requested
    processed = [number for number, each in visible.items() if each.processing_state == "completed"]
    return max(processed, default=version.revision)


@router.get(
    "/assets/{asset_id}/versions/{version_ordinal}/provenance",
    operation_id="get_provenance",
    summary="Get the provenance of a version",
    responses=responses(404),
)
async def get_provenance(
    services: Services,
    caller: Reader,
    asset_id: AssetName,
    version_ordinal: Ordinal,
    revision: RevisionNumber = None,
) -> Provenance:
    """The source of the version, the workflow and the job that processed it, and their parameters. Only for reviewers,
    operators and administrators."""
    asset = await _asset_for_preview(services, caller, asset_id)
    number = _revision_of(version_of(asset, version_ordinal), revision)
    origin = await services.assets.origin(asset.asset_id, version_ordinal, number)
    documents = await services.assets.documents(asset.dataset_id, version_ordinal, number)
    secrets_removed = {name: redact_value(getattr(origin, name)) for name in ("source", "parameters", "inputs")}
    return origin.model_copy(update={**secrets_removed, "processing": _processing(documents)})


def _processing(documents: Documents) -> dict[str, Any]:
    properties = (documents.item or {}).get("properties")
    fields = properties if isinstance(properties, dict) else {}
    return {name: value for name, value in fields.items() if name.startswith("processing:")}


@router.get(
    "/assets/{asset_id}/requests",
    operation_id="list_asset_requests",
    summary="List the requests of the platform for an asset, newest first",
    responses=responses(404),
)
async def list_asset_requests(
    *,
    services: Services,
    caller: Reader,
    asset_id: AssetName,
    version: Annotated[int | None, Query(ge=0, le=2**31 - 1, description="Only requests for this version")] = None,
    after: Cursor = None,
    limit: Limit = 50,
) -> Page[AssetRequestInfo]:
    """Only for reviewers, operators and administrators. Operators also see the callbacks."""
    asset = await _asset_for_preview(services, caller, asset_id)
    rows = await services.assets.requests(
        asset.asset_id, limit=limit + 1, after=moment_and_name(after), version_ordinal=version
    )
    page = page_of(rows, limit, lambda request: joined(request.created_at.isoformat(), request.request_id))
    if may(caller, Permission.QUEUES_OPERATE):
        names = [request.request_id for request in page.items]
        platforms = sorted({request.platform_id for request in page.items})
        callbacks = await services.reads.callbacks_of(names, platforms)
        items = [each.model_copy(update={"callbacks": callbacks[each.request_id]}) for each in page.items]
        return Page(items=items, next=page.next)
    return page


async def _asset_for_preview(services: ApiServices, caller: Caller, asset_id: str) -> AssetInfo:
    asset = await read_asset(services, caller, asset_id)
    if not may_preview(caller):
        raise NotAllowed("only reviewers, operators and administrators may read this", code="history.not-allowed")
    return asset


def _review_cursor(after: str | None) -> tuple[datetime, str, int] | None:
    if after is None:
        return None
    first, _, ordinal = after.rpartition(SEPARATOR)
    if not ordinal.isascii() or not ordinal.isdigit() or len(ordinal) > 9:
        raise bad_cursor(after)
    moment = moment_and_name(first)
    return None if moment is None else (*moment, int(ordinal))
