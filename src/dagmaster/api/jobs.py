"""Jobs: submit, list, get one with its nodes, events and timeline."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Path, Query, Response
from pydantic import AwareDatetime

from dagmaster.api import examples
from dagmaster.api.outcomes import deliverables, download_url, outcomes
from dagmaster.api.pages import LONGEST_NAME, Cursor, Limit, joined, name_and_number, page_of
from dagmaster.api.problems import responses
from dagmaster.api.services import ApiServices, Services
from dagmaster.api.summaries import stages_of, summary_of
from dagmaster.api.workflows import read_definition
from dagmaster.client.limits import PREFIX
from dagmaster.client.models.jobs import (
    EventEntry,
    JobDetail,
    JobRequest,
    JobSummary,
    Outcomes,
    PublicJob,
    SubmissionResult,
    TimelineEntry,
)
from dagmaster.client.models.nodes import NodeDetail, NodeSummary, PublicNode
from dagmaster.client.models.pages import Page
from dagmaster.database.reads.jobs import Snapshot
from dagmaster.errors import InvalidRequest, NotFound
from dagmaster.jobs.model import Job
from dagmaster.jobs.states import JobStatus, NodeStatus, TaskStatus
from dagmaster.jobs.view import JobView, NodeView
from dagmaster.operations.library import WorkflowLibrary
from dagmaster.operations.submit import submit_once
from dagmaster.workflows.graph import Graph
from dagmaster.workflows.model import FanOutNode

router = APIRouter(prefix="/jobs", tags=["jobs"])

JobId = Annotated[UUID, Path(description="The id of the job", examples=[examples.JOB_ID])]
NodeName = Annotated[str, Path(description="The node; a child of a fan_out is NODE__INDEX", max_length=LONGEST_NAME)]
AfterSequence = Annotated[int, Query(ge=0, le=2**53, description="Only events with a greater sequence number")]


@router.post(
    "",
    operation_id="submit_job",
    summary="Submit a job",
    status_code=202,
    response_model=SubmissionResult,
    responses={
        200: {"model": SubmissionResult, "description": "The same was submitted before: the status of that job"},
        202: {
            "description": "A new job was created, or the existing one was resumed (`resume`)",
            "headers": {"Location": {"description": "The URL of the job", "schema": {"type": "string"}}},
        },
        **responses(404, 409),
    },
)
async def submit_job(
    services: Services,
    response: Response,
    submission: JobRequest,
    resume: Annotated[bool, Query(description="Resume the job of an earlier identical submission")] = False,
    force: Annotated[bool, Query(description="Start a new job even if the same was submitted before")] = False,
) -> SubmissionResult:
    """The job exists when the response is sent. With an `idempotency_key`, or if the workflow is idempotent, a repeated
    submission returns the job of the first one; the same key with other inputs is a conflict."""
    if resume and force:
        raise InvalidRequest(
            "`resume` and `force` cannot be combined: one continues the existing job, the other starts a new one",
            code="request.contradiction",
        )
    catalog = await _catalog_for(services, submission)
    async with services.ledgers.one() as ledger:
        result = await submit_once(ledger, catalog, submission, force=force, resume=resume)
    response.headers["Location"] = f"{PREFIX}/jobs/{result.job_id}"
    if result.status not in ("accepted", "resumed"):
        response.status_code = 200
    return result


async def _catalog_for(services: ApiServices, submission: JobRequest) -> WorkflowLibrary:
    if submission.definition is None:
        return services.catalog
    workflow = await read_definition(services, submission.definition)
    if workflow.workflow_id != submission.workflow_id:
        raise InvalidRequest(
            f"`workflow_id` is {submission.workflow_id}, but the definition has {workflow.workflow_id}",
            code="workflow.other-id",
        )
    return WorkflowLibrary({workflow.workflow_id: workflow}, max_inputs_bytes=services.catalog.max_inputs_bytes)


@router.get("", operation_id="list_jobs", summary="List jobs, newest first", responses=responses())
async def list_jobs(
    *,
    services: Services,
    status: Annotated[JobStatus | None, Query(description="Only jobs with this status")] = None,
    workflow_id: Annotated[str | None, Query(max_length=64)] = None,
    submitted_by: Annotated[str | None, Query(max_length=64)] = None,
    correlation_id: Annotated[str | None, Query(max_length=64)] = None,
    created_after: Annotated[AwareDatetime | None, Query(description="Only jobs created at this time or later")] = None,
    created_before: Annotated[AwareDatetime | None, Query(description="Only jobs created before this time")] = None,
    after: Annotated[UUID | None, Query(description="`next` of the previous page")] = None,
    limit: Limit = 50,
) -> Page[JobSummary]:
    rows = await services.reads.jobs(
        limit=limit + 1,
        after=after,
        status=status,
        workflow_id=workflow_id,
        submitted_by=submitted_by,
        correlation_id=correlation_id,
        created_after=created_after,
        created_before=created_before,
    )
    return page_of(rows, limit, lambda job: job.job_id)


@router.get("/{job_id}", operation_id="get_job", summary="Get a job", responses=responses(404))
async def get_job(services: Services, job_id: JobId) -> JobDetail:
    """The job, the nodes of its definition with the counts of their children, and a summary of each stage. The cost
    does not depend on the number of children."""
    job = await services.reads.job(job_id)
    graph = await services.reads.graph(job.definition_hash)
    snapshot = await services.reads.watch_job(job_id, graph.order)
    nodes = [summary_of(graph, node, snapshot.now) for node in snapshot.nodes]
    failed = [node for node in nodes if node.status is NodeStatus.FAILED or node.failed_count]
    return JobDetail(
        job=PublicJob.model_validate(job.model_dump()),
        is_over=snapshot.is_over,
        seconds=round(snapshot.seconds, 3),
        failed=sorted(failed, key=lambda node: node.completed_at or snapshot.now),
        stages=stages_of(graph, snapshot),
        nodes=nodes,
        outcomes=_outcomes(job, graph, snapshot) if snapshot.is_over else None,
        deliverables=deliverables(job_id, job.result_data) if snapshot.is_over else {},
        trouble=None if snapshot.is_over else await _trouble(services, job),
    )


async def _trouble(services: ApiServices, job: Job) -> str | None:
    """The error that orchestrators reported to the janitor, unless the job has advanced since."""
    actions = await services.reads.janitor_actions(limit=1, target_id=str(job.job_id), action_type="job_stuck")
    is_current = actions and actions[0].detail and actions[0].detail["last_sequence"] == job.last_sequence
    return actions[0].reason if is_current else None


def _outcomes(job: Job, graph: Graph, snapshot: Snapshot) -> Outcomes:
    nodes = {node.node_id: _view_of(node) for node in snapshot.nodes}
    return outcomes(JobView(job.job_id, graph, job.input_params, job.status, nodes=nodes))


def _view_of(node: NodeSummary) -> NodeView:
    return NodeView(
        status=node.status,
        reason=node.reason,
        error_message=node.error_message,
        total=node.total or 0,
        expanded=node.expanded or 0,
        remaining=node.remaining or 0,
        failed_count=node.failed_count or 0,
        cancelled_count=node.cancelled_count or 0,
    )


@router.get("/{job_id}/nodes", operation_id="list_nodes", summary="List the nodes of a job", responses=responses(404))
async def list_nodes(
    *,
    services: Services,
    job_id: JobId,
    parent: Annotated[str | None, Query(max_length=LONGEST_NAME, description="The children of this fan_out")] = None,
    status: Annotated[NodeStatus | None, Query(description="Only nodes with this status")] = None,
    after: Annotated[int, Query(ge=-1, le=2**31 - 2, description="`next` of the previous page")] = -1,
    limit: Limit = 50,
) -> Page[PublicNode]:
    """The nodes of the definition in the order of its graph; with `parent`, the children of a fan_out in the order of
    their index."""
    graph, now = await graph_of(services, job_id)
    if parent is None:
        snapshot = await services.reads.watch_job(job_id, graph.order)
        numbered = [(number, node) for number, node in enumerate(snapshot.nodes) if number > after]
        lines = [(number, node) for number, node in numbered if status in (None, node.status)][: limit + 1]
    else:
        require_fan_out(graph, parent)
        children = await services.reads.page_children(job_id, parent, limit=limit + 1, after=after, status=status)
        lines = [(child.fan_out_index or 0, child) for child in children]
    following = str(lines[limit - 1][0]) if len(lines) > limit else None
    return Page(items=[summary_of(graph, node, now) for _, node in lines[:limit]], next=following)


@router.get(
    "/{job_id}/nodes/{node_id}",
    operation_id="get_node",
    summary="Get a node with its attempts",
    responses=responses(404),
)
async def get_node(services: Services, job_id: JobId, node_id: NodeName) -> NodeDetail:
    node = await services.reads.node(job_id, node_id)
    graph, _ = await graph_of(services, job_id)
    definition_id = node.parent_node_id or node_id
    return NodeDetail(
        node=node,
        type="task" if node.parent_node_id else graph.workflow.nodes[node_id].type,
        stage=graph.stages[definition_id][1],
        attempts=await services.reads.attempts(job_id, node_id),
        checkpoints=await services.reads.checkpoints(job_id, node_id),
        output_url=download_url(job_id, node_id, node.output_ref) if node.output_ref else None,
    )


@router.get(
    "/{job_id}/events", operation_id="list_events", summary="List the events of a job", responses=responses(404)
)
async def list_events(
    services: Services,
    job_id: JobId,
    after: AfterSequence = 0,
    node_id: Annotated[str | None, Query(max_length=LONGEST_NAME, description="Only events of this node")] = None,
    limit: Limit = 100,
) -> Page[EventEntry]:
    """All events of the job in order. Sequence numbers have no gaps."""
    await services.reads.brief(job_id)
    rows = await services.reads.page_events(job_id, limit=limit + 1, after=after, node_id=node_id)
    return page_of(rows, limit, lambda event: event.sequence)


@router.get(
    "/{job_id}/timeline",
    operation_id="get_timeline",
    summary="Get the attempts of a job as a timeline",
    responses=responses(404),
)
async def get_timeline(
    services: Services,
    job_id: JobId,
    status: Annotated[TaskStatus | None, Query(description="Only attempts with this status")] = None,
    after: Cursor = None,
    limit: Limit = 100,
) -> Page[TimelineEntry]:
    """One bar for each attempt, by node and number: it waits from `queued_at` to `started_at`, then it runs."""
    await services.reads.brief(job_id)
    rows = await services.reads.timeline(job_id, limit=limit + 1, after=name_and_number(after), status=status)
    return page_of(rows, limit, lambda bar: joined(bar.node_id, bar.attempt))


async def graph_of(services: ApiServices, job_id: UUID) -> tuple[Graph, datetime]:
    brief = await services.reads.brief(job_id)
    return await services.reads.graph(brief.definition_hash), brief.now


def require_fan_out(graph: Graph, name: str) -> None:
    fan_outs = [node_id for node_id, node in graph.workflow.nodes.items() if isinstance(node, FanOutNode)]
    if name not in fan_outs:
        hint = f"fan_outs are: {', '.join(fan_outs)}" if fan_outs else "this workflow has none"
        raise NotFound(f"no fan_out is named '{name}'", code="node.not-found", hint=hint)
