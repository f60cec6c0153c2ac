"""The workflow library of a test. Loading it takes a sixth of a second, so each process loads each library once."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dagmaster.handlers.registry import Registration
from dagmaster.library import entry_points
from dagmaster.library.workflows import WorkflowLibrary, limits_of, load_library
from dagmaster.settings import Settings

_loaded: dict[Any, WorkflowLibrary] = {}


def library_of(settings: Settings, handlers: Mapping[str, Registration]) -> WorkflowLibrary:
    """The same as `load_library`, cached. Files in folders of the test are read each time."""
    if settings.workflow_folders:
        return load_library(settings, handlers, settings.known_queues)
    packages = tuple(entry_points.sorted_entry_points(entry_points.WORKFLOWS))
    key = (frozenset(handlers.values()), tuple(settings.known_queues), limits_of(settings), packages)
    if key not in _loaded:
        _loaded[key] = load_library(settings, handlers, settings.known_queues)
    return replace(
        _loaded[key],
        workflows=dict(_loaded[key].workflows),
        max_inputs_bytes=settings.max_inputs_bytes,
        allow_private_callbacks=settings.allow_private_webhooks,
    )
