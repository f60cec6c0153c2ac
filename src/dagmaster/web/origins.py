"""The origin of a request, as the browser states it in `Origin` and `Sec-Fetch-Site`, headers that no page can set.

Requests of programs have neither.
"""

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def is_of_same_origin(headers: Headers) -> bool:
    """Whether a browser states that a page of this origin sends the request. Without such a statement it is false.

    `Sec-Fetch-Site` is checked first, because it is also correct if a proxy replaces the `Host` header. Browsers leave
    it out for plain http addresses other than localhost.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    return is_own_origin(headers.get("origin", ""), headers)


def is_own_origin(origin: str, headers: Headers) -> bool:
    netloc = netloc_of(origin)
    return bool(netloc) and netloc.lower() == headers.get("host", "").lower()


def is_of_other_site(scope: Scope, headers: Headers, *, with_images: bool = False) -> bool:
    """Whether a page of another site sends the request. False for a link to a page of this server and, with
    `with_images`, for an image: the other page can read neither the linked page nor the pixels."""
    origin = headers.get("origin")
    if origin is not None:
        return not is_own_origin(origin, headers)
    if headers.get("sec-fetch-site") != "cross-site":
        return False
    mode, destination = headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")
    is_link = mode == "navigate" and destination == "document"
    is_image = with_images and mode == "no-cors" and destination == "image"
    return scope["method"] not in {"GET", "HEAD"} or not (is_link or is_image)


def netloc_of(url: str) -> str:
    try:
        return urlsplit(url).netloc
    except ValueError:
        return ""


def name_of(host: str) -> str:
    """The host name of a `Host` header, without the port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
