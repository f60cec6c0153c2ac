"""The pages: what there is, and a map of one dataset. Plain files that load nothing from elsewhere: networks may be closed."""

from functools import cache
from importlib.resources import files

from fastapi import APIRouter
from starlette.responses import Response

from dagmaster.errors import NotFound

_KINDS = {"html": "text/html; charset=utf-8", "js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8"}
_HEADERS = {
    "Cache-Control": "no-cache",
    # Texts of the catalogue are written by others: none of it shall ever run, and nothing is loaded from elsewhere.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    ),
    "Referrer-Policy": "no-referrer",
}

router = APIRouter(include_in_schema=False)


def page(name: str) -> Response:
    texts = _texts()
    if name not in texts:
        raise NotFound("there is no such page", code="route.not-found")
    return Response(texts[name], media_type=_KINDS[name.rpartition(".")[2]], headers=_HEADERS)


@router.get("/")
async def get_index() -> Response:
    return page("index.html")


@router.get("/pages/{name}")
async def get_page(name: str) -> Response:
    return page(name)


@cache
def _texts() -> dict[str, bytes]:
    folder = files("dagmaster.serving").joinpath("static")
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name.rpartition(".")[2] in _KINDS}
