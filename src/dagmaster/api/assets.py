"""Assets: list them, get one with its versions and its history."""

from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Path, Query, Request, Response

from dagmaster.access.caller import Caller
from dagmaster.access.decision import may_preview
from dagmaster.access.permissions import Permission
from dagmaster.addresses import Addresses
from dagmaster.api import examples
from dagmaster.api.problems import responses
from dagmaster.api.services import ApiServices, Services
from dagmaster.api.visibility import visible_assets, visible_part
from dagmaster.client.models.asset_pages import ListedAsset, ListedState
from dagmaster.client.models.assets import (
    AssetHistoryEntry,
    AssetInfo,
    ClearanceLevel,
    ExternalCopiesInfo,
    VersionInfo,
)
from dagmaster.client.models.pages import Page
from dagmaster.errors import InvalidRequest, NotAllowed, NotFound
from dagmaster.storage.location import Location, Zone
from dagmaster.web.authentication import needs
from dagmaster.web.pages import MAX_NAME_LENGTH, CommaSeparated, Cursor, Limit, joined, moment_and_id, page_of

router = APIRouter(prefix="/assets", tags=["assets"])

AssetName = Annotated[
    str,
    Path(
        description="The id of the asset, or of its dataset", max_length=MAX_NAME_LENGTH, examples=[examples.ASSET_ID]
    ),
]
Ordinal = Annotated[int, Path(description="The number of the version, from 0", ge=0, le=2**31 - 1)]
Reader = Annotated[Caller, Depends(needs(Permission.ASSETS_READ))]

_ETAG = {"ETag": {"description": "Send it as `If-Match` with a change", "schema": {"type": "string"}}}
_REF = "ref."


def with_etag() -> dict[int | str, dict[str, Any]]:
    return {200: {"headers": _ETAG}}


@router.get("", operation_id="list_assets", summary="List assets, newest first", responses=responses())
async def list_assets(
    *,
    services: Services,
    caller: Reader,
    request: Request,
    platform_id: Annotated[str | None, Query(max_length=64, description="Only assets of this platform")] = None,
    clearance: Annotated[ClearanceLevel | None, Query(description="Only assets with this clearance")] = None,
    to_review: Annotated[bool, Query(description="Only assets with a version that waits for review")] = False,
    q: Annotated[
        str | None, Query(max_length=200, description="Only assets with this text in their ids, title or references")
    ] = None,
    refs: Annotated[
        str | None,
        Query(
            max_length=4000,
            description="Only assets with these references, as a JSON object; `ref.NAME=value` is also accepted",
        ),
    ] = None,
    deleted: Annotated[bool, Query(description="Only deleted assets")] = False,
    state: Annotated[CommaSeparated[ListedState] | None, Query(description="Only assets in these states")] = None,
    after: Cursor = None,
    limit: Limit = 50,
) -> Page[ListedAsset]:
    """Reviewers, operators and administrators see all assets, viewers see published assets. A platform sees its own
    assets, and the public assets of other platforms."""
    cursor = moment_and_id(after)
    rows = await services.assets.assets(
        visible=visible_assets(caller),
        limit=limit + 1,
        after=(cursor[0], cursor[1].hex) if cursor else None,
        platform_id=platform_id,
        clearance=clearance,
        refs={**_refs_of(refs), **_named_refs(request)},
        text=q,
        to_review=to_review or None,
        is_deleted=None if state and "deleted" in state else deleted,
        states=state,
    )
    return page_of(rows, limit, lambda asset: joined(asset.created_at.isoformat(), asset.asset_id))


def _refs_of(text: str | None) -> dict[str, str]:
    if text is None:
        return {}
    try:
        refs = orjson.loads(text)
    except orjson.JSONDecodeError:
        refs = None
    if not isinstance(refs, dict) or not all(isinstance(value, str) for value in refs.values()):
        raise InvalidRequest(
            "`refs` is not a JSON object with string values",
            code="refs.invalid",
            hint="""for example refs={"dataset_id": "floods"}, or ref.dataset_id=floods""",
        )
    return refs


def _named_refs(request: Request) -> dict[str, str]:
    return {name.removeprefix(_REF): value for name, value in request.query_params.items() if name.startswith(_REF)}


@router.get(
    "/{asset_id}",
    operation_id="get_asset",
    summary="Get an asset with its versions",
    responses={**with_etag(), **responses(404)},
)
async def get_asset(services: Services, caller: Reader, response: Response, asset_id: AssetName) -> AssetInfo:
    asset = await read_asset(services, caller, asset_id)
    response.headers["ETag"] = etag_of(asset)
    return asset


@router.get(
    "/{asset_id}/history",
    operation_id="get_asset_history",
    summary="List the history of an asset, newest first",
    responses=responses(404),
)
async def get_asset_history(
    *,
    services: Services,
    caller: Reader,
    asset_id: AssetName,
    version: Annotated[int | None, Query(ge=0, le=2**31 - 1, description="Only events of this version")] = None,
    after: Annotated[int | None, Query(ge=1, le=2**63 - 1, description="`next` of the previous page")] = None,
    limit: Limit = 50,
) -> Page[AssetHistoryEntry]:
    """Who did what, when and why. Only for reviewers, operators and administrators."""
    asset = await read_asset(services, caller, asset_id)
    if not may_preview(caller):
        raise NotAllowed(
            "only reviewers, operators and administrators may read the history of an asset", code="history.not-allowed"
        )
    rows = await services.assets.history(asset.asset_id, limit=limit + 1, after=after, version_ordinal=version)
    return page_of(rows, limit, lambda event: event.event_id)


@router.get(
    "/{asset_id}/versions/{version_ordinal}",
    operation_id="get_version",
    summary="Get a version with its revisions",
    responses={**with_etag(), **responses(404)},
)
async def get_version(
    services: Services, caller: Reader, response: Response, asset_id: AssetName, version_ordinal: Ordinal
) -> VersionInfo:
    asset = await read_asset(services, caller, asset_id)
    response.headers["ETag"] = etag_of(asset)
    return version_of(asset, version_ordinal)


async def read_asset(services: ApiServices, caller: Caller, name: str) -> AssetInfo:
    """The asset as the caller may see it."""
    return visible_part(caller, with_urls(await services.assets.asset(name), Addresses.of(services.settings)), name)


def with_urls(asset: AssetInfo, addresses: Addresses) -> AssetInfo:
    """The asset with the URLs of its external copies, which are built from their paths."""
    versions = []
    for version in asset.versions:
        revisions = [
            revision.model_copy(update={"external": _with_urls(revision.external, addresses)})
            for revision in version.revisions
        ]
        versions.append(version.model_copy(update={"revisions": revisions}))
    return asset.model_copy(update={"versions": versions})


def _with_urls(copies: ExternalCopiesInfo, addresses: Addresses) -> ExternalCopiesInfo:
    paths = {"url": copies.blob_path, "stac_url": copies.stac_path, "manifest_url": copies.manifest_path}
    urls = {
        name: addresses.external(Location.parse(path, Zone.EXTERNAL)) if path and copies.state == "exported" else None
        for name, path in paths.items()
    }
    return copies.model_copy(update=urls)


def etag_of(asset: AssetInfo) -> str:
    return f'"{asset.etag}"'


def version_of(asset: AssetInfo, ordinal: int) -> VersionInfo:
    version = next((version for version in asset.versions if version.version_ordinal == ordinal), None)
    if version is None:
        raise NotFound(f"the asset has no version {ordinal}", code="version.not-found")
    return version
