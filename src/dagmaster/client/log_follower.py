"""The log lines of a job while it runs: each once, in the order in which they become known."""

from collections import defaultdict
from collections.abc import Callable

from dagmaster.client.json_client import JsonClient
from dagmaster.client.models.base import Json, read, read_all
from dagmaster.client.models.jobs import EventEntry, JobSummary, PublicJob
from dagmaster.client.models.nodes import JobLogLine

_MAX_AT_ONCE = 10_000


class LogFollower:
    """Polls running attempts, and those that ended since the last poll. Lines have numbers: none is emitted twice."""

    def __init__(
        self, client: JsonClient, job_id: str, node: str | None, attempt: int | None, emit: Callable[[Json], None]
    ) -> None:
        self._client = client
        self._job_id = job_id
        self._node = node
        self._attempt = attempt
        self._emit = emit
        self._sequence: int | None = None
        self._emitted: dict[tuple[str, int], int] = defaultdict(int)

    def poll(self) -> bool:
        """Emit new lines; returns whether the job had ended before they were read: then these are the last ones."""
        if self._sequence is None:
            sequence = read(PublicJob, self._client.job(self._job_id)["job"]).last_sequence
            self._emit_new(self._node, is_running=False)
            self._sequence = sequence
        is_over = read(JobSummary, self._client.job_summary(self._job_id)).is_over
        self._emit_new(self._node, is_running=True)
        for node in self._changed_nodes():
            self._emit_new(node, is_running=False)
        return is_over

    def _changed_nodes(self) -> list[str]:
        """Nodes and children with an attempt that began or ended since the last poll."""
        page, _ = self._client.events(self._job_id, _MAX_AT_ONCE, self._sequence or 0)
        events = read_all(EventEntry, page)
        if events:
            self._sequence = events[-1].sequence
        return list(
            dict.fromkeys(e.node_id for e in events if e.node_id and e.attempt and self._is_selected(e.node_id))
        )

    def _is_selected(self, node: str) -> bool:
        return self._node in (None, node, node.rpartition("__")[0])

    def _emit_new(self, node: str | None, *, is_running: bool) -> None:
        lines, _ = self._client.logs(
            self._job_id, _MAX_AT_ONCE, node_id=node, attempt=self._attempt, is_running=is_running
        )
        for response in lines:
            line = read(JobLogLine, response)
            if line.number > self._emitted[line.node_id, line.attempt]:
                self._emitted[line.node_id, line.attempt] = line.number
                self._emit(response)
