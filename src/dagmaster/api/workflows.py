"""Workflows: what can be submitted, whether a file is right, and how a workflow looks."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, Field

from dagmaster.api import examples
from dagmaster.api.pages import Cursor, Limit, Page, page_of
from dagmaster.api.problems import responses
from dagmaster.api.services import ApiServices, Services
from dagmaster.errors import InvalidWorkflow
from dagmaster.operations.library import limits_of, without_folders
from dagmaster.web.problems import Mistake
from dagmaster.workflows.draw import mermaid
from dagmaster.workflows.graph import Graph, build, targets
from dagmaster.workflows.load import read
from dagmaster.workflows.model import ConditionalNode, Importance, Workflow, work_of

router = APIRouter(prefix="/workflows", tags=["workflows"])

WorkflowId = Annotated[str, Path(max_length=64, examples=["hello_world"])]
_YAML = {"schema": {"type": "string"}, "example": examples.WORKFLOW}


class WorkflowSummary(BaseModel):
    """A workflow in a list."""

    workflow_id: str
    version: str
    name: str
    description: str
    nodes: int
    inputs: list[str]
    idempotent: bool
    definition_hash: str = Field(description="Stands for the whole content; a job keeps the definition it started with")


class RefusedFile(BaseModel):
    """A workflow file that the platform found and could not use."""

    file: str = Field(description="Its name, or the entry point of a package that brings none")
    problems: list[Mistake]


class WorkflowPage(Page[WorkflowSummary]):
    refused: list[RefusedFile] = Field(
        [], description="Files that can't be used, with every mistake in them; on each page"
    )


class WorkflowDetail(WorkflowSummary):
    """A workflow with its definition, and a JSON schema of its inputs to check or to make a form of."""

    timeout_seconds: float
    inputs_schema: dict[str, Any]
    definition: dict[str, Any]


class Validation(BaseModel):
    """Whether a file is right; if not, every mistake in it with line and column."""

    is_valid: bool
    workflow_id: str | None = None
    version: str | None = None
    nodes: int | None = None
    inputs_schema: dict[str, Any] | None = None
    problems: list[Mistake] = []


@dataclass(frozen=True, slots=True)
class GraphNode:
    node_id: str
    type: str
    stage: str
    stage_number: int
    importance: Importance
    handler: str | None
    description: str


@dataclass(frozen=True, slots=True)
class GraphEdge:
    """`any_of` edges are those of which one is enough. A label names the branch of a conditional."""

    source: str
    target: str
    kind: str
    label: str | None


class WorkflowGraph(BaseModel):
    """A workflow to draw: nodes in an order that respects every edge, and the same as a Mermaid flowchart."""

    workflow_id: str
    nodes: list[GraphNode]
    edges: list[GraphEdge]
    mermaid: str


@router.get("", operation_id="list_workflows", summary="List workflows", responses=responses())
async def list_workflows(services: Services, after: Cursor = None, limit: Limit = 50) -> WorkflowPage:
    """Those that ship and those in the configured folders, by id."""
    ids = sorted(name for name in services.catalog.workflows if name > (after or ""))
    found = [WorkflowSummary(**_summary(services.catalog.workflows[name])) for name in ids[: limit + 1]]
    page = page_of(found, limit, lambda workflow: workflow.workflow_id)
    return WorkflowPage(
        items=page.items, next=page.next, refused=[_refused(error) for error in services.catalog.refused]
    )


def _refused(error: InvalidWorkflow) -> RefusedFile:
    return RefusedFile(file=without_folders(error.file), problems=_mistakes(error))


def _mistakes(error: InvalidWorkflow) -> list[Mistake]:
    return [
        Mistake(message=without_folders(p.message), line=p.line, column=p.column, node=p.node, code=p.code)
        for p in error.problems
    ]


@router.post(
    "/validate",
    operation_id="validate_workflow",
    summary="Check a workflow file",
    responses=responses(),
    openapi_extra={
        "requestBody": {"required": True, "content": {"application/yaml": _YAML, "text/plain": _YAML}},
    },
)
async def validate_workflow(services: Services, request: Request) -> Validation:
    """Every mistake at once. The body is the YAML text."""
    try:
        workflow = await read_definition(services, await request.body())
    except InvalidWorkflow as error:
        return Validation(is_valid=False, problems=_mistakes(error))
    return Validation(
        is_valid=True, workflow_id=workflow.workflow_id, version=workflow.version, nodes=len(workflow.nodes),
        inputs_schema=inputs_schema(workflow),
    )  # fmt: skip


async def read_definition(services: ApiServices, text: str | bytes) -> Workflow:
    """The workflow in a text that was sent, or every mistake in it."""
    # In a thread: a large file takes a while, and the orchestrator shares this loop.
    return await asyncio.to_thread(
        read, text, "workflow.yaml", limits=limits_of(services.settings), handlers=services.handlers,
        queues=services.settings.known_queues,
    )  # fmt: skip


@router.get("/{workflow_id}", operation_id="get_workflow", summary="Look at a workflow", responses=responses(404))
async def get_workflow(services: Services, workflow_id: WorkflowId) -> WorkflowDetail:
    workflow = services.catalog.get(workflow_id)
    return WorkflowDetail(
        **_summary(workflow),
        timeout_seconds=workflow.timeout_seconds,
        inputs_schema=inputs_schema(workflow),
        definition=workflow.body(),
    )


@router.get(
    "/{workflow_id}/graph", operation_id="get_workflow_graph", summary="A workflow to draw", responses=responses(404)
)
async def get_workflow_graph(services: Services, workflow_id: WorkflowId) -> WorkflowGraph:
    graph = build(services.catalog.get(workflow_id))
    return WorkflowGraph(
        workflow_id=workflow_id, nodes=list(_nodes(graph)), edges=list(_edges(graph)), mermaid=mermaid(graph)
    )


def _summary(workflow: Workflow) -> dict[str, Any]:
    return {
        "workflow_id": workflow.workflow_id,
        "version": workflow.version,
        "name": workflow.name,
        "description": workflow.description,
        "nodes": len(workflow.nodes),
        "inputs": list(workflow.inputs),
        "idempotent": workflow.idempotent,
        "definition_hash": workflow.content_hash(),
    }


def inputs_schema(workflow: Workflow) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for name, declared in workflow.inputs.items():
        properties[name] = {"type": str(declared.type), "description": declared.description}
        if declared.has_default:
            properties[name]["default"] = declared.default
    required = [name for name, i in workflow.inputs.items() if i.required and not i.has_default]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object", "properties": properties,
        "required": required, "additionalProperties": False,
    }  # fmt: skip


def _nodes(graph: Graph) -> Iterator[GraphNode]:
    for node_id in graph.order:
        node = graph.workflow.nodes[node_id]
        work = work_of(node)
        number, stage = graph.stages[node_id]
        yield GraphNode(
            node_id, node.type, stage, number, node.importance, work.handler if work else None, node.description
        )


def _edges(graph: Graph) -> Iterator[GraphEdge]:
    for target in graph.order:
        for kind, sources in (("all_of", graph.all_of[target]), ("any_of", graph.any_of[target])):
            for source in sources:
                yield GraphEdge(source, target, kind, _label(graph, source, target))


def _label(graph: Graph, source: str, target: str) -> str | None:
    node = graph.workflow.nodes[source]
    if not isinstance(node, ConditionalNode) or target not in targets(node):
        return None
    ways = [way for way, names in (("true", node.on_true), ("false", node.on_false)) if target in names]
    ways += [branch.condition or "otherwise" for branch in node.branches if target in branch.next]
    return " / ".join(ways) or None
