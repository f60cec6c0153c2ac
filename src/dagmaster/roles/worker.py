"""The worker as a process: it runs the handlers of tasks."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

from dagmaster.database.connect import pool
from dagmaster.database.ledger.postgres import PostgresLedger
from dagmaster.database.notify.postgres import PostgresNotifier
from dagmaster.handlers.registry import installed
from dagmaster.roles.lifecycle import Gate, Role, closing, probed
from dagmaster.roles.transports import worker_topics, worker_transport
from dagmaster.settings import Settings
from dagmaster.worker.health import WorkerHealth
from dagmaster.worker.loop import Worker
from dagmaster.worker.process import worker_process


@asynccontextmanager
async def worker_role(settings: Settings, dsn: str, gate: Gate) -> AsyncIterator[Role]:
    if gate:
        await gate()
    worker_id = uuid4()
    notifier = PostgresNotifier(dsn, worker_topics(settings, worker_id))
    ledger, leases, handlers = (PostgresLedger(dsn, name, notifier) for name in ("worker", "lease", "handler"))
    database = pool(dsn, "handlers", 0, max(4, settings.worker_processes))
    chosen = worker_transport(settings, notifier, leases, worker_id)
    settings = chosen.settings
    async with closing(ledger.close, leases.close, handlers.close, notifier.close, database.close, chosen.close):
        notifier.start()
        await database.open()
        worker = Worker(
            settings,
            ledger,
            chosen.transport,
            notifier,
            installed(),
            lease_ledger=leases,
            handler_ledger=handlers,
            database=database,
            worker_id=worker_id,
        )
        # An event loop that is blocked for longer than this misses lease renewals.
        stuck_after_seconds = settings.lease_renew_sec
        with (
            worker_process(settings, worker, lambda: PostgresLedger(dsn, "rescue")),
            probed(settings, WorkerHealth(worker, settings), stuck_after_seconds) as probes,
        ):
            worker.health_url = probes.url if probes else None
            yield worker
