"""Workflows: summaries, definitions, graphs, and the check of a workflow file."""

from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import Field

from dagmaster.client.models.base import ApiModel, Extensible
from dagmaster.client.models.jobs import JobSummary
from dagmaster.client.models.nodes import PublicNode
from dagmaster.client.models.pages import Page
from dagmaster.client.models.problems import Mistake
from dagmaster.jobs.states import JobStatus
from dagmaster.workflows.model import Importance


class WorkflowSummary(ApiModel):
    """A workflow in a list."""

    workflow_id: str
    version: str
    name: str
    description: str
    nodes: int
    inputs: list[str]
    reserved_inputs: list[str] = Field([], description="Inputs that only the platform sets; a submission cannot")
    idempotent: bool = False
    definition_hash: str = Field(
        "", description="Hash of the whole definition; a job keeps the definition it started with"
    )


class RefusedFile(ApiModel):
    """A workflow file that the platform cannot use."""

    file: str = Field(description="Its name, or the entry point of a package that has no workflow files")
    problems: list[Mistake]


class WorkflowPage(Page[WorkflowSummary]):
    refused: list[RefusedFile] = Field(
        [], description="Files that cannot be used, with every error in them; the same on each page"
    )


class WorkflowDetail(WorkflowSummary):
    """A workflow with its definition, and a JSON schema of its inputs, for validation or for a form."""

    timeout_seconds: float
    inputs_schema: dict[str, Any]
    definition: dict[str, Any]


class WorkflowCheck(ApiModel):
    """Whether a file is valid; if not, every error in it with line and column."""

    is_valid: bool
    workflow_id: str | None = None
    version: str | None = None
    nodes: int | None = None
    inputs_schema: dict[str, Any] | None = None
    problems: list[Mistake] = []


class StoredDefinition(ApiModel):
    """A definition of a workflow that jobs were submitted with. `jobs` are counted up to 1,000."""

    definition_hash: str
    workflow_version: str
    first_used_at: datetime
    last_used_at: datetime | None = None
    jobs: int
    is_exact: bool = Field(description="Whether all of its jobs are counted")
    is_current: bool = Field(description="Whether a new job would use it")


class DefinitionText(StoredDefinition):
    """A definition as text, always formatted in the same way, so that two can be compared line by line."""

    yaml: str
    definition: dict[str, Any]


class NodeStatistics(ApiModel):
    """The durations of a node in the last runs that completed, including the time in the queue."""

    node_id: str
    runs: int
    p50_seconds: float | None = None
    p95_seconds: float | None = None


class WorkflowHistory(ApiModel):
    """The jobs of a workflow in the last days: their number by status, their durations, and the newest ones."""

    workflow_id: str
    days: int
    jobs: int
    is_complete: bool = Field(description="False if only the newest 1,000 jobs are counted")
    by_status: dict[JobStatus, int]
    success_rate: float | None = Field(description="The share of completed jobs among those that ended")
    p50_seconds: float | None = Field(description="The median duration of completed jobs that were not resumed")
    p95_seconds: float | None = None
    recent: list[JobSummary] = []
    nodes: list[NodeStatistics] = []


class GraphNode(ApiModel):
    """A node of a workflow."""

    node_id: str
    type: str
    stage: str
    stage_number: int
    importance: Extensible[Importance]
    handler: str | None
    description: str


class GraphEdge(ApiModel):
    """An edge. One of the `any_of` edges of a node is enough to start it. A label names the branch of a conditional."""

    source: str
    target: str
    kind: str
    label: str | None


class JobGraphNode(PublicNode):
    """A node of a job in its graph."""

    stage_number: int
    description: str = ""


class JobGraph(ApiModel):
    """The graph of a job: nodes in topological order with their state, and edges."""

    job_id: UUID
    status: Extensible[JobStatus]
    definition_hash: str
    eta_seconds: float | None = None
    nodes: list[JobGraphNode]
    edges: list[GraphEdge]


class WorkflowGraph(ApiModel):
    """A workflow as a graph: nodes in topological order, edges, and the same as a Mermaid flowchart."""

    workflow_id: str
    nodes: list[GraphNode]
    edges: list[GraphEdge]
    mermaid: str
