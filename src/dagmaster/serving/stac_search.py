"""Searches for items: what a search may contain, which collections it reads, and how it is executed.

The STAC API and `ItemSearch`, which other routes use, share these functions.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import asyncpg
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from dagmaster.errors import InvalidRequest
from dagmaster.serving.filters import (
    require_flat_text,
    require_simple_filter,
    require_simple_geometry,
    require_simple_json,
)
from dagmaster.serving.hydration import read_page
from dagmaster.serving.problems import describe
from dagmaster.serving.queries import both_filters, filter_of, move_query
from dagmaster.serving.stac_connections import acquired
from dagmaster.serving.stac_errors import ERRORS, HINT, translated, unreadable

Collections = tuple[str, ...] | None  # the collections that a caller may see; None means all

# Items on one page, which has a link to the next one.
MAX_ITEMS = 1000


class ItemSearch:
    """Searches of other routes than those of the STAC API, with its models, checks, connections and limits."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    async def page(self, search: Mapping[str, Any], listed: Collections) -> dict[str, Any]:
        """A page of items for the body of a POST search, of the listed collections (None means all)."""
        model = limited_to(self.parsed(search), listed)
        try:
            return await read_items(model, listed, self._app.state.readpool)
        except tuple(ERRORS) as error:
            raise translated(error) from error

    def parsed(self, search: Mapping[str, Any]) -> Any:
        """The model of a search; refused if the STAC API would refuse it."""
        require_simple_json(search)
        try:
            model = self._app.state.search_model.model_validate(search)
        except ValidationError as error:
            message = describe(RequestValidationError(error.errors()))
            raise InvalidRequest(message, code="request.invalid", hint=HINT) from None
        limit_body(model)
        return model


def limited_to(search_request: Any, listed: Collections) -> Any:
    """The search, in the listed collections only. pgSTAC does not read the partitions of others at all, so that neither
    a filter nor a sorting can reveal anything about them."""
    if listed is None:
        return search_request
    requested = search_request.collections
    limited = search_request.model_copy()
    limited.collections = list(listed) if requested is None else sorted({*requested} & {*listed})
    if _collection_of_token(getattr(search_request, "token", None)) not in (None, *limited.collections):
        raise unreadable()
    return limited


def _collection_of_token(token: str | None) -> str | None:
    """The collection of the item at which a page begins: pgSTAC would compare with this item even if it is hidden."""
    parts = (token or "").split(":")
    if len(parts) != 3:
        return None
    try:
        return bytes.fromhex(parts[1]).decode()
    except ValueError:
        return None


async def read_items(search_request: Any, listed: Collections, pool: asyncpg.Pool) -> dict[str, Any]:
    """A page of items. If the collections are limited, it uses a search that is planned fast even for many of them."""
    search_request.conf = {**(search_request.conf or {}), "nohydrate": True}
    search = search_request.model_dump_json(exclude_none=True, by_alias=True)
    async with acquired(pool) as connection:
        if listed is None:
            return read_page(await connection.fetchval("SELECT search($1::text::jsonb)::text", search))
        statement = "SELECT dagapp.search_listed($1::text::jsonb, $2::text[])::text"
        return read_page(await connection.fetchval(statement, search, search_request.collections))


def limit_body(search_request: Any) -> None:
    limited = {"bbox": search_request.bbox, "limit": search_request.limit}
    limit_search(limited)
    search_request.limit = limited["limit"]
    if search_request.query:
        search_request.filter_expr = both_filters(search_request.filter_expr, filter_of(search_request.query))
        search_request.query = None


def limit_search(search: dict[str, Any]) -> None:
    _require_finite(search.get("bbox"))
    require_simple_filter(search.get("filter_expr"))
    for name in ("fields", "sortby"):
        _require_names(name, search.get(name))
    require_flat_text(search.get("query"))
    require_simple_geometry(search.get("intersects"))
    if search.get("limit") is not None:
        search["limit"] = min(search["limit"], MAX_ITEMS)
    move_query(search)


def _require_names(parameter: str, names: Iterable[str] | None) -> None:
    """Refuse empty names: stac-fastapi reads the first character of each name."""
    if not all(isinstance(name, str) and name.strip(" +-") for name in names or ()):
        raise InvalidRequest(f"{parameter} has an empty name", code="request.invalid", hint=HINT)


def _require_finite(bbox: Iterable[float] | None) -> None:
    """Every comparison with NaN is false: pgSTAC would return arbitrary items."""
    if not all(math.isfinite(value) for value in bbox or ()):
        message = "the bbox must consist of finite numbers"
        raise InvalidRequest(message, code="request.invalid", hint="west,south,east,north in degrees")
