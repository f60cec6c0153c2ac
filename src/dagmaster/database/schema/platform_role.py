"""The rights of the roles with which processes run, if another role, DB_ADMIN_USER, owns the schema.

The role of the platform may read and write rows, but not change tables: partitions are created and dropped by functions
that run as the owner. `dagmaster doctor` lists missing rights. The role of map servers may read what they serve, and
the keys and sessions of callers, and record when a key was used.
"""

from collections.abc import Sequence
from contextlib import suppress

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
# Triggers use objects of a later migration at once, also in processes that are already running.
_FUTURE_RIGHTS = (
    "ALTER DEFAULT PRIVILEGES IN SCHEMA {schema} GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {role}",
    "ALTER DEFAULT PRIVILEGES IN SCHEMA {schema} GRANT USAGE, SELECT ON SEQUENCES TO {role}",
    "ALTER DEFAULT PRIVILEGES IN SCHEMA {schema} GRANT EXECUTE ON FUNCTIONS TO {role}",
)
_CATALOG_ROLE = "pgstac_ingest"
_READ_BY_MAPS = (
    "geospatial_assets",
    "asset_versions",
    "asset_revisions",
    "stac_documents",
    "layer_catalog",
    "signing_keys",
    "api_keys",
    "web_sessions",
)
_STATEMENTS_OF_MAPS = (
    "GRANT USAGE ON SCHEMA {schema} TO {role}",
    *(f"GRANT SELECT ON {{schema}}.{table} TO {{role}}" for table in _READ_BY_MAPS),
    "GRANT UPDATE (last_used_at) ON {schema}.api_keys TO {role}",
)
_CATALOG_ROLE_OF_MAPS = "pgstac_read"


def grant_to_platform(dsn: str, role: str) -> None:
    """Give the role of running processes its rights on what is deployed; repeated after each change of the schema."""
    with translate_errors(), TokenBlockingConnection.connect(dsn, autocommit=True) as connection:
        if not connection.execute("SELECT FROM pg_roles WHERE rolname = %s", [role]).rowcount:
            raise NotFound(
                f"the database role of the processes, '{role}', does not exist",
                code="database.no-role",
                hint="create it (in Azure: SELECT pgaadauth_create_principal('NAME', false, false)), or correct the "
                "user in DATABASE_URL",
            )
        _grant(connection, role, (*_RIGHTS, *_FUTURE_RIGHTS), _CATALOG_ROLE)
        _allow_temporary_tables(connection, role)


def grant_to_maps(dsn: str) -> None:
    """Give the role of map servers its rights, if the server has such a role: NAME_serving, for the database NAME."""
    with translate_errors(), TokenBlockingConnection.connect(dsn, autocommit=True) as connection:
        role = f"{connection.info.dbname}_serving"
        if connection.execute("SELECT FROM pg_roles WHERE rolname = %s", [role]).rowcount:
            _grant(connection, role, _STATEMENTS_OF_MAPS, _CATALOG_ROLE_OF_MAPS)


def rights_text(role: str) -> str:
    """The statements that give a role its rights on what is deployed, for a person to run."""
    return " ".join(f"{statement.as_string()};" for statement in _composed(_RIGHTS, role))


def _composed(statements: Sequence[str], role: str) -> list[sql.Composed]:
    names = {"schema": sql.Identifier(SCHEMA), "role": sql.Identifier(role)}
    return [sql.SQL(statement).format(**names) for statement in statements]


def _allow_temporary_tables(connection: psycopg.Connection[object], role: str) -> None:
    """`dagmaster verify-storage` uses temporary tables, and creating the gateway's role revokes this right from PUBLIC.
    Nothing else needs it, so `dagmaster doctor` does not report it as missing."""
    names = {"database": sql.Identifier(connection.info.dbname), "role": sql.Identifier(role)}
    with suppress(psycopg.errors.InsufficientPrivilege):  # then the owner of the database has to grant it
        connection.execute(sql.SQL("GRANT TEMPORARY ON DATABASE {database} TO {role}").format(**names))


def _grant(connection: psycopg.Connection[object], role: str, statements: Sequence[str], catalog_role: str) -> None:
    with connection.transaction():
        for statement in _composed(statements, role):
            connection.execute(statement)
        # The roles of pgSTAC belong to the server: another database may have created them, and a restored database may
        # have the schema without them.
        has_catalog = "SELECT FROM pg_namespace, pg_roles WHERE nspname = 'pgstac' AND rolname = %s"
        if connection.execute(has_catalog, [catalog_role]).rowcount:
            grant = sql.SQL("GRANT {} TO {}").format(sql.Identifier(catalog_role), sql.Identifier(role))
            connection.execute(grant)
