"""Signed links: a token in a URL with which anyone can read one version until it expires.

    dgl1.<key id>.<asset id>.<ordinal>.<revision, or 0>.<d or p>.<expiry, Unix seconds>.<HMAC-SHA-256, base64url>

`d` gives access to published data. `p` gives access to a preview of a revision, which need not be approved; such a
token always names the revision. Programs that cannot send a header (QGIS, browsers) use signed links. Nothing is
stored: what a token may read is decided at each request.
"""

import base64
import hashlib
import hmac
import re
from dataclasses import dataclass

PARAMETER = "token"
# Longer texts in a URL are not tokens.
MAX_TOKEN_LENGTH = 200
_FORMAT = "dgl1"
_TOKEN = re.compile(
    rf"{_FORMAT}\.(?P<key_id>[A-Za-z0-9]{{1,16}})\.(?P<asset_id>[0-9a-f]{{32}})\.(?P<ordinal>\d{{1,9}})"
    r"\.(?P<revision>\d{1,9})\.(?P<kind>[dp])\.(?P<expires_at>\d{1,12})\.(?P<signature>[A-Za-z0-9_-]{43})",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class VersionLink:
    """What a token gives access to: this `revision`, or without it the one that is served. A link to a preview always
    has a `revision`."""

    asset_id: str
    ordinal: int
    expires_at: int
    revision: int | None = None
    is_preview: bool = False

    def __post_init__(self) -> None:
        if self.is_preview and self.revision is None:
            raise ValueError("a link to a preview must name the revision")

    def is_expired(self, now: float) -> bool:
        return now >= self.expires_at


def sign(link: VersionLink, key_id: str, secret: str) -> str:
    """The token of a link."""
    kind = "p" if link.is_preview else "d"
    text = f"{_FORMAT}.{key_id}.{link.asset_id}.{link.ordinal}.{link.revision or 0}.{kind}.{link.expires_at}"
    return f"{text}.{_signature(text, secret)}"


def key_id_of(token: str) -> str | None:
    """The id of the key that a token says it was signed with; None if it is not the token of a link."""
    match = _match(token)
    return match["key_id"] if match else None


def verified(token: str, secret: str) -> VersionLink | None:
    """The link of a token that was signed with this secret; None otherwise. It may have expired."""
    match = _match(token)
    text = token.rpartition(".")[0]
    if match is None or not hmac.compare_digest(match["signature"], _signature(text, secret)):
        return None
    revision, is_preview = int(match["revision"]) or None, match["kind"] == "p"
    if is_preview and revision is None:
        return None
    return VersionLink(match["asset_id"], int(match["ordinal"]), int(match["expires_at"]), revision, is_preview)


def _match(token: str) -> re.Match[str] | None:
    return _TOKEN.fullmatch(token) if len(token) <= MAX_TOKEN_LENGTH else None


def _signature(text: str, secret: str) -> str:
    digest = hmac.new(secret.encode(), text.encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")
