"""The requests about layers and direct commands, with responses as JSON."""

from collections.abc import Mapping
from typing import Any

from dagmaster.client.blocking import Blocking, C, blocking
from dagmaster.client.connection import ApiConnection
from dagmaster.client.limits import MAX_ITEMS
from dagmaster.client.models.base import Json
from dagmaster.client.request_parts import if_match, segment


class AsyncLayerRequests:
    """`name` is the id of an asset or of its dataset."""

    connection: ApiConnection

    async def layers(self, /, limit: int, after: str | None = None, **filters: Any) -> tuple[list[Json], str | None]:
        """Published layers."""
        return await self.connection.page("/layers", limit, after, **filters)

    async def layer_metadata(self, name: str, layer: str) -> Json:
        return await self.connection.object("GET", _path(name, layer))

    async def put_layer_metadata(self, name: str, layer: str, metadata: Json, *, etag: str | None = None) -> Json:
        return await self.connection.object("PUT", _path(name, layer), body=metadata, headers=if_match(etag))

    async def change_layer_metadata(self, name: str, layer: str, changes: Json, *, etag: str | None = None) -> Json:
        """Fields that are not given stay unchanged; None removes a field."""
        return await self.connection.object("PATCH", _path(name, layer), body=changes, headers=if_match(etag))

    async def commands(self) -> list[Json]:
        """The commands that the caller may run."""
        commands, _ = await self.connection.page("/commands", MAX_ITEMS)
        return commands

    async def run_command(self, command: str, inputs: Mapping[str, Any]) -> Json:
        """Run a direct command. Commands are idempotent, so one whose response was lost is sent again."""
        path = f"/commands/{segment(command)}"
        return await self.connection.object("POST", path, body=dict(inputs), is_repeatable=True)


class LayerRequests(Blocking[C]):
    layers = blocking(AsyncLayerRequests.layers)
    layer_metadata = blocking(AsyncLayerRequests.layer_metadata)
    put_layer_metadata = blocking(AsyncLayerRequests.put_layer_metadata)
    change_layer_metadata = blocking(AsyncLayerRequests.change_layer_metadata)
    commands = blocking(AsyncLayerRequests.commands)
    run_command = blocking(AsyncLayerRequests.run_command)


def _path(name: str, layer: str) -> str:
    return f"/assets/{segment(name)}/layers/{segment(layer)}/metadata"
