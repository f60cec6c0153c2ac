"""A platform for guides, and the environment of a terminal that uses it."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dagmaster.local.embedded import Cluster
from tests.cli.processes import environment, up
from tests.conftest import fresh_database


@pytest.fixture
def variables(cluster: Cluster, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a terminal that uses a platform."""
    command = tmp_path / "bin" / "dagmaster"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m dagmaster "$@"\n')
    command.chmod(0o755)
    with fresh_database(cluster, "template0") as dsn, up(tmp_path / "data", DATABASE_URL=dsn) as platform:
        inherited = environment(DAGMASTER_DATA=platform.facts["data_folder"], DATABASE_URL=dsn)
        yield {**inherited, "PATH": f"{command.parent}:{inherited['PATH']}"}
        platform.end()
