"""OIDC bearer tokens: verified with the public keys of the issuer, and turned into a caller.

    token ──▶ header: algorithm and key id ──▶ key of the issuer ──▶ signature, issuer, audience, times ──▶ roles

The keys (JWKS) are fetched when they are first needed, and kept. A token with an unknown key id causes another fetch,
at most every few seconds. While the issuer cannot be reached, the keys that are known stay in use for a day.
"""

import asyncio
import hashlib
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

import httpx2
import jwt
import orjson

from dagmaster import __version__
from dagmaster.access.caller import Caller, Scope
from dagmaster.cancellation import cancel_and_wait
from dagmaster.errors import NotAuthenticated, Unavailable
from dagmaster.listen import is_loopback
from dagmaster.observe import log
from dagmaster.settings import Settings

LEEWAY_SECONDS = 60
_MAX_TOKEN_LENGTH = 16_384
_MAX_NAME_LENGTH = 64
_FETCH_SECONDS = 5.0
_MAX_DOCUMENT_BYTES = 1_048_576
_REFRESH_SECONDS = 3600.0
_REFETCH_SECONDS = 10.0
_MAX_OUTAGE_SECONDS = 86_400.0
# By type and curve of the key. Symmetric algorithms and `none` are missing on purpose.
ALGORITHMS: Mapping[tuple[str, str | None], tuple[str, ...]] = {
    ("RSA", None): ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
}
_ALLOWED = frozenset(name for names in ALGORITHMS.values() for name in names)
_log = log.get("auth")


@dataclass(frozen=True, slots=True)
class Roles:
    """Which scopes the roles of a token give: those of a table, or the names of the scopes themselves."""

    claim: str
    table: Mapping[str, str]

    def scopes_in(self, claims: Mapping[str, Any]) -> tuple[frozenset[Scope], str | None]:
        """The scopes, and the platform of b2b. A token with two platforms gets none, because a caller has only one."""
        targets = {target for role in _texts(_claim(claims, self.claim)) if (target := self._target(role))}
        scopes = {Scope(target) for target in targets if target in set(Scope) - {Scope.B2B}}
        platforms = {target.removeprefix("b2b:") for target in targets if target.startswith("b2b:")} - {""}
        if len(platforms) != 1:
            return frozenset(scopes), None
        return frozenset({*scopes, Scope.B2B}), platforms.pop()

    def _target(self, role: str) -> str | None:
        return self.table.get(role) if self.table else role.removeprefix("dagmaster.")


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    """A claim by its name, or by its path: `realm_access.roles`."""
    if name in claims:
        return claims[name]
    value: Any = claims
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return value.split()
    return [part for part in value if isinstance(part, str)] if isinstance(value, list) else []


class TokenVerifier:
    def __init__(self, keys: "IssuerKeys", *, issuer: str, audience: Sequence[str], roles: Roles, name: str) -> None:
        self._keys = keys
        self._issuer = issuer
        self._audience = list(audience)
        self._roles = roles
        self._name = name

    @classmethod
    def of(cls, settings: Settings, issuer: str) -> Self:
        table = dict(pair.rsplit("=", 1) for pair in settings.oidc_roles)
        return cls(
            IssuerKeys(issuer, settings.oidc_jwks_url),
            issuer=issuer,
            audience=settings.oidc_audience,
            roles=Roles(settings.oidc_roles_claim, table),
            name=settings.oidc_name_claim,
        )

    async def caller(self, token: str) -> Caller:
        return self.caller_of(await self.claims(token))

    async def claims(self, token: str, audience: Sequence[str] | None = None) -> dict[str, Any]:
        """The claims of a token for one of these audiences, by default for this platform."""
        key = await self._keys.key_for(_header_of(token))
        return self._verified(token, key, list(audience or self._audience))

    def caller_of(self, claims: Mapping[str, Any]) -> Caller:
        scopes, platform_id = self._roles.scopes_in(claims)
        return Caller(_caller_name(claims, self._name), scopes, platform_id)

    async def close(self) -> None:
        await self._keys.close()

    def _verified(self, token: str, key: jwt.PyJWK, audience: list[str]) -> dict[str, Any]:
        try:
            return jwt.decode(
                token,
                key,
                algorithms=[key.algorithm_name],
                audience=audience,
                issuer=self._issuer,
                leeway=LEEWAY_SECONDS,
                options={"require": ["exp", "iss", "aud", "sub"], "enforce_minimum_key_length": True},
            )
        except jwt.ExpiredSignatureError:
            raise NotAuthenticated("this token has expired", code="auth.expired", hint="get a new token") from None
        except jwt.ImmatureSignatureError:
            raise _invalid("it is not valid yet") from None
        except jwt.InvalidAudienceError:
            raise _invalid("it is for another audience") from None
        except jwt.InvalidIssuerError:
            raise _invalid("it has another issuer") from None
        except jwt.MissingRequiredClaimError as error:
            raise _invalid(f"it has no claim {error.claim}") from None
        except (jwt.PyJWTError, ValueError, TypeError):
            raise _invalid("it cannot be verified") from None


def _header_of(token: str) -> Mapping[str, Any]:
    """The header, which is not verified yet."""
    if len(token) > _MAX_TOKEN_LENGTH:
        raise _invalid("it is too long")
    try:
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        raise NotAuthenticated(
            "these credentials are neither a key nor a token",
            code="auth.invalid-token",
            hint="keys begin with dgm_; run `dagmaster login`",
        ) from None
    if header.get("alg") not in _ALLOWED:
        raise _invalid("its algorithm is not allowed")
    return header


def _caller_name(claims: Mapping[str, Any], claim: str) -> str:
    """Unique for each subject, and short enough for every table."""
    value = claims.get(claim)
    text = value if isinstance(value, str) and value else str(claims["sub"])
    name = f"oidc:{text}"
    if len(name) <= _MAX_NAME_LENGTH and name.isprintable():
        return name
    return f"oidc:sha256-{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:40]}"


def _invalid(reason: str) -> NotAuthenticated:
    return NotAuthenticated(f"this token is not valid: {reason}", code="auth.invalid-token")


class IssuerKeys:
    """The public keys of an issuer, by their ids."""

    def __init__(self, issuer: str, jwks_url: str | None = None) -> None:
        self._issuer = issuer
        self._jwks_url = jwks_url
        self._jwks: dict[str | None, dict[str, Any]] = {}
        self._fetched_at: float | None = None
        self._tried_at: float | None = None
        self._is_reachable = True
        self._lock = asyncio.Lock()
        self._refresh: asyncio.Task[None] | None = None

    async def close(self) -> None:
        if self._refresh is not None:
            await cancel_and_wait(self._refresh)

    async def key_for(self, header: Mapping[str, Any]) -> jwt.PyJWK:
        """The key that a token names by its id. Other fields of the header are not used to find the key."""
        kid = header.get("kid")
        if self._needs_keys() or (kid not in self._jwks and self._may_fetch()):
            await self._fetch_once(kid)
        elif _age(self._fetched_at) > _REFRESH_SECONDS and self._may_fetch():
            self._refresh_in_background()
        jwk = self._jwks.get(kid)
        if jwk is None and kid is None and len(self._jwks) == 1:
            (jwk,) = self._jwks.values()
        if jwk is None and not self._is_reachable:
            raise _unavailable("the last request for them failed")
        if jwk is None:
            raise _invalid("the issuer has no such key")
        return _key_of(jwk, str(header["alg"]))

    def _needs_keys(self) -> bool:
        return _age(self._fetched_at) > _MAX_OUTAGE_SECONDS

    def _may_fetch(self) -> bool:
        return _age(self._tried_at) > _REFETCH_SECONDS

    async def _fetch_once(self, kid: str | None) -> None:
        """Fetch the keys. Requests that arrive meanwhile wait for the same result."""
        async with self._lock:
            if not self._needs_keys() and (kid in self._jwks or not self._may_fetch()):
                return
            if not self._may_fetch():
                raise _unavailable("the last request for them failed")
            await self._fetch()

    def _refresh_in_background(self) -> None:
        if self._refresh is None or self._refresh.done():
            self._refresh = asyncio.create_task(self._refresh_keys(), name="oidc-keys")

    async def _refresh_keys(self) -> None:
        async with self._lock:
            if self._may_fetch():
                with suppress(Unavailable):  # logged; the keys that are known stay in use
                    await self._fetch()

    async def _fetch(self) -> None:
        self._tried_at = time.monotonic()
        try:
            async with asyncio.timeout(_FETCH_SECONDS), http_client() as http:
                url = self._jwks_url or await self._discovered_jwks_url(http)
                self._jwks = _signature_keys(await _json_at(http, url))
        except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError, OSError, ValueError) as error:
            self._is_reachable = False
            reason = str(error) or type(error).__name__
            _log.warning("the keys of the token issuer cannot be fetched", issuer=self._issuer, error=reason)
            raise _unavailable(reason) from None
        self._fetched_at, self._is_reachable = time.monotonic(), True

    async def _discovered_jwks_url(self, http: httpx2.AsyncClient) -> str:
        document = await discovery_document(http, self._issuer)
        url = document.get("jwks_uri")
        if not isinstance(url, str) or not is_safe_url(url):
            raise ValueError("its discovery document has no `jwks_uri` with https")
        return url


async def discovery_document(http: httpx2.AsyncClient, issuer: str) -> dict[str, Any]:
    """The discovery document of an issuer."""
    document = await _json_at(http, f"{issuer.rstrip('/')}/.well-known/openid-configuration")
    if document.get("issuer") != issuer:
        raise ValueError("its discovery document names another issuer")
    return document


def is_safe_url(url: str) -> bool:
    """Whether a connection to this URL is protected against changes by others: https, or loopback."""
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL:
        return False
    return bool(parsed.host) and (parsed.scheme == "https" or (parsed.scheme == "http" and is_loopback(parsed.host)))


def http_client() -> httpx2.AsyncClient:
    headers = {"User-Agent": f"dagmaster/{__version__}", "Accept": "application/json"}
    return httpx2.AsyncClient(headers=headers, follow_redirects=False)


async def _json_at(http: httpx2.AsyncClient, url: str) -> dict[str, Any]:
    async with http.stream("GET", url, timeout=_FETCH_SECONDS) as response:
        if response.status_code != 200:
            raise ValueError(f"{url} responds with status {response.status_code}")
        return await json_of(response)


async def json_of(response: httpx2.Response) -> dict[str, Any]:
    """The JSON object of a response that is read as a stream."""
    chunks, url = list[bytes](), response.url
    async for chunk in response.aiter_bytes():
        chunks.append(chunk)
        if sum(map(len, chunks)) > _MAX_DOCUMENT_BYTES:
            raise ValueError(f"{url} responds with more than {_MAX_DOCUMENT_BYTES} bytes")
    try:
        document = orjson.loads(b"".join(chunks))
    except orjson.JSONDecodeError:
        raise ValueError(f"{url} does not respond with JSON") from None
    if not isinstance(document, dict):
        raise ValueError(f"{url} does not respond with a JSON object")
    return document


def _signature_keys(document: Mapping[str, Any]) -> dict[str | None, dict[str, Any]]:
    """The keys for signatures, by id. Symmetric keys and keys of unknown types are left out."""
    keys = document.get("keys")
    if not isinstance(keys, list):
        raise ValueError("its JWKS document has no `keys`")
    return {key.get("kid"): key for key in keys if isinstance(key, dict) and _algorithms_of(key)}


def _algorithms_of(jwk: Mapping[str, Any]) -> tuple[str, ...]:
    """The algorithms that a key may verify: the one that it names, or all of its type."""
    if jwk.get("use", "sig") != "sig" or not isinstance(jwk.get("kid"), str | None):
        return ()
    curve = None if jwk.get("kty") == "RSA" else jwk.get("crv")
    algorithms = ALGORITHMS.get((str(jwk.get("kty")), str(curve) if curve is not None else None), ())
    return tuple(name for name in algorithms if jwk.get("alg", name) == name)


def _key_of(jwk: dict[str, Any], algorithm: str) -> jwt.PyJWK:
    """The key, bound to the algorithm of the token, which must be one of the key's."""
    if algorithm not in _algorithms_of(jwk):
        raise _invalid("its algorithm is not that of its key")
    try:
        return jwt.PyJWK(jwk, algorithm)
    except (jwt.PyJWTError, ValueError, TypeError, KeyError):
        raise _invalid("the key of the issuer cannot be used") from None


def _age(moment: float | None) -> float:
    return float("inf") if moment is None else time.monotonic() - moment


def _unavailable(reason: str) -> Unavailable:
    return Unavailable(
        f"the token cannot be verified: the keys of its issuer are not available ({reason})",
        code="auth.issuer-unavailable",
        hint="try again; operators: check OIDC_ISSUER and OIDC_JWKS_URL",
    )
