"""For each node that has not ended, the reasons why it waits.

`reasons` is pure: it gets the state of a node and of what it depends on, and returns the reasons, the most important
first. A fan_out has the reasons of its children; the children can be listed separately.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query

from dagmaster.access.permissions import Permission
from dagmaster.api.jobs import JobId, require_fan_out
from dagmaster.api.problems import responses
from dagmaster.api.services import ApiServices, Services
from dagmaster.api.summaries import has_ended
from dagmaster.client.models.nodes import NodeSummary, WaitingNode, WaitingNodes, WaitReason
from dagmaster.database.reads.jobs import JobBrief
from dagmaster.database.reads.nodes import MAX_TASKS_AHEAD, LiveTask
from dagmaster.jobs.model import QueueSettings
from dagmaster.jobs.states import JOB_TERMINAL, NODE_LIVE, NodeStatus, TaskStatus
from dagmaster.jobs.view import fan_out_read_by
from dagmaster.quantities import counted
from dagmaster.web.authentication import requires
from dagmaster.web.pages import MAX_NAME_LENGTH, Cursor, Limit
from dagmaster.workflows.graph import Graph
from dagmaster.workflows.model import FanOutNode

router = APIRouter(prefix="/jobs", tags=["jobs"], dependencies=[requires(Permission.JOBS_READ)])


@dataclass(frozen=True, slots=True)
class Conditions:
    """The state of the platform at one moment, as far as a node depends on it."""

    now: datetime
    tasks: Mapping[str, LiveTask]
    queues: Mapping[str, QueueSettings]
    running: Mapping[str, int]  # running tasks by queue
    live_orchestrators: int = 1
    is_orphaned: bool = False  # the owner sends no heartbeats
    queued_children: Mapping[str, str] = field(default_factory=dict)  # one queued child for each fan_out
    next_retries: Mapping[str, datetime] = field(default_factory=dict)
    deferred: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # nodes with a handler unknown to the owner
    unknown_after_seconds: float = 600.0  # how long those nodes may wait


@router.get(
    "/{job_id}/waiting", operation_id="get_waiting", summary="Get the reasons why a job waits", responses=responses(404)
)
async def get_waiting(
    services: Services,
    job_id: JobId,
    parent: Annotated[
        str | None, Query(max_length=MAX_NAME_LENGTH, description="List the children of this fan_out")
    ] = None,
    after: Cursor = None,
    limit: Limit = 50,
) -> WaitingNodes:
    """For every node that has not ended: the nodes it waits for, the time until its retry, a missing worker, its
    position in the queue, and whether the queue is paused or limited. A fan_out is one entry; with `parent`, its
    children are listed in pages."""
    brief = await services.reads.brief(job_id)
    graph = await services.reads.graph(brief.definition_hash)
    if parent is not None:
        require_fan_out(graph, parent)
        return await _children(services, job_id, brief, parent, after=after or "", limit=limit)
    if brief.status in JOB_TERMINAL:
        return WaitingNodes(status=brief.status, nodes=[])
    return await _nodes(services, job_id, brief, graph)


async def _nodes(services: ApiServices, job_id: UUID, brief: JobBrief, graph: Graph) -> WaitingNodes:
    snapshot = await services.reads.watch_job(job_id, graph.order)
    brief = replace(brief, now=snapshot.now)  # times until retries are counted from when the nodes were read
    nodes = {node.node_id: node for node in snapshot.nodes}
    open_fan_outs = [node.node_id for node in snapshot.nodes if node.remaining]
    queued = await services.reads.queued_children(job_id, open_fan_outs) if open_fan_outs else {}
    retries = await services.reads.next_retries(job_id) if open_fan_outs else {}
    live = [node.node_id for node in snapshot.nodes if node.status in NODE_LIVE]
    conditions = await _conditions(services, job_id, brief, [*live, *queued.values()], queued=queued, retries=retries)
    waiting = [_waiting(node, reasons(graph, node, nodes, conditions)) for node in snapshot.nodes if not is_ended(node)]
    return WaitingNodes(status=snapshot.status, nodes=waiting)


def _waiting(node: NodeSummary, node_reasons: list[WaitReason]) -> WaitingNode:
    return WaitingNode(node_id=node.node_id, status=node.status, label=node.label, reasons=node_reasons)


async def _children(
    services: ApiServices, job_id: UUID, brief: JobBrief, parent: str, *, after: str, limit: int
) -> WaitingNodes:
    children = await services.reads.unfinished_children(job_id, parent, limit=limit + 1, after=after)
    page = children[:limit]
    conditions = await _conditions(services, job_id, brief, [child.node_id for child in page])
    waiting = [_waiting(child, own_reasons(child, conditions)) for child in page]
    return WaitingNodes(status=brief.status, nodes=waiting, next=page[-1].node_id if len(children) > limit else None)


async def _conditions(
    services: ApiServices,
    job_id: UUID,
    brief: JobBrief,
    node_ids: list[str],
    *,
    queued: Mapping[str, str] | None = None,
    retries: Mapping[str, datetime] | None = None,
) -> Conditions:
    tasks = await services.reads.live_tasks(job_id, node_ids, services.alive_within)
    queues = await services.reads.queue_settings()
    limited = [name for name, queue in queues.items() if queue.max_running is not None]
    running = await services.reads.running_in(limited) if limited else {}
    liveness = await services.reads.liveness(brief.owner_id, services.alive_within)
    age = liveness.beat_age_seconds if liveness else None
    return Conditions(
        brief.now,
        tasks,
        queues,
        running,
        live_orchestrators=liveness.live_orchestrators if liveness else 0,
        is_orphaned=brief.owner_id is not None and (age is None or age > services.alive_within),
        queued_children=queued or {},
        next_retries=retries or {},
        deferred={row["node_id"]: row for row in brief.deferred_work or () if is_readable(row)},
        unknown_after_seconds=services.settings.unknown_handler_timeout_sec,
    )


def is_readable(work: Mapping[str, Any]) -> bool:
    """Whether an entry of a job's deferred work has the form that orchestrators write."""
    try:
        datetime.fromisoformat(work["known_at"])
    except (KeyError, TypeError, ValueError):
        return False
    return isinstance(work.get("node_id"), str) and isinstance(work.get("handler"), str)


def is_ended(node: NodeSummary | None) -> bool:
    """Whether a node has ended. One without a row never ends."""
    return node is not None and has_ended(node)


def reasons(
    graph: Graph, node: NodeSummary, nodes: Mapping[str, NodeSummary], conditions: Conditions
) -> list[WaitReason]:
    """Why a node of the definition waits."""
    if node.status is NodeStatus.PENDING:
        return _for_others(graph, node.node_id, nodes, conditions)
    if node.node_id in conditions.deferred:
        return [_deferred(conditions.deferred[node.node_id], conditions)]
    if node.remaining:
        definition = graph.workflow.nodes[node.node_id]
        max_parallel = definition.max_parallel if isinstance(definition, FanOutNode) else None
        return _for_children(node, max_parallel, conditions)
    return own_reasons(node, conditions)


def _for_others(
    graph: Graph, node_id: str, nodes: Mapping[str, NodeSummary], conditions: Conditions
) -> list[WaitReason]:
    needed = [name for name in graph.all_of[node_id] if not is_ended(nodes.get(name))]
    options = [name for name in graph.any_of[node_id] if not is_ended(nodes.get(name))]
    read = fan_out_read_by(graph, node_id)
    if read and read not in needed and not is_ended(nodes.get(read)):
        needed.append(read)
    result: list[WaitReason] = []
    if needed:
        detail = f"waits for {', '.join(needed)}"
        result.append(WaitReason(code="waiting_for_nodes", detail=detail, nodes=needed, count=len(needed)))
    if options:
        detail = f"waits for one of {', '.join(options)}"
        result.append(WaitReason(code="waiting_for_one_of", detail=detail, nodes=options))
    return result or [_due(conditions)]


def _for_children(node: NodeSummary, max_parallel: int | None, conditions: Conditions) -> list[WaitReason]:
    total, remaining = node.total or 0, node.remaining or 0
    detail = f"waits for {remaining} of {total} children"
    result = [WaitReason(code="waiting_for_children", detail=detail, count=remaining)]
    if (node.expanded or 0) < total:
        result.append(_expanding(node, max_parallel, conditions))
    due_at = conditions.next_retries.get(node.node_id)
    if due_at is not None:
        seconds = _between(conditions.now, due_at)
        detail = f"children waiting for a retry: {node.retrying_count}, the next one in {seconds:.1f} s"
        result.append(WaitReason(code="retry", detail=detail, seconds=seconds, count=node.retrying_count))
    child = conditions.tasks.get(conditions.queued_children.get(node.node_id, ""))
    if child is not None and child.status is TaskStatus.QUEUED:  # it may have been claimed since
        result += _of_task(child, conditions)
    return result


def _expanding(node: NodeSummary, max_parallel: int | None, conditions: Conditions) -> WaitReason:
    """Why not all children exist yet."""
    expanded, total = node.expanded or 0, node.total or 0
    active = expanded - node.ended_count
    if max_parallel is not None and active >= max_parallel:
        running = min(node.running_count, active)
        state = "are running" if running == active else f"are active, {running} of them running"
        return WaitReason(code="max_parallel", detail=f"{active} of max_parallel {max_parallel} {state}", count=active)
    if conditions.is_orphaned or not conditions.live_orchestrators:
        return _due(conditions)
    return WaitReason(code="expanding", detail=f"{expanded} of {total} children exist so far", count=total - expanded)


def own_reasons(node: NodeSummary, conditions: Conditions) -> list[WaitReason]:
    """Why a node waits, if it does not wait for other nodes."""
    if node.not_before is not None:
        seconds = _between(conditions.now, node.not_before)
        error = f": {node.error_message.splitlines()[0]}" if node.error_message else ""
        detail = f"{_retry_text(node)} in {seconds:.1f} s{error}"
        return [WaitReason(code="retry", detail=detail, seconds=seconds, count=node.retry_count)]
    task = conditions.tasks.get(node.node_id)
    return _of_task(task, conditions) if task else [_due(conditions)]


def _deferred(work: Mapping[str, Any], conditions: Conditions) -> WaitReason:
    handler, queue = work["handler"], str(work["queue"]) if work.get("queue") else None
    names = f"handler {handler}" + (f" and queue {queue}" if queue else "")
    seconds = _between(datetime.fromisoformat(work["known_at"]), conditions.now)
    detail = (
        f"waits for an orchestrator that knows {names}; the node fails if no live process has known "
        f"{'them' if queue else 'it'} for {conditions.unknown_after_seconds:g} s ({seconds:.1f} s so far)"
    )
    return WaitReason(code="unknown_handler", detail=detail, handler=handler, queue=queue, seconds=seconds)


def _retry_text(node: NodeSummary) -> str:
    """Failures and lost workers are counted separately."""
    retry = f"retry {node.retry_count} of {node.max_retries}" if node.retry_count else "next attempt"
    if not node.loss_count:
        return retry
    return f"{retry} (lost {node.loss_count} {'time' if node.loss_count == 1 else 'times'})"


def _of_task(task: LiveTask, conditions: Conditions) -> list[WaitReason]:
    if task.status is TaskStatus.RUNNING:
        return [_running(task, conditions)]
    queue, handler = task.queue, task.handler
    result: list[WaitReason] = []
    limits = conditions.queues.get(queue)
    if limits is not None and limits.is_paused:
        detail = f"queue {queue} is paused"
        result.append(WaitReason(code="queue_paused", detail=detail, queue=queue, handler=handler))
    if not task.live_workers:
        result.append(WaitReason(code="no_worker", detail=_missing_worker(task), queue=queue, handler=handler))
    if limits is not None and limits.max_running is not None:
        running = conditions.running.get(queue, 0)
        if running >= limits.max_running:
            detail = f"queue {queue} runs {counted(running, 'task')}, its limit is {limits.max_running}"
            result.append(WaitReason(code="queue_limited", detail=detail, queue=queue, handler=handler, count=running))
    ahead, seconds = task.tasks_ahead or 0, _between(task.queued_at, conditions.now)
    more = " or more" if ahead >= MAX_TASKS_AHEAD else ""
    detail = f"queued for {_time_text(seconds)}, tasks ahead of it: {ahead}{more}"
    queued = WaitReason(code="queued", detail=detail, queue=queue, handler=handler, seconds=seconds, count=ahead)
    return [*result, queued]


def _running(task: LiveTask, conditions: Conditions) -> WaitReason:
    seconds = _between(task.started_at or conditions.now, conditions.now)
    worker = f" on {task.worker_host} (process {task.worker_pid})" if task.worker_host else ""
    progress = task.progress or {}
    fraction, message = progress.get("fraction"), progress.get("message")
    parts = [f"{fraction:.0%}" if isinstance(fraction, int | float) else None, str(message) if message else None]
    progress_text = f": {', '.join(part for part in parts if part)}" if any(parts) else ""
    return WaitReason(
        code="running",
        detail=f"running for {seconds:.1f} s{worker}{progress_text}",
        seconds=seconds,
        queue=task.queue,
        handler=task.handler,
        worker_id=task.worker_id,
        progress=task.progress,
    )


def _missing_worker(task: LiveTask) -> str:
    if not task.serving_workers:
        return f"no live worker serves queue {task.queue}"
    return (
        f"no live worker has handler {task.handler} on queue {task.queue} (live workers of the queue: "
        f"{task.serving_workers})"
    )


def _due(conditions: Conditions) -> WaitReason:
    if not conditions.live_orchestrators:
        return WaitReason(code="no_orchestrator", detail="no orchestrator is alive")
    if conditions.is_orphaned:
        detail = "the orchestrator of the job sends no heartbeats; another orchestrator will claim the job soon"
        return WaitReason(code="orphaned", detail=detail)
    return WaitReason(code="due", detail="an orchestrator will process the node next")


def _time_text(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _between(earlier: datetime, later: datetime) -> float:
    return round(max(0.0, (later - earlier).total_seconds()), 3)
