"""The stored definitions of workflows, and the results of their jobs."""

from dataclasses import dataclass
from datetime import datetime

from dagmaster.client.models.workflows import StoredDefinition
from dagmaster.database.reads.session import ReadSession
from dagmaster.errors import NotFound
from dagmaster.jobs.model import StoredJson

MAX_COUNTED = 1000


@dataclass(frozen=True, slots=True)
class StatusResults:
    """The jobs of one status, and the durations of those that completed without a resume."""

    status: str
    count: int
    p50_seconds: float | None
    p95_seconds: float | None


class _DefinitionRow(StoredDefinition):
    definition: StoredJson


class WorkflowReads(ReadSession):
    async def definitions(
        self, workflow_id: str, current: str | None, *, limit: int, after: tuple[datetime, str] | None = None
    ) -> list[StoredDefinition]:
        """Newest first. `current` is the hash of the definition that new jobs have."""
        after_at, after_hash = after or (None, None)
        values = {
            "workflow_id": workflow_id,
            "current": current,
            "most": MAX_COUNTED,
            "limit": limit,
            "after_at": after_at,
            "after_hash": after_hash,
        }
        return await self._many("workflow_definitions", values, StoredDefinition)

    async def definition(
        self, workflow_id: str, definition_hash: str, current: str | None
    ) -> tuple[StoredDefinition, StoredJson]:
        values = {
            "workflow_id": workflow_id,
            "definition_hash": definition_hash,
            "current": current,
            "most": MAX_COUNTED,
        }
        row = await self._first("workflow_definition", values, _DefinitionRow)
        if row is None:
            raise NotFound(
                f"workflow '{workflow_id}' has no definition {definition_hash}",
                code="definition.not-found",
                definition_hash=definition_hash,
            )
        return row, row.definition

    async def workflow_results(self, workflow_id: str, days: int) -> list[StatusResults]:
        values = {"workflow_id": workflow_id, "days": days, "most": MAX_COUNTED}
        return await self._many("workflow_results", values, StatusResults)
