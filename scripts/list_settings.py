"""Write docs/settings.md from settings.py. With --check, only report whether it is up to date."""

import sys
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from dagmaster.settings import kind_of, variables

PAGE = Path(__file__).parent.parent / "docs" / "settings.md"

INTRODUCTION = """\
# Settings

Every setting is an environment variable, which a process reads once when it starts. An empty variable counts as not
set. Invalid values are refused at the start, all at once, each with the name of the variable and the values that it
accepts. These limits depend on each other:

- `HEARTBEAT_INTERVAL_SEC` must be shorter than `ORPHAN_THRESHOLD_SEC`, or healthy orchestrators are considered dead.
- `LEASE_RENEW_SEC` must be shorter than `TASK_LEASE_SEC`, or healthy tasks are considered lost.
- `ORPHAN_THRESHOLD_SEC` must be shorter than `JANITOR_PATIENCE_SEC`, or the janitor acts before the owner can.
- `TASK_LEASE_SEC` must be shorter than `PAYLOAD_GRACE_SEC`, or an output is deleted before its worker reports it.

A variable that begins with `DAGMASTER_` and is not in this list causes a warning. `dagmaster doctor` checks all
settings. `scripts/list_settings.py` writes this page from `src/dagmaster/settings.py`; a test compares the two.

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
