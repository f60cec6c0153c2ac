"""Serves the built pages. A path below /ui/ without a suffix returns index.html, whose scripts read the path."""

from functools import lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Annotated, Final

from fastapi import APIRouter, Header, Request
from fastapi.responses import RedirectResponse, Response

from dagmaster.access.permissions import Permission
from dagmaster.errors import NotFound
from dagmaster.web.authentication import requires
from dagmaster.web.page_headers import UI, page_headers

router = APIRouter(include_in_schema=False, dependencies=[requires(Permission.ANYONE)])

_STATIC: Final = files("dagmaster.ui").joinpath("static")
_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "mjs": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "json": "application/json",
}
# Names below assets/ contain a hash of the content; the others may change with every release.
_FOREVER: Final = "public, max-age=31536000, immutable"
_CHECKED: Final = "no-cache"
_NOT_BUILT: Final = """<!doctype html><html lang="en"><meta charset="utf-8"><title>dagmaster</title>
<h1>The web pages are not built</h1>
<p>Run <code>make ui</code> in the repository, or install dagmaster from its wheel. The API works: see
<a href="/docs">its description</a>.</p></html>"""


@router.get(UI)
async def get_pages(request: Request) -> Response:
    """Redirect to /ui/, below which all pages are."""
    query = f"?{request.url.query}" if request.url.query else ""
    return RedirectResponse(f"{UI}/{query}", status_code=308)


@router.get(UI + "/{path:path}")
async def get_page(path: str, accept_encoding: Annotated[str, Header()] = "") -> Response:
    name = path if path.rpartition("/")[2].count(".") else "index.html"
    takes_gzip = "gzip" in accept_encoding.lower()
    content = _content(f"{name}.gz") if takes_gzip else None
    is_packed = content is not None
    content = content if content is not None else _content(name)
    if content is None:
        if name == "index.html":
            return Response(_NOT_BUILT, status_code=503, headers=page_headers(), media_type=_TYPES["html"])
        raise NotFound("this file of the web UI does not exist", code="route.not-found", hint="load the page again")
    headers = page_headers(_FOREVER if name.startswith("assets/") else _CHECKED) | {"Vary": "Accept-Encoding"}
    if is_packed:
        headers["Content-Encoding"] = "gzip"
    media_type = _TYPES.get(name.rpartition(".")[2], "application/octet-stream")
    return Response(content, headers=headers, media_type=media_type)


@lru_cache(maxsize=512)
def _content(name: str) -> bytes | None:
    """The bytes of a built file, read once. None if no file has this name, or if the name leads out of the folder."""
    parts = name.split("/")
    if any(part in ("", ".", "..") or "\\" in part or "\0" in part for part in parts):
        return None
    place: Traversable = _STATIC
    for part in parts:
        place = place.joinpath(part)
    return place.read_bytes() if place.is_file() else None
