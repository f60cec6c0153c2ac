"""Mosaics of the items that a search finds: the routes of titiler-pgstac under `/searches`.

    POST register ──▶ id        {id}/info    {id}[/{grid}]/tilejson.json    {id}/tiles[/{grid}]/{z}/{x}/{y}[.png|…]

The id is the search itself: a letter for the format, then canonical JSON, compressed, in base64url. So nothing is
stored, and every process knows every search. An id that a client made itself is checked like any search of the STAC
API. A tile is a search for the items that touch it and that its caller may see; where items overlap, the first one with
data at a pixel is shown.
"""

import base64
import binascii
import hashlib
import html
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Annotated, Any
from urllib.parse import urlencode

import orjson
import rasterio
from fastapi import APIRouter, Body, Depends, Path, Query, Request
from fastapi.routing import APIRoute
from morecantile import Tile, TileMatrixSet
from rio_tiler.errors import NoAssetFoundError
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from titiler.core.factory import img_endpoint_params

from dagmaster.addresses import Addresses
from dagmaster.bbox import BBox
from dagmaster.dataset_urls import GRID
from dagmaster.errors import InvalidRequest, NotFound
from dagmaster.serving import dependencies as deps
from dagmaster.serving.caching import set_cache_headers
from dagmaster.serving.dependencies import TileOptions
from dagmaster.serving.mosaics import Mosaic
from dagmaster.serving.queries import both_filters
from dagmaster.serving.readers import GDAL_ENVIRONMENT, ReaderInput, require_tile
from dagmaster.serving.services import MapServices, Services
from dagmaster.serving.sources import WORLD, SourceKind, TileSource, bounds_of, cog_source
from dagmaster.serving.stac_search import Collections
from dagmaster.serving.tiles import Format, TileSize, handle_head, raster_layer, read_tile, requested_grid

# The limit of items in one tile: each is a file to open.
MAX_ITEMS = 25
# A URL must contain the id; browsers and proxies accept some 8,000 characters.
MAX_ID_CHARACTERS = 4_000
MAX_SEARCH_BYTES = 20_000
FIELDS = ("collections", "ids", "bbox", "intersects", "datetime", "filter", "query", "sortby")
_FORMAT = "a"
# How many items are read to compute the bounds of a search.
_ITEMS_OF_BOUNDS = 100
# How long the rendering and the bounds of a search are cached. Which items its tiles show is never cached.
_SUMMARY_SECONDS = 1.5
_LANGUAGE = "cql2-json"
_TIFF = "image/tiff"
_TILE_PATHS = {"/{search_id}/tiles/{tileMatrixSetId}/{z}/{x}/{y}": "", "/{search_id}/tiles/{z}/{x}/{y}": "Mercator"}
_EXAMPLE = {"collections": ["dem"], "bbox": [6, 45, 9, 47], "sortby": [{"field": "datetime", "direction": "desc"}]}

SearchId = Annotated[str, Path(description="The id that `/searches/register` returned")]
AssetKeys = Annotated[str | None, Query(description="Must be `data`, which is the asset that is always shown")]


def encode(search: Mapping[str, Any]) -> str:
    """The id of a search: equal searches have the same id."""
    text = orjson.dumps(search, option=orjson.OPT_SORT_KEYS)
    search_id = _FORMAT + base64.urlsafe_b64encode(zlib.compress(text, 9)).decode().rstrip("=")
    if len(text) > MAX_SEARCH_BYTES or len(search_id) > MAX_ID_CHARACTERS:
        raise InvalidRequest(
            f"the search is too large: it has {len(text):,} bytes (at most {MAX_SEARCH_BYTES:,}), and its id would "
            f"have {len(search_id):,} characters (at most {MAX_ID_CHARACTERS:,})",
            code="search.too-large",
            hint="simplify its geometry, or name fewer ids",
        )
    return search_id


def decode(search_id: str) -> dict[str, Any]:
    """The search of an id. Its content is not checked yet."""
    if len(search_id) > MAX_ID_CHARACTERS or not search_id.startswith(_FORMAT):
        raise _no_search()
    encoded = search_id.removeprefix(_FORMAT)
    try:
        packed = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
        unpacking = zlib.decompressobj()
        text = unpacking.decompress(packed, MAX_SEARCH_BYTES)
        is_complete = unpacking.eof and not unpacking.unused_data
        search = orjson.loads(text) if is_complete else None
    except (binascii.Error, zlib.error, ValueError):
        search = None
    if not isinstance(search, dict) or not search.keys() <= set(FIELDS):
        raise _no_search()
    return search


def _no_search() -> NotFound:
    return NotFound(
        "this is not the id of a search", code="search.not-found", hint="POST /searches/register returns ids"
    )


async def summarized(services: MapServices, search_id: str, listed: Collections) -> TileSource:
    """The source that all tiles of a search share: the rendering of its first item, and the bounds of all items."""
    search = decode(search_id)
    page = await services.item_search.page({**search, "limit": _ITEMS_OF_BOUNDS}, listed)
    sources = _sources(search, page["features"])
    if not sources:
        raise NotFound("the search finds no image", code="search.no-items", hint="search for other items at /stac")
    has_more = any(link.get("rel") == "next" for link in page.get("links") or ())
    return replace(
        sources[0],
        dataset_id=search_id,
        kind=SourceKind.MOSAIC,
        bounds=_bounds(search, sources, has_more=has_more),
        title="Search",
        attribution=" · ".join(dict.fromkeys(source.attribution for source in sources if source.attribution)),
    )


def _bounds(search: Mapping[str, Any], sources: Iterable[TileSource], *, has_more: bool) -> BBox:
    if search.get("bbox"):
        return bounds_of(search["bbox"])
    return WORLD if has_more else BBox.union(source.bounds for source in sources)


def _sources(search: Mapping[str, Any], items: Iterable[Mapping[str, Any]]) -> list[TileSource]:
    """The items that have an image, in the order of the search. Items of the same time are sorted by version here:
    pgSTAC sorts them by id, in which version 9 comes before version 10."""
    images = [item for item in items if _has_image(item)]
    if not search.get("sortby"):
        by_time = [sorted(same, key=_ordinal, reverse=True) for _, same in groupby(images, _time)]
        images = [item for same in by_time for item in same]
    return [cog_source(item["collection"], {}, item, _ordinal(item)) for item in images]


def _ordinal(item: Mapping[str, Any]) -> int:
    return int(item["properties"].get("dagmaster:version_ordinal") or 0)


def _time(item: Mapping[str, Any]) -> Any:
    return item["properties"].get("start_datetime") or item["properties"].get("datetime")


def _has_image(item: Mapping[str, Any]) -> bool:
    asset = (item.get("assets") or {}).get("data")
    return asset is not None and str(asset.get("type") or _TIFF).startswith(_TIFF)


def _within(search: Mapping[str, Any], area: BBox) -> dict[str, Any]:
    """The search, for items that touch an area. As a filter, because the search may have a bbox already."""
    touches = {"op": "s_intersects", "args": [{"property": "geometry"}, area.geometry()]}
    return {**search, "filter": both_filters(search.get("filter"), touches), "limit": MAX_ITEMS}


def _area(grid: TileMatrixSet, tile: Tile) -> BBox:
    """The bounds of a tile in degrees. Near the poles of a grid they may be invalid: then the whole range is used."""
    west, south, east, north = grid.bounds(tile)
    if not -180 <= west < east <= 180:
        west, east = -180.0, 180.0
    if not -90 <= south < north <= 90:
        south, north = -90.0, 90.0
    return BBox(west, south, east, north)


async def find_tile(
    request: Request, services: MapServices, search_id: str, grid: TileMatrixSet, tile: Tile
) -> ReaderInput:
    """The images that touch a tile, as a mosaic."""
    deps.require_allowed(request, deps.SEARCH_PARAMETERS)
    search = decode(search_id)
    require_tile(grid, *tile)
    listed = await services.access.listed_collections(request)
    page = await services.item_search.page(_within(search, _area(grid, tile)), listed)
    sources = _sources(search, page["features"])
    if not sources:
        raise NoAssetFoundError("no item touches the tile")
    load = partial(summarized, services, search_id, listed)
    shared = await services.search_summaries.get((search_id, listed), load, _SUMMARY_SECONDS)
    tags = "\n".join(f"{source.dataset_id} {source.tag} {source.location}" for source in (shared, *sources))
    is_known = set_cache_headers(request, tag=_digest(tags))
    locations = tuple(dict.fromkeys(source.location for source in sources))
    mosaic = Mosaic(shared.bounds, grid.minzoom, grid.maxzoom, 0, ("",), {"": locations})
    return ReaderInput(shared, services.storage, services.mosaics, services.datasets, is_known=is_known, mosaic=mosaic)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def router() -> APIRouter:
    router = APIRouter(tags=["searches"])
    router.add_api_route("/register", register, methods=["POST"], operation_id="searches.register")
    router.add_api_route("/{search_id}/info", get_info, operation_id="searches.getInfo")
    for path, suffix in _TILE_PATHS.items():
        grid_of = mercator_grid if suffix else requested_grid
        _add_tiles(router, path, suffix, grid_of)
        json_path = path.replace("/tiles", "").replace("/{z}/{x}/{y}", "/tilejson.json")
        _add_tilejson(router, json_path, suffix, grid_of)
    routes = [route for route in router.routes if isinstance(route, APIRoute)]
    handle_head(router, [route for route in routes if "GET" in (route.methods or ())])
    return router


async def mercator_grid(services: Services) -> TileMatrixSet:
    return services.grids[GRID]


async def register(
    request: Request,
    services: Services,
    body: Annotated[dict[str, Any], Body(description="A STAC search", openapi_examples={"dem": {"value": _EXAMPLE}})],
) -> dict[str, Any]:
    """Returns the id of a search, for tiles of the items that it finds. Nothing is stored."""
    if body.get("filter-lang") in (_LANGUAGE, None):
        body.pop("filter-lang", None)
    unknown = sorted(body.keys() - set(FIELDS))
    if unknown:
        raise InvalidRequest(
            f"a search for a mosaic may not have the field {unknown[0][:40]!r}",
            code="search.no-field",
            hint=f"allowed fields: {', '.join(FIELDS)} and filter-lang={_LANGUAGE}",
        )
    try:
        search_id = encode({name: value for name, value in body.items() if value is not None})
    except (TypeError, RecursionError):  # numbers and text that JSON cannot represent, or too deep nesting
        raise InvalidRequest("a value of the search cannot be read", code="request.invalid") from None
    # The search is run once, with an area as for tiles, so that one that the catalogue refuses gets no id.
    listed = await services.access.listed_collections(request)
    await services.item_search.page({**_within(decode(search_id), WORLD), "limit": 1}, listed)
    return {"id": search_id, "links": _links(request, search_id)}


async def get_info(request: Request, search_id: SearchId, services: Services) -> dict[str, Any]:
    """The search behind an id."""
    search = decode(search_id)
    services.item_search.parsed(_within(search, WORLD))
    return {
        "search": {"hash": search_id, "search": search, "metadata": {"type": "mosaic"}},
        "links": _links(request, search_id),
    }


def _links(request: Request, search_id: str) -> list[dict[str, Any]]:
    addresses = Addresses(str(request.base_url))
    links = [
        ("metadata", "Search", addresses.search_info(search_id)),
        ("tilejson", "TileJSON", addresses.search_tilejson(search_id)),
    ]
    return [{"rel": rel, "title": title, "type": "application/json", "href": href} for rel, title, href in links]


def _add_tiles(router: APIRouter, path: str, suffix: str, grid_of: Callable[..., Any]) -> None:
    """Tiles in the grid that a dependency selects."""

    async def search_tile(
        request: Request,
        services: Services,
        search_id: SearchId,
        grid: Annotated[TileMatrixSet, Depends(grid_of)],
        *,
        z: int,
        x: int,
        y: int,
        assets: AssetKeys = None,
    ) -> ReaderInput:
        return await find_tile(request, services, search_id, grid, Tile(x, y, z))

    find_options = deps.tile_options_of(search_tile)

    async def get_search_tile(
        options: Annotated[TileOptions, Depends(find_options)],
        grid: Annotated[TileMatrixSet, Depends(grid_of)],
        *,
        z: int,
        x: int,
        y: int,
        tilesize: TileSize = None,
    ) -> Response:
        """A map tile: JPEG if it is opaque, PNG if it has transparent pixels."""
        return await run_in_threadpool(read_tile, options, grid, (x, y, z), tilesize, None)

    async def get_search_tile_in_format(
        options: Annotated[TileOptions, Depends(find_options)],
        grid: Annotated[TileMatrixSet, Depends(grid_of)],
        *,
        z: int,
        x: int,
        y: int,
        kind: Format,
        tilesize: TileSize = None,
    ) -> Response:
        """A map tile in the requested format."""
        return await run_in_threadpool(read_tile, options, grid, (x, y, z), tilesize, kind)

    name = f"searches.get{suffix}Tile"
    shared: dict[str, Any] = {**img_endpoint_params}
    router.add_api_route(f"{path}.{{format}}", get_search_tile_in_format, operation_id=f"{name}WithFormat", **shared)
    router.add_api_route(path, get_search_tile, operation_id=name, **shared)


def _add_tilejson(router: APIRouter, path: str, suffix: str, grid_of: Callable[..., Any]) -> None:
    async def get_search_tilejson(
        request: Request,
        services: Services,
        search_id: SearchId,
        grid: Annotated[TileMatrixSet, Depends(grid_of)],
        *,
        tilesize: Annotated[int, Query(description="256, 512 or 1024")] = 512,
        tile_format: Annotated[
            str | None, Query(description="The default is JPEG for opaque tiles, PNG for others")
        ] = None,
        assets: AssetKeys = None,
    ) -> dict[str, Any]:
        """TileJSON 3.0. Its zooms are those of the first item."""
        deps.require_allowed(request, deps.SEARCH_PARAMETERS)
        source = await summarized(services, search_id, await services.access.listed_collections(request))
        set_cache_headers(request, tag=_digest(repr(source)))
        path = ReaderInput(source, services.storage, services.mosaics, services.datasets)
        parameters = [(n, v) for n, v in request.query_params.multi_items() if n not in ("tilesize", "tile_format")]
        query = urlencode([*parameters, ("tilesize", tilesize)], safe=",")
        ending = f".{tile_format}" if tile_format else ""
        tiles = Addresses(str(request.base_url)).search_xyz(search_id, query, suffix=ending, grid=grid.id or GRID)
        return await run_in_threadpool(_tilejson, path, grid, tiles)

    router.add_api_route(path, get_search_tilejson, operation_id=f"searches.get{suffix}TileJSON")


def _tilejson(src_path: ReaderInput, grid: TileMatrixSet, tiles: str) -> dict[str, Any]:
    source = src_path.source
    with (
        rasterio.Env(**GDAL_ENVIRONMENT),
        src_path.open_cog(source.location, grid, is_display=True) as cog,
    ):
        minzoom, maxzoom, info = cog.minzoom, cog.maxzoom, cog.info()
    return {
        "tilejson": "3.0.0",
        "name": source.title,
        "attribution": html.escape(source.attribution or ""),
        "version": "1.0.0",
        "scheme": "xyz",
        "tiles": [tiles],
        "minzoom": minzoom,
        "maxzoom": maxzoom,
        "bounds": source.bounds.widened().as_list(),
        "center": [*source.bounds.centre, minzoom],
        "vector_layers": [],
        "raster_layers": [raster_layer(source, info, minzoom, maxzoom)],
    }
