"""`dagmaster workflows`: list, show, validate and draw workflows. Files are read locally, without a platform."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from dagmaster.cli.command import Group, State, pass_state
from dagmaster.cli.completion import complete_workflows_or_files
from dagmaster.cli.naming import is_file, read_workflow
from dagmaster.cli.tables import Column, print_table
from dagmaster.client.escaping import one_line
from dagmaster.errors import InvalidWorkflow
from dagmaster.quantities import counted

# Workflows that show what the engine does, in addition to those named …_test.
_EXAMPLES = frozenset({"demo", "hello_world"})


@click.group(cls=Group)
def workflows() -> None:
    """List, show, validate and draw workflows."""


@workflows.command("ls")
@pass_state
def list_workflows(state: State) -> None:
    """List the workflows of the platform, and the files that it refused."""
    page, refused = state.client.workflows(), state.client.refused_workflows()
    if state.json:
        state.emit({"workflows": page, "refused": refused})
        return
    from dagmaster.client.models.base import read_all
    from dagmaster.client.models.workflows import RefusedFile, WorkflowSummary

    columns: list[Column[WorkflowSummary]] = [
        Column("workflow", lambda workflow: workflow.workflow_id),
        Column("version", lambda workflow: workflow.version, drop=1),
        Column("nodes", lambda workflow: str(workflow.nodes), drop=2, is_number=True),
        Column("inputs", lambda workflow: str(len(workflow.inputs)), drop=3, is_number=True),
        Column("description", lambda workflow: one_line(workflow.description or workflow.name), is_long=True),
    ]
    summaries = read_all(WorkflowSummary, page)
    examples = [workflow for workflow in summaries if _is_example(workflow.workflow_id)]
    others = [workflow for workflow in summaries if workflow not in examples]
    if others:
        print_table(state.console, columns, others)
    if examples:
        state.say("\ntests and examples:" if others else "tests and examples:")
        print_table(state.console, columns, examples)
    if page:
        state.note("see the inputs of a workflow with: dagmaster workflows show WORKFLOW")
    for file in read_all(RefusedFile, refused):
        for problem in file.problems:
            where = f"{file.file}:{problem.line}" if problem.line else file.file
            node = f" node '{problem.node}':" if problem.node else ""
            state.note(f"refused: {where}:{node} {problem.message}")


def _is_example(workflow_id: str) -> bool:
    return workflow_id in _EXAMPLES or workflow_id.endswith("_test")


@workflows.command("show")
@click.argument("workflow", shell_complete=complete_workflows_or_files)
@pass_state
def show(state: State, workflow: str) -> None:
    """Show the definition of a workflow, or of a file."""
    path = Path(workflow)
    body = read_workflow(state, path).body() if is_file(workflow) else state.client.workflow(workflow)["definition"]
    if state.json:
        state.emit(body)
        return
    import yaml

    state.say(yaml.safe_dump(body, sort_keys=False, allow_unicode=True, width=100).rstrip())


@workflows.command("validate")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@pass_state
def validate(state: State, files: tuple[Path, ...]) -> int:
    """Validate workflow files and show all mistakes at once; the exit code is 2 if there is any.

    The files are checked against the handlers installed on this machine; no platform is needed.
    """
    reports = [_validated(state, file) for file in files]
    if state.json:
        state.emit({"files": reports})
    else:
        for report in reports:
            state.say(report["message"])
    return 0 if all(report["ok"] for report in reports) else 2


def _validated(state: State, file: Path) -> dict[str, Any]:
    try:
        workflow = read_workflow(state, file)
    except InvalidWorkflow as error:
        workflow_id, problems, message = None, [asdict(problem) for problem in error.problems], error.message
    else:
        workflow_id, problems, nodes = workflow.workflow_id, [], counted(len(workflow.nodes), "node")
        message = f"{file}: ok (workflow {workflow_id} version {workflow.version}, {nodes})"
    report = {"file": str(file), "ok": not problems, "workflow_id": workflow_id, "problems": problems}
    return {**report, "message": message, "said": message}  # `said` is the former name of `message`


@workflows.command("graph")
@click.argument("workflow", shell_complete=complete_workflows_or_files)
@pass_state
def graph(state: State, workflow: str) -> None:
    """Draw a workflow, or a file, as a Mermaid flowchart."""
    drawn = _drawn_from_file(state, Path(workflow)) if is_file(workflow) else state.client.graph(workflow)
    state.print_result({name: drawn[name] for name in ("workflow_id", "mermaid")}, str(drawn["mermaid"]).rstrip())


def _drawn_from_file(state: State, path: Path) -> dict[str, Any]:
    from dagmaster.workflows.draw import mermaid
    from dagmaster.workflows.graph import build

    workflow = read_workflow(state, path)
    return {"workflow_id": workflow.workflow_id, "mermaid": mermaid(build(workflow))}
