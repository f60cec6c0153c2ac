"""The rights of the role with which processes run, if another one, DB_ADMIN_USER, owns the schema.

It may read and write rows, and change no table. `dagmaster doctor` lists what is missing.
"""

from collections.abc import Sequence
from typing import LiteralString

import psycopg
from psycopg import sql

from dagmaster.database.connect import translate_errors
from dagmaster.database.token_login import TokenBlockingConnection
from dagmaster.errors import NotFound
from dagmaster.records import SCHEMA

_RIGHTS = (
    "GRANT USAGE ON SCHEMA {schema} TO {role}",
    "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}",
    "REVOKE INSERT, UPDATE, DELETE ON {schema}.schema_info FROM {role}",
    "GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA {schema} TO {role}",
    "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO {role}",
)
# What a later migration creates is used at once by triggers, in processes that run meanwhile.
_FUTURE_RIGHTS = (
    "ALTER DEFAULT PRIVILEGES IN SCHEMA {schema} GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {role}",
    "ALTER DEFAULT PRIVILEGES IN SCHEMA {schema} GRANT USAGE, SELECT ON SEQUENCES TO {role}",
    "ALTER DEFAULT PRIVILEGES IN SCHEMA {schema} GRANT EXECUTE ON FUNCTIONS TO {role}",
)
_CATALOG_ROLE = "pgstac_ingest"


def grant_to_platform(dsn: str, role: str) -> None:
    """Give the role of running processes its rights on what is deployed; repeated after each change of the schema."""
    with translate_errors(), TokenBlockingConnection.connect(dsn, autocommit=True) as connection:
        if not connection.execute("SELECT FROM pg_roles WHERE rolname = %s", [role]).rowcount:
            raise NotFound(
                f"there is no role '{role}', with which processes are to run",
                code="database.no-role",
                hint="create it (in Azure: SELECT pgaadauth_create_principal('NAME', false, false)), or correct the "
                "user in DATABASE_URL",
            )
        with connection.transaction():
            for statement in _composed((*_RIGHTS, *_FUTURE_RIGHTS), role):
                connection.execute(statement)
            _grant_catalog(connection, role)


def rights_text(role: str) -> str:
    """The statements that give a role its rights on what is deployed, for a person to run."""
    return " ".join(f"{statement.as_string()};" for statement in _composed(_RIGHTS, role))


def _composed(statements: Sequence[LiteralString], role: str) -> list[sql.Composed]:
    names = {"schema": sql.Identifier(SCHEMA), "role": sql.Identifier(role)}
    return [sql.SQL(statement).format(**names) for statement in statements]


def _grant_catalog(connection: psycopg.Connection[object], role: str) -> None:
    if connection.execute("SELECT FROM pg_roles WHERE rolname = %s", [_CATALOG_ROLE]).rowcount:
        grant = sql.SQL("GRANT {} TO {}").format(sql.Identifier(_CATALOG_ROLE), sql.Identifier(role))
        connection.execute(grant)
