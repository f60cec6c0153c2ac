"""The database role of the gateway: it may select from the views of dagapp_gateway, and nothing else.

Roles belong to the whole server, so the name of the role contains that of the database. The role has no password
until one is set: `dagmaster db gateway-role` does that, and `dagmaster up` does it at each start.
"""

import hashlib
import secrets
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from dagmaster.database.connect import translate_errors
from dagmaster.database.token_login import TokenBlockingConnection
from dagmaster.errors import NotAllowed

VIEWS = "dagapp_gateway"
GROUP = "dagmaster_gateways"  # all such roles of a server; pg_hba.conf of the embedded server demands their password
_MAX_NAME_LENGTH = 63
_SETTINGS = {
    "default_transaction_read_only": "on",
    "search_path": VIEWS,
    "statement_timeout": "10s",
    "lock_timeout": "2s",
    "idle_in_transaction_session_timeout": "10s",
}
# Every role can write large objects unless this is revoked, even one without any other right.
_LARGE_OBJECTS = (
    "lo_creat(integer)",
    "lo_create(oid)",
    "lo_from_bytea(oid, bytea)",
    "lo_open(oid, integer)",
    "lo_put(oid, bigint, bytea)",
    "lowrite(integer, bytea)",
    "lo_unlink(oid)",
)


def role_of(database: str) -> str:
    """The name of the role for a database; names are limited to 63 bytes."""
    name = f"{database}_gateway"
    if len(name.encode()) <= _MAX_NAME_LENGTH:
        return name
    return f"dagmaster_gateway_{hashlib.sha256(database.encode()).hexdigest()[:16]}"


def ensure_gateway_role(dsn: str, *, with_password: bool = False) -> str:
    """Create the role if it is missing, and give it exactly its rights. Returns the DSN of the gateway, with a new
    password if `with_password` is set."""
    with translate_errors(), TokenBlockingConnection.connect(dsn, autocommit=True) as connection:
        database = connection.info.dbname
        role = role_of(database)
        password = secrets.token_urlsafe(32) if with_password else None
        try:
            with connection.transaction():
                _ensure(connection, database, role, password)
        except psycopg.errors.InsufficientPrivilege as error:
            raise NotAllowed(
                f"the role '{role}' of the gateway could not be created: {error.diag.message_primary}",
                code="gateway.role",
                hint="run `dagmaster db gateway-role` as a user that may create roles",
            ) from None
    return _dsn_of(dsn, role, password)


def _dsn_of(dsn: str, role: str, password: str | None) -> str:
    parts: dict[str, Any] = {
        name: value for name, value in conninfo_to_dict(dsn).items() if name not in ("user", "password", "passfile")
    }
    return make_conninfo(**parts, user=role, **({"password": password} if password else {}))


def _ensure(connection: psycopg.Connection[Any], database: str, role: str, password: str | None) -> None:
    # This database may be deployed twice at the same time.
    connection.execute("SELECT pg_advisory_xact_lock(hashtext('dagmaster.gateway_role'))")
    privileged = connection.execute("SELECT FROM pg_roles WHERE rolname = current_user AND rolsuper")
    is_superuser = privileged.rowcount == 1
    name, group = sql.Identifier(role), sql.Identifier(GROUP)
    for needed, options in ((GROUP, "NOLOGIN"), (role, "LOGIN")):
        if not connection.execute("SELECT FROM pg_roles WHERE rolname = %s", [needed]).rowcount:
            create = sql.SQL("CREATE ROLE {} " + options + " NOINHERIT NOCREATEDB NOCREATEROLE NOREPLICATION")
            # Another database of this server may create the group at the same time: advisory locks are per database.
            with suppress(psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation), connection.transaction():
                connection.execute(create.format(sql.Identifier(needed)))
    connection.execute(sql.SQL("GRANT {} TO {}").format(group, name))
    if password is not None:
        connection.execute(sql.SQL("ALTER ROLE {} LOGIN PASSWORD {}").format(name, sql.Literal(password)))
    for setting, value in _SETTINGS.items():
        connection.execute(
            sql.SQL("ALTER ROLE {} SET {} = {}").format(name, sql.Identifier(setting), sql.Literal(value))
        )
    views = sql.Identifier(VIEWS)
    for statement in (
        "REVOKE ALL ON ALL TABLES IN SCHEMA {views} FROM {role}",
        "GRANT USAGE ON SCHEMA {views} TO {role}",
        "GRANT SELECT ON ALL TABLES IN SCHEMA {views} TO {role}",
        "GRANT CONNECT ON DATABASE {database} TO {role}",
        "REVOKE TEMPORARY ON DATABASE {database} FROM PUBLIC",
        "REVOKE CREATE ON SCHEMA public FROM PUBLIC",
    ):
        connection.execute(sql.SQL(statement).format(views=views, role=name, database=sql.Identifier(database)))
    if is_superuser:
        for function in _LARGE_OBJECTS:
            connection.execute(sql.SQL("REVOKE EXECUTE ON FUNCTION pg_catalog." + function + " FROM PUBLIC"))
