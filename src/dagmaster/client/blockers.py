"""Why a job waits, and what a person can do about it. Reasons inside the job, such as an earlier node, are left out."""

import time

from dagmaster.client.json_client import JsonClient
from dagmaster.client.models.base import read
from dagmaster.client.models.nodes import WaitingNodes, WaitReason
from dagmaster.errors import Unavailable
from dagmaster.quantities import counted, first_of

_POLL_SECONDS = 5.0
_MAX_NODES = 3
_REMEDIES = {
    "no_orchestrator": "start one with `dagmaster orchestrator`",
    "no_worker": "start one with `dagmaster worker --queues {queue}`",
    "unknown_handler": "start an orchestrator and a worker with the package of the handler, and with the queue in "
    "KNOWN_QUEUES",
    "queue_paused": "resume it with `dagmaster queues resume {queue}`",
    "queue_limited": "raise the limit with `dagmaster queues limit {queue} N`",
}


class Blockers:
    """The reasons why a job waits. They are requested every few seconds while the job does not change."""

    def __init__(self, client: JsonClient, job_id: str) -> None:
        self._client = client
        self._job_id = job_id
        self._requested_at: float | None = None
        self._lines: list[str] = []

    def read(self, *, is_quiet: bool) -> list[str]:
        now = time.monotonic()
        if not is_quiet:
            self._lines = []
        elif self._requested_at is None or now - self._requested_at > _POLL_SECONDS:
            self._requested_at = now
            try:
                self._lines = blockers_of(read(WaitingNodes, self._client.waiting(self._job_id)))
            except Unavailable:
                self._lines = []  # the request for the job itself reports the outage
        return self._lines


def blockers_of(waiting: WaitingNodes) -> list[str]:
    """Each reason outside the job, once, with the nodes that it concerns and its remedy."""
    blocked: dict[str, list[str]] = {}
    for node in waiting.nodes:
        for line in filter(None, map(_blocker, node.reasons)):
            blocked.setdefault(line, []).append(node.node_id)
    return [f"{first_of(nodes, _MAX_NODES)}: {line}" for line, nodes in blocked.items()]


def _blocker(reason: WaitReason) -> str | None:
    if remedy := _REMEDIES.get(reason.code):
        return f"{reason.detail}; {remedy.format(queue=reason.queue)}"
    if reason.code == "orphaned":
        return reason.detail
    if reason.code == "queued" and reason.count:
        return f"{counted(reason.count, 'task')} ahead of it in queue {reason.queue}"
    return None
