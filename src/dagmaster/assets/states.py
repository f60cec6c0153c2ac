"""The states of assets, versions and revisions, as rules and access decisions read them.

An asset has versions (ordinals from 0), a version has revisions (from 1): each run of its processing makes one. Review
and processing concern the newest revision. `approved_revision` is the one that is served; it stays served while a newer
one is processed or reviewed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

VersionRevision = tuple[int, int]  # within an asset: the ordinal of a version, and the number of one of its revisions


@dataclass(frozen=True, slots=True)
class AssetRevisionKey:
    """A revision of a version of an asset."""

    asset_id: str
    version_ordinal: int
    revision: int

    def values(self, **others: Any) -> dict[str, Any]:
        return {"asset_id": self.asset_id, "ordinal": self.version_ordinal, "revision": self.revision, **others}


class ApprovalState(StrEnum):
    PENDING_REVIEW = "pending_review"
    APPROVED = "approved"
    REJECTED = "rejected"


class ProcessingState(StrEnum):
    QUEUED = "queued"
    PROCESSING = "processing"
    COMPLETED = "completed"
    FAILED = "failed"


class Clearance(StrEnum):
    UNCLEARED = "uncleared"
    OUO = "ouo"  # official use only
    PUBLIC = "public"


class Exposure(StrEnum):
    """Which approved versions are served: the latest one, or each under its number."""

    LATEST_ONLY = "latest-only"
    ALL_VERSIONS = "all-versions"


IN_PROGRESS = frozenset({ProcessingState.QUEUED, ProcessingState.PROCESSING})


@dataclass(frozen=True, slots=True)
class SourceIdentity:
    """What identifies the content of a source without reading it: its ETag and size, and the hash if it is known."""

    etag: str | None = None
    size: int | None = None
    content_hash: str | None = None

    def is_same(self, other: "SourceIdentity") -> bool:
        """Hashes decide if both are known, else ETag and size. An unknown source equals no other."""
        if self.content_hash and other.content_hash:
            return self.content_hash == other.content_hash
        if self.etag is None or other.etag is None:
            return False
        return (self.etag, self.size) == (other.etag, other.size)


@dataclass(frozen=True, slots=True)
class AssetVersionState:
    """A version with its newest revision."""

    ordinal: int
    label: str
    revision: int = 1
    approval: ApprovalState = ApprovalState.PENDING_REVIEW
    processing: ProcessingState = ProcessingState.QUEUED
    approved_revision: int | None = None
    is_unpublished: bool = False
    is_deleted: bool = False
    submitted_by: str | None = None
    source: SourceIdentity = SourceIdentity()
    parameters_hash: str = ""
    is_purged: bool = False  # the data of the newest revision was removed

    @property
    def served_revision(self) -> int | None:
        """The revision that may be served, whatever the asset's clearance."""
        return None if self.is_unpublished or self.is_deleted else self.approved_revision

    @property
    def is_unresolved(self) -> bool:
        """Whether it needs a decision before a later version may be submitted. A newer revision of an unpublished
        version needs one too."""
        return not self.is_deleted and self.approval != ApprovalState.APPROVED


@dataclass(frozen=True, slots=True)
class AssetState:
    platform_id: str
    clearance: Clearance = Clearance.UNCLEARED
    exposure: Exposure = Exposure.LATEST_ONLY
    is_deleted: bool = False
    versions: tuple[AssetVersionState, ...] = ()

    def version(self, ordinal: int) -> AssetVersionState | None:
        return next((version for version in self.versions if version.ordinal == ordinal), None)

    @property
    def present(self) -> Iterator[AssetVersionState]:
        """The versions that are not deleted, in the order of their ordinals."""
        if not self.is_deleted:
            yield from sorted((v for v in self.versions if not v.is_deleted), key=lambda version: version.ordinal)

    @property
    def latest(self) -> int | None:
        """The highest ordinal that is approved and neither unpublished nor deleted."""
        return max((v.ordinal for v in self.present if v.served_revision is not None), default=None)

    @property
    def published(self) -> tuple[VersionRevision, ...]:
        """The ordinals and revisions in the catalogue: the served revision of each exposed version, or nothing
        while the asset has no clearance."""
        if self.clearance == Clearance.UNCLEARED:
            return ()
        latest = self.latest
        return tuple(
            (version.ordinal, version.served_revision)
            for version in self.present
            if version.served_revision is not None
            and (self.exposure == Exposure.ALL_VERSIONS or version.ordinal == latest)
        )
