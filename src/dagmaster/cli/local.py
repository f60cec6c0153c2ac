"""A whole platform on one machine: a database, orchestrators and workers, from start to stop.

Used by `up`, `process` and `demo`. Everything it starts dies with it, also when it is killed; what is in the database stays, and
the next start goes on from there.
"""

import asyncio
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from dagmaster.cli import platform
from dagmaster.cli.children import Child, Say, stop_all
from dagmaster.errors import Conflict, NotAllowed, Unavailable
from dagmaster.listen import API, HEALTH, SERVING, Entrance, bind, bind_somewhere

if TYPE_CHECKING:
    from dagmaster.database.schema.deploy import Found
    from dagmaster.local.embedded import Cluster
    from dagmaster.settings import Settings

READY_PATIENCE_SECONDS = 60.0
# What a worker may take beyond its handlers' grace: to stop the deaf and to hand in the last reports.
_LEAVING_SECONDS = 18.0
_DATABASE_CHECK_SECONDS = 1.0

# On one machine a crash is noticed within seconds. A group is left alone where one of its settings was chosen.
_FAST_PROFILE: tuple[dict[str, float], ...] = (
    {"heartbeat_interval_sec": 1, "orphan_threshold_sec": 4, "orphan_scan_interval_sec": 1},
    {"task_lease_sec": 6, "lease_renew_sec": 1.5},
    # Someone waits for this stop; what is given back goes on at the next start.
    {"shutdown_grace_sec": 5},
)


def fast_profile(settings: "Settings") -> dict[str, float]:
    chosen = settings.model_fields_set
    return {name: value for group in _FAST_PROFILE if not chosen & group.keys() for name, value in group.items()}


@dataclass(slots=True)
class LocalPlatform:
    """`cluster` is the private PostgreSQL, None where a server is configured. `overrides` are settings of the children."""

    settings: "Settings"
    folder: Path
    dsn: str
    say: Say
    cluster: "Cluster | None" = None
    orchestrators: int = 1
    workers: int = 1
    log_level: str = "warning"
    on_stopping: Callable[[], None] = lambda: None
    overrides: Mapping[str, str] = field(default_factory=dict)
    children: list[Child] = field(default_factory=list)
    api_url: str | None = None
    maps_url: str | None = None
    ready_seconds: float = 0.0
    _is_hurried: bool = False
    _database_checked_at: float = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Ready inside the block; afterwards nothing of it runs."""
        begun = time.monotonic()
        # Ports before anything is made: whoever made a mistake shall find nothing left behind.
        with (
            platform.hold(self.folder), self._maps_socket() or nullcontext() as maps,
            self._api_socket() or nullcontext() as api,
        ):  # fmt: skip
            try:
                self._start_children(api, maps)
                self._start_database()
                self._start_maps(maps)
                asyncio.run(self._wait_until_ready())
                self._publish()
                self.ready_seconds = time.monotonic() - begun
                yield
            except KeyboardInterrupt:
                self.on_stopping()
                raise
            finally:
                self._stop()

    def tend(self) -> None:
        """To be called now and then: start again what ended by itself."""
        self._tend_database()
        for child in self.children:
            child.tend(self.say)

    def hurry(self) -> None:
        """Someone does not want to wait: kill instead of asking."""
        self._is_hurried = True

    def _start_database(self) -> None:
        """Release each role as soon as there is what it needs: orchestrators take jobs in while workers get the catalogue."""
        from dagmaster.database.schema.deploy import Found

        if self.cluster:
            self.cluster.launch(meanwhile=_load)
        found = ensure_schema(self.dsn, self.say)
        self._release("orchestrator")
        if self.cluster:
            self.cluster.add_postgis()
        ensure_catalog(self.dsn, self.say, is_wanted=self.settings.catalog_enabled)
        self._release("worker")
        if found is Found.CURRENT:
            mend_schema(self.dsn, self.say)

    def _release(self, role: str) -> None:
        for child in self.children:
            if child.role == role:
                child.release()

    def _tend_database(self) -> None:
        if self.cluster is None or time.monotonic() - self._database_checked_at < _DATABASE_CHECK_SECONDS:
            return
        self._database_checked_at = time.monotonic()
        if not self.cluster.is_running():
            self.say("PostgreSQL has ended; it starts again")
            self.cluster.start()

    def _start_children(self, api: socket.socket | None, maps: socket.socket | None) -> None:
        if maps:
            self.maps_url = _url(self.settings.serving_host, maps.getsockname()[1])
        environment = self._environment()
        # The map server links to the address that it is asked by, and what is catalogued names files by this one.
        if self.maps_url and not self.settings.public_url:
            environment = {**environment, "PUBLIC_URL": self.maps_url}
        roles = [("orchestrator", n) for n in range(self.orchestrators)] + [("worker", n) for n in range(self.workers)]
        # One of them serves the API.
        environment = {**environment, "API_ENABLED": "false", "API_HOST": self.settings.api_host}
        self.children = [
            Child(role, number + 1, environment, api if (role, number) == ("orchestrator", 0) else None, is_held=True)
            for role, number in roles
        ]
        if api:
            self.api_url = _url(self.settings.api_host, api.getsockname()[1])
        for child in self.children:
            child.start()

    def _start_maps(self, maps: socket.socket | None) -> None:
        """After the others: it has most to load, and who asks for a map before then is answered once it has."""
        if maps:
            self.children.append(Child("serving", 1, self._environment(), maps))
            self.children[-1].start()

    def _api_socket(self) -> socket.socket | None:
        """On the port that was chosen; else on the usual one, or another that is free where someone has it already."""
        settings = self.settings
        if settings.health_enabled:
            bind(settings.health_host, 0, is_insecure=settings.health_insecure, entrance=HEALTH).close()
        if not settings.api_enabled:
            return None
        return self._taken(API, settings.api_host, settings.api_port, settings.api_insecure)

    def _maps_socket(self) -> socket.socket | None:
        """Kept, as the API's is, and handed to the map server: until that has started, someone else would take a port that is only
        looked at, and everything goes on without maps too, with links to theirs."""
        from dagmaster.cli.serving import is_installed

        settings = self.settings
        if not settings.serving_enabled or not is_installed():
            return None
        return self._taken(SERVING, settings.serving_host, settings.serving_port, settings.serving_insecure)

    def _taken(self, entrance: Entrance, host: str, port: int, is_insecure: bool) -> socket.socket:
        name = f"{entrance.name}_port"
        take = bind if name in self.settings.model_fields_set else bind_somewhere
        try:
            return take(host, port, is_insecure=is_insecure, entrance=entrance)
        except Conflict as error:
            hint = f"choose another one with {name.upper()}=… (0 takes any that is free)"
            raise Unavailable(error.message, code=error.code, hint=hint, **error.facts) from None

    def _environment(self) -> Mapping[str, str]:
        """Ours, handed on as it is, with what this machine decides."""
        decided = {"DATABASE_URL": self.dsn, "LOG_LEVEL": self.log_level, "DAGMASTER_DATA": str(self.folder)}
        decided |= {name.upper(): str(value) for name, value in fast_profile(self.settings).items()}
        return {**os.environ, **decided, **self.overrides}

    async def _wait_until_ready(self) -> None:
        """Until one orchestrator and one worker of ours have shown themselves."""
        from dagmaster.database.reads.jobs import Reads

        deadline = time.monotonic() + READY_PATIENCE_SECONDS
        async with Reads(self.dsn) as reads:
            while not self._has_both({(seen.role, seen.pid) for seen in await reads.live_instances()}):
                self._refuse_hopeless(deadline)
                self.tend()
                await asyncio.sleep(0.05)

    def _has_both(self, alive: set[tuple[str, int]]) -> bool:
        shown = {child.role for child in self.children if child.is_running and (child.role, child.pid) in alive}
        return shown == {"orchestrator", "worker"}

    def _refuse_hopeless(self, deadline: float) -> None:
        hint = "see the messages above; -v says more"
        for child in self.children:
            if child.failures >= 3 or child.is_given_up:
                raise Unavailable(f"{child.name} does not start", code="platform.broken", hint=hint)
        if time.monotonic() > deadline:
            what = f"the platform was not ready within {READY_PATIENCE_SECONDS:.0f} s"
            raise Unavailable(what, code="platform.slow", hint=hint)

    def _publish(self) -> None:
        started_at = datetime.now(UTC).isoformat(timespec="seconds")
        storage = platform.storage_of(self.settings)
        here = platform.Platform(self.dsn, os.getpid(), started_at, self.api_url, self.maps_url, storage)
        platform.publish(self.folder, here)

    def _stop(self) -> None:
        with suppress(OSError):
            platform.withdraw(self.folder)
        for child in self.children:
            if child.listening:
                child.listening.close()  # nobody waits for an answer of one that has stopped
        grace = fast_profile(self.settings).get("shutdown_grace_sec", self.settings.shutdown_grace_sec)
        for child in stop_all(self.children, grace + _LEAVING_SECONDS, lambda: self._is_hurried):
            self.say(f"{child.name} (process {child.pid}) had to be killed; its tasks are run again")
        if self.cluster:
            self.cluster.stop()


def _url(host: str, port: int) -> str:
    """Where commands on this machine reach the API: what listens everywhere is asked here."""
    here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  a name, not a choice
    return f"http://[{here}]:{port}" if ":" in here else f"http://{here}:{port}"


def ensure_schema(dsn: str, say: Say) -> "Found":
    """Create or extend the schema; what only a person may decide is told. Answers what was there."""
    from dagmaster.database.schema import deploy

    found = deploy.deploy(dsn)
    if found is deploy.Found.OTHER:
        mend_schema(dsn, say)
    return found


def mend_schema(dsn: str, say: Say) -> None:
    """Add what the schema lacks, also what someone took away; beside those who use it."""
    from dagmaster.database.schema import deploy

    if deploy.pending(dsn):
        for change in deploy.migrate(dsn):
            say(f"schema: {change}")


def ensure_catalog(dsn: str, say: Say, *, is_wanted: bool) -> None:
    """Deploy the STAC catalogue; one that can't be is done without."""
    from dagmaster.database.catalog import pgstac

    try:
        pgstac.ensure_catalog(dsn, is_enabled=is_wanted)
    except (Conflict, NotAllowed, Unavailable) as error:
        say(f"no STAC catalogue: {error}")


def _load() -> None:
    """What is needed as soon as there is a server."""
    from importlib import import_module

    for name in ("catalog", "deploy", "reads"):
        import_module(f"dagmaster.database.{name}")


def database_of(settings: "Settings", name: str = "default") -> "tuple[str, Cluster | None]":
    """The configured server, or a private one."""
    from dagmaster.local.embedded import Cluster

    if dsn := settings.dsn():
        return dsn, None
    cluster = Cluster.at(settings.data_folder, name)
    return cluster.dsn, cluster
