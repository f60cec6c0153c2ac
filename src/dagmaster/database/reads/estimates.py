"""Past jobs of workflows, for estimates: a bounded number of the newest ones."""

from collections.abc import Sequence

from dagmaster.database.reads.session import ReadSession
from dagmaster.jobs.estimates import PastNode

RUNS = 20
SEARCHED = 200  # newest jobs of a workflow among which completed ones are looked for


class EstimateReads(ReadSession):
    async def past_nodes(self, workflow_id: str, node_ids: Sequence[str]) -> list[PastNode]:
        """The nodes of the last jobs of a workflow that completed."""
        values = {"workflow_id": workflow_id, "node_ids": list(node_ids), "runs": RUNS, "searched": SEARCHED}
        return await self._many("past_nodes", values, PastNode)

    async def usual_seconds(self, workflow_ids: Sequence[str]) -> dict[str, float]:
        """The median duration of the last jobs of workflows that completed."""
        values = {"workflow_ids": list(workflow_ids), "searched": SEARCHED}
        rows = await self._dicts("usual_seconds", values)
        return {row["workflow_id"]: row["seconds"] for row in rows}
