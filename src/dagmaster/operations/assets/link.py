"""Create a signed link: anyone with the link can read one version until it expires."""

import math
import time
from datetime import UTC, datetime
from typing import Final

from dagmaster.access.caller import Caller
from dagmaster.access.decision import read_access
from dagmaster.access.links import PARAMETER, VersionLink, sign
from dagmaster.addresses import Addresses
from dagmaster.client.models.assets import SignedLink
from dagmaster.database.assets.publications import AssetPublication
from dagmaster.database.assets.reads import no_such_asset
from dagmaster.database.assets.store import AssetStore
from dagmaster.errors import Conflict, InvalidRequest
from dagmaster.observe import log

MAX_PREVIEW_SECONDS: Final = 7 * 86_400.0
_log = log.get("assets")


async def make_link(
    store: AssetStore,
    addresses: Addresses,
    key: str,
    ordinal: int,
    *,
    caller: Caller,
    valid_seconds: float,
    revision: int | None = None,
) -> SignedLink:
    """A link to what the caller may read. A link to a revision that is not published is a preview, which expires
    sooner."""
    asset = await store.publication(key, ordinal, revision)
    chosen = asset.chosen_revision(revision) if asset else None
    if asset is None or asset.version is None or chosen is None:
        raise no_such_asset(key)
    if not read_access(caller, asset.version, chosen).includes_data:
        raise no_such_asset(key)
    if asset.version.is_withdrawn:  # staff may preview its newer revision, but links end with the publication
        raise Conflict(
            f"version {ordinal} is unpublished, and links to it do not work",
            code="link.unpublished",
            hint="approve the newer revision first, or preview it with your own key",
        )
    is_preview = not asset.version.is_published(chosen)
    if is_preview and valid_seconds > MAX_PREVIEW_SECONDS:
        raise InvalidRequest(
            "a link to a revision that is not published is valid for 7 days at most",
            code="link.too-long",
            hint="request a link for a shorter time",
        )
    expires_at = math.ceil(time.time() + valid_seconds)
    link_revision = chosen if is_preview or revision is not None else None
    link = VersionLink(asset.asset_id, ordinal, expires_at, link_revision, is_preview=is_preview)
    signing_key = await store.signing_key()
    _log.info(
        "a signed link was created",
        asset_id=asset.asset_id,
        version_ordinal=ordinal,
        revision=link_revision,
        is_preview=is_preview,
        expires_at=expires_at,
        by=caller.name,
    )
    return _signed(addresses, asset, link, sign(link, signing_key.key_id, signing_key.secret))


def _signed(addresses: Addresses, asset: AssetPublication, link: VersionLink, token: str) -> SignedLink:
    revision = {"rev": str(link.revision)} if link.revision else {}
    query = {**revision, PARAMETER: token}
    return SignedLink(
        token=token,
        expires_at=datetime.fromtimestamp(link.expires_at, UTC),
        map_url=addresses.map(asset.dataset_id, link.ordinal, **query),
        tilejson_url=addresses.tilejson(asset.dataset_id, link.ordinal, **query),
    )
