"""Tokens of the managed identity of this machine: from the endpoint that Azure App Service and Container Apps set, or
from the metadata service of a virtual machine. A token is kept in memory until shortly before it expires, nowhere else.

`token` is for event loops, `token_blocking` for threads; one object is used in one of the two ways.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import httpx2

from dagmaster.errors import Unavailable
from dagmaster.settings import Settings

METADATA_SERVICE: Final = "http://169.254.169.254/metadata/identity/oauth2/token"
EARLY_SECONDS: Final = 300.0  # a token is renewed so long before it expires
_SHORTEST_SECONDS: Final = 30.0
_HINT: Final = (
    "give this machine a managed identity with the roles that it needs; if it has several, set AZURE_CLIENT_ID"
)


@dataclass(frozen=True, slots=True)
class IdentityEndpoint:
    """Where tokens are obtained. `header` is a secret."""

    url: str
    params: dict[str, str]
    headers: dict[str, str] = field(repr=False)

    @classmethod
    def of(cls, settings: Settings, resource: str) -> "IdentityEndpoint":
        params = {"resource": resource}
        if settings.azure_client_id:
            params["client_id"] = settings.azure_client_id
        if settings.identity_endpoint and settings.identity_header:
            params["api-version"] = "2019-08-01"
            return cls(settings.identity_endpoint, params, {"X-IDENTITY-HEADER": settings.identity_header})
        params["api-version"] = "2018-02-01"
        return cls(settings.identity_endpoint or METADATA_SERVICE, params, {"Metadata": "true"})


class ManagedIdentity:
    def __init__(self, endpoint: IdentityEndpoint, clock: Callable[[], float] = time.time) -> None:
        self._endpoint = endpoint
        self._clock = clock
        self._token: str | None = None
        self._expires_at = 0.0
        self._lock = threading.Lock()

    async def token(self, http: httpx2.AsyncClient) -> str:
        """A token that is valid for a while."""
        if not self._is_valid():
            endpoint = self._endpoint
            try:
                response = await http.get(endpoint.url, params=endpoint.params, headers=endpoint.headers)
            except httpx2.HTTPError as error:
                raise _no_token(type(error).__name__) from None
            self._keep(response)
        assert self._token is not None
        return self._token

    def token_blocking(self, http: httpx2.Client) -> tuple[str, datetime]:
        """A token that is valid for a while, and when it expires. Threads wait for the one that asks for it."""
        with self._lock:
            if not self._is_valid():
                endpoint = self._endpoint
                try:
                    response = http.get(endpoint.url, params=endpoint.params, headers=endpoint.headers)
                except httpx2.HTTPError as error:
                    raise _no_token(type(error).__name__) from None
                self._keep(response)
            assert self._token is not None
            return self._token, datetime.fromtimestamp(self._expires_at, UTC)

    def forget(self) -> None:
        """The token was refused: obtain another one."""
        self._token = None

    def _is_valid(self) -> bool:
        return self._token is not None and self._clock() < self._expires_at - EARLY_SECONDS

    def _keep(self, response: httpx2.Response) -> None:
        if response.status_code != httpx2.codes.OK:
            raise _no_token(f"it answered {response.status_code}")
        try:
            answer: Any = response.json()
            token, expires_on = answer["access_token"], float(answer["expires_on"])
        except (ValueError, TypeError, KeyError):  # the text is left out: it may contain a token
            raise _no_token("its answer has no token") from None
        if not isinstance(token, str) or not token:
            raise _no_token("its answer has no token")
        # A token that expires within the reserve would otherwise be requested for each call.
        self._token, self._expires_at = token, max(expires_on, self._clock() + EARLY_SECONDS + _SHORTEST_SECONDS)


def _no_token(problem: str) -> Unavailable:
    return Unavailable(f"the managed identity gives no token: {problem}", code="azure.no-token", hint=_HINT)
