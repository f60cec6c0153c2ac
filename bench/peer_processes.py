"""Peers, each in its own virtual environment, which is created if it is missing or if its requirements have changed.

A peer that cannot be installed or does not respond ends the run: results without it could not be compared.
"""

import hashlib
import json
import select
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server import Server

FOLDER = Path(__file__).with_name("peers")
ENVIRONMENTS = Path(__file__).parent.parent / ".bench-envs"
NAMES = tuple(sorted(lock.stem for lock in FOLDER.glob("*.txt")))
DURABLE = ("absurd", "dbos")
PATIENCE_SECONDS = 400
WORKERS = 2


def make_environments(names: Sequence[str]) -> dict[str, str]:
    """Create the environments that are missing; returns the version of each peer."""
    for name in names:
        lock = FOLDER / f"{name}.txt"
        folder, lock_hash = ENVIRONMENTS / name, hashlib.sha256(lock.read_bytes()).hexdigest()
        stamp = folder / "installed"
        if not stamp.exists() or stamp.read_text() != lock_hash:
            print(f"creating an environment for {name} …", flush=True)
            shutil.rmtree(folder, ignore_errors=True)
            venv.create(folder, with_pip=True)
            command = [folder / "bin/python", "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
            completed = subprocess.run([*command, "--require-hashes", "-r", lock], check=False)
            if completed.returncode:
                raise SystemExit(f"bench: {name} could not be installed")
            stamp.write_text(lock_hash)
    return {name: version_of(name) for name in names}


def version_of(name: str) -> str:
    """The pinned version, from the line of the package in the requirements."""
    package = {"absurd": "absurd-sdk"}.get(name, name)
    lines = (FOLDER / f"{name}.txt").read_text().splitlines()
    return next(line.split()[0].partition("==")[2] for line in lines if line.startswith(f"{package}=="))


@dataclass
class PeerProcesses:
    """The running processes of a peer: two workers and a driver."""

    name: str
    database: str
    driver: subprocess.Popen[str]
    pids: dict[str, int]

    async def fan(self, count: int) -> float:
        return self._measure("fan", count)

    async def chain(self) -> float:
        return self._measure("chain", 1)

    async def jobs(self, count: int) -> float:
        return self._measure("jobs", count)

    def _measure(self, what: str, count: int) -> float:
        assert self.driver.stdin is not None
        self.driver.stdin.write(json.dumps({"do": what, "count": count}) + "\n")
        self.driver.stdin.flush()
        return float(json.loads(next_line(self.driver, f"{self.name}, {what} {count}"))["seconds"])


def next_line(process: subprocess.Popen[str], what: str) -> str:
    """The next line of output of a driver or worker."""
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], PATIENCE_SECONDS)[0]:
        raise SystemExit(f"bench: no response within {PATIENCE_SECONDS} s: {what}")
    if not (line := process.stdout.readline()):
        raise SystemExit(f"bench: process ended without a response: {what}")
    return line


@contextmanager
def running_peer(server: Server, name: str) -> Iterator[PeerProcesses]:
    dsn = server.fresh("peer")
    program = [ENVIRONMENTS / name / "bin/python", FOLDER / f"{name}_peer.py"]
    if subprocess.run([*program, "install", dsn], check=False, timeout=120).returncode:
        raise SystemExit(f"bench: {name} could not create its tables")
    running: dict[str, subprocess.Popen[str]] = {}
    try:
        for number in range(WORKERS):
            running[f"worker {number + 1}"] = start([*program, "work", dsn])
        running["driver"] = driver = start([*program, "drive", dsn])
        for role, process in running.items():
            next_line(process, f"{name}, {role}")
        yield PeerProcesses(name, "peer", driver, {role: process.pid for role, process in running.items()})
    finally:
        stop(list(running.values()))
        server.drop("peer")


def start(command: Sequence[Any]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sys.stderr, text=True)


def stop(processes: Sequence[subprocess.Popen[str]]) -> None:
    """Stop the processes, and kill those that do not end in time. This is not measured."""
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
