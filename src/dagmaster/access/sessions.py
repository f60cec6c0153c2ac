"""Sessions of people who signed in with a browser: `dgs_<session id>_<secret>`, in a cookie that scripts cannot read.

The id identifies the row of the session, which has the hash of the text, as for keys. The CSRF token is derived from
the text: the server returns it to pages of its own origin; those of other origins can neither read nor derive it.
"""

import base64
import hashlib
import hmac
from dataclasses import dataclass, field
from datetime import datetime

from dagmaster.access.secret_text import SecretFormat, SecretText

PREFIX = "dgs_"
_FORMAT = SecretFormat(PREFIX, id_length=16)


@dataclass(frozen=True, slots=True)
class SessionText(SecretText):
    """A session as its browser has it. The text is left out of `repr`."""

    session_id: str
    text: str = field(repr=False)

    @property
    def csrf_token(self) -> str:
        digest = hmac.new(self.text.encode(), b"csrf", hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")

    def has_csrf_token(self, sent: str) -> bool:
        return hmac.compare_digest(self.csrf_token.encode(), sent.encode("utf-8", "replace"))


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session as the database has it. A session that began with a key has the current name and scopes of the key."""

    session_id: str
    secret_hash: str
    key_id: str | None
    name: str
    scopes: list[str]
    platform_id: str | None
    expires_at: datetime
    is_valid: bool
    queues: list[str] | None = None  # the queues of the key


def new_session() -> SessionText:
    session_id = _FORMAT.new_id()
    return SessionText(session_id, _FORMAT.new_text(session_id))


def parse_session(text: str) -> SessionText | None:
    """The session in a text, or None if the text is not one."""
    session_id = _FORMAT.id_in(text)
    return SessionText(session_id, text) if session_id else None
