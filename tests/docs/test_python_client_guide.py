"""The guide of the Python client can be followed, and lists all public methods and errors."""

import inspect
import subprocess
import sys
from pathlib import Path

from dagmaster import client
from dagmaster.local.embedded import Cluster
from tests.cli.processes import environment, up
from tests.conftest import fresh_database
from tests.docs.pages import ROOT, blocks_in

PAGE = ROOT / "docs/guides/python-client.md"


def test_every_example_runs_in_the_order_of_the_page(cluster: Cluster, tmp_path: Path) -> None:
    script = "\n".join(block.body for block in blocks_in(PAGE) if block.info == "python")
    maps = {"SERVING_ENABLED": "true", "SERVING_PORT": "0"}
    with fresh_database(cluster, "template0") as dsn, up(tmp_path / "data", DATABASE_URL=dsn, **maps) as platform:
        variables = environment(DAGMASTER_DATA=platform.facts["data_folder"], DATABASE_URL=dsn)
        command = [sys.executable, "-W", "error", "-c", script]
        finished = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=100, check=False)
        platform.end()

    assert finished.returncode == 0, finished.stderr
    lines = finished.stdout.splitlines()
    assert lines[0] == "{'message': 'Hello, Ada!'}"
    assert lines[-1] == "[{'message': 'Hello, Ada!'}, {'message': 'Hello, Grace!'}]"
    assert any("disk is full" in line for line in lines)
    assert "('work', 'end')" in lines


def test_every_method_and_every_error_is_on_the_page() -> None:
    text = PAGE.read_text()
    methods = [
        name
        for name, value in inspect.getmembers(client.AsyncClient, inspect.isfunction)
        if name[0] != "_" and name != "close"
    ]
    missing = [name for name in [*methods, *client.__all__] if name not in text]

    assert missing == []
