"""The grids of tiles (OGC tile matrix sets), their descriptions, and the implemented classes of OGC API Tiles."""

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from morecantile import TileMatrixSet
from morecantile import tms as all_grids
from morecantile.defaults import TileMatrixSets
from titiler.core.factory import ColorMapFactory, TMSFactory

from dagmaster.dataset_urls import GRID
from dagmaster.errors import InvalidRequest

# Pixels of each side of the image of a colour map: TiTiler has no limit, and encodes it in this process.
MAX_LEGEND_SIZE = 512
_CONFORMANCE = (
    "http://www.opengis.net/spec/ogcapi-common-1/1.0/conf/core",
    "http://www.opengis.net/spec/ogcapi-common-1/1.0/conf/json",
    "http://www.opengis.net/spec/ogcapi-tiles-1/1.0/conf/core",
    "http://www.opengis.net/spec/ogcapi-tiles-1/1.0/conf/oas30",
    "http://www.opengis.net/spec/ogcapi-tiles-1/1.0/conf/tileset",
    "http://www.opengis.net/spec/ogcapi-tiles-1/1.0/conf/tilesets-list",
    "http://www.opengis.net/spec/ogcapi-tiles-1/1.0/conf/jpeg",
    "http://www.opengis.net/spec/ogcapi-tiles-1/1.0/conf/png",
    "http://www.opengis.net/spec/tms/2.0/conf/tilematrixset",
    "http://www.opengis.net/spec/tms/2.0/conf/json-tilematrixset",
)


def grids_named(names: Sequence[str]) -> TileMatrixSets:
    """These grids of morecantile. The Web Mercator grid is always among them, as the first."""
    unknown = [name for name in names if name not in all_grids.list()]
    if unknown:
        raise InvalidRequest(
            f"SERVING_GRIDS names an unknown grid: {unknown[0][:60]!r}",
            code="settings.invalid",
            hint=f"known grids: {', '.join(sorted(all_grids.list()))}",
        )
    return TileMatrixSets({name: all_grids.get(name) for name in dict.fromkeys([GRID, *names])})


def has_tile(grid: TileMatrixSet, x: int, y: int, z: int) -> bool:
    if not grid.minzoom <= z <= grid.maxzoom:
        return False
    matrix = grid.matrix(z)
    return 0 <= x < matrix.matrixWidth and 0 <= y < matrix.matrixHeight


async def require_legend_size(
    width: Annotated[int | None, Query(gt=0, le=MAX_LEGEND_SIZE)] = None,
    height: Annotated[int | None, Query(gt=0, le=MAX_LEGEND_SIZE)] = None,
) -> None:
    """Refuse the image of a colour map that is too large."""


def router(grids: TileMatrixSets) -> APIRouter:
    router = APIRouter(tags=["tiles"])
    TMSFactory(router=router, supported_tms=grids, name="grids")
    legends: Any = [([{"path": "/colorMaps/{colorMapId}", "method": "GET"}], [Depends(require_legend_size)])]
    ColorMapFactory(router=router, name="colormaps", route_dependencies=legends)
    router.add_api_route("/conformance", get_conformance, operation_id="tiles.getConformance")
    return router


async def get_conformance() -> dict[str, Any]:
    """The classes of OGC API that are implemented. The STAC API has its own list at `/stac/conformance`."""
    return {"conformsTo": list(_CONFORMANCE)}
