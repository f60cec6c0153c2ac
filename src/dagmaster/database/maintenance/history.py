"""Verify the history of jobs in a database with the rules of `jobs/history`. Reads only.

Jobs are checked in batches of a bounded number of events, each batch in its own repeatable-read snapshot, so that
running jobs can be checked at any time and no snapshot lives long. Rows are streamed through server-side cursors;
memory holds a few hundred bytes per node of the batch.
"""

import hashlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from psycopg import IsolationLevel
from psycopg.rows import class_row

from dagmaster.database.connect import Connection, connect, translate_errors
from dagmaster.database.queries import query
from dagmaster.errors import DagmasterError
from dagmaster.jobs.history import Audit, EventRow, FindingCode, HistoryFinding, JobRow, NodeRow, ResultRow, TaskRow
from dagmaster.quantities import counted
from dagmaster.workflows.graph import Graph, build
from dagmaster.workflows.model import ConditionalNode, FanInNode, Workflow

BATCH_EVENTS = 20_000
BATCH_JOBS = 200
FETCH_ROWS = 2_000
FETCH_PARTS = 8
GRAPHS_KEPT = 64
ORPHANS_LISTED = 1_000
# How long a job may take to end after its deadline, or after its last node: a lost worker's lease must expire first.
MARGIN_SECONDS = 300.0
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

    @property
    def summary(self) -> str:
        numbers = {"job": self.jobs_checked, "event": self.events_checked, "task": self.tasks_checked}
        checked = ", ".join(counted(number, noun) for noun, number in numbers.items())
        return f"{checked} checked: {'clean' if self.is_clean else counted(len(self.findings), 'finding')}"

    def public(self) -> dict[str, Any]:
        return {
            "is_clean": self.is_clean,
            "jobs_checked": self.jobs_checked,
            "events_checked": self.events_checked,
            "tasks_checked": self.tasks_checked,
            "findings": [asdict(finding) for finding in self.findings],
        }


Progress = Callable[[HistoryReport], None]
T = TypeVar("T")


class JobSize(NamedTuple):
    """A job to check, with the number of its events."""

    job_id: UUID
    last_sequence: int


class Definition(NamedTuple):
    definition_hash: str
    body: dict[str, Any]


class DamagedReference(NamedTuple):
    """A reference to a payload that is missing (`is_kept` is None), may be deleted, or has another size."""

    job_id: UUID
    node_id: str | None
    sha256: str
    size_bytes: int
    is_kept: bool | None
    stored_bytes: int

    @property
    def damage(self) -> str:
        if self.is_kept is None:
            return "is referred to, but does not exist"
        if not self.is_kept:
            return "is referred to, but could be deleted"
        return f"is referred to with {self.size_bytes} bytes, but has {self.stored_bytes}"


class PayloadContent(NamedTuple):
    """One part of a payload."""

    job_id: UUID
    sha256: str
    data: bytes


class OrphanRows(NamedTuple):
    """Rows of one table whose job does not exist."""

    job_id: UUID
    kind: str
    rows: int


async def verify(
    dsn: str,
    job_ids: Sequence[UUID] | None = None,
    on_progress: Progress | None = None,
    *,
    max_losses: int | None = None,
    reads_payloads: bool = False,
) -> HistoryReport:
    """Check these jobs, or all jobs and rows without a job. `on_progress` is called after each batch.

    Payloads must exist; with `reads_payloads` their content must also match their hash.
    """
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
        async for batch in self._named(job_ids) if job_ids is not None else self._all():
            async with self.connection.transaction():
                await self._check(batch)
            if self.on_progress is not None:
                self.on_progress(self.report)
        if job_ids is None:
            await self._find_orphans()
        return self.report

    # Which jobs

    async def _named(self, job_ids: Sequence[UUID]) -> AsyncIterator[list[UUID]]:
        jobs = await self._fetch("history_named_jobs", {"job_ids": list(job_ids)}, JobSize)
        for missing in sorted(set(job_ids) - {job.job_id for job in jobs}):
            self._report(missing, None, FindingCode.JOB_ROW, "there is no such job")
        for batch in _batches(jobs):
            yield batch

    async def _all(self) -> AsyncIterator[list[UUID]]:
        after = _BEFORE_ALL
        while jobs := await self._fetch("history_jobs", {"after": after, "limit": 1000}, JobSize):
            after = jobs[-1].job_id
            for batch in _batches(jobs):
                yield batch

    async def _fetch(self, name: str, values: dict[str, Any], kind: type[T]) -> list[T]:
        cursor = self.connection.cursor(row_factory=class_row(kind))
        return await (await cursor.execute(query(name), values)).fetchall()

    async def _stream(self, name: str, job_ids: list[UUID], kind: type[T], rows: int = FETCH_ROWS) -> AsyncIterator[T]:
        async with self.connection.cursor(name=name, row_factory=class_row(kind)) as cursor:
            cursor.itersize = rows
            await cursor.execute(query(name), {"job_ids": job_ids})
            async for row in cursor:
                yield row

    def _report(self, job_id: UUID, node_id: str | None, code: FindingCode, message: str) -> None:
        self.report.findings.append(HistoryFinding(job_id, node_id, code, message))

    # One batch, one snapshot

    async def _check(self, job_ids: list[UUID]) -> None:
        values = {"job_ids": job_ids, "margin": MARGIN_SECONDS}
        jobs = await self._fetch("history_rows_of_jobs", values, JobRow)
        await self._load_graphs({job.definition_hash for job in jobs})
        own = await self._own_nodes(jobs)
        audits = {
            job.job_id: Audit(
                job.job_id, self._graphs[job.definition_hash], own[job.job_id].values(), max_losses=self.max_losses
            )
            for job in jobs
        }
        await self._feed(audits, own)
        for job in jobs:
            self._check_definition(job)
            self.report.findings += audits[job.job_id].finish(job)
            self.report.jobs_checked += 1
        await self._check_references(job_ids)
        if self.reads_payloads:
            await self._check_payloads(job_ids)

    async def _feed(self, audits: dict[UUID, Audit], own: dict[UUID, dict[str, NodeRow]]) -> None:
        job_ids = list(audits)
        async for event in self._stream("history_events", job_ids, EventRow):
            assert event.job_id is not None, "the statement names jobs"
            audits[event.job_id].add_event(event)
            self.report.events_checked += 1
        async for node in self._stream("history_nodes", job_ids, NodeRow):
            audits[node.job_id].check_node(own[node.job_id].get(node.node_id) or node)
        async for task in self._stream("history_tasks", job_ids, TaskRow):
            audits[task.job_id].check_task(task)
            self.report.tasks_checked += 1
        async for result in self._stream("history_results", job_ids, ResultRow):
            audits[result.job_id].check_result(result)

    async def _own_nodes(self, jobs: Iterable[JobRow]) -> dict[UUID, dict[str, NodeRow]]:
        """The rows of the definition's own nodes, with the branch of a conditional and the count of a fan_in."""
        own: dict[UUID, dict[str, NodeRow]] = {job.job_id: {} for job in jobs}
        keys = [
            (job.job_id, node_id, isinstance(node, ConditionalNode), isinstance(node, FanInNode))
            for job in jobs
            if (graph := self._graphs[job.definition_hash])
            for node_id, node in graph.workflow.nodes.items()
        ]
        if not keys:
            return own
        names = ("job_ids", "node_ids", "are_conditional", "are_fan_in")
        values = dict(zip(names, map(list, zip(*keys, strict=True)), strict=True))
        for row in await self._fetch("history_own_nodes", values, NodeRow):
            own[row.job_id][row.node_id] = row
        return own

    # Payloads

    async def _check_references(self, job_ids: list[UUID]) -> None:
        for row in await self._fetch("history_references", {"job_ids": job_ids}, DamagedReference):
            self._report(row.job_id, row.node_id, FindingCode.PAYLOAD, f"payload {row.sha256[:12]}… {row.damage}")

    async def _check_payloads(self, job_ids: list[UUID]) -> None:
        digests: dict[tuple[UUID, str], Any] = {}
        async for part in self._stream("history_payload_parts", job_ids, PayloadContent, FETCH_PARTS):
            digests.setdefault((part.job_id, part.sha256), hashlib.sha256()).update(part.data)
        for (job_id, sha256), digest in digests.items():
            if digest.hexdigest() != sha256:
                self._report(job_id, None, FindingCode.PAYLOAD, f"payload {sha256[:12]}… does not match its hash")

    # Definitions

    async def _load_graphs(self, hashes: set[str]) -> None:
        if len(self._graphs) > GRAPHS_KEPT:
            self._graphs.clear()
        missing = [digest for digest in hashes if digest not in self._graphs]
        if not missing:
            return
        rows = await self._fetch("history_definitions", {"hashes": missing}, Definition)
        bodies = {row.definition_hash: row.body for row in rows}
        self._graphs |= {digest: _graph(bodies.get(digest)) for digest in missing}

    def _check_definition(self, job: JobRow) -> None:
        if self._graphs[job.definition_hash] is None:
            message = f"its definition {job.definition_hash[:12]}… is missing or cannot be read"
            self._report(job.job_id, None, FindingCode.DEFINITION, message)

    async def _find_orphans(self) -> None:
        for row in await self._fetch("history_orphans", {"limit": ORPHANS_LISTED}, OrphanRows):
            self._report(row.job_id, None, FindingCode.ORPHAN, f"{row.rows} {row.kind} of a job that does not exist")


def _batches(jobs: Iterable[JobSize]) -> list[list[UUID]]:
    """Consecutive jobs whose events together stay within bounds; a large job is a batch of its own."""
    batches: list[list[UUID]] = [[]]
    events = 0
    for job in jobs:
        if batches[-1] and (events + job.last_sequence > BATCH_EVENTS or len(batches[-1]) >= BATCH_JOBS):
            batches.append([])
            events = 0
        batches[-1].append(job.job_id)
        events += job.last_sequence
    return [batch for batch in batches if batch]


def _graph(body: dict[str, Any] | None) -> Graph | None:
    """The graph of a stored definition, or None if it is missing or cannot be read."""
    if body is None:
        return None
    try:
        return build(Workflow.model_validate(body))
    except (DagmasterError, ValueError):
        return None
