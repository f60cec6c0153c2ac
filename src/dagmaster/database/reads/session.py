"""How reads reach the database: rows are read by column name into the model that the caller names."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Self, TypeVar

from pydantic import TypeAdapter

from dagmaster.database.connect import Connection
from dagmaster.database.session import Session, dicts

T = TypeVar("T")


class ModelReads:
    """Reads over the connections that a subclass provides."""

    def _connected(self) -> AbstractAsyncContextManager[Connection]:
        """A connection, for one call."""
        raise NotImplementedError

    async def _dicts(self, name: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        async with self._connected() as connection:
            return await dicts(connection, name, values)

    async def _many(self, name: str, values: Mapping[str, Any], kind: type[T]) -> list[T]:
        return models(kind, await self._dicts(name, values))

    async def _first(self, name: str, values: Mapping[str, Any], kind: type[T]) -> T | None:
        return next(iter(await self._many(name, values, kind)), None)


class ReadSession(Session, ModelReads):
    def __init__(self, dsn: str, role: str = "cli") -> None:
        super().__init__(dsn, role)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()


def models(kind: type[T], rows: list[dict[str, Any]]) -> list[T]:
    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(list[kind])  # type: ignore[valid-type]
    validated: list[T] = _adapters[kind].validate_python(rows)
    return validated


_adapters: dict[type, TypeAdapter[Any]] = {}
