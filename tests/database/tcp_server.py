"""PostgreSQL servers on TCP ports of this machine: with TLS, with a standby, killed and promoted at will.

The shared cluster of the tests listens on a socket only. These servers are durable, and die with the test process.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import trustme
from tests.engine.fork_server import die_with

from dagmaster.local.embedded import Cluster, find_binaries

HOST = "localhost"
DATABASE = "dagmaster"


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


@dataclass
class TcpServer:
    """One server: its folder, its port and its process. Root reaches it over its socket, without a password."""

    folder: Path
    port: int = field(default_factory=free_port)
    settings: dict[str, str] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def initialise(self, hba: str) -> None:
        self._run("initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "--no-sync", "--encoding=UTF8")
        (self.data / "pg_hba.conf").write_text(f"local all all trust\nlocal replication all trust\n{hba}\n")

    def start(self) -> None:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self.folder),
            "shared_buffers": "32MB",
            "timezone": "UTC",
            **self.settings,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [self.binaries / "postgres", "-D", self.data, *options],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with(os.getpid()),  # noqa: PLW1509  only a system call in the child
                **self._as_user(),
            )
        self.wait_until_ready()

    def wait_until_ready(self, seconds: float = 30) -> None:
        deadline = time.monotonic() + seconds
        while True:
            try:
                return self.administrator("postgres").close()
            except psycopg.OperationalError:
                if time.monotonic() > deadline or (self._process and self._process.poll() is not None):
                    print((self.folder / "server.log").read_text()[-3000:])
                    raise
                time.sleep(0.05)

    def kill(self) -> None:
        """Kill the server and all its processes with SIGKILL, as if the machine had lost its power."""
        if self._process is None or self._process.poll() is not None:
            return
        children = [int(pid) for pid in _children_of(self._process.pid)]
        for pid in (self._process.pid, *children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(10)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()

    def administrator(self, database: str = DATABASE) -> psycopg.Connection[Any]:
        address = f"postgresql://postgres@/{database}?host={self.folder}&port={self.port}"
        return psycopg.connect(address, autocommit=True, connect_timeout=5)

    def execute(self, *statements: str, database: str = DATABASE) -> list[tuple[Any, ...]]:
        """Execute statements, and return the rows of the last one."""
        with self.administrator(database) as connection:
            for statement in statements:
                cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def dsn(self, user: str = "postgres", **parameters: str) -> str:
        query = "&".join(f"{name}={value}" for name, value in parameters.items())
        return f"postgresql://{user}@{HOST}:{self.port}/{DATABASE}{'?' if query else ''}{query}"

    def copy_to(self, standby: "TcpServer") -> None:
        """Make a standby of this server: a base backup with streaming replication."""
        primary = f"host={self.folder} port={self.port} user=postgres application_name=standby"
        self._run("pg_basebackup", "-D", standby.data, "-d", primary, "-R", "-X", "stream", "--checkpoint=fast")

    def promote(self) -> None:
        self.execute("SELECT pg_promote(true, 30)", database="postgres")

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def binaries(self) -> Path:
        return find_binaries()

    def _run(self, program: str, *arguments: str | Path) -> None:
        command = [self.binaries / program, *arguments]
        subprocess.run(command, check=True, capture_output=True, timeout=120, **self._as_user())

    def _as_user(self) -> dict[str, Any]:
        user = Cluster.at(None, "tcp").user
        if os.geteuid() != 0:
            return {"cwd": "/"}
        return {"cwd": "/", "user": user.pw_uid, "group": user.pw_gid, "extra_groups": [], "umask": 0o077}


@contextlib.contextmanager
def server_folder(name: str) -> Iterator[Path]:
    """A folder that the operating system user of the server can enter."""
    folder = Path(f"/tmp/dagmaster-{name}-test-{os.getpid()}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    user = Cluster.at(None, "tcp").user
    os.chown(folder, user.pw_uid, user.pw_gid)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def running(name: str, hba: str, settings: Mapping[str, str] | None = None) -> Iterator[TcpServer]:
    with server_folder(name) as folder:
        server = TcpServer(folder, settings=dict(settings or {}))
        server.initialise(hba)
        try:
            server.start()
            server.execute(f"CREATE DATABASE {DATABASE}", database="postgres")
            yield server
        finally:
            server.stop()


def certificates(folder: Path, host: str = HOST) -> dict[str, str]:
    """Create a certificate for the host; that of its authority is in ca.pem. Returns the settings of the server."""
    authority = trustme.CA()
    issued = authority.issue_cert(host)
    authority.cert_pem.write_to_path(folder / "ca.pem")
    issued.private_key_pem.write_to_path(folder / "server.key")
    issued.cert_chain_pems[0].write_to_path(folder / "server.pem")
    user = Cluster.at(None, "tcp").user
    for file in ("server.key", "server.pem", "ca.pem"):
        (folder / file).chmod(0o600)
        os.chown(folder / file, user.pw_uid, user.pw_gid)
    return {"ssl": "on", "ssl_cert_file": str(folder / "server.pem"), "ssl_key_file": str(folder / "server.key")}


def _children_of(pid: int) -> list[str]:
    return [child for file in Path(f"/proc/{pid}/task").glob("*/children") for child in file.read_text().split()]
