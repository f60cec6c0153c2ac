"""Turn records into tables: a Pydantic model with its `Table` declaration becomes a SQLAlchemy Core table.

The models define the schema; this module only translates them. Used by the CLI and by deployments: the engine's own
queries are SQL in files and never import SQLAlchemy.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import Enum, StrEnum
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin
from uuid import UUID

import orjson
import sqlalchemy as sa
from annotated_types import MaxLen
from pydantic import JsonValue
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from sqlalchemy.dialects import postgresql as pg
from sqlalchemy.types import UserDefinedType

from dagmaster.records import SCHEMA, Index, Record, Table

# How many numbers a session takes at a time. Ids of job events need only be unique. Positions order tasks over all
# orchestrators, and the newest event of an asset is its ETag, so no session may reserve numbers of these,
# nor of the sequence that orders the callbacks of a request.
SEQUENCES = {"dag_task_position": 1, "dag_event_id": 1000, "asset_event_id": 1, "callback_sequence": 1}

_TYPES: dict[Any, sa.types.TypeEngine[Any]] = {
    UUID: sa.Uuid(),
    str: sa.Text(),
    int: sa.BigInteger(),
    float: sa.Double(),
    bool: sa.Boolean(),
    datetime: sa.DateTime(timezone=True),
}


class Verbatim(UserDefinedType[Any]):
    """A type that a record names in SQL (`Table.types`)."""

    cache_ok = True

    def __init__(self, sql: str) -> None:
        self.sql = sql

    def get_col_spec(self, **_options: Any) -> str:
        return self.sql


def metadata_of(records: Iterable[type[Record]], schema: str = SCHEMA) -> sa.MetaData:
    """The tables, indexes, constraints and sequences that these records declare."""
    metadata = sa.MetaData(schema=schema)
    sequences(schema, metadata)
    for record in records:
        _table_of(record, metadata)
    return metadata


def sequences(schema: str, metadata: sa.MetaData | None = None) -> list[sa.Sequence]:
    """The sequences that columns' defaults draw from; they are created before the tables."""
    return [sa.Sequence(name, cache=cache, metadata=metadata, schema=schema) for name, cache in SEQUENCES.items()]


def _table_of(record: type[Record], metadata: sa.MetaData) -> sa.Table:
    declared = record.table
    options: dict[str, Any] = {}
    if declared.storage:
        options["postgresql_with"] = dict(declared.storage)
    if declared.partition_by:
        options["postgresql_partition_by"] = declared.partition_by
    table = sa.Table(declared.name, metadata, *_columns(record), *_constraints(record, metadata), **options)
    for index in declared.indexes:
        _index_of(index, table)
    return table


def _columns(record: type[Record]) -> list[sa.Column[Any]]:
    return [_column(name, field, record.table) for name, field in record.model_fields.items()]


def _column(name: str, field: FieldInfo, declared: Table) -> sa.Column[Any]:
    kind, nullable, _ = _unwrap(field)
    sql_type = Verbatim(declared.types[name]) if name in declared.types else _sql_type(kind)
    if name in declared.computed:
        # Never NULL, but a generated column needs no second check on each write.
        return sa.Column(name, sql_type, sa.Computed(declared.computed[name], persisted=True))
    default = declared.defaults.get(name) or _default_of(field)
    return sa.Column(
        name,
        sql_type,
        nullable=nullable and name not in declared.key,
        primary_key=name in declared.key,
        autoincrement=False,
        server_default=sa.text(default) if default else None,
    )


def _unwrap(field: FieldInfo) -> tuple[Any, bool, list[Any]]:
    """The bare annotation, whether it admits None, and the metadata of `Annotated`."""
    kind: Any = field.annotation
    notes = list(field.metadata)
    nullable = kind is JsonValue  # None is a JSON value
    while True:
        origin, arguments = get_origin(kind), get_args(kind)
        if origin is Annotated:
            kind = arguments[0]
            notes += [note for metadata in arguments[1:] for note in _notes(metadata)]
        elif origin in {Union, UnionType} and NoneType in arguments:
            others = [argument for argument in arguments if argument is not NoneType]
            kind, nullable = others[0] if len(others) == 1 else JsonValue, True
        else:
            return kind, nullable, notes


def _notes(metadata: Any) -> Sequence[Any]:
    return metadata.metadata if isinstance(metadata, FieldInfo) else [metadata]


def _sql_type(kind: Any) -> sa.types.TypeEngine[Any]:
    if kind in _TYPES:
        return _TYPES[kind]
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return sa.Text()
    if get_origin(kind) in {list, tuple} and get_args(kind)[0] is str:
        return pg.ARRAY(sa.Text())
    if kind is JsonValue or (get_origin(kind) or kind) in {dict, list, tuple}:
        return pg.JSONB()
    raise TypeError(f"no column type for {kind!r}: name one in Table.types")


def _default_of(field: FieldInfo) -> str | None:
    """A model's own default is the database's too, so that a new column can be added to a table with rows."""
    value = field.default
    if value is None or value is PydanticUndefined:
        return None
    if isinstance(value, bool | int | float):
        return str(value).lower()
    if isinstance(value, Enum | str):
        return _literal(str(value))
    return f"{_literal(orjson.dumps(value).decode())}::jsonb"


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _constraints(record: type[Record], metadata: sa.MetaData) -> list[sa.Constraint]:
    declared = record.table
    keys: list[sa.Constraint] = [
        sa.ForeignKeyConstraint(
            foreign.columns,
            [f"{metadata.schema}.{foreign.table}.{column}" for column in foreign.references],
            name=f"{declared.name}_{'_'.join(foreign.columns)}_fkey",
            ondelete=foreign.on_delete,
        )
        for foreign in declared.foreign_keys
    ]
    if declared.key:
        keys.append(sa.PrimaryKeyConstraint(*declared.key, name=f"{declared.name}_pkey"))
    return keys + [sa.CheckConstraint(sql, name=f"{declared.name}_{name}") for name, sql in checks_of(record).items()]


def checks_of(record: type[Record]) -> dict[str, str]:
    """Every CHECK of a record: declared ones, one per enum column (by its name), one per bounded text."""
    checks = dict(record.table.checks)
    for name, field in record.model_fields.items():
        kind, _, notes = _unwrap(field)
        if isinstance(kind, type) and issubclass(kind, StrEnum):
            checks[name] = f"{name} IN ({', '.join(_literal(member.value) for member in kind)})"
        for note in notes:
            if isinstance(note, MaxLen):
                checks[f"{name}_length"] = f"char_length({name}) <= {note.max_length}"
    return checks


def _index_of(index: Index, table: sa.Table) -> sa.Index:
    columns = [_ordered(table, column) for column in index.columns]
    where = sa.text(index.where) if index.where else None
    options: dict[str, Any] = {"postgresql_using": index.method} if index.method else {}
    if index.storage:
        options["postgresql_with"] = dict(index.storage)
    return sa.Index(index.name, *columns, unique=index.unique, postgresql_where=where, **options)


def _ordered(table: sa.Table, column: str) -> Any:
    name, _, direction = column.partition(" ")
    return table.c[name].desc() if direction.upper() == "DESC" else table.c[name]
