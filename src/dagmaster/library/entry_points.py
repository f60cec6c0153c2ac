"""The entry points of other packages. Each is loaded by itself: a broken one does not affect the others."""

import sys
from functools import lru_cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points

HANDLERS = "dagmaster.handlers"
WORKFLOWS = "dagmaster.workflows"


def sorted_entry_points(group: str) -> list[EntryPoint]:
    """The entry points of a group, sorted: if two have the same name, every process uses the same one."""
    return sorted(_installed(group, tuple(sys.path)), key=lambda point: (_package(point), point.name))


@lru_cache(maxsize=2)
def _installed(group: str, _path: tuple[str, ...]) -> EntryPoints:
    """Cached, because it reads a file of every installed package. A package that is installed later needs a new process
    anyway."""
    return entry_points(group=group)


def label_of(point: EntryPoint) -> str:
    """The entry point as error messages show it."""
    return f"entry point {point.group}: {point.name} = {point.value} (of {_package(point)})"


def problem_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist else "an unknown package"
