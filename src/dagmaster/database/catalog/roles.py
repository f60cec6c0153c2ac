"""The database roles of pgSTAC, which belong to the whole server, and the rights that its migrations need."""

from contextlib import suppress
from typing import Any

import psycopg
from psycopg import sql

_ROLES = ("pgstac_admin", "pgstac_read", "pgstac_ingest")
_WRITERS = ("pgstac_admin", "pgstac_ingest")


def join_roles(connection: psycopg.Connection[Any]) -> None:
    """Create pgSTAC's roles and become a member of each.

    pgSTAC's migrations act as two of these roles, but become a member of only one. That is enough for a superuser, but
    the administrator of a managed cloud server is no superuser. If this user may not do it, the migration fails later
    with the reason.
    """
    for role in _ROLES:
        # InvalidGrantOperation: the current user is this role, or this role is a member of the current user.
        with suppress(psycopg.errors.InsufficientPrivilege, psycopg.errors.InvalidGrantOperation):
            if not _exists(connection, role):
                _create(connection, role)
            connection.execute(sql.SQL("GRANT {} TO CURRENT_USER").format(sql.Identifier(role)))


def allow_temporary_tables(connection: psycopg.Connection[Any]) -> None:
    """Let pgSTAC's migrations and writers create temporary tables. The right is revoked from `PUBLIC`,
    because the role of the gateway must not have it."""
    database = sql.Identifier(connection.info.dbname)
    for role in _WRITERS:
        # Granted only where it is missing: two transactions must not change the rights of a database at the same time.
        if _exists(connection, role) and not _may_create_temporary_tables(connection, role):
            grant = sql.SQL("GRANT TEMPORARY ON DATABASE {} TO {}").format(database, sql.Identifier(role))
            with suppress(psycopg.errors.InsufficientPrivilege):  # then the owner of the database has to grant it
                connection.execute(grant)


def _exists(connection: psycopg.Connection[Any], role: str) -> bool:
    return connection.execute("SELECT FROM pg_roles WHERE rolname = %s", [role]).rowcount == 1


def _may_create_temporary_tables(connection: psycopg.Connection[Any], role: str) -> bool:
    """Whether the role itself has the right: that of `PUBLIC` may be revoked later."""
    granted = connection.execute(
        """SELECT
             FROM pg_database d
            CROSS JOIN aclexplode(d.datacl) AS a
            WHERE d.datname = current_database()
              AND a.grantee = to_regrole(%s)
              AND a.privilege_type = 'TEMPORARY'""",
        [role],
    )
    return granted.rowcount == 1


def _create(connection: psycopg.Connection[Any], role: str) -> None:
    # Another database of this server may be deployed at the same time.
    with suppress(psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation):
        connection.execute(sql.SQL("CREATE ROLE {}").format(sql.Identifier(role)))
