"""The guide "Write a handler" can be followed: every file is written and every command is run,
in an environment like that of a reader."""

import os
import shlex
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from dagmaster.local.embedded import Cluster
from tests.cli.processes import CLEARED
from tests.conftest import fresh_database
from tests.docs.pages import ROOT, Block, blocks_in
from tests.testing.packages import EXAMPLE

BLOCKS = blocks_in(ROOT / "docs/guides/write-a-handler.md")
LEFT_RUNNING = "dagmaster up"


def file_of(block: Block) -> str:
    """The file that a block contains: its info is, for example, `python src/rivers/handlers.py`."""
    return block.info.partition(" ")[2]


class Reader:
    """A reader with two terminals, in an environment that has dagmaster and the tools to build a package."""

    def __init__(self, folder: Path, dsn: str) -> None:
        self.where = folder / "home"
        self.where.mkdir()
        self.read = ""
        self._dsn = dsn
        self._platform: subprocess.Popen[str] | None = None
        self._note = folder / "where"
        # There is no network: packages are built with the installed tools.
        offline = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        inherited = {name: value for name, value in os.environ.items() if name not in CLEARED}
        path = {"PATH": f"{environment(folder / 'venv')}:{os.environ['PATH']}"}
        self._variables = {**inherited, **offline, **path, "DAGMASTER_DATA": str(folder / "data"), "API_PORT": "0"}

    def type(self, commands: str) -> None:
        """Run commands in the first terminal; each must succeed."""
        typed = subprocess.run(
            ["bash", "-ec", f"{commands}\npwd > {self._note}"],
            cwd=self.where,
            env=self._variables,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert typed.returncode == 0, f"{commands}\n{typed.stdout}\n{typed.stderr}"
        self.where = Path(self._note.read_text().strip())
        self.read = typed.stdout

    def leave_running(self, command: str) -> None:
        """Run a command in the second terminal, and leave it running."""
        variables = {**self._variables, "DATABASE_URL": self._dsn}
        self._platform = subprocess.Popen(shlex.split(command), env=variables, stdout=subprocess.PIPE, text=True)
        assert self._platform.stdout is not None
        assert any("ready in" in line for line in self._platform.stdout), "the platform did not become ready"

    def write(self, path: str, text: str) -> None:
        (self.where / path).write_text(text)

    def close(self) -> None:
        if self._platform is not None:
            self._platform.send_signal(signal.SIGINT)
            self._platform.communicate(timeout=40)


def environment(folder: Path) -> Path:
    """A new virtual environment that can import everything of this one; returns the folder of its commands."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=60)
    commands = folder / "bin"
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "ours.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    for module in ("pip", "pytest", "dagmaster"):
        command = commands / module
        command.write_text(f'#!/bin/sh\nexec {commands}/python -m {module} "$@"\n')
        command.chmod(0o755)
    return commands


@pytest.fixture
def reader(cluster: Cluster, tmp_path: Path) -> Iterator[Reader]:
    with fresh_database(cluster, "template0") as dsn:
        reader = Reader(tmp_path, dsn)
        try:
            yield reader
        finally:
            reader.close()


def test_the_guide_can_be_followed(reader: Reader) -> None:
    for block in BLOCKS:
        match block.info.partition(" ")[0]:
            case "console" if block.body.strip() == LEFT_RUNNING:
                reader.leave_running(LEFT_RUNNING)
            case "console":
                reader.type(block.body)
            case "text":
                missing = [line for line in block.body.splitlines() if line not in reader.read]
                assert not missing, f"{block}: {missing} is not in {reader.read}"
            case _:
                assert file_of(block), f"{block} is neither a command nor a file"
                reader.write(file_of(block), block.body)


def test_the_guide_writes_the_example_package() -> None:
    """The example exists twice: in the guide, and as a package that tests install."""
    written = {file_of(block): block.body for block in BLOCKS if file_of(block)}
    files = [path for path in EXAMPLE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]

    in_package = {path.relative_to(EXAMPLE).as_posix(): path.read_text() for path in files}

    assert in_package == {"src/rivers/__init__.py": "", **written}
