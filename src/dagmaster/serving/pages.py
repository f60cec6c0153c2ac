"""The pages: a list of datasets, and a map of one dataset.

They are static files that load nothing from other servers, because the network may have no access to the internet.
"""

from functools import cache
from importlib import resources

from fastapi import APIRouter
from starlette.responses import Response

from dagmaster.errors import NotFound

_MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
}
_HEADERS = {
    "Cache-Control": "no-cache",
    # Texts in the catalogue come from users: they must never run as scripts. Nothing is loaded from other servers.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    ),
    "Referrer-Policy": "no-referrer",
}

router = APIRouter(include_in_schema=False)


def page(name: str) -> Response:
    files = _static_files()
    if name not in files:
        raise NotFound("the page does not exist", code="route.not-found")
    return Response(files[name], media_type=_MEDIA_TYPES[name.rpartition(".")[2]], headers=_HEADERS)


@router.get("/")
async def get_index() -> Response:
    return page("index.html")


@router.get("/pages/{name}")
async def get_page(name: str) -> Response:
    return page(name)


@cache
def _static_files() -> dict[str, bytes]:
    folder = resources.files("dagmaster.serving").joinpath("static")
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name.rpartition(".")[2] in _MEDIA_TYPES}
