"""Records: frozen Pydantic models that declare their table.

`database/schema` turns these declarations into tables. This module does not import SQLAlchemy.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

SCHEMA = "dagapp"


@dataclass(frozen=True, slots=True)
class Index:
    """An index over `columns` (each may end in ' DESC'); partial with `where`. `method` is gin for containment and
    text search; `storage` are the storage parameters of the index."""

    name: str
    columns: tuple[str, ...]
    unique: bool = False
    where: str | None = None
    method: str | None = None
    storage: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class ForeignKey:
    columns: tuple[str, ...]
    table: str
    references: tuple[str, ...]
    on_delete: str = "CASCADE"


@dataclass(frozen=True, slots=True)
class Table:
    """How a record is stored. `defaults`, `computed` and `types` are SQL for the columns they name.

    `retired` are former indexes: a migration drops them after it has created their replacements.
    """

    name: str
    key: tuple[str, ...]
    foreign_keys: tuple[ForeignKey, ...] = ()
    indexes: tuple[Index, ...] = ()
    retired: tuple[str, ...] = ()
    checks: dict[str, str] = field(default_factory=dict)
    defaults: dict[str, str] = field(default_factory=dict)
    computed: dict[str, str] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    storage: dict[str, str | int | float] = field(default_factory=dict)
    partition_by: str | None = None


class Record(BaseModel):
    """A row as it was read. It never changes: after a change in the database, the row is read again."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    table: ClassVar[Table]
    private: ClassVar[frozenset[str]] = frozenset()

    def public(self) -> dict[str, Any]:
        """As JSON types, without the private fields."""
        return self.model_dump(mode="json", exclude=set(self.private))
