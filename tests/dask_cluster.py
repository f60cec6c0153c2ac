"""A Dask cluster of real processes on this machine."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

DASK = Path(sys.executable).with_name("dask")
HANDLERS = Path(__file__).parent / "worker"  # the folder from which test handlers are imported


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


class DaskCluster:
    """A scheduler and Dask workers, which can be killed one by one."""

    def __init__(self, folder: Path, *, protocol: str = "tcp", tls: Sequence[str] = ()) -> None:
        self.folder = folder
        self.port = free_port()
        self.address = f"{protocol}://127.0.0.1:{self.port}"
        self.scheduler: subprocess.Popen[bytes] | None = None
        self.workers: list[subprocess.Popen[bytes]] = []
        self._tls = tuple(tls)
        self._protocol = protocol

    def start_scheduler(self) -> None:
        options = ("--host", "127.0.0.1", "--port", str(self.port), "--no-dashboard", "--no-show")
        self.scheduler = self._start("scheduler", *options, *self._tls, *self._protocols())
        deadline = time.monotonic() + 30
        while not self._listens():
            assert self.scheduler.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.02)

    def start_workers(self, count: int, *options: str, threads: int = 2, env: Mapping[str, str] | None = None) -> None:
        common = ("--no-nanny", "--no-dashboard", "--host", "127.0.0.1", "--nthreads", str(threads))
        common += ("--memory-limit", "0", "--local-directory", str(self.folder), *self._protocols())
        for _ in range(count):
            self.workers.append(self._start("worker", self.address, *common, *self._tls, *options, env=env))

    def stop(self) -> None:
        for process in [*self.workers, *([self.scheduler] if self.scheduler else [])]:
            process.kill()
            process.wait()
        self.workers.clear()

    def log(self) -> str:
        return (self.folder / "dask.log").read_text()

    def _protocols(self) -> tuple[str, ...]:
        return ("--protocol", self._protocol)

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def _start(self, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        environment = os.environ | {"PYTHONPATH": str(HANDLERS)} | dict(env or {})
        with (self.folder / "dask.log").open("ab") as log:
            return subprocess.Popen([DASK, *arguments], env=environment, stdout=log, stderr=log)
