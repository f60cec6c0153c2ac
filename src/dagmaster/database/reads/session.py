"""How reads reach the database: rows are read by column name into the model that the caller names."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Self, TypeVar

from pydantic import TypeAdapter

from dagmaster.database.connect import Connection, connect, translate_errors
from dagmaster.database.session import dicts

T = TypeVar("T")


class ReadSession:
    """One connection, opened when it is first needed, and again after a failure."""

    def __init__(self, dsn: str, role: str = "cli") -> None:
        self._dsn = dsn
        self._role = role
        self._connection: Connection | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Connection]:
        """The connection, for one statement. It is closed if the statement fails."""
        if self._connection is None or self._connection.closed:
            self._connection = await connect(self._dsn, role=self._role)
        try:
            with translate_errors():
                yield self._connection
        except BaseException:
            await self.close()
            raise

    async def _dicts(self, name: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        async with self._connected() as connection:
            return await dicts(connection, name, values)

    async def _many(self, name: str, values: Mapping[str, Any], kind: type[T]) -> list[T]:
        return models(kind, await self._dicts(name, values))

    async def _first(self, name: str, values: Mapping[str, Any], kind: type[T]) -> T | None:
        return next(iter(await self._many(name, values, kind)), None)


def models(kind: type[T], rows: list[dict[str, Any]]) -> list[T]:
    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(list[kind])  # type: ignore[valid-type]
    validated: list[T] = _adapters[kind].validate_python(rows)
    return validated


_adapters: dict[type, TypeAdapter[Any]] = {}
