"""A whole platform on one machine: a database and the processes of all roles, from start to stop.

Used by `up`, `process` and `demo`. The processes of the roles end with the process that starts them, even if that is
killed. The database keeps its contents, and the next start continues from there.
"""

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from ipaddress import ip_network
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from dagmaster.errors import Conflict, NotAllowed, Unavailable
from dagmaster.listen import API, GATEWAY, HEALTH, SERVING, Endpoint, bind, bind_or_any, http_url
from dagmaster.local import discovery
from dagmaster.local.children import STOP_SIGNALS, ChildProcess, Say, stop_all
from dagmaster.web.page_headers import UI

if TYPE_CHECKING:
    from dagmaster.database.schema.deploy import SchemaState
    from dagmaster.local.embedded import Cluster
    from dagmaster.settings import Settings

READY_TIMEOUT_SECONDS = 60.0
# The time that a worker needs after the grace period, to kill handlers that still run and to write the last reports.
_WORKER_EXIT_SECONDS = 18.0
_DATABASE_CHECK_SECONDS = 1.0
_ADDRESSES_OF_THIS_MACHINE = ("127.0.0.1", "::1")

# With these settings a crash is noticed within seconds. A group does not apply if the user has set one of its settings.
_FAST_PROFILE: tuple[dict[str, float], ...] = (
    {"heartbeat_interval_sec": 1, "orphan_threshold_sec": 4, "orphan_scan_interval_sec": 1},
    {"task_lease_sec": 6, "lease_renew_sec": 1.5},
    # A person waits until the platform has stopped. Tasks that are given back continue at the next start.
    {"shutdown_grace_sec": 5},
)


def fast_profile(settings: "Settings") -> dict[str, float]:
    chosen = settings.model_fields_set
    return {name: value for group in _FAST_PROFILE if not chosen & group.keys() for name, value in group.items()}


@dataclass(slots=True)
class LocalPlatform:
    """`cluster` is the private PostgreSQL; None if a server is configured. `overrides` are settings of the children."""

    settings: "Settings"
    folder: Path
    dsn: str
    say: Say
    cluster: "Cluster | None" = None
    orchestrators: int = 1
    workers: int = 1
    log_level: str = "warning"
    on_stopping: Callable[[], None] = lambda: None
    on_first_key: Callable[[str], None] = lambda _key: None  # of an administrator; it is shown nowhere else
    overrides: Mapping[str, str] = field(default_factory=dict)
    children: list[ChildProcess] = field(default_factory=list)
    api_url: str | None = None
    serving_url: str | None = None  # of the map server itself
    gateway_url: str | None = None
    ready_seconds: float = 0.0
    is_interrupted: bool = False
    _is_stopping: bool = False
    _is_stopped_again: bool = False
    _database_checked_at: float = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start the platform. It is ready inside the block, and stopped after it."""
        from dagmaster.local.data import record

        started = time.monotonic()
        # Ports first: if one is in use, nothing has been created yet.
        with (
            discovery.hold(self.folder),
            self._maps_socket() or nullcontext() as maps,
            self._api_socket() or nullcontext() as api,
            self._gateway_socket() or nullcontext() as gateway,
        ):
            record(self.folder, self.settings)
            try:
                self._start_children(api, maps)
                self._start_database()
                self._start_maps(maps)
                self._start_gateway(gateway)
                asyncio.run(self._wait_until_ready())
                self._publish()
                self.ready_seconds = time.monotonic() - started
                yield
            except KeyboardInterrupt:
                self.on_stopping()
                raise
            finally:
                self._stop()

    def supervise(self) -> None:
        """Restart processes that have ended. To be called several times a second.

        Raises KeyboardInterrupt after a stop signal: a library may have caught the one that the signal raised.
        """
        if self.is_interrupted:
            raise KeyboardInterrupt
        self._supervise_database()
        for child in self.children:
            child.supervise(self.say)

    def interrupt(self) -> None:
        """Begin to stop. If stopping has begun already, kill the remaining processes instead of waiting for them."""
        if self._is_stopping:
            self._is_stopped_again = True
            return
        self.is_interrupted = True
        raise KeyboardInterrupt

    def _start_database(self) -> None:
        """Start the database, and release each role as soon as it can work: only workers wait for the catalogue."""
        from dagmaster.database.schema.deploy import SchemaState

        if self.cluster:
            self.cluster.launch(meanwhile=_preload)
        schema = ensure_schema(self.dsn, self.say)
        if self.settings.auth_enabled:
            self._create_first_key()
        self._release("orchestrator")
        if self.cluster:
            self.cluster.add_postgis()
        ensure_catalog(self.dsn, self.say, is_enabled=self.settings.catalog_enabled)
        self._release("worker")
        if schema is SchemaState.CURRENT:
            complete_schema(self.dsn, self.say)
        elif schema is SchemaState.OUTDATED:
            adopt_datasets(self.dsn, self.say)

    def _create_first_key(self) -> None:
        if key := _first_key(self.dsn):
            self.on_first_key(key)

    def _release(self, role: str) -> None:
        for child in self.children:
            if child.role == role:
                child.release()

    def _supervise_database(self) -> None:
        if self.cluster is None or time.monotonic() - self._database_checked_at < _DATABASE_CHECK_SECONDS:
            return
        self._database_checked_at = time.monotonic()
        if not self.cluster.is_running():
            self.say("PostgreSQL has ended; restarting it")
            self.cluster.start()

    def _start_children(self, api: socket.socket | None, maps: socket.socket | None) -> None:
        if maps:
            self.serving_url = _url(self.settings.serving_host, maps.getsockname()[1])
        if api:
            self.api_url = _url(self.settings.api_host, api.getsockname()[1])
        environment = self._environment()
        if self.serving_url:
            environment = {**environment, "SERVING_URLS": self.serving_url}
        # The map server takes the address for its links from each request; results of jobs use PUBLIC_URL.
        if self.maps_url and not self.settings.public_url:
            environment = {**environment, "PUBLIC_URL": self.maps_url}
        roles = [("orchestrator", n) for n in range(self.orchestrators)] + [("worker", n) for n in range(self.workers)]
        # Only the first orchestrator serves the API: it gets the socket.
        environment = {**environment, "API_ENABLED": "false", "API_HOST": self.settings.api_host}
        self.children = [
            ChildProcess(
                role, number + 1, environment, api if (role, number) == ("orchestrator", 0) else None, is_held=True
            )
            for role, number in roles
        ]
        for child in self.children:
            child.start()

    @property
    def maps_url(self) -> str | None:
        """Where people and programs reach the maps: at the address of the API, which forwards such requests."""
        return self.serving_url and (self.api_url or self.serving_url)

    @property
    def ui_url(self) -> str | None:
        return f"{self.api_url}{UI}/" if self.api_url else None

    def _start_maps(self, maps: socket.socket | None) -> None:
        """Start the map server after the other roles, because its imports take longest. Earlier requests wait."""
        if maps:
            # The API forwards requests to it, from an address of this machine.
            proxies = (*self.settings.trusted_proxies, *_ADDRESSES_OF_THIS_MACHINE, self.settings.serving_host)
            environment = {**self._environment(), "TRUSTED_PROXIES": ",".join(filter(_is_address, proxies))}
            self.children.append(ChildProcess("serving", 1, environment, maps))
            self.children[-1].start()

    def _start_gateway(self, gateway: socket.socket | None) -> None:
        """Start the gateway with a database role that may only read, and that gets a new password at each start."""
        from dagmaster.database.schema.gateway_role import ensure_gateway_role

        if gateway is None or self.api_url is None:
            return
        try:
            dsn = ensure_gateway_role(self.dsn, with_password=True)
        except NotAllowed as error:
            self.say(f"no gateway: {error}")
            return
        self.gateway_url = _url(self.settings.gateway_host, gateway.getsockname()[1])
        # The gateway must not be able to write, so it gets no settings of the main database.
        main_database = ("DATABASE_", "POSTGRES_", "PG")
        environment = {name: value for name, value in self._environment().items() if not name.startswith(main_database)}
        environment |= {"GATEWAY_DATABASE_URL": dsn, "ORCHESTRATOR_URLS": self.api_url}
        if self.settings.auth_enabled and not self.settings.gateway_key:
            environment |= {"GATEWAY_KEY": _gateway_key(self.dsn, self.folder)}
        self.children.append(ChildProcess("gateway", 1, environment, gateway))
        self.children[-1].start()

    def _gateway_socket(self) -> socket.socket | None:
        settings = self.settings
        if not settings.gateway_enabled or not settings.api_enabled:
            return None
        return self._bind(GATEWAY, settings.gateway_host, settings.gateway_port, settings.may_expose_gateway)

    def _api_socket(self) -> socket.socket | None:
        """A socket on the chosen port; else on the default port, or on a free one if the default is in use."""
        settings = self.settings
        if settings.health_enabled:
            bind(settings.health_host, 0, may_expose=settings.health_insecure, endpoint=HEALTH).close()
        if not settings.api_enabled:
            return None
        return self._bind(API, settings.api_host, settings.api_port, settings.may_expose_api)

    def _maps_socket(self) -> socket.socket | None:
        """The socket is bound here and passed on, as that of the API: otherwise another process could take the port
        before the map server has started, and links would lead to that process."""
        from dagmaster.roles.serving import is_installed

        settings = self.settings
        if not settings.serving_enabled or not is_installed():
            return None
        return self._bind(SERVING, settings.serving_host, settings.serving_port, settings.may_expose_maps)

    def _bind(self, endpoint: Endpoint, host: str, port: int, may_expose: bool) -> socket.socket:
        name = f"{endpoint.name}_port"
        bind_port = bind if name in self.settings.model_fields_set else bind_or_any
        try:
            return bind_port(host, port, may_expose=may_expose, endpoint=endpoint)
        except Conflict as error:
            hint = f"choose another port with {name.upper()}=… (0 takes a free one)"
            raise Unavailable(error.message, code=error.code, hint=hint, **error.facts) from None

    def _environment(self) -> Mapping[str, str]:
        """The environment of the child processes: that of this process, with the settings of a local platform."""
        local_settings = {"DATABASE_URL": self.dsn, "LOG_LEVEL": self.log_level, "DAGMASTER_DATA": str(self.folder)}
        local_settings |= {name.upper(): str(value) for name, value in fast_profile(self.settings).items()}
        return {**os.environ, **local_settings, **self.overrides}

    async def _wait_until_ready(self) -> None:
        """Wait until one orchestrator and one worker of this platform have registered in the database."""
        from dagmaster.database.reads.installation import InstallationReads

        deadline = time.monotonic() + READY_TIMEOUT_SECONDS
        async with InstallationReads(self.dsn) as reads:
            while not self._has_both({(instance.role, instance.pid) for instance in await reads.live_instances()}):
                self._raise_if_broken(deadline)
                self.supervise()
                await asyncio.sleep(0.05)

    def _has_both(self, alive: set[tuple[str, int]]) -> bool:
        roles = {child.role for child in self.children if child.is_running and (child.role, child.pid) in alive}
        return roles == {"orchestrator", "worker"}

    def _raise_if_broken(self, deadline: float) -> None:
        hint = "see the messages above; -v shows more"
        for child in self.children:
            if child.failures >= 3 or child.is_given_up:
                raise Unavailable(f"{child.name} does not start", code="platform.broken", hint=hint)
        if time.monotonic() > deadline:
            message = f"the platform was not ready within {READY_TIMEOUT_SECONDS:.0f} s"
            raise Unavailable(message, code="platform.slow", hint=hint)

    def _publish(self) -> None:
        started_at = datetime.now(UTC).isoformat(timespec="seconds")
        storage = discovery.storage_of(self.settings)
        running = discovery.RunningPlatform(self.dsn, os.getpid(), started_at, self.api_url, self.maps_url, storage)
        discovery.publish(self.folder, running)

    def _stop(self) -> None:
        self._is_stopping = True
        with suppress(OSError):
            discovery.withdraw(self.folder)
        for child in self.children:
            if child.listening:
                child.listening.close()  # clients get "connection refused" instead of waiting
        grace = fast_profile(self.settings).get("shutdown_grace_sec", self.settings.shutdown_grace_sec)
        for child in stop_all(self.children, grace + _WORKER_EXIT_SECONDS, lambda: self._is_stopped_again):
            self.say(f"{child.name} (process {child.pid}) had to be killed; its tasks will be run again")
        if self.cluster:
            self.cluster.stop()


def _url(host: str, port: int) -> str:
    """The address for commands on this machine; loopback if the server listens on all addresses."""
    loopback = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  compared, not listened on
    return http_url(loopback.get(host, host), port)


def _is_address(text: str) -> bool:
    """Whether a text is an IP address or a network, and not a host name."""
    with suppress(ValueError):
        return ip_network(text, strict=False).num_addresses > 0 and text not in ("0.0.0.0", "::")  # noqa: S104
    return False


def ensure_schema(dsn: str, say: Say) -> "SchemaState":
    """Create or migrate the schema, and report the changes. Returns the state of the schema before."""
    from dagmaster.database.schema import deploy

    schema = deploy.deploy(dsn)
    if schema is deploy.SchemaState.OUTDATED:
        complete_schema(dsn, say)
    return schema


def complete_schema(dsn: str, say: Say) -> None:
    """Add what the schema lacks, including what was dropped by hand. Other processes may use it meanwhile."""
    from dagmaster.database.schema import deploy

    if deploy.pending(dsn):
        for change in deploy.migrate(dsn):
            say(f"schema: {change}")


def adopt_datasets(dsn: str, say: Say) -> None:
    """Let datasets of earlier releases become assets, so that they stay on the map."""
    from dagmaster.operations.schema import adopt_all

    adoption = adopt_all(dsn)
    for dataset_id in adoption.datasets:
        say(f"dataset {dataset_id} is an asset of the platform local now")
    for refusal in adoption.refusals:
        say(refusal)


def _first_key(dsn: str) -> str | None:
    """Create the first key, of an administrator. None if there was ever a key."""
    from dagmaster.database.assets.keys import KeyChange, KeyStore
    from dagmaster.operations.keys import create_first_key

    async def created() -> str | None:
        async with KeyStore(dsn) as keys:
            key = await create_first_key(keys, KeyChange("system"))
            return key.key if key else None

    return asyncio.run(created())


def _gateway_key(dsn: str, folder: Path) -> str:
    """The key with which the gateway reports that keys were used."""
    from dagmaster.local.gateway_key import renewed_gateway_key

    return renewed_gateway_key(dsn, folder)


def ensure_catalog(dsn: str, say: Say, *, is_enabled: bool) -> None:
    """Deploy the STAC catalogue; continue without one if that fails."""
    from dagmaster.database.catalog import pgstac

    try:
        pgstac.ensure_catalog(dsn, is_enabled=is_enabled)
    except (Conflict, NotAllowed, Unavailable) as error:
        say(f"no STAC catalogue: {error}")


def _preload() -> None:
    """Import, while the server starts, the modules that are needed after its start."""
    for name in ("catalog.pgstac", "reads.jobs", "schema.deploy"):
        import_module(f"dagmaster.database.{name}")


def database_of(settings: "Settings") -> "tuple[str, Cluster | None]":
    """The configured server, or a private one."""
    from dagmaster.local.embedded import Cluster

    if dsn := settings.dsn():
        return dsn, None
    cluster = Cluster.at(settings.data_folder)
    return cluster.dsn, cluster


@contextmanager
def stopping_on_signals(local: LocalPlatform) -> Iterator[None]:
    """The first signal ends the block; while everything is stopping, the next one kills the remaining processes."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        local.interrupt()

    before = {signum: signal.signal(signum, stop) for signum in STOP_SIGNALS}
    try:
        yield
    except KeyboardInterrupt:
        if not local.is_interrupted:
            raise
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def processes_for(settings: "Settings") -> dict[str, str]:
    """WORKER_PROCESSES for a platform that runs one job: one per processor, from 2 to 8, unless it is configured."""
    if "worker_processes" in settings.model_fields_set:
        return {}
    return {"WORKER_PROCESSES": str(max(2, min(8, len(os.sched_getaffinity(0)))))}
