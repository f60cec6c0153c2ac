"""`dagmaster platforms`: the external systems that submit data."""

from typing import Any

import click

from dagmaster.cli.command import Group, State, pass_state, reason_option
from dagmaster.cli.completion import complete_platforms
from dagmaster.errors import InvalidRequest


@click.group(cls=Group)
def platforms() -> None:
    """List the systems that submit data, add one, and change it."""


@platforms.command("ls")
@pass_state
def list_platforms(state: State) -> None:
    """List platforms, and the references that their submissions need."""
    from dagmaster.cli.asset_pages import print_platforms

    responses = state.client.platforms()
    state.print_result({"platforms": responses}, lambda: print_platforms(state, responses))


@platforms.command("show")
@click.argument("platform", shell_complete=complete_platforms)
@pass_state
def show_platform(state: State, platform: str) -> None:
    """Show a platform: which references identify an asset, and which one names the version."""
    from dagmaster.cli.asset_pages import print_platform

    response = state.client.platform(platform)
    state.print_result(response, lambda: print_platform(state, response))


@platforms.command("add")
@click.argument("platform")
@click.option("--name", "display_name", required=True, metavar="TEXT", help="Display name")
@click.option(
    "--required",
    multiple=True,
    required=True,
    metavar="REF,…",
    help="References that every submission must have; may be repeated",
)
@click.option("--optional", multiple=True, metavar="REF,…", help="References that a submission may have")
@click.option(
    "--version-ref",
    metavar="REF",
    help="The reference that names the version; the other required ones identify the asset",
)
@click.option(
    "--b2b-may-approve", is_flag=True, help="Its keys may approve, reject and unpublish versions of its own assets"
)
@pass_state
def add_platform(
    state: State, /, *, platform: str, required: tuple[str, ...], optional: tuple[str, ...], **request: Any
) -> None:
    """Add a platform. Its id and its references cannot be changed later.

    PLATFORM is a short id of lower-case letters, digits, - and _.
    """
    from dagmaster.cli.asset_pages import print_platform

    required_refs = _names(required)
    request |= {"platform_id": platform, "required_refs": required_refs, "optional_refs": _names(optional)}
    response = state.client.add_platform(request)
    state.print_result(response, lambda: print_platform(state, response))
    state.comment(
        f"create a key for it with: dagmaster keys create NAME --scope b2b --platform {platform}\n"
        f"try a submission with: dagmaster assets submit --platform {platform} "
        f"{' '.join(f'--ref {name}=…' for name in required_refs)} --blob BLOB --dry-run"
    )


@platforms.command("set")
@click.argument("platform", shell_complete=complete_platforms)
@click.option("--name", "display_name", metavar="TEXT", help="Display name")
@click.option("--active/--inactive", "is_active", default=None, help="Whether the platform may submit data")
@click.option(
    "--b2b-may-approve/--no-b2b-may-approve",
    default=None,
    help="Whether its keys may approve, reject and unpublish versions of its own assets",
)
@reason_option("recorded in the audit log")
@pass_state
def set_platform(state: State, /, *, platform: str, **options: Any) -> None:
    """Change a platform. Fields that are not given stay unchanged."""
    from dagmaster.cli.asset_pages import print_platform

    changes = {name: value for name, value in options.items() if value is not None}
    response = state.client.change_platform(platform, changes)
    state.print_result(response, lambda: print_platform(state, response))


def _names(texts: tuple[str, ...]) -> list[str]:
    names = [name.strip() for text in texts for name in text.split(",")]
    if not all(names):
        raise InvalidRequest("the name of a reference is empty", code="usage", hint="for example --required item,layer")
    return list(dict.fromkeys(names))
