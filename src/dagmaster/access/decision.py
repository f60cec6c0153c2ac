"""What a caller may read of a version. STAC, tiles, files and pages all use this one decision.

| state of the version                          | anonymous | b2b (own platform) | viewer | reviewer, operator, admin |
|-----------------------------------------------|-----------|--------------------|--------|---------------------------|
| not approved, or a revision that is not (1)   | none      | status             | none   | preview                   |
| approved, asset uncleared                     | none      | status             | none   | preview                   |
| approved, asset ouo                           | none      | status             | data   | data                      |
| approved, asset public                        | data      | data               | data   | data                      |
| unpublished or deleted                        | none      | status             | none   | history                   |

(1) Also a revision of an unpublished version, if it is newer than the approved one.

If an asset exposes only its latest version, its older versions are as invisible as versions that are not approved;
reviewers, operators and administrators can still read them. For `none`, the response is the same as for a version that
does not exist.

A signed link lets any caller read more: one version, or a preview of one revision.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from dagmaster.access.caller import Caller, Scope
from dagmaster.access.links import VersionLink
from dagmaster.assets.states import AssetState, AssetVersionState, Clearance, Exposure
from dagmaster.errors import NotAllowed

STAFF = (Scope.REVIEWER, Scope.OPERATOR, Scope.ADMIN)


class ReadAccess(StrEnum):
    NONE = "none"
    STATUS = "status"  # the platform that submitted it sees the status of the submission
    HISTORY = "history"  # what happened to it, without its data
    PREVIEW = "preview"  # data that is not published
    DATA = "data"

    @property
    def includes_data(self) -> bool:
        return self in (ReadAccess.PREVIEW, ReadAccess.DATA)


@dataclass(frozen=True, slots=True)
class Publication:
    """What decides who may read a version. `latest` is the ordinal of the latest approved version."""

    platform_id: str
    clearance: Clearance
    exposure: Exposure
    latest: int | None
    ordinal: int
    approved_revision: int | None
    is_withdrawn: bool = False  # the version is unpublished or deleted, or its asset is deleted
    is_deleted: bool = False  # the version or its asset

    @classmethod
    def of(cls, asset: AssetState, version: AssetVersionState) -> Self:
        return cls(
            platform_id=asset.platform_id,
            clearance=asset.clearance,
            exposure=asset.exposure,
            latest=asset.latest,
            ordinal=version.ordinal,
            approved_revision=version.approved_revision,
            is_withdrawn=asset.is_deleted or version.is_deleted or version.is_unpublished,
            is_deleted=asset.is_deleted or version.is_deleted,
        )

    def is_published(self, revision: int | None = None) -> bool:
        """Whether this revision (None: any revision) is approved and cleared, no matter who may read it."""
        if self.is_withdrawn or self.approved_revision is None or self.clearance == Clearance.UNCLEARED:
            return False
        return revision in (None, self.approved_revision)

    def awaits_review(self, revision: int | None) -> bool:
        """Whether this revision is newer than the approved one, and its version is not deleted."""
        is_newer = revision is not None and self.approved_revision is not None and revision > self.approved_revision
        return is_newer and not self.is_deleted


def read_access(caller: Caller, publication: Publication, revision: int | None = None) -> ReadAccess:
    """`revision` is the one that the request names; without it, the revision that is served."""
    is_staff = caller.has(*STAFF)
    if publication.is_withdrawn and not publication.awaits_review(revision):
        return ReadAccess.HISTORY if is_staff else _status(caller, publication)
    if not publication.is_published(revision):
        return ReadAccess.PREVIEW if is_staff else _status(caller, publication)
    if is_staff:
        return ReadAccess.DATA
    is_hidden = publication.exposure == Exposure.LATEST_ONLY and publication.ordinal != publication.latest
    if is_hidden or publication.clearance not in readable_clearances(caller):
        return _status(caller, publication)
    return ReadAccess.DATA


def link_access(link: VersionLink, asset_id: str, publication: Publication, revision: int | None = None) -> ReadAccess:
    """What a signed link gives access to: the version that it names, while it is published, or one preview.

    The access ends when the version is unpublished or deleted; access to published data also when the asset becomes
    `uncleared`. The signature and the expiry must have been checked before.
    """
    if publication.is_withdrawn or (link.asset_id, link.ordinal) != (asset_id, publication.ordinal):
        return ReadAccess.NONE
    if link.is_preview:
        return ReadAccess.PREVIEW if revision is not None and revision == link.revision else ReadAccess.NONE
    is_served = link.revision in (None, publication.approved_revision)
    return ReadAccess.DATA if is_served and publication.is_published(revision) else ReadAccess.NONE


def readable_clearances(caller: Caller) -> frozenset[Clearance]:
    """The clearances of the assets whose published versions a caller may read."""
    if caller.has(Scope.VIEWER, *STAFF):
        return frozenset({Clearance.OUO, Clearance.PUBLIC})
    return frozenset({Clearance.PUBLIC})


def may_decide(caller: Caller, platform_id: str, *, b2b_may_approve: bool) -> bool:
    """Whether a caller may approve, reject and unpublish versions of a platform's assets: reviewers, operators and
    administrators may; a b2b key may if it belongs to this platform and `b2b_may_approve` of the platform is set."""
    is_own = caller.has(Scope.B2B) and caller.platform_id == platform_id
    return caller.has(*STAFF) or (is_own and b2b_may_approve)


def submitting_platform(caller: Caller) -> str | None:
    """The only platform for which a caller may submit and upload data; None if the caller is not limited to one.
    The scope b2b limits a caller, unless the caller also has the scope operator or admin. NotAllowed: the caller is
    limited, but belongs to no platform."""
    is_limited = caller.has(Scope.B2B) and not caller.has(Scope.OPERATOR, Scope.ADMIN)
    return _platform_of(caller) if is_limited else None


def may_preview(caller: Caller) -> bool:
    """Whether the caller may read what is not published."""
    return caller.has(*STAFF)


def own_platform_of(caller: Caller) -> str | None:
    """The platform that a b2b key belongs to; None for callers that are not bound to one, such as reviewers.
    NotAllowed: a b2b key without a platform."""
    return _platform_of(caller) if caller.has(Scope.B2B) and not may_preview(caller) else None


def _platform_of(caller: Caller) -> str:
    if not caller.platform_id:
        raise NotAllowed(
            "this caller has the scope b2b, but belongs to no platform",
            code="platform.not-own",
            hint="use a key that belongs to a platform",
        )
    return caller.platform_id


def _status(caller: Caller, publication: Publication) -> ReadAccess:
    is_own = caller.has(Scope.B2B) and caller.platform_id == publication.platform_id
    return ReadAccess.STATUS if is_own else ReadAccess.NONE
