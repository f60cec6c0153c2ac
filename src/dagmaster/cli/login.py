"""`dagmaster login` and `logout`: store or remove the key that commands send."""

import sys

import click

from dagmaster.cli.command import Command, State, pass_state
from dagmaster.errors import InvalidRequest


@click.command(cls=Command)
@pass_state
def login(state: State) -> None:
    """Check a key, and store it for later commands.

    The key is read from --key, DAGMASTER_KEY, standard input or the terminal. It is stored in a file that only you may
    read, and sent to this platform only. A key in a command line is visible to other users of the machine: prefer the
    prompt.
    """
    from dagmaster.client.credentials import key_for, store_key

    key = state.key or state.settings.api_key or _read_key()
    state.key = key_for(state.settings, chosen=key)
    caller = state.client.caller()
    if caller["is_authentication_enabled"]:
        file = store_key(state.settings, state.server, key)
    else:
        raise InvalidRequest(
            "authentication is disabled on this platform: commands need no key",
            code="login.not-needed",
            hint="to require keys, start the platform with AUTH_ENABLED=true",
        )
    if state.json:
        state.emit({**caller, "file": str(file)})
        return
    platform = f" of the platform {caller['platform_id']}" if caller.get("platform_id") else ""
    state.say(f"logged in as {caller['name']}{platform}, with the scopes: {', '.join(caller['scopes'])}")
    state.note(f"the key is stored in {file}")


@click.command(cls=Command)
@pass_state
def logout(state: State) -> None:
    """Delete the stored key of this platform. The key itself stays valid; `dagmaster keys revoke` revokes it."""
    from dagmaster.client.credentials import forget_key

    was_stored = forget_key(state.settings, state.server)
    state.print_result(
        {"was_stored": was_stored}, "the stored key is removed" if was_stored else "no key was stored for this platform"
    )


def _read_key() -> str:
    text = click.prompt("Key", hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.readline()
    key = text.strip()
    if not key:
        raise InvalidRequest("no key was given", code="usage", hint="pass it on standard input, or set DAGMASTER_KEY")
    return str(key)
