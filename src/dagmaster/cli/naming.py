"""Workflows as command line arguments: an id on the platform, or a file."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagmaster.errors import InvalidWorkflow, WorkflowProblem

if TYPE_CHECKING:
    from dagmaster.cli.command import State
    from dagmaster.workflows.model import Workflow


def is_file(name: str) -> bool:
    return name.endswith((".yaml", ".yml")) or "/" in name


def workflow_bytes(path: Path, limit: int) -> bytes:
    from dagmaster.cli.files import bytes_of

    try:
        return bytes_of(path, limit)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidWorkflow(str(path), [WorkflowProblem(f"cannot be read: {reason}")]) from None


def read_workflow(state: "State", path: Path) -> "Workflow":
    """The workflow in a file, checked against this installation; raises with all its problems.

    An alias may name a workflow of this installation, or one in the same folder.
    """
    from dagmaster.handlers.registry import installed
    from dagmaster.operations.library import limits_of, load_library
    from dagmaster.workflows.load import read_folder, read_with_aliases

    settings = state.settings
    text = workflow_bytes(path, settings.max_yaml_bytes)
    rules: dict[str, Any] = {"limits": limits_of(settings), "handlers": installed(), "queues": settings.known_queues}

    def find_workflows() -> "dict[str, Workflow]":
        library = load_library(settings, installed(), settings.known_queues).workflows
        return {**read_folder(path.absolute().parent, **rules).workflows, **library}

    return read_with_aliases(text, str(path), find_workflows, **rules)
