"""Sign in at an OIDC issuer: the browser is redirected there and back, and gets the same cookie as with a key.

Both routes are opened by the browser itself, not by a script of a page. After a failure, it is redirected to the web UI
with the code of the error; the web UI shows its own text for the code, so that no text comes from the URL.
"""

import re
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from starlette.responses import RedirectResponse

from dagmaster.access.permissions import Permission
from dagmaster.api.problems import responses
from dagmaster.api.services import ApiServices, Services
from dagmaster.api.sessions import PATH, address_of, begin_session
from dagmaster.database.assets.sessions import SignIn
from dagmaster.errors import DagmasterError, InvalidRequest, NotFound
from dagmaster.observe import log
from dagmaster.web import cookies
from dagmaster.web.accept import prefers_html
from dagmaster.web.authentication import requires
from dagmaster.web.page_headers import UI
from dagmaster.web.problems import request_id_of
from dagmaster.web.sign_in_flow import FLOW_SECONDS, MAX_NEXT_LENGTH, Flow, new_flow

if TYPE_CHECKING:
    from dagmaster.web.oidc import OidcSignIn

router = APIRouter(prefix="/session/oidc", tags=["callers"], dependencies=[requires(Permission.ANYONE)])
_HOST = re.compile(r"[A-Za-z0-9.\-]+(:\d{1,5})?|\[[0-9A-Fa-f:.]+\](:\d{1,5})?")
_HEADERS = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
_REDIRECTS: dict[int | str, dict[str, Any]] = {303: {"description": "A redirect to the issuer or to the web UI"}}
_log = log.get("auth")


@router.get(
    "/start",
    operation_id="start_oidc_sign_in",
    summary="Sign in at the OIDC issuer",
    status_code=303,
    response_class=Response,
    responses={**responses(404, 429), **_REDIRECTS},
)
async def start(
    services: Services,
    request: Request,
    next_path: Annotated[
        str, Query(alias="next", max_length=MAX_NEXT_LENGTH, description="The path to open after the sign-in")
    ] = f"{UI}/",
) -> Response:
    """Open this URL in the browser."""
    try:
        oidc, flow = _oidc(services), new_flow(next_path)
        url = await oidc.url(flow, _redirect_uri(request))
    except DagmasterError as error:
        return _failed(request, error)
    response = RedirectResponse(url, status_code=303, headers=_HEADERS)
    # Lax: the issuer redirects the browser to here, which is a request from another site.
    cookie = cookies.cookie(cookies.SIGN_IN, flow.encoded(), request.scope, seconds=FLOW_SECONDS, same_site="lax")
    response.headers.append("Set-Cookie", cookie)
    return response


@router.get(
    "/callback",
    operation_id="finish_oidc_sign_in",
    summary="Complete a sign-in at the OIDC issuer",
    status_code=303,
    response_class=Response,
    responses={**responses(404, 429), **_REDIRECTS},
)
async def callback(services: Services, request: Request) -> Response:
    """The issuer redirects the browser to this route."""
    try:
        response = await _finish_sign_in(services, request)
    except DagmasterError as error:
        _log.warning("an OIDC sign-in was refused", code=error.code, request_id=request_id_of(request))
        response = _failed(request, error)
    # The cookie is also removed after a failure: a callback can be used only once.
    response.headers.append("Set-Cookie", cookies.expired_cookie(cookies.SIGN_IN, request.scope))
    return response


async def _finish_sign_in(services: ApiServices, request: Request) -> Response:
    oidc, address = _oidc(services), address_of(request)
    services.sign_in_limit.take(address)
    text = cookies.cookie_in(cookies.SIGN_IN, request.scope, request.headers)
    flow, code = oidc.code_in(Flow.decoded(text or ""), request.query_params)
    person = await oidc.finish(flow, code, _redirect_uri(request))
    services.sign_in_limit.give_back(address)
    caller = person.caller
    response = RedirectResponse(flow.next, status_code=303, headers=_HEADERS)
    scopes = tuple(sorted(caller.scopes))
    await begin_session(
        services, request, response, SignIn(caller.name, scopes, caller.platform_id, until=person.until)
    )
    return response


def _oidc(services: ApiServices) -> "OidcSignIn":
    if services.oidc is None:
        raise NotFound(
            "sign-in at an OIDC issuer is not configured",
            code="session.no-oidc",
            hint="sign in with a key; operators: set OIDC_CLIENT_ID to enable it",
        )
    return services.oidc


def _redirect_uri(request: Request) -> str:
    """The address of the callback as the browser sees this server. The issuer accepts only registered addresses."""
    host = request.headers.get("host", "")
    if not _HOST.fullmatch(host):
        raise InvalidRequest("the Host header is not valid", code="request.bad-host")
    return f"{request.scope['scheme']}://{host}{PATH}/oidc/callback"


def _failed(request: Request, error: DagmasterError) -> Response:
    if not prefers_html(request):
        raise error
    return RedirectResponse(f"{UI}/?sign_in_error={error.code}", status_code=303, headers=_HEADERS)
