"""API keys: `dgm_<key id>_<secret>`."""

from dataclasses import dataclass, field

from dagmaster.access.secret_text import SecretFormat, SecretText
from dagmaster.errors import NotFound

PREFIX = "dgm_"
_FORMAT = SecretFormat(PREFIX, id_length=12)


@dataclass(frozen=True, slots=True)
class KeyText(SecretText):
    """A key as its owner has it. The text is left out of `repr`."""

    key_id: str
    text: str = field(repr=False)


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
    queues: list[str] | None = None  # a worker with the key claims tasks of these queues only; None: of all


def new_key(key_id: str | None = None) -> KeyText:
    """A new key, or a new secret for an existing one."""
    key_id = key_id or _FORMAT.new_id()
    return KeyText(key_id, _FORMAT.new_text(key_id))


def parse_key(text: str) -> KeyText | None:
    """The key in a text, or None if the text is not a key."""
    key_id = _FORMAT.id_in(text)
    return KeyText(key_id, text) if key_id else None


def require_key_id(key_id: str) -> None:
    """Refuse a text that is not the id of a key. The message does not repeat the text: it may be a whole key."""
    if not _FORMAT.is_id(key_id):
        raise NotFound("this is not the id of a key", code="key.not-found", hint="`dagmaster keys ls` lists the ids")
