"""Jobs: submit, list, get one with its nodes, events and timeline."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Path, Query, Response

from dagmaster.access.caller import Caller
from dagmaster.access.permissions import Permission
from dagmaster.api import examples
from dagmaster.api.estimates import child_estimate, with_estimates
from dagmaster.api.failures import first_failure
from dagmaster.api.job_lists import Filters, counts_of, summaries
from dagmaster.api.outcomes import deliverables, download_url, outcomes
from dagmaster.api.problems import responses
from dagmaster.api.services import ApiServices, Services
from dagmaster.api.summaries import progress_counts, stage_of, stages_of, summaries_of, summary_of, type_of
from dagmaster.api.workflows import graph_edges, read_definition
from dagmaster.client.limits import PREFIX
from dagmaster.client.models.jobs import (
    EventEntry,
    JobCounts,
    JobDetail,
    JobRequest,
    JobSummary,
    Outcomes,
    PublicJob,
    SubmissionCheck,
    SubmissionResult,
    TimelineEntry,
)
from dagmaster.client.models.nodes import NodeDetail, NodeRecord, NodeSummary, PublicNode
from dagmaster.client.models.pages import Page
from dagmaster.client.models.workflows import JobGraph, JobGraphNode
from dagmaster.database.reads.jobs import Snapshot
from dagmaster.errors import InvalidRequest, NotFound
from dagmaster.jobs.model import Job
from dagmaster.jobs.states import NodeStatus, TaskStatus
from dagmaster.jobs.view import JobView, NodeView
from dagmaster.library.workflows import WorkflowLibrary
from dagmaster.operations.submit import prepare, submit_once
from dagmaster.web.authentication import needs, require, requires
from dagmaster.web.pages import (
    MAX_NAME_LENGTH,
    CommaSeparated,
    Cursor,
    Limit,
    bad_cursor,
    joined,
    name_and_number,
    page_of,
)
from dagmaster.workflows.graph import Graph
from dagmaster.workflows.model import FanOutNode

router = APIRouter(prefix="/jobs", tags=["jobs"])
_READS = [requires(Permission.JOBS_READ)]

_MAX_READS = 5
JobId = Annotated[UUID, Path(description="The id of the job", examples=[examples.JOB_ID])]
NodeName = Annotated[str, Path(description="The node; a child of a fan_out is NODE__INDEX", max_length=MAX_NAME_LENGTH)]
AfterSequence = Annotated[int, Query(ge=0, le=2**53, description="Only events with a greater sequence number")]


@router.post(
    "",
    operation_id="submit_job",
    summary="Submit a job",
    status_code=202,
    response_model=SubmissionResult,
    responses={
        200: {
            "model": SubmissionResult,
            "description": "An identical submission was sent before: the status of its job",
        },
        202: {
            "description": "A new job was created, or the existing one was resumed (`resume`)",
            "headers": {"Location": {"description": "The URL of the job", "schema": {"type": "string"}}},
        },
        **responses(404, 409),
    },
)
async def submit_job(
    *,
    services: Services,
    caller: Annotated[Caller, Depends(needs(Permission.JOBS_SUBMIT))],
    response: Response,
    submission: JobRequest,
    resume: Annotated[bool, Query(description="Resume the job of an earlier identical submission")] = False,
    force: Annotated[
        bool, Query(description="Start a new job even if an identical submission was sent before")
    ] = False,
) -> SubmissionResult:
    """The job exists when the response is sent. With an `idempotency_key`, or if the workflow is idempotent, a repeated
    submission of the same caller returns the job of the first one; the same key with other inputs is a conflict. A
    `definition` needs the permission workflows:write."""
    if resume and force:
        raise InvalidRequest(
            "`resume` and `force` cannot be combined: one continues the existing job, the other starts a new one",
            code="request.contradiction",
        )
    if submission.definition is not None:
        require(caller, Permission.WORKFLOWS_WRITE)
    library = await _library_for(services, submission)
    submission = submission.model_copy(update={"submitted_by": caller.name})
    async with services.ledgers.acquire() as ledger:
        result = await submit_once(ledger, library, submission, force=force, resume=resume)
    response.headers["Location"] = f"{PREFIX}/jobs/{result.job_id}"
    if result.status not in ("accepted", "resumed"):
        response.status_code = 200
    return result


@router.post(
    "/check",
    operation_id="check_submission",
    summary="Check a submission without submitting it",
    responses=responses(404),
)
async def check_submission(
    services: Services,
    caller: Annotated[Caller, Depends(needs(Permission.JOBS_SUBMIT))],
    submission: JobRequest,
) -> SubmissionCheck:
    """Runs the same checks as a submission and reports the same problems: `facts.faults` has the reason for each input
    that is not valid. No job is created."""
    if submission.definition is not None:
        require(caller, Permission.WORKFLOWS_WRITE)
    job = prepare(await _library_for(services, submission), submission)
    return SubmissionCheck(
        workflow_id=job.workflow.workflow_id,
        workflow_version=job.workflow.version,
        definition_hash=job.workflow.content_hash(),
        nodes=len(job.workflow.nodes),
        inputs=job.input_params,
    )


async def _library_for(services: ApiServices, submission: JobRequest) -> WorkflowLibrary:
    if submission.definition is None:
        return services.library
    workflow = await read_definition(services, submission.definition)
    if workflow.workflow_id != submission.workflow_id:
        raise InvalidRequest(
            f"`workflow_id` is {submission.workflow_id}, but the definition has {workflow.workflow_id}",
            code="workflow.other-id",
        )
    return replace(services.library, workflows={workflow.workflow_id: workflow})


@router.get("", operation_id="list_jobs", summary="List jobs, newest first", responses=responses(), dependencies=_READS)
async def list_jobs(
    services: Services,
    filters: Filters,
    after: Annotated[UUID | None, Query(description="`next` of the previous page")] = None,
    limit: Limit = 50,
) -> Page[JobSummary]:
    jobs = await services.reads.jobs(filters, limit=limit + 1, after=after)
    page = page_of(jobs, limit, lambda each: each.job.job_id)
    return Page(items=await summaries(services, page.items), next=page.next)


@router.get(
    "/counts",
    operation_id="count_jobs",
    summary="Count jobs by status",
    responses=responses(),
    dependencies=_READS,
)
async def count_jobs(services: Services, filters: Filters) -> JobCounts:
    """How many jobs match the filters of a list, in each status. Each status is counted up to 1,000; with `q`, only the
    newest 1,000 jobs that match are counted."""
    return await counts_of(services, replace(filters, statuses=None))


@router.get("/{job_id}", operation_id="get_job", summary="Get a job", responses=responses(404), dependencies=_READS)
async def get_job(services: Services, job_id: JobId) -> JobDetail:
    """The job, the nodes of its definition with the counts of their children, and a summary of each stage. The cost
    does not depend on the number of children."""
    job = await services.reads.job(job_id)
    try:
        graph = await services.reads.graph(job.definition_hash)
    except NotFound as error:
        return await _without_nodes(services, job, error)
    job, snapshot = await consistent_snapshot(services, job, graph.order)
    nodes = summaries_of(graph, snapshot)
    stages, eta = stages_of(graph, snapshot), None
    if not snapshot.is_over:
        nodes, stages, eta = with_estimates(
            graph, nodes, stages, await services.run_history.nodes(graph, job.definition_hash)
        )
    failed = [node for node in nodes if node.status is NodeStatus.FAILED or node.failed_count]
    advance_error = None if snapshot.is_over else await _advance_error(services, job)
    return JobDetail(
        job=PublicJob.model_validate(job.model_dump()),
        is_over=snapshot.is_over,
        seconds=round(snapshot.seconds, 3),
        elapsed_seconds=round(snapshot.seconds, 3),
        eta_seconds=eta,
        progress=progress_counts(graph, nodes),
        first_failure=await first_failure(services, job_id, graph, nodes) if failed else None,
        failed=sorted(failed, key=lambda node: node.completed_at or snapshot.now),
        stages=stages,
        nodes=nodes,
        outcomes=_outcomes(job, graph, snapshot) if snapshot.is_over else None,
        deliverables=deliverables(job_id, job.result_data) if snapshot.is_over else {},
        advance_error=advance_error,
        trouble=advance_error,
    )


async def _without_nodes(services: ApiServices, job: Job, error: NotFound) -> JobDetail:
    """A job whose definition cannot be read."""
    job, snapshot = await consistent_snapshot(services, job, [])
    return JobDetail(
        job=PublicJob.model_validate(job.model_dump()),
        is_over=snapshot.is_over,
        seconds=round(snapshot.seconds, 3),
        elapsed_seconds=round(snapshot.seconds, 3),
        stages=[],
        nodes=[],
        advance_error=error.message,
        trouble=error.message,
    )


async def consistent_snapshot(services: ApiServices, job: Job, node_ids: Sequence[str]) -> tuple[Job, Snapshot]:
    """The job and its nodes, in the same state. The job may change between the two reads, which are then repeated."""
    snapshot = await services.reads.watch_job(job.job_id, node_ids)
    for _ in range(_MAX_READS):
        if snapshot.status is job.status:
            break
        job = await services.reads.job(job.job_id)
        snapshot = await services.reads.watch_job(job.job_id, node_ids)
    return job, snapshot


async def _advance_error(services: ApiServices, job: Job) -> str | None:
    """The error that the orchestrator recorded among the actions of the janitor, unless the job has advanced since."""
    actions = await services.reads.janitor_actions(limit=1, target_id=str(job.job_id), action_type="job_stuck")
    is_current = actions and (actions[0].detail or {}).get("last_sequence") == job.last_sequence
    return actions[0].reason if is_current else None


def _outcomes(job: Job, graph: Graph, snapshot: Snapshot) -> Outcomes:
    return outcomes(view_of_snapshot(job, graph, snapshot))


def view_of_snapshot(job: Job, graph: Graph, snapshot: Snapshot) -> JobView:
    missing = NodeView(NodeStatus.FAILED, error_message="the row of the node is missing")
    nodes = dict.fromkeys(graph.order, missing) | {node.node_id: _view_of(node) for node in snapshot.nodes}
    return JobView(job.job_id, graph, job.input_params, job.status, nodes=nodes)


def _view_of(node: NodeSummary) -> NodeView:
    return NodeView(
        status=node.status,
        attempt=node.attempt,
        reason=node.reason,
        error_message=node.error_message,
        total=node.total or 0,
        expanded=node.expanded or 0,
        remaining=node.remaining or 0,
        failed_count=node.failed_count or 0,
        cancelled_count=node.cancelled_count or 0,
    )


@router.get(
    "/{job_id}/nodes",
    operation_id="list_nodes",
    summary="List the nodes of a job",
    responses=responses(404),
    dependencies=_READS,
)
async def list_nodes(
    *,
    services: Services,
    job_id: JobId,
    parent: Annotated[
        str | None, Query(max_length=MAX_NAME_LENGTH, description="List the children of this fan_out")
    ] = None,
    status: Annotated[
        CommaSeparated[NodeStatus] | None, Query(description="Only nodes with one of these statuses")
    ] = None,
    after: Annotated[int, Query(ge=-1, le=2**31 - 2, description="`next` of the previous page")] = -1,
    limit: Limit = 50,
) -> Page[PublicNode]:
    """The nodes of the definition in the order of its graph; with `parent`, the children of a fan_out in the order of
    their index."""
    graph, now = await graph_of(services, job_id)
    if parent is None:
        snapshot = await services.reads.watch_job(job_id, graph.order)
        numbered = [(number, node) for number, node in enumerate(snapshot.nodes) if number > after]
        rows = [(number, node) for number, node in numbered if not status or node.status in status][: limit + 1]
    else:
        require_fan_out(graph, parent)
        children = await services.reads.page_children(job_id, parent, limit=limit + 1, after=after, statuses=status)
        rows = [(child.fan_out_index or 0, child) for child in children]
    following = str(rows[limit - 1][0]) if len(rows) > limit else None
    shown = [summary_of(graph, node, now) for _, node in rows[:limit]]
    return Page(items=[_with_child_estimate(node) for node in shown], next=following)


def _with_child_estimate(node: PublicNode) -> PublicNode:
    return node.model_copy(update={"eta_seconds": child_estimate(node)})


@router.get(
    "/{job_id}/nodes/{node_id}",
    operation_id="get_node",
    summary="Get a node with its attempts",
    responses=responses(404),
    dependencies=_READS,
)
async def get_node(services: Services, job_id: JobId, node_id: NodeName) -> NodeDetail:
    node = await services.reads.node(job_id, node_id)
    graph, _ = await graph_of(services, job_id)
    definition_id = node.parent_node_id or node_id
    return NodeDetail(
        node=NodeRecord.model_validate(node.model_dump()),
        type=type_of(graph, node_id, node.parent_node_id),
        stage=stage_of(graph, definition_id),
        attempts=await services.reads.attempts(job_id, node_id),
        checkpoints=await services.reads.checkpoints(job_id, node_id),
        output_url=download_url(job_id, node_id, node.output_ref) if node.output_ref else None,
    )


@router.get(
    "/{job_id}/events",
    operation_id="list_events",
    summary="List the events of a job",
    responses=responses(404),
    dependencies=_READS,
)
async def list_events(
    services: Services,
    job_id: JobId,
    after: AfterSequence = 0,
    node_id: Annotated[str | None, Query(max_length=MAX_NAME_LENGTH, description="Only events of this node")] = None,
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
    dependencies=_READS,
)
async def get_timeline(
    services: Services,
    job_id: JobId,
    *,
    status: Annotated[
        CommaSeparated[TaskStatus] | None, Query(description="Only attempts with one of these statuses")
    ] = None,
    parent: Annotated[
        str | None, Query(max_length=MAX_NAME_LENGTH, description="Only the children of this fan_out, ordered by index")
    ] = None,
    top_level: Annotated[bool, Query(description="Leave out the children of fan_outs")] = False,
    after: Cursor = None,
    limit: Limit = 100,
) -> Page[TimelineEntry]:
    """One entry for each attempt, ordered by node and number. An attempt waits from `queued_at` to `started_at`, and
    runs until `finished_at`."""
    cursor = name_and_number(after)
    if parent is not None and top_level:
        raise InvalidRequest("`parent` and `top_level` cannot be combined", code="request.contradiction")
    if parent is not None:
        graph, _ = await graph_of(services, job_id)
        require_fan_out(graph, parent)
        index = _index_of(parent, cursor[0], after)
        rows = await services.reads.child_timeline(
            job_id, parent, limit=limit + 1, after=(index, cursor[1]), statuses=status
        )
    else:
        node_ids = (await graph_of(services, job_id))[0].order if top_level else None
        await services.reads.brief(job_id)
        rows = await services.reads.timeline(job_id, limit=limit + 1, after=cursor, statuses=status, node_ids=node_ids)
    return page_of(rows, limit, lambda entry: joined(entry.node_id, entry.attempt))


def _index_of(parent: str, child: str, after: str | None) -> int:
    """The index of the child that a cursor names."""
    index = child.removeprefix(f"{parent}__")
    if child and (index == child or not index.isascii() or not index.isdigit() or len(index) > 9):
        raise bad_cursor(after)
    return int(index) if child else 0


@router.get(
    "/{job_id}/graph",
    operation_id="get_job_graph",
    summary="Get the graph of a job with the state of its nodes",
    responses=responses(404),
    dependencies=_READS,
)
async def get_job_graph(services: Services, job_id: JobId) -> JobGraph:
    """A fan_out is one node with the counts of its children; these are listed by `nodes?parent=`."""
    brief = await services.reads.brief(job_id)
    graph = await services.reads.graph(brief.definition_hash)
    snapshot = await services.reads.watch_job(job_id, graph.order)
    nodes = summaries_of(graph, snapshot)
    eta = None
    if not snapshot.is_over:
        past = await services.run_history.nodes(graph, brief.definition_hash)
        nodes, _, eta = with_estimates(graph, nodes, [], past)
    return JobGraph(
        job_id=job_id,
        status=snapshot.status,
        definition_hash=brief.definition_hash,
        eta_seconds=eta,
        nodes=[_graph_node(graph, node) for node in nodes],
        edges=list(graph_edges(graph)),
    )


def _graph_node(graph: Graph, node: PublicNode) -> JobGraphNode:
    number = graph.stages[node.node_id][0] if node.node_id in graph.stages else 0
    definition = graph.workflow.nodes.get(node.node_id)
    return JobGraphNode(**dict(node), stage_number=number, description=definition.description if definition else "")


async def graph_of(services: ApiServices, job_id: UUID) -> tuple[Graph, datetime]:
    brief = await services.reads.brief(job_id)
    return await services.reads.graph(brief.definition_hash), brief.now


def require_fan_out(graph: Graph, name: str) -> None:
    fan_outs = [node_id for node_id, node in graph.workflow.nodes.items() if isinstance(node, FanOutNode)]
    if name not in fan_outs:
        hint = f"fan_outs are: {', '.join(fan_outs)}" if fan_outs else "this workflow has no fan_outs"
        raise NotFound(f"no fan_out is named '{name}'", code="node.not-found", hint=hint)
