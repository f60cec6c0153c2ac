"""Commands on a real database, and a second database as the external one."""

from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.rows import dict_row

from dagmaster.access.caller import Caller, Scope
from dagmaster.client.models.layers import LayerMetadataRequest
from dagmaster.commands.registry import CommandContext, find_command, run_command
from dagmaster.operations.assets.metadata import edit_metadata
from dagmaster.settings import Settings
from tests.operations.kit import BOB, Kit

ROOT = Caller("root", frozenset({Scope.ADMIN}))
PUBLIC_URL = "https://maps.example.org"
STYLE = {"colormap_name": "viridis", "rescale": [[0, 10]]}


@dataclass
class Commands:
    """`run` runs a command as an administrator. `external` is the DSN of the external database, if there is one."""

    kit: Kit
    external: str | None = None
    settings: Settings = field(init=False)

    def __post_init__(self) -> None:
        self.settings = Settings(external_database_url=self.external, public_url=PUBLIC_URL)

    async def run(self, name: str, *, caller: Caller = ROOT, **inputs: Any) -> Any:
        command = find_command(name)
        context = CommandContext(self.settings, self.kit.dsn, self.kit.store, caller, name)
        # A long time limit, because the machine may be busy; the limit of commands has its own tests.
        return await run_command(command, context, command.request.model_validate(inputs), timeout_seconds=60)

    async def edit(self, dataset: str = "dem", **fields: Any) -> Any:
        request = LayerMetadataRequest.model_validate(fields)
        return await edit_metadata(self.kit.store, dataset, "raster", request=request, caller=BOB)

    async def catalog(self) -> list[dict[str, Any]]:
        return await self.kit.rows("SELECT * FROM dagapp.layer_catalog ORDER BY dataset_id, layer")

    async def events(self, action: str) -> list[dict[str, Any]]:
        return await self.kit.rows("SELECT * FROM dagapp.asset_events WHERE action = %s ORDER BY event_id", action)

    async def stac(self, dataset: str = "dem") -> tuple[Any, ...]:
        """The collection and the items in pgSTAC, exactly as stored."""
        collection = await self.kit.rows("SELECT content FROM pgstac.collections WHERE id = %s", dataset)
        items = await self.kit.rows(
            "SELECT id, content - 'pgstac:base_item' AS content, geometry::text, datetime, end_datetime "
            "FROM pgstac.items WHERE collection = %s ORDER BY id",
            dataset,
        )
        return (collection, items)

    async def external_rows(self, text: str = "SELECT * FROM dagmaster_public.layer_catalog") -> list[dict[str, Any]]:
        assert self.external is not None
        async with await psycopg.AsyncConnection.connect(self.external, autocommit=True) as connection:
            cursor = connection.cursor(row_factory=dict_row)
            return await (await cursor.execute(text)).fetchall()
