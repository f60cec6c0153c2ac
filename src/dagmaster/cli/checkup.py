"""Look at this machine, the database and the platform, for `doctor`.

It works where nothing else does: each look is by itself, in a thread that is left behind when it takes too long, and whatever
goes wrong with it is a finding too. The facts are gathered here and in `database/examination`; `diagnosis` judges them.
"""

import os
import pwd
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dagmaster import __version__
from dagmaster import settings as environment
from dagmaster.cli import diagnosis
from dagmaster.cli.diagnosis import Api, Finding, Folder, Holder, Level, Need, Private, ok, problem, skipped, warning
from dagmaster.errors import Conflict, DagmasterError, InvalidRequest, NotAllowed
from dagmaster.local import discovery
from dagmaster.observe.log import redact

if TYPE_CHECKING:
    from dagmaster.operations.library import WorkflowLibrary
    from dagmaster.settings import Settings

PATIENCE_SECONDS = 3.0
_HTTP_SECONDS = 2.0
_PROGRAM_SECONDS = 2.0
_SHARED_MEMORY = Path("/dev", "shm")
_WHEELS = ("rasterio", "pyogrio", "GDAL", "geopandas", "pyproj", "rio-tiler")

T = TypeVar("T")
Look = Callable[[], Iterable[Finding]]


def examine(data: Path | None = None, server: str | None = None) -> list[Finding]:
    """Every finding, in the order in which things rest on each other."""
    _import_what_is_needed()
    chosen = {"DAGMASTER_DATA": data} if data else {}
    settings = environment.repaired(**chosen)
    here = _Here(settings, server)
    found = all_of(
        {
            "python": _python,
            "settings": partial(_settings, chosen),
            "data-folder": here.data_folder,
            "shared-memory": _shared_memory,
            "postgres-programs": here.programs,
            "gdal": _gdal,
            "workflows": here.workflows,
            "platform": here.platform,
            "api": here.api,
            "api-port": here.api_port,
            "health-port": here.health_port,
        }
    )
    return [*found, *_of_the_database(settings, here)]


def _import_what_is_needed() -> None:
    """Before any clock ticks: imports take their time and never hang."""
    from dagmaster.database.maintenance import server
    from dagmaster.database.schema import deploy
    from dagmaster.handlers import registry
    from dagmaster.local import embedded
    from dagmaster.operations import library
    from dagmaster.orchestrator import routing

    del deploy, embedded, server, registry, library, routing


# --- looking ---------------------------------------------------------------------------------------------------------


def all_of(looks: Mapping[str, Look], patience_seconds: float = PATIENCE_SECONDS) -> list[Finding]:
    """Look at several things at once. One that does not answer in time is told as that."""
    answers: dict[str, queue.SimpleQueue[list[Finding]]] = {name: queue.SimpleQueue() for name in looks}
    for name, look in looks.items():
        threading.Thread(target=_look, args=(name, look, answers[name]), name=f"doctor-{name}", daemon=True).start()
    deadline = time.monotonic() + patience_seconds
    return [finding for name in looks for finding in _answer(name, answers[name], deadline, patience_seconds)]


def _look(name: str, look: Look, answer: "queue.SimpleQueue[list[Finding]]") -> None:
    try:
        answer.put([_clean(finding) for finding in look()])
    except DagmasterError as error:
        answer.put([_clean(problem(name, error.message, error.hint))])
    except Exception as error:  # whatever it is, it is what was found
        told = f"this could not be looked at: {type(error).__name__}: {error}"
        answer.put(
            [_clean(problem(name, told, "see whether the rest explains it; if not, report it as a bug of dagmaster"))]
        )


def _answer(
    name: str, answer: "queue.SimpleQueue[list[Finding]]", deadline: float, patience_seconds: float
) -> list[Finding]:
    try:
        return answer.get(timeout=max(0.001, deadline - time.monotonic()))
    except queue.Empty:
        fix = "see whether the machine, its disks or the network hang"
        return [problem(name, f"no answer within {patience_seconds:g} s", fix)]


def _in_time(ask: Callable[[], T], patience_seconds: float = PATIENCE_SECONDS) -> T | None:
    """An answer, if it comes in time. Why none comes is told by the look that asks the same."""
    answers: queue.SimpleQueue[T | None] = queue.SimpleQueue()

    def answer() -> None:
        with suppress(DagmasterError):
            return answers.put(ask())
        return answers.put(None)

    threading.Thread(target=answer, name="doctor", daemon=True).start()
    with suppress(queue.Empty):
        return answers.get(timeout=patience_seconds)
    return None


def _clean(finding: Finding) -> Finding:
    fix = redact(finding.fix) if finding.fix else None
    return Finding(finding.check, finding.level, redact(finding.found), fix)


# --- this machine ----------------------------------------------------------------------------------------------------


def _python() -> list[Finding]:
    return diagnosis.judge_python(sys.version_info[:3], sys.executable)


def _settings(chosen: Mapping[str, Any]) -> list[Finding]:
    problems: list[str] = []
    try:
        environment.load(**chosen)
    except InvalidRequest as error:
        problems = error.facts["problems"]
    return diagnosis.judge_settings(problems, environment.warnings())


def _shared_memory() -> list[Finding]:
    return diagnosis.judge_shared_memory(shutil.disk_usage(_SHARED_MEMORY).total if _SHARED_MEMORY.is_dir() else None)


def _gdal() -> list[Finding]:
    from importlib.metadata import PackageNotFoundError, version

    wheels = {}
    for name in _WHEELS:
        with suppress(PackageNotFoundError):
            wheels[name] = version(name)
    return diagnosis.judge_gdal(_gdal_program(), wheels)


def _gdal_program() -> str | None:
    program = shutil.which("gdalinfo")
    if program is None:
        return None
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=False, timeout=_PROGRAM_SECONDS)
    return told.stdout.partition(",")[0].strip() or None


@dataclass(frozen=True, slots=True)
class _Here:
    """This machine and the platform that is meant, as far as settings tell of them."""

    settings: "Settings"
    server: str | None

    @property
    def folder(self) -> Path:
        return discovery.data_folder(self.settings)

    @property
    def is_private(self) -> bool:
        """Whether `up` would run a PostgreSQL of its own."""
        return self.settings.dsn() is None

    def running(self) -> discovery.Platform | None:
        return discovery.running_platform(self.folder)

    def dsn(self) -> str | None:
        """The database that is meant, if there is one to look at."""
        configured = self.settings.dsn()
        if configured or self.server or self.settings.server_url:
            return configured
        running = self.running()
        return running.database_url if running else None

    def alive_within(self) -> float:
        """Seconds of silence after which an instance counts as gone; `up` has a profile of its own."""
        from dagmaster.local.platform import fast_profile

        usual = self.settings.orphan_threshold_sec
        return fast_profile(self.settings).get("orphan_threshold_sec", usual) if self.running() else usual

    def data_folder(self) -> Iterator[Finding]:
        nearest = next(place for place in (self.folder, *self.folder.parents) if os.path.lexists(place))
        is_folder = nearest.is_dir()
        yield from diagnosis.judge_folder(
            "data-folder",
            Folder(
                self.folder, nearest, is_folder,
                is_writable=os.access(nearest, os.W_OK | os.X_OK),
                free_bytes=shutil.disk_usage(nearest).free if is_folder else 0,
            ),
        )  # fmt: skip
        for path, owner in self._private_places():
            with suppress(FileNotFoundError, NotADirectoryError):
                found = path.lstat()
                yield from diagnosis.judge_private(
                    "data-folder", Private(path, found.st_mode & 0o7777, _name_of(found.st_uid), owner)
                )

    def _private_places(self) -> Iterator[tuple[Path, str]]:
        """What holds secrets, or is safe only as long as nobody else can enter it."""
        from dagmaster.local.embedded import Cluster

        yield self.folder / "platform.json", _name_of(os.geteuid())
        if self.is_private:
            cluster = Cluster.at(self.settings.data_folder)
            yield cluster.folder, cluster.user.pw_name
            yield cluster.socket_folder, cluster.user.pw_name

    def programs(self) -> list[Finding]:
        from dagmaster.local.embedded import find_binaries

        try:
            found, refusal = str(find_binaries()), None
        except DagmasterError as error:
            found, refusal = None, (error.message, error.hint)
        return diagnosis.judge_programs(found, refusal, is_needed=self.is_private)

    def platform(self) -> list[Finding]:
        if url := self.server or self.settings.server_url:
            return [ok("platform", f"the one at {url}")]
        running, configured = self.running(), self.settings.dsn()
        if running is None and configured:
            return [ok("platform", f"the one on the database {configured}")]
        if running is None:
            fix = "start one with `dagmaster up`, or name one with DATABASE_URL or --server URL"
            return [warning("platform", f"none is running on {self.folder}", fix)]
        told = f"runs on {self.folder} since {running.started_at} (process {running.pid})"
        if configured not in (None, running.database_url):
            fix = "say which one is meant: unset DATABASE_URL, or choose another folder with --data"
            return [warning("platform", f"one {told}, on another database than DATABASE_URL names", fix)]
        return [ok("platform", told)]

    def api(self) -> list[Finding]:
        url = self.server or self.settings.server_url
        if url is None:
            running = self.running()
            url = running.api_url if running else None
        if url is None:
            return [skipped("api", "no platform runs here, or none that serves an API")]
        return diagnosis.judge_api(_ask_api(url), __version__)

    def api_port(self) -> list[Finding]:
        from dagmaster.listen import API

        settings = self.settings
        if not settings.api_enabled:
            return [skipped("api-port", "API_ENABLED=false")]
        holder = _holder(settings.api_host, settings.api_port, API, is_insecure=settings.api_insecure)
        is_needed = "api_port" in settings.model_fields_set
        return diagnosis.judge_port("api-port", "API_PORT", settings.api_port, holder, is_needed=is_needed)

    def health_port(self) -> list[Finding]:
        from dagmaster.listen import HEALTH

        settings = self.settings
        if not settings.health_enabled:
            return [skipped("health-port", "HEALTH_ENABLED=false")]
        holder = _holder(settings.health_host, settings.health_port, HEALTH, is_insecure=settings.health_insecure)
        return diagnosis.judge_port("health-port", "HEALTH_PORT", settings.health_port, holder, is_needed=False)

    def catalog(self) -> "WorkflowLibrary":
        from dagmaster.handlers.registry import installed
        from dagmaster.operations.library import load_library

        return load_library(self.settings, installed(), self.settings.known_queues)

    def workflows(self) -> list[Finding]:
        from dagmaster.handlers.registry import installed

        catalog = self.catalog()
        refused = [each.at(error.file) for error in catalog.refused for each in error.problems]
        return diagnosis.judge_workflows(len(catalog.workflows), refused, installed().refused)

    def needs(self) -> set[Need]:
        """The handlers of all workflows that can be submitted here, where their tasks would go."""
        from dagmaster.handlers.registry import installed
        from dagmaster.orchestrator.routing import RegistryRouter
        from dagmaster.workflows.model import work_of

        router = RegistryRouter(installed(), self.settings.known_queues, self.settings.default_queue)
        return {
            Need(router.route(work).queue, work.handler, workflow.workflow_id)
            for workflow in self.catalog().workflows.values()
            for node in workflow.nodes.values()
            if (work := work_of(node)) is not None
        }


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _ask_api(url: str) -> Api:
    import httpx2

    from dagmaster.client.limits import PREFIX

    try:
        answer = httpx2.get(f"{url.rstrip('/')}{PREFIX}/health", timeout=_HTTP_SECONDS, trust_env=False)
        told = answer.json()
        unwell = tuple(f"{check['name']}: {check['detail']}" for check in told["checks"] if not check["is_ok"])
        return Api(url, told["version"], unwell)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        return Api(url, trouble=str(error) or type(error).__name__)
    except (ValueError, KeyError, TypeError):
        return Api(url, trouble="what answers there is not the API of a dagmaster")


def _holder(host: str, port: int, endpoint: Any, *, is_insecure: bool) -> Holder:
    from dagmaster.listen import bind

    try:
        bind(host, port, is_insecure=is_insecure, endpoint=endpoint).close()
    except Conflict:
        return Holder.US if _is_ours(host, port) else Holder.STRANGER
    return Holder.NOBODY


def _is_ours(host: str, port: int) -> bool:
    """Whether what listens there answers as our processes do."""
    import httpx2

    address = f"[{host}]" if ":" in host else {"0.0.0.0": "127.0.0.1"}.get(host, host)  # noqa: S104 - everywhere is here
    try:
        answer = httpx2.get(f"http://{address}:{port}/readyz", timeout=_HTTP_SECONDS, trust_env=False)
        return {"is_ready", "checks"} <= set(answer.json())
    except (httpx2.HTTPError, OSError, ValueError, TypeError):
        return False


# --- the database ----------------------------------------------------------------------------------------------------

_OF_THE_SERVER = ("postgres-settings", "connections", "postgis", "listen", "clock", "transactions", "rights")
_OF_THE_SCHEMA = ("instances", "handlers", "dead-rows")


def _of_the_database(settings: "Settings", here: _Here) -> Iterator[Finding]:
    """First whether it can be reached at all, then what it has, then what is in it."""
    dsn = _in_time(here.dsn)
    if dsn is None:
        yield from _skip(("postgres", *_OF_THE_SERVER, "schema", *_OF_THE_SCHEMA), "there is no database to look at")
        return
    reached = all_of({"postgres": lambda: _server(dsn)})
    yield from reached
    if not _is_reachable(reached):
        yield from _skip((*_OF_THE_SERVER, "schema", *_OF_THE_SCHEMA), "the database can't be reached")
        return
    deployed = all_of({**_looks_at_the_server(dsn, settings), "schema": lambda: _schema(dsn)})
    yield from deployed
    if any(finding.check == "schema" and finding.level is Level.PROBLEM for finding in deployed):
        yield from _skip(_OF_THE_SCHEMA, "the schema is not in order")
        return
    yield from all_of(_looks_at_the_schema(dsn, here))


def _skip(names: Iterable[str], why: str) -> Iterator[Finding]:
    return (skipped(name, why) for name in names)


def _is_reachable(findings: Iterable[Finding]) -> bool:
    """A server that answered is described by its version, whatever is wrong with it."""
    return all(finding.level is not Level.PROBLEM or finding.found.startswith("PostgreSQL") for finding in findings)


def _server(dsn: str) -> list[Finding]:
    from dagmaster.database import OLDEST_MAJOR
    from dagmaster.database.maintenance import server

    return diagnosis.judge_server(server.server(dsn), OLDEST_MAJOR)


def _schema(dsn: str) -> list[Finding]:
    from dagmaster.database.maintenance import server
    from dagmaster.database.schema import deploy

    try:
        return diagnosis.judge_schema(deploy.status(dsn))
    except NotAllowed:
        return diagnosis.judge_fingerprint(server.fingerprint(dsn), deploy.fingerprint())


def _looks_at_the_server(dsn: str, settings: "Settings") -> dict[str, Look]:
    from dagmaster.database.maintenance import server as look
    from dagmaster.records import SCHEMA

    return {
        "postgres-settings": lambda: diagnosis.judge_server_settings(look.settings(dsn)),
        "connections": lambda: diagnosis.judge_connections(
            look.settings(dsn), look.used_connections(dsn), settings.worker_processes
        ),
        "postgis": lambda: diagnosis.judge_extension(look.extension(dsn, "postgis")),
        "listen": lambda: diagnosis.judge_notifications(look.notify_seconds(dsn)),
        "clock": lambda: diagnosis.judge_clock(look.clock(dsn)),
        "transactions": lambda: diagnosis.judge_transaction(look.oldest_transaction(dsn)),
        "rights": lambda: diagnosis.judge_rights(look.role(dsn), look.lacking_rights(dsn), SCHEMA),
    }


def _looks_at_the_schema(dsn: str, here: _Here) -> dict[str, Look]:
    from dagmaster.database.maintenance import server as look

    return {
        "instances": lambda: diagnosis.judge_instances(
            look.instances(dsn),
            look.open_jobs(dsn),
            look.queued(dsn),
            within_seconds=here.alive_within(),
            our_version=__version__,
        ),  # fmt: skip
        "handlers": lambda: diagnosis.judge_handlers(
            here.needs(), look.instances(dsn), look.queued(dsn), here.alive_within()
        ),
        "dead-rows": lambda: diagnosis.judge_dead_rows(look.dead_rows(dsn)),
    }
