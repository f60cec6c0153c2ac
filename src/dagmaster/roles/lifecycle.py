"""What all roles share: how a process starts, waits for its database, responds to probes and stops.

The first SIGTERM or SIGINT stops a role cleanly. The second makes a worker give its unfinished tasks back instead of
waiting for its handlers, and ends other roles at once; the third ends a worker too. Ending at once is as safe as a
crash.

`dagmaster up` starts the roles before their database. It passes each a pipe (`--hold`): the role loads its software,
then waits until a byte arrives on that pipe.
"""

import asyncio
import gc
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Protocol

from dagmaster import __version__, faults
from dagmaster.errors import InvalidRequest, Unavailable
from dagmaster.extras import missing_extra
from dagmaster.listen import HEALTH, Endpoint, bind_or_any
from dagmaster.observe import log, traces
from dagmaster.observe.probes import ProbedProcess, Probes
from dagmaster.settings import Settings

DATABASE_RETRY_SECONDS = 60.0
_LEFTOVER_SECONDS = 0.5
_POLL_SECONDS = 0.2
# A gate returns when the role may begin; None if it may begin at once.
Gate = Callable[[], Awaitable[None]] | None


class Role(Protocol):
    async def run(self) -> None: ...

    def stop(self) -> None: ...


Wiring = Callable[[Settings, str, Gate], AbstractAsyncContextManager[Role]]


async def run_role(name: str, settings: Settings, dsn: str, wire: Wiring, hold: int | None) -> None:
    """Run a role until it is stopped. `hold` is the descriptor of the pipe that releases it."""
    with traced(settings, name):
        await _run_role(name, settings, dsn, wire, hold)


async def _run_role(name: str, settings: Settings, dsn: str, wire: Wiring, hold: int | None) -> None:
    log_start(name, dsn)
    if hold is None:  # otherwise `up` has just deployed the schema
        await _require_schema(dsn, name)
        await _compare_schema(dsn, name)
    arm_crash_point(settings)
    async with wire(settings, dsn, None if hold is None else partial(_wait_for_release, hold, dsn, name)) as role:
        await run_until_stopped(role)
    await end_leftover_tasks(name)


@contextmanager
def traced(settings: Settings, role: str) -> Iterator[None]:
    """Export the spans of a role, if a collector is configured."""
    endpoint, headers = settings.otel_exporter_otlp_endpoint, settings.otel_exporter_otlp_headers
    try:
        traces.configure(role, endpoint, headers=headers, ratio=settings.otel_traces_sampler_arg)
    except ImportError as error:
        raise missing_extra(error, "otel") or error from None
    try:
        yield
    finally:
        traces.shutdown()


async def _compare_schema(dsn: str, name: str) -> None:
    """Log a warning if the schema of the database is not that of this software."""
    from dagmaster.database.reads.installation import InstallationReads
    from dagmaster.database.schema.expected import expected_fingerprint

    try:
        async with InstallationReads(dsn, name) as reads:
            deployed = await reads.deployed_schema()
    except Exception as error:  # a diagnosis must not end the role
        log.failure(log.get(name), "the schema of the database could not be compared", error)
        return
    needed = expected_fingerprint()
    if deployed is not None and deployed["fingerprint"] == needed:
        return
    log.get(name).warning(
        "the schema of the database has another version; calls that need the missing parts fail and are retried until "
        "it is migrated",
        deployed_fingerprint=deployed and deployed["fingerprint"],
        deployed_by=deployed and deployed["software_version"],
        deployed_at=deployed and deployed["deployed_at"].isoformat(),
        needed_fingerprint=needed,
        version=__version__,
        hint="if the database is older than this software, run `dagmaster db migrate`; if it is newer, update this "
        "process. `dagmaster db status` lists the differences",
    )


async def end_leftover_tasks(name: str) -> None:
    """End the process if a task ignores its cancellation: asyncio.run would wait for it forever."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if not tasks:
        return
    _, pending = await asyncio.wait(tasks, timeout=_LEFTOVER_SECONDS)
    if pending:
        names = sorted(task.get_name() for task in pending)[:10]
        log.get(name).warning("tasks ignore their cancellation; ending the process", tasks=names)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def log_start(name: str, dsn: str) -> None:
    log.get(name).info("starting", pid=os.getpid(), version=__version__, database=dsn)


def log_authentication(settings: Settings, endpoint: Endpoint) -> None:
    """Log at the start of a server that authentication is disabled; as a warning if others may reach the server."""
    logger = log.get(endpoint.name)
    if settings.insecure_endpoints([endpoint.name]):
        logger.warning(settings.authentication_notice([endpoint.name]), hint="set AUTH_ENABLED=true")
    elif notice := settings.authentication_notice([endpoint.name]):
        logger.info(notice)


async def run_until_stopped(role: Role) -> None:
    stop_on_signals(role)
    gc.freeze()  # Loaded modules are never freed; examining them in each collection would block the event loop.
    await role.run()


def arm_crash_point(settings: Settings) -> None:
    try:
        faults.arm(settings.crash_point)
    except ValueError as error:
        raise InvalidRequest(f"CRASH_POINT: {error}", code="settings.invalid") from None


def stop_on_signals(role: Role) -> None:
    loop = asyncio.get_running_loop()
    stop_now: Callable[[], None] | None = getattr(role, "stop_now", None)
    steps = [role.stop, stop_now] if stop_now else [role.stop]

    def stop(signum: signal.Signals) -> None:
        if not steps:
            os._exit(128 + signum)
        steps.pop(0)()

    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop, signum)


async def _wait_for_release(hold: int, dsn: str, name: str) -> None:
    with os.fdopen(hold, "rb") as pipe:  # blocks the event loop, on which nothing else runs yet
        if not pipe.read(1):
            raise Unavailable("the process that started this one has ended", code="platform.gone")
    await _require_schema(dsn, name)


async def _require_schema(dsn: str, name: str) -> None:
    """Wait for a while if the database is unavailable. Raises an error if it does not have our schema."""
    from dagmaster.database.reads.installation import InstallationReads

    loop = asyncio.get_running_loop()
    deadline, is_logged = loop.time() + DATABASE_RETRY_SECONDS, False
    async with InstallationReads(dsn, name) as reads:
        while True:
            try:
                return await reads.require_schema()
            except Unavailable as error:
                if error.code != "database.unavailable" or loop.time() > deadline:
                    raise
                if not is_logged:
                    log.get(name).warning("waiting for the database", error=error.message)
                    is_logged = True
            await asyncio.sleep(_POLL_SECONDS)


@contextmanager
def probed(settings: Settings, subject: ProbedProcess, stuck_after_seconds: float) -> Iterator[Probes | None]:
    """Respond to health probes during the block. If another process of this machine has the port, take a free one."""
    if not settings.health_enabled:
        yield None
        return
    bound = bind_or_any(
        settings.health_host, settings.health_port, may_expose=settings.health_insecure, endpoint=HEALTH
    )
    with Probes(
        bound, subject, stuck_after_seconds=stuck_after_seconds, is_open_to_all=settings.health_insecure
    ) as probes:
        yield probes


@asynccontextmanager
async def closing(*closers: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Call all closers, the last one first, even if one of them fails."""
    async with AsyncExitStack() as stack:
        for close in closers:
            stack.push_async_callback(close)
        yield
