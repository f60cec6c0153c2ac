"""The checks of this machine: its software, settings, folders, ports, and the platform that runs on it."""

import asyncio
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import httpx2

from dagmaster import __version__
from dagmaster import settings as environment
from dagmaster.client.connection import ApiConnection
from dagmaster.client.credentials import key_for
from dagmaster.client.models.base import parse
from dagmaster.client.models.operations import Health
from dagmaster.doctor.findings import SHOWN, Judgement, Judgements, judge, named, ok, problem, skipped, warning
from dagmaster.errors import Conflict, NotAllowed
from dagmaster.handlers.registry import installed
from dagmaster.library.workflows import load_library
from dagmaster.listen import API, HEALTH, Endpoint, bind, http_url
from dagmaster.local import discovery
from dagmaster.local.data import user_name
from dagmaster.local.embedded import Cluster, find_binaries
from dagmaster.quantities import counted, size_text
from dagmaster.settings import Settings

_RESPONSE_SECONDS = 10.0
_SHARED_MEMORY = Path("/dev", "shm")


@dataclass(frozen=True, slots=True)
class Target:
    """What is checked: the platform that the settings and options choose."""

    settings: Settings
    server: str | None = None
    key: str | None = field(default=None, repr=False)
    invalid_settings: Sequence[str] = ()

    @property
    def folder(self) -> Path:
        return discovery.data_folder(self.settings)

    @property
    def url(self) -> str | None:
        """The API that was chosen, or that workers of this machine use instead of a database."""
        return self.server or self.settings.server_url or self.worker_url

    @property
    def worker_url(self) -> str | None:
        return None if self.settings.dsn() else self.settings.dag_callback_url

    def running(self) -> discovery.RunningPlatform | None:
        """The platform on this machine, unless another one is chosen."""
        return None if self.url else discovery.running_platform(self.folder)


def target(data: Path | None, server: str | None, key: str | None = None) -> Target:
    settings, problems = environment.repaired(**({"DAGMASTER_DATA": data} if data else {}))
    return Target(settings, server, key, problems)


def check_settings(target: Target) -> Judgements:
    fix = "correct this environment variable; see docs/settings.md"
    judgements = [problem(text, fix) for text in target.invalid_settings]
    judgements += [warning(text, "correct its name, or unset it") for text in environment.warnings()]
    return judgements or [ok("all valid")]


def check_data_folder(target: Target) -> Judgements:
    folder = target.folder
    nearest = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    if not nearest.is_dir():
        yield problem(f"{nearest} is not a folder", "remove it, or choose another one with --data")
    elif not os.access(nearest, os.W_OK | os.X_OK):
        fix = f"change its owner (chown {user_name(os.geteuid())} {nearest}), or choose another one with --data"
        yield problem(f"{nearest} is not writable", fix)
    else:
        free_bytes = shutil.disk_usage(nearest).free
        created = "" if folder == nearest else " (will be created)"
        fix = "free some space, or choose a folder on another disk with --data"
        observation = f"{folder}{created}, {size_text(free_bytes)} free"
        yield judge(free_bytes, observation, fix, warning=2e9, problem=2e8, is_least=True)
    private = {folder / "platform.json": user_name(os.geteuid())}
    if target.settings.dsn() is None:
        cluster = Cluster.at(target.settings.data_folder)
        private |= dict.fromkeys((cluster.folder, cluster.socket_folder), cluster.user.pw_name)
    for path, expected_owner in private.items():
        with suppress(FileNotFoundError, NotADirectoryError):
            status = path.lstat()
            yield from judge_private(path, status.st_mode & 0o7777, user_name(status.st_uid), expected_owner)


def judge_private(path: Path, mode: int, owner: str, expected_owner: str) -> Judgements:
    """Judge a file with secrets, or a folder that other users must not be able to enter."""
    if owner != expected_owner:
        yield problem(f"{path} belongs to {owner}, not to {expected_owner}", f"chown {expected_owner} {path}")
    elif mode & 0o077:
        yield problem(f"{path} is open to others (mode {mode:04o})", f"chmod go= {path}")


def check_shared_memory(_target: Target) -> Judgements:
    if not _SHARED_MEMORY.is_dir():
        return [warning("there is no /dev/shm", "mount a tmpfs on /dev/shm")]
    total_bytes = shutil.disk_usage(_SHARED_MEMORY).total
    fix = "increase it, in a container with --shm-size=512m: larger queries of PostgreSQL may fail"
    minimum = (64 << 20) + 1  # Docker gives a container 64 MiB
    return [judge(total_bytes, f"{size_text(total_bytes)} of shared memory", fix, warning=minimum, is_least=True)]


def check_postgres_programs(target: Target) -> Judgements:
    """The programs of PostgreSQL, for a private server."""
    if target.settings.dsn() or target.worker_url:
        return [ok("not needed: DATABASE_URL or DAG_CALLBACK_URL is set")]
    return [ok(f"{find_binaries()}")]


def check_gdal(_target: Target) -> Judgements:
    """Whether GDAL can be loaded. Only workers and map servers need it."""
    if find_spec("rasterio") is None:
        return [ok("not installed; only workers and map servers need it")]
    from dagmaster.gdal_library import versions

    return [ok(", ".join(f"{name} {version}" for name, version in versions().items()))]


def check_workflows(target: Target) -> Judgements:
    handlers = installed()
    library = load_library(target.settings, handlers, target.settings.known_queues)
    refused = [each.at(error.file) for error in library.refused for each in error.problems]
    fix = "correct the file; `dagmaster workflows validate FILE` shows all its mistakes"
    judgements = [problem(text, fix) for text in refused[:SHOWN]]
    judgements += [problem(text, "repair or remove that package") for text in handlers.refused[:SHOWN]]
    return judgements or [ok(f"{len(library.workflows)} loaded")]


def check_platform(target: Target) -> Judgements:
    running, configured = target.running(), target.settings.dsn()
    if running is None and (chosen := target.url or configured):
        return [ok(f"{chosen}, from an option or a setting")]
    if running is None:
        fix = "start one with `dagmaster up`, or choose one with DATABASE_URL or --server URL"
        return [warning(f"no platform is running on {target.folder}", fix)]
    text = f"runs on {target.folder} since {running.started_at} (process {running.pid})"
    if configured in (None, running.database_url):
        return [ok(text)]
    fix = "unset DATABASE_URL, or choose another folder with --data"
    return [warning(f"a platform {text}, but on another database than that of DATABASE_URL", fix)]


def check_api(target: Target) -> Judgements:
    running = target.running()
    url = running.api_url if running else target.url
    if url is None:
        return [skipped("no platform runs on this machine, or it serves no API")]
    try:
        health = asyncio.run(_health(url, key_for(target.settings, server=target.url, chosen=target.key)))
    except NotAllowed as error:
        if error.code not in ("auth.required", "auth.not-allowed"):
            raise
        # Not every caller may read the health: a worker over HTTP, for example, may not.
        return [ok(f"{url} responds; it shows its version and health only to keys that may read metrics")]
    failed = [check for check in health.checks if not check.is_ok]
    judgements = [problem(f"{url} is not healthy: {each.name}: {each.detail}", each.hint) for each in failed]
    if health.version != __version__:
        fix = f"use the same version on both sides: pip install dagmaster=={health.version}, or upgrade the platform"
        judgements.append(warning(f"{url} has version {health.version}, this command has {__version__}", fix))
    return judgements or [ok(f"{url} responds, version {health.version}")]


async def _health(url: str, key: str | None) -> Health:
    async with ApiConnection(lambda: url, _RESPONSE_SECONDS, find_key=lambda: key) as connection:
        return parse(Health, await connection.object("GET", "/health"))


def check_worker_over_http(target: Target) -> Judgements:
    """Whether the platform accepts a worker over HTTP. Nothing is stored there until the first heartbeat."""
    if target.settings.dag_callback_url is None:
        return [skipped("DAG_CALLBACK_URL is not set: workers of this machine use the database")]
    return [asyncio.run(_start_worker(target.settings))]


async def _start_worker(settings: Settings) -> Judgement:
    from dagmaster.worker.http.start import connect, queues_of, start

    async with connect(settings) as connection:
        started = await start(connection, retry_seconds=0)
    queues = ", ".join(queues_of(settings, started))
    return ok(f"{settings.dag_callback_url} accepts this worker as '{started.caller}', for {queues}")


def check_dask_cluster(target: Target) -> Judgements:
    """Whether the scheduler responds, and which Dask workers can run tasks of this machine's worker."""
    if target.settings.worker_executor != "dask":
        yield skipped("WORKER_EXECUTOR is processes: workers of this machine use no Dask cluster")
        return
    from dagmaster.worker.executors import dask

    address = target.settings.dask_scheduler_address
    facts = asyncio.run(dask.inspect_cluster(dask.cluster_of(target.settings)))
    for worker, text in facts.refused.items():
        yield problem(f"the Dask worker {worker} cannot run tasks: {text}", "install the same versions on both sides")
    for other in facts.other_versions:
        yield warning(f"{address}: {other}", "install the same version of distributed on worker, scheduler and cluster")
    if facts.threads:
        slots = counted(sum(facts.threads.values()), "slot")
        yield ok(f"{address} responds, {counted(len(facts.threads), 'Dask worker')} with {slots}")
    else:
        yield problem(f"{address} has no Dask worker that can run tasks", "start Dask workers at this scheduler")


def check_port(endpoint: Endpoint, target: Target) -> Judgements:
    """An API port that the user chose must be free. In all other cases a free port is used instead."""
    settings, name, variable = target.settings, endpoint.name, f"{endpoint.name.upper()}_PORT"
    host, port = getattr(settings, f"{name}_host"), getattr(settings, f"{name}_port")
    if not getattr(settings, f"{name}_enabled"):
        return [skipped(f"{name.upper()}_ENABLED=false")]
    may_expose = settings.may_expose_api if endpoint is API else settings.health_insecure
    with suppress(Conflict):
        bind(host, port, may_expose=may_expose, endpoint=endpoint).close()
        return [ok(f"port {port} is free" if port else f"{variable}=0: any free port")]
    if _is_dagmaster(host, port):
        return [ok(f"port {port} is in use by dagmaster")]
    fix = f"stop the program (`ss -ltnp 'sport = :{port}'` shows it), or choose another {variable}"
    observation = f"port {port} is in use by another program, or by a dagmaster that hangs"
    if endpoint is API and "api_port" in settings.model_fields_set:
        return [problem(observation, fix)]
    return [warning(f"{observation}; a free one is taken instead", fix)]


def _is_dagmaster(host: str, port: int) -> bool:
    """Whether a process of dagmaster listens on a port. All of them accept requests for localhost."""
    url, headers = f"{http_url(host, port)}/readyz", {"Host": "localhost"}
    with suppress(httpx2.HTTPError):
        response = httpx2.get(url, headers=headers, timeout=_RESPONSE_SECONDS, trust_env=False)
        return '"is_ready"' in response.text
    return False


CHECKS = named(
    *(check_settings, check_data_folder, check_shared_memory, check_postgres_programs, check_gdal, check_workflows),
    *(check_platform, check_api, check_worker_over_http, check_dask_cluster),
) | {"api-port": partial(check_port, API), "health-port": partial(check_port, HEALTH)}
