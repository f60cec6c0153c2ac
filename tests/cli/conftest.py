"""A platform on the PostgreSQL server of the test run, for all tests of this folder,
and a function that calls `dagmaster` in the process of the test."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dagmaster.cli.main import run
from dagmaster.local.embedded import Cluster
from tests.cli.processes import CLEARED, Up, up
from tests.conftest import fresh_database

SLEEPY = """
workflow_id: sleepy
inputs:
  seconds: {type: number, default: 0.1}
nodes:
  start: {type: start, next: nap}
  nap:
    handler: HANDLER
    params: {seconds: "{{ inputs.seconds }}"}
    next: end
  end: {type: end}
"""
FAILING = """
workflow_id: failing
nodes:
  start: {type: start, next: spread}
  spread:
    type: fan_out
    source: [1, 2, 3]
    tolerate: 1
    task: {handler: fail, params: {message: "no {{ item }}"}, retry: {max_attempts: 0}}
    next: gather
  gather: {type: fan_in, next: end}
  end: {type: end}
"""


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Dagmaster = Callable[..., Result]


@pytest.fixture(scope="module")
def server(cluster: Cluster, catalog_template: str) -> Iterator[str]:
    """The address of a deployed database. Only the tests of `up` deploy to an empty one, which takes seconds."""
    with fresh_database(cluster, catalog_template) as dsn:
        yield dsn


@pytest.fixture(scope="module")
def platform(server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("platform")
    with up(folder, DATABASE_URL=server) as running:
        yield running
        running.end()


@pytest.fixture
def without_platform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An environment without a configured server and without a running platform."""
    for name in CLEARED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DAGMASTER_DATA", str(tmp_path / "data"))


@pytest.fixture
def dagmaster(without_platform: None, capfd: pytest.CaptureFixture[str]) -> Dagmaster:
    """Call a command in this process."""

    def call(*arguments: str) -> Result:
        capfd.readouterr()
        code = run(arguments)
        return Result(code, *capfd.readouterr())

    return call


@pytest.fixture
def on_platform(dagmaster: Dagmaster, platform: Up, monkeypatch: pytest.MonkeyPatch) -> Dagmaster:
    """Commands that find the running platform by its data folder."""
    monkeypatch.setenv("DAGMASTER_DATA", platform.facts["data_folder"])
    return dagmaster


@pytest.fixture
def sleepy(tmp_path: Path) -> Path:
    return written(tmp_path / "sleepy.yaml", SLEEPY.replace("HANDLER", "sleep"))


@pytest.fixture
def sleepy_process(tmp_path: Path) -> Path:
    """A workflow whose handler sleeps in a child process."""
    return written(tmp_path / "deaf.yaml", SLEEPY.replace("HANDLER", "sleep_blocking"))


@pytest.fixture
def failing(tmp_path: Path) -> Path:
    return written(tmp_path / "failing.yaml", FAILING)


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path
