"""The installation: live processes, sizes of the tables, statistics of workflows, and the actions of the janitor."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from dagmaster.client.models.operations import (
    DatabaseHealth,
    EventPartition,
    OldestTransaction,
    OrchestratorSummary,
    TableHealth,
    TaskLease,
    WorkerSummary,
    WorkflowStatistics,
)
from dagmaster.database.connect import not_deployed, require_own_session
from dagmaster.database.reads.session import ReadSession
from dagmaster.jobs.model import JanitorAction


@dataclass(frozen=True, slots=True)
class Instance:
    """A live orchestrator or worker."""

    role: str
    host: str
    pid: int
    heartbeat_at: datetime


@dataclass(frozen=True, slots=True)
class Liveness:
    """`beat_age_seconds` is the age of the heartbeat of the named orchestrator, None before its first heartbeat."""

    fingerprint: str
    database: str
    beat_age_seconds: float | None
    live_orchestrators: int
    live_workers: int


@dataclass(frozen=True, slots=True)
class Sizes:
    events_estimate: int
    tasks_bytes: int
    dead_letters: int
    database_bytes: int


class InstallationReads(ReadSession):
    async def require_schema(self) -> None:
        """Raise an error if the schema is not deployed, or if a pooler stands between this process and the server."""
        async with self._connected() as connection:
            await require_own_session(connection)
        rows = await self._dicts("schema_is_deployed", {})
        if not rows[0]["is_deployed"]:
            raise not_deployed()

    async def deployed_schema(self) -> dict[str, Any] | None:
        """Fingerprint, software version and time of the last deployment; None if it was never completed."""
        return next(iter(await self._dicts("deployed_schema", {})), None)

    async def deployed_parts(self) -> list[str]:
        """The columns and functions of the deployed schema, as `missing_parts` needs them."""
        return [row["name"] for row in await self._dicts("deployed_parts", {})]

    async def database_name(self) -> str:
        return str((await self._dicts("api_database_name", {}))[0]["database"])

    async def live_instances(self, within_seconds: float = 60.0) -> list[Instance]:
        return await self._many("live_instances", {"within": within_seconds}, Instance)

    async def liveness(self, owner_id: UUID | None, within_seconds: float) -> Liveness | None:
        """None if the deployment of the schema was never completed."""
        return await self._first("api_liveness", {"owner_id": owner_id, "within": within_seconds}, Liveness)

    async def orchestrators(
        self, *, limit: int, within_seconds: float, after: UUID | None = None
    ) -> list[OrchestratorSummary]:
        values = {"limit": limit, "after": after, "within": within_seconds}
        return await self._many("api_orchestrators", values, OrchestratorSummary)

    async def workers(self, *, limit: int, within_seconds: float, after: UUID | None = None) -> list[WorkerSummary]:
        values = {"limit": limit, "after": after, "within": within_seconds}
        return await self._many("api_workers", values, WorkerSummary)

    async def sizes(self) -> Sizes:
        (sizes,) = await self._many("api_sizes", {}, Sizes)
        return sizes

    async def leases(
        self, *, limit: int, alive_within_seconds: float, within_seconds: float | None = None
    ) -> list[TaskLease]:
        """Running tasks, in the order in which their leases expire."""
        values = {"limit": limit, "alive_within": alive_within_seconds, "within_seconds": within_seconds}
        return await self._many("system_leases", values, TaskLease)

    async def database_health(self) -> DatabaseHealth:
        (facts,) = await self._dicts("system_database", {})
        return DatabaseHealth(
            **facts,
            oldest_transaction=await self._first("doctor_oldest_transaction", {}, OldestTransaction),
            tables=await self._many("system_tables", {}, TableHealth),
            partitions=await self._many("system_partitions", {}, EventPartition),
        )

    async def jobs_by_status(self) -> dict[str, int]:
        return {row["status"]: row["count"] for row in await self._dicts("api_jobs_by_status", {})}

    async def recent_workflows(self, hours: int) -> list[WorkflowStatistics]:
        return await self._many("api_recent_workflows", {"hours": hours}, WorkflowStatistics)

    async def janitor_actions(
        self,
        *,
        limit: int,
        after: tuple[datetime, UUID] | None = None,
        action_type: str | None = None,
        target_id: str | None = None,
        run_id: UUID | None = None,
        since: datetime | None = None,
    ) -> list[JanitorAction]:
        after_at, after_id = after or (None, None)
        values = {
            "limit": limit,
            "after_at": after_at,
            "after_id": after_id,
            "action_type": action_type,
            "target_id": target_id,
            "run_id": run_id,
            "since": since,
        }
        return await self._many("janitor_actions", values, JanitorAction)
