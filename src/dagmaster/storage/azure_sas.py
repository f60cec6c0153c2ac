"""Shared access signatures (SAS) of Azure: their parameters and their signature. Pure functions.

A SAS permits the operations in `permissions` on one blob, for an hour. It is signed with a user delegation key, which a
managed identity obtains, or with the account key of Azurite.
https://learn.microsoft.com/rest/api/storageservices/create-user-delegation-sas
"""

import base64
import hashlib
import hmac
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import urlencode
from xml.etree import ElementTree

VERSION: Final = "2021-12-02"
LIFETIME: Final = timedelta(hours=1)
# The clocks of Azure and of this machine may differ.
SKEW: Final = timedelta(minutes=5)
_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True, slots=True)
class AccountKey:
    value: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class DelegationKey:
    """Azure's response to a request for a user delegation key."""

    object_id: str
    tenant_id: str
    start: str
    expiry: str
    service: str
    version: str
    value: str = field(repr=False)

    @classmethod
    def parse(cls, document: bytes) -> "DelegationKey":
        """Raises ValueError if it is not such a document."""
        try:
            root = ElementTree.fromstring(document)  # noqa: S314  (the parser of Python 3.11 limits entities)
        except ElementTree.ParseError as error:
            raise ValueError("not XML") from error
        names = ("SignedOid", "SignedTid", "SignedStart", "SignedExpiry", "SignedService", "SignedVersion", "Value")
        texts = [root.findtext(name) for name in names]
        if None in texts:
            raise ValueError("a part of the key is missing")
        return cls(*(text or "" for text in texts))

    @property
    def expires_at(self) -> datetime:
        return datetime.strptime(self.expiry, _TIME).replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Grant:
    account: str
    container: str
    blob: str
    permissions: str  # in the order that Azure requires: r, a, c, w, d
    start: datetime
    expiry: datetime
    is_https_only: bool = True

    @property
    def resource(self) -> str:
        return f"/blob/{self.account}/{self.container}/{self.blob}"


def sign(grant: Grant, key: AccountKey | DelegationKey) -> str:
    """The query of a URL."""
    protocol = "https" if grant.is_https_only else "https,http"
    start, expiry = time_text(grant.start), time_text(grant.expiry)
    query = {"sp": grant.permissions, "st": start, "se": expiry, "spr": protocol, "sv": VERSION, "sr": "b"}
    lines = [grant.permissions, start, expiry, grant.resource]
    if isinstance(key, DelegationKey):
        own = [key.object_id, key.tenant_id, key.start, key.expiry, key.service, key.version]
        query |= dict(zip(("skoid", "sktid", "skt", "ske", "sks", "skv"), own, strict=True))
        lines += [*own, "", "", ""]  # no authorised or unauthorised user, no correlation id
    else:
        lines.append("")  # no stored policy
    # No IP range, snapshot or encryption scope, and none of five headers of the response is replaced.
    lines += ["", protocol, VERSION, "b", "", "", "", "", "", "", ""]
    return urlencode({**query, "sig": _signature(key.value, "\n".join(lines))})


def time_text(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime(_TIME)


def _signature(key: str, text: str) -> str:
    return base64.b64encode(hmac.digest(base64.b64decode(key), text.encode(), hashlib.sha256)).decode()
