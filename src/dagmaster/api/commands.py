"""Direct commands: operations whose result the caller waits for. Each has a permission of its own."""

from typing import Annotated, Any

import pydantic
from fastapi import APIRouter, Body, Depends, Path, Request

from dagmaster.access.caller import Caller
from dagmaster.access.permissions import Permission, may
from dagmaster.api.problems import responses
from dagmaster.api.services import Services
from dagmaster.client.models.commands import CommandInfo
from dagmaster.client.models.pages import Page
from dagmaster.commands.registry import CommandContext, DirectCommand, all_commands, find_command, run_command
from dagmaster.errors import InvalidRequest
from dagmaster.web.authentication import needs, require

router = APIRouter(prefix="/commands", tags=["commands"])

CommandCaller = Annotated[Caller, Depends(needs(Permission.COMMANDS_RUN))]


@router.get(
    "", operation_id="list_commands", summary="List the commands that the caller may run", responses=responses()
)
async def list_commands(caller: CommandCaller) -> Page[CommandInfo]:
    """All commands are on one page, with the JSON schemas of their inputs and outputs."""
    allowed = [command for command in all_commands().values() if may(caller, command.permission)]
    return Page[CommandInfo](items=[_described(command) for command in allowed], next=None)


@router.post(
    "/{name}",
    operation_id="run_command",
    summary="Run a direct command",
    responses={
        200: {"description": "The result of the command, as `GET /commands` describes it"},
        **responses(404, 409, 412, 422, 504),
    },
)
async def run(
    *,
    services: Services,
    caller: CommandCaller,
    request: Request,
    name: Annotated[str, Path(max_length=64, examples=["cache.invalidate"])],
    inputs: Annotated[dict[str, Any] | None, Body(examples=[{"wait_seconds": 2}])] = None,
) -> dict[str, Any]:
    """Waits until the command has ended; after ten seconds it fails. Commands are idempotent, and each is recorded in
    the audit log."""
    command = find_command(name)
    require(caller, command.permission)
    context = CommandContext(
        services.settings, services.dsn, services.assets, caller, command.name, request.state.request_id
    )
    result = await run_command(command, context, _parsed(command, inputs or {}))
    return result.model_dump(mode="json")


def _described(command: DirectCommand) -> CommandInfo:
    return CommandInfo(
        name=command.name,
        summary=command.summary,
        description=command.description,
        permission=command.permission,
        inputs=command.request.model_json_schema(),
        outputs=command.result.model_json_schema(mode="serialization"),
    )


def _parsed(command: DirectCommand, inputs: dict[str, Any]) -> pydantic.BaseModel:
    try:
        return command.request.model_validate(inputs)
    except pydantic.ValidationError as error:
        problems = error.errors(include_url=False, include_input=False, include_context=False)
        messages = "; ".join(f"{'.'.join(map(str, each['loc'])) or 'inputs'}: {each['msg']}" for each in problems[:5])
        raise InvalidRequest(
            f"the inputs of {command.name} are not valid: {messages}",
            code="command.invalid-inputs",
            hint=f"`dagmaster commands show {command.name}` lists the inputs",
            problems=[{"field": ".".join(map(str, each["loc"])), "problem": each["msg"]} for each in problems[:50]],
        ) from None
