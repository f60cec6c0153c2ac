"""A job as it is now, or as it ended, with its failed nodes and the errors of their handlers."""

from dataclasses import dataclass
from datetime import datetime

from dagmaster.client.json_client import JsonClient
from dagmaster.client.models.base import Json, read, read_all
from dagmaster.client.models.jobs import JobDetail
from dagmaster.client.models.nodes import FailedNode

MAX_CHILDREN = 5  # of each fan_out
_MAX_ERRORS = 3
_PUBLIC_FIELDS = ("node_id", "status", "label", "error_message", "error", "attempt", "max_retries")


class JobOutcome:
    """A job, its failed nodes, and the first failed children of each fan_out. `response` is the unparsed response."""

    def __init__(self, response: Json, failed: list[Json]) -> None:
        self.response = response
        self.detail = read(JobDetail, response)
        self.failed = read_all(FailedNode, failed)
        self._failed = failed

    @classmethod
    def fetch(cls, client: JsonClient, job_id: str) -> "JobOutcome":
        response = client.job(job_id)
        is_completed = read(JobDetail, response).status == "completed"
        return cls(response, [] if is_completed else failures(client, response))

    @property
    def status(self) -> str:
        return self.detail.status

    @property
    def result(self) -> object:
        return self.response["job"].get("result_data")

    def public(self) -> Json:
        job = self.response["job"]
        return {
            "job_id": job["job_id"],
            "workflow_id": job["workflow_id"],
            "status": job["status"],
            "seconds": self.response["seconds"],
            "result": self.result,
            "error": job.get("error_message"),
            "failed_nodes": [{name: node.get(name) for name in _PUBLIC_FIELDS} for node in self._failed],
        }


@dataclass(frozen=True, slots=True)
class JobPage:
    """A job with its failed nodes and, while it runs, what its nodes wait for. `response` is the unparsed response."""

    response: Json
    detail: JobDetail
    failed: list[Json]
    waiting: Json | None
    now: datetime

    @classmethod
    def fetch(cls, client: JsonClient, job_id: str) -> "JobPage":
        response = client.job(job_id)
        detail = read(JobDetail, response)
        waiting = None if detail.is_over else client.waiting(job_id)
        return cls(response, detail, failures(client, response), waiting, client.now)

    def public(self) -> Json:
        return {**self.response, "failed": self.failed, "waiting": (self.waiting or {}).get("nodes", [])}


def failures(client: JsonClient, response: Json) -> list[Json]:
    """Failed nodes, and the first failed children of each fan_out; the first few with their whole error."""
    job_id = response["job"]["job_id"]
    failed: list[Json] = []
    for raw, node in zip(response["nodes"], read(JobDetail, response).nodes, strict=True):
        if node.status == "failed":
            failed.append(raw)
        if node.children and node.children.failed:
            children, _ = client.nodes(job_id, MAX_CHILDREN, parent=raw["node_id"], status="failed")
            failed += children
    # Lists contain messages only; the whole error is another request.
    node_ids = [node["node_id"] for node in failed if node.get("attempt")][:_MAX_ERRORS]
    errors = {node_id: client.node(job_id, node_id)["node"].get("error") for node_id in node_ids}
    return [{**node, "error": _without_traceback(errors.get(node["node_id"]))} for node in failed]


def _without_traceback(error: Json | None) -> Json | None:
    return {name: value for name, value in error.items() if name != "traceback"} if error else None
