"""`dagmaster commands`: direct commands of the platform."""

from typing import Any

import click

from dagmaster.cli.command import Group, State, input_options, pass_state
from dagmaster.errors import NotFound


@click.group(cls=Group)
def commands() -> None:
    """Run direct commands: publish metadata, rebuild the catalogue, reload workflows."""


@commands.command("ls")
@pass_state
def list_commands(state: State) -> None:
    """List the commands that you may run."""
    from dagmaster.cli.layer_pages import print_commands

    responses = state.client.commands()
    state.print_result({"commands": responses}, lambda: print_commands(state, responses))


@commands.command("show")
@click.argument("name")
@pass_state
def show_command(state: State, name: str) -> None:
    """Show what a command does, and its inputs."""
    from dagmaster.cli.layer_pages import print_command

    response = _description_of(state, name)
    state.print_result(response, lambda: print_command(state, response))


@commands.command("run")
@click.argument("name")
@input_options
@pass_state
def run_command(state: State, name: str, pairs: tuple[str, ...], params: str | None) -> None:
    """Run a command, and print its result. It takes at most ten seconds, and is safe to repeat.

    \b
    dagmaster commands run cache.invalidate
    dagmaster commands run asset.reindex -p asset=dem
    """
    from dagmaster.cli.submit import inputs_of, object_of

    inputs = object_of(params) if params else {}
    if pairs:
        inputs = inputs_of(_description_of(state, name)["inputs"], pairs, inputs)
    state.emit(state.client.run_command(name, inputs))


def _description_of(state: State, name: str) -> dict[str, Any]:
    from dagmaster.workflows.nearest import or_known

    responses = {response["name"]: response for response in state.client.commands()}
    if name not in responses:
        raise NotFound(
            f"no command that you may run is named '{name}'{or_known(name, responses)}",
            code="command.not-found",
            hint="see `dagmaster commands ls`",
        )
    return responses[name]
