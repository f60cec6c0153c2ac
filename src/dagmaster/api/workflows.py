"""Workflows: list them, get one with its definition or as a graph, and check a workflow file."""

import asyncio
from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request

from dagmaster.access.permissions import Permission
from dagmaster.api import examples
from dagmaster.api.problems import responses
from dagmaster.api.services import ApiServices, Services
from dagmaster.client.models.problems import Mistake
from dagmaster.client.models.workflows import (
    GraphEdge,
    GraphNode,
    RefusedFile,
    WorkflowCheck,
    WorkflowDetail,
    WorkflowGraph,
    WorkflowPage,
    WorkflowSummary,
)
from dagmaster.errors import InvalidWorkflow
from dagmaster.library.workflows import limits_of, without_folders
from dagmaster.web.authentication import requires
from dagmaster.web.pages import Cursor, Limit, page_of
from dagmaster.workflows.draw import mermaid
from dagmaster.workflows.graph import Graph, build, targets
from dagmaster.workflows.load import read
from dagmaster.workflows.model import ConditionalNode, Workflow, work_of

router = APIRouter(prefix="/workflows", tags=["workflows"], dependencies=[requires(Permission.WORKFLOWS_READ)])

WorkflowId = Annotated[str, Path(max_length=64, examples=["hello_world"])]
_YAML = {"schema": {"type": "string"}, "example": examples.WORKFLOW}


@router.get("", operation_id="list_workflows", summary="List workflows", responses=responses())
async def list_workflows(services: Services, after: Cursor = None, limit: Limit = 50) -> WorkflowPage:
    """The built-in workflows and those of the configured folders, ordered by id."""
    ids = sorted(name for name in services.library.workflows if name > (after or ""))
    summaries = [WorkflowSummary(**_summary(services.library.workflows[name])) for name in ids[: limit + 1]]
    page = page_of(summaries, limit, lambda workflow: workflow.workflow_id)
    return WorkflowPage(
        items=page.items, next=page.next, refused=[_refused(error) for error in services.library.refused]
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
async def validate_workflow(services: Services, request: Request) -> WorkflowCheck:
    """The body is the YAML text. The response lists every error in it."""
    try:
        workflow = await read_definition(services, await request.body())
    except InvalidWorkflow as error:
        return WorkflowCheck(is_valid=False, problems=_mistakes(error))
    return WorkflowCheck(
        is_valid=True,
        workflow_id=workflow.workflow_id,
        version=workflow.version,
        nodes=len(workflow.nodes),
        inputs_schema=inputs_schema(workflow),
    )


async def read_definition(services: ApiServices, text: str | bytes) -> Workflow:
    """The workflow in a text, or an error with every mistake in it."""
    # In a thread: a large file takes time, and the orchestrator may share this event loop.
    return await asyncio.to_thread(
        read,
        text,
        "workflow.yaml",
        limits=limits_of(services.settings),
        handlers=services.handlers,
        queues=services.settings.known_queues,
    )


@router.get("/{workflow_id}", operation_id="get_workflow", summary="Get a workflow", responses=responses(404))
async def get_workflow(services: Services, workflow_id: WorkflowId) -> WorkflowDetail:
    workflow = services.library.get(workflow_id)
    return WorkflowDetail(
        **_summary(workflow),
        timeout_seconds=workflow.timeout_seconds,
        inputs_schema=inputs_schema(workflow),
        definition=workflow.body(),
    )


@router.get(
    "/{workflow_id}/graph",
    operation_id="get_workflow_graph",
    summary="Get the graph of a workflow",
    responses=responses(404),
)
async def get_workflow_graph(services: Services, workflow_id: WorkflowId) -> WorkflowGraph:
    graph = build(services.library.get(workflow_id))
    return WorkflowGraph(
        workflow_id=workflow_id, nodes=list(_nodes(graph)), edges=list(graph_edges(graph)), mermaid=mermaid(graph)
    )


def _summary(workflow: Workflow) -> dict[str, Any]:
    return {
        "workflow_id": workflow.workflow_id,
        "version": workflow.version,
        "name": workflow.name,
        "description": workflow.description,
        "nodes": len(workflow.nodes),
        "inputs": list(workflow.inputs),
        "reserved_inputs": [name for name, declared in workflow.inputs.items() if declared.reserved],
        "idempotent": workflow.idempotent,
        "definition_hash": workflow.content_hash(),
    }


def inputs_schema(workflow: Workflow) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for name, declared in workflow.inputs.items():
        properties[name] = {"type": str(declared.type), "description": declared.description}
        if declared.has_default:
            properties[name]["default"] = declared.default
        if declared.reserved:
            properties[name]["readOnly"] = True
    required = [name for name, i in workflow.inputs.items() if i.required and not i.has_default]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _nodes(graph: Graph) -> Iterator[GraphNode]:
    for node_id in graph.order:
        node = graph.workflow.nodes[node_id]
        work = work_of(node)
        number, stage = graph.stages[node_id]
        yield GraphNode(
            node_id=node_id,
            type=node.type,
            stage=stage,
            stage_number=number,
            importance=node.importance,
            handler=work.handler if work else None,
            description=node.description,
        )


def graph_edges(graph: Graph) -> Iterator[GraphEdge]:
    for target in graph.order:
        for kind, sources in (("all_of", graph.all_of[target]), ("any_of", graph.any_of[target])):
            for source in sources:
                yield GraphEdge(source=source, target=target, kind=kind, label=_label(graph, source, target))


def _label(graph: Graph, source: str, target: str) -> str | None:
    node = graph.workflow.nodes[source]
    if not isinstance(node, ConditionalNode) or target not in targets(node):
        return None
    labels = [label for label, names in (("true", node.on_true), ("false", node.on_false)) if target in names]
    labels += [branch.condition or "otherwise" for branch in node.branches if target in branch.next]
    return " / ".join(labels) or None
