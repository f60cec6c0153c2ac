"""A worker without database access as a process: it reaches the platform over HTTP. It imports no database driver."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dagmaster import __version__
from dagmaster.client.models.worker import StartedWorker
from dagmaster.handlers.registry import Registry, installed
from dagmaster.observe import log
from dagmaster.roles.lifecycle import (
    Role,
    arm_crash_point,
    closing,
    end_leftover_tasks,
    probed,
    run_until_stopped,
    traced,
)
from dagmaster.settings import Settings
from dagmaster.worker.health import WorkerHealth
from dagmaster.worker.http.ledger import HttpLedger, HttpPayloads
from dagmaster.worker.http.requests import WorkerRequests
from dagmaster.worker.http.start import connect, limited_settings, start
from dagmaster.worker.http.transport import HttpNotifier, HttpTransport
from dagmaster.worker.loop import Worker
from dagmaster.worker.process import worker_process

NAME = "worker"
# Seconds between reports of progress. Each is a request, and the requests of all workers reach one server.
PROGRESS_SECONDS = 2.0


async def run_remote_worker(settings: Settings) -> None:
    """Run a worker without database access until it is stopped."""
    log.get(NAME).info("starting", pid=os.getpid(), version=__version__, platform=settings.dag_callback_url)
    arm_crash_point(settings)
    with traced(settings, NAME):
        async with remote_worker_role(settings) as role:
            await run_until_stopped(role)
    await end_leftover_tasks(NAME)


@asynccontextmanager
async def remote_worker_role(settings: Settings) -> AsyncIterator[Role]:
    connection = connect(settings)
    async with closing(connection.close):
        started = await start(connection)
        settings = limited_settings(settings, started)
        worker = wired(settings, started, WorkerRequests(connection), installed())
        stuck_after_seconds = settings.lease_renew_sec
        with (
            worker_process(settings, worker, lambda: HttpLedger(WorkerRequests(connect(settings)))),
            probed(settings, WorkerHealth(worker, settings, "platform"), stuck_after_seconds) as probes,
        ):
            worker.health_url = probes.url if probes else None
            log.get(NAME).info(
                "the platform accepts this worker",
                caller=started.caller,
                platform_version=started.software_version,
                queues=settings.worker_queue,
            )
            yield worker


def wired(settings: Settings, started: StartedWorker, requests: WorkerRequests, registry: Registry) -> Worker:
    worker_id, lease_seconds = started.worker_id, settings.task_lease_sec
    transport = HttpTransport(requests, worker_id)
    ledger = HttpLedger(requests, transport.note_exchange)
    return Worker(
        settings,
        ledger,
        transport,
        HttpNotifier(requests, worker_id),
        without_database(registry),
        payloads_of=lambda task: HttpPayloads(requests, worker_id, task.task_id, lease_seconds),
        worker_id=worker_id,
        progress_seconds=PROGRESS_SECONDS,
    )


def without_database(registry: Registry) -> Registry:
    """The handlers that need no database. Tasks of other handlers are left to workers with a database."""
    return Registry((each for each in registry.values() if not each.needs_database), refused=registry.refused)
