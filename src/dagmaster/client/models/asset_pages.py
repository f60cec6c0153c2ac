"""Models of the web pages about assets: lists with extents, the review queue, comparisons, provenance, requests."""

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from pydantic import Field, field_serializer

from dagmaster.client.models.assets import AssetSummary
from dagmaster.client.models.base import ApiModel, Extensible
from dagmaster.client.models.callback_events import CallbackInfo
from dagmaster.client.models.pages import Page
from dagmaster.jobs.model import StoredJson
from dagmaster.observe.redaction import redact

ListedState = Literal["needs_review", "processing", "failed", "rejected", "approved", "published", "deleted"]


class ListedAsset(AssetSummary):
    """An asset in a list. An asset with several versions may have several states."""

    states: list[Extensible[ListedState]] = Field(
        [],
        description="`published`: approved and cleared; `approved`: approved, but not cleared yet; `failed` and "
        "`rejected`: states of the newest version",
    )
    bbox: list[float] | None = Field(
        None, description="Bounds (west, south, east, north) of the newest version that the caller can see"
    )


class PendingReview(ApiModel):
    """A version that waits for a review. `etag` is the ETag of its asset, to be sent as `If-Match`."""

    asset_id: str
    dataset_id: str
    title: str | None = None
    platform_id: str
    version_ordinal: int
    version_label: str
    revision: int
    waiting_since: datetime
    workflow_id: str | None = None
    job_id: UUID | None = None
    submitted_by: str | None = None
    is_partial: bool = False
    same_content_as: int | None = Field(None, description="Another version with the same content")
    bbox: list[float] | None = None
    etag: str


class ReviewPage(Page[PendingReview]):
    total: int = Field(description="Versions that wait for a review, counted up to 1,000")
    is_exact: bool


class RevisionFacts(ApiModel):
    """Facts about the data of a revision, from its STAC documents. Missing facts are null."""

    version_ordinal: int
    version_label: str
    revision: int
    title: str | None = None
    license: str | None = None
    bbox: list[float] | None = None
    interval: list[str | None] | None = None
    crs: str | None = None
    width: int | None = None
    height: int | None = None
    resolution_metres: float | None = None
    item_count: int = 0
    size_bytes: int | None = None
    source_checksum: str | None = None
    bands: list[dict[str, Any]] = []


class Difference(ApiModel):
    """A field with different values, such as `crs` or `bands.1.statistics.mean`."""

    field: str
    before: Any = None
    after: Any = None
    delta: float | None = Field(None, description="The difference of two numbers")


class VersionComparison(ApiModel):
    """Two revisions and their differences."""

    asset_id: str
    before: RevisionFacts
    after: RevisionFacts
    differences: list[Difference]


class Provenance(ApiModel):
    """The source of a revision, and the job, workflow and parameters that produced it."""

    asset_id: str
    version_ordinal: int
    revision: int
    source: StoredJson = {}
    source_size: int | None = Field(None, description="The size of the source in bytes")
    content_hash: str | None = None
    same_content_as: int | None = Field(None, description="Another version with the same content")
    workflow_id: str | None = None
    workflow_version: str | None = None
    definition_hash: str | None = Field(None, description="Null if the job was deleted")
    parameters: StoredJson = {}
    inputs: StoredJson | None = Field(None, description="The inputs of the job; null if the job was deleted")
    job_id: UUID | None = None
    submitted_by: str | None = None
    created_at: datetime
    processed_at: datetime | None = None
    processing: dict[str, Any] = Field({}, description="The `processing:` fields of its STAC item")


class AssetRequestInfo(ApiModel):
    """A request of a platform, its status, and its callbacks."""

    request_id: str
    platform_id: str
    version_ordinal: int
    revision: int
    outcome: str
    status: str
    reason: str | None = None
    submitted_by: str | None = None
    callback_url: str | None = None
    created_at: datetime
    callbacks: list[CallbackInfo] | None = Field(None, description="Null for callers who may not see callbacks")

    @field_serializer("callback_url")
    def _without_secrets(self, url: str | None) -> str | None:
        return redact(url) if url else url
