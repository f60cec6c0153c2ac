"""Many workers in one process: `python bench/simulated_workers.py DSN COUNT`.

Each is a whole worker with the connections that a real one has: it listens, claims, renews leases and reports. Only the
process and its watchdog are shared. Handlers are async, and do nothing or sleep, so that the platform itself is
measured.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from dagmaster.database.ledger.postgres import PostgresLedger
from dagmaster.database.notify.postgres import PostgresNotifier
from dagmaster.handlers.registry import Registry, installed
from dagmaster.observe import log
from dagmaster.settings import Settings
from dagmaster.transports.postgres import PostgresTransport, topics_of
from dagmaster.worker.loop import Worker

QUEUE = "dag-worker-tasks"


@contextmanager
def simulated_workers(dsn: str, count: int, processes: int = 2) -> Iterator[dict[str, int]]:
    """Processes with this many workers in total; yields their pids by name."""
    shares = [count // processes + (number < count % processes) for number in range(processes)]
    environment = {**os.environ, "LOG_LEVEL": "warning", "WORKER_QUEUE": QUEUE}
    running = [
        subprocess.Popen([sys.executable, Path(__file__), dsn, str(share)], env=environment)
        for share in shares
        if share
    ]
    try:
        yield {f"workers {number + 1}": process.pid for number, process in enumerate(running)}
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(60)


async def main(dsn: str, count: int) -> None:
    settings, registry = Settings(), installed()
    log.configure(settings.log_level)
    light = Registry(each for each in registry.values() if each.is_async)
    workers = [_worker(settings, dsn, light, number) for number in range(count)]
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, _stop_all, [worker for worker, _ in workers])
    await asyncio.gather(*(_run(worker, parts, 0.005 * number) for number, (worker, parts) in enumerate(workers)))


def _stop_all(workers: list[Worker]) -> None:
    for worker in workers:
        worker.stop(grace_seconds=1)


Parts = tuple[PostgresNotifier, list[PostgresLedger]]


def _worker(settings: Settings, dsn: str, registry: Registry, number: int) -> tuple[Worker, Parts]:
    """Create a worker in the same way as `roles/worker.py`."""
    worker_id = uuid4()
    notifier = PostgresNotifier(dsn, topics_of(settings.worker_queue, str(worker_id)))
    ledgers = [PostgresLedger(dsn, name, notifier) for name in ("worker", "lease", "handler")]
    worker = Worker(
        settings,
        ledgers[0],
        PostgresTransport(notifier, settings.worker_queue, str(worker_id)),
        notifier,
        registry,
        lease_ledger=ledgers[1],
        handler_ledger=ledgers[2],
        worker_id=worker_id,
        name=f"simulated-{number}",
    )
    return worker, (notifier, ledgers)


async def _run(worker: Worker, parts: Parts, delay_seconds: float) -> None:
    notifier, ledgers = parts
    await asyncio.sleep(delay_seconds)  # real workers do not all connect at the same moment either
    notifier.start()
    try:
        await worker.run()
    finally:
        for closing in (notifier.close, *(ledger.close for ledger in ledgers)):
            await closing()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
