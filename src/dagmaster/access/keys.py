"""API keys as text: `dgm_<key id>_<secret>`.

The prefix lets people and secret scanners recognise a key. The id finds its row; it is not secret. The secret has 256
random bits, so its SHA-256 needs neither salt nor a slow hash: nobody can guess it from the hash.
"""

import hashlib
import hmac
import re
import secrets
import string
from dataclasses import dataclass, field

from dagmaster.errors import NotFound

PREFIX = "dgm_"
_ID_CHARACTERS = string.ascii_lowercase + string.digits
_ID_LENGTH = 12
_SECRET_BYTES = 32
_KEY = re.compile(rf"{PREFIX}([a-z0-9]{{{_ID_LENGTH}}})_([A-Za-z0-9_-]{{43}})")
_KEY_ID = re.compile(rf"[a-z0-9]{{{_ID_LENGTH}}}")


@dataclass(frozen=True, slots=True)
class KeyText:
    """A key as its owner has it. The text is left out of `repr`."""

    key_id: str
    text: str = field(repr=False)

    @property
    def hash(self) -> str:
        """What the database stores in place of the key."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def has_hash(self, stored: str) -> bool:
        """In a time that does not depend on where they differ."""
        return hmac.compare_digest(self.hash, stored)


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A key as the database has it, with the hashes that are accepted now."""

    key_id: str
    name: str
    scopes: list[str]
    platform_id: str | None
    secret_hash: str
    previous_hash: str | None
    is_expired: bool
    is_revoked: bool


def new_key(key_id: str | None = None) -> KeyText:
    """A new key, or a new secret for an existing one."""
    key_id = key_id or "".join(secrets.choice(_ID_CHARACTERS) for _ in range(_ID_LENGTH))
    return KeyText(key_id, f"{PREFIX}{key_id}_{secrets.token_urlsafe(_SECRET_BYTES)}")


def parse_key(text: str) -> KeyText | None:
    """The key in a text, or None if the text is not a key."""
    match = _KEY.fullmatch(text)
    return KeyText(match[1], text) if match else None


def require_key_id(key_id: str) -> None:
    """The message does not repeat the text: it may be a whole key."""
    if not _KEY_ID.fullmatch(key_id):
        raise NotFound("this is not the id of a key", code="key.not-found", hint="`dagmaster keys ls` lists them")
