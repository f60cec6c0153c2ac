"""The checks of this machine: its software, settings, folders, ports, and the platform that runs on it."""

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import httpx2

from dagmaster import __version__
from dagmaster import settings as environment
from dagmaster.client.limits import PREFIX
from dagmaster.doctor.findings import GB, MB, SHOWN, Judgements, graded, in_bytes, ok, problem, skipped, warning
from dagmaster.errors import Conflict, DagmasterError, InvalidRequest
from dagmaster.handlers.registry import installed
from dagmaster.listen import API, HEALTH, Endpoint, bind
from dagmaster.local import discovery
from dagmaster.local.embedded import Cluster, find_binaries
from dagmaster.operations.library import load_library
from dagmaster.settings import Settings

OLDEST_PYTHON = (3, 11)
_ANSWER_SECONDS = 2.0
_SHARED_MEMORY = Path("/dev", "shm")
_DOCKERS_SHARED_MEMORY = 64 * MB
_WHEELS = ("rasterio", "pyogrio", "GDAL", "geopandas", "pyproj", "rio-tiler")


@dataclass(frozen=True, slots=True)
class Target:
    """What is checked: the platform that the settings and options choose. `chosen` are settings given as options."""

    settings: Settings
    chosen: Mapping[str, Any]
    server: str | None

    @property
    def folder(self) -> Path:
        return discovery.data_folder(self.settings)

    @property
    def url(self) -> str | None:
        return self.server or self.settings.server_url

    def running(self) -> discovery.Platform | None:
        return discovery.running_platform(self.folder)

    def dsn(self) -> str | None:
        if (configured := self.settings.dsn()) or self.url:
            return configured
        running = self.running()
        return running.database_url if running else None


def target(data: Path | None, server: str | None) -> Target:
    chosen = {"DAGMASTER_DATA": data} if data else {}
    return Target(environment.repaired(**chosen), chosen, server)


def judge_python(version: tuple[int, int, int], program: str) -> Judgements:
    fix = f"install Python {'.'.join(map(str, OLDEST_PYTHON))} or newer"
    yield graded(f"{'.'.join(map(str, version))} ({program})", fix, is_problem=version < OLDEST_PYTHON)


def judge_settings(problems: Sequence[str], warnings: Sequence[str]) -> Judgements:
    for text in problems:
        yield problem(text, "correct this environment variable; see docs/settings.md")
    for text in warnings:
        yield warning(text, "correct its name, or unset it")
    if not problems and not warnings:
        yield ok("all valid")


def _settings(target: Target) -> Judgements:
    problems: list[str] = []
    try:
        environment.load(**target.chosen)
    except InvalidRequest as error:
        problems = error.facts["problems"]
    return judge_settings(problems, environment.warnings())


def judge_folder(path: Path, nearest: Path, *, is_folder: bool, is_writable: bool, free_bytes: int) -> Judgements:
    """`nearest` is the folder itself, or the nearest one above it that exists."""
    if not is_folder:
        yield problem(f"{nearest} is not a folder", "remove it, or choose another one with --data")
    elif not is_writable:
        fix = f"change its owner (chown {nearest}), or choose another one with --data"
        yield problem(f"{nearest} is not writable", fix)
    else:
        found = f"{path}{'' if path == nearest else ' (will be created)'}, {in_bytes(free_bytes)} free"
        fix = "free some space, or choose a folder on another disk with --data"
        yield graded(found, fix, is_problem=free_bytes < 200 * MB, is_warning=free_bytes < 2 * GB)


def judge_private(path: Path, mode: int, owner: str, wanted_owner: str) -> Judgements:
    """What holds secrets, or is safe only as long as others cannot enter it."""
    if owner != wanted_owner:
        yield problem(f"{path} belongs to {owner}, not to {wanted_owner}", f"chown {wanted_owner} {path}")
    elif mode & 0o077:
        yield problem(f"{path} is open to others (mode {mode:04o})", f"chmod go= {path}")


def _data_folder(target: Target) -> Judgements:
    folder = target.folder
    nearest = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    is_folder = nearest.is_dir()
    free_bytes = shutil.disk_usage(nearest).free if is_folder else 0
    is_writable = os.access(nearest, os.W_OK | os.X_OK)
    yield from judge_folder(folder, nearest, is_folder=is_folder, is_writable=is_writable, free_bytes=free_bytes)
    private = {folder / "platform.json": _user_name(os.geteuid())}
    if target.settings.dsn() is None:
        cluster = Cluster.at(target.settings.data_folder)
        private |= dict.fromkeys((cluster.folder, cluster.socket_folder), cluster.user.pw_name)
    for path, wanted_owner in private.items():
        with suppress(FileNotFoundError, NotADirectoryError):
            status = path.lstat()
            yield from judge_private(path, status.st_mode & 0o7777, _user_name(status.st_uid), wanted_owner)


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def judge_shared_memory(total_bytes: int | None) -> Judgements:
    if total_bytes is None:
        yield warning("there is no /dev/shm", "mount a tmpfs on /dev/shm")
    else:
        fix = "increase it, in a container with --shm-size=512m: larger queries of PostgreSQL may fail"
        yield graded(f"{in_bytes(total_bytes)} of shared memory", fix, is_warning=total_bytes <= _DOCKERS_SHARED_MEMORY)


def judge_programs(folder: Path | None, error: DagmasterError | None, *, is_needed: bool) -> Judgements:
    """The programs of PostgreSQL, for a private server."""
    if error is None:
        yield ok(f"{folder}")
    elif is_needed:
        yield problem(error.message, error.hint)
    else:
        yield ok(f"{error.message}; not needed, because another server is configured")


def _programs(target: Target) -> Judgements:
    is_needed = target.settings.dsn() is None
    try:
        return judge_programs(find_binaries(), None, is_needed=is_needed)
    except DagmasterError as error:
        return judge_programs(None, error, is_needed=is_needed)


def judge_gdal(program: str | None, wheels: Mapping[str, str]) -> Judgements:
    versions = [program or "no gdalinfo", *(f"{name} {version}" for name, version in sorted(wheels.items()))]
    yield ok(f"{', '.join(versions)}{'' if program and wheels else '; not needed yet'}")


def _gdal(_target: Target) -> Judgements:
    program = None
    if path := shutil.which("gdalinfo"):
        done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False, timeout=_ANSWER_SECONDS)
        program = done.stdout.partition(",")[0].strip() or None
    wheels = {}
    for name in _WHEELS:
        with suppress(PackageNotFoundError):
            wheels[name] = version(name)
    return judge_gdal(program, wheels)


def judge_workflows(count: int, refused: Sequence[str], refused_handlers: Sequence[str]) -> Judgements:
    for text in refused[:SHOWN]:
        yield problem(text, "correct the file; `dagmaster workflows validate FILE` shows all its mistakes")
    for text in refused_handlers[:SHOWN]:
        yield problem(text, "repair or remove that package")
    if not refused and not refused_handlers:
        yield ok(f"{count} loaded")


def _workflows(target: Target) -> Judgements:
    handlers = installed()
    library = load_library(target.settings, handlers, target.settings.known_queues)
    refused = [each.at(error.file) for error in library.refused for each in error.problems]
    return judge_workflows(len(library.workflows), refused, handlers.refused)


def _platform(target: Target) -> Judgements:
    configured = target.settings.dsn()
    if target.url:
        yield ok(f"the one at {target.url}")
    elif running := target.running():
        text = f"runs on {target.folder} since {running.started_at} (process {running.pid})"
        fix = "unset DATABASE_URL, or choose another folder with --data"
        is_other = configured not in (None, running.database_url)
        found = f"one {text}, on another database than that of DATABASE_URL" if is_other else text
        yield graded(found, fix, is_warning=is_other)
    elif configured:
        yield ok(f"the one on the database {configured}")
    else:
        fix = "start one with `dagmaster up`, or choose one with DATABASE_URL or --server URL"
        yield warning(f"none is running on {target.folder}", fix)


def judge_api(
    url: str, our_version: str, version: str | None = None, unhealthy: Collection[str] = (), trouble: str | None = None
) -> Judgements:
    if trouble:
        fix = "start the platform with `dagmaster up` or an orchestrator, or correct --server (DAGMASTER_URL)"
        yield problem(f"{url}: {trouble}", fix)
        return
    for text in unhealthy:
        yield problem(f"{url} is not healthy: {text}", None)
    if version != our_version:
        fix = f"use the same version on both sides: pip install dagmaster=={version}, or upgrade the platform"
        yield warning(f"{url} is version {version}, this is {our_version}", fix)
    elif not unhealthy:
        yield ok(f"{url} answers, version {version}")


def _api(target: Target) -> Judgements:
    running = None if target.url else target.running()
    url = target.url or (running.api_url if running else None)
    if url is None:
        return [skipped("no platform runs on this machine, or it serves no API")]
    try:
        response = httpx2.get(f"{url.rstrip('/')}{PREFIX}/health", timeout=_ANSWER_SECONDS, trust_env=False)
        health = response.json()
        unhealthy = [f"{check['name']}: {check['detail']}" for check in health["checks"] if not check["is_ok"]]
        return judge_api(url, __version__, health["version"], unhealthy)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        return judge_api(url, __version__, trouble=str(error) or type(error).__name__)
    except (ValueError, KeyError, TypeError):
        return judge_api(url, __version__, trouble="the server there is not the API of a dagmaster")


def judge_port(variable: str, port: int, holder: str | None, *, is_needed: bool) -> Judgements:
    """`is_needed`: the user chose this port, so no other one will do."""
    if port == 0:
        yield ok(f"{variable}=0: any free port")
    elif holder is None or holder == "dagmaster":
        yield ok(f"port {port} is {'in use by dagmaster' if holder else 'free'}")
    else:
        fix = f"stop the program (`ss -ltnp 'sport = :{port}'` shows it), or choose another {variable}"
        found = f"port {port} is in use by another program, or by a dagmaster that hangs"
        found += "" if is_needed else "; a free one is taken instead"
        yield graded(found, fix, is_problem=is_needed, is_warning=True)


def _port(settings: Settings, endpoint: Endpoint) -> Judgements:
    name = endpoint.name
    if not getattr(settings, f"{name}_enabled"):
        return [skipped(f"{name.upper()}_ENABLED=false")]
    host, port, is_insecure = (getattr(settings, f"{name}_{part}") for part in ("host", "port", "insecure"))
    holder = _holder(host, port, endpoint, is_insecure)
    is_needed = endpoint is API and "api_port" in settings.model_fields_set
    return judge_port(f"{name.upper()}_PORT", port, holder, is_needed=is_needed)


def _holder(host: str, port: int, endpoint: Endpoint, is_insecure: bool) -> str | None:
    """Who listens on a port."""
    with suppress(Conflict):
        bind(host, port, is_insecure=is_insecure, endpoint=endpoint).close()
        return None
    address = f"[{host}]" if ":" in host else {"0.0.0.0": "127.0.0.1"}.get(host, host)  # noqa: S104  compared only
    try:
        response = httpx2.get(f"http://{address}:{port}/readyz", timeout=_ANSWER_SECONDS, trust_env=False)
        return "dagmaster" if {"is_ready", "checks"} <= set(response.json()) else "another program"
    except (httpx2.HTTPError, OSError, ValueError, TypeError):
        return "another program"


CHECKS: dict[str, Callable[[Target], Judgements]] = {
    "python": lambda _: judge_python(sys.version_info[:3], sys.executable),
    "settings": _settings,
    "data-folder": _data_folder,
    "shared-memory": lambda _: judge_shared_memory(
        shutil.disk_usage(_SHARED_MEMORY).total if _SHARED_MEMORY.is_dir() else None
    ),
    "postgres-programs": _programs,
    "gdal": _gdal,
    "workflows": _workflows,
    "platform": _platform,
    "api": _api,
    "api-port": lambda target: _port(target.settings, API),
    "health-port": lambda target: _port(target.settings, HEALTH),
}
