"""What came of a job, for people who asked for it: what was the point, what else was to come, what can be used.

The primary outcome is that of the critical nodes; each important or optional node that fell short is a secondary one, with the call
that makes good for it. Deliverables are what the job's result names.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from dagmaster.jobs.rerun import RESUMABLE
from dagmaster.jobs.states import NodeStatus, SkipReason
from dagmaster.jobs.view import JobView, is_unsuccessful
from dagmaster.workflows.model import EndNode, Importance, StartNode

_LOCATIONS = ("location", "href", "url", "uri", "path")


@dataclass(frozen=True, slots=True)
class Primary:
    description: str
    status: str
    details: str


@dataclass(frozen=True, slots=True)
class Secondary:
    node_id: str
    description: str
    importance: Importance
    status: str
    error: str | None
    recovery: str | None


@dataclass(frozen=True, slots=True)
class Outcomes:
    primary: Primary
    secondary: list[Secondary] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Deliverable:
    """`usable` is false where the result names something that did not come about."""

    count: int
    location: str | None
    usable: bool


def outcomes(view: JobView) -> Outcomes:
    """Of a job that has ended."""
    workflow = view.graph.workflow
    counted = [node_id for node_id in view.graph.order if not isinstance(workflow.nodes[node_id], StartNode | EndNode)]
    short = [node_id for node_id in counted if is_unsuccessful(view, node_id)]
    critical = [node_id for node_id in counted if workflow.nodes[node_id].importance is Importance.CRITICAL]
    missing = [node_id for node_id in short if node_id in critical]
    skipped = [node_id for node_id in critical if _is_off_the_branch(view, node_id)]
    done = len(critical) - len(missing) - len(skipped)
    details = f"{done} of {len(critical) - len(skipped)} critical nodes completed"
    primary = Primary(
        workflow.description or workflow.workflow_id,
        "completed" if not missing and view.status.value != "failed" else view.status.value,
        details + (f"; missing: {', '.join(missing)}" if missing else ""),
    )
    return Outcomes(primary, [_secondary(view, node_id) for node_id in short if node_id not in critical])


def _is_off_the_branch(view: JobView, node_id: str) -> bool:
    state = view.nodes[node_id]
    return state.status is NodeStatus.SKIPPED and state.reason == SkipReason.BRANCH_NOT_TAKEN


def _secondary(view: JobView, node_id: str) -> Secondary:
    node, state = view.graph.workflow.nodes[node_id], view.nodes[node_id]
    error = state.error_message
    if error is None and state.failed_count:
        error = f"{state.failed_count} of {state.total} children failed"
    if error is None and state.reason:
        error = state.reason.replace("_", " ")
    return Secondary(
        node_id,
        node.description or node_id,
        node.importance,
        state.status.value if state.status is not NodeStatus.COMPLETED else NodeStatus.FAILED.value,
        error,
        recovery(view.job_id) if view.status in RESUMABLE else None,
    )


def recovery(job_id: UUID) -> str:
    """The call that makes good for what is missing."""
    return f"POST /api/v1/jobs/{job_id}/resume"


def download(job_id: UUID, node_id: str, reference: Mapping[str, Any]) -> str:
    """Where the value is that is kept by reference."""
    part = f"payloads/{reference['sha256']}" if "sha256" in reference else f"nodes/{node_id}/output"
    return f"/api/v1/jobs/{job_id}/{part}"


def deliverables(job_id: UUID, result: Any) -> dict[str, Deliverable]:
    if not isinstance(result, Mapping):
        return {}
    return {str(name): _deliverable(job_id, str(name), value) for name, value in result.items()}


def _deliverable(job_id: UUID, name: str, value: Any) -> Deliverable:
    if isinstance(value, Mapping) and isinstance(value.get("output_ref"), Mapping):
        return Deliverable(1, download(job_id, name, value["output_ref"]), usable=True)
    count = 0 if value is None else 1
    if isinstance(value, list):
        count = len(value)
    elif isinstance(value, Mapping) and isinstance(value.get("count"), int):
        count = value["count"]
    return Deliverable(count, _location(value), value is not None)


def _location(value: Any) -> str | None:
    if isinstance(value, str):
        return value if "/" in value else None
    if isinstance(value, Mapping):
        return next((found for key in _LOCATIONS if isinstance(found := value.get(key), str)), None)
    return None
