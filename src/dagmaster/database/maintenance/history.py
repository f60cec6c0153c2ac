"""Verify the history of jobs in a database: what is stored, checked by `jobs/history` without writing anything.

Jobs are taken in bunches of a bounded number of events, each bunch in one repeatable-read snapshot of its own, so that running
jobs can be checked at any time and no snapshot lives long. Rows stream through server-side cursors; what stays in memory is
some hundred bytes for each node of the bunch.
"""

import hashlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from psycopg import IsolationLevel

from dagmaster.database.connect import Connection, connect, translate_errors
from dagmaster.database.queries import query
from dagmaster.errors import DagmasterError
from dagmaster.jobs.history import Audit, Event, FindingCode, HistoryFinding, JobRow, NodeRow, ResultRow, TaskRow
from dagmaster.workflows.graph import Graph, build
from dagmaster.workflows.model import ConditionalNode, FanInNode, Workflow

BUNCH_EVENTS = 20_000
BUNCH_JOBS = 200
FETCH_ROWS = 2_000
FETCH_PARTS = 8
GRAPHS_KEPT = 64
ORPHANS_LISTED = 1_000
_BEFORE_ALL = UUID(int=0)


@dataclass(slots=True)
class HistoryReport:
    jobs_checked: int = 0
    events_checked: int = 0
    tasks_checked: int = 0
    findings: list[HistoryFinding] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not self.findings


Progress = Callable[[HistoryReport], None]


async def verify(
    dsn: str,
    job_ids: Sequence[UUID] | None = None,
    on_progress: Progress | None = None,
    *,
    max_losses: int | None = None,
    reads_payloads: bool = False,
) -> HistoryReport:
    """Check these jobs, or all of them and what belongs to none. `on_progress` is told after each bunch. Payloads must be there;
    with `reads_payloads` they must also be what was stored."""
    connection = await connect(dsn, role="history", statement_timeout_seconds=0, idle_in_transaction_seconds=600)
    try:
        with translate_errors():
            await connection.set_isolation_level(IsolationLevel.REPEATABLE_READ)
            await connection.set_read_only(True)
            verification = _Verification(connection, max_losses, on_progress, reads_payloads=reads_payloads)
            return await verification.run(job_ids)
    finally:
        await connection.close()


class _Verification:
    def __init__(
        self, connection: Connection, max_losses: int | None, on_progress: Progress | None, *, reads_payloads: bool
    ) -> None:
        self.connection = connection
        self.max_losses = max_losses
        self.reads_payloads = reads_payloads
        self.on_progress = on_progress
        self.report = HistoryReport()
        self._graphs: dict[str, Graph | None] = {}

    async def run(self, job_ids: Sequence[UUID] | None) -> HistoryReport:
        async for bunch in self._named(job_ids) if job_ids is not None else self._all():
            async with self.connection.transaction():
                await self._check(bunch)
            if self.on_progress is not None:
                self.on_progress(self.report)
        if job_ids is None:
            await self._find_orphans()
        return self.report

    # Which jobs

    async def _named(self, job_ids: Sequence[UUID]) -> AsyncIterator[list[UUID]]:
        rows = await self._fetch("history_named_jobs", {"job_ids": list(job_ids)})
        for missing in sorted(set(job_ids) - {row[0] for row in rows}):
            self.report.findings.append(HistoryFinding(missing, None, FindingCode.JOB_ROW, "there is no such job"))
        for bunch in _bunches(rows):
            yield bunch

    async def _all(self) -> AsyncIterator[list[UUID]]:
        after = _BEFORE_ALL
        while rows := await self._fetch("history_jobs", {"after": after, "limit": 1000}):
            after = rows[-1][0]
            for bunch in _bunches(rows):
                yield bunch

    async def _fetch(self, name: str, values: dict[str, Any]) -> list[tuple[Any, ...]]:
        return await (await self.connection.execute(query(name), values)).fetchall()

    async def _stream(self, name: str, job_ids: list[UUID], rows: int = FETCH_ROWS) -> AsyncIterator[tuple[Any, ...]]:
        async with self.connection.cursor(name=name) as cursor:
            cursor.itersize = rows
            await cursor.execute(query(name), {"job_ids": job_ids})
            async for row in cursor:
                yield row

    # One bunch, one snapshot

    async def _check(self, job_ids: list[UUID]) -> None:
        rows = await self._fetch("history_rows_of_jobs", {"job_ids": job_ids})
        jobs = {row[0]: JobRow(*row) for row in rows}
        await self._load_graphs({job.definition_hash for job in jobs.values()})
        own = await self._own_nodes(jobs.values())
        audits = {
            job.job_id: Audit(
                job.job_id, self._graphs[job.definition_hash], own[job.job_id], max_losses=self.max_losses
            )
            for job in jobs.values()
        }
        await self._feed(audits, own)
        for job_id, job in jobs.items():
            self.report.findings += self._missing_definition(job) + audits[job_id].finish(job)
            self.report.jobs_checked += 1
        await self._check_references(job_ids)
        if self.reads_payloads:
            await self._check_payloads(job_ids)

    async def _feed(self, audits: dict[UUID, Audit], own: dict[UUID, list[NodeRow]]) -> None:
        job_ids = list(audits)
        async for job_id, *event in self._stream("history_events", job_ids):
            audits[job_id].tell(Event(*event))
            self.report.events_checked += 1
        gathered = {(job_id, row.node_id): row for job_id, rows in own.items() for row in rows}
        async for job_id, *node in self._stream("history_nodes", job_ids):
            audits[job_id].node(gathered.get((job_id, node[0])) or NodeRow(*node))
        async for job_id, *task in self._stream("history_tasks", job_ids):
            audits[job_id].task(TaskRow(*task))
            self.report.tasks_checked += 1
        async for job_id, *result in self._stream("history_results", job_ids):
            audits[job_id].result(ResultRow(*result))

    # Payloads

    async def _check_references(self, job_ids: list[UUID]) -> None:
        for job_id, node_id, sha256, size, is_kept, found in await self._fetch(
            "history_references", {"job_ids": job_ids}
        ):
            what = f"payload {sha256[:12]}… is referred to, and "
            if is_kept is None:
                what += "is not there"
            elif not is_kept:
                what += "could be deleted"
            else:
                what += f"has {found} bytes, not {size}"
            self.report.findings.append(HistoryFinding(job_id, node_id, FindingCode.PAYLOAD, what))

    async def _check_payloads(self, job_ids: list[UUID]) -> None:
        digests: dict[tuple[UUID, str], Any] = {}
        async for job_id, sha256, data in self._stream("history_payload_parts", job_ids, FETCH_PARTS):
            digests.setdefault((job_id, sha256), hashlib.sha256()).update(data)
        for (job_id, sha256), digest in digests.items():
            if digest.hexdigest() != sha256:
                what = f"payload {sha256[:12]}… is not what was stored"
                self.report.findings.append(HistoryFinding(job_id, None, FindingCode.PAYLOAD, what))

    async def _own_nodes(self, jobs: Iterable[JobRow]) -> dict[UUID, list[NodeRow]]:
        found: dict[UUID, list[NodeRow]] = {job.job_id: [] for job in jobs}
        keys = [
            (job.job_id, node_id, isinstance(node, ConditionalNode), isinstance(node, FanInNode))
            for job in jobs
            if (graph := self._graphs[job.definition_hash])
            for node_id, node in graph.workflow.nodes.items()
        ]
        names = ("job_ids", "node_ids", "are_conditional", "are_fan_in")
        values = dict(zip(names, map(list, zip(*keys, strict=True)), strict=True)) if keys else None
        for row in await self._fetch("history_own_nodes", values) if values else ():
            chosen = None if row[16] is None else tuple(row[16])
            found[row[0]].append(NodeRow(*row[1:16])._replace(chosen=chosen, gathered=row[17]))
        return found

    # Definitions

    async def _load_graphs(self, hashes: set[str]) -> None:
        if len(self._graphs) > GRAPHS_KEPT:
            self._graphs.clear()
        missing = [digest for digest in hashes if digest not in self._graphs]
        if not missing:
            return
        bodies = dict(await self._fetch("history_definitions", {"hashes": missing}))
        self._graphs |= {digest: _graph(bodies.get(digest)) for digest in missing}

    def _missing_definition(self, job: JobRow) -> list[HistoryFinding]:
        if self._graphs[job.definition_hash] is not None:
            return []
        message = f"its definition {job.definition_hash[:12]}… is missing or can't be read"
        return [HistoryFinding(job.job_id, None, FindingCode.DEFINITION, message)]

    async def _find_orphans(self) -> None:
        for job_id, kind, rows in await self._fetch("history_orphans", {"limit": ORPHANS_LISTED}):
            self.report.findings.append(
                HistoryFinding(job_id, None, FindingCode.ORPHAN, f"{rows} {kind} of a job that doesn't exist")
            )


def _bunches(rows: Iterable[tuple[Any, ...]]) -> list[list[UUID]]:
    """Jobs in a row, so many that their events stay within bounds; a large job is alone."""
    bunches: list[list[UUID]] = [[]]
    events = 0
    for job_id, last_sequence in rows:
        if bunches[-1] and (events + last_sequence > BUNCH_EVENTS or len(bunches[-1]) >= BUNCH_JOBS):
            bunches.append([])
            events = 0
        bunches[-1].append(job_id)
        events += last_sequence
    return [bunch for bunch in bunches if bunch]


def _graph(body: dict[str, Any] | None) -> Graph | None:
    """The graph of a stored definition, or None if it can't be had."""
    if body is None:
        return None
    try:
        return build(Workflow.model_validate(body))
    except (DagmasterError, ValueError):
        return None
