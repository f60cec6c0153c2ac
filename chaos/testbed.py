"""The system under test: a PostgreSQL with default durability, a link for each role, and orchestrators and workers as
released.

No process or file is left, however a run ends: roles and server die with this process, and the next run removes the
files of a killed one.
"""

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import psycopg
from psycopg.rows import scalar_row
from tests.engine.processes import FAST, Fleet, Process, Role
from tests.servicebus.broker import BrokerProcess

from chaos import audit
from chaos.proxy import Link, Proxy
from dagmaster.database.catalog.pgstac import deploy_catalog
from dagmaster.database.schema.deploy import deploy
from dagmaster.local.embedded import DATABASE, Cluster
from dagmaster.local.platform import fast_profile
from dagmaster.settings import DEFAULT_QUEUES, Settings

# A Fleet uses the fast settings of the tests. None unsets them, so that the defaults apply.
AS_IT_SHIPS: dict[str, Any] = dict.fromkeys(FAST)
FAST_PROFILE: dict[str, Any] = AS_IT_SHIPS | fast_profile(Settings.model_construct())
_COMMON = {"log_level": "info", "health_port": 0, "api_enabled": "false"}
SUBMITTER = "submitter"
# Shares of the messages that the broker loses, duplicates, delays and reorders, and of the batches that it refuses.
_BROKER_FAULTS = ("--drop", "0.05", "--duplicate", "0.1", "--delay", "0.1", "--reorder", "0.1", "--busy", "0.05")


class ProxiedFleet(Fleet):
    """The roles, each with a link of its own; queries of the test go to the server itself."""

    def __init__(self, dsn: str, folder: Path, settings: dict[str, Any], proxy: Proxy) -> None:
        super().__init__(dsn, folder, {**_COMMON, "storage_folder": folder / "storage", **settings})
        self.proxy = proxy

    def _publish_handlers(self) -> None:
        info = self.folder / "path" / "dagmaster_chaos_handlers-1.0.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dagmaster-chaos-handlers\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[dagmaster.handlers]\nchaos = chaos.effects\n")

    def process(self, role: str, *command: str) -> Process:
        process = super().process(role, *command)
        process.environment["DATABASE_URL"] = self.proxy.open(process.name).dsn(DATABASE)
        return process

    def link(self, process: Process) -> Link:
        return self.proxy.links[process.name]

    def of(self, role: Role) -> list[Process]:
        return [process for process in self.processes if process.role == role]

    def count_logged(self, words: str) -> int:
        """How often the roles have logged these words, over all their starts."""
        return sum(process.log.read_text(errors="replace").count(words) for process in self.processes)


class Testbed:
    def __init__(
        self,
        folder: Path,
        settings: dict[str, Any],
        *,
        has_catalog: bool,
        has_audit: bool,
        broker: BrokerProcess | None = None,
    ) -> None:
        self.folder = folder
        self.broker = broker
        if broker is not None:
            settings = {
                **settings,
                "transport": "servicebus",
                "service_bus_connection_string": broker.connection_string,
            }
        self.cluster = Cluster.at(None if os.geteuid() == 0 else folder, name=f"chaos-{os.getpid()}")
        self.cluster.requires_passwords = False  # processes connect through proxies, which have no passwords
        self.proxy = Proxy(self.cluster.socket_folder)
        self.fleet = ProxiedFleet(self.cluster.dsn, folder, settings, self.proxy)
        self._has_catalog = has_catalog
        self._has_audit = has_audit

    def start(self) -> None:
        if self.broker is not None:
            self.broker.start()
        self.cluster.start()
        deploy(self.cluster.dsn)
        if self._has_catalog:
            deploy_catalog(self.cluster.dsn)
        if self._has_audit:
            audit.install(self.cluster.dsn)
        self.proxy.start()
        self.proxy.open(SUBMITTER)

    async def start_roles(self, orchestrators: int, workers: int) -> None:
        for role, count in (("orchestrator", orchestrators), ("worker", workers)):
            for _ in range(count):
                self.fleet.process(role).start()
        await self.fleet.ready(self.fleet.processes, 60)

    @property
    def submitter(self) -> str:
        """The DSN through which jobs are submitted; it leads through a link as well."""
        return self.proxy.links[SUBMITTER].dsn(DATABASE)

    def kill_server(self) -> None:
        """Kill the server with SIGKILL; its child processes end with it."""
        if pid := self.cluster.server_pid():
            os.kill(pid, signal.SIGKILL)

    def remove(self) -> dict[int, str]:
        """End everything. Returns processes that were still alive after their parents."""
        left = self.fleet.end()
        if self.broker is not None:
            self.broker.kill()
        if self.proxy.links:
            self.proxy.stop()
        self.cluster.remove()
        shutil.rmtree(self.folder, ignore_errors=True)
        return left


@asynccontextmanager
async def running_testbed(
    settings: dict[str, Any],
    *,
    orchestrators: int,
    workers: int,
    has_catalog: bool = False,
    has_audit: bool = True,
    has_broker: bool = False,
) -> AsyncIterator[Testbed]:
    remove_leftovers()
    folder = Path(tempfile.mkdtemp(prefix=f"dagmaster-chaos-{os.getpid()}-"))
    queues = (*DEFAULT_QUEUES, "dag-jobs")
    broker = BrokerProcess(queues, "--lock-seconds", "5", *_BROKER_FAULTS) if has_broker else None
    testbed = Testbed(folder, settings, has_catalog=has_catalog, has_audit=has_audit, broker=broker)
    try:
        testbed.start()
        await testbed.start_roles(orchestrators, workers)
        yield testbed
    finally:
        testbed.remove()


def remove_leftovers() -> None:
    """A run that was ended by SIGKILL leaves files, but no processes."""
    places = (
        ("/var/lib/dagmaster", "chaos-*"),
        ("/run", "dagmaster-chaos-*"),
        (tempfile.gettempdir(), "dagmaster-chaos-*"),
    )
    for folder in (match for place, pattern in places for match in Path(place).glob(pattern)):
        pid = folder.name.partition("chaos-")[2].partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(folder, ignore_errors=True)


async def scalar(dsn: str, query: str, *values: Any) -> Any:
    """The value of a query for one value; None if it has no row."""
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        cursor = connection.cursor(row_factory=scalar_row)
        return await (await cursor.execute(cast("Any", query), values)).fetchone()


async def cancel_all(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
