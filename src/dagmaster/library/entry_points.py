"""The entry points of other packages. Each is loaded by itself: a broken one does not affect the others."""

from importlib.metadata import EntryPoint, entry_points

HANDLERS = "dagmaster.handlers"
WORKFLOWS = "dagmaster.workflows"


def added(group: str) -> list[EntryPoint]:
    """The entry points of a group, sorted: if two have the same name, every process uses the same one."""
    return sorted(entry_points(group=group), key=lambda point: (_package(point), point.name))


def named(point: EntryPoint) -> str:
    """The entry point as error messages name it."""
    return f"entry point {point.group}: {point.name} = {point.value} (of {_package(point)})"


def problem_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist else "an unknown package"
