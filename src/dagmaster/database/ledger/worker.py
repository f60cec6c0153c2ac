"""Claim tasks, report results and renew leases: the WorkerLedger on PostgreSQL."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from dagmaster.database import pipeline
from dagmaster.database.connect import Connection
from dagmaster.database.ledger.connection import columns_of, fetch, notification, to_json
from dagmaster.database.ledger.protocol import Demand, Exchange, Report, Running, WorkerInfo
from dagmaster.database.ledger.queued import QueuedTaskReads
from dagmaster.database.notify.notifier import RESULTS, Notifier
from dagmaster.jobs import payload
from dagmaster.jobs.model import TaskMessage, task_id

_INFO_COLUMNS = ("worker_id", "host", "pid", "software_version", "worker_type")


class PostgresWork(QueuedTaskReads):
    """The WorkerLedger on PostgreSQL."""

    def __init__(self, dsn: str, role: str = "ledger", notifier: Notifier | None = None) -> None:
        super().__init__(dsn, role, notifier)
        self._limits: set[str] = set()  # queues that had a limit at the last claims

    async def beat_worker(self, worker: WorkerInfo) -> None:
        values = {name: getattr(worker, name) for name in _INFO_COLUMNS}
        lists = {"queues": list(worker.queues), "handlers": list(worker.handlers)}
        await self._execute("beat_worker", {**values, **lists, "stats": Jsonb(worker.stats)})

    async def exchange(
        self, worker_id: UUID, reports: Sequence[Report], demand: Demand, *, lease_seconds: float
    ) -> Exchange:
        limited = self._limited(demand)
        if not reports:
            names: tuple[str, ...] = ("claim_tasks",)
        elif limited:  # the capacity of a limited queue is computed after the reports, which free a part of it
            names = ("report_tasks", "claim_tasks")
        else:
            names = ("exchange",) if demand.total else ("report_tasks",)
        return await self._exchange(names, worker_id, reports, demand, limited, lease_seconds=lease_seconds)

    async def report(
        self, worker_id: UUID, reports: Sequence[Report], demand: Demand, *, lease_seconds: float
    ) -> Exchange:
        limited = self._limited(demand)
        names = ("report_tasks", "claim_tasks") if limited else ("report_tasks",)
        return await self._exchange(names, worker_id, reports, demand, limited, lease_seconds=lease_seconds)

    def _limited(self, demand: Demand) -> list[str]:
        if not self._limits or not demand.total:
            return []
        return [queue for queue in dict.fromkeys(demand.queues) if queue in self._limits]

    async def _exchange(
        self,
        names: Sequence[str],
        worker_id: UUID,
        reports: Sequence[Report],
        demand: Demand,
        limited: list[str],
        *,
        lease_seconds: float,
    ) -> Exchange:
        queues = list(dict.fromkeys(demand.queues))
        values = {
            "worker_id": worker_id,
            "reports": to_json(reports),
            "queues": queues,
            "free_slots": _free_slots(demand, queues),
            "light_handlers": pipeline.text_array(demand.light_handlers),
            "light": demand.light,
            "heavy_handlers": pipeline.text_array(demand.heavy_handlers),
            "heavy": demand.heavy,
            "lease": lease_seconds,
            "budgets": limited,
        }
        if any(report.output_ref for report in reports):
            result = await self._exchange_payloads(names, limited, values, reports)
        else:
            result = await self._exchange_at_once(names, limited, values, (RESULTS,) if reports else ())
        claimed = result.claimed
        if result.limited_queues:
            self._limits.update(result.limited_queues)
            claimed = claimed or await self._claim_limited(result.limited_queues, values, demand)
        late = () if result.accepted == len(reports) else await self._record_late(worker_id, reports)
        return Exchange(tuple(map(_message, claimed)), len(reports) - len(late), late)

    async def _claim_limited(self, queues: list[str], values: dict[str, Any], demand: Demand) -> list[Any]:
        """The claim skipped these queues, because this worker did not know their limits: claim with their budgets."""
        values = {**values, "queues": queues, "free_slots": _free_slots(demand, queues), "budgets": queues}
        return (await self._exchange_at_once(("claim_tasks",), queues, values, ())).claimed

    def _forget_limits(self, limited: list[str], budgets: Sequence[Any]) -> None:
        """A queue without a budget row has no limit any more."""
        if limited:
            self._limits.difference_update(set(limited).difference(row.queue for row in budgets))

    async def _exchange_at_once(
        self, names: Sequence[str], limited: list[str], values: dict[str, Any], notify: Sequence[str]
    ) -> "_ExchangeResult":
        """One round trip, including the budgets of limited queues and the notification after the commit."""
        steps: list[pipeline.PipelineStep] = [pipeline.Call(name, values) for name in names]
        if limited:
            steps = [pipeline.BEGIN, pipeline.Call("lock_budgets", {"queues": limited}), *steps, pipeline.COMMIT]
        async with self._connected() as connection:
            rows = await pipeline.execute(connection, [*steps, *notification(notify)])
        self._forget_limits(limited, rows.get("lock_budgets", ()))
        return _result_of({name: rows[name] for name in names})

    async def _exchange_payloads(
        self, names: Sequence[str], limited: list[str], values: dict[str, Any], reports: Sequence[Report]
    ) -> "_ExchangeResult":
        """The same for reports that refer to payloads, in a transaction: its commit marks the payloads as in use."""
        async with self._transaction("report_payloads") as connection:
            if limited:
                self._forget_limits(limited, await fetch(connection, "lock_budgets", {"queues": limited}))
            rows = {name: await fetch(connection, name, values) for name in names}
            await _keep_payloads(connection, reports)
        self._notify(RESULTS)
        return _result_of(rows)

    async def _record_late(self, worker_id: UUID, reports: Sequence[Report]) -> tuple[str, ...]:
        values = {"worker_id": worker_id, "reports": to_json(reports)}
        async with self._transaction("record_late") as connection:
            rows = await fetch(connection, "record_late_reports", values)
            await _keep_payloads(connection, reports)
        return tuple(task_id(row.job_id, row.node_id, row.attempt) for row in rows)

    async def renew(self, worker_id: UUID, running: Sequence[Running], *, lease_seconds: float) -> frozenset[str]:
        values = {"worker_id": worker_id, "held": to_json(running), "lease": lease_seconds}
        return frozenset(row.task_id for row in await self._fetch("renew_leases", values))

    async def take_stops(self, worker_id: UUID) -> frozenset[str]:
        return frozenset(row.task_id for row in await self._fetch("take_stops", {"worker_id": worker_id}))

    async def retire_worker(self, worker_id: UUID) -> None:
        await self._execute("retire_worker", {"worker_id": worker_id})


def _free_slots(demand: Demand, queues: Sequence[str]) -> list[int]:
    """How many tasks of each queue the worker can take."""
    total = demand.total
    return [demand.free_slots.get(queue, total) for queue in queues]


@dataclass(frozen=True, slots=True)
class _ExchangeResult:
    """The result of the statements of an exchange: the number of accepted reports, the rows of claimed tasks, and the
    queues that have a limit which this worker did not know of."""

    accepted: int
    claimed: list[Any]
    limited_queues: list[str]


def _result_of(rows: Mapping[str, Sequence[Any]]) -> _ExchangeResult:
    counts = [row for name in ("exchange", "report_tasks") for row in rows.get(name, ())]
    claims = [row for name in ("exchange", "claim_tasks") for row in rows.get(name, ())]
    return _ExchangeResult(
        accepted=sum(row.accepted for row in counts if row.accepted is not None),
        claimed=[row for row in claims if row.task_id is not None],
        limited_queues=[row.limited_queue for row in claims if row.limited_queue is not None],
    )


async def _keep_payloads(connection: Connection, reports: Sequence[Report]) -> None:
    """Mark the payloads of these reports as in use, in the transaction that stores the results."""
    keys = [(report.job_id, report.node_id, report.attempt) for report in reports if report.output_ref]
    if not keys:
        return
    for row in await fetch(connection, "keep_payloads", columns_of(("job_ids", "node_ids", "attempts"), keys)):
        raise payload.missing(row.job_id, row.sha256)


def _message(row: Any) -> TaskMessage:
    return TaskMessage(
        task_id=row.task_id,
        job_id=row.job_id,
        node_id=row.node_id,
        attempt=row.attempt,
        handler=row.handler,
        params=row.params or {},
        queue=row.queue,
        timeout_seconds=row.timeout_seconds,
        retry_count=row.retry_count,
        losses=row.losses,
        params_ref=row.params_ref,
        traceparent=row.traceparent,
    )
