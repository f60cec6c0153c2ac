"""How long what is served may be kept.

`latest` may be another version in a moment: it is kept for seconds and asked for again by its tag, which is made of version and
revision. What names both never changes, and is kept for ever. TileJSON hands out such addresses, so that a map that is open
never shows tiles of two versions side by side.
"""

from collections.abc import Mapping

from starlette.requests import Request
from starlette.types import Scope

SHORT = "public, max-age=10, must-revalidate"
FOR_EVER = "public, max-age=31536000, immutable"
_KEY = "dagmaster.caching"


class Unchanged(Exception):
    """Who asks has it already."""


def mark(request: Request, *, tag: str, is_pinned: bool) -> None:
    """Say how this answer may be kept; who has it already is told so instead of being given it again."""
    etag = f'"{tag}"'
    request.scope["state"][_KEY] = {"ETag": etag, "Cache-Control": FOR_EVER if is_pinned else SHORT}
    if is_held(request.headers.get("if-none-match"), etag):
        raise Unchanged


def headers_of(scope: Scope) -> Mapping[str, str]:
    found: Mapping[str, str] = scope.get("state", {}).get(_KEY, {})
    return found


def is_held(given: str | None, etag: str) -> bool:
    """Whether `If-None-Match` names this tag. Weakly, as RFC 9110 wants it there: proxies weaken what they compress."""
    if not given:
        return False
    tags = {tag.strip().removeprefix("W/") for tag in given.split(",")}
    return bool(tags & {"*", etag})
