"""The commands of the guide "Who can see what" can be typed, in their order, on a platform with authentication."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dagmaster.access.caller import Scope
from dagmaster.local.embedded import Cluster
from tests.cli.processes import environment, up
from tests.conftest import fresh_database
from tests.docs.pages import ROOT
from tests.docs.terminal import typed

GUIDE = ROOT / "docs/guides/who-can-see-what.md"
SHOWN_ID = "k3v9x1q7c2b8"  # of a key, on the page

pytestmark = pytest.mark.requirement("X1")


def commands() -> list[str]:
    """Those of dagmaster. Others need a tool that may not be installed."""
    shown = re.findall(r"^\$ (.*)$", GUIDE.read_text(), re.MULTILINE)
    return [command for command in shown if "dagmaster " in command]


@pytest.fixture
def terminal(cluster: Cluster, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """The environment of a terminal beside a platform with authentication."""
    command = tmp_path / "bin" / "dagmaster"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m dagmaster "$@"\n')
    command.chmod(0o755)
    with (
        fresh_database(cluster, "template0") as dsn,
        up(tmp_path / "data", DATABASE_URL=dsn, AUTH_ENABLED="true") as platform,
    ):
        inherited = environment(DAGMASTER_DATA=platform.facts["data_folder"], HOME=str(tmp_path))
        yield {**inherited, "PATH": f"{command.parent}:{inherited['PATH']}", "SERVER": dsn}
        platform.end()


def test_the_commands_for_keys_can_be_typed(terminal: dict[str, str]) -> None:
    first, login, *others = commands()
    assert first.startswith("DATABASE_URL=postgresql://… dagmaster keys create")

    key = typed(first.replace("postgresql://…", "$SERVER"), terminal).strip()
    logged_in = typed(f"echo {key} | {login}", terminal)
    created = typed(f"{others[0]} --json", terminal)
    (key_id,) = re.findall(r'"key_id": *"(\w+)"', created)
    for command in others[1:]:
        typed(command.replace(SHOWN_ID, key_id), terminal)

    assert key.startswith("dgm_")
    assert "logged in as ada" in logged_in
    listed = typed("dagmaster keys ls --all", terminal)
    assert {"ada", "map-portal", "review-team", "hub"} <= set(re.findall(r"[\w-]+", listed))
    assert {command.split()[2] for command in others} >= {"create", "ls", "rotate", "revoke"}


def test_every_scope_is_explained() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", GUIDE.read_text(), re.MULTILINE)) == set(Scope)
