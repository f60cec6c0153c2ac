"""The times of a job: its attempts, and a summary of each stage."""

from collections.abc import Sequence
from dataclasses import dataclass

from dagmaster.client.json_client import JsonClient
from dagmaster.client.models.base import read_all
from dagmaster.client.models.jobs import JobDetail, TimelineEntry

_MAX_ATTEMPTS = 100_000


@dataclass(frozen=True, slots=True)
class StageTimes:
    """A stage lasts from its first task's dispatch to its last task's end. `mean_run_ms` is the mean duration of
    the attempts that ran and have ended."""

    name: str
    seconds: float
    tasks: int
    mean_run_ms: float


def attempts_of(client: JsonClient, job_id: str) -> list[TimelineEntry]:
    attempts, _ = client.timeline(job_id, _MAX_ATTEMPTS)
    return read_all(TimelineEntry, attempts)


def task_count(attempts: Sequence[TimelineEntry]) -> int:
    return len({attempt.node_id for attempt in attempts})


def stage_times(detail: JobDetail, attempts: Sequence[TimelineEntry]) -> list[StageTimes]:
    """The stages in which a task has ended, in their order."""
    stages = {node.node_id: node.stage for node in detail.nodes}
    by_stage: dict[str, list[TimelineEntry]] = {stage.name: [] for stage in detail.stages}
    for attempt in attempts:
        if (stage := stages.get(attempt.parent_node_id or attempt.node_id)) in by_stage:
            by_stage[stage].append(attempt)
    return [
        _times(name, stage_attempts)
        for name, stage_attempts in by_stage.items()
        if any(attempt.finished_at for attempt in stage_attempts)
    ]


def _times(name: str, attempts: Sequence[TimelineEntry]) -> StageTimes:
    ended_at = max(each.finished_at for each in attempts if each.finished_at)
    durations = [
        (each.finished_at - each.started_at).total_seconds()
        for each in attempts
        if each.finished_at and each.started_at
    ]
    return StageTimes(
        name,
        seconds=round((ended_at - min(each.queued_at for each in attempts)).total_seconds(), 3),
        tasks=task_count(attempts),
        mean_run_ms=round(1000 * sum(durations) / max(1, len(durations)), 2),
    )
