"""`dagmaster jobs logs`: what handlers logged, attempt by attempt."""

import time
from collections import defaultdict

from dagmaster.cli.command import State
from dagmaster.cli.follow import detached, patiently
from dagmaster.client.feed import Reconnection
from dagmaster.client.models.base import Json, read, read_all
from dagmaster.client.models.jobs import EventEntry, JobSummary, PublicJob
from dagmaster.client.models.nodes import JobLogLine

_POLL_SECONDS = 1.0
_MOST_AT_ONCE = 10_000


def text_of(answer: Json) -> str:
    line = read(JobLogLine, answer)
    at = line.at.strftime("%H:%M:%S.%f")[:-3]
    return f"{at}  {line.node_id} attempt {line.attempt}  {line.level}: {line.text}"


def follow_logs(state: State, job_id: str, node: str | None, attempt: int | None) -> int:
    """Print all lines, also new ones, until the job has ended; returns the exit code."""
    follower = _Follower(state, job_id, node, attempt)
    reconnection = Reconnection(state.note, job_id)
    try:
        while not patiently(reconnection, follower.poll):
            time.sleep(_POLL_SECONDS)
    except KeyboardInterrupt:
        return detached(state, job_id)
    return 0


class _Follower:
    """Polls running attempts, and those that ended since the last poll. Lines have numbers: none is printed twice."""

    def __init__(self, state: State, job_id: str, node: str | None, attempt: int | None) -> None:
        self._state = state
        self._client = state.client
        self._job_id = job_id
        self._node = node
        self._attempt = attempt
        self._sequence: int | None = None
        self._printed: dict[tuple[str, int], int] = defaultdict(int)

    def poll(self) -> bool:
        """Print new lines; returns whether the job had ended before, so that no line is missed."""
        if self._sequence is None:
            sequence = read(PublicJob, self._client.job(self._job_id)["job"]).last_sequence
            self._print(self._node, is_running=False)
            self._sequence = sequence
        is_over = read(JobSummary, self._client.job_line(self._job_id)).is_over
        self._print(self._node, is_running=True)
        for node in self._ended():
            self._print(node, is_running=False)
        return is_over

    def _ended(self) -> list[str]:
        """Nodes and children of which an attempt began or ended since the last poll."""
        page, _ = self._client.events(self._job_id, _MOST_AT_ONCE, self._sequence or 0)
        events = read_all(EventEntry, page)
        if events:
            self._sequence = events[-1].sequence
        return list(
            dict.fromkeys(e.node_id for e in events if e.node_id and e.attempt and self._is_selected(e.node_id))
        )

    def _is_selected(self, node: str) -> bool:
        return self._node in (None, node, node.rpartition("__")[0])

    def _print(self, node: str | None, *, is_running: bool) -> None:
        lines, _ = self._client.logs(
            self._job_id, _MOST_AT_ONCE, node_id=node, attempt=self._attempt, is_running=is_running
        )
        for answer in lines:
            line = read(JobLogLine, answer)
            if line.number > self._printed[line.node_id, line.attempt]:
                self._printed[line.node_id, line.attempt] = line.number
                self._emit(answer)

    def _emit(self, answer: Json) -> None:
        if self._state.json:
            self._state.emit(answer, line=True)
        else:
            self._state.say(text_of(answer))
