"""The history of a workflow: its earlier definitions, its recent jobs, and how long they took."""

from collections import defaultdict
from typing import Annotated, Any

import yaml
from fastapi import APIRouter, Path, Query
from pydantic import ValidationError

from dagmaster.access.permissions import Permission
from dagmaster.api.job_lists import summaries
from dagmaster.api.problems import responses
from dagmaster.api.services import ApiServices, Services
from dagmaster.api.workflows import WorkflowId
from dagmaster.client.models.pages import Page
from dagmaster.client.models.workflows import DefinitionText, NodeStatistics, StoredDefinition, WorkflowHistory
from dagmaster.database.reads.jobs import JobFilters
from dagmaster.database.reads.workflows import MAX_COUNTED
from dagmaster.errors import NotFound
from dagmaster.jobs.estimates import PastNode
from dagmaster.jobs.states import JOB_TERMINAL, JobStatus
from dagmaster.web.authentication import requires
from dagmaster.web.pages import Cursor, Limit, joined, moment_and_name, page_of
from dagmaster.workflows.graph import build
from dagmaster.workflows.model import Workflow

router = APIRouter(prefix="/workflows", tags=["workflows"])

DefinitionHash = Annotated[str, Path(max_length=64, description="The hash of a definition")]
_READS = [requires(Permission.WORKFLOWS_READ)]
_RECENT = 20


@router.get(
    "/{workflow_id}/definitions",
    operation_id="list_definitions",
    summary="List the definitions that jobs of a workflow have used, newest first",
    responses=responses(404),
    dependencies=_READS,
)
async def list_definitions(
    services: Services, workflow_id: WorkflowId, after: Cursor = None, limit: Limit = 20
) -> Page[StoredDefinition]:
    """Definitions with the same content are listed once. The current one is in the list only if a job has used it."""
    rows = await services.reads.definitions(
        workflow_id, _current_hash(services, workflow_id), limit=limit + 1, after=moment_and_name(after)
    )
    if not rows and workflow_id not in services.library.workflows:
        services.library.get(workflow_id)
    return page_of(rows, limit, lambda row: joined(row.first_used_at.isoformat(), row.definition_hash))


@router.get(
    "/{workflow_id}/definitions/{definition_hash}",
    operation_id="get_definition",
    summary="Get a definition of a workflow as text",
    responses=responses(404),
    dependencies=_READS,
)
async def get_definition(
    services: Services, workflow_id: WorkflowId, definition_hash: DefinitionHash
) -> DefinitionText:
    """`current` instead of a hash means the definition that new jobs use."""
    current = _current_hash(services, workflow_id)
    if definition_hash in {"current", current}:
        return await _current_definition(services, workflow_id)
    stored, body = await services.reads.definition(workflow_id, definition_hash, current)
    facts = {name: getattr(stored, name) for name in StoredDefinition.model_fields}
    return DefinitionText(**facts, yaml=text_of(body), definition=body)


async def _current_definition(services: ApiServices, workflow_id: str) -> DefinitionText:
    """The definition that new jobs use. It may be one that no job has used yet."""
    workflow = services.library.get(workflow_id)
    current, body = workflow.content_hash(), workflow.body()
    try:
        stored, _ = await services.reads.definition(workflow_id, current, current)
        facts = {name: getattr(stored, name) for name in StoredDefinition.model_fields}
    except NotFound:
        now = (await services.reads.platform_state(services.alive_within)).now
        facts = {
            "definition_hash": current,
            "workflow_version": workflow.version,
            "first_used_at": now,
            "jobs": 0,
            "is_exact": True,
            "is_current": True,
        }
    return DefinitionText(**facts, yaml=text_of(body), definition=body)


def _current_hash(services: ApiServices, workflow_id: str) -> str | None:
    workflow = services.library.workflows.get(workflow_id)
    return workflow.content_hash() if workflow else None


def text_of(body: dict[str, Any]) -> str:
    """A definition as YAML. Stored definitions have lost the order of their fields, so nodes are written in the order
    of the graph and fields in the order of the language. The fields of a definition in an older version of the language
    are written in alphabetical order."""
    try:
        workflow = Workflow.model_validate(body)
        ordered = workflow.body()
        ordered["nodes"] = {name: ordered["nodes"][name] for name in build(workflow).order}
    except (ValidationError, ValueError, KeyError):
        ordered = {name: body[name] for name in sorted(body)}
    return str(yaml.safe_dump(ordered, sort_keys=False, allow_unicode=True, width=100))


@router.get(
    "/{workflow_id}/statistics",
    operation_id="get_workflow_statistics",
    summary="Get statistics of the recent jobs of a workflow",
    responses=responses(404),
    dependencies=[requires(Permission.JOBS_READ)],
)
async def get_workflow_statistics(
    services: Services,
    workflow_id: WorkflowId,
    days: Annotated[int, Query(ge=1, le=365, description="Only jobs of the last `days` days")] = 30,
) -> WorkflowHistory:
    results = await services.reads.workflow_results(workflow_id, days)
    if not results and workflow_id not in services.library.workflows:
        services.library.get(workflow_id)
    counts = {JobStatus(result.status): result.count for result in results}
    completed = next((result for result in results if result.status == JobStatus.COMPLETED), None)
    ended = sum(count for status, count in counts.items() if status in JOB_TERMINAL)
    recent = await services.reads.jobs(JobFilters(workflow_ids=[workflow_id]), limit=_RECENT)
    jobs = sum(counts.values())
    return WorkflowHistory(
        workflow_id=workflow_id,
        days=days,
        jobs=jobs,
        is_complete=jobs < MAX_COUNTED,
        by_status={status: counts.get(status, 0) for status in JobStatus},
        success_rate=round(counts.get(JobStatus.COMPLETED, 0) / ended, 4) if ended else None,
        p50_seconds=completed.p50_seconds if completed else None,
        p95_seconds=completed.p95_seconds if completed else None,
        recent=await summaries(services, recent),
        nodes=await _node_statistics(services, workflow_id),
    )


async def _node_statistics(services: ApiServices, workflow_id: str) -> list[NodeStatistics]:
    workflow = services.library.workflows.get(workflow_id)
    if workflow is None:
        return []
    order = build(workflow).order
    durations: dict[str, list[float]] = defaultdict(list)
    for node in await services.reads.past_nodes(workflow_id, order):
        if (seconds := _seconds_of(node)) is not None:
            durations[node.node_id].append(seconds)
    return [
        NodeStatistics(
            node_id=node_id,
            runs=len(durations[node_id]),
            p50_seconds=_percentile(durations[node_id], 0.5),
            p95_seconds=_percentile(durations[node_id], 0.95),
        )
        for node_id in order
    ]


def _seconds_of(node: PastNode) -> float | None:
    if node.began_at is None or node.completed_at is None:
        return None
    return max(0.0, (node.completed_at - node.began_at).total_seconds())


def _percentile(values: list[float], share: float) -> float | None:
    """The same as percentile_cont of PostgreSQL."""
    if not values:
        return None
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return round(ordered[below] + (ordered[above] - ordered[below]) * (place - below), 3)
