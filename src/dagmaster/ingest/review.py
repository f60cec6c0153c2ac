"""The review of a result: `dagmaster process` approves its own result, unless --review is given."""

from dataclasses import dataclass

from dagmaster.addresses import rebased
from dagmaster.client.json_client import JsonClient
from dagmaster.client.models.assets import AssetInfo, SignedLink, VersionInfo
from dagmaster.client.models.base import read
from dagmaster.errors import Conflict, NotAllowed
from dagmaster.ingest.results import ResultUrls
from dagmaster.ingest.submission import Ingestion

CLEARANCE = "ouo"


@dataclass(frozen=True, slots=True)
class ReviewState:
    """Whether the result is approved; if not, why. Without a reason it waits for review."""

    is_approved: bool
    asset: AssetInfo
    ordinal: int
    reason: str | None = None


def decide(client: JsonClient, ingestion: Ingestion) -> ReviewState:
    """Approve the result, unless it is to be reviewed first, or was reviewed already."""
    result = ingestion.submitted
    asset = read(AssetInfo, client.asset(result.asset_id))
    ordinal = result.version_ordinal or 0
    version = next(each for each in asset.versions if each.version_ordinal == ordinal)
    if _is_approved(version, result.revision):
        return ReviewState(True, asset, ordinal)
    if version.revision != result.revision:
        return ReviewState(False, asset, ordinal, f"revision {version.revision} was submitted meanwhile")
    if version.approval_state == "rejected":
        return ReviewState(False, asset, ordinal, f"the result was rejected: {version.rejection_reason}")
    if ingestion.is_to_review:
        return ReviewState(False, asset, ordinal)
    clearance = CLEARANCE if asset.clearance_state == "uncleared" else None
    request = {"revision": result.revision, "clearance_level": clearance}
    try:
        response = client.change_asset(result.asset_id, "approve", request, version=ordinal)
    except (Conflict, NotAllowed) as error:
        return ReviewState(False, asset, ordinal, f"the result is not approved: {error.message}")
    return ReviewState(True, read(AssetInfo, response), ordinal)


def _is_approved(version: VersionInfo, revision: int | None) -> bool:
    return version.approved_revision == revision and version.unpublished_at is None and version.deleted_at is None


def preview_urls(client: JsonClient, ingestion: Ingestion, maps_url: str) -> ResultUrls:
    """Signed URLs of a revision that is not served."""
    result = ingestion.submitted
    link = read(SignedLink, client.link(result.asset_id, result.version_ordinal or 0, {"revision": result.revision}))
    return ResultUrls(tilejson=rebased(link.tilejson_url, maps_url), viewer=rebased(link.map_url, maps_url))
