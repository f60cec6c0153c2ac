"""Log in to PostgreSQL with a token of a managed identity instead of a password, as Azure's servers allow.

The entry points call `enable` once, before they connect. From then on each new connection to one of the configured
servers has the current token as its password, and TLS: a token must not be readable on the network. All connections of
the process share one token, which is renewed before it expires. Connections that are open stay open when their token
expires: PostgreSQL examines it at login only.
"""

import asyncio
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from dagmaster.errors import InvalidRequest
from dagmaster.managed_identity import IdentityEndpoint, ManagedIdentity
from dagmaster.settings import Settings

RESOURCE: Final = "https://ossrdbms-aad.database.windows.net"
# The modes of libpq in which a connection without TLS is refused.
SECURE_MODES: Final = ("require", "verify-ca", "verify-full")
_TIMEOUT_SECONDS: Final = 10.0
_LoginKey = tuple[str | None, ...]  # the user and the address of the server
_PARTS: Final = ("user", "host", "hostaddr", "port")


class TokenLogin:
    """The token of one identity, for all threads of the process."""

    def __init__(self, identity: ManagedIdentity) -> None:
        self._identity = identity
        import httpx2  # here, because most processes log in with a password

        timeout = httpx2.Timeout(_TIMEOUT_SECONDS, connect=_TIMEOUT_SECONDS / 2)
        self._http = httpx2.Client(timeout=timeout, trust_env=False)

    def parameters(self, address: Mapping[str, Any]) -> dict[str, str]:
        """The parameters to add: a token as the password, and TLS. Obtaining a token may take seconds."""
        return {"password": self.token(), "sslmode": secure_mode(address)}

    def token(self) -> str:
        return self._identity.token_blocking(self._http)[0]

    def forget(self, token: str) -> None:
        """The server has refused this token: obtain another one."""
        self._identity.forget(token)


_logins: dict[_LoginKey, TokenLogin] = {}
_lock = threading.Lock()


def enable(settings: Settings) -> None:
    """Use tokens for the servers in these settings, if the settings say so. Addresses that have a password keep it."""
    if not settings.use_managed_identity:
        return
    with _lock:
        for dsn, client_id in _addresses(settings):
            try:
                address = conninfo_to_dict(dsn)
            except psycopg.ProgrammingError:  # reported without libpq's text when the address is used
                continue
            if address.get("password") or _key_of(address) in _logins:
                continue
            secure_mode(address)
            endpoint = IdentityEndpoint.of(settings, RESOURCE, client_id)
            _logins[_key_of(address)] = next(
                (login for login in _logins.values() if login._identity.endpoint == endpoint),
                None,
            ) or TokenLogin(ManagedIdentity(endpoint))


def _addresses(settings: Settings) -> Iterator[tuple[str, str | None]]:
    dsn, client_id = settings.dsn(), settings.managed_identity_client_id
    addresses = (dsn, settings.database_pooler_url, settings.gateway_database_url, settings.external_database_url)
    yield from ((address, client_id) for address in addresses if address)
    if dsn and settings.db_admin_managed_identity_client_id:
        yield administrator(settings, dsn), settings.db_admin_managed_identity_client_id


def administrator(settings: Settings, dsn: str) -> str:
    """The address with which the schema is deployed: that of DB_ADMIN_USER, if it is set."""
    return make_conninfo(dsn, user=settings.db_admin_user) if settings.db_admin_user else dsn


def login_of(conninfo: str, more: Mapping[str, Any] | None = None) -> TokenLogin | None:
    """How to log in with a token; None if this connection uses none."""
    if not _logins:
        return None
    address = conninfo_to_dict(conninfo, **(more or {}))
    return None if address.get("password") else _logins.get(_key_of(address))


def secure_mode(address: Mapping[str, Any]) -> str:
    """The mode of TLS for a login with a token, or an error if the address allows connections without TLS."""
    hosts = str(address.get("host") or address.get("hostaddr") or "/").split(",")
    if any(not host or host[0] in "/@" for host in hosts):  # libpq ignores the mode of TLS for these
        raise _refused("it has no host name: a login with a token needs TLS, which Unix sockets do not support")
    mode = address.get("sslmode")
    if mode is None:
        default = _default_mode()
        return default if default in SECURE_MODES else "require"
    if mode not in SECURE_MODES:
        raise _refused(f"sslmode={mode} allows connections without TLS, on which others could read the token")
    return str(mode)


def _default_mode() -> str:
    """The default mode of libpq, which reads PGSSLMODE."""
    defaults = {option.keyword: option.val or option.compiled for option in psycopg.pq.Conninfo.get_defaults()}
    return (defaults.get(b"sslmode") or b"prefer").decode()


def _refused(problem: str) -> InvalidRequest:
    return InvalidRequest(
        f"USE_MANAGED_IDENTITY cannot be used with this database: {problem}",
        code="database.insecure",
        hint="set sslmode=verify-full in DATABASE_URL (or require, which does not verify the server's name)",
    )


def _key_of(address: Mapping[str, Any]) -> _LoginKey:
    return tuple(None if address.get(part) is None else str(address[part]) for part in _PARTS)


def is_refusal(error: psycopg.OperationalError) -> bool:
    """Whether a server has refused a password. libpq passes on the text, but not the code."""
    return "authentication failed" in str(error)


class TokenConnection(psycopg.AsyncConnection[Any]):
    """An `AsyncConnection` that logs in with a token where tokens are enabled. Pools use it too."""

    @classmethod
    async def connect(cls, conninfo: str = "", **options: Any) -> "TokenConnection":
        login = login_of(conninfo, _libpq_parameters(options))
        if login is None:
            return await super().connect(conninfo, **options)
        address = conninfo_to_dict(conninfo, **_libpq_parameters(options))
        parameters = await asyncio.to_thread(login.parameters, address)
        try:
            return await super().connect(conninfo, **{**options, **parameters})
        except psycopg.OperationalError as error:
            if not is_refusal(error):
                raise
        login.forget(parameters["password"])
        return await super().connect(conninfo, **{**options, **await asyncio.to_thread(login.parameters, address)})


class TokenBlockingConnection(psycopg.Connection[Any]):
    """The same for threads."""

    @classmethod
    def connect(cls, conninfo: str = "", **options: Any) -> "TokenBlockingConnection":
        login = login_of(conninfo, _libpq_parameters(options))
        if login is None:
            return super().connect(conninfo, **options)
        address = conninfo_to_dict(conninfo, **_libpq_parameters(options))
        parameters = login.parameters(address)
        try:
            return super().connect(conninfo, **{**options, **parameters})
        except psycopg.OperationalError as error:
            if not is_refusal(error):
                raise
        login.forget(parameters["password"])
        return super().connect(conninfo, **{**options, **login.parameters(address)})


def with_password(conninfo: str) -> str:
    """The address as another process needs it: with the current token, if tokens are used."""
    login = login_of(conninfo)
    return make_conninfo(conninfo, **login.parameters(conninfo_to_dict(conninfo))) if login else conninfo


# Arguments of `psycopg.connect` that are not parameters of libpq.
_NOT_OF_LIBPQ: Final = frozenset({"autocommit", "prepare_threshold", "context", "row_factory", "cursor_factory"})


def _libpq_parameters(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in _NOT_OF_LIBPQ}
