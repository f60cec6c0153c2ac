"""Colour maps as images, for legends."""

from functools import cache

import numpy as np
from fastapi import APIRouter
from rio_tiler.colormap import cmap
from rio_tiler.utils import render
from starlette.responses import Response

from dagmaster.errors import NotFound

router = APIRouter(tags=["tiles"])


@router.get("/colormaps/{name}.png", operation_id="tiles.getColormap", response_class=Response)
def get_colormap(name: str) -> Response:
    """A colour map, from the colour of the lowest value to that of the highest."""
    if name not in cmap.list():
        raise NotFound("unknown colour map", code="tiles.no-colormap")
    return Response(_ramp(name), media_type="image/png", headers={"Cache-Control": "public, max-age=86400"})


@cache
def _ramp(name: str) -> bytes:
    colors = cmap.get(name)
    pixels = np.array([colors[value] for value in range(256)], np.uint8).T[:, None, :]
    image: bytes = render(pixels, img_format="PNG")
    return image
