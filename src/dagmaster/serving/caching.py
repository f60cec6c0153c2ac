"""How long clients may cache responses.

`latest` can become another version at any time: it is cached for seconds and revalidated by its ETag, which names the
version and the revision. The content of a URL that names both never changes, so that it is cached for a year. The
TileJSON contains such tile URLs: an open map never mixes tiles of two versions.
"""

from collections.abc import Mapping

from starlette.requests import Request
from starlette.types import Scope

SHORT = "public, max-age=10, must-revalidate"
FOR_EVER = "public, max-age=31536000, immutable"
_KEY = "dagmaster.caching"


class NotModified(Exception):
    """The client has the current content: the response is 304."""


def set_cache_headers(request: Request, *, tag: str, is_pinned: bool) -> None:
    """Set the cache headers of the response; raise `NotModified` if the client has this content."""
    etag = f'"{tag}"'
    request.scope["state"][_KEY] = {"ETag": etag, "Cache-Control": FOR_EVER if is_pinned else SHORT}
    if matches_etag(request.headers.get("if-none-match"), etag):
        raise NotModified


def cache_headers(scope: Scope) -> Mapping[str, str]:
    headers: Mapping[str, str] = scope.get("state", {}).get(_KEY, {})
    return headers


def matches_etag(if_none_match: str | None, etag: str) -> bool:
    """Whether `If-None-Match` names this ETag. The comparison is weak (RFC 9110): compressing proxies weaken ETags."""
    if not if_none_match:
        return False
    tags = {tag.strip().removeprefix("W/") for tag in if_none_match.split(",")}
    return bool(tags & {"*", etag})
