"""Which transport a role uses, by the setting TRANSPORT."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from uuid import UUID

from dagmaster.database.ledger.outbox import PostgresOutbox
from dagmaster.database.ledger.postgres import PostgresLedger
from dagmaster.database.notify.notifier import Notifier
from dagmaster.orchestrator.job_queue import JobQueue
from dagmaster.orchestrator.relay import Relay
from dagmaster.settings import Settings
from dagmaster.transports.postgres import PostgresTransport, topics_of
from dagmaster.transports.servicebus import OutboxTransport, ServiceBusTransport
from dagmaster.transports.servicebus_client import ServiceBus
from dagmaster.transports.transport import Transport

POLL_SECONDS = 10.0  # of workers with a message broker, unless WORKER_POLL_INTERVAL is set: messages are rarely lost


@dataclass(frozen=True, slots=True)
class OrchestratorTransport:
    transport: Transport
    relay: Relay | None = None
    job_queue: JobQueue | None = None
    closers: Sequence[Callable[[], Awaitable[None]]] = ()

    async def close(self) -> None:
        async with AsyncExitStack() as stack:
            for close in self.closers:
                stack.push_async_callback(close)


def orchestrator_transport(settings: Settings, dsn: str, notifier: Notifier) -> OrchestratorTransport:
    if settings.transport == "postgres":
        return OrchestratorTransport(PostgresTransport(notifier))
    service_bus = ServiceBus(settings)
    outbox = PostgresOutbox(dsn, "relay", notifier)
    relay = Relay(outbox, service_bus, settings.orchestrator_poll_interval)
    submissions = PostgresLedger(dsn, "job-queue", notifier)
    job_queue = JobQueue(
        service_bus.receiver(settings.job_queue_name), submissions, submitter=settings.service_bus_submitter
    )
    closers = (service_bus.close, outbox.close, submissions.close)
    return OrchestratorTransport(OutboxTransport(notifier, relay.wake), relay, job_queue, closers)


@dataclass(frozen=True, slots=True)
class WorkerTransport:
    """`settings` are those of the worker, with the interval between polls that suits the transport."""

    transport: Transport
    settings: Settings
    close: Callable[[], Awaitable[None]]


def worker_topics(settings: Settings, worker_id: UUID) -> Sequence[str]:
    """The topics that the worker listens to in PostgreSQL."""
    if settings.transport == "servicebus":
        return ()
    return tuple(topics_of(settings.worker_queue, str(worker_id)))


def worker_transport(
    settings: Settings, notifier: Notifier, ledger: PostgresLedger, worker_id: UUID
) -> WorkerTransport:
    """The transport reads from `ledger` which tasks are queued; these calls must be short."""
    if settings.transport == "postgres":
        transport = PostgresTransport(notifier, settings.worker_queue, str(worker_id))
        return WorkerTransport(transport, settings, _keep_open)
    service_bus = ServiceBus(settings)
    broker = ServiceBusTransport(service_bus, settings.worker_queue, ledger.queued_tasks)

    async def close() -> None:
        await broker.close()
        await service_bus.close()

    if "worker_poll_interval" not in settings.model_fields_set:
        settings = settings.model_copy(update={"worker_poll_interval": POLL_SECONDS})
    return WorkerTransport(broker, settings, close)


async def _keep_open() -> None:
    """Nothing to close: the role closes the notifier."""
