"""Jobs: submit, list, look at one and its parts."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Path, Query, Response
from pydantic import AwareDatetime, BaseModel, Field, field_serializer

from dagmaster.api import examples
from dagmaster.api.pages import LONGEST_NAME, Cursor, Limit, Page, joined, name_and_number, page_of
from dagmaster.api.problems import responses
from dagmaster.api.services import ApiServices, Services
from dagmaster.api.workflows import read_definition
from dagmaster.database.notify.notifier import JOBS
from dagmaster.database.reads.jobs import EventEntry, NodeSummary, Snapshot
from dagmaster.database.reads.pages import Attempt, JobSummary, SavedCheckpoint, TimelineEntry
from dagmaster.errors import InvalidRequest, NotFound
from dagmaster.jobs.fan import tolerated
from dagmaster.jobs.model import Job, NodeState, Submission
from dagmaster.jobs.outcomes import Deliverable, Outcomes, deliverables, download, outcomes
from dagmaster.jobs.states import NODE_LIVE, JobStatus, NodeStatus, TaskStatus
from dagmaster.jobs.view import JobView, NodeView
from dagmaster.observe.redaction import redact
from dagmaster.operations.library import WorkflowLibrary
from dagmaster.operations.submit import Answer, submit_once
from dagmaster.workflows.graph import Graph
from dagmaster.workflows.model import FanOutNode, Importance, work_of

router = APIRouter(prefix="/jobs", tags=["jobs"])

JobId = Annotated[UUID, Path(description="The job", examples=[examples.JOB_ID])]
NodeName = Annotated[str, Path(description="The node; a fan_out's child is NODE__INDEX", max_length=LONGEST_NAME)]
Sequence_ = Annotated[int, Query(ge=0, le=2**53, description="Begin behind this number")]


class JobRequest(Submission):
    """A submission; of a workflow that the platform knows, or of one that comes along."""

    definition: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="A workflow file (YAML) to run instead of the known one; `workflow_id` is the one in it"
    )


class ShownJob(Job):
    """A job without what only its owner may know."""

    claim_token: UUID | None = Field(None, exclude=True)

    @field_serializer("callback_url")
    def _without_secrets(self, url: str | None) -> str | None:
        return redact(url) if url else url


@dataclass(frozen=True, slots=True)
class Children:
    """A fan_out's children, counted. `waiting` are queued or not made yet, `retrying` wait for their next attempt."""

    total: int
    done: int
    running: int
    retrying: int
    waiting: int
    failed: int
    cancelled: int


@dataclass(frozen=True, slots=True)
class ShownNode(NodeSummary):
    """A node, or a fan_out's child. `state` is the word for people: a fan_out runs as long as its children do."""

    type: str
    stage: str
    importance: Importance
    handler: str | None
    state: str
    seconds: float | None
    children: Children | None


@dataclass(frozen=True, slots=True)
class StageSummary:
    """Nodes that belong together for people. Its seconds reach from its first beginning to its last end."""

    number: int
    name: str
    status: str
    nodes: int
    completed: int
    failed: int
    children: int
    children_failed: int
    started_at: datetime | None
    ended_at: datetime | None
    seconds: float | None


class JobDetail(BaseModel):
    """A job, the nodes of its definition, and a summary of its stages. The result is the job's `result_data`."""

    job: ShownJob
    is_over: bool
    seconds: float = Field(description="From its creation to its end, or until now")
    failed: list[ShownNode] = Field(description="Nodes of the definition that failed, the first failure first")
    stages: list[StageSummary]
    nodes: list[ShownNode]
    outcomes: Outcomes | None = Field(None, description="What came of it, once it has ended")
    deliverables: dict[str, Deliverable] = Field({}, description="What its result names, and whether it can be used")
    trouble: str | None = Field(None, description="Why orchestrators can't advance it, where they have failed to")


class NodeDetail(BaseModel):
    """A node with its attempts, the last one first: parameters, outcome, log lines. And what its handler has checkpointed."""

    node: NodeState
    type: str
    stage: str
    attempts: list[Attempt]
    checkpoints: list[SavedCheckpoint]
    output_url: str | None = Field(None, description="Where the output is, if it is too large to be shown here")


@router.post(
    "",
    operation_id="submit_job",
    summary="Submit a job",
    status_code=202,
    response_model=Answer,
    responses={
        200: {"model": Answer, "description": "The same was submitted before; the answer tells what became of it"},
        202: {
            "description": "A new job was created, or with `resume` the old one goes on",
            "headers": {"Location": {"description": "Where the job is", "schema": {"type": "string"}}},
        },
        **responses(404, 409),
    },
)
async def submit_job(
    services: Services,
    response: Response,
    submission: JobRequest,
    resume: Annotated[bool, Query(description="Go on with the job that the same submission made before")] = False,
    force: Annotated[bool, Query(description="Start a new run even if the same was submitted before")] = False,
) -> Answer:
    """Create a job, before the answer. With an `idempotency_key`, or where the workflow is idempotent, a repeated
    submission answers with the job that the first one made; the same key with other inputs is a conflict."""
    if resume and force:
        raise InvalidRequest(
            "`resume` goes on with the old job, `force` starts a new one", code="request.contradiction"
        )
    catalog = await _catalog_for(services, submission)
    async with services.ledgers.one() as ledger:
        answer = await submit_once(ledger, catalog, submission, force=force, resume=resume)
    response.headers["Location"] = f"/api/v1/jobs/{answer.job_id}"
    if answer.status in ("accepted", "resumed"):
        services.notifier.notify(JOBS)
    else:
        response.status_code = 200
    return answer


async def _catalog_for(services: ApiServices, submission: JobRequest) -> WorkflowLibrary:
    if submission.definition is None:
        return services.catalog
    workflow = await read_definition(services, submission.definition)
    if workflow.workflow_id != submission.workflow_id:
        raise InvalidRequest(
            f"`workflow_id` is {submission.workflow_id}, and that of the definition is {workflow.workflow_id}",
            code="workflow.other-id",
        )
    return WorkflowLibrary({workflow.workflow_id: workflow}, max_inputs_bytes=services.catalog.max_inputs_bytes)


@router.get("", operation_id="list_jobs", summary="List jobs, newest first", responses=responses())
async def list_jobs(
    *,
    services: Services,
    status: Annotated[JobStatus | None, Query(description="Only jobs in this state")] = None,
    workflow_id: Annotated[str | None, Query(max_length=64)] = None,
    submitted_by: Annotated[str | None, Query(max_length=64)] = None,
    correlation_id: Annotated[str | None, Query(max_length=64)] = None,
    created_after: Annotated[AwareDatetime | None, Query(description="At this time or later")] = None,
    created_before: Annotated[AwareDatetime | None, Query(description="Before this time")] = None,
    after: Annotated[UUID | None, Query(description="`next` of the page before")] = None,
    limit: Limit = 50,
) -> Page[JobSummary]:
    found = await services.reads.jobs(
        limit=limit + 1, after=after, status=status, workflow_id=workflow_id, submitted_by=submitted_by,
        correlation_id=correlation_id, created_after=created_after, created_before=created_before,
    )  # fmt: skip
    return page_of(found, limit, lambda job: job.job_id)


@router.get("/{job_id}", operation_id="get_job", summary="Look at a job", responses=responses(404))
async def get_job(services: Services, job_id: JobId) -> JobDetail:
    """The job, the nodes of its definition with the counts of their children, and a summary of each stage. It costs the
    same for ten children as for a hundred thousand."""
    job = await services.reads.job(job_id)
    graph = await services.reads.graph(job.definition_hash)
    snapshot = await services.reads.watch_job(job_id, graph.order)
    nodes = [shown(graph, node, snapshot.now) for node in snapshot.nodes]
    failed = [node for node in nodes if node.status is NodeStatus.FAILED or node.failed_count]
    return JobDetail(
        job=ShownJob.model_validate(job.model_dump()),
        is_over=snapshot.is_over,
        seconds=round(snapshot.seconds, 3),
        failed=sorted(failed, key=lambda node: node.completed_at or snapshot.now),
        stages=stages(graph, snapshot),
        nodes=nodes,
        outcomes=_outcomes(job, graph, snapshot) if snapshot.is_over else None,
        deliverables=deliverables(job_id, job.result_data) if snapshot.is_over else {},
        trouble=None if snapshot.is_over else await _trouble(services, job),
    )


async def _trouble(services: ApiServices, job: Job) -> str | None:
    """What the janitor was told of, as long as the job has not moved since."""
    found = await services.reads.janitor_actions(limit=1, target_id=str(job.job_id), action_type="job_stuck")
    is_current = found and found[0].detail and found[0].detail["last_sequence"] == job.last_sequence
    return found[0].reason if is_current else None


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


@router.get("/{job_id}/nodes", operation_id="list_nodes", summary="List a job's nodes", responses=responses(404))
async def list_nodes(
    *,
    services: Services,
    job_id: JobId,
    parent: Annotated[str | None, Query(max_length=LONGEST_NAME, description="The children of this fan_out")] = None,
    status: Annotated[NodeStatus | None, Query(description="Only nodes in this state")] = None,
    after: Annotated[int, Query(ge=-1, le=2**31 - 2, description="`next` of the page before")] = -1,
    limit: Limit = 50,
) -> Page[ShownNode]:
    """The nodes of the definition in the order of its graph, or with `parent` a fan_out's children by their index."""
    graph, now = await graph_of(services, job_id)
    if parent is None:
        snapshot = await services.reads.watch_job(job_id, graph.order)
        placed = [(place, node) for place, node in enumerate(snapshot.nodes) if place > after]
        lines = [(place, node) for place, node in placed if status in (None, node.status)][: limit + 1]
    else:
        require_fan_out(graph, parent)
        children = await services.reads.page_children(job_id, parent, limit=limit + 1, after=after, status=status)
        lines = [(child.fan_out_index or 0, child) for child in children]
    following = str(lines[limit - 1][0]) if len(lines) > limit else None
    return Page(items=[shown(graph, node, now) for _, node in lines[:limit]], next=following)


@router.get(
    "/{job_id}/nodes/{node_id}",
    operation_id="get_node",
    summary="Look at a node and its attempts",
    responses=responses(404),
)
async def get_node(services: Services, job_id: JobId, node_id: NodeName) -> NodeDetail:
    node = await services.reads.node(job_id, node_id)
    graph, _ = await graph_of(services, job_id)
    of = node.parent_node_id or node_id
    attempts = await services.reads.attempts(job_id, node_id)
    checkpoints = await services.reads.checkpoints(job_id, node_id)
    return NodeDetail(
        node=node,
        type=_type_of(graph, node),
        stage=graph.stages[of][1],
        attempts=attempts,
        checkpoints=checkpoints,
        output_url=download(job_id, node_id, node.output_ref) if node.output_ref else None,
    )


def _type_of(graph: Graph, node: NodeState) -> str:
    return "task" if node.parent_node_id else graph.workflow.nodes[node.node_id].type


@router.get("/{job_id}/events", operation_id="list_events", summary="List a job's events", responses=responses(404))
async def list_events(
    services: Services,
    job_id: JobId,
    after: Sequence_ = 0,
    node_id: Annotated[str | None, Query(max_length=LONGEST_NAME, description="Only events of this node")] = None,
    limit: Limit = 100,
) -> Page[EventEntry]:
    """Everything that ever happened to a job, in order. Numbers have no gaps."""
    await services.reads.brief(job_id)
    found = await services.reads.page_events(job_id, limit=limit + 1, after=after, node_id=node_id)
    return page_of(found, limit, lambda event: event.sequence)


@router.get(
    "/{job_id}/timeline", operation_id="get_timeline", summary="A job's attempts as bars", responses=responses(404)
)
async def get_timeline(
    services: Services,
    job_id: JobId,
    status: Annotated[TaskStatus | None, Query(description="Only attempts in this state")] = None,
    after: Cursor = None,
    limit: Limit = 100,
) -> Page[TimelineEntry]:
    """One bar per attempt, by node and number: from `queued_at` to `started_at` it waits, then it runs."""
    await services.reads.brief(job_id)
    found = await services.reads.timeline(job_id, limit=limit + 1, after=name_and_number(after), status=status)
    return page_of(found, limit, lambda bar: joined(bar.node_id, bar.attempt))


async def graph_of(services: ApiServices, job_id: UUID) -> tuple[Graph, datetime]:
    brief = await services.reads.brief(job_id)
    return await services.reads.graph(brief.definition_hash), brief.now


def require_fan_out(graph: Graph, name: str) -> None:
    fan_outs = [node_id for node_id, node in graph.workflow.nodes.items() if isinstance(node, FanOutNode)]
    if name not in fan_outs:
        hint = f"fan_outs are: {', '.join(fan_outs)}" if fan_outs else "this workflow has none"
        raise NotFound(f"no fan_out is named '{name}'", code="node.not-found", hint=hint)


def shown(graph: Graph, node: NodeSummary, now: datetime) -> ShownNode:
    of = node.parent_node_id or node.node_id
    defined = graph.workflow.nodes[of]
    work = work_of(defined)
    return ShownNode(
        **asdict(node),
        type="task" if node.parent_node_id else defined.type,
        stage=graph.stages[of][1],
        importance=defined.importance,
        handler=work.handler if work else None,
        state=state_of(graph, node),
        seconds=_seconds(node, now),
        children=_children(node),
    )


def state_of(graph: Graph, node: NodeSummary) -> str:
    """A fan_out completes for the engine when all its children exist; people mean the children."""
    if node.remaining and node.status in {NodeStatus.READY, NodeStatus.COMPLETED}:
        return str(NodeStatus.RUNNING)
    if node.status is NodeStatus.COMPLETED and _is_overdrawn(graph, node):
        return str(NodeStatus.FAILED if node.failed_count else NodeStatus.CANCELLED)
    return str(node.status)


def _is_overdrawn(graph: Graph, node: NodeSummary) -> bool:
    """More of its children are gone than it tolerates."""
    defined = graph.workflow.nodes[node.parent_node_id or node.node_id]
    if node.total is None or not isinstance(defined, FanOutNode):
        return False
    return (node.failed_count or 0) + (node.cancelled_count or 0) > tolerated(defined, node.total)


def _seconds(node: NodeSummary, now: datetime) -> float | None:
    begun = node.dispatched_at or node.started_at
    ended = node.completed_at or (now if node.status in NODE_LIVE or node.remaining else None)
    return round(max(0.0, (ended - begun).total_seconds()), 3) if begun and ended else None


def _children(node: NodeSummary) -> Children | None:
    if node.total is None:
        return None
    failed, cancelled = node.failed_count or 0, node.cancelled_count or 0
    retrying = min(node.retrying_count, node.waiting_count)
    return Children(
        total=node.total,
        done=node.ended_count - failed - cancelled,
        running=node.running_count,
        retrying=retrying,
        waiting=node.waiting_count - retrying,
        failed=failed,
        cancelled=cancelled,
    )


def stages(graph: Graph, snapshot: Snapshot) -> list[StageSummary]:
    groups: dict[tuple[int, str], list[NodeSummary]] = {}
    for node in snapshot.nodes:
        groups.setdefault(graph.stages[node.node_id], []).append(node)
    return [_stage(graph, number, name, nodes) for (number, name), nodes in sorted(groups.items())]


def _stage(graph: Graph, number: int, name: str, nodes: Sequence[NodeSummary]) -> StageSummary:
    states = Counter(state_of(graph, node) for node in nodes)
    begun = [at for node in nodes if (at := node.dispatched_at or node.started_at or node.completed_at)]
    ended = [node.completed_at for node in nodes if node.completed_at]
    first, last = min(begun, default=None), max(ended, default=None)
    return StageSummary(
        number=number,
        name=name,
        status=_combined(states),
        nodes=len(nodes),
        completed=states["completed"],
        failed=states["failed"],
        children=sum(node.total or 0 for node in nodes),
        children_failed=sum(node.failed_count or 0 for node in nodes),
        started_at=first,
        ended_at=last,
        seconds=round((last - first).total_seconds(), 3) if first and last else None,
    )


def _combined(states: Counter[str]) -> str:
    """The one word for several nodes: what is wrong first, then what is under way."""
    for state in ("failed", "cancelled", "running", "dispatched", "ready"):
        if states[state]:
            return "running" if state in {"dispatched", "ready"} else state
    if states["pending"]:
        return "running" if states["completed"] else "pending"
    return "completed" if states["completed"] else "skipped"
