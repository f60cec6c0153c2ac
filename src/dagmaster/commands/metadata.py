"""Layer metadata: publish it into STAC and the layer catalogue, also of the external database, and withdraw it."""

from dagmaster.access.permissions import Permission
from dagmaster.client.models.commands import LayerCommand, LayerCommandResult
from dagmaster.commands.registry import CommandContext, command
from dagmaster.database.assets.layer_store import LayerChange
from dagmaster.errors import DagmasterError
from dagmaster.observe import log
from dagmaster.operations.assets.external import external_layers, require_external
from dagmaster.operations.assets.metadata import publish_metadata, withdraw_metadata

_MAX_LAYERS = 10
_log = log.get("commands")


@command("metadata.publish", Permission.ASSETS_REVIEW)
async def publish(context: CommandContext, request: LayerCommand) -> LayerCommandResult:
    """Publish the metadata of a layer into its STAC collection and the layer catalogue.

    The asset must be published. Later edits are not visible until the command is run again; new versions and revisions
    keep what is published. If the external database has the layer, it is updated too."""
    decision = context.decision(reason=request.reason)
    change = await publish_metadata(context.store, request.asset, request.layer, decision)
    return _result(change)


@command("metadata.unpublish", Permission.ASSETS_REVIEW)
async def unpublish(context: CommandContext, request: LayerCommand) -> LayerCommandResult:
    """Withdraw the metadata of a layer from its STAC collection, the layer catalogue and the external database.

    The texts are kept, and can be published again. If the external database does not respond, the removal is
    recorded and retried."""
    decision = context.decision(reason=request.reason)
    change = await withdraw_metadata(context.store, request.asset, request.layer, decision)
    if change.info.external == "due":
        change = await _remove_externally(context, change)
    return _result(change)


@command("metadata.publish_external", Permission.ASSETS_REVIEW)
async def publish_external(context: CommandContext, request: LayerCommand) -> LayerCommandResult:
    """Publish the metadata of a layer, also into the external database.

    Only layers of public data are allowed. Afterwards the external database is kept up to date: with new versions,
    later runs of metadata.publish, and every withdrawal."""
    require_external(context.settings)
    decision = context.decision(reason=request.reason)
    change = await publish_metadata(context.store, request.asset, request.layer, decision, is_external=True)
    external = external_layers(context.settings, context.dsn)
    assert external is not None
    try:
        await external.carry_out_all(_MAX_LAYERS, change.info.asset_id)
    finally:
        await external.close()
    return _result(LayerChange(await context.store.layer(change.info.asset_id, request.layer), change.is_changed))


async def _remove_externally(context: CommandContext, change: LayerChange) -> LayerChange:
    """Remove the layer from the external database now. If it does not respond, the removal stays due."""
    external = external_layers(context.settings, context.dsn)
    if external is None:
        return change
    try:
        await external.carry_out_all(_MAX_LAYERS, change.info.asset_id)
    except DagmasterError as error:
        _log.warning("a layer could not be removed from the external database; will retry", error=error.message)
    finally:
        await external.close()
    return LayerChange(await context.store.layer(change.info.asset_id, change.info.layer), change.is_changed)


def _result(change: LayerChange) -> LayerCommandResult:
    return LayerCommandResult(is_changed=change.is_changed, layer=change.info)
