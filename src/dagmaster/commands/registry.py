"""The registry of direct commands. To add one, write a function with this decorator:

    @command("metadata.publish", Permission.ASSETS_REVIEW)
    async def publish(context: CommandContext, request: LayerCommand) -> LayerCommandResult:
        \"\"\"One line that says what it does.

        More about it.\"\"\"

Its annotations are its inputs and outputs. It records one event: `context.decision()` has the name of the command as
action, and the caller as actor.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Final, TypeVar, get_type_hints

from pydantic import BaseModel

from dagmaster.access.caller import Caller
from dagmaster.access.permissions import Permission
from dagmaster.database.assets.layer_store import LayerStore
from dagmaster.database.assets.rows import Decision
from dagmaster.errors import NotFound, Unavailable
from dagmaster.settings import Settings

TIMEOUT_SECONDS: Final = 10.0
_MODULES = ("metadata", "assets", "platform")

Run = Callable[["CommandContext", Any], Awaitable[BaseModel]]
R = TypeVar("R", bound=Callable[..., Awaitable[BaseModel]])


@dataclass(frozen=True, slots=True)
class CommandContext:
    """What a command needs to run, and its caller."""

    settings: Settings
    dsn: str
    store: LayerStore
    caller: Caller
    name: str = ""
    request_id: str | None = None

    def decision(self, *, reason: str | None = None, **detail: Any) -> Decision:
        """The event that records the command."""
        return Decision(self.name, self.caller.name, reason, detail=detail, request_id=self.request_id)


@dataclass(frozen=True, slots=True)
class DirectCommand:
    """The caller needs `commands:run` and `permission`."""

    name: str
    permission: Permission
    summary: str
    description: str
    request: type[BaseModel]
    result: type[BaseModel]
    run: Run


_commands: dict[str, DirectCommand] = {}


def command(name: str, permission: Permission) -> Callable[[R], R]:
    """Register a function as a direct command."""

    def register(function: R) -> R:
        if name in _commands:
            raise RuntimeError(f"two commands are named {name}")
        hints = get_type_hints(function)
        request, result = hints["request"], hints["return"]
        text = inspect.getdoc(function) or ""
        summary, _, description = text.partition("\n")
        _commands[name] = DirectCommand(name, permission, summary, description.strip(), request, result, function)
        return function

    return register


@cache
def all_commands() -> Mapping[str, DirectCommand]:
    """All direct commands by name, in alphabetical order."""
    for module in _MODULES:
        import_module(f"dagmaster.commands.{module}")
    return dict(sorted(_commands.items()))


def find_command(name: str) -> DirectCommand:
    try:
        return all_commands()[name]
    except KeyError:
        raise NotFound(
            f"there is no command '{name}'", code="command.not-found", hint=f"commands are: {', '.join(all_commands())}"
        ) from None


async def run_command(
    command: DirectCommand, context: CommandContext, request: BaseModel, *, timeout_seconds: float = TIMEOUT_SECONDS
) -> BaseModel:
    """Run a command once, within the time limit. The caller may run it again, because it is idempotent."""
    try:
        async with asyncio.timeout(timeout_seconds):
            return await command.run(context, request)
    except TimeoutError:
        raise Unavailable(
            f"the command {command.name} did not end within {timeout_seconds:g} s",
            code="command.timeout",
            hint="run the command again, which is safe because it is idempotent",
        ) from None
