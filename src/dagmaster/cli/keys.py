"""`dagmaster keys`: API keys and their scopes."""

from typing import Any

import click

from dagmaster.access.caller import Scope
from dagmaster.cli.command import Group, State, page_options, pass_state, reason_option, words_option
from dagmaster.cli.completion import platform_option
from dagmaster.errors import InvalidRequest

_MAX_KEYS = 10_000
_expires = click.option(
    "--expires-days", type=click.FloatRange(0, 3650, min_open=True), metavar="DAYS", help="Days until the key expires"
)
_reason = reason_option("recorded with your name")


@click.group(cls=Group)
def keys() -> None:
    """Create, list, rotate and revoke API keys."""


@keys.command("create")
@click.argument("name")
@words_option("--scope", "scopes", words=[scope.value for scope in Scope], text="What the key may do; may be repeated")
@platform_option("Platform that the key belongs to; only with the scope b2b")
@click.option(
    "--queue",
    "queues",
    metavar="QUEUE",
    multiple=True,
    help="A worker with this key claims tasks of this queue only; may be repeated; only with the scope worker",
)
@_expires
@click.option(
    "--admin",
    is_flag=True,
    help="Create a key with the scope admin directly in the database (DATABASE_URL, or the platform on this machine); "
    "for example for the first key",
)
@pass_state
def create_key(
    state: State,
    *,
    name: str,
    scopes: tuple[str, ...] | None,
    platform_id: str | None,
    queues: tuple[str, ...],
    expires_days: float | None,
    admin: bool,
) -> None:
    """Create a key, and print it. It is shown only once: the platform stores a hash.

    NAME is recorded as the actor of everything that the key changes.
    """
    if admin:
        state.require_no_server("--admin creates the key in the database", "set DATABASE_URL")
        if scopes or platform_id or queues:
            message = "--admin creates a key with the scope admin: --scope, --platform and --queue do not apply"
            raise InvalidRequest(message, code="usage")
        _print_created(state, _create_in_database(state, name, expires_days))
        return
    if not scopes:
        raise InvalidRequest("give at least one --scope", code="usage", hint=f"scopes are {', '.join(Scope)}")
    request: dict[str, Any] = {"name": name, "scopes": list(scopes), "platform_id": platform_id}
    request |= {"expires_in_days": expires_days} | ({"queues": list(queues)} if queues else {})
    _print_created(state, state.client.create_key(request))


def _create_in_database(state: State, name: str, expires_days: float | None) -> dict[str, Any]:
    import asyncio
    import getpass

    from dagmaster.client.models.assets import KeyRequest
    from dagmaster.database.assets.keys import KeyChange, KeyStore
    from dagmaster.operations.keys import create_key as create

    request = KeyRequest(name=name, scopes=[Scope.ADMIN], expires_in_days=expires_days)

    async def created() -> dict[str, Any]:
        async with KeyStore(state.dsn) as store:
            key = await create(store, request, KeyChange(f"database:{getpass.getuser()}"[:64]))
            return key.model_dump(mode="json")

    return asyncio.run(created())


@keys.command("ls")
@click.option("--all", "with_revoked", is_flag=True, help="Also list keys that were revoked")
@page_options(_MAX_KEYS, default=50, entry="key")
@pass_state
def list_keys(state: State, *, with_revoked: bool, after: str | None, limit: int) -> None:
    """List keys, newest first: their scopes, when they expire, and when they were last used."""
    state.print_page("keys", state.client.keys(limit, after, with_revoked=with_revoked), _print_keys)


@keys.command("rotate")
@click.argument("key_id")
@click.option(
    "--overlap-hours",
    type=click.FloatRange(0, 24 * 90),
    default=24.0,
    show_default=True,
    metavar="HOURS",
    help="The previous secret is accepted for this long",
)
@_expires
@_reason
@pass_state
def rotate_key(
    state: State, *, key_id: str, overlap_hours: float, expires_days: float | None, reason: str | None
) -> None:
    """Give a key a new secret, and print it. KEY_ID is the part of the key between `dgm_` and the next `_`; `keys ls`
    prints it."""
    request = {"overlap_hours": overlap_hours, "expires_in_days": expires_days, "reason": reason}
    response = state.client.rotate_key(key_id, request)
    _print_created(state, response)
    if response.get("previous_until"):
        state.comment(f"the previous secret is accepted until {response['previous_until']}")


@keys.command("revoke")
@click.argument("key_id")
@_reason
@pass_state
def revoke_key(state: State, *, key_id: str, reason: str | None) -> None:
    """Revoke a key: it is refused from the next request on, and cannot be restored."""
    response = state.client.revoke_key(key_id, {"reason": reason})
    state.print_result(response, f"the key {response['key_id']} ({response['name']}) is revoked")


def _print_created(state: State, response: dict[str, Any]) -> None:
    state.print_result(response, response["key"])
    scopes = ", ".join(response["scopes"])
    state.comment(
        f"this is the key {response['name']} (id {response['key_id']}; scopes: {scopes}); it is not shown again"
    )


def _print_keys(state: State, page: list[dict[str, Any]]) -> None:
    from dagmaster.cli.tables import Column, at, print_records
    from dagmaster.client.escaping import one_line
    from dagmaster.client.models.assets import KeyInfo

    def scopes(key: KeyInfo) -> str:
        limits = (f" of {key.platform_id}" if key.platform_id else "") + (
            f" on {one_line(', '.join(key.queues))}" if key.queues else ""
        )
        return ", ".join(key.scopes) + limits

    def end(key: KeyInfo) -> str:
        return "revoked" if key.revoked_at else at(key.expires_at) if key.expires_at else "–"

    columns: list[Column[KeyInfo]] = [
        Column("id", lambda key: key.key_id),
        Column("name", lambda key: one_line(key.name)),
        Column("scopes", scopes),
        Column("expires (UTC)", end, drop=1),
        Column("last used (UTC)", lambda key: at(key.last_used_at) if key.last_used_at else "never", drop=2),
        Column("created by", lambda key: one_line(key.created_by), drop=3),
    ]
    print_records(state, columns, KeyInfo, page)
