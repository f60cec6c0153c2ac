"""Health of a worker: liveness, readiness, running tasks and metrics.

Called from a thread other than the event loop's, so that a hanging loop is reported. It only copies state.
"""

import platform
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from prometheus_client.core import Metric

from dagmaster.observe.metrics import counter, counters, gauge, gauges
from dagmaster.observe.probes import Check, age_of
from dagmaster.settings import Settings

if TYPE_CHECKING:
    from dagmaster.worker.loop import HeldTask, Worker

MAX_LISTED = 200
_OUTCOMES = ("succeeded", "failed", "returned", "cancelled")


class WorkerHealth:
    """The subject of a worker's probes."""

    role = "worker"

    def __init__(self, worker: "Worker", settings: Settings, peer: str = "database") -> None:
        """`peer` names where the worker claims tasks: the database, or the platform."""
        self._peer = peer
        self._worker = worker
        self._settings = settings
        self._started_at = datetime.now(UTC)

    def alive(self) -> list[Check]:
        """Only the event loop is checked: everything the worker waits for has a time limit."""
        return []

    def ready(self) -> list[Check]:
        return [self._ledger(), self._claiming()]

    def _ledger(self) -> Check:
        """Leases are renewed even without tasks, so the ledger of a healthy worker responds every LEASE_RENEW_SEC."""
        worker = self._worker
        ages = [age for age in map(age_of, (worker.exchanged_at, worker.renewed_at)) if age is not None]
        if not ages:
            return Check(self._peer, False, "has not responded yet")
        is_recent = min(ages) < 2 * self._settings.lease_renew_sec
        return Check(self._peer, is_recent, f"responded {min(ages):.1f} s ago")

    def _claiming(self) -> Check:
        if self._worker.is_stopping:
            return Check("claiming", False, "stopping: no more tasks are claimed")
        return Check("claiming", True, "claims tasks while slots are free")

    def details(self) -> dict[str, Any]:
        info = self._worker.info()
        held_tasks = self._worker.held_tasks
        return {
            "worker_id": info.worker_id,
            "worker_type": info.worker_type,
            "host": info.host,
            "pid": info.pid,
            "versions": {"dagmaster": info.software_version, "python": platform.python_version()},
            "started_at": self._started_at,
            "queues": info.queues,
            "handlers": info.handlers,
            "slots": self._settings.worker_slots,
            "processes": self._settings.worker_processes,
            "last_exchange_seconds": age_of(self._worker.exchanged_at),
            "last_renewal_seconds": age_of(self._worker.renewed_at),
            "running_count": len(held_tasks),
            "running": [_running(task) for task in held_tasks[:MAX_LISTED]],
            "children": self._worker.children,
            **self._worker.executor_facts(),
            "counters": info.stats,
        }

    def metrics(self) -> Iterable[Metric]:
        worker, numbers = self._worker, asdict(self._worker.counters)
        outcomes = {(outcome,): float(numbers[outcome]) for outcome in _OUTCOMES}
        yield counters("dagmaster_worker_tasks_total", "Attempts that ended, by outcome", ("outcome",), outcomes)
        for name, value in numbers.items():
            if name not in _OUTCOMES:
                yield counter(f"dagmaster_worker_{name}_total", f"{name.replace('_', ' ')} since the start", value)
        uptime = (datetime.now(UTC) - self._started_at).total_seconds()
        yield gauge("dagmaster_uptime_seconds", "Seconds since the start of the worker", uptime)
        yield from self._slots()
        yield gauge("dagmaster_worker_children", "Child processes, which run plain handlers", len(worker.children))
        for name, moment in (("exchange", worker.exchanged_at), ("renewal", worker.renewed_at)):
            age = age_of(moment)
            if age is not None:
                yield gauge(f"dagmaster_worker_last_{name}_seconds", f"Seconds since the last {name}", age)
        yield from worker.durations.collect()

    def _slots(self) -> Iterable[Metric]:
        """How many tasks of each kind the worker may run, and how many it runs, also by queue."""
        held_tasks = self._worker.held_tasks
        slots = {("async",): float(self._settings.worker_slots), ("plain",): float(self._worker.plain_slots)}
        yield gauges("dagmaster_worker_slots", "Tasks that may run at once, by kind of handler", ("kind",), slots)
        yield gauge("dagmaster_worker_running", "Running tasks", len(held_tasks))
        limits = {(queue,): float(limit) for queue, limit in self._settings.queue_concurrency.items()}
        if limits:
            yield gauges("dagmaster_worker_queue_slots", "Tasks that may run at once, by queue", ("queue",), limits)
        queues = dict.fromkeys(self._settings.worker_queue, 0) | Counter(task.context.task.queue for task in held_tasks)
        by_queue = {(queue,): float(count) for queue, count in queues.items()}
        yield gauges("dagmaster_worker_queue_running", "Running tasks, by queue", ("queue",), by_queue)


def _running(held_task: "HeldTask") -> dict[str, Any]:
    task, seconds = held_task.context.task, held_task.seconds
    return {
        "task_id": task.task_id,
        "job_id": task.job_id,
        "node_id": task.node_id,
        "attempt": task.attempt,
        "handler": task.handler,
        "queue": task.queue,
        "since": datetime.now(UTC) - timedelta(seconds=seconds),
        "seconds": round(seconds, 3),
        "timeout_seconds": task.timeout_seconds,
    }
