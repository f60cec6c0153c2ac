"""Why is it waiting? For each node that has not ended: what would have to happen for it to go on.

`reasons` is pure: it is given what is known of a node and says what holds it up, the strongest reason first. A fan_out speaks
for its children; they can be asked for one by one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import BaseModel

from dagmaster.api.jobs import JobId, require_fan_out
from dagmaster.api.pages import LONGEST_NAME, Cursor, Limit
from dagmaster.api.problems import responses
from dagmaster.api.services import ApiServices, Services
from dagmaster.database.reads.jobs import NodeSummary
from dagmaster.database.reads.pages import MOST_IN_FRONT, JobBrief, LiveTask
from dagmaster.jobs.model import QueueSettings
from dagmaster.jobs.states import JOB_TERMINAL, NODE_LIVE, NODE_TERMINAL, JobStatus, NodeStatus, TaskStatus
from dagmaster.jobs.view import fan_out_read_by
from dagmaster.workflows.graph import Graph
from dagmaster.workflows.model import FanOutNode

router = APIRouter(prefix="/jobs", tags=["jobs"])

Code = Literal[
    "no_orchestrator", "orphaned", "waiting_for_nodes", "waiting_for_one_of", "waiting_for_children", "max_parallel",
    "expanding", "retry", "no_worker", "queue_paused", "queue_limited", "queued", "running", "due",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that holds a node up. What else is filled in depends on the code."""

    code: Code
    detail: str
    nodes: list[str] = field(default_factory=list)
    seconds: float | None = None
    count: int | None = None
    queue: str | None = None
    handler: str | None = None
    worker_id: UUID | None = None
    progress: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class WaitingNode:
    node_id: str
    status: NodeStatus
    label: str | None
    reasons: list[Reason]


class Waiting(BaseModel):
    """Every node that has not ended, with its reasons; or a page of a fan_out's children."""

    status: JobStatus
    nodes: list[WaitingNode]
    next: str | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """What is known at one moment, beside the node itself."""

    now: datetime
    tasks: Mapping[str, LiveTask]
    queues: Mapping[str, QueueSettings]
    running: Mapping[str, int]  # tasks that run, by queue
    live_orchestrators: int = 1
    is_orphaned: bool = False  # the owner is silent
    queued_children: Mapping[str, str] = field(default_factory=dict)  # one for each fan_out
    next_retries: Mapping[str, datetime] = field(default_factory=dict)


@router.get("/{job_id}/waiting", operation_id="get_waiting", summary="Why is it waiting?", responses=responses(404))
async def get_waiting(
    services: Services,
    job_id: JobId,
    parent: Annotated[
        str | None, Query(max_length=LONGEST_NAME, description="The children of this fan_out, one by one")
    ] = None,
    after: Cursor = None,
    limit: Limit = 50,
) -> Waiting:
    """Waiting for which nodes, retried in how long, no live worker for it, how many are before it in the queue, paused or
    limited: for every node that has not ended. A fan_out is told as a whole; with `parent` its children, in pages."""
    brief = await services.reads.brief(job_id)
    graph = await services.reads.graph(brief.definition_hash)
    if parent is not None:
        require_fan_out(graph, parent)
        return await _children(services, job_id, brief, parent, after=after or "", limit=limit)
    if brief.status in JOB_TERMINAL:
        return Waiting(status=brief.status, nodes=[])
    return await _nodes(services, job_id, brief, graph)


async def _nodes(services: ApiServices, job_id: UUID, brief: JobBrief, graph: Graph) -> Waiting:
    snapshot = await services.reads.watch_job(job_id, graph.order)
    nodes = {node.node_id: node for node in snapshot.nodes}
    open_fan_outs = [node.node_id for node in snapshot.nodes if node.remaining]
    queued = await services.reads.queued_children(job_id, open_fan_outs) if open_fan_outs else {}
    retries = await services.reads.next_retries(job_id) if open_fan_outs else {}
    asked = [node.node_id for node in snapshot.nodes if node.status in NODE_LIVE]
    known = await _known(services, job_id, brief, [*asked, *queued.values()], queued=queued, retries=retries)
    found = [
        WaitingNode(node.node_id, node.status, node.label, reasons(graph, node, nodes, known))
        for node in snapshot.nodes
        if not is_ended(node)
    ]
    return Waiting(status=snapshot.status, nodes=found)


async def _children(
    services: ApiServices, job_id: UUID, brief: JobBrief, parent: str, *, after: str, limit: int
) -> Waiting:
    lines = await services.reads.unfinished_children(job_id, parent, limit=limit + 1, after=after)
    page = lines[:limit]
    known = await _known(services, job_id, brief, [line.node_id for line in page])
    found = [WaitingNode(line.node_id, line.status, line.label, own_reasons(line, known)) for line in page]
    return Waiting(status=brief.status, nodes=found, next=page[-1].node_id if len(lines) > limit else None)


async def _known(
    services: ApiServices,
    job_id: UUID,
    brief: JobBrief,
    node_ids: list[str],
    *,
    queued: Mapping[str, str] | None = None,
    retries: Mapping[str, datetime] | None = None,
) -> Known:
    tasks = await services.reads.live_tasks(job_id, node_ids, services.alive_within)
    queues = await services.reads.queue_settings()
    limited = [name for name, found in queues.items() if found.max_running is not None]
    running = await services.reads.running_in(limited) if limited else {}
    liveness = await services.reads.liveness(brief.owner_id, services.alive_within)
    age = liveness.beat_age_seconds if liveness else None
    return Known(
        brief.now, tasks, queues, running,
        live_orchestrators=liveness.live_orchestrators if liveness else 0,
        is_orphaned=brief.owner_id is not None and (age is None or age > services.alive_within),
        queued_children=queued or {}, next_retries=retries or {},
    )  # fmt: skip


def is_ended(node: NodeSummary) -> bool:
    """A fan_out has ended when its children have."""
    return node.status in NODE_TERMINAL and not (node.status is NodeStatus.COMPLETED and node.remaining)


def reasons(graph: Graph, node: NodeSummary, nodes: Mapping[str, NodeSummary], known: Known) -> list[Reason]:
    """What holds up a node of the definition."""
    if node.status is NodeStatus.PENDING:
        return _for_others(graph, node.node_id, nodes, known)
    if node.remaining:
        definition = graph.workflow.nodes[node.node_id]
        most = definition.max_parallel if isinstance(definition, FanOutNode) else None
        return _for_children(node, most, known)
    return own_reasons(node, known)


def _for_others(graph: Graph, node_id: str, nodes: Mapping[str, NodeSummary], known: Known) -> list[Reason]:
    needed = [name for name in graph.all_of[node_id] if not is_ended(nodes[name])]
    options = [name for name in graph.any_of[node_id] if not is_ended(nodes[name])]
    read = fan_out_read_by(graph, node_id)
    if read and read not in needed and not is_ended(nodes[read]):
        needed.append(read)
    found: list[Reason] = []
    if needed:
        found.append(Reason("waiting_for_nodes", f"waits for {', '.join(needed)}", needed, count=len(needed)))
    if options:
        found.append(Reason("waiting_for_one_of", f"waits for one of {', '.join(options)}", options))
    return found or [_due(known)]


def _for_children(node: NodeSummary, max_parallel: int | None, known: Known) -> list[Reason]:
    total, remaining = node.total or 0, node.remaining or 0
    found = [Reason("waiting_for_children", f"waits for {remaining} of {total} children", count=remaining)]
    if (node.expanded or 0) < total:
        found.append(_expanding(node, max_parallel, known))
    due_at = known.next_retries.get(node.node_id)
    if due_at is not None:
        seconds = _until(due_at, known.now)
        text = f"{node.retrying_count} children are retried, the next one in {seconds:.1f} s"
        found.append(Reason("retry", text, seconds=seconds, count=node.retrying_count))
    child = known.tasks.get(known.queued_children.get(node.node_id, ""))
    if child is not None and child.status is TaskStatus.QUEUED:  # it may have been claimed since
        found += _of_task(child, known)
    return found


def _expanding(node: NodeSummary, max_parallel: int | None, known: Known) -> Reason:
    """Why there are not all children yet."""
    made, total = node.expanded or 0, node.total or 0
    under_way = made - (total - (node.remaining or 0))
    if max_parallel is not None and under_way >= max_parallel:
        running = min(node.running_count, under_way)
        how = "are running" if running == under_way else f"are under way, {running} of them running"
        return Reason("max_parallel", f"{under_way} of max_parallel {max_parallel} {how}", count=under_way)
    if known.is_orphaned or not known.live_orchestrators:
        return _due(known)
    return Reason("expanding", f"{made} of {total} children are made so far", count=total - made)


def own_reasons(node: NodeSummary, known: Known) -> list[Reason]:
    """What holds up a node that waits for no other."""
    if node.not_before is not None:
        seconds = _until(node.not_before, known.now)
        why = f": {node.error_message.splitlines()[0]}" if node.error_message else ""
        return [Reason("retry", f"{_again(node)} in {seconds:.1f} s{why}", seconds=seconds, count=node.retry_count)]
    task = known.tasks.get(node.node_id)
    return _of_task(task, known) if task else [_due(known)]


def _again(node: NodeSummary) -> str:
    """Failures and losses are counted apart."""
    retried = f"retry {node.retry_count} of {node.max_retries}" if node.retry_count else "tried again"
    if not node.loss_count:
        return retried
    return f"{retried}, lost {node.loss_count} {'time' if node.loss_count == 1 else 'times'},"


def _of_task(task: LiveTask, known: Known) -> list[Reason]:
    told = partial(Reason, queue=task.queue, handler=task.handler)
    if task.status is TaskStatus.RUNNING:
        return [_running(task, known)]
    found: list[Reason] = []
    limits = known.queues.get(task.queue)
    if limits is not None and limits.is_paused:
        found.append(told("queue_paused", f"queue {task.queue} is paused"))
    if not task.live_workers:
        found.append(told("no_worker", _nobody(task)))
    if limits is not None and limits.max_running is not None:
        running = known.running.get(task.queue, 0)
        if running >= limits.max_running:
            text = f"queue {task.queue} runs {running} tasks, its limit is {limits.max_running}"
            found.append(told("queue_limited", text, count=running))
    front, seconds = task.in_front or 0, _until(known.now, task.queued_at)
    more = " or more" if front >= MOST_IN_FRONT else ""
    found.append(told("queued", f"queued for {seconds:.1f} s, {front}{more} in front", seconds=seconds, count=front))
    return found


def _running(task: LiveTask, known: Known) -> Reason:
    seconds = _until(known.now, task.started_at or known.now)
    by = f" on {task.worker_host} (process {task.worker_pid})" if task.worker_host else ""
    progress = task.progress or {}
    fraction, message = progress.get("fraction"), progress.get("message")
    shown = [f"{fraction:.0%}" if isinstance(fraction, int | float) else None, str(message) if message else None]
    told = f": {', '.join(part for part in shown if part)}" if any(shown) else ""
    return Reason(
        "running", f"runs since {seconds:.1f} s{by}{told}", seconds=seconds, queue=task.queue, handler=task.handler,
        worker_id=task.worker_id, progress=task.progress,
    )  # fmt: skip


def _nobody(task: LiveTask) -> str:
    if not task.serving_workers:
        return f"no live worker serves queue {task.queue}"
    return f"no live worker offers {task.handler} on queue {task.queue} ({task.serving_workers} serve it)"


def _due(known: Known) -> Reason:
    if not known.live_orchestrators:
        return Reason("no_orchestrator", "no live orchestrator takes this job up")
    if known.is_orphaned:
        return Reason("orphaned", "its orchestrator is silent; another one takes this job over soon")
    return Reason("due", "the orchestrator takes it up next")


def _until(later: datetime, earlier: datetime) -> float:
    return round(max(0.0, (later - earlier).total_seconds()), 3)
