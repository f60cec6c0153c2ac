"""How long clients may cache responses.

Shared caches must not store responses that only some callers may read, and `latest` can become another version at any
time. Such responses are private, cached for some seconds, and revalidated by their ETag, which contains the version and
the revision. The content of a URL that names version and revision never changes; if anyone may read it, it is cached
for a year. The TileJSON contains such URLs of tiles, so an open map never mixes tiles of two versions.

An invalid request must not get a 304 response: `NotModified` is raised when a file is opened, after the parameters were
checked, and `If-None-Match: *` is evaluated when the response is complete.
"""

from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Message, Scope, Send

from dagmaster.access.links import PARAMETER

SHORT = "private, max-age=10, must-revalidate"
FOR_EVER = "public, max-age=31536000, immutable"
# For responses that set no other value: they may depend on the caller.
BY_DEFAULT = "private, no-cache"
# The headers that may contain credentials.
CREDENTIALS = "Authorization, X-API-Key, Cookie"
_KEY = "dagmaster.caching"
_ANY = "*"


class NotModified(Exception):
    """The client has the current content: the response is 304."""


def cache_control(request: Request, *, is_pinned: bool, is_public: bool) -> str:
    """`is_pinned`: the content never changes. `is_public`: anyone may read it. Shared caches never store a response to
    a URL with a token."""
    return FOR_EVER if is_pinned and is_public and PARAMETER not in request.query_params else SHORT


def set_cache_headers(request: Request, *, tag: str, is_pinned: bool = False, is_public: bool = False) -> bool:
    """Set the cache headers of the response. True if the client has the content of this tag."""
    etag = f'"{tag}"'
    control = cache_control(request, is_pinned=is_pinned, is_public=is_public)
    request.scope["state"][_KEY] = {"ETag": etag, "Cache-Control": control}
    if_none_match = request.headers.get("if-none-match", "").strip()
    return if_none_match != _ANY and matches_etag(if_none_match, etag)


def not_modified_if_any(scope: Scope, send: Send) -> Send:
    """For `If-None-Match: *`: a successful response with an ETag becomes 304, without its body."""
    if scope["type"] != "http" or Headers(scope=scope).get("if-none-match", "").strip() != _ANY:
        return send
    is_replaced = False

    async def send_or_replace(message: Message) -> None:
        nonlocal is_replaced
        if message["type"] == "http.response.start":
            is_replaced = message["status"] == 200 and bool(cache_headers(scope))
            if is_replaced:
                headers = [(k, v) for k, v in message["headers"] if k not in (b"content-length", b"content-type")]
                message = {**message, "status": 304, "headers": headers}
        elif is_replaced:
            message = {**message, "body": b""}
        await send(message)

    return send_or_replace


def is_private(cache_control: str) -> bool:
    return not cache_control.startswith("public")


def cache_headers(scope: Scope) -> Mapping[str, str]:
    headers: Mapping[str, str] = scope.get("state", {}).get(_KEY, {})
    return headers


def matches_etag(if_none_match: str | None, etag: str) -> bool:
    """Whether `If-None-Match` names this ETag. The comparison is weak (RFC 9110): compressing proxies weaken ETags."""
    if not if_none_match:
        return False
    tags = {tag.strip().removeprefix("W/") for tag in if_none_match.split(",")}
    return bool(tags & {_ANY, etag})
