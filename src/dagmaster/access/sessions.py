"""Sessions of people who signed in with a browser: `dgs_<session id>_<secret>`, in a cookie that scripts cannot read.

The id finds the session's row, and the hash of the text is compared with it, as for keys. The CSRF token is derived
from the text: the server tells it to pages of its own origin, and pages of other origins can neither ask nor derive it.
"""

import base64
import hashlib
import hmac
import re
import secrets
import string
from dataclasses import dataclass, field
from datetime import datetime

PREFIX = "dgs_"
_ID_CHARACTERS = string.ascii_lowercase + string.digits
_ID_LENGTH = 16
_SECRET_BYTES = 32
_SESSION = re.compile(rf"{PREFIX}([a-z0-9]{{{_ID_LENGTH}}})_([A-Za-z0-9_-]{{43}})")


@dataclass(frozen=True, slots=True)
class SessionText:
    """A session as its browser has it. The text is left out of `repr`."""

    session_id: str
    text: str = field(repr=False)

    @property
    def hash(self) -> str:
        """What the database stores in place of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def has_hash(self, stored: str) -> bool:
        """In a time that does not depend on where they differ."""
        return hmac.compare_digest(self.hash, stored)

    @property
    def csrf_token(self) -> str:
        digest = hmac.new(self.text.encode(), b"csrf", hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")

    def has_csrf_token(self, sent: str) -> bool:
        return hmac.compare_digest(self.csrf_token.encode(), sent.encode("utf-8", "replace"))


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session as the database has it. Scopes and name of a session by key are those that the key has now."""

    session_id: str
    secret_hash: str
    key_id: str | None
    name: str
    scopes: list[str]
    platform_id: str | None
    expires_at: datetime
    is_valid: bool


def new_session() -> SessionText:
    session_id = "".join(secrets.choice(_ID_CHARACTERS) for _ in range(_ID_LENGTH))
    return SessionText(session_id, f"{PREFIX}{session_id}_{secrets.token_urlsafe(_SECRET_BYTES)}")


def parse_session(text: str) -> SessionText | None:
    """The session in a text, or None if the text is not one."""
    match = _SESSION.fullmatch(text)
    return SessionText(match[1], text) if match else None
