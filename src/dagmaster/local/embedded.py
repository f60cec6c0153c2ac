"""A private PostgreSQL for one machine: no TCP port, its own data folder, ended with the process that started it.

    <folder>/data         the cluster; created as data.new and renamed, so that an incomplete one is never used
    <folder>/server.log   the log of the server
    <folder>/lock         held by every process of a running server, and by a process that is about to start one
    <folder>/pgpass       the password of the superuser, which clients find by `passfile` in the DSN
    <folder>/pg_hba.conf  every role needs its password, so that the gateway's role cannot become the superuser
    <socket folder>       short, because socket paths are limited to 107 bytes; 0700

If root starts the server, it runs as an unprivileged user, because PostgreSQL refuses to run as root. The folder is
then /var/lib/dagmaster/<id>, because that user often cannot enter the data folder. The permissions of existing folders
are never changed.
"""

import contextlib
import fcntl
import hashlib
import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal, Self
from urllib.parse import quote

from dagmaster.database import OLDEST_MAJOR
from dagmaster.errors import Conflict, InvalidRequest, NotFound, Unavailable
from dagmaster.local.children import die_with, stop_signals_blocked

# psycopg is imported where it is used: the server is started first.
if TYPE_CHECKING:
    import psycopg

DATABASE = "dagmaster"
SUPERUSER = "postgres"
GROUP = "dagmaster_gateways"  # as in database/schema/gateway_role.py, which imports a driver
MAX_SOCKET_FOLDER_LENGTH = 107 - len("/.s.PGSQL.5432.lock")

MAX_LOG_BYTES = 20_000_000

# The folder belongs to another user, who must not redirect root to another file.
_NO_SYMLINK = os.O_NOFOLLOW | os.O_CLOEXEC
ROOT_HOME = Path("/var/lib/dagmaster")

StopMode = Literal["smart", "fast", "immediate"]
_STOP_SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}


@dataclass(slots=True)
class Cluster:
    """One data folder and, while started, its server. `fast` is for tests: the server is not durable, and only gateways
    need a password. With `requires_passwords=False` the server is durable, and only gateways need a password."""

    folder: Path
    socket_folder: Path
    user: pwd.struct_passwd
    fast: bool = False
    start_timeout_seconds: float = 60.0
    requires_passwords: bool = True
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @classmethod
    def at(
        cls, data_folder: Path | None, name: str = "default", *, fast: bool = False, data_home: Path | None = None
    ) -> Self:
        """The cluster of a data folder, or the one called `name` if no folder is given.

        `data_home` is the folder for data of a normal user, by default ~/.local/share.
        """
        return cls.of(identity_of(data_folder, name), data_folder, fast=fast, data_home=data_home)

    @classmethod
    def of(cls, identity: str, data_folder: Path | None, *, fast: bool = False, data_home: Path | None = None) -> Self:
        """The cluster with this identity. That of a normal user is in the data folder, if one is given."""
        if os.geteuid() == 0:
            folder, user = ROOT_HOME / identity, _unprivileged_user(ROOT_HOME / identity)
        else:
            home = data_home or Path.home() / ".local/share"
            folder = data_folder.absolute() / "postgres" if data_folder else home / "dagmaster" / identity
            user = pwd.getpwuid(os.geteuid())
        return cls(folder, _socket_folder(identity), user, fast)

    @classmethod
    def of_root(cls, identity: str) -> Self:
        """The cluster that root has created under this identity."""
        return cls(ROOT_HOME / identity, Path("/run") / f"dagmaster-{identity}", pwd.getpwuid(os.geteuid()))

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    @property
    def dsn(self) -> str:
        return self.dsn_of(DATABASE)

    def dsn_of(self, database: str) -> str:
        passfile = "" if self._is_open else f"&passfile={quote(str(self._passwords))}"
        return f"postgresql://{SUPERUSER}@/{database}?host={self.socket_folder}{passfile}"

    @property
    def _is_open(self) -> bool:
        return self.fast or not self.requires_passwords

    @property
    def _passwords(self) -> Path:
        return self.folder / "pgpass"

    @property
    def _hba(self) -> Path:
        return self.folder / "pg_hba.conf"

    def is_running(self) -> bool:
        return self.server_pid() is not None

    def server_pid(self) -> int | None:
        """The process that serves this folder. A pid file alone is no proof: the pid may have been reused."""
        pid = _pid_in(self.data / "postmaster.pid")
        return pid if pid is not None and _serves(pid, self.data) else None

    def start(self) -> None:
        """Start the server and wait until it accepts connections; it ends when this process ends."""
        self.launch()
        try:
            self.add_postgis()
        except BaseException:
            self.stop("immediate")
            raise

    def launch(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Start the server, and create the database if it does not exist.

        `meanwhile` is called during initdb and during the start.
        """
        if threading.current_thread() is not threading.main_thread():
            # The kernel sends the death signal when the forking thread ends, not the process.
            raise RuntimeError("a cluster must be started from the main thread")
        with self._lock() as lock:
            self._initialise(meanwhile)
            self._remove_leftovers()
            self._write_hba()
            self._launch(lock)
        try:
            meanwhile()
            self._wait_until_ready()
            self._ensure_password()
            self._ensure_database()
        except BaseException:
            self.stop("immediate")
            raise

    def add_postgis(self) -> None:
        """Install PostGIS, if the server offers it."""
        with self._superuser(DATABASE) as connection:
            missing = "SELECT FROM pg_available_extensions WHERE name = 'postgis' AND installed_version IS NULL"
            if connection.execute(missing).rowcount:
                connection.execute("CREATE EXTENSION postgis")

    def stop(self, mode: StopMode = "fast", timeout_seconds: float = 30.0) -> None:
        """Stop the server, even if another process started it; kill it if it takes too long."""
        pid = self._process.pid if self._process and self._process.poll() is None else self.server_pid()
        if pid is not None:
            for signum, seconds in ((_STOP_SIGNALS[mode], timeout_seconds), (signal.SIGQUIT, 15.0)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signum)
                if self._has_ended_within(seconds):
                    break
            else:
                raise Unavailable(f"PostgreSQL (process {pid}) does not stop", code="cluster.stuck", pid=pid)
        self._process = None

    def remove(self) -> None:
        """Stop the server and delete its data. For tests and `dagmaster demo`."""
        self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(self.socket_folder, ignore_errors=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    @contextlib.contextmanager
    def _lock(self) -> Iterator[int]:
        """Lock the folder. A server inherits the lock, so that it lasts until its last process has ended."""
        self._make_folder(self.folder)
        descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | _NO_SYMLINK, 0o600)
        try:
            self._acquire(descriptor)
            if (pid := self.server_pid()) is not None:  # started by hand, without our lock
                raise self._in_use(f"by process {pid}", pid=pid)
            yield descriptor
        finally:
            os.close(descriptor)

    def _acquire(self, descriptor: int, retry_seconds: float = 15.0) -> None:
        started = time.monotonic()
        while True:
            try:
                return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waited_seconds = time.monotonic() - started
                # Not immediately: a server that was just killed still looks alive.
                if waited_seconds > 0.5 and (pid := self.server_pid()) is not None:
                    raise self._in_use(f"by process {pid}", pid=pid) from None
                # No server: its last processes are ending after a crash, or another process is about to start one.
                if waited_seconds > retry_seconds:
                    raise self._in_use("by another process") from None
                time.sleep(0.05)

    def _in_use(self, by: str, **facts: int) -> Conflict:
        return Conflict(
            f"the PostgreSQL data in {self.folder} is in use {by}",
            code="cluster.in-use",
            hint="use the running platform, stop it, or choose another data folder",
            **facts,
        )

    def _make_folder(self, folder: Path) -> None:
        """Create a folder that only the user of the server can enter; refuse an existing one that others can."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            pass
        else:
            os.chown(folder, self.user.pw_uid, self.user.pw_gid)
        status = folder.lstat()
        if status.st_uid != self.user.pw_uid or status.st_mode & 0o077 or not folder.is_dir():
            raise Conflict(
                f"{folder} is not a private folder of {self.user.pw_name}",
                code="cluster.folder",
                hint="remove it, or change its mode to 0700 and its owner to that user",
            )

    def _initialise(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        if self.data.exists():
            return
        unfinished = self.folder / "data.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        command = [self._binaries() / "initdb", "-D", unfinished, "-U", SUPERUSER, "-A", "trust"]
        command += ["--encoding=UTF8", "--lc-collate=C", "--lc-ctype=C.UTF-8", "--data-checksums"]
        command += ["--no-sync"] if self.fast else []
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, **self._as_user(), **pipes) as initdb:  # type: ignore[call-overload]
            try:
                meanwhile()
                _, errors = initdb.communicate()
            except BaseException:
                initdb.kill()
                raise
        if initdb.returncode:
            raise Unavailable(f"initdb in {unfinished} failed: {errors.strip()[-1000:]}", code="cluster.initdb")
        unfinished.rename(self.data)
        _sync(self.folder)

    def _remove_leftovers(self) -> None:
        """Remove the pid files of a server that was killed, if another process has its pid now, or if they have no pid.

        If no process has that pid, PostgreSQL notices it itself, and checks more than we can.
        """
        self._make_folder(self.socket_folder)
        for leftover in (self.data / "postmaster.pid", self.socket_folder / ".s.PGSQL.5432.lock"):
            pid = _pid_in(leftover)
            if pid is None or Path("/proc", str(pid)).exists():
                leftover.unlink(missing_ok=True)

    def _write_hba(self) -> None:
        """Require passwords, unless the superuser has none yet, as in a new folder. In tests only gateways need a
        password, because it makes each connection some milliseconds slower."""
        needs_passwords = self._passwords.exists() and not self._is_open
        rules = ["local all all scram-sha-256"] if needs_passwords else [f"local all +{GROUP} scram-sha-256"]
        rules += [] if needs_passwords else ["local all all trust"]
        self._write_private(self._hba, "\n".join([*rules, ""]))

    def _ensure_password(self) -> None:
        """Give the superuser a password, once. If this process dies in between, the next start sets another one."""
        if self._is_open or self._passwords.exists():
            return
        password = secrets.token_urlsafe(32)
        with self._superuser() as connection:
            connection.execute(f"ALTER ROLE {SUPERUSER} PASSWORD '{password}'")
        self._write_private(self._passwords, f"*:*:*:{SUPERUSER}:{password}\n")
        self._write_hba()
        with self._superuser() as connection:
            connection.execute("SELECT pg_reload_conf()")

    def _write_private(self, file: Path, text: str) -> None:
        """Write a file that only the user of the server can read. It is never incomplete."""
        unfinished = file.with_name(f"{file.name}.new")
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _NO_SYMLINK, 0o600)
        with os.fdopen(descriptor, "w") as opened:
            opened.write(text)
            os.fchown(opened.fileno(), self.user.pw_uid, self.user.pw_gid)
        unfinished.replace(file)

    def _launch(self, lock: int) -> None:
        binaries = self._binaries()
        command = [binaries / "postgres", "-D", self.data]
        command += [part for name, value in self._settings(binaries) for part in ("-c", f"{name}={value}")]
        with self._open_log() as log, stop_signals_blocked():
            self._process = subprocess.Popen(  # type: ignore[call-overload]
                command,
                **self._as_user(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(lock,),
                start_new_session=True,
                preexec_fn=die_with(os.getpid(), signal.SIGINT),  # noqa: PLW1509  it makes only system calls
            )

    def _open_log(self) -> BinaryIO:
        if self.log.exists() and self.log.stat().st_size > MAX_LOG_BYTES:
            self.log.replace(self.log.with_suffix(".log.old"))
        return os.fdopen(os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _NO_SYMLINK, 0o600), "ab")

    def _settings(self, binaries: Path) -> Iterator[tuple[str, str]]:
        """Server settings, for the command line: a newer dagmaster can change them for an existing folder."""
        yield from _SETTINGS.items()
        yield "unix_socket_directories", str(self.socket_folder)
        yield "hba_file", str(self._hba)
        if self.fast:
            yield from _FAST_SETTINGS.items()
        if _has_library(binaries, "pg_stat_statements"):
            yield "shared_preload_libraries", "pg_stat_statements"

    def _as_user(self) -> dict[str, object]:
        """Options that run a child process as the user of the server, in a folder that this user can enter."""
        if os.geteuid() != 0:
            return {"cwd": "/"}
        return {"cwd": "/", "user": self.user.pw_uid, "group": self.user.pw_gid, "extra_groups": [], "umask": 0o077}

    def _wait_until_ready(self) -> None:
        import psycopg

        assert self._process is not None
        deadline = time.monotonic() + self.start_timeout_seconds
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise self._not_started(f"ended with exit code {self._process.returncode}")
            with contextlib.suppress(psycopg.OperationalError), self._superuser():
                return
            time.sleep(0.03)
        raise self._not_started(f"did not accept connections within {self.start_timeout_seconds:.0f} s")

    def _not_started(self, reason: str) -> Unavailable:
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
        return Unavailable(f"PostgreSQL {reason}; the end of {self.log}:\n{tail}", code="cluster.start")

    def _superuser(self, database: str = "postgres") -> "psycopg.Connection[tuple[object, ...]]":
        import psycopg

        return psycopg.connect(self.dsn_of(database), autocommit=True, connect_timeout=5)

    def _ensure_database(self) -> None:
        with self._superuser() as connection:
            if not connection.execute("SELECT FROM pg_database WHERE datname = %s", [DATABASE]).rowcount:
                connection.execute(f"CREATE DATABASE {DATABASE}")

    def _has_ended_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.is_running() if self._process is None else self._process.poll() is None:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def _binaries(self) -> Path:
        version = self.data / "PG_VERSION"
        return find_binaries(int(version.read_text()) if version.exists() else None)


_SETTINGS = {
    "listen_addresses": "",
    "port": "5432",
    "max_connections": "200",
    "shared_buffers": "256MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "logging_collector": "off",
    "log_line_prefix": "%m [%p] %a ",
}
_FAST_SETTINGS = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}


def find_binaries(major: int | None = None) -> Path:
    """The folder of the server's programs: of one major version, or of the newest supported one."""
    supported = ((version, folder) for version, folder in _installed() if version >= OLDEST_MAJOR)
    folders = {version: folder for version, folder in supported if major in {None, version}}
    if not folders:
        required = f"PostgreSQL {major}" if major else f"PostgreSQL {OLDEST_MAJOR} or newer"
        raise NotFound(
            f"{required} is not installed",
            code="cluster.no-postgres",
            hint=f"apt-get install postgresql-{major or OLDEST_MAJOR}-postgis-3, or set DATABASE_URL to another server",
        )
    return folders[max(folders)]


def _installed() -> Iterator[tuple[int, Path]]:
    """Installed versions with their folders. If a version is installed twice, the last one is used: that of Debian."""
    programs = (shutil.which(name) for name in ("pg_config", "postgres"))
    candidates = [Path(program).resolve().parent for program in programs if program]
    candidates += Path("/usr/lib/postgresql").glob("*/bin")
    for folder in candidates:
        if (folder / "postgres").exists() and (folder / "initdb").exists():
            process = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True, check=False)
            if version := re.search(r"\) (\d+)", process.stdout):
                yield int(version[1]), folder


def _has_library(binaries: Path, name: str) -> bool:
    return any((binaries.parent / folder / f"{name}.so").exists() for folder in ("lib", "lib/postgresql"))


def identity_of(data_folder: Path | None, name: str = "default") -> str:
    if data_folder is None:
        return name
    digest = hashlib.sha256(os.fsencode(data_folder.absolute())).hexdigest()[:12]
    return digest if name == "default" else f"{digest}-{name}"


def _unprivileged_user(folder: Path) -> pwd.struct_passwd:
    """The owner of the data, else `postgres`, else `nobody`."""
    with contextlib.suppress(FileNotFoundError, KeyError):
        owner = pwd.getpwuid(folder.stat().st_uid)
        if owner.pw_uid != 0:
            return owner
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise NotFound("no unprivileged user to run PostgreSQL", code="cluster.no-user", hint="adduser --system postgres")


def _socket_folder(identity: str) -> Path:
    user = os.geteuid()
    # The value of XDG_RUNTIME_DIR in a login session.
    session = Path("/run/user") / str(user)
    if user == 0:
        folder = Path("/run") / f"dagmaster-{identity}"
    elif os.access(session, os.W_OK):
        folder = session / f"dagmaster-{identity}"
    else:
        folder = Path("/tmp") / f"dagmaster-{user}-{identity}"  # noqa: S108  its owner and mode are checked before use
    if len(os.fsencode(folder)) > MAX_SOCKET_FOLDER_LENGTH:
        raise InvalidRequest(
            f"the name of the cluster is too long for the path of a socket: {identity}", code="cluster.name"
        )
    return folder


def _pid_in(file: Path) -> int | None:
    try:
        return int(file.read_text().split("\n", 1)[0])
    except (OSError, ValueError):
        return None


def _serves(pid: int, data: Path) -> bool:
    """Whether this process is a PostgreSQL server that works in this folder."""
    process = Path("/proc") / str(pid)
    try:
        program = Path(os.fsdecode((process / "cmdline").read_bytes().split(b"\0", 1)[0])).name
        return program in {"postgres", "postmaster"} and (process / "cwd").samefile(data)
    except OSError:
        return False


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
