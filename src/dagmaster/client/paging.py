"""Iterate over a list of the API; pages are requested as they are needed."""

from collections.abc import AsyncIterator
from typing import Any, TypeVar

from pydantic import BaseModel

from dagmaster.client.json_client import AsyncJsonClient
from dagmaster.client.limits import MAX_ITEMS
from dagmaster.client.models.base import parse

M = TypeVar("M", bound=BaseModel)


class PagedClient:
    json: AsyncJsonClient

    async def _all(
        self, kind: type[M], path: str, limit: int | None, after: str | None = None, **filters: Any
    ) -> AsyncIterator[M]:
        remaining = limit
        while remaining is None or remaining > 0:
            count = MAX_ITEMS if remaining is None else min(MAX_ITEMS, remaining)
            items, after = await self.json.connection.page(path, count, after, **filters)
            for item in items:
                yield parse(kind, item)
            if after is None:
                return
            remaining = None if remaining is None else remaining - len(items)
