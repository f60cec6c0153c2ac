"""Submit, rerun and cancel jobs, and the queues and dead letters around them: the SubmissionLedger on PostgreSQL."""

from collections.abc import Mapping, Sequence
from typing import Any, Unpack
from uuid import UUID

import orjson
from psycopg.types.json import Jsonb

from dagmaster.database.connect import Connection
from dagmaster.database.ledger.connection import fetch, to_json
from dagmaster.database.ledger.loading import JobLoading
from dagmaster.database.ledger.protocol import (
    ChooseRerun,
    NewJob,
    QueueChange,
    key_conflict,
    no_such_job,
    opening_nodes,
)
from dagmaster.database.notify.notifier import JOBS, RESULTS, tasks_topic
from dagmaster.database.queries import query
from dagmaster.jobs.rerun import Rerun
from dagmaster.jobs.states import JobStatus
from dagmaster.workflows.model import Workflow


class PostgresSubmissions(JobLoading):
    """The SubmissionLedger on PostgreSQL."""

    async def create_jobs(self, jobs: Sequence[NewJob]) -> list[UUID]:
        if not jobs:
            return []
        async with self._transaction("submit") as connection:
            created = await insert_jobs(connection, jobs)
        self._notify(JOBS)
        return created

    async def create_once(self, job: NewJob, request_hash: str, *, force: bool = False) -> UUID:
        key = key_values(job, request_hash, force=force)
        async with self._transaction("submit_once") as connection:
            (reserved,) = await fetch(connection, "reserve_key", key)
            if reserved.request_hash != request_hash:
                raise key_conflict(job, reserved.job_id)
            job_id: UUID = reserved.job_id
            if job_id == job.job_id:
                await insert_jobs(connection, [job])
        if job_id == job.job_id:
            self._notify(JOBS)
        return job_id

    async def enqueue_message(self, message_id: str, queue: str, body: Any) -> bool:
        values = {"message_id": message_id, "queue": queue, "body": Jsonb(body)}
        is_new = bool(await self._fetch("enqueue_message", values))
        if is_new:
            self._notify(JOBS)
        return is_new

    async def has_message(self, message_id: str, queue: str) -> bool:
        return bool(await self._fetch("has_message", {"message_id": message_id, "queue": queue}))

    async def replay_dead_letter(self, dead_letter_id: UUID, queue: str) -> bool:
        is_replayed = bool(await self._fetch("replay_dead_letter", {"dead_letter_id": dead_letter_id, "queue": queue}))
        if is_replayed:
            self._notify(JOBS)
        return is_replayed

    async def drop_dead_letter(self, dead_letter_id: UUID) -> None:
        await self._execute("drop_dead_letter", {"dead_letter_id": dead_letter_id})

    async def rerun(self, job_id: UUID, choose: ChooseRerun, event_data: Mapping[str, Any]) -> tuple[Rerun, int]:
        async with self._transaction("rerun") as connection:
            if not await fetch(connection, "lock_ended_job", {"job_id": job_id}):
                raise no_such_job(job_id)
            (job,) = await self._load(connection, [job_id])
            rerun = choose(job)
            values = {
                "job_id": job_id,
                "node_ids": list(rerun.nodes),
                "reexpanded": list(rerun.reexpanded),
                "fan_outs": list(rerun.children),
                "children": list(rerun.single),
                "event_data": to_json(event_data),
                "timeout_seconds": rerun.timeout_seconds,
                "discards_checkpoints": rerun.discards_checkpoints,
            }
            (row,) = await fetch(connection, "rerun", values)
        self._notify(JOBS)
        return rerun, row.resume_count

    async def request_cancel(self, job_id: UUID, *, by: str | None, reason: str | None) -> tuple[JobStatus, bool]:
        rows = await self._fetch("request_cancel", {"job_id": job_id, "by": by, "reason": reason})
        if not rows:
            raise no_such_job(job_id)
        self._notify(RESULTS)
        return JobStatus(rows[0].status), rows[0].is_new

    async def set_queue(self, queue: str, **changes: Unpack[QueueChange]) -> None:
        values = {
            "queue": queue,
            "sets_limit": "max_running" in changes,
            "max_running": changes.get("max_running"),
            "is_paused": changes.get("is_paused"),
        }
        await self._execute("set_queue", values)
        self._notify(tasks_topic(queue))


def key_values(job: NewJob, request_hash: str, *, force: bool = False) -> dict[str, Any]:
    return {
        "submitted_by": job.submitted_by or "",
        "idempotency_key": job.idempotency_key,
        "request_hash": request_hash,
        "job_id": job.job_id,
        "force": force,
    }


async def insert_jobs(connection: Connection, jobs: Sequence[NewJob]) -> list[UUID]:
    """Insert jobs in the caller's transaction. Returns the ids of jobs that did not exist."""
    workflows = {id(job.workflow): job.workflow for job in jobs}  # many jobs share one workflow: encode it once
    definitions = {key: _definition(workflow) for key, workflow in workflows.items()}
    by_hash = {row["definition_hash"]: row for row in definitions.values()}
    values = {"definitions": to_json(list(by_hash.values()))}
    await connection.execute(query("insert_definitions"), values, prepare=True)
    openings = {key: _opening(workflow, definitions[key]) for key, workflow in workflows.items()}
    new = [_row(job) | openings[id(job.workflow)] for job in jobs]
    return [row.job_id for row in await fetch(connection, "create_jobs", {"jobs": to_json(new)})]


def _definition(workflow: Workflow) -> dict[str, Any]:
    return {
        "definition_hash": workflow.content_hash(),
        "workflow_id": workflow.workflow_id,
        "workflow_version": workflow.version,
        "body": workflow.body(),
    }


def _opening(workflow: Workflow, definition: dict[str, Any]) -> dict[str, Any]:
    """The columns that are the same in all new jobs of a workflow."""
    columns = ("definition_hash", "workflow_id", "workflow_version")
    return {
        **{name: definition[name] for name in columns},
        "timeout_seconds": workflow.timeout_seconds,
        "nodes": orjson.Fragment(orjson.dumps(opening_nodes(workflow))),
    }


_JOB_COLUMNS = (
    "job_id",
    "input_params",
    "priority",
    "correlation_id",
    "submitted_by",
    "callback_url",
    "subscriber",
    "idempotency_key",
    "message_id",
    "traceparent",
    "asset_id",
    "version_ordinal",
)


def _row(job: NewJob) -> dict[str, Any]:
    return {name: getattr(job, name) for name in _JOB_COLUMNS}
