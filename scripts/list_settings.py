"""Write docs/settings.md from settings.py. With --check: only say whether it is up to date."""

import sys
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from dagmaster.settings import kind_of, variables

PAGE = Path(__file__).parent.parent / "docs" / "settings.md"

INTRODUCTION = """\
# Settings

Every setting is an environment variable, read once when a process starts; an empty one counts as not set. This page is
written by `scripts/list_settings.py` from `src/dagmaster/settings.py`; a test compares the two. Values that do not fit
are refused at the start, all at once, each with the variable's name and what is allowed. `HEARTBEAT_INTERVAL_SEC` must
be shorter than `ORPHAN_THRESHOLD_SEC`, and `LEASE_RENEW_SEC` shorter than `TASK_LEASE_SEC`, or healthy processes would
look dead. A variable that begins with `DAGMASTER_` and is none of these is warned of. `dagmaster doctor` checks them
all.

| variable | value | default | meaning |
|---|---|---|---|
"""


def render() -> str:
    return INTRODUCTION + "".join(_row(variable, field) for variable, field in variables().items())


def _row(variable: str, field: FieldInfo) -> str:
    return f"| `{variable}` | {kind_of(field)} | {_default(field.default)} | {field.description} |\n"


def _default(value: Any) -> str:
    if value is None or value == ():
        return "none"
    if isinstance(value, tuple):
        return f"`{','.join(map(str, value))}`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def main(arguments: list[str]) -> int:
    if "--check" in arguments:
        is_current = PAGE.exists() and PAGE.read_text() == render()
        print(f"{PAGE.name} is {'up to date' if is_current else 'not up to date: run scripts/list_settings.py'}")
        return 0 if is_current else 1
    PAGE.write_text(render())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
