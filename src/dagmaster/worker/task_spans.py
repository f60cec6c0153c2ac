"""The span of one attempt of a task, in the trace of its job."""

from dagmaster.database.ledger.protocol import Report
from dagmaster.jobs.model import TaskMessage
from dagmaster.observe import traces


def is_traced(task: TaskMessage, traced_children: int) -> bool:
    """Whether a task is traced: its job is, and if it is a child of a fan_out, it is one of the first."""
    return task.traceparent is not None and traces.is_on() and traces.is_node_traced(task.node_id, traced_children)


def span_of(task: TaskMessage) -> traces.Span:
    return traces.span(
        f"task {task.handler}",
        parent=task.traceparent,
        kind="consumer",
        job_id=str(task.job_id),
        node_id=task.node_id,
        attempt=task.attempt,
        handler=task.handler,
        queue=task.queue,
        retry_count=task.retry_count,
    )


def describe_end(span: traces.Span, report: Report) -> None:
    span.set(outcome=report.status.value)
    if report.error:
        span.fail(str(report.error.get("code")))
