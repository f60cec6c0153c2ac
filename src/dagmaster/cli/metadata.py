"""`dagmaster metadata`: titles, descriptions and styles of layers."""

from typing import Any

import click

from dagmaster.cli.command import Group, State, page_options, pass_state, reason_option
from dagmaster.cli.completion import complete_assets, platform_option
from dagmaster.cli.files import json_object, option_bytes
from dagmaster.errors import InvalidRequest

_MAX_TEXT_BYTES = 100_000
_FIELDS = ("title", "description", "keywords", "attribution", "style")
_layer = click.option("--layer", default="raster", show_default=True, metavar="NAME", help="The layer of the asset")
_reason = reason_option("recorded in the audit log")


@click.group(cls=Group)
def metadata() -> None:
    """Edit the texts and the style of a layer, and publish them."""


@metadata.command("ls")
@click.option("--keyword", metavar="WORD", help="Only layers with this keyword")
@platform_option("Only layers of this platform")
@page_options(1000, default=20, entry="layer")
@pass_state
def list_layers(state: State, /, *, after: str | None, limit: int, **filters: str | None) -> None:
    """List published layers."""
    from dagmaster.cli.layer_pages import print_layers

    state.print_page("layers", state.client.layers(limit, after, **filters), print_layers)


@metadata.command("show")
@click.argument("asset", shell_complete=complete_assets)
@_layer
@pass_state
def show_metadata(state: State, asset: str, layer: str) -> None:
    """Show the metadata of a layer, and whether it is published."""
    _print(state, state.client.layer_metadata(asset, layer))


@metadata.command("set")
@click.argument("asset", shell_complete=complete_assets)
@_layer
@click.option("--title", metavar="TEXT", help="Title of the layer, up to 200 characters")
@click.option("--description", metavar="TEXT", help="Description, up to 10,000 characters; @FILE reads a file")
@click.option(
    "--keyword",
    "keywords",
    multiple=True,
    metavar="WORD",
    help="A keyword; may be repeated; the given keywords replace all others",
)
@click.option("--attribution", metavar="TEXT", help="Source of the data, as maps show it")
@click.option("--style", metavar="JSON", help='How the layer is drawn, for example \'{"colormap_name": "terrain"}\'')
@click.option("--remove", multiple=True, type=click.Choice(_FIELDS), help="Remove a field; may be repeated")
@click.option("--etag", metavar="ETAG", help="Refuse the change if the metadata has changed since it had this ETag")
@pass_state
def set_metadata(
    state: State,
    /,
    *,
    asset: str,
    layer: str,
    description: str | None,
    keywords: tuple[str, ...],
    style: str | None,
    remove: tuple[str, ...],
    etag: str | None,
    **texts: str | None,
) -> None:
    """Edit the metadata of a layer. Fields that are not given, and the published metadata, stay unchanged.

    \b
    dagmaster metadata set dem --title "Heights of the Alps" --keyword alps --keyword height
    dagmaster metadata publish dem
    """
    options = {
        **texts,
        "description": _text(description),
        "keywords": list(keywords) or None,
        "style": json_object("--style", style) if style is not None else None,
    }
    changes: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if conflicting := sorted(changes.keys() & set(remove)):
        raise InvalidRequest(f"{', '.join(conflicting)} cannot be set and removed", code="usage")
    changes |= dict.fromkeys(remove)
    if not changes:
        raise InvalidRequest("no change is given", code="usage", hint="for example --title TEXT")
    response = state.client.change_layer_metadata(asset, layer, changes, etag=etag)
    _print(state, response)
    if not response.get("is_published") or response.get("is_changed"):
        state.comment(f"publish it with: dagmaster metadata publish {response['dataset_id']}")


@metadata.command("publish")
@click.argument("asset", shell_complete=complete_assets)
@_layer
@click.option("--external", is_flag=True, help="Also publish it to the external database (EXTERNAL_DATABASE_URL)")
@_reason
@pass_state
def publish_metadata(state: State, asset: str, layer: str, *, external: bool, reason: str | None) -> None:
    """Publish the metadata of a layer into its STAC collection and the layer catalogue."""
    _run(state, "metadata.publish_external" if external else "metadata.publish", asset, layer, reason)


@metadata.command("unpublish")
@click.argument("asset", shell_complete=complete_assets)
@_layer
@_reason
@pass_state
def unpublish_metadata(state: State, asset: str, layer: str, *, reason: str | None) -> None:
    """Unpublish the metadata of a layer. The texts are kept, and can be published again."""
    _run(state, "metadata.unpublish", asset, layer, reason)


def _run(state: State, command: str, asset: str, layer: str, reason: str | None) -> None:
    inputs = {"asset": asset, "layer": layer, **({"reason": reason} if reason else {})}
    response = state.client.run_command(command, inputs)
    if state.json:
        state.emit(response)
        return
    _print(state, response["layer"])
    if not response["is_changed"]:
        state.note("nothing has changed: the metadata was already in this state")


def _print(state: State, response: dict[str, Any]) -> None:
    from dagmaster.cli.layer_pages import print_metadata

    state.print_result(response, lambda: print_metadata(state, response))


def _text(text: str | None) -> str | None:
    try:
        return option_bytes("--description", text, _MAX_TEXT_BYTES).decode() if text else text
    except UnicodeDecodeError:
        raise InvalidRequest(f"--description {text}: is not UTF-8", code="usage") from None
