"""The spans of a step: one for each traced job that it dispatches tasks for, or ends.

Steps that only count results have none. A job has a limited number of them: a fan_out with thousands of children takes
thousands of steps. A step that is not committed has no span, because it did not happen.
"""

import time
from collections.abc import Mapping
from uuid import UUID

from dagmaster.jobs.plan import Plan
from dagmaster.jobs.states import JOB_TERMINAL
from dagmaster.observe import traces
from dagmaster.orchestrator.owned import Owned


class StepSpans:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._begun_at = time.time()
        self._spans: list[traces.Span] = []

    def begin(self, owned: Mapping[UUID, Owned], plans: Mapping[UUID, Plan]) -> None:
        """Give the tasks of the plans the span of their step."""
        for job_id, plan in plans.items():
            job, changes = owned[job_id], plan.changes
            has_ended = plan.view.status in JOB_TERMINAL
            if job.traceparent is None or not (changes.tasks or changes.next_attempts or has_ended):
                continue
            if job.traced_steps >= self._limit and not has_ended:
                continue
            job.traced_steps += 1
            span = traces.span(
                "advance job",
                parent=job.traceparent,
                begun_at=self._begun_at,
                job_id=str(job_id),
                workflow=plan.view.graph.workflow.workflow_id,
                status=plan.view.status.value,
                tasks=len(changes.tasks),
                retries=len(changes.next_attempts),
                results=len(changes.nodes),
            )
            changes.traceparent = span.traceparent
            self._spans.append(span)

    def end(self) -> None:
        """End the spans: the step is committed."""
        for span in self._spans:
            span.end()
