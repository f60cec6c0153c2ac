"""Secrets as text: `<prefix><id>_<secret>`, for keys and sessions.

The prefix lets people and secret scanners recognise a secret. The id identifies its row, and is not secret. The secret
has 256 random bits, so that it cannot be guessed from its SHA-256: neither salt nor a slow hash is needed.
"""

import hashlib
import hmac
import re
import secrets
import string
from dataclasses import dataclass

_ID_CHARACTERS = string.ascii_lowercase + string.digits
_SECRET_BYTES = 32


class SecretText:
    """The text of a key or session, as its owner has it."""

    __slots__ = ()
    text: str

    @property
    def hash(self) -> str:
        """What the database stores in place of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def has_hash(self, stored: str) -> bool:
        """Whether the text has this hash; compared in constant time."""
        return hmac.compare_digest(self.hash, stored)


@dataclass(frozen=True)
class SecretFormat:
    prefix: str
    id_length: int

    def new_id(self) -> str:
        return "".join(secrets.choice(_ID_CHARACTERS) for _ in range(self.id_length))

    def new_text(self, identity: str) -> str:
        return f"{self.prefix}{identity}_{secrets.token_urlsafe(_SECRET_BYTES)}"

    def is_id(self, text: str) -> bool:
        return re.fullmatch(self._id, text) is not None

    def id_in(self, text: str) -> str | None:
        """The id in a text of this format, or None if the text has another format."""
        match = re.fullmatch(rf"{self.prefix}({self._id})_[A-Za-z0-9_-]{{43}}", text)
        return match[1] if match else None

    @property
    def _id(self) -> str:
        return f"[a-z0-9]{{{self.id_length}}}"
