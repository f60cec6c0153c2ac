"""How layers and direct commands are printed."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dagmaster.cli.command import as_json
from dagmaster.cli.tables import Column, print_records
from dagmaster.client.escaping import one_line
from dagmaster.client.models.base import Json, read
from dagmaster.client.models.commands import CommandInfo
from dagmaster.client.models.layers import LayerInfo, LayerMetadataInfo

if TYPE_CHECKING:
    from dagmaster.cli.command import State


def print_layers(state: "State", layers: Sequence[Json]) -> None:
    columns: list[Column[LayerInfo]] = [
        Column("dataset", lambda layer: layer.dataset_id),
        Column("layer", lambda layer: layer.layer, drop=3),
        Column("clearance", lambda layer: str(layer.clearance_state), is_state=True),
        Column("version", lambda layer: str(layer.version_ordinal), drop=2),
        Column("keywords", lambda layer: one_line(", ".join(layer.keywords)), drop=1, is_long=True),
        Column("title", lambda layer: one_line(layer.title), is_long=True),
    ]
    print_records(state, columns, LayerInfo, layers)


def print_metadata(state: "State", response: Json) -> None:
    layer = read(LayerMetadataInfo, response)
    facts = {
        "dataset": layer.dataset_id,
        "layer": layer.layer,
        "title": layer.title,
        "description": layer.description and one_line(layer.description),
        "keywords": one_line(", ".join(layer.keywords)),
        "attribution": layer.attribution,
        "style": layer.style and one_line(as_json(layer.style, indent=False)),
        "etag": layer.etag,
        "edited": layer.updated_at and f"{layer.updated_at:%Y-%m-%d %H:%M} by {layer.updated_by}",
        "published": _published(layer),
        "external": layer.external,
    }
    state.say_facts(facts, width=12)


def _published(layer: LayerMetadataInfo) -> str:
    if not layer.is_published:
        return "no"
    when = f"{layer.published_at:%Y-%m-%d %H:%M} by {layer.published_by}"
    return f"{when}; edited since" if layer.is_changed else when


def print_commands(state: "State", commands: Sequence[Json]) -> None:
    columns: list[Column[CommandInfo]] = [
        Column("command", lambda command: command.name),
        Column("permission", lambda command: command.permission, drop=1),
        Column("what it does", lambda command: one_line(command.summary), is_long=True),
    ]
    print_records(state, columns, CommandInfo, commands)


def print_command(state: "State", response: Json) -> None:
    command = read(CommandInfo, response)
    state.say(f"{command.name}: {command.summary}")
    if command.description:
        state.say(f"\n{command.description}")
    state.say("\ninputs")
    required = command.inputs.get("required") or []
    for name, schema in (command.inputs.get("properties") or {}).items():
        state.say(f"  {name:<16}{_kind(schema)}{' (required)' if name in required else ''}")


def _kind(schema: Json) -> str:
    kinds = [each.get("type") or "choice" for each in schema.get("anyOf") or [schema] if each.get("type") != "null"]
    choices = schema.get("enum")
    return f"one of {', '.join(map(str, choices))}" if choices else " or ".join(map(str, kinds))
