"""Tokens of the managed identity of this machine: from the endpoint that Azure App Service and Container Apps set, or
from the metadata service of a virtual machine. A token is kept in memory until shortly before it expires, nowhere else.

`token` is for event loops, `token_blocking` for threads; one object is used in one of the two ways.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from dagmaster.errors import Unavailable
from dagmaster.settings import Settings

if TYPE_CHECKING:
    import httpx2  # imported where it is used, because most workers need no token

METADATA_SERVICE: Final = "http://169.254.169.254/metadata/identity/oauth2/token"
EARLY_SECONDS: Final = 300.0  # a token is renewed this long before it expires
_MIN_SECONDS: Final = 30.0
_RETRY_SECONDS: Final = 15.0  # after a renewal that failed while the token is still valid
_HINT: Final = (
    "give this machine a managed identity with the roles that it needs; if it has several, set AZURE_CLIENT_ID"
)


@dataclass(frozen=True, slots=True)
class IdentityEndpoint:
    """Where tokens are obtained. `headers` may contain a secret."""

    url: str
    params: dict[str, str]
    headers: dict[str, str] = field(repr=False)

    @classmethod
    def of(cls, settings: Settings, resource: str, client_id: str | None = None) -> "IdentityEndpoint":
        params = {"resource": resource}
        if chosen := client_id or settings.azure_client_id:
            params["client_id"] = chosen
        if settings.identity_endpoint and settings.identity_header:
            params["api-version"] = "2019-08-01"
            return cls(settings.identity_endpoint, params, {"X-IDENTITY-HEADER": settings.identity_header})
        params["api-version"] = "2018-02-01"
        return cls(settings.identity_endpoint or METADATA_SERVICE, params, {"Metadata": "true"})


class ManagedIdentity:
    def __init__(self, endpoint: IdentityEndpoint, clock: Callable[[], float] = time.time) -> None:
        self.endpoint = endpoint
        self._clock = clock
        self._token: str | None = None
        self._expires_at = 0.0
        self._retry_at = 0.0
        self._lock = threading.Lock()

    async def token(self, http: "httpx2.AsyncClient") -> str:
        """A token that is valid for a while."""
        return (await self.token_and_expiry(http))[0]

    async def token_and_expiry(self, http: "httpx2.AsyncClient") -> tuple[str, float]:
        """A token that is valid for a while, and when it expires, in seconds since 1970."""
        import httpx2

        if not self._is_valid():
            endpoint = self.endpoint
            try:
                response = await http.get(endpoint.url, params=endpoint.params, headers=endpoint.headers)
            except httpx2.HTTPError as error:
                raise _no_token(type(error).__name__) from None
            self._keep(response)
        assert self._token is not None
        return self._token, self._expires_at

    def token_blocking(self, http: "httpx2.Client") -> tuple[str, datetime]:
        """A token that is valid for a while, and when it expires. One thread requests it, and the others wait. If no
        new token can be obtained, the previous one is used until it expires, and the next request is sent after a
        pause, so that not every caller waits for a service that does not respond."""
        with self._lock:
            is_usable = self._token is not None and self._clock() < self._expires_at
            if not self._is_valid() and not (is_usable and self._clock() < self._retry_at):
                try:
                    self._renew(http)
                except Unavailable:
                    if not is_usable:
                        raise
                    self._retry_at = self._clock() + _RETRY_SECONDS
            assert self._token is not None
            return self._token, datetime.fromtimestamp(self._expires_at, UTC)

    def _renew(self, http: "httpx2.Client") -> None:
        import httpx2

        endpoint = self.endpoint
        try:
            response = http.get(endpoint.url, params=endpoint.params, headers=endpoint.headers)
        except httpx2.HTTPError as error:
            raise _no_token(type(error).__name__) from None
        self._keep(response)

    def forget(self, token: str | None = None) -> None:
        """Discard a refused token; the next call obtains another one. If `token` is given, a newer one is kept."""
        if token is None or token == self._token:
            self._token = None

    def _is_valid(self) -> bool:
        return self._token is not None and self._clock() < self._expires_at - EARLY_SECONDS

    def _keep(self, response: "httpx2.Response") -> None:
        import httpx2

        if response.status_code != httpx2.codes.OK:
            raise _no_token(f"its endpoint responded with status {response.status_code}")
        try:
            content: Any = response.json()
            token, expires_on = content["access_token"], float(content["expires_on"])
        except (ValueError, TypeError, KeyError):  # the text is left out: it may contain a token
            raise _no_token("the response of its endpoint has no token") from None
        if not isinstance(token, str) or not token:
            raise _no_token("the response of its endpoint has no token")
        # Otherwise a token that expires within EARLY_SECONDS would be requested again for each call.
        self._token, self._expires_at = token, max(expires_on, self._clock() + EARLY_SECONDS + _MIN_SECONDS)


def _no_token(problem: str) -> Unavailable:
    return Unavailable(f"cannot get a token of the managed identity: {problem}", code="azure.no-token", hint=_HINT)
