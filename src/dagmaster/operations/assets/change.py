"""The common part of a reviewer's actions: prepare the catalogue, then change the asset and the catalogue in one
transaction. A b2b key may decide on versions of its own platform, if `b2b_may_approve` of the platform is set."""

from collections.abc import Callable, Sequence

from dagmaster.access.caller import Caller
from dagmaster.access.decision import STAFF, may_decide
from dagmaster.addresses import Addresses
from dagmaster.assets.rules import ActionResult
from dagmaster.assets.states import AssetState, VersionRevision
from dagmaster.client.models.assets import AssetInfo
from dagmaster.database.assets.reads import no_such_asset
from dagmaster.database.assets.rows import Decision, LoadedAsset
from dagmaster.database.assets.store import AssetStore
from dagmaster.database.catalog.publish import CollectionWriter
from dagmaster.database.connect import Connection
from dagmaster.errors import Conflict, DagmasterError, NotAllowed
from dagmaster.stac.layers import described
from dagmaster.stac.versions import joined

Act = Callable[[AssetState], ActionResult]


async def change_asset(
    store: AssetStore,
    key: str,
    act: Act,
    decision: Decision,
    *,
    decider: Caller | None = None,
    versions: Sequence[int] | None = None,
    revision: int | None = None,
    if_match: str | None = None,
) -> AssetInfo:
    """`act` is a rule; `versions` are those that it may change (None: all). With `decider`, that caller must be allowed
    to decide on this asset. With `revision`, this must be the newest revision of the version."""

    def admit(asset: LoadedAsset) -> None:
        if decider is not None:
            _require_decider(decider, asset, key)

    def rule(asset: LoadedAsset) -> ActionResult:
        admit(asset)
        _require_revision(asset.state, decision.ordinal, revision)
        change = act(asset.state)
        _require_kept(asset, change)
        return change

    await _prepare(store, key, rule)
    return await store.change(key, rule, decision, publish=publish, admit=admit, versions=versions, if_match=if_match)


async def publish(
    connection: Connection, dataset_id: str, before: Sequence[VersionRevision], after: Sequence[VersionRevision]
) -> None:
    await writer_of(dataset_id).publish(connection, before, after)


def writer_of(dataset_id: str) -> CollectionWriter:
    return CollectionWriter(dataset_id, joined, f"{Addresses('').items(dataset_id)}/", described)


async def _prepare(store: AssetStore, key: str, rule: Callable[[LoadedAsset], ActionResult]) -> None:
    """Prepare the catalogue before the change, in a short transaction, because this step blocks all searches. For a
    change that would be refused, nothing is prepared; it is refused under the lock, where a stale ETag is checked
    first."""
    asset = await store.state(key)
    if asset is None:
        return
    try:
        before, after = asset.state.published, rule(asset).state.published
    except DagmasterError:
        return
    if added := [edition for edition in after if edition not in before]:
        await store.prepare(writer_of(asset.dataset_id), added)


def _require_decider(caller: Caller, asset: LoadedAsset, key: str) -> None:
    """Refuse a caller that may not decide. A b2b key sees only the assets of its own platform: for others the error is
    that they do not exist."""
    platform_id = asset.state.platform_id
    if may_decide(caller, platform_id, b2b_may_approve=asset.b2b_may_approve):
        return
    if caller.platform_id != platform_id and not caller.has(*STAFF):
        raise no_such_asset(key)
    raise NotAllowed(
        f"keys of the platform '{platform_id}' may not approve, reject or unpublish",
        code="platform.may-not-approve",
        hint=f"ask a reviewer to decide; an administrator can allow it: dagmaster platforms set {platform_id} "
        "--b2b-may-approve",
    )


def _require_revision(asset: AssetState, ordinal: int | None, revision: int | None) -> None:
    version = None if ordinal is None else asset.version(ordinal)
    if version is not None and revision not in (None, version.revision):
        raise Conflict(
            f"the newest revision of version {ordinal} is {version.revision}, not {revision}",
            code="version.revised",
            hint="review the newest revision, and repeat the request with its number",
            revision=version.revision,
        )


def _require_kept(asset: LoadedAsset, change: ActionResult) -> None:
    """Refuse to publish a revision whose data was purged."""
    for version in change.state.versions:
        before = asset.state.version(version.ordinal)
        is_published = version.served_revision == version.revision != (before and before.served_revision)
        if is_published and version.is_purged:
            raise Conflict(
                f"the data of version {version.ordinal}, revision {version.revision} was purged",
                code="version.purged",
                hint="submit it again",
            )
