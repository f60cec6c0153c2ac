"""A preview of a dataset, stitched from the tiles of the map server: it shows what a map shows."""

import itertools
import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx2

from dagmaster.errors import Unavailable
from dagmaster.web_mercator import position

MAX_SIDE = 1024
_TILE = 256
_MAX_SIDE_AT_MINZOOM = 4096  # pixels; the limit if even the coarsest zoom exceeds MAX_SIDE
_CONCURRENT_REQUESTS = 4
_TIMEOUT_SECONDS = 60.0
_MAX_START_SECONDS = 45.0  # the map server takes seconds to start


def make_preview(tilejson_url: str, target: Path) -> None:
    """Fetch the tiles of the finest zoom at which the dataset fits, and save them as one picture."""
    from dagmaster.raster.picture import stitched

    with _translated(), httpx2.Client(timeout=_TIMEOUT_SECONDS, trust_env=False) as http:
        tilejson = _tilejson(http, tilejson_url)
        zoom, box = _fitting(tilejson, MAX_SIDE)
        tiles = _fetched(http, tilejson["tiles"][0], zoom, box)
    if not tiles:
        raise Unavailable("the map server has no tiles of this dataset", code="preview.empty")
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}.new")
    unfinished.write_bytes(stitched(tiles, box, _TILE))
    unfinished.replace(target)


def _tilejson(http: httpx2.Client, url: str) -> Any:
    """The TileJSON; it is requested again while the map server is still starting."""
    request_url = httpx2.URL(url).copy_merge_params({"tilesize": str(_TILE), "tile_format": "png"})
    deadline = time.monotonic() + _MAX_START_SECONDS
    while True:
        try:
            response = http.get(request_url)
        except httpx2.TransportError:
            if time.monotonic() > deadline:
                raise
        else:
            if response.status_code < HTTPStatus.INTERNAL_SERVER_ERROR or time.monotonic() > deadline:
                return response.raise_for_status().json()
        time.sleep(0.2)


def _fitting(tilejson: Any, longest_side: int) -> tuple[int, tuple[int, int, int, int]]:
    """The finest zoom at which the dataset fits, and its bounds in pixels of that zoom."""
    for zoom in range(tilejson["maxzoom"], tilejson["minzoom"] - 1, -1):
        box = _pixels(tilejson["bounds"], zoom)
        side = max(box[2] - box[0], box[3] - box[1])
        if side <= longest_side or (zoom == tilejson["minzoom"] and side <= _MAX_SIDE_AT_MINZOOM):
            return zoom, box
    raise Unavailable("the dataset is too large for a preview", code="preview.large")


def _pixels(bounds: list[float], zoom: int) -> tuple[int, int, int, int]:
    west, south, east, north = bounds
    (left, top), (right, bottom) = _position(west, north, zoom), _position(east, south, zoom)
    box = math.floor(left), math.floor(top), math.ceil(right), math.ceil(bottom)
    return box[0], box[1], max(box[2], box[0] + 1), max(box[3], box[1] + 1)


def _position(longitude: float, latitude: float, zoom: int) -> tuple[float, float]:
    """The position in pixels from the upper left corner of the world, in Web Mercator."""
    size = _TILE * 2**zoom
    x, y = position(longitude, latitude, limit=85.05)
    return x * size, y * size


def _fetched(
    http: httpx2.Client, template: str, zoom: int, box: tuple[int, int, int, int]
) -> dict[tuple[int, int], bytes]:
    cols, rows = range(box[0] // _TILE, (box[2] - 1) // _TILE + 1), range(box[1] // _TILE, (box[3] - 1) // _TILE + 1)

    def fetch(tile: tuple[int, int]) -> bytes | None:
        col, row = tile[0] % 2**zoom, tile[1]
        response = http.get(template.format(z=zoom, x=col, y=row))
        if response.status_code in (HTTPStatus.NOT_FOUND, HTTPStatus.NO_CONTENT):
            return None  # the dataset has no data in this tile
        return response.raise_for_status().content

    tiles = list(itertools.product(cols, rows))
    with ThreadPoolExecutor(_CONCURRENT_REQUESTS) as threads:
        return {tile: image for tile, image in zip(tiles, threads.map(fetch, tiles), strict=True) if image}


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except httpx2.HTTPStatusError as error:
        message = f"the map server responded with status {error.response.status_code} for {error.request.url.path}"
        raise Unavailable(message, code="preview.refused") from None
    except httpx2.HTTPError as error:
        raise Unavailable(f"the map server does not respond: {error}", code="preview.unreachable") from None
