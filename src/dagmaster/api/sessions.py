"""Sessions of browsers: sign in with a key, get the caller, sign out.

    POST key ──▶ session in the database, its text in a cookie
    request  ──▶ the current state of the session and of its key

The browser does not store the key. Failed attempts are limited by address.
"""

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from dagmaster.access.caller import ANONYMOUS, Caller
from dagmaster.access.keys import parse_key
from dagmaster.access.permissions import Permission
from dagmaster.access.sessions import new_session
from dagmaster.api.callers import info_of
from dagmaster.api.problems import responses
from dagmaster.api.services import ApiServices, Services
from dagmaster.client.limits import PREFIX
from dagmaster.client.models.sessions import SessionInfo, SessionRequest, SignInMethod
from dagmaster.database.assets.sessions import SignIn
from dagmaster.errors import Conflict, NotAllowed, NotAuthenticated, Unavailable
from dagmaster.observe import log
from dagmaster.web import cookies
from dagmaster.web.authentication import (
    ActiveSession,
    CredentialAuthentication,
    Identity,
    caller_from,
    identity_of,
    needs,
    requires,
)
from dagmaster.web.origins import is_of_same_origin
from dagmaster.web.problems import request_id_of

router = APIRouter(prefix="/session", tags=["callers"])
PATH = f"{PREFIX}/session"
OIDC_START = f"{PATH}/oidc/start"
_NOT_STORED = "no-store"
_log = log.get("auth")


@router.get("", operation_id="get_session", summary="Get the current session", responses=responses())
async def get_session(
    services: Services,
    request: Request,
    response: Response,
    caller: Annotated[Caller, Depends(needs(Permission.ANYONE))],
) -> SessionInfo:
    """Without a session the response is not an error: `is_signed_in` is false. The cookie of a session that has ended
    is removed."""
    identity = identity_of(request)
    if identity.has_ended_session:
        response.headers["Set-Cookie"] = cookies.expired_cookie(cookies.SESSION, request.scope)
    response.headers["Cache-Control"] = _NOT_STORED
    return _info(services, caller, identity)


@router.post(
    "",
    operation_id="sign_in",
    summary="Sign in with a key",
    status_code=201,
    responses=responses(409, 429),
    dependencies=[requires(Permission.ANYONE)],
)
async def sign_in(
    services: Services, request: Request, response: Response, sign_in_request: SessionRequest
) -> SessionInfo:
    """The response sets the cookie of the session, which ends with the key, after `SESSION_HOURS` or when its owner
    signs out. An earlier session of the browser is ended."""
    require_own_page(request)
    authentication = _authentication(services)
    address = address_of(request)
    services.sign_in_limit.take(address)
    try:
        key = await authentication.key(sign_in_request.key)
    except NotAuthenticated as error:
        _log.warning("a sign-in was refused", address=address, code=error.code, request_id=request_id_of(request))
        raise
    services.sign_in_limit.give_back(address)
    text = parse_key(sign_in_request.key)
    assert text is not None
    person = SignIn(key.name, tuple(key.scopes), key.platform_id, key.key_id, text.hash)
    identity = await begin_session(services, request, response, person)
    return _info(services, identity.caller, identity)


@router.delete(
    "",
    operation_id="sign_out",
    summary="Sign out",
    status_code=204,
    responses=responses(),
    dependencies=[requires(Permission.ANYONE)],
)
async def sign_out(services: Services, request: Request, response: Response) -> None:
    """The session is refused from the next request on, also with a copy of its cookie."""
    if session := identity_of(request).session:
        await services.keys.sessions.end(session.text.session_id, request_id=request_id_of(request))
    response.headers["Set-Cookie"] = cookies.expired_cookie(cookies.SESSION, request.scope)
    response.headers["Cache-Control"] = _NOT_STORED


async def begin_session(services: ApiServices, request: Request, response: Response, person: SignIn) -> Identity:
    """Start a session and set its cookie. The earlier session of the request is ended."""
    sessions, request_id = services.keys.sessions, request_id_of(request)
    if earlier := identity_of(request).session:
        await sessions.end(earlier.text.session_id, request_id=request_id)
    text = new_session()
    seconds = services.settings.session_hours * 3600
    await sessions.start(text, person, lasts_seconds=seconds, request_id=request_id)
    stored = await sessions.find(text.session_id)
    if stored is None:
        raise Unavailable("the session was not stored", code="session.not-stored", hint="sign in again")
    response.headers.append(
        "Set-Cookie", cookies.cookie(cookies.SESSION, text.text, request.scope, seconds=int(seconds))
    )
    response.headers["Cache-Control"] = _NOT_STORED
    return Identity(caller_from(stored), ActiveSession(text, stored))


def require_own_page(request: Request) -> None:
    """Refuse a sign-in from a page of another origin: it could sign a person in with the key of an attacker."""
    headers = request.headers
    if ("sec-fetch-site" in headers or "origin" in headers) and not is_of_same_origin(headers):
        raise NotAllowed("only pages of the same origin may sign in", code="request.foreign-origin")


def address_of(request: Request) -> str:
    return request.client.host if request.client else ""


def _authentication(services: ApiServices) -> CredentialAuthentication:
    if not isinstance(services.authentication, CredentialAuthentication):
        raise Conflict(
            "authentication is disabled: no sign-in is needed",
            code="auth.disabled",
            hint="set AUTH_ENABLED=true to enable it",
        )
    return services.authentication


def _methods(services: ApiServices) -> list[SignInMethod]:
    by_key = SignInMethod(method="key", url=PATH)
    return [by_key, SignInMethod(method="oidc", url=OIDC_START)] if services.oidc else [by_key]


def _info(services: ApiServices, caller: Caller, identity: Identity) -> SessionInfo:
    is_enabled, session = services.settings.auth_enabled, identity.session
    by_header = "header" if is_enabled and caller != ANONYMOUS else None
    return SessionInfo(
        **dict(info_of(caller, services)),
        is_signed_in=caller != ANONYMOUS,
        method=session.method if session else by_header,
        expires_at=session.stored.expires_at if session else None,
        csrf_token=session.text.csrf_token if session else None,
        sign_in_methods=_methods(services) if is_enabled else [],
    )
