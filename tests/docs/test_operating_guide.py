"""The guide "Operate a stuck job" can be followed on a platform, and knows every reason why a node waits."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from dagmaster.api.waiting import Code
from dagmaster.database.embedded import Cluster
from tests.cli.processes import environment, up
from tests.conftest import fresh_database
from tests.docs.pages import ROOT, blocks_in

PAGE = ROOT / "docs/guides/operate-a-stuck-job.md"
PATIENCE_SECONDS = 20


@pytest.fixture
def variables(cluster: Cluster, tmp_path: Path) -> Iterator[dict[str, str]]:
    """A terminal beside a platform."""
    command = tmp_path / "bin" / "dagmaster"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m dagmaster "$@"\n')
    command.chmod(0o755)
    with fresh_database(cluster, "template0") as dsn, up(tmp_path / "data", DATABASE_URL=dsn) as platform:
        inherited = environment(DAGMASTER_DATA=platform.facts["data_folder"], DATABASE_URL=dsn)
        yield {**inherited, "PATH": f"{command.parent}:{inherited['PATH']}"}
        platform.end()


def typed(commands: str, variables: dict[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-ec", commands], env=variables, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, f"{commands}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def missing(lines: str, read: str) -> list[str]:
    return [line for line in lines.splitlines() if line not in read]


def test_the_guide_can_be_followed_word_by_word(variables: dict[str, str]) -> None:
    """What is shown may take a moment to come true: then the last command is typed again."""
    read = last = ""
    for block in blocks_in(PAGE):
        if block.info == "console":
            read, last = typed(block.body, variables), block.body.strip().splitlines()[-1]
            continue
        end = time.monotonic() + PATIENCE_SECONDS
        while missing(block.body, read) and "show" in last and time.monotonic() < end:
            time.sleep(0.2)
            read = typed(last, variables)
        assert not missing(block.body, read), f"{block}: {read}"


def test_every_reason_has_its_remedy() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)

    assert sorted(rows) == sorted(get_args(Code))
