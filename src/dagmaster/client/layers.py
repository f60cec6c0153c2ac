"""The methods of the Python client about layers and direct commands."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

from dagmaster.client.blocking import Blocking, C, blocking, iterating
from dagmaster.client.models.base import parse
from dagmaster.client.models.commands import CommandInfo, LayerCommandResult
from dagmaster.client.models.layers import LayerInfo, LayerMetadataInfo
from dagmaster.client.paging import PagedClient

RASTER = "raster"


class AsyncLayers(PagedClient):
    """`asset_id` may also be the id of the dataset. A raster has one layer."""

    async def layers(
        self, *, platform_id: str | None = None, keyword: str | None = None, limit: int | None = None
    ) -> AsyncIterator[LayerInfo]:
        """Published layers of data that the caller may read, by dataset."""
        async for layer in self._all(LayerInfo, "/layers", limit, platform_id=platform_id, keyword=keyword):
            yield layer

    async def layer_metadata(self, asset_id: str, layer: str = RASTER) -> LayerMetadataInfo:
        """The metadata of a layer, published or not."""
        return parse(LayerMetadataInfo, await self.json.layer_metadata(asset_id, layer))

    async def change_layer_metadata(
        self, asset_id: str, changes: Mapping[str, Any], *, layer: str = RASTER, etag: str | None = None
    ) -> LayerMetadataInfo:
        """Change `title`, `description`, `keywords`, `attribution` or `style`. Fields that are not given stay
        unchanged; None removes a field. With `etag`, the change is refused if the metadata has changed since."""
        response = await self.json.change_layer_metadata(asset_id, layer, dict(changes), etag=etag)
        return parse(LayerMetadataInfo, response)

    async def publish_metadata(
        self, asset_id: str, *, layer: str = RASTER, is_external: bool = False, reason: str | None = None
    ) -> LayerCommandResult:
        """Publish the metadata of a layer into STAC and the layer catalogue; with `is_external`, also into the external
        database."""
        name = "metadata.publish_external" if is_external else "metadata.publish"
        return await self._layer_command(name, asset_id, layer, reason)

    async def unpublish_metadata(
        self, asset_id: str, *, layer: str = RASTER, reason: str | None = None
    ) -> LayerCommandResult:
        """Withdraw the metadata of a layer. The texts are kept."""
        return await self._layer_command("metadata.unpublish", asset_id, layer, reason)

    async def commands(self) -> list[CommandInfo]:
        """The direct commands that the caller may run, with the JSON schemas of their inputs."""
        return [parse(CommandInfo, command) for command in await self.json.commands()]

    async def run_command(self, /, command: str, **inputs: Any) -> dict[str, Any]:
        """Run a direct command, for example `run_command("cache.invalidate", wait_seconds=2)`."""
        return await self.json.run_command(command, inputs)

    async def _layer_command(self, name: str, asset_id: str, layer: str, reason: str | None) -> LayerCommandResult:
        inputs = {"asset": asset_id, "layer": layer, **({"reason": reason} if reason else {})}
        return parse(LayerCommandResult, await self.json.run_command(name, inputs))


class Layers(Blocking[C]):
    layers = iterating(AsyncLayers.layers)
    layer_metadata = blocking(AsyncLayers.layer_metadata)
    change_layer_metadata = blocking(AsyncLayers.change_layer_metadata)
    publish_metadata = blocking(AsyncLayers.publish_metadata)
    unpublish_metadata = blocking(AsyncLayers.unpublish_metadata)
    commands = blocking(AsyncLayers.commands)
    run_command = blocking(AsyncLayers.run_command)
