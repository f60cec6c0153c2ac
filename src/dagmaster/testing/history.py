"""The history check on a database in memory."""

from collections.abc import Iterable, Iterator
from uuid import UUID

from dagmaster.jobs.history import Audit, EventRow, FindingCode, HistoryFinding, JobRow, NodeRow, ResultRow, TaskRow
from dagmaster.jobs.model import JobEvent, NodeState, TaskResult
from dagmaster.testing.memory_ledger import MemoryDatabase
from dagmaster.workflows.graph import build


def findings_of(database: MemoryDatabase, *, max_losses: int | None = None) -> list[HistoryFinding]:
    return [finding for job_id in database.jobs for finding in audit(database, job_id, max_losses)]


def audit(
    database: MemoryDatabase, job_id: UUID, max_losses: int | None = None, events: Iterable[EventRow] | None = None
) -> list[HistoryFinding]:
    """The findings about a job. If `events` are given, they are checked instead of the events of the job."""
    job = database.jobs[job_id]
    rows = [node_row(node) for node in database.nodes[job_id].values()]
    graph = build(database.definitions[job.definition_hash])
    checked = Audit(job_id, graph, [row for row in rows if row.parent_node_id is None], max_losses=max_losses)
    for event in events if events is not None else map(event_of, database.events[job_id]):
        checked.add_event(event)
    for row in rows:
        checked.check_node(row)
    for task in database.tasks_of(job_id):
        checked.check_task(TaskRow(job_id, task.node_id, task.attempt, task.status))
    for result in database.results.values():
        if result.job_id == job_id:
            checked.check_result(result_row(database, result))
    ended = JobRow(job_id, job.status, job.definition_hash, job.last_sequence, job.epoch, job.resume_count)
    return [*checked.finish(ended), *_dangling(database, job_id)]


def _dangling(database: MemoryDatabase, job_id: UUID) -> Iterator[HistoryFinding]:
    """References to payloads that do not exist, or that could be deleted."""
    referred = [(task.node_id, task.params_ref) for task in database.tasks_of(job_id)]
    referred += [(result.node_id, result.output_ref) for result in database.results.values() if result.job_id == job_id]
    for node_id, reference in referred:
        payload = database.payloads.get((job_id, reference["sha256"])) if reference else None
        if reference and (payload is None or not payload.is_kept or payload.size_bytes != reference["bytes"]):
            yield HistoryFinding(
                job_id, node_id, FindingCode.PAYLOAD, f"payload {reference['sha256'][:12]}… is not kept"
            )


def event_of(event: JobEvent) -> EventRow:
    return EventRow(**{name: getattr(event, name) for name in EventRow._fields})


def node_row(node: NodeState) -> NodeRow:
    output = node.output if isinstance(node.output, dict) else {}
    chosen, count = output.get("next"), output.get("count")
    return NodeRow(
        **{name: getattr(node, name) for name in NodeRow._fields if name not in ("chosen", "gathered")},
        chosen=list(map(str, chosen)) if isinstance(chosen, list) else None,
        gathered=count if isinstance(count, int) else None,
    )


def result_row(database: MemoryDatabase, result: TaskResult) -> ResultRow:
    node = database.nodes[result.job_id][result.node_id]
    is_completed = node.status == "completed" and node.attempt == result.attempt
    has_other_output = (node.output, node.output_ref) != (result.output, result.output_ref)
    differs = is_completed and result.accepted and result.status == "succeeded" and has_other_output
    return ResultRow(
        result.job_id, result.node_id, result.attempt, result.status, result.accepted, result.processed, differs
    )
