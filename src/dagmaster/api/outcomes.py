"""The outcomes and deliverables of a job that has ended.

The primary outcome is that of the critical nodes. Each important or optional node that did not complete is a secondary
outcome, with the request that resumes the job. Deliverables are the entries of the job's result.
"""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from dagmaster.client.limits import PREFIX
from dagmaster.client.models.jobs import Deliverable, Outcomes, PrimaryOutcome, SecondaryOutcome
from dagmaster.jobs.rerun import RESUMABLE
from dagmaster.jobs.states import JobStatus, NodeStatus, SkipReason
from dagmaster.jobs.view import JobView, is_unsuccessful
from dagmaster.workflows.model import EndNode, Importance, StartNode

_LOCATIONS = ("location", "href", "url", "uri", "path")


def outcomes(view: JobView) -> Outcomes:
    workflow = view.graph.workflow
    counted = [node_id for node_id in view.graph.order if not isinstance(workflow.nodes[node_id], StartNode | EndNode)]
    incomplete = [node_id for node_id in counted if is_unsuccessful(view, node_id)]
    critical = [node_id for node_id in counted if workflow.nodes[node_id].importance is Importance.CRITICAL]
    missing = [node_id for node_id in incomplete if node_id in critical]
    skipped = [node_id for node_id in critical if _is_on_another_branch(view, node_id)]
    done = len(critical) - len(missing) - len(skipped)
    details = f"{done} of {len(critical) - len(skipped)} critical nodes completed"
    is_complete = not missing and view.status is not JobStatus.FAILED
    primary = PrimaryOutcome(
        description=workflow.description or workflow.workflow_id,
        status="completed" if is_complete else view.status.value,
        details=details + (f"; missing: {', '.join(missing)}" if missing else ""),
    )
    secondary = [_secondary(view, node_id) for node_id in incomplete if node_id not in critical]
    return Outcomes(primary=primary, secondary=secondary)


def _is_on_another_branch(view: JobView, node_id: str) -> bool:
    state = view.nodes[node_id]
    return state.status is NodeStatus.SKIPPED and state.reason == SkipReason.BRANCH_NOT_TAKEN


def _secondary(view: JobView, node_id: str) -> SecondaryOutcome:
    node, state = view.graph.workflow.nodes[node_id], view.nodes[node_id]
    error = state.error_message
    if error is None and state.failed_count:
        error = f"{state.failed_count} of {state.total} children failed"
    if error is None and state.reason:
        error = state.reason.replace("_", " ")
    return SecondaryOutcome(
        node_id=node_id,
        description=node.description or node_id,
        importance=node.importance,
        status=state.status.value if state.status is not NodeStatus.COMPLETED else NodeStatus.FAILED.value,
        error=error,
        recovery=f"POST {PREFIX}/jobs/{view.job_id}/resume" if view.status in RESUMABLE else None,
    )


def download_url(job_id: UUID, node_id: str, reference: Mapping[str, Any]) -> str:
    """The URL of a value that is stored by reference."""
    sha256 = reference.get("sha256")
    part = f"payloads/{sha256}" if isinstance(sha256, str) else f"nodes/{node_id}/output"
    return f"{PREFIX}/jobs/{job_id}/{part}"


def deliverables(job_id: UUID, result: Any) -> dict[str, Deliverable]:
    if not isinstance(result, Mapping):
        return {}
    return {str(name): _deliverable(job_id, str(name), value) for name, value in result.items()}


def _deliverable(job_id: UUID, name: str, value: Any) -> Deliverable:
    if isinstance(value, Mapping) and isinstance(value.get("output_ref"), Mapping):
        return Deliverable(count=1, location=download_url(job_id, name, value["output_ref"]), usable=True)
    count = 0 if value is None else 1
    if isinstance(value, list):
        count = len(value)
    elif isinstance(value, Mapping) and isinstance(value.get("count"), int):
        count = value["count"]
    return Deliverable(count=count, location=_location(value), usable=value is not None)


def _location(value: Any) -> str | None:
    if isinstance(value, str):
        return value if "/" in value else None
    if isinstance(value, Mapping):
        return next((value[key] for key in _LOCATIONS if isinstance(value.get(key), str)), None)
    return None
