"""The root of the map server: the page with all datasets for browsers, the landing page of OGC API for other clients.
Both are also at /maps, for clients that reach the map server through the address of the API.

The landing page names no dataset: it links to lists, which contain only what the caller may see.
"""

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import JsonValue
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dagmaster.access.permissions import Permission
from dagmaster.dataset_urls import MAPS, STAC, TILES
from dagmaster.errors import InvalidRequest
from dagmaster.serving import pages
from dagmaster.web.accept import prefers_html
from dagmaster.web.authentication import requires

_OGC = "http://www.opengis.net/def/rel/ogc/1.0"
_JSON = "application/json"
_FORMATS: list[JsonValue] = ["json", "html"]

router = APIRouter(tags=["tiles"])


@router.get(MAPS, include_in_schema=False, dependencies=[requires(Permission.ANYONE)])
@router.get(
    "/",
    operation_id="tiles.getLandingPage",
    response_class=Response,
    responses={200: {"content": {_JSON: {}, "text/html": {}}, "description": "The landing page"}},
    dependencies=[requires(Permission.ANYONE)],
)
async def get_landing_page(
    request: Request,
    f: Annotated[
        str | None, Query(description="The format, instead of `Accept`", json_schema_extra={"enum": _FORMATS})
    ] = None,
) -> Response:
    """Links to the description of the API, the datasets, the grids and the catalogue."""
    if f is not None and f not in _FORMATS:  # OGC API requires 400
        raise InvalidRequest("this format is not supported", code="request.no-format", hint="use f=json or f=html")
    is_page = f == "html" if f else prefers_html(request)
    response = pages.page("index.html") if is_page else JSONResponse(landing_page(request))
    response.headers["Vary"] = "Accept"
    return response


@router.get(f"{MAPS}/openapi.json", include_in_schema=False, dependencies=[requires(Permission.ANYONE)])
async def get_description(request: Request) -> JSONResponse:
    return JSONResponse(request.app.openapi())


def landing_page(request: Request) -> dict[str, Any]:
    base = str(request.base_url).rstrip("/")
    # At the address of the API, / and /openapi.json belong to the API.
    is_root = request.scope["path"] != MAPS
    root, description = ("/", "/openapi.json") if is_root else (MAPS, f"{MAPS}/openapi.json")

    def link(rel: str, path: str, title: str, media_type: str = _JSON, **more: Any) -> dict[str, Any]:
        return {"rel": rel, "type": media_type, "title": title, "href": f"{base}{path}", **more}

    return {
        "title": request.app.title,
        "description": request.app.description,
        "links": [
            link("self", f"{root}?f=json", "This document"),
            link("alternate", f"{root}?f=html", "All datasets as a page", "text/html"),
            link("service-desc", description, "The description of this API", "application/vnd.oai.openapi+json"),
            link("conformance", "/conformance", "The classes of OGC API that are implemented"),
            link(f"{_OGC}/conformance", "/conformance", "The classes of OGC API that are implemented"),
            link("data", f"{STAC}/collections", "The datasets"),
            link(f"{_OGC}/data", f"{STAC}/collections", "The datasets"),
            link(f"{_OGC}/tilesets-map", f"{TILES}/{{dataset}}/tiles", "The tilesets of a dataset", templated=True),
            link(f"{_OGC}/tiling-schemes", "/tileMatrixSets", "The grids of the tiles"),
            link("child", f"{STAC}/", "The STAC catalogue"),
            link("search", f"{STAC}/search", "Search in the STAC catalogue", "application/geo+json"),
        ],
    }
