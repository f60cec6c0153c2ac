"""A storage account of Azure: its credentials, and the few requests that obstore does not make.

Requests have the token of the managed identity in a header. GDAL needs a signature in its URL instead, which is made
for one blob and one hour when a file is opened. For tests, the account key of Azurite replaces the token.
"""

import base64
import hashlib
import hmac
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import cache
from typing import Any, Final
from urllib.parse import quote, urlsplit

import httpx2

from dagmaster.managed_identity import IdentityEndpoint, ManagedIdentity
from dagmaster.settings import Settings
from dagmaster.storage.azure_sas import LIFETIME, SKEW, VERSION, AccountKey, DelegationKey, Grant, sign, time_text
from dagmaster.storage.location import Location, Zone
from dagmaster.storage.objects import no_container, refused, unavailable

RESOURCE: Final = "https://storage.azure.com/"
_TIMEOUT: Final = httpx2.Timeout(120.0, connect=10.0)
_TRIES: Final = 4
_TRANSIENT: Final = frozenset({408, 429, 500, 502, 503, 504})
_FIRST_PAUSE_SECONDS: Final = 0.25  # doubled after each failure
_MAX_PAUSE_SECONDS: Final = 10.0
_KEY_LIFETIME: Final = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class AzureResponse:
    status: int
    headers: Mapping[str, str]
    code: str  # Azure's name of an error


class AzureAccount:
    def __init__(
        self,
        name: str,
        endpoint: str,
        *,
        key: AccountKey | None = None,
        identity: ManagedIdentity | None = None,
        trusted: str | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`trusted` are certificate authorities, as PEM. Either `key` or `identity` is given."""
        self.name = name
        self.endpoint = endpoint
        self.trusted = trusted
        self.account_key = key
        self._identity = identity
        self._clock = clock
        self._sleep = sleep
        self._delegation_key: DelegationKey | None = None
        self._lock = threading.Lock()
        self._client: httpx2.Client | None = None

    @classmethod
    def of(cls, settings: Settings, zone: Zone) -> "AzureAccount":
        return cls.named(settings, settings.azure_account_of(zone) or "")

    @classmethod
    def named(cls, settings: Settings, name: str) -> "AzureAccount":
        key = AccountKey(settings.azure_storage_account_key) if settings.azure_storage_account_key else None
        return cls(
            name,
            settings.azure_storage_endpoint.replace("{account}", name),
            key=key,
            identity=None if key else ManagedIdentity(IdentityEndpoint.of(settings, RESOURCE)),
            trusted=settings.storage_ca_file.read_text() if settings.storage_ca_file else None,
        )

    def token(self) -> tuple[str, datetime]:
        assert self._identity is not None
        return self._identity.token_blocking(self._http())

    def sas(self, location: Location, permissions: str) -> tuple[str, datetime]:
        """A signature for one blob, and when it expires."""
        now = self._clock()
        grant = Grant(
            self.name,
            location.container,
            location.blob,
            permissions,
            now - SKEW,
            now + LIFETIME,
            is_https_only=self.endpoint.startswith("https:"),
        )
        return sign(grant, self.account_key or self._delegation()), grant.expiry

    def request(
        self,
        method: str,
        location: Location,
        params: Mapping[str, str],
        headers: Mapping[str, str] | None = None,
        content: bytes = b"",
    ) -> AzureResponse:
        """Write a blob or a part of one. Raises an error if access is refused, or if all attempts fail."""
        url = f"{self.endpoint}/{location.container}/{quote(location.blob, safe='/')}"
        digest = base64.b64encode(hashlib.md5(content).digest()).decode()  # noqa: S324  (a checksum)
        own = {"x-ms-version": VERSION, "Content-MD5": digest, **(headers or {})}
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in params.items())
        if self.account_key:
            signature, _ = self.sas(location, "cw")
            query = f"{query}&{signature}" if query else signature
        else:
            own |= self._bearer()
        response = self._send(method, f"{url}?{query}" if query else url, own, content, str(location))
        if response.code == "ContainerNotFound":
            raise no_container(location.container)
        return response

    def create_container(self, name: str) -> None:
        url = f"{self.endpoint}/{name}"
        headers = {"x-ms-version": VERSION}
        if self.account_key:
            headers |= _shared_key(self.name, self.account_key, url, self._clock())
        else:
            headers |= self._bearer()
        response = self._send("PUT", f"{url}?restype=container", headers, b"", f"the container {name}")
        if response.status not in (201, 409):
            raise unavailable(f"the container {name}", response.code or str(response.status))

    def _delegation(self) -> DelegationKey:
        with self._lock:
            now = self._clock()
            if self._delegation_key is None or self._delegation_key.expires_at < now + LIFETIME + SKEW:
                self._delegation_key = self._request_key(now)
            return self._delegation_key

    def _request_key(self, now: datetime) -> DelegationKey:
        start, expiry = time_text(now - SKEW), time_text(now + _KEY_LIFETIME)
        body = f"<KeyInfo><Start>{start}</Start><Expiry>{expiry}</Expiry></KeyInfo>".encode()
        url = f"{self.endpoint}/?restype=service&comp=userdelegationkey"
        headers = {"x-ms-version": VERSION, "Content-Type": "application/xml", **self._bearer()}
        account = f"the storage account {self.name}"
        try:
            response = self._http().post(url, headers=headers, content=body)
        except httpx2.HTTPError as error:
            raise unavailable(account, type(error).__name__) from None
        if response.status_code in (401, 403):
            raise refused(f"{account}; signing needs the role Storage Blob Delegator")
        if response.status_code != 200:
            raise unavailable(account, str(response.status_code))
        try:
            return DelegationKey.parse(response.content)
        except ValueError:  # the text is left out: it may contain the key
            raise unavailable(account, "its response is not a user delegation key") from None

    def _bearer(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token()[0]}"}

    def _send(self, method: str, url: str, headers: Mapping[str, str], content: bytes, subject: str) -> AzureResponse:
        """Send a request, and repeat it after a temporary failure, after a pause that grows and is not shorter than
        `Retry-After` (up to a limit). Every request may be repeated: a part replaces itself, and a repeated commit
        succeeds or finds that the object exists."""
        problem, pause_seconds = "", 0.0
        for attempt in range(_TRIES):
            if attempt:
                self._sleep(max(pause_seconds, _FIRST_PAUSE_SECONDS * 2 ** (attempt - 1)))
            pause_seconds = 0.0
            try:
                response = self._http().request(method, url, headers=dict(headers), content=content)
            except httpx2.HTTPError as error:
                problem = type(error).__name__
                continue
            code = response.headers.get("x-ms-error-code", "") or _code_in(response.content)
            if response.status_code in (401, 403):
                if self._identity:
                    self._identity.forget()
                raise refused(subject)
            if response.status_code not in _TRANSIENT:
                return AzureResponse(response.status_code, response.headers, code)
            problem = code or str(response.status_code)
            pause_seconds = _requested_pause(response.headers)
        raise unavailable(subject, problem)

    def _http(self) -> httpx2.Client:
        if self._client is None:
            # Proxies of the environment are not used: tokens of the identity must not pass them.
            self._client = httpx2.Client(timeout=_TIMEOUT, verify=_tls(self.trusted), trust_env=False)
        return self._client

    def __reduce__(self) -> Any:
        raise TypeError("the credentials of a storage account cannot be pickled")


@cache
def _tls(trusted: str | None) -> ssl.SSLContext:
    """One for all accounts: loading the certificates of the system takes longer than most requests."""
    context = ssl.create_default_context()
    if trusted:
        context.load_verify_locations(cadata=trusted)
    return context


def _requested_pause(headers: Mapping[str, str]) -> float:
    """The seconds in Retry-After, up to a limit; 0 if there are none."""
    seconds = headers.get("Retry-After", "")
    return min(float(seconds), _MAX_PAUSE_SECONDS) if seconds.isascii() and seconds.isdigit() else 0.0


def _code_in(content: bytes) -> str:
    """The code of an error document: Azurite does not send the header."""
    start, end = content.find(b"<Code>"), content.find(b"</Code>")
    return content[start + 6 : end].decode("ascii", "replace")[:80] if 0 <= start < end else ""


def _shared_key(account: str, key: AccountKey, url: str, now: datetime) -> dict[str, str]:
    """Headers of a request that creates a container in Azurite: a signature of one blob does not permit it."""
    date = format_datetime(now.astimezone(UTC), usegmt=True)
    resource = f"/{account}{urlsplit(url).path}\nrestype:container"
    text = "\n".join(["PUT", *[""] * 11, f"x-ms-date:{date}", f"x-ms-version:{VERSION}", resource])
    signature = base64.b64encode(hmac.digest(base64.b64decode(key.value), text.encode(), hashlib.sha256)).decode()
    return {"x-ms-date": date, "Authorization": f"SharedKey {account}:{signature}"}
