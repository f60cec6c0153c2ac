"""Who may read which revision. This is decided here for everything that is served, for each request and from the
current state.

    request ──▶ caller, signed link ─┐
    asset or dataset, version, rev ──┴▶ one query ──▶ access.decision ──▶ the revision that is read, or 404

Nothing is cached, so that a decision of a reviewer takes effect with the next request in every process. For data that a
caller may not read, the error says that it does not exist: a response reveals nothing that the caller may not see.
"""

import re
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from urllib.parse import parse_qsl

from starlette.requests import Request

from dagmaster.access.caller import ANONYMOUS, Caller
from dagmaster.access.decision import Publication, ReadAccess, link_access, read_access, readable_clearances
from dagmaster.access.links import PARAMETER, VersionLink, key_id_of, verified
from dagmaster.database.assets.publications import AssetPublication, LayerTexts
from dagmaster.database.catalog.datasets import CatalogReader
from dagmaster.dataset_urls import FILES, TILES
from dagmaster.errors import DagmasterError, NotAllowed, NotFound
from dagmaster.web.authentication import caller_of

LATEST = "latest"
VERSION = re.compile(rf"{LATEST}|\d{{1,9}}", re.ASCII)
REVISION = re.compile(r"\d{1,9}(?:-[0-9a-f]{1,16})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class ReadableRevision:
    """A revision that the caller may read.

    `is_published` is false for a preview: it may still be processed again. `is_public`: anyone may read it, so that
    shared caches may keep it. `metadata` is what people have written about it; a preview has none.
    """

    asset_id: str
    dataset_id: str
    ordinal: int
    revision: int
    is_published: bool
    is_public: bool
    metadata: LayerTexts | None = None


def revision_number(rev: str | None) -> int | None:
    """The number of a revision that a request names, with or without its digest."""
    return int(rev.partition("-")[0]) if rev else None


_NAMED_REVISION = re.compile(
    rf"{FILES}/[a-z]+/[^/]+/[a-z_]+/(?P<name>[^/]+)/v(?P<ordinal>\d{{1,9}})/r(?P<revision>\d{{1,9}})/", re.ASCII
)
_NAMED_DATASET = re.compile(rf"{TILES}/(?P<name>[^/]+)/")


@dataclass(frozen=True, slots=True)
class ExpectedPublication:
    """The publication that the decision on a request will read, according to its URL."""

    name: str
    ordinal: int | None
    revision: int | None


def expected_publication(path: str, query: str) -> ExpectedPublication | None:
    """None if the URL does not determine it. It may be wrong: the decision then reads what it needs itself."""
    if named := _NAMED_REVISION.match(path):
        return ExpectedPublication(named["name"], int(named["ordinal"]), int(named["revision"]))
    if not (named := _NAMED_DATASET.match(path)):
        return None
    parameters = dict(parse_qsl(query)) if "version=" in query or "rev=" in query else {}
    version, rev = parameters.get("version", LATEST), parameters.get("rev")
    if not VERSION.fullmatch(version) or (rev is not None and not REVISION.fullmatch(rev)):
        return None
    return ExpectedPublication(named["name"], None if version == LATEST else int(version), revision_number(rev))


class AccessDecisions:
    def __init__(self, catalog: CatalogReader, clock: Callable[[], float] = time.time) -> None:
        self._catalog = catalog
        self._clock = clock

    async def readable(
        self, request: Request, name: str, version: str = LATEST, revision: int | None = None
    ) -> ReadableRevision:
        """The revision that a request reads, by the id of an asset or of its dataset.

        Without a revision it is the approved one; if there is none, the newest that was processed, which is a preview.
        """
        ordinal = None if version == LATEST else int(version)
        asset = await self._catalog.publication(name, ordinal, revision)
        reader = _RequestReader(caller_of(request), await self._link(request), self._clock())
        if asset is not None and asset.version is not None:
            chosen = asset.chosen_revision(revision)
            if chosen is not None and reader.may_read(asset, asset.version, chosen):
                return _readable(asset, asset.version, chosen)
        raise reader.refusal(asset, revision)

    def expecting(self, path: str, query: str) -> AbstractContextManager[None]:
        """A context in which the data for the decision on a request is read together with the key of the caller."""
        expected = expected_publication(path, query)
        if expected is None:
            return nullcontext()
        return self._catalog.expecting(expected.name, expected.ordinal, expected.revision)

    async def is_listed(self, request: Request, dataset_id: str) -> bool:
        """Whether the catalogue shows the collection of a dataset to the caller."""
        asset = await self._catalog.publication(dataset_id)
        if asset is None or asset.version is None or asset.dataset_id != dataset_id:
            return False
        return read_access(caller_of(request), asset.version) == ReadAccess.DATA

    async def listed_collections(self, request: Request) -> tuple[str, ...] | None:
        """The collections that the catalogue shows to the caller; None means all collections."""
        collections = await self._catalog.collections(readable_clearances(caller_of(request)))
        return collections.ids if collections.has_others else None

    async def _link(self, request: Request) -> VersionLink | None:
        """The link of a token with a valid signature. It may have expired."""
        token = request.query_params.get(PARAMETER, "")
        key_id = key_id_of(token)
        secret = await self._catalog.signing_secret(key_id) if key_id else None
        return verified(token, secret) if secret else None


@dataclass(frozen=True, slots=True)
class _RequestReader:
    """The caller of a request, perhaps with a signed link."""

    caller: Caller
    link: VersionLink | None
    now: float

    def may_read(self, asset: AssetPublication, version: Publication, revision: int | None = None) -> bool:
        if read_access(self.caller, version, revision).includes_data:
            return True
        if self.link is None or self.link.is_expired(self.now):
            return False
        return link_access(self.link, asset.asset_id, version, revision).includes_data

    def refusal(self, asset: AssetPublication | None, revision: int | None) -> DagmasterError:
        """The error of a refused request. It says no more than the caller may know: a caller with an expired link knows
        what it was for, and a caller who may read a dataset may know that it does not have a version."""
        if self.link is not None and self.link.is_expired(self.now):
            return NotAllowed("the link has expired", code="link.expired", hint="ask for a new link")
        if asset is not None and revision is not None and asset.version and self.may_read(asset, asset.version):
            return NotFound("the revision was replaced", code="version.replaced", hint="request the TileJSON again")
        if asset is not None and asset.latest and read_access(self.caller, asset.latest).includes_data:
            return NotFound(
                "the dataset does not have this version",
                code="version.not-found",
                hint="use version=latest for the newest",
            )
        return NotFound("the dataset does not exist", code="asset.not-found", hint="/stac/collections lists datasets")


def _readable(asset: AssetPublication, version: Publication, revision: int) -> ReadableRevision:
    return ReadableRevision(
        asset_id=asset.asset_id,
        dataset_id=asset.dataset_id,
        ordinal=version.ordinal,
        revision=revision,
        is_published=version.is_published(revision),
        metadata=asset.metadata if version.is_published(revision) else None,
        is_public=read_access(ANONYMOUS, version, revision) == ReadAccess.DATA,
    )
