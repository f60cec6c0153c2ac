"""The clients of the STAC API: stac-fastapi-pgstac's, with our access rule, limits, links and current URLs."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import orjson
from fastapi import Request
from stac_fastapi.pgstac.core import CoreCrudClient, clean_search_args
from stac_fastapi.pgstac.extensions.filter import FiltersClient
from stac_fastapi.pgstac.models.links import ItemLinks, PagingLinks
from stac_fastapi.pgstac.utils import filter_fields
from stac_fastapi.types.errors import NotFoundError
from starlette.responses import Response

from dagmaster.addresses import Addresses, rebased
from dagmaster.errors import NotFound
from dagmaster.serving import revisions
from dagmaster.serving.access import AccessDecisions
from dagmaster.serving.filters import require_simple_json
from dagmaster.serving.revisions import RevisionReader
from dagmaster.serving.stac_search import Collections, limit_body, limit_search, limited_to, read_items

# Items that are completed before the event loop can run other requests.
_ITEMS_AT_ONCE = 50
_GEOJSON = "application/geo+json"
_NO_COLLECTION = "-"  # not the id of a dataset; for pgSTAC an empty list means all


class CatalogClient(CoreCrudClient):  # type: ignore[misc]
    """Shows what the caller may see, limits searches, adds links to the map page, and replaces stored URLs of this
    server by current ones."""

    async def all_collections(self, request: Request, **search: Any) -> Any:
        limit_search(search)
        listed = await _access(request).listed_collections(request)

        def adapt(document: Any) -> None:
            _update_urls(document["collections"], request)
            if not search.get("fields"):
                for collection in document["collections"]:
                    _add_map_link(collection, collection.get("id"), request)

        response = await super().all_collections(request=request, **search, listed=listed)
        return _adapted(response, adapt, "application/json")

    def _clean_search_args(self, base_args: Any, *args: Any, listed: Collections = None, **options: Any) -> Any:
        """The arguments for pgSTAC. A search for collections has `listed`, the collections that it may find."""
        clean = super()._clean_search_args(base_args, *args, **options)
        return clean if listed is None else {**clean, "ids": list(listed)}

    async def get_collection(self, collection_id: str, request: Request, **options: Any) -> Any:
        if revisions.is_requested(request):
            with _not_found_as(_no_collection(collection_id)):
                return await _revision_documents(request).collection(request, collection_id)
        await _require_listed(request, collection_id)
        collection = await super().get_collection(collection_id, request=request, **options)
        _update_urls([collection], request)
        return _add_map_link(collection, collection_id, request)

    async def get_item(self, item_id: str, collection_id: str, request: Request, **options: Any) -> Any:
        if revisions.is_requested(request):
            with _not_found_as(_no_collection(collection_id)):
                return await _revision_documents(request).item(request, collection_id, item_id)
        item = await super().get_item(item_id, collection_id, request=request, **options)
        _adapt_items([item], request, {})
        ordinal = (item.get("properties") or {}).get("dagmaster:version_ordinal")
        return _add_map_link(item, collection_id, request, None if ordinal is None else int(ordinal))

    async def item_collection(self, collection_id: str, request: Request, **search: Any) -> Any:
        if revisions.is_requested(request):
            with _not_found_as(_no_collection(collection_id)):
                document = await _revision_documents(request).items(request, collection_id)
            return Response(orjson.dumps(document), media_type=_GEOJSON)
        limit_search(search)
        response = await super().item_collection(collection_id, request=request, **search)
        fields = clean_search_args({}, fields=search.get("fields")).get("fields", {})
        return _adapted(response, lambda document: _adapt_items(document["features"], request, fields), _GEOJSON)

    async def get_search(self, request: Request, **search: Any) -> Any:
        limit_search(search)
        response = await super().get_search(request=request, **search)
        fields = clean_search_args({}, fields=search.get("fields")).get("fields", {})
        return _adapted(response, lambda document: _adapt_items(document["features"], request, fields), _GEOJSON)

    async def post_search(self, search_request: Any, request: Request, **options: Any) -> Any:
        require_simple_json(orjson.loads(await request.body()))
        limit_body(search_request)
        response = await super().post_search(search_request, request=request, **options)
        fields = search_request.fields.model_dump() if getattr(search_request, "fields", None) else {}
        return _adapted(response, lambda document: _adapt_items(document["features"], request, fields), _GEOJSON)

    async def _search_base(self, search_request: Any, request: Request) -> Any:
        """Replaces stac-fastapi's method, which fails for all items if the values of one have other types than those of
        its collection."""
        listed = await _access(request).listed_collections(request)
        page = await read_items(limited_to(search_request, listed), listed, request.app.state.readpool)
        fields = getattr(search_request, "fields", None)
        include, exclude = (set(getattr(fields, name, None) or ()) for name in ("include", "exclude"))
        include |= {"id", "collection"} if include else set()  # as pgSTAC selects them
        for number, item in enumerate(page["features"]):
            page["features"][number] = await _select_fields(item, include, exclude, request)
            if number % _ITEMS_AT_ONCE == 0:
                await asyncio.sleep(0)  # let the event loop run other requests
        tokens = {link["rel"]: link["href"].partition(f"token={link['rel']}:")[2] for link in page.get("links", ())}
        paging = PagingLinks(request=request, next=tokens.get("next"), prev=tokens.get("prev"))
        links = await paging.get_links()
        for link in links:
            if link["rel"] == "self":
                link["type"] = _GEOJSON  # stac-fastapi corrects it unless fields are selected
        return {**page, "links": links}


class QueryablesClient(FiltersClient):  # type: ignore[misc]
    async def get_queryables(self, request: Request, collection_id: str | None = None, **_: Any) -> Any:
        """Replaces stac-fastapi's method: without a collection, the queryables of all that the caller may see."""
        ids: list[str] | None = None
        if collection_id is not None:
            await _require_listed(request, collection_id)
            ids = [collection_id]
        elif (listed := await _access(request).listed_collections(request)) is not None:
            ids = list(listed) or [_NO_COLLECTION]
        async with request.app.state.get_connection(request, "r") as connection:
            queryables = await connection.fetchval("SELECT get_queryables($1::text[])", ids)
        if not queryables:
            raise NotFoundError(f"Collection {collection_id} not found")
        return {**queryables, "$id": str(request.url)}


def _access(request: Request) -> AccessDecisions:
    access: AccessDecisions = request.app.state.access
    return access


def _revision_documents(request: Request) -> RevisionReader:
    documents: RevisionReader = request.app.state.revision_documents
    return documents


async def _require_listed(request: Request, collection_id: str) -> None:
    if not await _access(request).is_listed(request, collection_id):
        raise _no_collection(collection_id)


def _no_collection(collection_id: str) -> NotFoundError:
    """The error has the same message as that of stac-fastapi for an unknown collection."""
    return NotFoundError(f"Collection {collection_id} does not exist.")


@contextmanager
def _not_found_as(error: NotFoundError) -> Iterator[None]:
    try:
        yield
    except NotFound:
        raise error from None


async def _select_fields(item: dict[str, Any], include: set[str], exclude: set[str], request: Request) -> Any:
    """The selected fields of an item, with its links."""
    selected = filter_fields(item, include, exclude)
    if "links" not in exclude:
        links = ItemLinks(collection_id=item["collection"], item_id=item["id"], request=request)
        selected["links"] = await links.get_links(extra_links=selected.get("links"))
    return selected


def _adapted(response: Any, adapt: Callable[[Any], None], media_type: str) -> Response:
    """Adapt a document, and render it: FastAPI would first copy each of its values, which takes longer than the search.

    If the request selects fields, stac-fastapi has rendered it to a response already.
    """
    document = orjson.loads(response.body) if isinstance(response, Response) else response
    adapt(document)
    return Response(orjson.dumps(document), media_type=media_type)


def _adapt_items(items: list[dict[str, Any]], request: Request, fields: Mapping[str, Any]) -> None:
    _update_urls(items, request)
    include, exclude = (set(fields.get(name) or ()) for name in ("include", "exclude"))
    names = {"properties", "properties.datetime"}
    if (not include or include & names) and not names & (exclude - include):
        for item in items:
            # The field is required, and null for an interval; pgSTAC drops nulls.
            item.setdefault("properties", {}).setdefault("datetime", None)


def _add_map_link(document: Any, dataset: str | None, request: Request, ordinal: int | None = None) -> Any:
    if dataset and "links" in document:
        url = Addresses(str(request.base_url)).map(dataset, ordinal)
        document["links"].append({"rel": "alternate", "type": "text/html", "title": "Map", "href": url})
    return document


def _update_urls(documents: Iterable[dict[str, Any]], request: Request) -> None:
    """Let stored URLs of this server begin with its current URL: it may have had another port when they were stored."""
    base, own_host = str(request.base_url), request.base_url.hostname
    for document in documents:
        for link in (*(document.get("links") or ()), *(document.get("assets") or {}).values()):
            if isinstance(href := link.get("href"), str):
                link["href"] = rebased(href, base, own_host)
