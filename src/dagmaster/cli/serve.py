"""The roles: an orchestrator or a worker, wired together and run until told to stop.

The first SIGTERM or SIGINT lets it finish cleanly. A second one lets a worker wait no longer for its handlers: it gives their
tasks back; and ends an orchestrator at once, as a third one does a worker. That is as safe as a crash.

`up` starts them before their database, and holds them (`--hold`) as soon as they have loaded everything, until that is there.
"""

import asyncio
import gc
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import click

from dagmaster.cli.command import Command, State, pass_state

if TYPE_CHECKING:
    from dagmaster.api.server import ApiServer
    from dagmaster.handlers.registry import Registry
    from dagmaster.observe.probes import Probes, Subject
    from dagmaster.operations.library import WorkflowLibrary
    from dagmaster.orchestrator.loop import Orchestrator
    from dagmaster.settings import Settings

DATABASE_PATIENCE_SECONDS = 60.0
_LOOK_SECONDS = 0.2
# Ends when the role may begin; None where it may at once.
Held = Callable[[], Awaitable[None]] | None


class _Role(Protocol):
    async def run(self) -> None: ...

    def stop(self) -> None: ...


@click.command(cls=Command)
@click.option("--host", help="Where its API listens (or API_HOST); loopback, unless API_INSECURE")
@click.option("--port", type=click.IntRange(0, 65535), help="Port of its API (or API_PORT); 0 takes a free one")
@click.option("--no-api", is_flag=True, help="Serve no API (or API_ENABLED=false)")
@click.option("--fd", type=int, hidden=True)
@click.option("--hold", type=int, hidden=True)
@pass_state
def orchestrator(
    state: State, /, *, host: str | None, port: int | None, no_api: bool, fd: int | None, hold: int | None
) -> None:
    """Run one orchestrator: it decides what jobs do next. Its process serves the API too."""
    given = {"api_host": host, "api_port": port, "api_enabled": False if no_api else None}
    settings = settings_of_role(state)
    settings = settings.model_copy(update={name: value for name, value in given.items() if value is not None})
    asyncio.run(_serve(settings, state.dsn, "orchestrator", partial(_orchestrator, fd=fd), hold))


@click.command(cls=Command)
@click.option("--queues", metavar="A,B", help="Queues to serve (or WORKER_QUEUE)")
@click.option("--slots", type=click.IntRange(min=1), help="Async handlers run at once (or WORKER_SLOTS)")
@click.option("--processes", type=click.IntRange(min=1), help="Plain handlers run at once (or WORKER_PROCESSES)")
@click.option("--hold", type=int, hidden=True)
@pass_state
def worker(state: State, queues: str | None, slots: int | None, processes: int | None, hold: int | None) -> None:
    """Run one worker: it executes the handlers of tasks."""
    names = tuple(part.strip() for part in (queues or "").split(",") if part.strip())
    given = {"worker_queue": names or None, "worker_slots": slots, "worker_processes": processes}
    settings = settings_of_role(state)
    settings = settings.model_copy(update={name: value for name, value in given.items() if value is not None})
    asyncio.run(_serve(settings, state.dsn, "worker", _worker, hold))


def settings_of_role(state: State) -> "Settings":
    from dagmaster.observe import log

    _ = state.dsn  # before: looking for the database sets logging up as commands want it
    log.configure("debug" if state.verbose else state.settings.log_level, state.settings.log_format)
    return state.settings


async def _serve(settings: "Settings", dsn: str, name: str, wire: Callable[..., Any], hold: int | None) -> None:
    from dagmaster import __version__, faults
    from dagmaster.observe import log

    facts: dict[str, Any] = {"pid": os.getpid(), "version": __version__, "database": dsn}
    log.get(name).info("starting", **facts)
    if hold is None:
        await _require_schema(dsn, name)
    _arm(faults.arm, settings.crash_point)
    async with wire(settings, dsn, None if hold is None else partial(_released, hold, dsn, name)) as role:
        stop_on_signals(role)
        gc.freeze()  # what was loaded until here stays: looking through it again and again would hold the loop up
        await role.run()


def _arm(arm: Callable[[str | None], None], crash_point: str | None) -> None:
    from dagmaster.errors import InvalidRequest

    try:
        arm(crash_point)
    except ValueError as error:
        raise InvalidRequest(f"CRASH_POINT: {error}", code="settings.invalid") from None


def stop_on_signals(role: _Role) -> None:
    loop = asyncio.get_running_loop()
    hurry: Callable[[], None] | None = getattr(role, "hurry", None)
    steps = [role.stop, hurry] if hurry else [role.stop]

    def stop(which: signal.Signals) -> None:
        if not steps:
            os._exit(128 + which)
        steps.pop(0)()

    for which in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(which, stop, which)


async def _released(hold: int, dsn: str, name: str) -> None:
    from dagmaster.errors import Unavailable

    with os.fdopen(hold, "rb") as gate:  # nothing runs yet that this would hold up
        if not gate.read(1):
            raise Unavailable("whoever started this has ended", code="platform.gone")
    await _require_schema(dsn, name)


async def _require_schema(dsn: str, name: str) -> None:
    """Wait a while for a database that is not there yet; refuse one without our schema."""
    from dagmaster.database.reads.jobs import Reads
    from dagmaster.errors import Unavailable
    from dagmaster.observe import log

    loop = asyncio.get_running_loop()
    deadline, has_said = loop.time() + DATABASE_PATIENCE_SECONDS, False
    async with Reads(dsn, name) as reads:
        while True:
            try:
                return await reads.require_schema()
            except Unavailable as error:
                if error.code != "database.unavailable" or loop.time() > deadline:
                    raise
                if not has_said:
                    log.get(name).warning("waiting for the database", error=error.message)
                    has_said = True
            await asyncio.sleep(_LOOK_SECONDS)


@asynccontextmanager
async def _orchestrator(settings: "Settings", dsn: str, held: Held, fd: int | None = None) -> AsyncIterator[_Role]:
    from random import Random

    from dagmaster import __version__
    from dagmaster.database.ledger.postgres import PostgresLedger
    from dagmaster.database.maintenance.janitor import PostgresJanitor
    from dagmaster.database.maintenance.retention import PostgresRetention
    from dagmaster.database.notify.notifier import JOBS, RESULTS
    from dagmaster.database.notify.postgres import PostgresNotifier
    from dagmaster.handlers.registry import installed
    from dagmaster.jobs.plan import Planner
    from dagmaster.orchestrator.health import OrchestratorHealth
    from dagmaster.orchestrator.janitor import Janitor
    from dagmaster.orchestrator.loop import Orchestrator
    from dagmaster.orchestrator.routing import RegistryRouter
    from dagmaster.orchestrator.tidy import tidy_of
    from dagmaster.transports.postgres import PostgresTransport

    # Before anything else: a port that is taken shall be told before this instance claims jobs. `up` hands over one that it has.
    bound = socket.socket(fileno=fd) if fd is not None else _bound(settings)
    registry = installed()
    catalog = _catalog(settings, registry)
    router = RegistryRouter(registry, settings.known_queues, settings.default_queue)
    planner = Planner(
        router,
        Random(),  # noqa: S311
        max_losses=settings.max_losses,
        max_fan_out=settings.max_fan_out,
        max_params_bytes=settings.max_params_bytes,
        clock=time.monotonic,
    )
    notifier = PostgresNotifier(dsn, [JOBS, RESULTS])
    ledger, beats = PostgresLedger(dsn, "orchestrator"), PostgresLedger(dsn, "beat")
    tidy = tidy_of(settings, dsn)
    janitor = Janitor(settings, PostgresJanitor(dsn), PostgresRetention(dsn), notifier, tidy=tidy)
    async with _closing(ledger.close, beats.close, janitor.close, notifier.close):
        role = Orchestrator(
            settings, ledger, beats, notifier, PostgresTransport(notifier), planner, catalog,
            host=socket.gethostname(), pid=os.getpid(), software_version=__version__, janitor=janitor,
        )  # fmt: skip
        make_server: Callable[[], ApiServer] | None
        make_server = partial(_api, settings, dsn, role, registry, bound) if bound else None
        if held:
            if make_server:
                server = make_server()
                make_server = lambda: server  # noqa: E731
            await held()
        notifier.start()
        if make_server:
            yield _WithApi(role, make_server)
            return
        with _probed(settings, OrchestratorHealth(role), role.patience_seconds):
            yield role


def _bound(settings: "Settings") -> "socket.socket | None":
    from dagmaster.listen import bind

    if not settings.api_enabled:
        return None
    return bind(settings.api_host, settings.api_port, is_insecure=settings.api_insecure)


def _api(
    settings: "Settings", dsn: str, role: "Orchestrator", registry: "Registry", bound: socket.socket
) -> "ApiServer":
    from dagmaster.api.app import create_app
    from dagmaster.api.server import ApiServer

    app = create_app(settings, dsn, role.catalog, registry, orchestrator=role)
    return ApiServer(app, bound)


@contextmanager
def _probed(settings: "Settings", subject: "Subject", patience_seconds: float) -> "Iterator[Probes | None]":
    """Answer probes meanwhile. Several of a machine don't fight for the port: who comes second takes a free one."""
    from dagmaster.listen import HEALTH, bind_somewhere
    from dagmaster.observe.probes import Probes

    if not settings.health_enabled:
        yield None
        return
    bound = bind_somewhere(
        settings.health_host, settings.health_port, is_insecure=settings.health_insecure, entrance=HEALTH
    )
    with Probes(bound, subject, patience_seconds=patience_seconds, is_open_to_all=settings.health_insecure) as probes:
        yield probes


class _WithApi:
    """An orchestrator and the API in one process: stopped together. Jobs go on even where the API has ended."""

    def __init__(self, role: _Role, make_server: "Callable[[], ApiServer]") -> None:
        self._role = role
        self._make_server = make_server
        self._has_ended = False
        self._server: ApiServer | None = None

    async def run(self) -> None:
        serving = asyncio.create_task(self._serve_api(), name="api")
        try:
            await self._role.run()
        finally:
            self._has_ended = True
            if self._server is not None:
                await self._server.stop()
            await asyncio.wait([serving])

    def stop(self) -> None:
        self._role.stop()

    async def _serve_api(self) -> None:
        from dagmaster.observe import log

        try:
            # In a thread, since it takes a while: jobs need not wait for it, and who connects before is served then.
            server = await asyncio.to_thread(self._make_server)
            if not self._has_ended:
                self._server = server
                await server.run()
        except (Exception, SystemExit) as error:  # uvicorn exits; jobs go on
            log.get("orchestrator").error("the API has ended; jobs go on without it", exc_info=error)


def _catalog(settings: "Settings", registry: "Registry") -> "WorkflowLibrary":
    """The workflows; a file that is refused is told of and does not stand in the way."""
    from dagmaster.observe import log
    from dagmaster.operations.library import load_library

    catalog = load_library(settings, registry, settings.known_queues)
    logger = log.get("orchestrator")
    for refused in catalog.refused:
        for problem in refused.problems:
            logger.warning("a workflow file is refused", problem=problem.at(refused.file))
    logger.info("workflows loaded", count=len(catalog.workflows), refused=len(catalog.refused))
    return catalog


@asynccontextmanager
async def _worker(settings: "Settings", dsn: str, held: Held) -> AsyncIterator[_Role]:
    from uuid import uuid4

    from dagmaster.database.connect import pool
    from dagmaster.database.ledger.postgres import PostgresLedger
    from dagmaster.database.notify.postgres import PostgresNotifier
    from dagmaster.handlers.registry import installed
    from dagmaster.transports.postgres import PostgresTransport, topics_of
    from dagmaster.worker.health import WorkerHealth
    from dagmaster.worker.loop import Worker
    from dagmaster.worker.process import worker_process

    if held:
        await held()
    queues, worker_id = settings.worker_queue, uuid4()
    notifier = PostgresNotifier(dsn, topics_of(queues, str(worker_id)))
    ledger, leases, handlers = (PostgresLedger(dsn, role) for role in ("worker", "lease", "handler"))
    database = pool(dsn, "handlers", 0, max(4, settings.worker_processes))
    async with _closing(ledger.close, leases.close, handlers.close, notifier.close, database.close):
        notifier.start()
        await database.open()
        worker = Worker(
            settings, ledger, PostgresTransport(notifier, queues, str(worker_id)), notifier, installed(),
            lease_ledger=leases, handler_ledger=handlers, database=database, worker_id=worker_id,
        )  # fmt: skip
        # A loop that stands still for longer than this misses renewals.
        patience_seconds = settings.lease_renew_sec
        with (
            worker_process(settings, worker, lambda: PostgresLedger(dsn, "rescue")),
            _probed(settings, WorkerHealth(worker, settings), patience_seconds) as told,
        ):
            worker.health_url = told.url if told else None
            yield worker


@asynccontextmanager
async def _closing(*closers: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Close each, the last one first, whatever happens to the others."""
    async with AsyncExitStack() as stack:
        for close in closers:
            stack.push_async_callback(close)
        yield
