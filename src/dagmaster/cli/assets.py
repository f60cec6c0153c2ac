"""`dagmaster assets`: list, show and submit assets; review them, and decide who sees them."""

from typing import TYPE_CHECKING, Any

import click

from dagmaster.cli.asset_submit import refs_of, submit
from dagmaster.cli.command import Group, State, page_options, pass_state, reason_option, yes_option
from dagmaster.cli.completion import complete_assets, platform_option

if TYPE_CHECKING:
    from dagmaster.cli.asset_changes import SeenAsset
    from dagmaster.client.models.base import Json

CLEARANCES, EXPOSURES = ("uncleared", "ouo", "public"), ("latest-only", "all-versions")


@click.group(cls=Group)
def assets() -> None:
    """List, submit, review and publish assets. ASSET is an id, or the name of its dataset."""


assets.add_command(submit)

_asset = click.argument("asset", shell_complete=complete_assets)
_reason = reason_option("recorded in the history of the asset")
_etag = click.option(
    "--etag", metavar="ETAG", help="ETag from `assets show`; the change is refused if the asset has changed since"
)
_version = click.option("--version", type=click.IntRange(0), metavar="N", help="The number of the version, from 0")
_revision = click.option(
    "--revision",
    type=click.IntRange(1),
    metavar="N",
    help="Number of the revision that you reviewed; the decision is refused if a newer one exists",
)


@assets.command("ls")
@platform_option("Only assets of this platform")
@click.option("--clearance", type=click.Choice(CLEARANCES), help="Only assets with this clearance")
@click.option("--to-review", is_flag=True, help="Only assets with a version that waits for review")
@click.option("--ref", "refs", multiple=True, metavar="K=V", help="Only assets with this reference; may be repeated")
@click.option("--search", metavar="TEXT", help="Only assets with this text in their ids, title or references")
@click.option("--deleted", is_flag=True, help="Only deleted assets")
@page_options(1000, default=20, entry="asset")
@pass_state
def list_assets(
    state: State,
    /,
    *,
    refs: tuple[str, ...],
    search: str | None,
    to_review: bool,
    deleted: bool,
    limit: int,
    after: str | None,
    **filters: Any,
) -> None:
    """List assets, newest first."""
    from dagmaster.cli.asset_pages import print_assets

    filters |= {f"ref.{name}": value for name, value in refs_of(refs).items()}
    filters |= {"q": search, "to_review": to_review or None, "deleted": deleted or None}
    state.print_page("assets", state.client.assets(limit, after, **filters), print_assets)


@assets.command("show")
@_asset
@pass_state
def show(state: State, asset: str) -> None:
    """Show an asset: who may see it, its versions, and the next steps."""
    from dagmaster.cli.asset_changes import next_steps
    from dagmaster.cli.asset_pages import print_asset
    from dagmaster.client.models.assets import AssetInfo
    from dagmaster.client.models.base import read

    response = state.client.asset(asset)
    if state.json:
        state.emit(response)
        return
    info = read(AssetInfo, response)
    print_asset(state, info)
    for step in next_steps(info):
        state.note(step)


@assets.command("history")
@_asset
@_version
@page_options(1000, default=20, entry="event")
@pass_state
def history(state: State, *, asset: str, version: int | None, limit: int, after: str | None) -> None:
    """Show who did what to an asset, when and why, newest first."""
    from dagmaster.cli.asset_pages import print_history

    state.print_page("events", state.client.asset_history(asset, limit, after, version=version), print_history)


def _seen_asset(state: State, asset: str, etag: str | None = None) -> "SeenAsset":
    from dagmaster.cli.asset_changes import SeenAsset

    return SeenAsset(state, asset, etag)


@assets.command("approve")
@_asset
@_version
@_revision
@click.option(
    "--clearance",
    "clearance_level",
    type=click.Choice(CLEARANCES[1:]),
    help="Who may see the asset; required for its first approval",
)
@_reason
@_etag
@pass_state
def approve(state: State, /, *, asset: str, version: int | None, etag: str | None, **request: Any) -> None:
    """Publish the newest revision of a version; by default, of the version that waits for review."""
    seen_asset = _seen_asset(state, asset, etag)
    ordinal = version if version is not None else seen_asset.version_to_decide("approve")
    response = seen_asset.change("approve", version=ordinal, **request)
    state.print_result(response, f"{seen_asset.name_of(ordinal)} is approved")
    if not state.json:
        _note_map(state, response, ordinal)


@assets.command("reject")
@_asset
@_version
@_revision
@click.option("--reason", metavar="TEXT", required=True, help="The reason; the submitter sees it")
@_etag
@pass_state
def reject(state: State, /, *, asset: str, version: int | None, etag: str | None, **request: Any) -> None:
    """Refuse the newest revision of a version. An older revision that is approved stays served."""
    seen_asset = _seen_asset(state, asset, etag)
    ordinal = version if version is not None else seen_asset.version_to_decide("reject")
    response = seen_asset.change("reject", version=ordinal, **request)
    state.print_result(response, f"{seen_asset.name_of(ordinal)} is rejected")


@assets.command("clear")
@_asset
@click.argument("clearance", type=click.Choice(CLEARANCES))
@_reason
@_etag
@pass_state
def clear(state: State, *, asset: str, clearance: str, reason: str | None, etag: str | None) -> None:
    """Decide who may see approved versions: reviewers only (uncleared), internal users (ouo), or everyone (public)."""
    seen_asset = _seen_asset(state, asset, etag)
    response = seen_asset.change("clear", clearance_level=clearance, reason=reason)
    state.print_result(response, f"the clearance of {seen_asset.name} is {clearance}")


@assets.command("expose")
@_asset
@click.argument("exposure", type=click.Choice(EXPOSURES))
@_reason
@_etag
@pass_state
def expose(state: State, *, asset: str, exposure: str, reason: str | None, etag: str | None) -> None:
    """Serve only the latest approved version, or each approved version under its number."""
    seen_asset = _seen_asset(state, asset, etag)
    response = seen_asset.change("expose", exposure=exposure, reason=reason)
    state.print_result(response, f"the exposure of {seen_asset.name} is {exposure}")


@assets.command("unpublish")
@_asset
@_version
@_reason
@_etag
@yes_option
@pass_state
def unpublish(state: State, *, asset: str, version: int | None, reason: str | None, etag: str | None, yes: bool) -> int:
    """Stop serving a version; without --version, the whole asset. The data is kept: approving it publishes it again."""
    seen_asset = _seen_asset(state, asset, etag)
    if not yes and not seen_asset.is_confirmed("Unpublish", version):
        return 1
    response = seen_asset.change("unpublish", version=version, reason=reason)
    state.print_result(response, f"{seen_asset.name_of(version)} is unpublished")
    return 0


@assets.command("export")
@_asset
@click.argument("version", type=click.IntRange(0))
@_reason
@_etag
@pass_state
def export(state: State, *, asset: str, version: int, reason: str | None, etag: str | None) -> None:
    """Copy a public version to the external zone again: after a failure, or to repair its copies.

    The first export starts automatically when a version is approved and its asset is public.
    """
    seen_asset = _seen_asset(state, asset, etag)
    response = seen_asset.change("export", version=version, reason=reason)
    state.print_result(
        response, f"the export of {seen_asset.name_of(version)} will start; `dagmaster assets show` shows its state"
    )


@assets.command("delete")
@_asset
@_version
@_reason
@_etag
@yes_option
@pass_state
def delete(state: State, *, asset: str, version: int | None, reason: str | None, etag: str | None, yes: bool) -> int:
    """Delete a version; without --version, the whole asset. Its data is removed after PURGE_DAYS; 0 keeps it."""
    seen_asset = _seen_asset(state, asset, etag)
    if not yes and not seen_asset.is_confirmed("Delete", version):
        return 1
    response = seen_asset.delete(version=version, reason=reason)
    state.print_result(response, f"{seen_asset.name_of(version)} is deleted")
    return 0


@assets.command("link")
@_asset
@_version
@click.option("--revision", type=click.IntRange(1), metavar="N", help="Show this revision, even if it is not served")
@click.option(
    "--hours",
    type=click.FloatRange(0, 24 * 90, min_open=True),
    default=24.0,
    show_default=True,
    help="How long the link is valid",
)
@pass_state
def link(state: State, *, asset: str, version: int | None, revision: int | None, hours: float) -> None:
    """Create a link that shows one version to people and programs without a key, until it expires.

    By default it shows the revision that waits for review, or else the latest approved version.
    """
    from dagmaster.cli.tables import at
    from dagmaster.client.models.assets import SignedLink
    from dagmaster.client.models.base import read

    seen_asset = _seen_asset(state, asset)
    if version is None:
        version, revision = seen_asset.version_to_show(revision)
    response = state.client.link(seen_asset.info.asset_id, version, {"revision": revision, "expires_in_hours": hours})
    if state.json:
        state.emit(response)
        return
    signed = read(SignedLink, response)
    state.say(signed.map_url)
    revision_text = f", revision {revision}" if revision else ""
    until = f"until {at(signed.expires_at)} UTC"
    state.note(f"{seen_asset.name_of(version)}{revision_text}, {until}; TileJSON:\n  {signed.tilejson_url}")


def _note_map(state: State, response: "Json", ordinal: int) -> None:
    from dagmaster.addresses import Addresses
    from dagmaster.cli.asset_changes import maps_url_of
    from dagmaster.client.models.assets import AssetInfo
    from dagmaster.client.models.base import read

    asset = read(AssetInfo, response)
    is_served = any(version.is_served for version in asset.versions if version.version_ordinal == ordinal)
    if is_served and (maps_url := maps_url_of(state)):
        state.note(f"see it at: {Addresses(maps_url).map(asset.dataset_id, ordinal)}")
