"""The pages: a list of datasets, a map of one dataset, and the root of the catalogue.

They are static files that load nothing from other servers, because the network may have no access to the internet.
"""

import html
import re
from functools import cache
from importlib import resources

from fastapi import APIRouter
from starlette.requests import Request
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
    return Response(_static_files()[name], media_type=_MEDIA_TYPES[name.rpartition(".")[2]], headers=_HEADERS)


def missing_page(request: Request, message: str, hint: str | None) -> Response:
    """A page for people who followed a link to something that does not exist."""
    texts = {
        "ROOT": "../" * (request.scope["path"].count("/") - 1) or "./",
        "MESSAGE": f"{message[:1].upper()}{message[1:]}",
        "HINT": hint or "",
    }
    template = _static_files()["missing.html"].decode()
    body = re.sub(r"\{([A-Z]+)\}", lambda match: html.escape(texts[match[1]]), template)
    headers = {**_HEADERS, "Cache-Control": "no-store", "Vary": "Accept"}
    return Response(body, status_code=404, media_type=_MEDIA_TYPES["html"], headers=headers)


@router.get("/pages/{name}")
async def get_page(name: str) -> Response:
    """Scripts and styles. HTML files have relative links or are templates: they work only at their own addresses."""
    if name not in _static_files() or name.endswith(".html"):
        raise NotFound("the page does not exist", code="route.not-found")
    return page(name)


@cache
def _static_files() -> dict[str, bytes]:
    folder = resources.files("dagmaster.serving").joinpath("static")
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name.rpartition(".")[2] in _MEDIA_TYPES}
