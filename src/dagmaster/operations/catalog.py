"""The workflows that can be submitted: those that ship and those in configured folders.

A file that is refused is kept with its problems and does not stand in the way of the others.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagmaster.errors import InvalidWorkflow, NotFound
from dagmaster.settings import Settings
from dagmaster.workflows.load import Limits, read_all, shipped
from dagmaster.workflows.model import Workflow


@dataclass(frozen=True)
class Catalog:
    workflows: Mapping[str, Workflow]
    refused: tuple[InvalidWorkflow, ...] = ()
    max_params_bytes: int = 262_144  # of a submission's inputs

    def get(self, workflow_id: str) -> Workflow:
        try:
            return self.workflows[workflow_id]
        except KeyError:
            known = ", ".join(sorted(self.workflows))
            raise NotFound(
                f"no workflow is named '{workflow_id}'",
                code="workflow.not-found",
                hint=f"known: {known}",
                workflow_id=workflow_id,
            ) from None


def limits_of(settings: Settings) -> Limits:
    return Limits(
        max_bytes=settings.max_yaml_bytes, max_nodes=settings.max_nodes, max_params_bytes=settings.max_params_bytes
    )


def load_catalog(settings: Settings, handlers: Mapping[str, Any], queues: Collection[str]) -> Catalog:
    """Read every workflow file: the shipped ones first."""
    paths = [*shipped(), *(path for folder in settings.workflow_folders for path in workflow_files(folder))]
    loaded = read_all(paths, limits=limits_of(settings), handlers=handlers, queues=queues)
    return Catalog(dict(loaded.workflows), tuple(loaded.refused), settings.max_params_bytes)


def workflow_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise NotFound(
            f"the workflow folder {folder} does not exist", code="settings.no-folder", hint="correct WORKFLOW_FOLDERS"
        )
    return sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")])
