"""The records of assets: platforms, assets, versions, revisions, submissions, STAC documents, layers, history, keys,
uploads.

A record is a row of its table. One asset is one dataset and one STAC collection (decision 0052). The engine does not
know these tables: a job has an `asset_id` and a `version_ordinal`, which the engine never reads, and a trigger on
`dag_jobs` updates the revision when its job ends.
"""

from datetime import datetime
from typing import Annotated, Any, ClassVar
from uuid import UUID

from pydantic import Field

from dagmaster.assets.external_copies import ExternalCopies
from dagmaster.assets.states import ApprovalState, Clearance, Exposure, ProcessingState
from dagmaster.records import ForeignKey, Index, Record, Table

PlatformId = Annotated[str, Field(min_length=1, max_length=64)]
Actor = Annotated[str, Field(min_length=1, max_length=200)]
Label = Annotated[str, Field(min_length=1, max_length=200)]
LayerName = Annotated[str, Field(min_length=1, max_length=128)]

_NOW = {"created_at": "dagapp.clock()", "updated_at": "dagapp.clock()"}


class Platform(Record):
    """An external system that submits data. Each is a row. See `identity.RegisteredPlatform` for its rules.

    `b2b_may_approve`: its b2b keys may approve, reject and unpublish versions of its own assets."""

    table: ClassVar[Table] = Table(
        "platforms", key=("platform_id",), defaults={**_NOW, "optional_refs": "'{}'::text[]"}
    )

    platform_id: PlatformId
    display_name: Annotated[str, Field(min_length=1, max_length=200)]
    required_refs: list[str]
    optional_refs: list[str] = []
    version_ref: str | None = None
    is_active: bool = True
    b2b_may_approve: bool = False
    created_at: datetime
    updated_at: datetime


class GeospatialAsset(Record):
    """`platform_refs` are the references that identify the asset; they never change. `dataset_id` names its STAC
    collection and the folder of its objects. The id of the newest event of an asset is its ETag."""

    table: ClassVar[Table] = Table(
        "geospatial_assets",
        key=("asset_id",),
        foreign_keys=(ForeignKey(("platform_id",), "platforms", ("platform_id",), "RESTRICT"),),
        indexes=(
            Index("geospatial_assets_one_per_dataset", ("dataset_id",), unique=True),
            Index("geospatial_assets_by_platform", ("platform_id", "created_at", "asset_id")),
            Index("geospatial_assets_by_time", ("created_at", "asset_id")),
            Index("geospatial_assets_by_refs", ("platform_refs",), method="gin"),
            Index(
                "geospatial_assets_published",
                ("clearance_state", "dataset_id"),
                where="latest_approved_version_ordinal IS NOT NULL",
            ),
        ),
        checks={
            "asset_id": "asset_id ~ '^[0-9a-f]{32}$'",
            "public": "(clearance_state = 'public') = (made_public_at IS NOT NULL)",
            "cleared": "(clearance_state <> 'uncleared') = (cleared_at IS NOT NULL)",
        },
        defaults=_NOW,
        types={"latest_approved_version_ordinal": "integer"},
    )

    asset_id: str
    platform_id: PlatformId
    platform_refs: dict[str, Any]
    dataset_id: str
    title: str | None = None
    clearance_state: Clearance = Clearance.UNCLEARED
    cleared_at: datetime | None = None
    cleared_by: Actor | None = None
    made_public_at: datetime | None = None
    made_public_by: Actor | None = None
    exposure: Exposure = Exposure.LATEST_ONLY
    latest_approved_version_ordinal: int | None = None
    deleted_at: datetime | None = None
    deleted_by: Actor | None = None
    created_at: datetime
    created_by: Actor | None = None
    updated_at: datetime


class AssetVersion(Record):
    """Approval and processing are those of the newest revision, `revision`. `approved_revision` is the one that is
    served, until a newer one is approved."""

    table: ClassVar[Table] = Table(
        "asset_versions",
        key=("asset_id", "version_ordinal"),
        foreign_keys=(ForeignKey(("asset_id",), "geospatial_assets", ("asset_id",)),),
        indexes=(
            Index(
                "asset_versions_one_per_label", ("asset_id", "version_label"), unique=True, where="deleted_at IS NULL"
            ),
            Index("asset_versions_by_job", ("current_job_id",), where="current_job_id IS NOT NULL"),
            Index(
                "asset_versions_to_review",
                ("updated_at", "asset_id", "version_ordinal"),
                where="approval_state = 'pending_review' AND processing_state = 'completed' AND deleted_at IS NULL",
            ),
        ),
        checks={
            "ordinal": "version_ordinal >= 0 AND revision >= 1",
            "approved": "approved_revision IS NULL OR approved_revision BETWEEN 1 AND revision",
            "rejected": "approval_state <> 'rejected' OR rejection_reason IS NOT NULL",
        },
        defaults=_NOW,
        types={"version_ordinal": "integer", "revision": "integer", "approved_revision": "integer"},
    )

    asset_id: str
    version_ordinal: int
    version_label: Label
    platform_refs: dict[str, Any]
    revision: int = 1
    approval_state: ApprovalState = ApprovalState.PENDING_REVIEW
    processing_state: ProcessingState = ProcessingState.QUEUED
    approved_revision: int | None = None
    current_job_id: UUID | None = None
    reviewer: Actor | None = None
    reviewed_at: datetime | None = None
    rejection_reason: str | None = None
    unpublished_at: datetime | None = None
    unpublished_by: Actor | None = None
    deleted_at: datetime | None = None
    deleted_by: Actor | None = None
    created_at: datetime
    updated_at: datetime


class AssetRevision(Record):
    """One processing of a version: what was submitted, and what its job produced.

    `outputs` has blob_path, table_name, stac_item_id, stac_collection_id, external_blob_path, adf_run_id as far as they
    exist. `findings` are those of the validation and the processing; NULL until the job has ended, and in rows of
    earlier releases whose job was deleted. `reviewed_as` is the decision on this revision; it stays when a newer
    revision is submitted. `export_due_at` is set when the revision must be copied to the external zone,
    `withdrawal_due_at` when its copy must be removed. `is_unfit`: it failed because of its source. From
    `purge_started_at` on it can be neither approved nor run again; at `purged_at` its objects and documents were
    removed. `review_notified_at` is when reviewers were notified of it. `same_content_as` is another version with the
    same bytes, known once the source was read.

    The columns `external_…` follow the copies in the external zone (see `external_copies`). `external_job_id` is the
    last job that created or removed them, `external_due_at` the `export_due_at` or `withdrawal_due_at` for which that
    job was started, and `external_retry_at` when a failed withdrawal is retried.
    """

    table: ClassVar[Table] = Table(
        "asset_revisions",
        key=("asset_id", "version_ordinal", "revision"),
        foreign_keys=(ForeignKey(("asset_id", "version_ordinal"), "asset_versions", ("asset_id", "version_ordinal")),),
        indexes=(
            Index("asset_revisions_one_per_job", ("job_id",), unique=True, where="job_id IS NOT NULL"),
            Index("asset_revisions_by_content", ("content_hash",), where="content_hash IS NOT NULL"),
            Index("asset_revisions_export_due", ("export_due_at",), where="export_due_at IS NOT NULL"),
            Index("asset_revisions_withdrawal_due", ("withdrawal_due_at",), where="withdrawal_due_at IS NOT NULL"),
            Index("asset_revisions_withdrawn", ("withdrawn_at",), where="withdrawn_at IS NOT NULL"),
            Index("asset_revisions_by_external_job", ("external_job_id",), where="external_job_id IS NOT NULL"),
            Index("asset_revisions_kept", ("asset_id", "version_ordinal", "revision"), where="purged_at IS NULL"),
            Index(
                "asset_revisions_to_announce",
                ("processed_at", "asset_id"),
                where="processing_state = 'completed' AND reviewed_as IS NULL AND review_notified_at IS NULL",
            ),
        ),
        defaults={"created_at": "dagapp.clock()"},
        types={
            "version_ordinal": "integer",
            "revision": "integer",
            "same_content_as": "integer",
            "external_failures": "integer",
        },
    )

    asset_id: str
    version_ordinal: int
    revision: int
    job_id: UUID | None = None
    workflow_id: str | None = None
    parameters: dict[str, Any] = {}
    parameters_hash: str = ""
    source: dict[str, Any] = {}
    source_etag: str | None = None
    source_size: int | None = None
    content_hash: str | None = None
    same_content_as: int | None = None
    submitted_by: Actor | None = None
    processing_state: ProcessingState = ProcessingState.QUEUED
    is_partial: bool = False
    is_unfit: bool = False
    error_message: str | None = None
    outputs: dict[str, Any] = {}
    findings: list[dict[str, Any]] | None = None
    reviewed_as: ApprovalState | None = None
    reviewed_at: datetime | None = None
    export_due_at: datetime | None = None
    withdrawal_due_at: datetime | None = None
    external_copies: ExternalCopies = ExternalCopies.NONE
    external_job_id: UUID | None = None
    is_external_job_running: bool = False
    external_due_at: datetime | None = None
    external_failures: int = 0
    external_retry_at: datetime | None = None
    external_error: str | None = None
    exported_at: datetime | None = None
    withdrawn_at: datetime | None = None
    created_at: datetime
    processed_at: datetime | None = None
    review_notified_at: datetime | None = None
    purge_started_at: datetime | None = None
    purged_at: datetime | None = None


class AssetSubmission(Record):
    """A request of a platform and its outcome. It exists before the response is sent; a repeated request id gets its
    response from it. If it has a `callback_url`, `notified_status` is the last status that was processed: its callbacks
    were recorded, or it causes none."""

    table: ClassVar[Table] = Table(
        "asset_submissions",
        key=("request_id",),
        indexes=(
            Index("asset_submissions_by_asset", ("asset_id", "version_ordinal", "revision")),
            Index("asset_submissions_by_platform", ("platform_id", "created_at")),
        ),
        defaults={"created_at": "dagapp.clock()"},
        types={"version_ordinal": "integer", "revision": "integer", "same_content_as": "integer"},
    )

    request_id: Annotated[str, Field(min_length=1, max_length=64)]
    platform_id: PlatformId
    asset_id: str
    version_ordinal: int
    revision: int
    outcome: str
    same_content_as: int | None = None
    superseded_job_id: UUID | None = None
    request_hash: str
    submitted_by: Actor | None = None
    callback_url: Annotated[str, Field(max_length=512)] | None = None
    notified_status: str | None = None
    created_at: datetime


class RequestAlias(Record):
    """The id that a platform has given to a request whose row has a substitute id (assets/request_ids)."""

    table: ClassVar[Table] = Table("request_aliases", key=("stored_id",))

    stored_id: Annotated[str, Field(min_length=1, max_length=64)]
    request_id: Annotated[str, Field(min_length=1, max_length=64)]


class StacDocument(Record):
    """A STAC document that a job wrote for one revision of a dataset. `document_id` is the id of an item, or empty for
    the collection. Approval copies the documents into pgSTAC; until then only reviewers see them."""

    table: ClassVar[Table] = Table(
        "stac_documents",
        key=("dataset_id", "version_ordinal", "revision", "document_id"),
        defaults={"created_at": "dagapp.clock()"},
        types={"version_ordinal": "integer", "revision": "integer"},
    )

    dataset_id: str
    version_ordinal: int
    revision: int
    document_id: str = ""
    content: dict[str, Any]
    created_at: datetime


class LayerMetadata(Record):
    """What people have written about a layer of an asset. It belongs to the asset: new versions and revisions keep it.
    A field that is null, or an empty list, was not edited. `change_number` counts the changes: it is the ETag."""

    table: ClassVar[Table] = Table(
        "layer_metadata",
        key=("asset_id", "layer"),
        foreign_keys=(ForeignKey(("asset_id",), "geospatial_assets", ("asset_id",)),),
        defaults={"created_at": "dagapp.clock()", "updated_at": "dagapp.clock()", "keywords": "'{}'::text[]"},
    )

    asset_id: str
    layer: LayerName
    title: str | None = None
    description: str | None = None
    keywords: list[str] = []
    attribution: str | None = None
    style: dict[str, Any] = {}
    change_number: int = 1
    created_at: datetime
    updated_at: datetime
    updated_by: Actor


class CatalogLayer(Record):
    """A layer as portals see it: what is published of its metadata and of the STAC collection.

    There is a row only while the asset is published: withdrawing the asset removes it in the same transaction.
    `metadata` is what was edited, as it was when it was published; `digest` changes with it. The texts are those of the
    collection where nothing was edited. The version is the latest one."""

    table: ClassVar[Table] = Table(
        "layer_catalog",
        key=("asset_id", "layer"),
        foreign_keys=(ForeignKey(("asset_id",), "geospatial_assets", ("asset_id",)),),
        indexes=(Index("layer_catalog_by_dataset", ("dataset_id", "layer"), unique=True),),
        checks={"cleared": "clearance_state <> 'uncleared'"},
        defaults={
            "published_at": "dagapp.clock()",
            "updated_at": "dagapp.clock()",
            "keywords": "'{}'::text[]",
        },
        types={"version_ordinal": "integer", "revision": "integer"},
    )

    asset_id: str
    layer: LayerName
    dataset_id: str
    platform_id: PlatformId
    title: str
    description: str | None = None
    keywords: list[str] = []
    attribution: str | None = None
    style: dict[str, Any] = {}
    clearance_state: Clearance
    version_ordinal: int
    revision: int
    bbox: list[float] = []
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    metadata: dict[str, Any] = {}
    change_number: int = 0
    digest: str
    published_at: datetime
    published_by: Actor
    updated_at: datetime


class ExternalLayer(Record):
    """A layer that was published to the external database, or must be removed from it.

    Each change that the external database must get increments `generation`; the external database refuses a writer with
    an older one. `due_at` is set until the external database has the newest."""

    table: ClassVar[Table] = Table(
        "external_layers",
        key=("asset_id", "layer"),
        foreign_keys=(ForeignKey(("asset_id",), "geospatial_assets", ("asset_id",), "RESTRICT"),),
        indexes=(Index("external_layers_due", ("due_at",), where="due_at IS NOT NULL"),),
        defaults={"updated_at": "dagapp.clock()"},
    )

    asset_id: str
    layer: LayerName
    dataset_id: str
    is_wanted: bool = True
    generation: int = 1
    due_at: datetime | None = None
    attempts: int = 0
    error_message: str | None = None
    published_at: datetime | None = None
    requested_by: Actor
    updated_at: datetime


class AssetEvent(Record):
    """An entry of the audit log: who changed an asset, a platform or a key, ran a direct command or changed many jobs,
    when and why. Rows never change; they have their own retention."""

    table: ClassVar[Table] = Table(
        "asset_events",
        key=("event_id",),
        indexes=(
            Index("asset_events_by_asset", ("asset_id", "event_id"), where="asset_id IS NOT NULL"),
            Index("asset_events_by_time", ("created_at",)),
        ),
        defaults={"event_id": "nextval('dagapp.asset_event_id')", "created_at": "dagapp.clock()"},
        types={"version_ordinal": "integer", "revision": "integer"},
    )

    event_id: int
    asset_id: str | None = None
    version_ordinal: int | None = None
    revision: int | None = None
    platform_id: str | None = None
    action: str
    actor: Actor
    reason: str | None = None
    detail: dict[str, Any] = {}
    request_id: str | None = None
    created_at: datetime


class ApiKey(Record):
    """A key of a caller. The key is not stored: `secret_hash` is the SHA-256 of its text. After a rotation the previous
    secret is accepted until `previous_until`. With `queues`, a worker with this key claims tasks of these queues
    only."""

    table: ClassVar[Table] = Table(
        "api_keys",
        key=("key_id",),
        foreign_keys=(ForeignKey(("platform_id",), "platforms", ("platform_id",), "RESTRICT"),),
        indexes=(Index("api_keys_one_per_name", ("name",), unique=True, where="revoked_at IS NULL"),),
        defaults={"created_at": "dagapp.clock()"},
    )
    private: ClassVar[frozenset[str]] = frozenset({"secret_hash", "previous_hash"})

    key_id: Annotated[str, Field(min_length=1, max_length=32)]
    name: Actor
    scopes: list[str]
    platform_id: PlatformId | None = None
    secret_hash: str
    previous_hash: str | None = None
    previous_until: datetime | None = None
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    revoked_by: Actor | None = None
    last_used_at: datetime | None = None
    created_at: datetime
    created_by: Actor | None = None
    queues: list[str] | None = None


class WebSession(Record):
    """A browser whose user has signed in, with a key or, without `key_id`, at an OIDC issuer. The text in the cookie is
    not stored: `secret_hash` is its SHA-256. `key_hash` is the SHA-256 of the key that was sent: the session ends when
    the secret of that key is no longer accepted. A session that began with a key always has the current name, scopes
    and platform of the key."""

    table: ClassVar[Table] = Table(
        "web_sessions",
        key=("session_id",),
        foreign_keys=(ForeignKey(("key_id",), "api_keys", ("key_id",), "CASCADE"),),
        indexes=(
            Index("web_sessions_by_key", ("key_id",), where="key_id IS NOT NULL"),
            Index("web_sessions_by_expiry", ("expires_at",)),
        ),
        defaults={"created_at": "dagapp.clock()"},
    )
    private: ClassVar[frozenset[str]] = frozenset({"secret_hash", "key_hash"})

    session_id: Annotated[str, Field(min_length=1, max_length=32)]
    secret_hash: str
    key_id: str | None = None
    key_hash: str | None = None
    name: Actor
    scopes: list[str]
    platform_id: str | None = None
    created_at: datetime
    expires_at: datetime
    ended_at: datetime | None = None


class SigningKey(Record):
    """The secret of signed links. All servers of a database share it."""

    table: ClassVar[Table] = Table("signing_keys", key=("key_id",), defaults={"created_at": "dagapp.clock()"})
    private: ClassVar[frozenset[str]] = frozenset({"secret"})

    key_id: str
    secret: str
    created_at: datetime


class Upload(Record):
    """A file that a caller sends to the bronze zone in parts. Its bytes are in the storage, and their number is the
    offset. Until `finished_at`, no other upload can use its name. `sha256` is the hash that the caller announced; once
    the upload is finished, it is that of the object."""

    table: ClassVar[Table] = Table(
        "uploads",
        key=("upload_id",),
        foreign_keys=(ForeignKey(("platform_id",), "platforms", ("platform_id",), "RESTRICT"),),
        indexes=(
            Index("uploads_one_per_blob", ("container", "blob"), unique=True, where="finished_at IS NULL"),
            Index("uploads_by_blob", ("container", "blob", "finished_at")),
            Index("uploads_by_time", ("created_at", "upload_id")),
            Index("uploads_by_platform", ("platform_id", "created_at", "upload_id")),
            Index("uploads_open_by_caller", ("created_by",), where="finished_at IS NULL"),
            Index("uploads_by_expiry", ("expires_at",), where="finished_at IS NULL"),
        ),
        checks={
            "size": "size_bytes > 0",
            "sha256": "sha256 ~ '^[0-9a-f]{64}$'",
            "finished": "finished_at IS NULL OR (sha256 IS NOT NULL AND etag IS NOT NULL)",
            "expires": "(finished_at IS NULL) = (expires_at IS NOT NULL)",
        },
        defaults=_NOW,
    )

    upload_id: UUID
    platform_id: PlatformId
    container: str
    blob: str
    size_bytes: int
    sha256: str | None = None
    etag: str | None = None
    created_by: Actor
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None = None
    finished_at: datetime | None = None


RECORDS: tuple[type[Record], ...] = (
    Platform,
    GeospatialAsset,
    AssetVersion,
    AssetRevision,
    AssetSubmission,
    RequestAlias,
    StacDocument,
    LayerMetadata,
    CatalogLayer,
    ExternalLayer,
    AssetEvent,
    ApiKey,
    WebSession,
    SigningKey,
    Upload,
)
