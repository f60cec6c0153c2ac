"""Who sends a request, and whether the caller may send it.

    RequestMiddleware ──▶ Authentication.identify(scope, headers) ──▶ the request's state
    route ──▶ Depends(needs(Permission.…)) ──▶ the caller, or 401 (no credentials) or 403 (a permission is missing)

Every route of every app declares the permission that it needs; `permission_of` reads it from the route. What a caller
may read of an asset is not decided here but by `access.decision.read_access`, for each version.

Credentials are a key or a token in a header or, in a browser, the cookie of a session. A browser adds the cookie to any
request, whichever page causes it: so a request with a cookie that may change something also needs the session's CSRF
token, and must come from a page of the same origin. Requests with headers need neither.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from fastapi import Depends
from fastapi.dependencies.models import Dependant
from fastapi.routing import iter_route_contexts
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.routing import BaseRoute
from starlette.types import Scope as RequestScope

from dagmaster.access.caller import ANONYMOUS, Caller, Scope
from dagmaster.access.keys import PREFIX, KeyText, StoredKey, parse_key
from dagmaster.access.permissions import ALLOWED, Permission, may
from dagmaster.access.sessions import SessionText, StoredSession, parse_session
from dagmaster.cancellation import cancel_and_wait
from dagmaster.client.limits import PREFIX as API_PREFIX
from dagmaster.errors import DagmasterError, NotAllowed, NotAuthenticated
from dagmaster.observe import log
from dagmaster.settings import Settings
from dagmaster.web.cookies import has_session_cookie, session_in
from dagmaster.web.origins import SAFE_METHODS, is_of_same_origin

if TYPE_CHECKING:
    from dagmaster.web.tokens import TokenVerifier

CALLER = "caller"
IDENTITY = "identity"
CSRF_HEADER = "X-CSRF-Token"
# Signing in again needs no CSRF token: the page may not have it. The route checks the origin.
SIGN_IN = ("POST", f"{API_PREFIX}/session")
LOCAL_ADMIN = Caller("local", frozenset({Scope.ADMIN}))
LOCAL_VIEWER = Caller("local", frozenset({Scope.VIEWER}))
_RECORD_USES_SECONDS = 5.0
_log = log.get("auth")


class KeyLookup(Protocol):
    """The source of keys: the database, or the view of it that the gateway has."""

    async def find(self, key_id: str) -> StoredKey | None: ...

    async def has_keys(self) -> bool: ...

    def note_use(self, key_id: str) -> None: ...

    async def record_uses(self) -> None: ...


class SessionLookup(Protocol):
    """The source of sessions."""

    async def find(self, session_id: str) -> StoredSession | None: ...


@dataclass(frozen=True, slots=True)
class ActiveSession:
    """The session of a request."""

    text: SessionText
    stored: StoredSession

    @property
    def method(self) -> Literal["key", "oidc"]:
        return "oidc" if self.stored.key_id is None else "key"


@dataclass(frozen=True, slots=True)
class Identity:
    """The caller of a request, and how it was determined. With `has_ended_session` the caller is anonymous: the browser
    has the cookie of a session that has ended."""

    caller: Caller
    session: ActiveSession | None = None
    has_ended_session: bool = False


class Authentication(Protocol):
    async def identify(self, scope: RequestScope, headers: Headers) -> Identity:
        """The caller of a request. Credentials in headers that are not valid are an error; a request without any is
        anonymous."""
        ...


@dataclass(frozen=True, slots=True)
class NoAuthentication:
    """Every request has the same caller, whatever credentials it has."""

    everyone: Caller

    async def identify(self, _scope: RequestScope, _headers: Headers) -> Identity:
        return Identity(self.everyone)


class CredentialAuthentication:
    """Callers have an API key, an OIDC token or a session; without any they are anonymous. Keys and sessions are looked
    up with each request, so that a change takes effect at once. Use it as a context: it records when keys are used."""

    def __init__(
        self, keys: KeyLookup, tokens: "TokenVerifier | None" = None, sessions: SessionLookup | None = None
    ) -> None:
        self._keys = keys
        self._tokens = tokens
        self._sessions = sessions

    @property
    def tokens(self) -> "TokenVerifier | None":
        return self._tokens

    async def identify(self, scope: RequestScope, headers: Headers) -> Identity:
        text = credentials_in(headers)
        if text is None:
            return await self._identity_by_session(scope, headers)
        if text.startswith(PREFIX):
            stored = await self.key(text)
            return Identity(caller_from(stored))
        if self._tokens is None:
            raise NotAuthenticated(
                "the credentials are not an API key", code="auth.invalid-key", hint="keys begin with dgm_"
            )
        return Identity(await self._tokens.caller(text))

    async def key(self, text: str) -> StoredKey:
        """The key with this text, if it is accepted now."""
        key = parse_key(text)
        stored = await self._keys.find(key.key_id) if key else None
        if key is None or stored is None or not _is_secret_of(key, stored):
            raise NotAuthenticated(
                "this key is not valid", code="auth.invalid-key", hint="send another key, or run `dagmaster login`"
            )
        if stored.is_revoked:
            raise NotAuthenticated(
                "this key was revoked", code="auth.revoked", hint="ask an administrator for a new one"
            )
        if stored.is_expired:
            raise NotAuthenticated(
                "this key has expired", code="auth.expired", hint="ask an administrator to rotate it"
            )
        self._keys.note_use(stored.key_id)
        return stored

    async def _identity_by_session(self, scope: RequestScope, headers: Headers) -> Identity:
        if self._sessions is None or not has_session_cookie(headers):
            return Identity(ANONYMOUS)
        text = parse_session(session_in(scope, headers) or "")
        stored = await self._sessions.find(text.session_id) if text else None
        if text is None or stored is None or not stored.is_valid or not text.has_hash(stored.secret_hash):
            return Identity(ANONYMOUS, has_ended_session=True)
        if scope["method"] not in SAFE_METHODS and (scope["method"], scope["path"]) != SIGN_IN:
            _require_own_page(text, headers)
        if stored.key_id:
            self._keys.note_use(stored.key_id)
        return Identity(caller_from(stored), ActiveSession(text, stored))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Record the uses of keys in the background, and the last ones at the end."""
        task = asyncio.create_task(self._record_uses(), name="key-uses")
        try:
            yield
        finally:
            await cancel_and_wait(task)
            with suppress(DagmasterError):
                await self._keys.record_uses()
            if self._tokens is not None:
                await self._tokens.close()

    async def _record_uses(self) -> None:
        await self._warn_without_keys()
        while True:
            await asyncio.sleep(_RECORD_USES_SECONDS)
            try:
                await self._keys.record_uses()
            except Exception as error:  # requests do not depend on it; it is tried again
                log.failure(_log, "the use of keys could not be recorded", error)

    async def _warn_without_keys(self) -> None:
        with suppress(DagmasterError):  # requests report an outage
            if self._tokens is None and not await self._keys.has_keys():
                _log.warning(
                    "authentication is enabled, but there is no API key",
                    hint="create one on a machine that reaches the database: dagmaster keys create NAME --admin",
                )


def _is_secret_of(key: KeyText, stored: StoredKey) -> bool:
    """Whether a key has the current or the previous secret. Both are compared, so that the time does not
    show which one matches."""
    is_current = key.has_hash(stored.secret_hash)
    is_previous = key.has_hash(stored.previous_hash or "")
    return is_current or is_previous


def caller_from(stored: StoredKey | StoredSession) -> Caller:
    """The caller with this key or session. Scopes of a later version are ignored."""
    scopes = frozenset(Scope(name) for name in stored.scopes if name in set(Scope))
    queues = None if stored.queues is None else frozenset(stored.queues)
    return Caller(stored.name, scopes, stored.platform_id, queues)


def _require_own_page(text: SessionText, headers: Headers) -> None:
    """Refuse a request that a page of another origin may have caused."""
    if not is_of_same_origin(headers):
        raise NotAllowed(
            "a request with the cookie of a session must come from a page of the same origin",
            code="request.foreign-origin",
            hint="programs send a key in the header X-API-Key",
        )
    if not text.has_csrf_token(headers.get(CSRF_HEADER, "")):
        raise NotAllowed(
            f"a request with the cookie of a session needs its CSRF token in the header {CSRF_HEADER}",
            code="session.csrf",
            hint="GET /api/v1/session returns the token; programs send a key in the header X-API-Key",
        )


def credentials_in(headers: Headers) -> str | None:
    """The key or token of a request: `Authorization: Bearer …` or `X-API-Key: …`."""
    sent = set()
    for value in headers.getlist("authorization"):
        scheme, _, text = value.strip().partition(" ")
        if scheme.lower() != "bearer" or not text.strip():
            raise NotAuthenticated("the Authorization header is not of the form `Bearer …`", code="auth.scheme")
        sent.add(text.strip())
    sent.update(value.strip() for value in headers.getlist("x-api-key"))
    if len(sent) > 1:
        raise NotAuthenticated("the request has several different credentials", code="auth.ambiguous")
    return sent.pop() if sent else None


@asynccontextmanager
async def authentication_running(authentication: Authentication) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        if isinstance(authentication, CredentialAuthentication):
            await stack.enter_async_context(authentication.running())
        yield


def authentication_of(
    settings: Settings, keys: KeyLookup, everyone: Caller, sessions: SessionLookup | None = None
) -> Authentication:
    """`everyone` is the caller of all requests if authentication is disabled. Cookies need `sessions`."""
    if not settings.auth_enabled:
        return NoAuthentication(everyone)
    if settings.oidc_issuer is None:
        return CredentialAuthentication(keys, sessions=sessions)
    from dagmaster.web.tokens import TokenVerifier  # imports the library for tokens

    return CredentialAuthentication(keys, TokenVerifier.of(settings, settings.oidc_issuer), sessions)


def caller_of(request: Request) -> Caller:
    caller: Caller = request.scope.get("state", {}).get(CALLER, ANONYMOUS)
    return caller


def identity_of(request: Request) -> Identity:
    identity: Identity = request.scope.get("state", {}).get(IDENTITY, Identity(ANONYMOUS))
    return identity


@dataclass(frozen=True, slots=True)
class Needs:
    """A dependency of a route: the caller, if it has the permission."""

    permission: Permission

    async def __call__(self, request: Request) -> Caller:
        caller = caller_of(request)
        require_signed_in(request, self.permission)
        require(caller, self.permission)
        return caller


def require_signed_in(request: Request, permission: Permission) -> None:
    """Refuse a browser whose session has ended: the error says so, instead of asking for a key."""
    if identity_of(request).has_ended_session and permission is not Permission.ANYONE:
        raise NotAuthenticated("the session has ended", code="auth.session-ended", hint="sign in again")


def require(caller: Caller, permission: Permission) -> None:
    """Refuse the request of a caller without the permission."""
    if may(caller, permission):
        return
    if caller == ANONYMOUS:
        raise NotAuthenticated(
            "this request needs a key or a token",
            code="auth.required",
            hint="run `dagmaster login`, or send a key in the header X-API-Key",
        )
    scopes = [scope for scope, allowed in ALLOWED.items() if permission in allowed]
    raise NotAllowed(
        f"this caller does not have the permission {permission}",
        code="auth.not-allowed",
        hint=f"scopes with this permission: {', '.join(scopes)}",
        permission=str(permission),
    )


def needs(permission: Permission) -> Needs:
    return Needs(permission)


def requires(permission: Permission) -> Any:
    """For `dependencies` of a route or router that does not use its caller."""
    return Depends(needs(permission))


def routes_of(routes: Iterable[BaseRoute]) -> Iterator[Any]:
    """All routes, also of included routers and of apps behind a route, with their whole path and dependencies."""
    for route in iter_route_contexts(list(routes)):
        yield route
        inner = getattr(route, "app", None)
        inner = getattr(inner, "inner_app", inner)
        if inner is not None and hasattr(inner, "routes"):
            yield from routes_of(inner.routes)


def permission_of(route: Any) -> Permission | None:
    """The permission that a route declares. Plain routes of Starlette have it as an attribute of their endpoint."""
    dependant: Dependant | None = getattr(route, "dependant", None)
    if dependant is not None:
        declared = [part.call.permission for part in _dependants_of(dependant) if isinstance(part.call, Needs)]
        if declared:  # all are required; ANYONE adds no requirement
            return next((each for each in declared if each is not Permission.ANYONE), Permission.ANYONE)
    permission: Permission | None = getattr(getattr(route, "endpoint", None), "permission", None)
    return permission


def _dependants_of(dependant: Dependant) -> list[Dependant]:
    return [part for child in dependant.dependencies for part in (child, *_dependants_of(child))]
