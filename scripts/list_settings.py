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

# What settings.py leaves to the name; a description there has its way.
MEANINGS = {
    "log_level": "The least important level that is logged",
    "log_format": "For people, or one JSON object a line",
    "postgres_host": "Used where DATABASE_URL is not set",
    "postgres_port": "With POSTGRES_HOST",
    "postgres_db": "With POSTGRES_HOST",
    "postgres_user": "With POSTGRES_HOST",
    "postgres_password": "With POSTGRES_HOST; never logged",
    "heartbeat_interval_sec": "How often an orchestrator shows that it lives",
    "orphan_threshold_sec": "An orchestrator that is silent for this long is dead: its jobs may be claimed",
    "orphan_scan_interval_sec": "Not used yet: orphans are looked for at every poll",
    "job_queue_name": "Queue of submissions by producers that have only a queue",
    "default_queue": "Queue of tasks for which neither workflow nor handler names one",
    "worker_type": "A label for people, shown with the worker",
    "worker_poll_interval": "Seconds between looks when nothing rings; the actual wait is half of it to all of it",
    "lease_renew_sec": "How often a worker renews its leases and shows that it lives",
    "shutdown_grace_sec": "How long handlers may go on after a worker was told to stop",
    "max_yaml_bytes": "Largest workflow file",
    "max_nodes": "Most nodes of one workflow",
    "max_fan_out": "Most children of one fan_out",
    "max_params_bytes": "Largest params as written in a workflow; once rendered, they and inputs are held to the default",
}


def render() -> str:
    return INTRODUCTION + "".join(_row(name, field) for name, field in Settings.model_fields.items())


def _row(name: str, field: FieldInfo) -> str:
    meaning = field.description or MEANINGS[name]
    return f"| `{field.alias or name.upper()}` | {_kind(field)} | {_default(field.default)} | {meaning} |\n"


def _kind(field: FieldInfo) -> str:
    kinds = [kind for kind in get_args(field.annotation) or (field.annotation,) if kind is not NoneType]
    if get_origin(field.annotation) is Literal:
        return ", ".join(str(kind) for kind in kinds)
    if get_origin(field.annotation) is tuple:
        return "paths, joined by `:`" if kinds[0] is Path else "names, joined by `,`"
    words = {int: "integer", float: "number", str: "text", Path: "path"}
    more = " above 0" if any(isinstance(note, Gt) for note in field.metadata) else ""
    return words[kinds[0]] + more


def _default(value: Any) -> str:
    if value is None or value == ():
        return "none"
    if isinstance(value, tuple):
        return f"`{','.join(map(str, value))}`"
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
