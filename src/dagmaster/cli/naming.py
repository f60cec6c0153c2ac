"""Workflows as command line arguments: an id on the platform, or a file."""

from pathlib import Path
from typing import TYPE_CHECKING

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
    """The workflow in a file, checked against this installation. The error has all problems of the file."""
    from dagmaster.handlers.registry import installed
    from dagmaster.library.workflows import read_with_library

    text = workflow_bytes(path, state.settings.max_yaml_bytes)
    return read_with_library(path, text, state.settings, installed())
