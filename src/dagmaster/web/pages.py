"""Keyset pagination: `next` of a page is `after` of the following one."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, TypeVar
from uuid import UUID

from fastapi import Query
from pydantic import BeforeValidator

from dagmaster.client.limits import MAX_ITEMS
from dagmaster.client.models.pages import Page
from dagmaster.errors import InvalidRequest

T = TypeVar("T")
SEPARATOR = "~"

Limit = Annotated[int, Query(ge=1, le=MAX_ITEMS, description="Maximum number of items to return")]
MAX_NAME_LENGTH = 200


def _split(value: object) -> object:
    """The values of a repeated parameter, each of which may be a list with commas."""
    texts = value if isinstance(value, list) else [value]
    return [word.strip() for text in texts for word in str(text).split(",")]


# A filter with several values: ?status=failed&status=cancelled, or ?status=failed,cancelled
CommaSeparated = Annotated[list[T], BeforeValidator(_split)]
Cursor = Annotated[str | None, Query(max_length=MAX_NAME_LENGTH, description="`next` of the previous page")]


def page_of(rows: Sequence[T], limit: int, cursor: Callable[[T], object]) -> Page[T]:
    """`rows` has one more than `limit` if there is another page."""
    items = list(rows[:limit])
    return Page[T](items=items, next=str(cursor(items[-1])) if len(rows) > limit else None)


def name_and_number(after: str | None) -> tuple[str, int]:
    name, separator, number = (after or f"{SEPARATOR}0").rpartition(SEPARATOR)
    if not separator or not number.isascii() or not number.isdigit() or len(number) > 9:
        raise bad_cursor(after)
    return name, int(number)


def name_and_numbers(after: str | None) -> tuple[str, int, int]:
    if after is None:
        return "", 0, 0
    first, _, number = after.rpartition(SEPARATOR)
    name, attempt = name_and_number(first)
    return name, attempt, name_and_number(f"{SEPARATOR}{number}")[1]


def moment_and_id(after: str | None) -> tuple[datetime, UUID] | None:
    if after is None:
        return None
    moment, _, name = after.rpartition(SEPARATOR)
    try:
        return datetime.fromisoformat(moment), UUID(name)
    except ValueError:
        raise bad_cursor(after) from None


def moment_and_name(after: str | None) -> tuple[datetime, str] | None:
    if after is None:
        return None
    moment, _, name = after.partition(SEPARATOR)
    try:
        parsed = datetime.fromisoformat(moment)
    except ValueError:
        raise bad_cursor(after) from None
    if parsed.tzinfo is None or not name or "\x00" in name:
        raise bad_cursor(after)
    return parsed, name


def joined(first: object, second: object) -> str:
    return f"{first}{SEPARATOR}{second}"


def bad_cursor(after: str | None) -> InvalidRequest:
    return InvalidRequest(
        f"after={after} is not a valid cursor", code="request.bad-cursor", hint="pass `next` of the previous page"
    )
