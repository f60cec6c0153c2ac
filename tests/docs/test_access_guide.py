"""Guides for a platform with authentication can be followed: keys, metrics, and workers that have no database."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dagmaster.access.caller import Scope
from dagmaster.local.embedded import Cluster
from tests.cli.processes import environment, eventually, up
from tests.conftest import fresh_database
from tests.dask_cluster import free_port
from tests.docs.pages import ROOT, Block, blocks_in
from tests.docs.terminal import missing, run_commands

GUIDES = ROOT / "docs/guides"
GUIDE = GUIDES / "who-can-see-what.md"
SHOWN_ID = "k3v9x1q7c2b8"  # the id of a key on the page
QUEUES = "dag-worker-tasks,functionapp-tasks,container-tasks,acme-tasks,heavy-tasks"

pytestmark = pytest.mark.requirement("X1")


def commands() -> list[str]:
    """The commands of the guide that use dagmaster. Others need a tool that may not be installed."""
    shown = re.findall(r"^\$ (.*)$", GUIDE.read_text(), re.MULTILINE)
    return [command for command in shown if "dagmaster " in command]


@pytest.fixture(scope="module")
def terminal(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The environment of a terminal that uses a platform with authentication, with the first key."""
    folder = tmp_path_factory.mktemp("terminal")
    programs = folder / "bin"
    programs.mkdir()
    (programs / "dagmaster").write_text(f'#!/bin/sh\nexec {sys.executable} -m dagmaster "$@"\n')
    (programs / "dagmaster").chmod(0o755)
    (programs / "dask").symlink_to(Path(sys.executable).with_name("dask"))
    settings = {"AUTH_ENABLED": "true", "KNOWN_QUEUES": QUEUES}
    with (
        fresh_database(cluster, "template0") as dsn,
        up(folder / "data", DATABASE_URL=dsn, **settings) as platform,
    ):
        inherited = environment(DAGMASTER_DATA=platform.facts["data_folder"], HOME=str(folder))
        additional = {"PATH": f"{programs}:{inherited['PATH']}", "SERVER": dsn, "URL": platform.facts["api_url"]}
        yield {**inherited, **additional}
        platform.end()


@pytest.fixture(scope="module")
def key(terminal: dict[str, str]) -> str:
    """The key of an administrator, who is logged in."""
    first, login = commands()[:2]
    assert first.startswith("DATABASE_URL=postgresql://… dagmaster keys create")
    key = run_commands(first.replace("postgresql://…", "$SERVER"), terminal).strip()
    assert "logged in as ada" in run_commands(f"echo {key} | {login}", terminal)
    return key


def test_the_commands_for_keys_can_be_followed(terminal: dict[str, str], key: str) -> None:
    others = commands()[2:]

    created = run_commands(f"{others[0]} --json", terminal)
    (key_id,) = re.findall(r'"key_id": *"(\w+)"', created)
    for command in others[1:]:
        run_commands(command.replace(SHOWN_ID, key_id), terminal)

    assert key.startswith("dgm_")
    listed = run_commands("dagmaster keys ls --all", terminal)
    assert {"ada", "map-portal", "review-team", "hub"} <= set(re.findall(r"[\w-]+", listed))
    assert {command.split()[2] for command in others} >= {"create", "ls", "rotate", "revoke"}


def test_every_scope_is_explained() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", GUIDE.read_text(), re.MULTILINE)) == set(Scope)


@pytest.mark.requirement("E7")
@pytest.mark.usefixtures("key")
def test_the_guide_to_a_worker_at_a_partner_can_be_followed(terminal: dict[str, str], tmp_path: Path) -> None:
    create, at_partner, shown, workflow, submit, result = blocks_of("worker-in-a-partners-network.md")
    partner_key = run_commands(create.body, terminal).strip()
    _, settings, doctor, worker = at_partner.body.strip().splitlines()
    settings = settings.replace("https://platform.example.org", terminal["URL"]).replace("dgm_…", partner_key)
    at_home = {**terminal, "HOME": str(tmp_path), "DAGMASTER_DATA": str(tmp_path)}

    report = run_commands(f"{settings}\n{doctor} || true", at_home)  # other checks may be slow on a busy machine
    with started(f"{settings}\nexec {worker}", at_home, tmp_path / "worker.log"):
        printed = run_file(workflow, submit, terminal, tmp_path)

    assert not missing(shown.body.replace("https://platform.example.org", terminal["URL"]), report), report
    assert not missing(result.body, printed), printed


@pytest.mark.requirement("E7")
def test_a_dask_cluster_can_be_tried_on_one_machine(terminal: dict[str, str], key: str, tmp_path: Path) -> None:
    start, workflow, submit, result = blocks_of("run-on-a-dask-cluster.md")[-4:]
    port = str(free_port())
    commands = start.body.replace("8786", port).replace("http://127.0.0.1:8000", terminal["URL"])
    *before, worker = commands.strip().splitlines()
    variables = {**terminal, "DAGMASTER_KEY": key}
    log = tmp_path / "worker.log"

    with started("\n".join([*before, "trap 'kill $(jobs -p)' EXIT", worker]), variables, log, cwd=tmp_path):
        eventually(lambda: "connected to a Dask cluster" in log.read_text(), 40)
        printed = run_file(workflow, submit, terminal, tmp_path)

    assert not missing(result.body, printed), printed


@pytest.mark.requirement("M1")
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.usefixtures("key")
def test_metrics_can_be_read_with_the_key_of_the_guide(terminal: dict[str, str]) -> None:
    check, shown = blocks_of("monitor.md")[-2:]
    text = (GUIDES / "monitor.md").read_text()
    (create,) = re.findall(r"`(dagmaster keys create prometheus [^`]+)`", text)
    (with_key,) = re.findall(r"`(curl -s -H [^`]+)`", text)

    metrics_key = run_commands(create, terminal).strip()
    command = check.body.replace("curl -s localhost:8000/metrics", with_key.replace("dgm_…", metrics_key))
    printed = run_commands(command.replace("localhost:8000", terminal["URL"].removeprefix("http://")), terminal)

    queues = r'queue="([^"]+)"'
    assert {*re.findall(queues, shown.body)} == {*re.findall(queues, printed)} - {"acme-tasks", "heavy-tasks"}
    assert {line.partition("{")[0] for line in printed.splitlines()} == {"dagmaster_queue_depth"}


def blocks_of(page: str) -> list[Block]:
    """The commands and outputs of a guide, and the files that it writes."""
    return [
        each for each in blocks_in(GUIDES / page) if each.info in ("console", "text") or each.info.endswith(".yaml")
    ]


def run_file(workflow: Block, submit: Block, terminal: dict[str, str], folder: Path) -> str:
    """Write the file of a guide and submit it."""
    (folder / workflow.info.split()[1]).write_text(workflow.body)
    return run_commands(f"cd {folder}\n{submit.body}", terminal)


@contextmanager
def started(commands: str, variables: dict[str, str], log: Path, cwd: Path | None = None) -> Iterator[None]:
    """Commands that run in another terminal until the block ends."""
    with log.open("w") as output:
        process = subprocess.Popen(["bash", "-c", commands], env=variables, stdout=output, stderr=output, cwd=cwd)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)
