"""The registry of handlers: names, where their code lives, and how they want to be run.

A registration names its target as a string (`package.module:function`), so that an orchestrator can check workflows
without importing what the handlers import. The worker resolves the target when it first needs it.
"""

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any, TypeVar

from dagmaster.errors import InvalidRequest, NotFound
from dagmaster.observe import log
from dagmaster.operations import entry_points

DEFAULT_TIMEOUT_SECONDS = 3600.0

F = TypeVar("F", bound=Callable[..., Any])

_log = log.get("handlers")


@dataclass(frozen=True, slots=True)
class Registration:
    """`is_async` handlers share the worker's loop; the others run in a process that can be killed."""

    name: str
    target: str
    is_async: bool = True
    queue: str | None = None
    timeout_seconds: float | None = None
    memory_mb: int | None = None

    def resolve(self) -> Callable[..., Any]:
        module, _, attribute = self.target.partition(":")
        function = getattr(importlib.import_module(module), attribute)
        if not callable(function):
            problem = f"handler '{self.name}' names {self.target}, which can't be called"
            raise InvalidRequest(problem, code="handler.bad-target")
        return function  # type: ignore[no-any-return]


class Registry(Mapping[str, Registration]):
    """`refused` says what other packages meant to add and could not, and why."""

    def __init__(self, registrations: Iterable[Registration] = (), *, refused: Iterable[str] = ()) -> None:
        self.refused = list(refused)
        self._by_name: dict[str, Registration] = {}
        for registration in registrations:
            self.add(registration)

    def add(self, registration: Registration) -> None:
        known = self._by_name.get(registration.name)
        if known is not None and known.target != registration.target:
            raise InvalidRequest(
                f"two handlers are named '{registration.name}': {known.target} and {registration.target}",
                code="handler.duplicate",
            )
        self._by_name[registration.name] = registration

    def __getitem__(self, name: str) -> Registration:
        try:
            return self._by_name[name]
        except KeyError:
            raise NotFound(f"no handler is named '{name}'", code="handler.unknown", handler=name) from None

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Any:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)


def register_handler(
    name: str, *, queue: str | None = None, timeout_seconds: float | None = None, memory_mb: int | None = None
) -> Callable[[F], F]:
    """Mark a function as a handler. The mark is found when its module is named in a `handlers` entry point."""

    def mark(function: F) -> F:
        target = f"{function.__module__}:{function.__qualname__}"
        is_async = inspect.iscoroutinefunction(function)
        function.__dagmaster_handler__ = Registration(  # type: ignore[attr-defined]
            name, target, is_async, queue, timeout_seconds, memory_mb
        )
        return function

    return mark


def handlers_in(module: Any) -> list[Registration]:
    """The handlers marked in a module, and those it lists in REGISTRATIONS to spare others its heavy imports."""
    marks = (getattr(value, "__dagmaster_handler__", None) for value in vars(module).values())
    here = [mark for mark in marks if mark is not None and mark.target.startswith(f"{module.__name__}:")]
    listed = list(getattr(module, "REGISTRATIONS", ()))
    if not all(isinstance(registration, Registration) for registration in listed):
        raise TypeError(f"{module.__name__}.REGISTRATIONS holds something that is no Registration")
    return [*listed, *here]


def installed() -> Registry:
    """The handlers that ship, and those that other packages add through entry points."""
    from dagmaster.handlers import shipped

    registry = Registry(shipped.REGISTRATIONS)
    for point in entry_points.added(entry_points.HANDLERS):
        _add_all(registry, point)
    return registry


def _add_all(registry: Registry, point: EntryPoint) -> None:
    """What can be added of one entry point; what can't is logged and remembered."""
    try:
        found = handlers_in(point.load())
    except (Exception, SystemExit) as error:  # whatever a package does on its import, the others go on
        _refuse(registry, point, entry_points.problem_of(error))
        return
    for registration in found:
        try:
            registry.add(registration)
        except InvalidRequest as error:
            _refuse(registry, point, error.message)


def _refuse(registry: Registry, point: EntryPoint, problem: str) -> None:
    _log.warning("handlers of a package are refused", entry_point=entry_points.named(point), problem=problem)
    registry.refused.append(f"{entry_points.named(point)}: {problem}")
