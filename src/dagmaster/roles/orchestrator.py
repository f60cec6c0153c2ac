"""The orchestrator as a process: it decides what jobs do next, and serves the API unless that is disabled."""

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache, partial
from random import Random
from typing import TYPE_CHECKING

from dagmaster import __version__
from dagmaster.database.assets.external_copies import PostgresExternalCopies
from dagmaster.database.caches import PostgresCaches
from dagmaster.database.callbacks.store import PostgresCallbacks
from dagmaster.database.ledger.postgres import PostgresLedger
from dagmaster.database.maintenance.janitor import PostgresJanitor
from dagmaster.database.maintenance.retention import PostgresRetention
from dagmaster.database.notify.notifier import CALLBACKS, JOBS, RESULTS, WORKFLOWS
from dagmaster.database.notify.postgres import PostgresNotifier
from dagmaster.handlers.registry import Registry, installed
from dagmaster.jobs.plan import Planner
from dagmaster.jobs.rendering import AT_ONCE_SECONDS, RenderLimits
from dagmaster.library.workflows import WorkflowLibrary, load_library
from dagmaster.listen import API, bind, bind_or_any, url_of
from dagmaster.observe import log
from dagmaster.orchestrator.asset_upkeep import upkeep_of
from dagmaster.orchestrator.callbacks import CallbackSender
from dagmaster.orchestrator.external_copies import ExternalCopyChore
from dagmaster.orchestrator.health import OrchestratorHealth
from dagmaster.orchestrator.janitor import Janitor
from dagmaster.orchestrator.loop import Orchestrator
from dagmaster.orchestrator.reload import WorkflowReload
from dagmaster.orchestrator.routing import RegistryRouter
from dagmaster.orchestrator.tidy import tidy_of
from dagmaster.roles.lifecycle import Gate, Role, closing, log_authentication, probed
from dagmaster.roles.transports import orchestrator_transport
from dagmaster.settings import Settings

if TYPE_CHECKING:
    from dagmaster.api.server import ApiServer


@asynccontextmanager
async def orchestrator_role(settings: Settings, dsn: str, gate: Gate, fd: int | None = None) -> AsyncIterator[Role]:
    """`fd` is the socket that `dagmaster up` has bound for the API."""
    # First of all: a port in use is reported before this instance claims jobs.
    bound = socket.socket(fileno=fd) if fd is not None else _api_socket(settings)
    if bound:
        log_authentication(settings, API)
    registry = installed()
    notifier = PostgresNotifier(dsn, [JOBS, RESULTS, CALLBACKS, WORKFLOWS])
    heartbeats = PostgresLedger(dsn, "beat")
    tidy = tidy_of(settings, dsn)
    janitor = Janitor(
        settings,
        PostgresJanitor(dsn, notifier=notifier),
        PostgresRetention(dsn),
        tidy=tidy,
        upkeep=upkeep_of(settings, dsn),
    )
    callbacks = CallbackSender(settings, PostgresCallbacks(dsn))
    reload = WorkflowReload(
        PostgresCaches(dsn, "caches"), partial(_library, settings, registry), settings.heartbeat_interval_sec
    )
    library = _library(settings, registry)
    external_copies = ExternalCopyChore(settings, PostgresExternalCopies(dsn, notifier=notifier), library)
    transport = orchestrator_transport(settings, dsn, notifier)
    ledger = PostgresLedger(dsn, "orchestrator", notifier, writes_outbox=transport.relay is not None)
    closers = (janitor.close, callbacks.close, reload.close, external_copies.close, transport.close)
    async with closing(ledger.close, heartbeats.close, *closers, notifier.close):
        role = Orchestrator(
            settings,
            ledger,
            heartbeats,
            notifier,
            transport.transport,
            _planner(settings, registry),
            library,
            host=socket.gethostname(),
            pid=os.getpid(),
            software_version=__version__,
            janitor=janitor,
            callbacks=callbacks,
            reload=reload,
            external_copies=external_copies,
            relay=transport.relay,
            job_queue=transport.job_queue,
        )
        make_server = cache(partial(_api_server, settings, dsn, role, registry, bound)) if bound else None
        if gate:
            if make_server:
                make_server()  # its imports take a while; there is time for them now
            await gate()
        notifier.start()
        if make_server:
            yield _WithApi(role, make_server)
            return
        with probed(settings, OrchestratorHealth(role), role.stuck_after_seconds):
            yield role


def _planner(settings: Settings, registry: Registry) -> Planner:
    return Planner(
        RegistryRouter(registry, settings.known_queues, settings.default_queue),
        Random(),  # noqa: S311
        max_losses=settings.max_losses,
        max_fan_out=settings.max_fan_out,
        max_params_bytes=settings.max_params_bytes,
        clock=time.monotonic,
        render_limits=RenderLimits(settings.template_timeout_sec, AT_ONCE_SECONDS),
    )


def _library(settings: Settings, registry: Registry) -> WorkflowLibrary:
    """The workflows. An invalid file is logged and left out."""
    library = load_library(settings, registry, settings.known_queues)
    logger = log.get("orchestrator")
    for refused in library.refused:
        for problem in refused.problems:
            logger.warning("a workflow file is refused", problem=problem.at(refused.file))
    logger.info("workflows loaded", count=len(library.workflows), refused=len(library.refused))
    return library


def _api_socket(settings: Settings) -> socket.socket | None:
    """A socket on the chosen port; else on the default port, or on a free one if the default is in use."""
    if not settings.api_enabled:
        return None
    bind_port = bind if "api_port" in settings.model_fields_set else bind_or_any
    bound = bind_port(settings.api_host, settings.api_port, may_expose=settings.may_expose_api)
    if settings.api_port not in (0, bound.getsockname()[1]):
        log.get("orchestrator").warning(
            f"port {settings.api_port} is in use; the API listens on a free port", url=url_of(bound)
        )
    return bound


def _api_server(
    settings: Settings, dsn: str, role: Orchestrator, registry: Registry, bound: socket.socket
) -> "ApiServer":
    from dagmaster.api.app import create_app
    from dagmaster.api.server import ApiServer

    return ApiServer(
        create_app(settings, dsn, role.library, registry, orchestrator=role), bound, settings.trusted_proxies
    )


class _WithApi:
    """An orchestrator and the API in one process, stopped together. Jobs continue if the API ends."""

    def __init__(self, role: Role, make_server: "Callable[[], ApiServer]") -> None:
        self._role = role
        self._make_server = make_server
        self._has_ended = False
        self._server: ApiServer | None = None

    async def run(self) -> None:
        api_task = asyncio.create_task(self._serve_api(), name="api")
        try:
            await self._role.run()
        finally:
            self._has_ended = True
            if self._server is not None:
                await self._server.stop()
            await asyncio.wait([api_task])

    def stop(self) -> None:
        self._role.stop()

    async def _serve_api(self) -> None:
        try:
            # In a thread, because it takes a while: jobs do not wait for it, and requests queue up meanwhile.
            server = await asyncio.to_thread(self._make_server)
            if not self._has_ended:
                self._server = server
                await server.run()
        except (Exception, SystemExit) as error:  # uvicorn exits; jobs continue
            log.get("orchestrator").error("the API has ended; jobs continue without it", exc_info=error)
