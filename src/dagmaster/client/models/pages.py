"""A page of a list."""

from typing import Generic, TypeVar

from pydantic import BaseModel, Field

T = TypeVar("T")


class Page(BaseModel, Generic[T]):
    """A part of a list. `next` is null on the last page."""

    items: list[T]
    next: str | None = Field(None, description="Pass this as `after` to get the next page")
