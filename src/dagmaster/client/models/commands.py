"""Direct commands: their inputs and results. `GET /commands` lists them with the JSON schemas of their inputs."""

from datetime import datetime
from typing import Annotated, Any, Literal, Self
from uuid import UUID

from pydantic import Field, model_validator

from dagmaster.client.models.assets import ClearanceLevel, Reason
from dagmaster.client.models.base import ApiModel, Extensible, RequestModel
from dagmaster.client.models.layers import LayerMetadataInfo

AssetKey = Annotated[
    str, Field(min_length=1, max_length=200, description="The id of the asset, or of its dataset", examples=["dem"])
]
LayerKey = Annotated[str, Field(min_length=1, max_length=128, description="The layer of the asset")]
MAX_REVIEWS = 100


class CommandInfo(ApiModel):
    """`inputs` is the JSON schema of the request's body, `outputs` that of the response's."""

    name: str
    summary: str
    description: str
    permission: str
    inputs: dict[str, Any]
    outputs: dict[str, Any]


class LayerCommand(RequestModel):
    """A layer of an asset."""

    asset: AssetKey
    layer: LayerKey = "raster"
    reason: Reason | None = None


class LayerCommandResult(ApiModel):
    """`is_changed` is false if there was nothing to change."""

    is_changed: bool
    layer: LayerMetadataInfo


class ReindexCommand(RequestModel):
    """An asset whose STAC documents are rebuilt."""

    asset: AssetKey
    reason: Reason | None = None


class ReindexResult(ApiModel):
    """The number of versions and items of the asset in the catalogue."""

    asset_id: str
    dataset_id: str
    versions: int
    items: int


class MigrateCommand(RequestModel):
    """A migration of the schema of this installation."""

    reason: Reason | None = None


class InvalidateCommand(RequestModel):
    """The cache that all orchestrators reload, and how long the response waits for them."""

    cache: Literal["workflows"] = "workflows"
    wait_seconds: Annotated[float, Field(ge=0, le=8)] = 5.0
    reason: Reason | None = None


class CacheReader(ApiModel):
    """An orchestrator, and the workflows that it uses."""

    instance_id: UUID
    host: str
    pid: int
    is_reloaded: bool
    workflow_count: int | None = None
    workflows_refused: int | None = None
    workflows_read_at: datetime | None = None


class InvalidateResult(ApiModel):
    """`is_complete` is false if some live orchestrators have not reloaded their workflows yet."""

    cache: str
    generation: int
    is_complete: bool
    instances: list[CacheReader]


class ReviewEntry(RequestModel):
    """A decision on one version, or a clearance of one asset."""

    asset: AssetKey
    version_ordinal: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    revision: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None


class ReviewManyCommand(RequestModel):
    """The same decision on many versions. `approve`, `reject` and `unpublish` require the `version_ordinal` of each
    entry; `clear` changes the clearance of assets. With `revision`, an entry is refused if a newer revision exists."""

    action: Literal["approve", "reject", "unpublish", "clear"]
    entries: Annotated[list[ReviewEntry], Field(min_length=1, max_length=MAX_REVIEWS)]
    clearance_level: ClearanceLevel | None = None
    reason: Reason | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.action == "clear" and self.clearance_level is None:
            raise ValueError("clear requires a clearance_level")
        if self.action == "approve" and self.clearance_level == "uncleared":
            raise ValueError("approve does not allow the clearance_level uncleared: use ouo or public, or leave it out")
        if self.action in ("reject", "unpublish") and self.clearance_level is not None:
            raise ValueError(f"{self.action} does not allow a clearance_level")
        if self.action == "reject" and self.reason is None:
            raise ValueError("reject requires a reason")
        if self.action != "clear" and any(entry.version_ordinal is None for entry in self.entries):
            raise ValueError(f"{self.action} requires the version_ordinal of each entry")
        keys = [(entry.asset, entry.version_ordinal) for entry in self.entries]
        if len(set(keys)) < len(keys):
            raise ValueError("an entry is given twice")
        return self


class ReviewResult(ApiModel):
    """`unchanged`: the decision was made before. `refused`: `code` and `message` say why. `not_tried`: the time limit
    was reached; send the entry again."""

    asset: str
    version_ordinal: int | None = None
    outcome: Extensible[Literal["changed", "unchanged", "refused", "not_tried"]]
    code: str | None = None
    message: str | None = None


class ReviewManyResult(ApiModel):
    """One result for each entry, in their order."""

    changed: int
    unchanged: int
    refused: int
    not_tried: int
    results: list[ReviewResult]
