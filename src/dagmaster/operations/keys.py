"""Create, rotate and revoke API keys. The text of a key is returned once and stored nowhere."""

from collections.abc import Iterable

from dagmaster.access.caller import RESERVED_NAMES, Scope
from dagmaster.access.keys import KEY_ID, KeyText, new_key
from dagmaster.client.models.assets import CreatedKey, KeyInfo, KeyRequest
from dagmaster.database.assets.keys import Change, KeyStore, NewKey
from dagmaster.errors import InvalidRequest, NotFound
from dagmaster.observe.redaction import redact

DAY_SECONDS = 86_400.0
FIRST_ADMIN = "first-admin"


async def create_key(store: KeyStore, request: KeyRequest, change: Change) -> CreatedKey:
    text = new_key()
    return _shown(await store.create(_checked(request, text), change), text)


async def create_first_key(store: KeyStore, change: Change) -> CreatedKey | None:
    """A key for an administrator, if no key was ever created."""
    text = new_key()
    request = KeyRequest(name=FIRST_ADMIN, scopes=[Scope.ADMIN])
    info = await store.create_first(_checked(request, text), change)
    return _shown(info, text) if info else None


async def rotate_key(
    store: KeyStore, key_id: str, change: Change, *, overlap_hours: float, expires_in_days: float | None = None
) -> CreatedKey:
    """Give a key a new secret. The one before is accepted for `overlap_hours` more."""
    text = new_key(_checked_id(key_id))
    info = await store.rotate(
        key_id,
        text.hash,
        overlap_seconds=overlap_hours * 3600,
        expires_in_seconds=_seconds(expires_in_days),
        change=change,
    )
    return _shown(info, text)


async def revoke_key(store: KeyStore, key_id: str, change: Change) -> KeyInfo:
    return await store.revoke(_checked_id(key_id), change)


def _checked(request: KeyRequest, text: KeyText) -> NewKey:
    scopes = _checked_scopes(request.scopes)
    if (Scope.B2B in scopes) != (request.platform_id is not None):
        raise InvalidRequest(
            "a key with the scope b2b belongs to one platform, and other keys belong to none",
            code="key.platform",
            hint="give `platform_id` with the scope b2b only",
        )
    name = request.name
    is_plain = name.isprintable() and name == name.strip() == redact(name) and ":" not in name
    if name in RESERVED_NAMES or not is_plain:
        raise InvalidRequest(
            f"{name!r} cannot be the name of a key",
            code="key.name",
            hint="names are printable text without a colon; "
            f"these have another meaning: {', '.join(sorted(RESERVED_NAMES))}",
        )
    return NewKey(
        text.key_id,
        request.name,
        scopes,
        text.hash,
        platform_id=request.platform_id,
        expires_in_seconds=_seconds(request.expires_in_days),
    )


def _checked_scopes(names: Iterable[str]) -> tuple[Scope, ...]:
    unknown = sorted(set(names) - set(Scope))
    if unknown:
        raise InvalidRequest(
            f"unknown scope: {', '.join(unknown)}", code="key.scope", hint=f"scopes are {', '.join(Scope)}"
        )
    return tuple(scope for scope in Scope if scope in names)


def _checked_id(key_id: str) -> str:
    if not KEY_ID.fullmatch(key_id):
        # Not repeated: it may be a whole key.
        raise NotFound("this is not the id of a key", code="key.not-found", hint="`dagmaster keys ls` lists them")
    return key_id


def _seconds(days: float | None) -> float | None:
    return None if days is None else days * DAY_SECONDS


def _shown(info: KeyInfo, text: KeyText) -> CreatedKey:
    return CreatedKey(**info.model_dump(), key=text.text)
