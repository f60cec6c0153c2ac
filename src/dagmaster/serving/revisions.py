"""STAC documents of one revision, as its job wrote them, also while it is not published.

    /stac/collections/{dataset}?version=0[&rev=2]                 the collection
    /stac/collections/{dataset}/items?version=0[&rev=2]           its items, in the order of their ids
    /stac/collections/{dataset}/items/{item}?version=0[&rev=2]    one item

The catalogue in pgSTAC contains only published revisions, and its collections describe all published versions.
Reviewers read the documents of a revision before they decide. The URLs in a document name the revision, so that its
files, maps and links are those of the same revision; if the request has the token of a signed link, they contain it.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from starlette.requests import Request

from dagmaster.access.links import PARAMETER
from dagmaster.addresses import Addresses, rebased
from dagmaster.database.catalog.datasets import CatalogReader
from dagmaster.errors import InvalidRequest, NotFound
from dagmaster.serving.access import REVISION, VERSION, AccessDecisions, ReadableRevision, revision_number

Json = dict[str, Any]
MAX_ITEMS = 1000
_DEFAULT_ITEMS = 100
_COUNT = re.compile(r"\d{1,9}", re.ASCII)
_INFERRED = frozenset({"self", "root", "parent", "collection", "items"})
_JSON, _GEOJSON = "application/json", "application/geo+json"


def is_requested(request: Request) -> bool:
    """Whether a request for a collection or an item names a version."""
    return "version" in request.query_params


@dataclass(frozen=True, slots=True)
class RevisionReader:
    access: AccessDecisions
    catalog: CatalogReader

    async def collection(self, request: Request, dataset_id: str) -> Json:
        readable = await self._readable(request, dataset_id)
        urls = _Urls(request, readable)
        document = await self._document(readable, "")
        links = [
            ("self", _JSON, urls.collection),
            ("root", _JSON, urls.catalog),
            ("parent", _JSON, urls.catalog),
            ("items", _GEOJSON, urls.items()),
        ]
        return urls.completed(document, links)

    async def item(self, request: Request, dataset_id: str, item_id: str) -> Json:
        readable = await self._readable(request, dataset_id)
        document = await self._document(readable, item_id) if item_id else None
        if document is None:
            raise _no_document()
        return _Urls(request, readable).completed_item(document)

    async def items(self, request: Request, dataset_id: str) -> Json:
        readable = await self._readable(request, dataset_id)
        urls = _Urls(request, readable)
        limit = min(_number(request, "limit", _DEFAULT_ITEMS), MAX_ITEMS)
        documents = await self.catalog.items(
            readable.dataset_id,
            readable.ordinal,
            readable.revision,
            after=_without_nul(request.query_params.get("after", "")),
            limit=limit + 1,
        )
        items = documents[:limit]
        links = [
            ("self", _GEOJSON, str(request.url)),
            ("root", _JSON, urls.catalog),
            ("collection", _JSON, urls.collection),
        ]
        if len(documents) > limit and items:
            links.append(("next", _GEOJSON, urls.items(after=items[-1]["id"], limit=limit)))
        return {
            "type": "FeatureCollection",
            "features": [urls.completed_item(item) for item in items],
            "links": list(_links(links)),
            "numberReturned": len(items),
        }

    async def _readable(self, request: Request, dataset_id: str) -> ReadableRevision:
        version, rev = request.query_params["version"], request.query_params.get("rev")
        if not VERSION.fullmatch(version) or not (rev is None or REVISION.fullmatch(rev)):
            hint = "for example version=0&rev=2"
            raise InvalidRequest("`version` or `rev` is not valid", code="request.invalid", hint=hint)
        readable = await self.access.readable(request, dataset_id, version, revision_number(rev))
        if readable.dataset_id != dataset_id:
            raise _no_document()
        return readable

    async def _document(self, readable: ReadableRevision, document_id: str) -> Json:
        documents = await self.catalog.documents(
            readable.dataset_id, readable.ordinal, readable.revision, [_without_nul(document_id)]
        )
        if document_id not in documents:
            raise _no_document()
        return documents[document_id]


class _Urls:
    """The URLs of a revision, below the base of a request."""

    def __init__(self, request: Request, readable: ReadableRevision) -> None:
        self._base, self._host = str(request.base_url), request.base_url.hostname
        self._readable = readable
        self._addresses = Addresses(self._base)
        token = request.query_params.get(PARAMETER)
        self._token = {PARAMETER: token} if token else {}
        self._query = {"version": str(readable.ordinal), "rev": str(readable.revision), **self._token}

    @property
    def catalog(self) -> str:
        return self._addresses.catalog()

    @property
    def collection(self) -> str:
        return self.pinned(self._addresses.collection(self._readable.dataset_id))

    def items(self, **page: object) -> str:
        return f"{self._addresses.items(self._readable.dataset_id)}?{urlencode({**self._query, **page})}"

    def item(self, item_id: str) -> str:
        return self.pinned(self._addresses.item(self._readable.dataset_id, item_id))

    def completed_item(self, document: Json) -> Json:
        links = [
            ("self", _GEOJSON, self.item(document["id"])),
            ("root", _JSON, self.catalog),
            ("parent", _JSON, self.collection),
            ("collection", _JSON, self.collection),
        ]
        return self.completed(document, links)

    def completed(self, document: Json, inferred: Iterable[tuple[str, str, str]]) -> Json:
        """The document with links to the catalogue and its collection, and with URLs instead of paths."""
        stored = [link for link in document.get("links") or () if link.get("rel") not in _INFERRED]
        links = [*_links(inferred), *(self._with_url(link) for link in stored)]
        assets = {key: self._with_url(asset) for key, asset in (document.get("assets") or {}).items()}
        return {**document, "links": links, **({"assets": assets} if "assets" in document else {})}

    def pinned(self, url: str) -> str:
        """The URL with the revision if it is a URL of this server; other URLs are not changed."""
        if self._addresses.is_file(url):
            added = self._token
        elif self._addresses.is_of_dataset(url, self._readable.dataset_id):
            added = self._query
        else:
            return url
        parts = urlsplit(url)
        query = {**dict(parse_qsl(parts.query)), **added}
        return urlunsplit(parts._replace(query=urlencode(query, safe="{},")))

    def _with_url(self, entry: Mapping[str, Any]) -> Json:
        href = entry.get("href")
        if not isinstance(href, str):
            return dict(entry)
        return {**entry, "href": self.pinned(rebased(href, self._base, self._host))}


def _links(links: Iterable[tuple[str, str, str]]) -> Iterable[Json]:
    return ({"rel": rel, "type": media_type, "href": href} for rel, media_type, href in links)


def _number(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name, str(default))
    if not _COUNT.fullmatch(text) or not int(text):
        raise InvalidRequest(f"{name} is not a positive number", code="request.invalid")
    return int(text)


def _without_nul(document_id: str) -> str:
    """The id of a document. One with the character NUL, which PostgreSQL cannot store, does not exist."""
    if "\x00" in document_id:
        raise _no_document()
    return document_id


def _no_document() -> NotFound:
    return NotFound("the document does not exist", code="document.not-found")
