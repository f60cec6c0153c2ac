"""Current jobs in the form of the old responses. Pure.

The old system ran a job in numbered stages. Here they are the stages of the workflow that contain work, numbered from
1: start and end are not counted. The documentation of the old API spells some fields in two ways, so each field whose
name has several words is sent twice: `total_stages` and `totalStages`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from dagmaster.client.models.jobs import SubmissionResult
from dagmaster.database.reads.legacy import ChildrenFacts, OldTask
from dagmaster.errors import Conflict, NotFound
from dagmaster.jobs import rerun
from dagmaster.jobs.model import Job
from dagmaster.jobs.stages import stages_of
from dagmaster.jobs.states import JobStatus, NodeStatus
from dagmaster.jobs.view import JobView, NodeView
from dagmaster.observe.redaction import redact
from dagmaster.workflows.graph import Graph
from dagmaster.workflows.model import EndNode, FanOutNode, StartNode

STATUS_PATH: Final = "/api/jobs/status"
SUBMIT_PATH: Final = "/api/jobs/submit"
THIS_SYSTEM: Final = "dagmaster"
OLD_SYSTEM: Final = "legacy"
TASK_LIST_FIELDS: Final = ("job_id", "stage", "count", "tasks", "next_offset", "served_by")
# Outputs of nodes that the summary of their stage repeats, and their old names.
SUMMARY_FIELDS: Final[Mapping[str, str]] = {
    "tiling_scheme_blob": "tiling_scheme",
    "total_tiles": "total_tiles",
    "grid_dimensions": "grid_dimensions",
    "mosaic_blob": "mosaic_blob",
    "total_cogs": "total_cogs",
    "stac_collection_id": "stac_collection_id",
    "item_count": "item_count",
    "tile_server_url": "tile_server_url",
    "cog_blob": "cog_blob",
}

_STATUSES: Final[Mapping[JobStatus, str]] = {
    JobStatus.PENDING: "queued",
    JobStatus.RUNNING: "processing",
    JobStatus.COMPLETED: "completed",
    JobStatus.PARTIAL_SUCCESS: "partial_success",
    JobStatus.FAILED: "failed",
    JobStatus.CANCELLED: "failed",  # the old system has no such status
}
_TASK_STATUSES: Final[Mapping[NodeStatus, str]] = {
    NodeStatus.PENDING: "pending",
    NodeStatus.READY: "queued",
    NodeStatus.DISPATCHED: "queued",
    NodeStatus.RUNNING: "processing",
    NodeStatus.COMPLETED: "completed",
    NodeStatus.FAILED: "failed",
    NodeStatus.SKIPPED: "skipped",
    NodeStatus.CANCELLED: "failed",
}
_UNREACHED: Final = frozenset({NodeStatus.PENDING, NodeStatus.SKIPPED, NodeStatus.CANCELLED})
_MESSAGES: Final[Mapping[str, str]] = {
    "already_completed": "an identical job was submitted before and has completed",
    "already_processing": "an identical job was submitted before and is being processed",
    "previously_failed": "an identical job was submitted before and did not complete; use resume=true to continue "
    "it, or force_reprocess=true to start again",
    "resumed": "the job continues where it stopped",
}


@dataclass(frozen=True, slots=True)
class OldStage:
    """A stage with work. The counts are of tasks that workers run: nodes with a handler, and children of fan_outs."""

    number: int
    name: str
    label_number: int  # the number of the stage in the workflow, where start and end are counted too
    nodes: tuple[str, ...]
    is_complete: bool
    has_failed: bool
    is_reached: bool
    task_count: int
    success_count: int
    failed_count: int


@dataclass(frozen=True, slots=True)
class StageFacts:
    """Times and parts of outputs from the rows of nodes and their children, by node."""

    started_at: Mapping[str, datetime] = field(default_factory=dict)
    completed_at: Mapping[str, datetime] = field(default_factory=dict)
    outputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    children: Mapping[str, ChildrenFacts] = field(default_factory=dict)


def old_stages(view: JobView) -> list[OldStage]:
    with_work = [stage for stage in stages_of(view) if any(_is_work(view.graph, name) for name in stage.nodes)]
    return [
        OldStage(
            number,
            stage.label,
            stage.number,
            stage.nodes,
            stage.is_complete,
            stage.has_failed,
            any(_is_reached(view.nodes[name]) for name in stage.nodes),
            *_counts(view, stage.nodes),
        )
        for number, stage in enumerate(with_work, 1)
    ]


def _is_work(graph: Graph, node_id: str) -> bool:
    return not isinstance(graph.workflow.nodes[node_id], StartNode | EndNode)


def _is_reached(node: NodeView) -> bool:
    return node.status not in _UNREACHED or node.attempt > 0 or node.expanded > 0


def _counts(view: JobView, nodes: Iterable[str]) -> tuple[int, int, int]:
    """The number of tasks, of those that succeeded, and of those that failed."""
    total = succeeded = failed = 0
    for name in nodes:
        state = view.nodes[name]
        if isinstance(view.graph.workflow.nodes[name], FanOutNode):
            total += state.total
            succeeded += max(0, state.total - state.remaining - state.unsuccessful_count)
            failed += state.unsuccessful_count
        elif name in view.graph.work and state.status is not NodeStatus.SKIPPED:
            total += 1
            succeeded += state.status is NodeStatus.COMPLETED
            failed += state.status in (NodeStatus.FAILED, NodeStatus.CANCELLED)
    return total, succeeded, failed


def current_stage(stages: Sequence[OldStage]) -> int:
    """The first stage that has failed; else the first that is not complete; else the last. 0 if there is none."""
    failed = (stage.number for stage in stages if stage.has_failed)
    unfinished = (stage.number for stage in stages if not stage.is_complete)
    return next(failed, next(unfinished, len(stages)))


def is_resumable(view: JobView) -> bool:
    try:
        rerun.resume(view)
    except Conflict:
        return False
    return True


def status_shape(
    job: Job, view: JobView, facts: StageFacts, *, job_type: str, seconds: float, updated_at: datetime
) -> dict[str, Any]:
    """The response of `GET /api/jobs/status/{job_id}`."""
    stages = old_stages(view)
    resumable = is_resumable(view)
    first_open = current_stage(stages)
    fields = {
        "job_id": str(job.job_id),
        "job_type": job_type,
        "status": _STATUSES[job.status],
        "stage": first_open,
        "total_stages": len(stages),
        "parameters": job.input_params,
        "stage_results": {str(stage.number): _stage_result(stage, facts) for stage in stages if stage.is_complete},
        "result_data": _result_data(job, stages, facts),
        "error_details": _error(job),
        "duration_seconds": round(max(0.0, seconds), 3),
        "resumable": resumable,
        "resume_from_stage": first_open if resumable else None,
        "resume_hint": f"POST {SUBMIT_PATH}/{job_type} with resume=true" if resumable else None,
        "resume_count": job.resume_count,
        "created_at": job.created_at.isoformat(),
        "updated_at": updated_at.isoformat(),
        "served_by": THIS_SYSTEM,
    }
    return spelled_twice(fields)


def _stage_result(stage: OldStage, facts: StageFacts) -> dict[str, Any]:
    _, ended = _times(stage, facts)
    return {
        "completed_at": ended.isoformat() if ended else None,
        "task_count": stage.task_count,
        "success_count": stage.success_count,
        "checkpoint": True,
    }


def _result_data(job: Job, stages: Sequence[OldStage], facts: StageFacts) -> dict[str, Any] | None:
    """The result of a job that has ended, with a summary of each stage that was reached."""
    if job.status in (JobStatus.PENDING, JobStatus.RUNNING):
        return None
    summaries = {f"stage_{stage.number}": _stage_summary(stage, facts) for stage in stages if stage.is_reached}
    result = job.result_data
    own = result if isinstance(result, dict) else {} if result is None else {"result": result}
    return {**own, **summaries}


def _stage_summary(stage: OldStage, facts: StageFacts) -> dict[str, Any]:
    started, ended = _times(stage, facts)
    summary: dict[str, Any] = {
        "name": stage.name,
        "task_count": stage.task_count,
        "success_count": stage.success_count,
        "failed_count": stage.failed_count,
        "duration_seconds": round((ended - started).total_seconds(), 3) if started and ended else None,
    }
    for name in stage.nodes:
        output = facts.outputs.get(name, {})
        summary |= {old: output[new] for new, old in SUMMARY_FIELDS.items() if output.get(new) is not None}
    return summary | _cogs(stage, facts)


def _cogs(stage: OldStage, facts: StageFacts) -> dict[str, Any]:
    """The number and size of the COGs that the tasks of a stage wrote; empty for a stage that writes none."""
    counts = [facts.children[name] for name in stage.nodes if name in facts.children]
    sizes = [_megabytes(facts.outputs[name]) for name in stage.nodes if "cog_blob" in facts.outputs.get(name, {})]
    created = sum(each.cogs_created for each in counts) + len(sizes)
    if not created:
        return {}
    total = sum(each.total_size_mb for each in counts) + sum(sizes)
    return {
        "cogs_created": created,
        "total_size_mb": round(total, 2),
        "average_cog_size_mb": round(total / created, 2),
    }


def _megabytes(output: Mapping[str, Any]) -> float:
    size = output.get("size_mb")
    is_number = isinstance(size, int | float) and not isinstance(size, bool) and math.isfinite(size)
    return float(size) if is_number and size is not None else 0.0


def _times(stage: OldStage, facts: StageFacts) -> tuple[datetime | None, datetime | None]:
    """The first start and the last end of a stage."""
    started = [facts.started_at[name] for name in stage.nodes if name in facts.started_at]
    ended = [facts.completed_at[name] for name in stage.nodes if name in facts.completed_at]
    ended += [at for name in stage.nodes if name in facts.children and (at := facts.children[name].completed_at)]
    return min(started, default=None), max(ended, default=None)


def _error(job: Job) -> str | None:
    if job.status is JobStatus.CANCELLED:
        reason = f": {job.cancel_reason}" if job.cancel_reason else ""
        return f"the job was cancelled{reason}"
    return job.error_message


def submission_shape(
    result: SubmissionResult, stages: Sequence[OldStage], *, job_type: str, queue: str, created_at: datetime | None
) -> dict[str, Any]:
    """The response of `POST /api/jobs/submit/{job_type}`."""
    job_id = str(result.job_id)
    fields: dict[str, Any] = {
        "job_id": job_id,
        "job_type": job_type,
        "status": "queued" if result.status == "accepted" else result.status,
        "status_url": f"{STATUS_PATH}/{job_id}",
        "served_by": THIS_SYSTEM,
    }
    match result.status:
        case "accepted":
            created = created_at.isoformat() if created_at else None
            # No message is sent for a submission; its id is the id of the job.
            fields |= {"queue": queue, "message_id": job_id, "created_at": created}
        case "already_completed":
            fields |= {"result_data": result.result_data}
        case "already_processing":
            fields |= {"stage": current_stage(stages), "total_stages": len(stages)}
        case "previously_failed":
            fields |= {
                "job_status": _STATUSES.get(result.job_status, "failed"),
                "failed_stage": _first_unfinished(result, stages),
                "completed_stages": [str(s.number) for s in stages if s.name in result.completed_stages],
                "error": result.error_message,
                "resume_hint": f"POST {SUBMIT_PATH}/{job_type} with resume=true",
            }
        case "resumed":
            unfinished = _first_unfinished(result, stages)
            fields |= {"resumed_from_stage": unfinished, "resume_count": result.resume_count}
    return spelled_twice(fields | {"message": _MESSAGES.get(result.status, "the job was created")})


def _first_unfinished(result: SubmissionResult, stages: Sequence[OldStage]) -> int:
    """The first stage that was not complete at the time of the result; the job may have advanced since."""
    return next((stage.number for stage in stages if stage.name not in result.completed_stages), len(stages))


def retried_stage(job_id: UUID, status: JobStatus, stages: Sequence[OldStage], number: int) -> OldStage:
    """The stage with this number; raises an error if it cannot be retried."""
    stage = next((stage for stage in stages if stage.number == number), None)
    if stage is None:
        raise NotFound(
            f"job {job_id} has no stage {number}",
            code="stage.not-found",
            hint=f"its stages are 1 to {len(stages)}" if stages else "it has no stages",
        )
    if status not in rerun.RESUMABLE:
        raise Conflict(
            f"job {job_id} is '{_STATUSES[status]}': only stages of failed and partly successful jobs can be retried",
            code="legacy.not-retryable",
            hint="submit the job again with force_reprocess=true",
        )
    if not stage.is_reached:
        raise Conflict(
            f"stage {number} of job {job_id} was never reached",
            code="legacy.stage-not-reached",
            hint="retry the stage that failed, or submit the job again with resume=true",
        )
    return stage


def retry_shape(job_id: UUID, stage: int) -> dict[str, Any]:
    fields = {
        "status": "stage_retry_initiated",
        "job_id": str(job_id),
        "stage": stage,
        "message": f"stage {stage} and everything that depends on it run again",
        "served_by": THIS_SYSTEM,
    }
    return spelled_twice(fields)


def tasks_shape(
    job_id: UUID, job_type: str, graph: Graph, tasks: Sequence[OldTask], *, stage: int | None, next_offset: int | None
) -> dict[str, Any]:
    """The response of `GET /api/dbadmin/tasks/{job_id}`."""
    numbers = stage_numbers(graph)
    listed = [_task(job_id, job_type, graph, numbers, task) for task in tasks]
    values = (str(job_id), stage, len(listed), listed, next_offset, THIS_SYSTEM)
    return spelled_twice(dict(zip(TASK_LIST_FIELDS, values, strict=True)))


def stage_numbers(graph: Graph) -> dict[str, int]:
    """The old number of the stage of each node that is neither start nor end."""
    with_work = sorted({graph.stages[name][0] for name in graph.order if _is_work(graph, name)})
    numbers = {stage: number for number, stage in enumerate(with_work, 1)}
    return {name: numbers[graph.stages[name][0]] for name in graph.order if graph.stages[name][0] in numbers}


def _task(job_id: UUID, job_type: str, graph: Graph, numbers: Mapping[str, int], task: OldTask) -> dict[str, Any]:
    definition = task.parent_node_id or task.node_id
    work = graph.work.get(definition)
    updated_at = task.completed_at or task.started_at or task.dispatched_at
    fields = {
        "task_id": task.task_id or f"{job_id}_{task.node_id}_0",
        "parent_job_id": str(job_id),
        "job_type": job_type,
        "task_type": work.handler if work else None,
        "stage": numbers.get(definition),
        "task_index": str(task.fan_out_index) if task.fan_out_index is not None else task.node_id,
        "status": _TASK_STATUSES[task.status],
        "parameters": task.input_params or {},
        "result_data": task.output,
        "error_details": redact(task.error_message) if task.error_message else None,
        "retry_count": task.retry_count,
        "created_at": task.dispatched_at.isoformat() if task.dispatched_at else None,
        "updated_at": updated_at.isoformat() if updated_at else None,
    }
    return spelled_twice(fields)


def spelled_twice(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields, and each field whose name has several words also in camel case.

    >>> spelled_twice({"total_stages": 3})
    {'total_stages': 3, 'totalStages': 3}
    """
    return {spelling: value for name, value in fields.items() for spelling in dict.fromkeys((name, _camel(name)))}


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(part.capitalize() for part in others)
