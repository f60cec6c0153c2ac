"""Sign in at an OIDC issuer: authorization code flow with PKCE, state and nonce.

start     ──▶ issuer's page, with state, nonce and the hash of a verifier; the three are in a cookie of the browser
callback  ──▶ state as in the cookie? ──▶ code and verifier to the issuer ──▶ ID token: signature, issuer, audience,
              times, nonce ──▶ roles ──▶ who signed in, and until when
"""

import asyncio
import base64
import hashlib
import hmac
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self
from urllib.parse import urlencode

import httpx2

from dagmaster.access.caller import Caller
from dagmaster.errors import NotAllowed, NotAuthenticated, Unavailable
from dagmaster.observe import log
from dagmaster.settings import Settings
from dagmaster.web.sign_in_flow import Flow
from dagmaster.web.tokens import TokenVerifier, discovery_document, http_client, is_safe_url, json_of

_MAX_CODE_LENGTH = 4096
_MAX_SECONDS = 366 * 86_400.0
_ISSUER_SECONDS = 10.0
_DISCOVERY_SECONDS = 3600.0
_log = log.get("auth")


@dataclass(frozen=True, slots=True)
class SignedIn:
    """Who signed in at the issuer, and when the token ends."""

    caller: Caller
    until: datetime


@dataclass(frozen=True, slots=True)
class _Endpoints:
    authorize: str
    token: str
    sends_secret_in_body: bool
    fetched_at: float


class OidcSignIn:
    def __init__(
        self, issuer: str, verifier: TokenVerifier, *, client_id: str, client_secret: str | None, scope: str
    ) -> None:
        self._issuer = issuer
        self._verifier = verifier
        self._client_id = client_id
        self._client_secret = client_secret
        self._scope = scope
        self._endpoints: _Endpoints | None = None

    @classmethod
    def of(cls, settings: Settings, verifier: TokenVerifier | None) -> Self | None:
        """None if browsers cannot sign in at an issuer."""
        if verifier is None or settings.oidc_issuer is None or settings.oidc_client_id is None:
            return None
        return cls(
            settings.oidc_issuer,
            verifier,
            client_id=settings.oidc_client_id,
            client_secret=settings.oidc_client_secret,
            scope=settings.oidc_scope,
        )

    async def url(self, flow: Flow, redirect_uri: str) -> str:
        """The page of the issuer on which the person signs in."""
        endpoints = await self._current_endpoints()
        challenge = base64.urlsafe_b64encode(hashlib.sha256(flow.verifier.encode()).digest()).decode().rstrip("=")
        parameters = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": redirect_uri,
            "scope": self._scope,
            "state": flow.state,
            "nonce": flow.nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        separator = "&" if "?" in endpoints.authorize else "?"
        return f"{endpoints.authorize}{separator}{urlencode(parameters)}"

    def code_in(self, flow: Flow | None, parameters: Mapping[str, str]) -> tuple[Flow, str]:
        """The code of a callback that belongs to the flow of the browser."""
        if flow is None or not hmac.compare_digest(flow.state.encode(), parameters.get("state", "").encode()):
            raise _bad_state("it was started in another browser, or took too long")
        if parameters.get("iss", self._issuer) != self._issuer:
            raise _bad_state("the response is from another issuer")
        code = parameters.get("code", "")
        if "error" in parameters or not 0 < len(code) <= _MAX_CODE_LENGTH:
            raise _refused("the issuer did not sign you in")
        return flow, code

    async def finish(self, flow: Flow, code: str, redirect_uri: str) -> SignedIn:
        tokens = await self._tokens(code, flow, redirect_uri)
        id_token = tokens.get("id_token")
        if not isinstance(id_token, str):
            raise _refused("the issuer sent no ID token")
        claims = await self._verifier.claims(id_token, [self._client_id])
        if not hmac.compare_digest(str(claims.get("nonce", "")).encode(), flow.nonce.encode()):
            raise NotAuthenticated("the ID token belongs to another sign-in", code="auth.invalid-token")
        if isinstance(claims["aud"], list) and len(claims["aud"]) > 1 and claims.get("azp") != self._client_id:
            raise NotAuthenticated("the ID token belongs to another client", code="auth.invalid-token")
        caller, until = self._verifier.caller_of(claims), _expiry(claims)
        if not caller.scopes:
            caller, until = await self._by_access_token(tokens.get("access_token"), claims) or (caller, until)
        if not caller.scopes:
            raise NotAllowed(
                "you have signed in, but none of your roles gives access",
                code="session.no-roles",
                hint="ask an administrator for a role; operators: see OIDC_ROLES_CLAIM and OIDC_ROLES",
            )
        return SignedIn(caller, datetime.fromtimestamp(until, UTC))

    async def _by_access_token(self, token: Any, claims: Mapping[str, Any]) -> tuple[Caller, float] | None:
        """Some issuers have roles in the access token only. It counts if it is for this platform and this person."""
        if not isinstance(token, str):
            return None
        try:
            access = await self._verifier.claims(token)
        except NotAuthenticated:
            return None  # the token is opaque, or for another audience
        if access["sub"] != claims["sub"]:
            return None
        return self._verifier.caller_of(access), min(_expiry(access), _expiry(claims))

    async def _tokens(self, code: str, flow: Flow, redirect_uri: str) -> dict[str, Any]:
        endpoints = await self._current_endpoints()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "client_id": self._client_id,
            "code_verifier": flow.verifier,
        }
        auth: httpx2.Auth | None = None
        if self._client_secret and endpoints.sends_secret_in_body:
            form["client_secret"] = self._client_secret
        elif self._client_secret:
            auth = httpx2.BasicAuth(self._client_id, self._client_secret)
        try:
            async with asyncio.timeout(_ISSUER_SECONDS), http_client() as http:
                request = http.build_request("POST", endpoints.token, data=form)
                response = await http.send(request, stream=True, auth=auth)
                status, tokens = response.status_code, await json_of(response)
        except (httpx2.HTTPError, TimeoutError, OSError, ValueError) as error:
            raise self._unavailable(error) from None
        if status >= 500:
            raise self._unavailable(ValueError(f"status {status}"))
        if status != 200:
            _log.warning("the OIDC issuer refused a code", status=status, error=str(tokens.get("error"))[:64])
            raise _refused(
                "the issuer refused the code of the sign-in: it was used before or has expired, "
                "or OIDC_CLIENT_SECRET is wrong"
            )
        return tokens

    async def _current_endpoints(self) -> _Endpoints:
        if self._endpoints is None or time.monotonic() - self._endpoints.fetched_at > _DISCOVERY_SECONDS:
            try:
                async with asyncio.timeout(_ISSUER_SECONDS), http_client() as http:
                    self._endpoints = _endpoints(await discovery_document(http, self._issuer))
            except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError, OSError, ValueError) as error:
                raise self._unavailable(error) from None
        return self._endpoints

    def _unavailable(self, error: Exception) -> Unavailable:
        reason = str(error) or type(error).__name__
        _log.warning("the OIDC issuer does not respond", issuer=self._issuer, error=reason)
        return Unavailable(
            "the OIDC issuer is not available",
            code="auth.issuer-unavailable",
            hint="try again; operators: check OIDC_ISSUER",
        )


def _endpoints(document: Mapping[str, Any]) -> _Endpoints:
    urls = [document.get("authorization_endpoint"), document.get("token_endpoint")]
    if not all(isinstance(url, str) and is_safe_url(url) for url in urls):
        raise ValueError("its discovery document has no https addresses for signing in")
    methods = document.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
    return _Endpoints(str(urls[0]), str(urls[1]), "client_secret_basic" not in methods, time.monotonic())


def _expiry(claims: Mapping[str, Any]) -> float:
    """Unix seconds; a time far in the future if the token says that it never expires."""
    return min(float(claims["exp"]), time.time() + _MAX_SECONDS)


def _bad_state(reason: str) -> NotAllowed:
    return NotAllowed(f"the sign-in cannot be completed: {reason}", code="session.bad-state", hint="sign in again")


def _refused(message: str) -> NotAuthenticated:
    return NotAuthenticated(message, code="session.refused", hint="sign in again")
