"""Workflows: summaries, definitions, graphs, and the check of a workflow file."""

from typing import Any

from pydantic import Field

from dagmaster.client.models.base import ApiModel, Extensible
from dagmaster.client.models.pages import Page
from dagmaster.client.models.problems import Mistake
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
        [], description="Files that cannot be used, with every error in them; on each page"
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


class WorkflowGraph(ApiModel):
    """A workflow as a graph: nodes in topological order, edges, and the same as a Mermaid flowchart."""

    workflow_id: str
    nodes: list[GraphNode]
    edges: list[GraphEdge]
    mermaid: str
