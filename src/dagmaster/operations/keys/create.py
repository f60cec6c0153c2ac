"""Create a key, and the first key of an installation."""

from collections.abc import Iterable

from dagmaster.access.caller import RESERVED_NAMES, Scope
from dagmaster.access.keys import KeyText, new_key
from dagmaster.client.models.assets import CreatedKey, KeyInfo, KeyRequest
from dagmaster.database.assets.keys import KeyChange, KeyStore, NewKey
from dagmaster.errors import InvalidRequest
from dagmaster.observe.redaction import redact

DAY_SECONDS = 86_400.0
FIRST_ADMIN = "first-admin"


async def create_key(store: KeyStore, request: KeyRequest, change: KeyChange) -> CreatedKey:
    text = new_key()
    return with_text(await store.create(_checked(request, text), change), text)


async def create_first_key(store: KeyStore, change: KeyChange) -> CreatedKey | None:
    """A key for an administrator, if no key was ever created."""
    text = new_key()
    request = KeyRequest(name=FIRST_ADMIN, scopes=[Scope.ADMIN])
    info = await store.create_first(_checked(request, text), change)
    return with_text(info, text) if info else None


def _checked(request: KeyRequest, text: KeyText) -> NewKey:
    scopes = _checked_scopes(request.scopes)
    if (Scope.B2B in scopes) != (request.platform_id is not None):
        raise InvalidRequest(
            "`platform_id` is required for the scope b2b, and not allowed for other scopes",
            code="key.platform",
            hint="set `platform_id` with the scope b2b only",
        )
    if request.queues is not None and scopes != (Scope.WORKER,):
        raise InvalidRequest(
            "`queues` is allowed only if worker is the only scope of the key",
            code="key.queues",
            hint="set `queues` with the scope worker only",
        )
    name = request.name
    is_plain = name.isprintable() and name == name.strip() == redact(name) and ":" not in name
    if name in RESERVED_NAMES or not is_plain:
        raise InvalidRequest(
            f"{name!r} cannot be the name of a key",
            code="key.name",
            hint="names are printable text without a colon; "
            f"these names are reserved: {', '.join(sorted(RESERVED_NAMES))}",
        )
    return NewKey(
        text.key_id,
        request.name,
        scopes,
        text.hash,
        platform_id=request.platform_id,
        expires_in_seconds=seconds_in(request.expires_in_days),
        queues=None if request.queues is None else tuple(dict.fromkeys(request.queues)),
    )


def _checked_scopes(names: Iterable[str]) -> tuple[Scope, ...]:
    unknown = sorted(set(names) - set(Scope))
    if unknown:
        raise InvalidRequest(
            f"unknown scope: {', '.join(unknown)}", code="key.scope", hint=f"scopes are {', '.join(Scope)}"
        )
    return tuple(scope for scope in Scope if scope in names)


def seconds_in(days: float | None) -> float | None:
    return None if days is None else days * DAY_SECONDS


def with_text(info: KeyInfo, text: KeyText) -> CreatedKey:
    """The key with its text, which its owner gets only once."""
    return CreatedKey(**info.model_dump(), key=text.text)
