"""The workflows that can be submitted: the shipped ones, those of other packages, and those in configured folders.

A file that is refused is listed with its problems, and the others are loaded.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from importlib import resources
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from dagmaster.errors import InvalidWorkflow, NotFound, WorkflowProblem
from dagmaster.library import entry_points
from dagmaster.settings import Settings
from dagmaster.workflows.load import WorkflowLimits, read_all, read_folder, read_with_aliases, shipped
from dagmaster.workflows.model import Workflow
from dagmaster.workflows.nearest import did_you_mean

SHOWN_REFUSALS = 5
# An absolute path without its last part: clients do not need the server's folders.
_FOLDERS = re.compile(r"(?<![\w./])/(?:[^\s/]+/)+")


@dataclass(frozen=True)
class WorkflowLibrary:
    workflows: Mapping[str, Workflow]
    refused: tuple[InvalidWorkflow, ...] = ()
    max_inputs_bytes: int = 262_144  # of one submission
    allow_private_callbacks: bool = False
    targets: Mapping[str, Workflow] = field(default_factory=dict)  # the workflows that an alias may name

    def get(self, workflow_id: str, *, suggested: Callable[[Workflow], bool] | None = None) -> Workflow:
        """The workflow. The error for an unknown name lists those that are `suggested`; without that, all of them."""
        try:
            return self.workflows[workflow_id]
        except KeyError:
            known = [name for name, workflow in self.workflows.items() if suggested is None or suggested(workflow)]
            raise NotFound(
                f"no workflow is named '{workflow_id}'{did_you_mean(workflow_id, known)}",
                code="workflow.not-found",
                hint=self._hint(known, with_refused=suggested is None),
                workflow_id=workflow_id,
            ) from None

    def _hint(self, workflow_ids: Collection[str], *, with_refused: bool) -> str:
        """The known workflows, and the refused files: the workflow may be in one of them."""
        refused = "; ".join(without_folders(error.message) for error in self.refused[:SHOWN_REFUSALS])
        listed = f"known: {', '.join(sorted(workflow_ids))}"
        return f"{listed}; refused: {refused}" if refused and with_refused else listed


def without_folders(text: str) -> str:
    return _FOLDERS.sub("", text)


def limits_of(settings: Settings) -> WorkflowLimits:
    return WorkflowLimits(
        max_bytes=settings.max_yaml_bytes, max_nodes=settings.max_nodes, max_params_bytes=settings.max_params_bytes
    )


def load_library(settings: Settings, handlers: Mapping[str, Any], queues: Collection[str]) -> WorkflowLibrary:
    """Read every workflow file: the shipped ones first, so that no other file takes their names."""
    added, refused = _files_of_packages()
    folders = (path for folder in settings.workflow_folders for path in workflow_files(folder))
    loaded = read_all([*shipped(), *added, *folders], limits=limits_of(settings), handlers=handlers, queues=queues)
    return WorkflowLibrary(
        dict(loaded.workflows),
        (*refused, *loaded.refused),
        settings.max_inputs_bytes,
        settings.allow_private_webhooks,
        loaded.targets,
    )


def read_with_library(path: Path, text: bytes, settings: Settings, handlers: Mapping[str, Any]) -> Workflow:
    """The workflow in a file, or an error with all its problems. An alias may name a workflow of the library, or one in
    the same folder."""
    queues = settings.known_queues
    rules: dict[str, Any] = {"limits": limits_of(settings), "handlers": handlers, "queues": queues}

    def find_targets() -> dict[str, Workflow]:
        library = load_library(settings, handlers, queues).targets
        return {**read_folder(path.absolute().parent, **rules).targets, **library}

    return read_with_aliases(text, str(path), find_targets, **rules)


def _files_of_packages() -> tuple[list[Path], list[InvalidWorkflow]]:
    """The workflow files of other packages, and the entry points without any."""
    files: list[Path] = []
    refused: list[InvalidWorkflow] = []
    for point in entry_points.sorted_entry_points(entry_points.WORKFLOWS):
        try:
            files += _files_of(point)
        except InvalidWorkflow as error:
            refused.append(error)
        except (Exception, SystemExit) as error:  # a package that fails on import does not affect the others
            refused.append(
                InvalidWorkflow(entry_points.label_of(point), [WorkflowProblem(entry_points.problem_of(error))])
            )
    return files, refused


def _files_of(point: EntryPoint) -> list[Path]:
    """The workflow files in the folder of a package."""
    names = (entry for entry in resources.files(point.module).iterdir() if entry.name.endswith((".yaml", ".yml")))
    if not (files := sorted(Path(str(entry)) for entry in names)):
        problem = WorkflowProblem("has no .yaml or .yml files; are they part of the installed package?")
        raise InvalidWorkflow(entry_points.label_of(point), [problem])
    return files


def workflow_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise NotFound(
            f"the workflow folder {folder} does not exist", code="settings.no-folder", hint="correct WORKFLOW_FOLDERS"
        )
    return sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")])
