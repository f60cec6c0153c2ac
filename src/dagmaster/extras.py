"""The extras of the package (`pip install 'dagmaster[worker]'`), and which one a missing module belongs to."""

import re
from importlib import metadata

from dagmaster.errors import InvalidRequest

_REQUIREMENT = re.compile(r"^(?P<name>[\w.-]+).*;.*\bextra == ['\"](?P<extra>\w+)['\"]")
# Distributions whose names differ from that of the module.
_DISTRIBUTIONS = {"jwt": "pyjwt"}


def missing_extra(error: ImportError, preferred: str | None = None) -> InvalidRequest | None:
    """The error to report instead of an ImportError, if an extra would have installed the missing module.

    If several extras contain the module, the error names the preferred one, or else `all`.
    """
    module = (error.name or "").partition(".")[0]
    extras = _extras_of(module) if module and isinstance(error, ModuleNotFoundError) else set()
    if not extras:
        return None
    extra = preferred if preferred in extras else extras.pop() if len(extras) == 1 else "all"
    return InvalidRequest(
        f"the package {module} is required, and is not installed",
        code="extra.missing",
        hint=f"pip install 'dagmaster[{extra}]'",
        module=module,
        extra=extra,
    )


def _extras_of(module: str) -> set[str]:
    """Distributions have the names of their modules, or begin with them (titiler.core, attrs), or are in the table."""
    distribution = _normalised(_DISTRIBUTIONS.get(module, module))
    matches = filter(None, map(_REQUIREMENT.match, metadata.requires("dagmaster") or ()))
    names = {(_normalised(match["name"]), match["extra"]) for match in matches}
    return {
        extra
        for name, extra in names
        if extra != "all" and (name in {distribution, f"{distribution}s"} or name.startswith(f"{distribution}-"))
    }


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
