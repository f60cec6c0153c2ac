"""`dagmaster workflows`: what can be submitted, and whether a file is right. Needs no platform."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from dagmaster.cli.command import Group, State, pass_state
from dagmaster.cli.submit import catalog_of, find_workflow, read_file
from dagmaster.errors import InvalidWorkflow


@click.group(cls=Group)
def workflows() -> None:
    """Look at workflows, check and draw them."""


@workflows.command("ls")
@pass_state
def list_workflows(state: State) -> None:
    """List the workflows that ship and those in WORKFLOW_FOLDERS."""
    catalog = catalog_of(state)
    found = sorted(catalog.workflows.values(), key=lambda workflow: workflow.workflow_id)
    if state.json:
        state.emit({"workflows": [_brief(workflow) for workflow in found], "refused": _refused(catalog.refused)})
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("workflow", "version", "nodes", "inputs", "description"):
        table.add_column(heading, no_wrap=heading not in {"inputs", "description"})
    for workflow in found:
        inputs = ", ".join(f"{name}{'*' if i.required else ''}" for name, i in workflow.inputs.items())
        row = (workflow.workflow_id, workflow.version, str(len(workflow.nodes)), inputs)
        table.add_row(*map(Text, row), Text(workflow.description or workflow.name))
    state.console.print(table)
    for refused in catalog.refused:
        state.note(f"refused:\n{refused.message}")


def _brief(workflow: Any) -> dict[str, Any]:
    return {
        "workflow_id": workflow.workflow_id,
        "version": workflow.version,
        "name": workflow.name,
        "description": workflow.description,
        "nodes": len(workflow.nodes),
        "inputs": {name: declared.model_dump(mode="json") for name, declared in workflow.inputs.items()},
        "definition_hash": workflow.content_hash(),
    }


def _refused(errors: tuple[InvalidWorkflow, ...]) -> list[dict[str, Any]]:
    return [{"file": e.file, "problems": [asdict(problem) for problem in e.problems]} for e in errors]


@workflows.command("show")
@click.argument("workflow")
@pass_state
def show(state: State, workflow: str) -> None:
    """Show the definition of a workflow, or of a file."""
    body = find_workflow(state, workflow).body()
    if state.json:
        state.emit(body)
        return
    import yaml

    state.say(yaml.safe_dump(body, sort_keys=False, allow_unicode=True, width=100).rstrip())


@workflows.command("validate")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@pass_state
def validate(state: State, files: tuple[Path, ...]) -> int:
    """Check workflow files and tell every mistake at once; exit code 2 if there is any."""
    reports = [_validated(state, file) for file in files]
    if state.json:
        state.emit({"files": reports})
    else:
        for report in reports:
            state.say(report["said"])
    return 0 if all(report["ok"] for report in reports) else 2


def _validated(state: State, file: Path) -> dict[str, Any]:
    try:
        workflow = read_file(state, file)
    except InvalidWorkflow as error:
        problems = [asdict(problem) for problem in error.problems]
        return {"file": str(file), "ok": False, "workflow_id": None, "problems": problems, "said": error.message}
    said = f"{file}: ok (workflow {workflow.workflow_id} version {workflow.version}, {len(workflow.nodes)} nodes)"
    return {"file": str(file), "ok": True, "workflow_id": workflow.workflow_id, "problems": [], "said": said}


@workflows.command("graph")
@click.argument("workflow")
@pass_state
def graph(state: State, workflow: str) -> None:
    """Draw a workflow, or a file, as a Mermaid flowchart."""
    from dagmaster.workflows.draw import mermaid
    from dagmaster.workflows.graph import build

    found = find_workflow(state, workflow)
    drawn = mermaid(build(found))
    if state.json:
        state.emit({"workflow_id": found.workflow_id, "mermaid": drawn})
    else:
        state.say(drawn.rstrip())
