"""The registry of handlers: their names, their functions, and how they are run.

A registration names its function as a string (`package.module:function`), so that an orchestrator can check workflows
without importing the packages of the handlers. The worker imports the function when it is first needed.
"""

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any, TypeVar

from dagmaster.errors import InvalidRequest, NotFound
from dagmaster.library import entry_points
from dagmaster.observe import log

DEFAULT_TIMEOUT_SECONDS = 3600.0

F = TypeVar("F", bound=Callable[..., Any])

_log = log.get("handlers")


@dataclass(frozen=True, slots=True)
class Registration:
    """Handlers with `is_async` share the event loop of the worker; others run in a child process that can be killed."""

    name: str
    target: str
    is_async: bool = True
    queue: str | None = None
    timeout_seconds: float | None = None
    memory_mb: int | None = None
    needs_database: bool = False  # workers without database access do not claim its tasks

    def resolve(self) -> Callable[..., Any]:
        module, _, attribute = self.target.partition(":")
        function = getattr(importlib.import_module(module), attribute)
        if not callable(function):
            problem = f"the target {self.target} of handler '{self.name}' is not callable"
            raise InvalidRequest(problem, code="handler.bad-target")
        return function  # type: ignore[no-any-return]


class Registry(Mapping[str, Registration]):
    """`refused` lists the handlers of other packages that could not be added, with the reasons."""

    def __init__(self, registrations: Iterable[Registration] = (), *, refused: Iterable[str] = ()) -> None:
        self.refused = list(refused)
        self._by_name: dict[str, Registration] = {}
        for registration in registrations:
            self.add(registration)

    def add(self, registration: Registration) -> None:
        other = self._by_name.get(registration.name)
        if other is not None and other.target != registration.target:
            raise InvalidRequest(
                f"two handlers are named '{registration.name}': {other.target} and {registration.target}",
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
    name: str,
    *,
    queue: str | None = None,
    timeout_seconds: float | None = None,
    memory_mb: int | None = None,
    needs_database: bool = False,
) -> Callable[[F], F]:
    """Mark a function as a handler. Marked functions are registered if an entry point `handlers` names their module."""

    def mark(function: F) -> F:
        target = f"{function.__module__}:{function.__qualname__}"
        is_async = inspect.iscoroutinefunction(function)
        function.__dagmaster_handler__ = Registration(  # type: ignore[attr-defined]
            name, target, is_async, queue, timeout_seconds, memory_mb, needs_database
        )
        return function

    return mark


def handlers_in(module: Any) -> list[Registration]:
    """The handlers marked in a module, and those in its REGISTRATIONS, which avoid heavy imports."""
    marks = (getattr(value, "__dagmaster_handler__", None) for value in vars(module).values())
    marked = [mark for mark in marks if mark is not None and mark.target.startswith(f"{module.__name__}:")]
    listed = list(getattr(module, "REGISTRATIONS", ()))
    if not all(isinstance(registration, Registration) for registration in listed):
        raise TypeError(f"{module.__name__}.REGISTRATIONS contains a value that is not a Registration")
    return [*listed, *marked]


def installed() -> Registry:
    """The handlers that ship, and those that other packages add by entry points."""
    from dagmaster.handlers import shipped

    registry = Registry(shipped.REGISTRATIONS)
    for point in entry_points.sorted_entry_points(entry_points.HANDLERS):
        _add_all(registry, point)
    return registry


def _add_all(registry: Registry, point: EntryPoint) -> None:
    """Add the handlers of one entry point. Those that cannot be added are logged and listed in `refused`."""
    try:
        registrations = handlers_in(point.load())
    except (Exception, SystemExit) as error:  # a package that fails on import does not stop the others
        _refuse(registry, point, entry_points.problem_of(error))
        return
    for registration in registrations:
        try:
            registry.add(registration)
        except InvalidRequest as error:
            _refuse(registry, point, error.message)


def _refuse(registry: Registry, point: EntryPoint, problem: str) -> None:
    _log.warning("handlers of a package are refused", entry_point=entry_points.label_of(point), problem=problem)
    registry.refused.append(f"{entry_points.label_of(point)}: {problem}")
