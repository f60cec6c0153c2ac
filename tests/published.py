"""Published datasets for tests: files are submitted as assets of the platform `local`, and approved, with the same
operations that users call."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dagmaster.access.caller import Caller, Scope
from dagmaster.assets.states import Clearance
from dagmaster.client.models.assets import AssetSubmissionRequest, AssetSubmissionResult, SourceReference
from dagmaster.database.assets.store import AssetStore
from dagmaster.library.workflows import WorkflowLibrary
from dagmaster.operations.assets.approve import approve
from dagmaster.operations.assets.submit import submit_asset
from dagmaster.storage import Storage

ADMIN = Caller("ada", frozenset({Scope.ADMIN}))


@dataclass(frozen=True, slots=True)
class Publisher:
    store: AssetStore
    library: WorkflowLibrary
    storage: Storage

    async def submit(
        self,
        dataset: str,
        source: str | Sequence[str],
        workflow_id: str | None = None,
        *,
        label: str | None = None,
        force: bool = False,
        **parameters: Any,
    ) -> AssetSubmissionResult:
        """Submit one blob of the bronze zone, or several that become a collection."""
        one = isinstance(source, str)
        request = AssetSubmissionRequest(
            platform_id="local",
            platform_refs={"dataset": dataset},
            version_label=label,
            source=SourceReference(blob=source) if one else SourceReference(blobs=list(source)),
            workflow_id=workflow_id,
            parameters=parameters,
            force=force,
        )
        return await submit_asset(self.store, self.library, self.storage, request=request, caller=ADMIN)

    async def approve(self, submitted: AssetSubmissionResult, clearance: str = "ouo") -> None:
        """Publish the newest revision of the version that was submitted."""
        assert submitted.version_ordinal is not None
        level = Clearance(clearance)
        await approve(self.store, submitted.asset_id, submitted.version_ordinal, caller=ADMIN, clearance=level)
