"""What the gateway reads, with the database role that may only select from views."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, Final, Self, TypeVar
from uuid import UUID

from psycopg.types.json import Jsonb

from dagmaster.access.keys import StoredKey
from dagmaster.assets.request_ids import ambiguous, possible_ids
from dagmaster.client.models.assets import PlatformInfo
from dagmaster.client.models.gateway import (
    GatewayAsset,
    GatewayEvent,
    GatewayInstance,
    GatewayJob,
    GatewayNode,
    GatewayVersion,
    PartnerStatus,
    StatusCount,
)
from dagmaster.client.models.layers import LayerInfo, LayerMetadataInfo
from dagmaster.database.connect import Connection, connection_of, pool, translate_errors
from dagmaster.database.prepared_reads import PreparedReads
from dagmaster.database.reads.session import ModelReads, models

T = TypeVar("T")
POOL_SIZE: Final = 4  # connections; those for keys and requests are not included
STATEMENT_SECONDS: Final = 5.0


class GatewayReads(ModelReads):
    """Use as a context. The database need not be available at its start.

    Keys and requests, which every poll reads, are read over separate connections, which keep one generic plan for each
    statement. By default, PostgreSQL would plan `gateway_request` again for each poll, which takes longer than
    executing it: the generic plan assumes an array of ten ids, so a custom plan for two ids always seems cheaper.
    """

    def __init__(self, dsn: str, size: int = POOL_SIZE) -> None:
        self._pool = pool(dsn, "gateway", 0, size, statement_timeout_seconds=STATEMENT_SECONDS)
        self._polled = PreparedReads(dsn, "gateway", statement_timeout_seconds=STATEMENT_SECONDS)

    async def __aenter__(self) -> Self:
        await self._pool.open()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._pool.close()
        await self._polled.close()

    async def key(self, key_id: str) -> StoredKey | None:
        keys = await self._planned("gateway_key", {"key_id": key_id}, StoredKey)
        return keys[0] if keys else None

    async def request(self, request_id: str, platform_id: str | None) -> PartnerStatus | None:
        """The request of this platform, or of any platform if none is given. Conflict if several platforms use the
        id."""
        requests = await self.requests(request_id, platform_id)
        if len(requests) > 1:
            raise ambiguous(request_id, (request.platform_id for request in requests))
        return requests[0] if requests else None

    async def requests(self, request_id: str, platform_id: str | None) -> list[PartnerStatus]:
        """The requests with this id, the oldest first."""
        platform_ids = [platform_id] if platform_id else [each.platform_id for each in await self.platforms(None)]
        values = {"request_ids": possible_ids(request_id, platform_ids), "platform_id": platform_id}
        return await self._planned("gateway_request", values, PartnerStatus)

    async def requests_of_version(
        self, asset_id: str, ordinal: int, platform_id: str | None, limit: int
    ) -> list[PartnerStatus]:
        values = {"asset_id": asset_id, "version_ordinal": ordinal, "platform_id": platform_id, "limit": limit}
        return await self._many("gateway_requests_of_version", values, PartnerStatus)

    async def assets(
        self,
        platform_id: str | None,
        *,
        limit: int,
        after: tuple[datetime, UUID] | None = None,
        refs: Mapping[str, str] | None = None,
    ) -> list[GatewayAsset]:
        values = {
            "platform_id": platform_id,
            "refs": Jsonb(dict(refs)) if refs else None,
            "after_at": after[0] if after else None,
            "after_id": after[1].hex if after else None,
            "limit": limit,
        }
        return await self._many("gateway_assets", values, GatewayAsset)

    async def asset(self, key: str, platform_id: str | None) -> GatewayAsset | None:
        asset = await self._first("gateway_asset", {"key": key, "platform_id": platform_id}, GatewayAsset)
        if asset is None:
            return None
        versions = await self._many("gateway_versions", {"asset_id": asset.asset_id}, GatewayVersion)
        return asset.model_copy(update={"versions": versions})

    async def layer_metadata(self, asset_id: str) -> list[LayerMetadataInfo]:
        return await self._many("gateway_layer_metadata", {"asset_id": asset_id}, LayerMetadataInfo)

    async def layers(
        self, clearances: Iterable[str], platform_id: str | None, *, limit: int, after: tuple[str, str] = ("", "")
    ) -> list[LayerInfo]:
        """Published layers with these clearances; of this platform only, if one is given."""
        values = {
            "clearances": sorted(clearances),
            "platform_id": platform_id,
            "after_dataset": after[0],
            "after_layer": after[1],
            "limit": limit,
        }
        return await self._many("gateway_layers", values, LayerInfo)

    async def platforms(self, platform_id: str | None) -> list[PlatformInfo]:
        return await self._many("gateway_platforms", {"platform_id": platform_id}, PlatformInfo)

    async def jobs(
        self,
        *,
        limit: int,
        job_id: UUID | None = None,
        status: Sequence[str] | None = None,
        workflow_id: str | None = None,
        correlation_id: str | None = None,
        after: UUID | None = None,
    ) -> list[GatewayJob]:
        values = {
            "job_id": job_id,
            "status": list(status) if status else None,
            "workflow_id": workflow_id,
            "correlation_id": correlation_id,
            "after": after,
            "limit": limit,
        }
        return await self._many("gateway_jobs", values, GatewayJob)

    async def nodes(self, job_id: UUID, *, limit: int, after: str | None = None) -> list[GatewayNode]:
        return await self._many("gateway_nodes", {"job_id": job_id, "after": after, "limit": limit}, GatewayNode)

    async def events(self, job_id: UUID, *, limit: int, after: int = 0) -> list[GatewayEvent]:
        return await self._many("gateway_events", {"job_id": job_id, "after": after, "limit": limit}, GatewayEvent)

    async def recent_events(self, limit: int) -> list[GatewayEvent]:
        return await self._many("gateway_recent_events", {"limit": limit}, GatewayEvent)

    async def stats(self) -> list[StatusCount]:
        return await self._many("gateway_stats", {}, StatusCount)

    async def instances(self, limit: int) -> list[GatewayInstance]:
        return await self._many("gateway_instances", {"limit": limit}, GatewayInstance)

    async def _planned(self, name: str, values: Mapping[str, Any], kind: type[T]) -> list[T]:
        with translate_errors():
            return models(kind, await self._polled.dicts(name, values))

    def _connected(self) -> AbstractAsyncContextManager[Connection]:
        return connection_of(self._pool)
