"""What the database recorded, and queries that find violations in it after all jobs have ended."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from psycopg.rows import dict_row

from chaos.effects import Effects, Task
from dagmaster.database.maintenance.history import HistoryReport, verify

# Each event was written by the session that had claimed its epoch; each accepted result came from the session that had
# started the attempt. (That this session still held the attempt is a rule of verify-history.)
STALE_EVENTS = """
    SELECT e.job_id::text, e.sequence, e.epoch, e.process, c.process AS owner
      FROM chaos.events e
      LEFT JOIN chaos.claims c ON c.job_id = e.job_id AND c.epoch = e.epoch
     WHERE e.epoch > 0 AND c.process IS DISTINCT FROM e.process"""
STALE_EPOCHS = """
    SELECT job_id::text, sequence, epoch, before
      FROM (SELECT job_id, sequence, epoch, lag(epoch) OVER (PARTITION BY job_id ORDER BY sequence) AS before
              FROM chaos.events) e
     WHERE epoch < before"""
STALE_RESULTS = """
    SELECT r.job_id::text, r.node_id, r.attempt, r.process, s.process AS holder
      FROM chaos.results r
      LEFT JOIN chaos.starts s USING (job_id, node_id, attempt)
     WHERE r.accepted AND (s.process IS DISTINCT FROM r.process OR s.worker_id <> r.worker_id)"""
DOUBLE_CLAIMS = """
    SELECT job_id::text, epoch, count(*) FROM chaos.claims GROUP BY 1, 2 HAVING count(*) > 1"""
DOUBLE_STARTS = """
    SELECT job_id::text, node_id, attempt, count(*) FROM chaos.starts GROUP BY 1, 2, 3 HAVING count(*) > 1"""
ACCEPTED_TWICE = """
    SELECT r.job_id::text, r.node_id, count(*)
      FROM chaos.results r
     WHERE r.accepted AND r.status = 'succeeded' GROUP BY 1, 2 HAVING count(*) > 1"""
LIVE_TASKS = "SELECT job_id::text, node_id, attempt, status FROM dagapp.dag_tasks WHERE status IN ('queued', 'running')"
UNPUBLISHED = """
    SELECT n.job_id::text, n.node_id
      FROM dagapp.dag_node_states n
     WHERE n.status = 'completed' AND n.attempt > 0
       AND NOT EXISTS (SELECT 1 FROM dagapp.dag_task_results r
                        WHERE r.job_id = n.job_id AND r.node_id = n.node_id AND r.attempt = n.attempt
                          AND r.accepted AND r.status = 'succeeded')"""
ACCEPTED = """
    SELECT job_id::text AS job, node_id AS node, effect FROM chaos.results
     WHERE accepted AND status = 'succeeded' AND effect IS NOT NULL"""


@dataclass
class Findings:
    """Violations. All lists must be empty."""

    stale_writes: list[Any] = field(default_factory=list)
    duplicate_effects: list[Any] = field(default_factory=list)
    tasks_lost: list[Any] = field(default_factory=list)
    history: list[str] = field(default_factory=list)


def install(dsn: str) -> None:
    """Create the tables and triggers of the audit in a database."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        text = (Path(__file__).parent / "audit.sql").read_text()
        connection.execute(text)


async def examine(dsn: str, effects: Effects, max_losses: int) -> tuple[Findings, HistoryReport]:
    report = await verify(dsn, max_losses=max_losses, reads_payloads=True)
    async with await psycopg.AsyncConnection.connect(dsn, row_factory=dict_row, autocommit=True) as connection:

        async def rows_of(query: LiteralString) -> list[dict[str, Any]]:
            return await (await connection.execute(query)).fetchall()

        accepted: list[tuple[Task, str]] = [
            ((row["job"], row["node"]), row["effect"]) for row in await rows_of(ACCEPTED)
        ]
        twice = [{"task": task, "effects": sorted(named)} for task, named in effects.duplicates(accepted).items()]
        missing = [
            {"effect": effect, "is": "published, but never finished"}
            for effect in effects.published_unfinished(accepted)
        ]
        findings = Findings(
            stale_writes=[
                row
                for query in (STALE_EVENTS, STALE_EPOCHS, STALE_RESULTS, DOUBLE_CLAIMS, DOUBLE_STARTS)
                for row in await rows_of(query)
            ],
            duplicate_effects=[*twice, *missing, *await rows_of(ACCEPTED_TWICE)],
            tasks_lost=[*await rows_of(LIVE_TASKS), *await rows_of(UNPUBLISHED)],
            history=[str(finding) for finding in report.findings],
        )
    return findings, report
