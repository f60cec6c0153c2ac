"""A job, for tests: its rows and assertions about them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import orjson

from dagmaster.jobs.model import Job, JobEvent, NodeState, Task
from dagmaster.jobs.payload import is_payload
from dagmaster.jobs.states import JobStatus
from dagmaster.testing.memory_ledger import MemoryDatabase

_ANY: Any = object()  # None is a result too


@dataclass(frozen=True, slots=True)
class KitJob:
    """The rows of a job at one moment, as the engine has written them."""

    row: Job
    nodes: Mapping[str, NodeState]  # the children of fan_outs too, as `spread__0`
    events: Sequence[JobEvent]
    tasks: Sequence[Task]  # one for each attempt of a node
    payloads: Mapping[str, bytes] = field(default_factory=dict)  # values that are too large for rows, by their hash

    @classmethod
    def of(cls, database: MemoryDatabase, job_id: UUID) -> "KitJob":
        events, nodes = tuple(database.events[job_id]), dict(database.nodes[job_id])
        payloads = {key[1]: data for key, data in database.payload_parts.items() if key[0] == job_id}
        return cls(database.jobs[job_id], nodes, events, tuple(database.tasks_of(job_id)), payloads)

    @property
    def status(self) -> JobStatus:
        return self.row.status

    @property
    def result(self) -> Any:
        return self.row.result_data

    @property
    def seconds(self) -> float:
        """Virtual time from the submission to the last event."""
        return (max(event.created_at for event in self.events) - self.row.created_at).total_seconds()

    def output(self, node_id: str) -> Any:
        """The output of the node, however large; for a fan_in of large outputs, the reference to its children."""
        node = self.nodes[node_id]
        if node.output_ref is None:
            return node.output
        return (
            orjson.loads(self.payloads[node.output_ref["sha256"]]) if is_payload(node.output_ref) else node.output_ref
        )

    def attempts(self, node_id: str) -> list[Task]:
        return [task for task in self.tasks if task.node_id == node_id]

    def expect(
        self,
        status: str = JobStatus.COMPLETED,
        *,
        result: Any = _ANY,
        nodes: Mapping[str, str] | None = None,
        attempts: Mapping[str, int] | None = None,
        events: Sequence[str] = (),
    ) -> "KitJob":
        """Assert how the job ended. Only the given values are compared; `events` must occur in this order."""
        wrong = [f"the job is {self.status}, not {status}"] if self.status != status else []
        if result is not _ANY and self.result != result:
            wrong.append(f"its result is {self.result!r}, not {result!r}")
        for node_id, expected in (nodes or {}).items():
            if (node_status := self.nodes[node_id].status) != expected:
                wrong.append(f"node '{node_id}' is {node_status}, not {expected}")
        for node_id, count in (attempts or {}).items():
            if (attempt_count := len(self.attempts(node_id))) != count:
                wrong.append(f"node '{node_id}' took {attempt_count} attempts, not {count}")
        event_types = iter([str(event.event_type) for event in self.events])
        wrong += [f"no event {expected} (in this order)" for expected in events if expected not in event_types]
        if wrong:
            raise AssertionError("\n".join([*wrong, "", self.transcript()]))
        return self

    def transcript(self) -> str:
        """The history of the job: one line per event, with errors."""
        lines = [f"job of {self.row.workflow_id}: {self.status} {self.row.error_message or ''}".rstrip()]
        for event in self.events:
            at = (event.created_at - self.row.created_at).total_seconds()
            attempt = f"attempt {event.attempt}" if event.attempt else ""
            message = ((event.event_data or {}).get("error") or {}).get("message", "")
            lines.append(f"{at:10.3f} s  {event.event_type:<16} {event.node_id or '':<16} {attempt} {message}".rstrip())
        return "\n".join(lines)

    story = transcript  # its former name
