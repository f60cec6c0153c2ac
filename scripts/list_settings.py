"""Write docs/settings.md from settings.py. With --check: only say whether it is up to date."""

import sys
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from annotated_types import Gt
from pydantic.fields import FieldInfo

from dagmaster.settings import Settings

PAGE = Path(__file__).parent.parent / "docs" / "settings.md"

INTRODUCTION = """\
# Settings

Every setting is an environment variable, read once when a process starts. This page is written by
`scripts/list_settings.py` from `src/dagmaster/settings.py`; a test compares the two. A value that does not fit is
refused at the start with the variable's name. `HEARTBEAT_INTERVAL_SEC` must be shorter than `ORPHAN_THRESHOLD_SEC`, and
`LEASE_RENEW_SEC` shorter than `TASK_LEASE_SEC`, or healthy processes would look dead.

| variable | value | default | meaning |
|---|---|---|---|
"""


def render() -> str:
    return INTRODUCTION + "".join(_row(name, field) for name, field in Settings.model_fields.items())


def _row(name: str, field: FieldInfo) -> str:
    return f"| `{field.alias or name.upper()}` | {_kind(field)} | {_default(field.default)} | {field.description} |\n"


def _kind(field: FieldInfo) -> str:
    kinds = [kind for kind in get_args(field.annotation) or (field.annotation,) if kind is not NoneType]
    if get_origin(field.annotation) is Literal:
        return ", ".join(str(kind) for kind in kinds)
    if get_origin(field.annotation) is tuple:
        return "paths, joined by `:`" if kinds[0] is Path else "names, joined by `,`"
    words = {bool: "true or false", int: "integer", float: "number", str: "text", Path: "path"}
    more = " above 0" if any(isinstance(note, Gt) for note in field.metadata) else ""
    return words[kinds[0]] + more


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
