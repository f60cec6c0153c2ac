"""Parts of requests: segments of URLs, headers, bodies."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote


def segment(name: str) -> str:
    """A name as one segment of a URL's path."""
    return quote(name, safe="")


def if_match(etag: str | None) -> dict[str, str]:
    """The header If-Match, for an ETag with or without quotes."""
    text = (etag or "").strip('"')
    return {"If-Match": f'"{text}"'} if text else {}


def without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
