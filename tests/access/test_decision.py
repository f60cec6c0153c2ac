"""What each kind of caller may read, in every state of a version."""

from dataclasses import replace

import pytest

from dagmaster.access.caller import ANONYMOUS, Caller, Scope
from dagmaster.access.decision import (
    Publication,
    ReadAccess,
    link_access,
    may_preview,
    own_platform_of,
    read_access,
    readable_clearances,
    submitting_platform,
)
from dagmaster.access.links import VersionLink
from dagmaster.assets.states import ApprovalState, AssetState, AssetVersionState, Clearance, Exposure, ProcessingState
from dagmaster.errors import NotAllowed

pytestmark = pytest.mark.requirement("C3")

CALLERS = {
    "anonymous": ANONYMOUS,
    "own": Caller("hub", frozenset({Scope.B2B}), "ddh"),
    "foreign": Caller("other", frozenset({Scope.B2B}), "arcgis"),
    "viewer": Caller("v", frozenset({Scope.VIEWER})),
    "reviewer": Caller("r", frozenset({Scope.REVIEWER})),
    "operator": Caller("o", frozenset({Scope.OPERATOR})),
    "admin": Caller("a", frozenset({Scope.ADMIN})),
    "author": Caller("w", frozenset({Scope.AUTHOR})),
    "worker": Caller("k", frozenset({Scope.WORKER})),
    "monitor": Caller("m", frozenset({Scope.MONITOR})),
}
APPROVED = AssetVersionState(
    0, "a", approval=ApprovalState.APPROVED, processing=ProcessingState.COMPLETED, approved_revision=1
)
NEWER = replace(APPROVED, ordinal=1, label="b")
REVISED = replace(APPROVED, revision=2, approval=ApprovalState.PENDING_REVIEW)

# state of the asset, requested version, requested revision; then the access of: anonymous, own, foreign, viewer, staff
TABLE = {
    "pending": (
        "public",
        [replace(APPROVED, approval="pending_review", approved_revision=None)],
        None,
        "none status none none preview",
    ),
    "rejected": (
        "public",
        [replace(APPROVED, approval="rejected", approved_revision=None)],
        None,
        "none status none none preview",
    ),
    "newer revision": ("public", [REVISED], 2, "none status none none preview"),
    "approved revision with a newer one": ("public", [REVISED], None, "data data data data data"),
    "the same by its number": ("public", [REVISED], 1, "data data data data data"),
    "uncleared": ("uncleared", [APPROVED], None, "none status none none preview"),
    "ouo": ("ouo", [APPROVED], None, "none status none data data"),
    "public": ("public", [APPROVED], None, "data data data data data"),
    "unpublished": ("public", [replace(APPROVED, is_unpublished=True)], None, "none status none none history"),
    "newer revision of an unpublished version": (
        "public",
        [replace(REVISED, is_unpublished=True)],
        2,
        "none status none none preview",
    ),
    "approved revision of an unpublished version": (
        "public",
        [replace(REVISED, is_unpublished=True)],
        1,
        "none status none none history",
    ),
    "newer revision of a deleted version": (
        "public",
        [replace(REVISED, is_unpublished=True, is_deleted=True)],
        2,
        "none status none none history",
    ),
    "deleted": ("public", [replace(APPROVED, is_deleted=True)], None, "none status none none history"),
    "older version": ("public", [APPROVED, NEWER], None, "none status none none data"),
    "older version before a deleted one": (
        "public",
        [APPROVED, replace(NEWER, is_deleted=True)],
        None,
        "data data data data data",
    ),
    "a revision that does not exist": ("public", [APPROVED], 9, "none status none none preview"),
}


@pytest.mark.parametrize("name", TABLE)
def test_access_follows_the_table(name):
    clearance, versions, revision, expected = TABLE[name]
    asset = AssetState("ddh", clearance=Clearance(clearance), versions=tuple(versions))
    publication = Publication.of(asset, versions[0])
    results = {kind: read_access(caller, publication, revision) for kind, caller in CALLERS.items()}

    anonymous, own, foreign, viewer, staff = expected.split()
    assert results == {
        "anonymous": anonymous,
        "own": own,
        "foreign": foreign,
        "viewer": viewer,
        "reviewer": staff,
        "operator": staff,
        "admin": staff,
        "author": anonymous,
        "worker": anonymous,
        "monitor": anonymous,
    }


def test_an_asset_that_exposes_all_versions_also_serves_the_older_ones():
    asset = AssetState("ddh", Clearance.PUBLIC, Exposure.ALL_VERSIONS, versions=(APPROVED, NEWER))

    assert read_access(ANONYMOUS, Publication.of(asset, APPROVED)) == ReadAccess.DATA


def test_a_deleted_asset_hides_its_versions():
    asset = AssetState("ddh", Clearance.PUBLIC, is_deleted=True, versions=(APPROVED,))

    publication = Publication.of(asset, APPROVED)
    results = {kind: read_access(caller, publication).includes_data for kind, caller in CALLERS.items()}
    assert results == dict.fromkeys(CALLERS, False)


@pytest.mark.parametrize("clearance", Clearance)
def test_a_search_finds_the_assets_whose_latest_version_the_caller_may_read(clearance):
    asset = AssetState("ddh", clearance, versions=(APPROVED,))

    for caller in CALLERS.values():
        is_data = read_access(caller, Publication.of(asset, APPROVED)) == ReadAccess.DATA
        assert (clearance in readable_clearances(caller)) == is_data


def test_only_reviewers_operators_and_administrators_may_preview():
    assert {kind for kind, caller in CALLERS.items() if may_preview(caller)} == {"reviewer", "operator", "admin"}


def test_the_scope_b2b_limits_submissions_to_one_platform():
    operating = Caller("hub", frozenset({Scope.B2B, Scope.OPERATOR}), "ddh")

    assert submitting_platform(CALLERS["own"]) == "ddh"
    assert submitting_platform(operating) is None
    assert submitting_platform(CALLERS["author"]) is None


@pytest.mark.parametrize("platform_id", [None, ""])
@pytest.mark.parametrize("platform_of", [submitting_platform, own_platform_of])
def test_a_caller_with_the_scope_b2b_and_no_platform_is_refused(platform_of, platform_id):
    with pytest.raises(NotAllowed) as refused:
        platform_of(Caller("hub", frozenset({Scope.B2B, Scope.AUTHOR}), platform_id))

    assert refused.value.code == "platform.not-own"


# the name of a state above, the link; then the access: without a revision in the request, with revision 1, with 2
LINKS = {
    ("pending", "version"): "none none none",
    ("pending", "preview of 1"): "none preview none",
    ("rejected", "preview of 1"): "none preview none",
    ("newer revision", "version"): "data data none",
    ("newer revision", "revision 1"): "data data none",
    ("newer revision", "revision 2"): "none none none",
    ("newer revision", "preview of 2"): "none none preview",
    ("uncleared", "version"): "none none none",
    ("uncleared", "preview of 1"): "none preview none",
    ("ouo", "version"): "data data none",
    ("public", "version"): "data data none",
    ("unpublished", "version"): "none none none",
    ("unpublished", "preview of 1"): "none none none",
    ("deleted", "version"): "none none none",
    ("deleted", "preview of 1"): "none none none",
    ("older version", "version"): "data data none",
}
ASSET_ID = "0" * 31 + "1"


def _link(kind: str, ordinal: int = 0) -> VersionLink:
    revision = int(kind[-1]) if kind[-1].isdigit() else None
    return VersionLink(ASSET_ID, ordinal, 0, revision, is_preview=kind.startswith("preview"))


@pytest.mark.parametrize(("name", "kind"), LINKS)
def test_a_link_gives_access_to_one_published_version_or_to_one_revision_as_a_preview(name, kind):
    clearance, versions, _, _ = TABLE[name]
    publication = Publication.of(AssetState("ddh", Clearance(clearance), versions=tuple(versions)), versions[0])

    results = [link_access(_link(kind), ASSET_ID, publication, revision) for revision in (None, 1, 2)]

    assert " ".join(results) == LINKS[name, kind]


@pytest.mark.parametrize("kind", ["version", "revision 1", "preview of 1"])
def test_a_link_gives_no_access_to_other_versions_or_assets(kind):
    publication = Publication.of(AssetState("ddh", Clearance.PUBLIC, versions=(APPROVED,)), APPROVED)

    assert link_access(_link(kind, ordinal=1), ASSET_ID, publication, 1) == ReadAccess.NONE
    assert link_access(_link(kind), "f" * 32, publication, 1) == ReadAccess.NONE
