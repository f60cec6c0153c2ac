"""Compare a live database with the models, and write the statements that add what it lacks.

Alembic compares tables, columns and indexes. It ignores CHECKs, predicates, defaults and storage options: for
these the expected tables are created in a scratch schema that is rolled back, and PostgreSQL's descriptions of both are
compared.

A migration only adds, and drops indexes that a model declares retired. Other differences are reported, to be resolved
by hand.
"""

import hashlib
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.ddl.base import AddColumn
from alembic.runtime.migration import MigrationContext
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex, CreateSequence, CreateTable, ExecutableDDLElement

from dagmaster.database.schema.tables import metadata_of, sequences
from dagmaster.records import SCHEMA, Record

_SCRATCH = f"{SCHEMA}_expected"
# Named parameters, because the default style would double each % in the text.
_DIALECT = postgresql.dialect(paramstyle="named")  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """One difference. Without statements it has to be resolved by hand. Those in `online` run outside a transaction and
    do not block writers."""

    description: str
    statements: tuple[str, ...] = ()
    online: tuple[str, ...] = ()

    @property
    def is_manual(self) -> bool:
        return not (self.statements or self.online)

    def __str__(self) -> str:
        return f"change by hand: {self.description}" if self.is_manual else self.description


class SchemaObject(NamedTuple):
    """Something that PostgreSQL can describe."""

    kind: str
    table: str
    name: str


SchemaFacts = dict[SchemaObject, str]

# Every column, default, constraint, index and storage option of one schema's tables, in PostgreSQL's own words.
_FACTS = r"""
WITH tables AS (
    SELECT oid, relname, reloptions
      FROM pg_class
     WHERE relnamespace = to_regnamespace(:schema) AND relname = ANY (:tables)
)
SELECT 'column' AS kind, t.relname AS "table", a.attname AS name,
       format_type(a.atttypid, a.atttypmod) || CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END
       || CASE WHEN a.attgenerated <> '' THEN ' AS ' || pg_get_expr(d.adbin, d.adrelid) ELSE '' END AS definition
  FROM tables t
  JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped
  LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
 UNION ALL
SELECT 'default', t.relname, a.attname, pg_get_expr(d.adbin, d.adrelid)
  FROM tables t
  JOIN pg_attribute a ON a.attrelid = t.oid AND a.attgenerated = '' AND NOT a.attisdropped
  JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
 UNION ALL
SELECT 'constraint', t.relname, c.conname, pg_get_constraintdef(c.oid)
  FROM tables t
  JOIN pg_constraint c ON c.conrelid = t.oid AND c.contype IN ('c', 'f', 'p', 'u')
 UNION ALL
SELECT 'index', t.relname, i.relname, pg_get_indexdef(i.oid)
  FROM tables t
  JOIN pg_index x ON x.indrelid = t.oid AND x.indisvalid
  JOIN pg_class i ON i.oid = x.indexrelid
 WHERE NOT EXISTS (SELECT FROM pg_constraint c WHERE c.conindid = i.oid AND c.conrelid = t.oid)
 UNION ALL
SELECT 'storage', t.relname, split_part(option, '=', 1), split_part(option, '=', 2)
  FROM tables t, unnest(t.reloptions) AS option
"""

# Invalid indexes that an interrupted CREATE INDEX CONCURRENTLY has left.
_INVALID_INDEXES = """
SELECT i.relname
  FROM pg_index x
  JOIN pg_class i ON i.oid = x.indexrelid
  JOIN pg_class t ON t.oid = x.indrelid
 WHERE NOT x.indisvalid AND t.relnamespace = to_regnamespace(:schema) AND t.relname = ANY (:tables)
"""

_PARTITIONS = """
SELECT c.relname
  FROM pg_inherits
  JOIN pg_class c ON c.oid = inhrelid
 WHERE inhparent = to_regclass(:table)
 ORDER BY 1
"""


def compare(
    connection: sa.Connection, records: Iterable[type[Record]], prepare: Callable[[], None]
) -> list[SchemaChange]:
    """Every difference between the live schema and these records. Changes nothing: what it builds is rolled back.

    `prepare` creates the functions that the tables' defaults call.
    """
    records = tuple(records)
    metadata = metadata_of(records)
    tables = [record.table.name for record in records]
    invalid = set(connection.scalars(sa.text(_INVALID_INDEXES), {"schema": SCHEMA, "tables": tables}))
    live, expected = facts(connection, SCHEMA, tables), _expected(connection, records, prepare)
    return [
        *_missing_sequences(connection),
        *_alembic_changes(connection, metadata, invalid, {name for record in records for name in record.table.retired}),
        *_invalid_indexes(connection, metadata, invalid),
        *_fact_changes(live, expected),
    ]


def facts(connection: sa.Connection, schema: str, tables: Iterable[str]) -> SchemaFacts:
    """How PostgreSQL describes these tables, with the schema's name taken out."""
    rows = connection.execute(sa.text(_FACTS), {"schema": schema, "tables": list(tables)})
    return {
        SchemaObject(row.kind, row.table, row.name): row.definition.replace(f"{schema}.", f"{SCHEMA}.") for row in rows
    }


def _expected(connection: sa.Connection, records: tuple[type[Record], ...], prepare: Callable[[], None]) -> SchemaFacts:
    savepoint = connection.begin_nested()
    try:
        prepare()
        for sequence in sequences(SCHEMA):
            connection.execute(CreateSequence(sequence, if_not_exists=True))
        connection.execute(sa.text(f"CREATE SCHEMA {_SCRATCH}"))
        metadata_of(records, _SCRATCH).create_all(connection)
        return facts(connection, _SCRATCH, [record.table.name for record in records])
    finally:
        savepoint.rollback()


def _missing_sequences(connection: sa.Connection) -> Iterator[SchemaChange]:
    for sequence in sequences(SCHEMA):
        if connection.scalar(sa.text("SELECT to_regclass(:name)"), {"name": f"{SCHEMA}.{sequence.name}"}) is None:
            yield SchemaChange(f"create sequence {sequence.name}", (sql_of(CreateSequence(sequence)),))


def _alembic_changes(
    connection: sa.Connection, metadata: sa.MetaData, invalid: set[str], retired: set[str]
) -> Iterator[SchemaChange]:
    indexes = {str(index.name): index for table in metadata.tables.values() for index in table.indexes}
    # Looked up by name, because Alembic's copies forget indexes of new tables, storage and partitioning.
    existing = set(sa.inspect(connection).get_table_names(SCHEMA))
    for difference in _differences(connection, metadata):
        match difference:
            case ("add_table", sa.Table(name=name)):
                yield SchemaChange(f"create table {name}", tuple(table_statements(metadata.tables[f"{SCHEMA}.{name}"])))
            case ("add_column", _, table_name, sa.Column() as column):
                yield _add_column(connection, table_name, column)
            case ("remove_column", _, table_name, column):
                yield SchemaChange(f"column {table_name}.{column.name} is not part of the schema of this software")
            case ("add_index", sa.Index(name=str(name))) if _table(indexes[name]) in existing and name not in invalid:
                yield SchemaChange(f"create index {name}", online=tuple(_index_online(connection, indexes[name])))
            case ("remove_index", sa.Index(name=name)) if name in retired:
                yield SchemaChange(f"drop index {name}", online=(f"DROP INDEX CONCURRENTLY IF EXISTS {SCHEMA}.{name}",))
            case ("remove_index", sa.Index(name=name)) if name not in indexes:
                yield SchemaChange(f"index {name} is not part of the schema of this software")


def _differences(connection: sa.Connection, metadata: sa.MetaData) -> list[Any]:
    """Alembic's list, with changed indexes left to the comparison of their definitions."""
    options = {
        "include_schemas": True,
        "include_name": partial(_is_ours, {table.name for table in metadata.tables.values()}),
        "compare_type": False,
        "compare_server_default": False,
    }
    with warnings.catch_warnings():
        # SQLAlchemy warns about constraints that are not validated yet; we compare these ourselves.
        warnings.filterwarnings("ignore", "Can't validate argument", sa.exc.SAWarning)
        differences = compare_metadata(MigrationContext.configure(connection, opts=options), metadata)
    flat = [difference for difference in differences if isinstance(difference, tuple)]
    changed = {d[1].name for d in flat if d[0] == "add_index"} & {d[1].name for d in flat if d[0] == "remove_index"}
    flat.sort(key=lambda difference: difference[0] == "remove_index")  # last: the index that replaces it exists by then
    return [d for d in flat if not (d[0].endswith("_index") and d[1].name in changed)]


def _is_ours(tables: set[str], name: str | None, kind: str, _parents: object) -> bool:
    """Alembic compares neither partitions, nor the record of the deployment, nor other schemas."""
    match kind:
        case "schema":
            return name == SCHEMA
        case "table":
            return name in tables
        case _:
            return True


def _add_column(connection: sa.Connection, table: str, column: sa.Column[Any]) -> SchemaChange:
    if not (column.nullable or column.server_default is not None):
        return SchemaChange(f"column {table}.{column.name} is missing, and existing rows would have no value for it")
    if _is_computed(column) and connection.scalar(sa.text(f"SELECT EXISTS (SELECT FROM {SCHEMA}.{table})")):  # noqa: S608
        return SchemaChange(
            f"column {table}.{column.name} is missing, and adding it would rewrite each row with the table locked"
        )
    return SchemaChange(f"add column {table}.{column.name}", (sql_of(AddColumn(table, column, schema=SCHEMA)),))


def _is_computed(column: sa.Column[Any]) -> bool:
    """Whether PostgreSQL computes a value for each existing row, instead of storing one value for all of them."""
    return column.computed is not None or "(" in str(getattr(column.server_default, "arg", ""))


def _invalid_indexes(connection: sa.Connection, metadata: sa.MetaData, invalid: set[str]) -> Iterator[SchemaChange]:
    for index in (index for table in metadata.sorted_tables for index in table.indexes if index.name in invalid):
        option = "" if _is_partitioned(index) else "CONCURRENTLY "
        drop = f"DROP INDEX {option}{SCHEMA}.{index.name}"
        yield SchemaChange(f"rebuild index {index.name}", online=(drop, *_index_online(connection, index)))


def _index_online(connection: sa.Connection, index: sa.Index) -> Iterator[str]:
    """Statements that build an index while the table is written to."""
    plain = sql_of(CreateIndex(index))
    if not _is_partitioned(index):
        yield plain.replace(" INDEX ", " INDEX CONCURRENTLY ", 1)
        return
    # Not possible for a partitioned table as a whole: first an empty parent, then an index of each partition, attached.
    yield plain.replace(" ON ", " ON ONLY ", 1)
    parent = f"{SCHEMA}.{_table(index)}"
    for partition in connection.scalars(sa.text(_PARTITIONS), {"table": parent}).all():
        name = f"{partition}_{hashlib.sha256(str(index.name).encode()).hexdigest()[:8]}"
        yield f"DROP INDEX CONCURRENTLY IF EXISTS {SCHEMA}.{name}"
        beginning = f" INDEX CONCURRENTLY {name} ON {SCHEMA}.{partition} "
        yield plain.replace(f" INDEX {index.name} ON {parent} ", beginning, 1)
        yield f"ALTER INDEX {SCHEMA}.{index.name} ATTACH PARTITION {SCHEMA}.{name}"


def _table(index: sa.Index) -> str:
    assert index.table is not None
    return index.table.name


def _is_partitioned(index: sa.Index) -> bool:
    return index.table is not None and bool(index.table.dialect_options["postgresql"]["partition_by"])


def _fact_changes(live: SchemaFacts, expected: SchemaFacts) -> Iterator[SchemaChange]:
    """Differences between objects that both sides have; Alembic finds missing objects, except constraints."""
    columns = {subject for subject in live if subject.kind == "column"}
    tables = {subject.table for subject in columns}
    for subject, text in sorted(expected.items()):
        is_known = subject in live or (
            SchemaObject("column", subject.table, subject.name) in columns
            if subject.kind == "default"
            else subject.kind in {"constraint", "storage"} and subject.table in tables
        )
        if is_known and live.get(subject) != text:
            yield _fact_change(subject, live.get(subject), text)
    for subject in sorted(live.keys() - expected.keys()):
        if subject.kind == "constraint" or (
            subject.kind == "default" and SchemaObject("column", *subject[1:]) in expected
        ):
            where = f"{subject.kind} {subject.name} of {subject.table}"
            yield SchemaChange(f"{where} is not part of the schema of this software")


def _fact_change(subject: SchemaObject, actual: str | None, expected: str) -> SchemaChange:
    kind, table, name = subject
    alter = f"ALTER TABLE {SCHEMA}.{table}"
    match kind:
        case "storage":
            return SchemaChange(f"set {name} of {table} to {expected}", (f"{alter} SET ({name} = {expected})",))
        case "default":
            return SchemaChange(
                f"set the default of {table}.{name}", (f"{alter} ALTER COLUMN {name} SET DEFAULT {expected}",)
            )
        case "constraint":
            return _constraint_change(subject, actual, expected)
    return SchemaChange(f"{kind} {name} of {table} is `{actual}`, but should be `{expected}`")


def _constraint_change(subject: SchemaObject, actual: str | None, expected: str) -> SchemaChange:
    _, table, name = subject
    alter = f"ALTER TABLE {SCHEMA}.{table}"
    add, validate = f"{alter} ADD CONSTRAINT {name} {expected} NOT VALID", f"{alter} VALIDATE CONSTRAINT {name}"
    if actual is None and expected.startswith(("CHECK", "FOREIGN KEY")):
        # NOT VALID first: it applies to new rows at once, and existing rows are checked without blocking writers.
        return SchemaChange(f"add constraint {name}", (add,), (validate,))
    if actual == f"{expected} NOT VALID":
        return SchemaChange(f"validate constraint {name}", online=(validate,))
    if actual is not None and _is_wider(expected, actual):
        return SchemaChange(f"allow more values in {name}", (f"{alter} DROP CONSTRAINT {name}", add), (validate,))
    return SchemaChange(f"constraint {name} of {table} is `{actual}`, but should be `{expected}`")


def _is_wider(expected: str, actual: str) -> bool:
    """Whether two lists of values differ only in that the expected one has more: no existing row can violate it."""
    value = r"'(?:[^']|'')*'(?:::text)?"
    texts = (actual.removesuffix(" NOT VALID"), expected)
    shapes = {re.sub(rf"{value}(?:, {value})*", "…", text) for text in texts}
    before, after = (set(re.findall(value, text)) for text in texts)
    return len(shapes) == 1 and "ARRAY[…]" in shapes.pop() and before < after


def table_statements(table: sa.Table) -> list[str]:
    """A table and its indexes, always in the same order."""
    indexes = sorted(table.indexes, key=lambda index: str(index.name))
    return [sql_of(CreateTable(table)), *(sql_of(CreateIndex(index)) for index in indexes)]


def sql_of(element: ExecutableDDLElement) -> str:
    return str(element.compile(dialect=_DIALECT)).strip()
