"""What the janitor reads and writes.

Each rule runs in a short transaction of its own: it takes an advisory lock (a second janitor skips the rule), reads,
acts only where the rows are still as they were read, and writes a row for each action. A dry run ends no session and
deletes no file, and rolls back everything else.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final
from uuid import UUID

import orjson
import psycopg

from dagmaster.database.connect import Connection
from dagmaster.database.ledger.protocol import Claim
from dagmaster.database.notify.notifier import JOBS, Notifier
from dagmaster.database.session import Session, dicts
from dagmaster.jobs.model import JanitorAction

STATEMENT_SECONDS: Final = 10.0
LOCK_SECONDS: Final = 0.5
ROWS_PER_RUN: Final = 200  # further rows are left to the next run
DELETED_PER_RUN_BYTES: Final = 256 * 1024 * 1024
REPEAT_SECONDS: Final = 3600.0  # a finding that is only reported is reported again after this time
MAX_REASON_CHARACTERS: Final = 2000

_NEGLECT_REASONS = {
    "cancel_unheeded": "has a cancel request",
    "deadline_passed": "is past its deadline",
    "lease_lapsed": "has tasks whose leases have expired",
    "task_overran": "has tasks that exceed their timeout",
    "task_expired": "has tasks that exceeded their timeout in the queue",
    "results_unread": "has results that were not processed",
    "wait_over": "has nodes whose wait is over",
    "job_stalled": "has nodes that have not ended, but none of them runs or waits",
    "job_unfinished": "has not ended, although all of its nodes have",
}


@dataclass(frozen=True, slots=True)
class JanitorThresholds:
    """The ages, in seconds, from which the janitor acts."""

    orphan_after: float  # an instance without a heartbeat for longer is dead; others take its jobs over
    neglected: float
    queued: float
    unused: float = 86_400.0  # a payload that no row refers to


@dataclass(frozen=True, slots=True)
class StorageRetention:
    """How long the files of a job stay in storage after its end, in seconds. None: as long as the job itself.

    `failed` is also for jobs that were cancelled or succeeded in part: a resume may need their files. Files of an
    unknown job are removed if they are older than `deleted`; with None they belong to another installation.
    """

    scratch: float
    completed: float
    failed: float | None
    deleted: float | None


@dataclass(frozen=True, slots=True)
class JobFiles:
    """Which files a job has in storage, or which of them may be removed. Without a status the job was deleted.

    `has_outputs`: the job made a dataset of its own, which belongs to no asset and stays as long as the job.
    """

    job_id: UUID
    has_scratch: bool
    has_blobs: bool
    has_outputs: bool
    status: str | None = None


@dataclass(frozen=True, slots=True)
class RemovedFiles:
    files: JobFiles
    objects: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SweepResult:
    """The actions of one run, and the rules that another janitor was running."""

    actions: tuple[JanitorAction, ...]
    left_to_others: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _JanitorFinding:
    """What `janitor_note` records, unless the same was recorded a short time ago."""

    action_type: str
    target_type: str
    target_id: str
    reason: str
    detail: Mapping[str, Any]


JanitorRule = Callable[[Connection, UUID, JanitorThresholds, bool], Awaitable[list[JanitorAction]]]
Remove = Callable[[Sequence[JobFiles]], Awaitable[Sequence[RemovedFiles]]]


class PostgresJanitor(Session):
    def __init__(self, dsn: str, role: str = "janitor", notifier: Notifier | None = None) -> None:
        super().__init__(
            dsn, role, notifier, statement_timeout_seconds=STATEMENT_SECONDS, lock_timeout_seconds=LOCK_SECONDS
        )

    async def sweep(self, run_id: UUID, thresholds: JanitorThresholds, *, is_dry: bool = False) -> SweepResult:
        actions: list[JanitorAction] = []
        skipped: list[str] = []
        for kind, rule in RULES.items():
            rule_actions = await self._apply(kind, rule, run_id, thresholds, is_dry)
            if rule_actions is None:
                skipped.append(kind)
            else:
                actions += rule_actions
        return SweepResult(tuple(actions), tuple(skipped))

    async def tidy(
        self,
        run_id: UUID,
        files: Sequence[JobFiles],
        retention: StorageRetention,
        limit: int,
        remove: Remove,
        *,
        is_dry: bool = False,
    ) -> SweepResult:
        """Let `remove` delete the files of jobs that have ended. These jobs are locked until it has returned."""

        async def act(connection: Connection) -> list[JanitorAction]:
            removable = await _lock_removable(connection, files, retention, limit)
            return await _note_removed(connection, run_id, await remove(removable)) if removable else []

        actions = await self._guarded("storage", act, is_dry)
        return SweepResult((), ("storage",)) if actions is None else SweepResult(tuple(actions), ())

    async def _apply(
        self, kind: str, rule: JanitorRule, run_id: UUID, thresholds: JanitorThresholds, is_dry: bool
    ) -> list[JanitorAction] | None:
        """Apply a rule, and notify orchestrators if it has released jobs; None if another janitor applies it."""
        actions = await self._guarded(kind, lambda connection: rule(connection, run_id, thresholds, is_dry), is_dry)
        if actions and rule is _release_neglected and not is_dry:
            self._notify(JOBS)
        return actions

    async def _guarded(
        self, kind: str, act: Callable[[Connection], Awaitable[list[JanitorAction]]], is_dry: bool
    ) -> list[JanitorAction] | None:
        actions = None
        async with self._transaction("janitor") as connection:
            (lock,) = await dicts(connection, "janitor_lock", {"kind": kind})
            if lock["is_acquired"]:
                actions = await act(connection)
            if is_dry:
                raise psycopg.Rollback
        return actions

    async def note_stuck(self, run_id: UUID, owner_id: UUID, claim: Claim, error: str) -> list[JanitorAction]:
        """Record that an owner has failed repeatedly to advance a job."""
        values = {
            "run_id": run_id,
            "job_id": claim.job_id,
            "epoch": claim.epoch,
            "owner_id": owner_id,
            "repeat": REPEAT_SECONDS,
            "reason": f"the job cannot be advanced: {error}"[:MAX_REASON_CHARACTERS],
            "detail": _json({"owner_id": owner_id, "epoch": claim.epoch}),
        }
        async with self._transaction("janitor") as connection:
            return _actions(await dicts(connection, "janitor_note_stuck", values))


async def _release_neglected(
    connection: Connection, run_id: UUID, thresholds: JanitorThresholds, _is_dry: bool
) -> list[JanitorAction]:
    """The outcome of a job is never written here: the next owner reads the job and decides."""
    values = {"neglected_after": thresholds.neglected, "orphan_after": thresholds.orphan_after, "limit": ROWS_PER_RUN}
    rows = await dicts(connection, "janitor_neglected", values)
    findings = [
        {
            **{name: row[name] for name in ("job_id", "owner_id", "epoch", "version", "action_type")},
            "reason": f"the job {_NEGLECT_REASONS[row['action_type']]}, and its owner is alive but has not updated it "
            f"for {row['seconds']:.0f} s: it is released for another owner",
            "detail": {"owner_id": row["owner_id"], "epoch": row["epoch"], "seconds": round(row["seconds"], 1)},
        }
        for row in rows
    ]
    if not findings:
        return []
    return _actions(await dicts(connection, "janitor_release", {"run_id": run_id, "findings": _json(findings)}))


async def _report_unserved(
    connection: Connection, run_id: UUID, thresholds: JanitorThresholds, _is_dry: bool
) -> list[JanitorAction]:
    values = {"queued": thresholds.queued, "orphan_after": thresholds.orphan_after, "limit": ROWS_PER_RUN}
    rows = await dicts(connection, "janitor_unserved", values)
    findings = [
        _JanitorFinding(
            "task_unserved",
            "task",
            row["task_id"],
            f"{row['tasks']} tasks of the job have waited in queue {row['queue']} for up to {row['seconds']:.0f} s, "
            f"and no live worker serves that queue with handler {row['handler']}",
            {name: row[name] for name in ("job_id", "queue", "handler", "tasks")},
        )
        for row in rows
    ]
    return await _note(connection, run_id, findings)


async def _report_unread(
    connection: Connection, run_id: UUID, thresholds: JanitorThresholds, _is_dry: bool
) -> list[JanitorAction]:
    rows = await dicts(connection, "janitor_unread", {"queued": thresholds.queued, "limit": ROWS_PER_RUN})
    findings = [
        _JanitorFinding(
            "messages_unread",
            "queue",
            row["queue"],
            f"{row['messages']} submissions have waited in queue {row['queue']} for up to {row['seconds']:.0f} s, and "
            "no orchestrator takes them",
            {"messages": row["messages"], "oldest": row["oldest"]},
        )
        for row in rows
    ]
    return await _note(connection, run_id, findings)


async def _end_idle(
    connection: Connection, run_id: UUID, thresholds: JanitorThresholds, is_dry: bool
) -> list[JanitorAction]:
    """End our own sessions; sessions of other programs are only reported."""
    findings = []
    for row in await dicts(connection, "janitor_idle", {"idle_after": thresholds.neglected, "limit": ROWS_PER_RUN}):
        if row["is_ours"] and not is_dry:
            values = {"pid": row["pid"], "xact_start": row["xact_start"], "idle_after": thresholds.neglected}
            if not await dicts(connection, "janitor_end_session", values):
                continue
        action = "it is ended" if row["is_ours"] else "it does not belong to dagmaster and is not ended"
        findings.append(
            _JanitorFinding(
                "session_ended" if row["is_ours"] else "session_idle",
                "session",
                str(row["pid"]),
                f"session {row['pid']} ({row['application_name']}) has kept a transaction open for "
                f"{row['seconds']:.0f} s without executing a statement: {action}",
                {name: row[name] for name in ("application_name", "role", "xact_start")},
            )
        )
    return await _note(connection, run_id, findings)


async def _delete_unused(
    connection: Connection, run_id: UUID, thresholds: JanitorThresholds, _is_dry: bool
) -> list[JanitorAction]:
    """Delete unused payloads. One action records all of them, because a row for each would contain the same text."""
    values = {"grace": thresholds.unused, "limit": ROWS_PER_RUN, "max_bytes": DELETED_PER_RUN_BYTES}
    (deleted,) = await dicts(connection, "janitor_unused", values)
    if not deleted["payloads"]:
        return []
    reason = (
        f"{deleted['payloads']} payloads of {deleted['jobs']} jobs with {deleted['bytes']:,} bytes were stored more "
        f"than {thresholds.unused:.0f} s ago, and no row has referred to them since: they are deleted"
    )
    return await _note(
        connection, run_id, [_JanitorFinding("payloads_unused", "payloads", str(run_id), reason, deleted)]
    )


RULES: Mapping[str, JanitorRule] = {
    "neglected": _release_neglected,
    "unserved": _report_unserved,
    "unread": _report_unread,
    "idle": _end_idle,
    "unused": _delete_unused,
}


async def _lock_removable(
    connection: Connection, files: Sequence[JobFiles], retention: StorageRetention, limit: int
) -> list[JobFiles]:
    values = {
        "job_ids": [each.job_id for each in files],
        "with_scratch": [each.has_scratch for each in files],
        "with_blobs": [each.has_blobs for each in files],
        "with_outputs": [each.has_outputs for each in files],
        **asdict(retention),
        "limit": limit,
    }
    return [JobFiles(**row) for row in await dicts(connection, "janitor_leftovers", values)]


async def _note_removed(connection: Connection, run_id: UUID, removed: Sequence[RemovedFiles]) -> list[JanitorAction]:
    """Each removal is recorded, even if files of the same job were removed before: an attempt may have written files
    since."""
    findings = [
        _JanitorFinding(
            "files_removed",
            "job",
            str(each.files.job_id),
            _reason(each),
            {
                "status": each.files.status,
                "objects": each.objects,
                "bytes": each.size_bytes,
                "has_scratch": each.files.has_scratch,
            },
        )
        for each in removed
    ]
    return await _note(connection, run_id, findings, repeat_seconds=0.0)


def _reason(removed: RemovedFiles) -> str:
    files = removed.files
    parts = []
    if files.has_blobs or files.has_outputs:
        kind = "objects" if files.has_outputs else "intermediate objects"
        parts.append(f"its {removed.objects} {kind} with {removed.size_bytes:,} bytes")
    if files.has_scratch:
        parts.append("its scratch folders")
    state = f"has ended ({files.status})" if files.status else "was deleted"
    return f"the job {state}: {' and '.join(parts)} are removed"


async def _note(
    connection: Connection, run_id: UUID, findings: Sequence[_JanitorFinding], repeat_seconds: float = REPEAT_SECONDS
) -> list[JanitorAction]:
    """Record findings, except those recorded less than `repeat_seconds` ago."""
    if not findings:
        return []
    values = {"run_id": run_id, "findings": _json(findings), "repeat": repeat_seconds}
    return _actions(await dicts(connection, "janitor_note", values))


def _actions(rows: Sequence[Mapping[str, Any]]) -> list[JanitorAction]:
    return [JanitorAction.model_validate(dict(row)) for row in rows]


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()
