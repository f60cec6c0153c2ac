"""What the janitor reads and writes.

Each kind of thing is looked for in a short transaction of its own: an advisory lock (whoever comes second leaves it to the
first), the look, and one statement that writes action and log row together where all is still as it was seen. A dry run does
the same and rolls back.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final
from uuid import UUID

import orjson
import psycopg

from dagmaster.database.connect import Connection
from dagmaster.database.ledger.protocol import Claim
from dagmaster.database.queries import query
from dagmaster.database.session import OwnSession, dicts
from dagmaster.jobs.model import JanitorAction

STATEMENT_SECONDS: Final = 10.0
LOCK_SECONDS: Final = 0.5
FOUND_AT_ONCE: Final = 200  # what is left comes with the next run
DELETED_AT_ONCE_BYTES: Final = 256 * 1024 * 1024
REPEAT_SECONDS: Final = 3600.0  # what is only told of is told again after so long
LONGEST_REASON: Final = 2000

_NEGLECT = {
    "cancel_unheeded": "was to be cancelled",
    "deadline_passed": "is past its deadline",
    "lease_lapsed": "has tasks whose leases have lapsed",
    "task_overran": "has tasks that run past their time",
    "task_expired": "has tasks that waited past their time in the queue",
    "results_unread": "has results that nobody has looked at",
    "wait_over": "has nodes whose wait is over",
    "job_stalled": "has nodes left, but nothing of it runs or waits",
    "job_unfinished": "has only nodes that have ended, and is not finished",
}


@dataclass(frozen=True, slots=True)
class JanitorThresholds:
    """How long is too long, in seconds."""

    orphan_after: float  # an instance that is silent for longer is dead, which is not the janitor's matter
    neglected: float
    queued: float
    unused: float = 86_400.0  # a payload that nothing refers to


@dataclass(frozen=True, slots=True)
class StorageRetention:
    """How long what jobs have in storage stays after their end, in seconds. None: as long as the job itself."""

    scratch: float
    completed: float
    failed: float | None  # or cancelled, or succeeded in part: a resume may need it
    deleted: (
        float | None
    )  # only what is older than this can have been deleted; None: nothing was, what is unknown is another's


@dataclass(frozen=True, slots=True)
class JobFiles:
    """What a job has in storage, or what of it may go. Without a status: the job was deleted."""

    job_id: UUID
    has_scratch: bool
    has_blobs: bool
    status: str | None = None


@dataclass(frozen=True, slots=True)
class RemovedFiles:
    leftovers: JobFiles
    objects: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SweepResult:
    """What one run did, and what it left to another janitor that was at it."""

    actions: tuple[JanitorAction, ...]
    left_to_others: tuple[str, ...]


Rule = Callable[[Connection, UUID, JanitorThresholds, bool], Awaitable[list[JanitorAction]]]
Remove = Callable[[Sequence[JobFiles]], Awaitable[Sequence[RemovedFiles]]]


class PostgresJanitor(OwnSession):
    def __init__(self, dsn: str, role: str = "janitor") -> None:
        super().__init__(dsn, role, "janitor", statement_seconds=STATEMENT_SECONDS, lock_seconds=LOCK_SECONDS)

    async def sweep(self, run_id: UUID, patience: JanitorThresholds, *, is_dry: bool = False) -> SweepResult:
        actions: list[JanitorAction] = []
        left: list[str] = []
        for kind, rule in RULES.items():
            done = await self._apply(kind, rule, run_id, patience, is_dry)
            if done is None:
                left.append(kind)
            else:
                actions += done
        return SweepResult(tuple(actions), tuple(left))

    async def tidy(
        self,
        run_id: UUID,
        found: Sequence[JobFiles],
        graces: StorageRetention,
        limit: int,
        remove: Remove,
        *,
        is_dry: bool = False,
    ) -> SweepResult:
        """Let `remove` take away what jobs that are over have in storage. Nobody can resume them until it has returned."""

        async def act(connection: Connection) -> list[JanitorAction]:
            over = await _over(connection, found, graces, limit)
            return await _keep_removed(connection, run_id, await remove(over)) if over else []

        done = await self._guarded("storage", act, is_dry)
        return SweepResult((), ("storage",)) if done is None else SweepResult(tuple(done), ())

    async def _apply(
        self, kind: str, rule: Rule, run_id: UUID, patience: JanitorThresholds, is_dry: bool
    ) -> list[JanitorAction] | None:
        return await self._guarded(kind, lambda connection: rule(connection, run_id, patience, is_dry), is_dry)

    async def _guarded(
        self, kind: str, act: Callable[[Connection], Awaitable[list[JanitorAction]]], is_dry: bool
    ) -> list[JanitorAction] | None:
        done = None
        async with self._transaction() as connection:
            (lock,) = await dicts(connection, "janitor_lock", {"kind": kind})
            if lock["is_ours"]:
                done = await act(connection)
            if is_dry:
                raise psycopg.Rollback
        return done

    async def note_stuck(self, run_id: UUID, owner_id: UUID, claim: Claim, error: str) -> list[JanitorAction]:
        """An owner that failed at a job again and again tells of it."""
        values = {
            "run_id": run_id, "job_id": claim.job_id, "epoch": claim.epoch, "owner_id": owner_id, "repeat": REPEAT_SECONDS,
            "reason": f"the job can't be advanced: {error}"[:LONGEST_REASON],
            "detail": _json({"owner_id": owner_id, "epoch": claim.epoch}),
        }  # fmt: skip
        async with self._transaction() as connection:
            return _actions(await dicts(connection, "janitor_note_stuck", values))


async def _release_neglected(
    connection: Connection, run_id: UUID, patience: JanitorThresholds, _is_dry: bool
) -> list[JanitorAction]:
    """The outcome of a job is never written here: the next owner finds out by itself."""
    values = {"patience": patience.neglected, "orphan_after": patience.orphan_after, "limit": FOUND_AT_ONCE}
    found = await dicts(connection, "janitor_neglected", values)
    seen = [
        {
            **{name: row[name] for name in ("job_id", "owner_id", "epoch", "version", "action_type")},
            "reason": f"the job {_NEGLECT[row['action_type']]}, and its owner, who lives, has not touched it for "
            f"{row['seconds']:.0f} s: it goes to another owner",
            "detail": {"owner_id": row["owner_id"], "epoch": row["epoch"], "seconds": round(row["seconds"], 1)},
        }
        for row in found
    ]
    return await _write(connection, "janitor_release", run_id, seen)


async def _tell_of_unserved(
    connection: Connection, run_id: UUID, patience: JanitorThresholds, _is_dry: bool
) -> list[JanitorAction]:
    values = {"queued": patience.queued, "orphan_after": patience.orphan_after, "limit": FOUND_AT_ONCE}
    found = await dicts(connection, "janitor_unserved", values)
    seen = [
        {
            "action_type": "task_unserved", "target_type": "task", "target_id": row["task_id"],
            "reason": f"{row['tasks']} tasks of its job wait in queue {row['queue']} for up to {row['seconds']:.0f} s, and "
            f"no live worker serves that queue with handler {row['handler']}",
            "detail": {name: row[name] for name in ("job_id", "queue", "handler", "tasks")},
        }
        for row in found
    ]  # fmt: skip
    return await _write(connection, "janitor_note", run_id, seen)


async def _tell_of_unread(
    connection: Connection, run_id: UUID, patience: JanitorThresholds, _is_dry: bool
) -> list[JanitorAction]:
    found = await dicts(connection, "janitor_unread", {"queued": patience.queued, "limit": FOUND_AT_ONCE})
    seen = [
        {
            "action_type": "messages_unread", "target_type": "queue", "target_id": row["queue"],
            "reason": f"{row['messages']} submissions wait in queue {row['queue']} for up to {row['seconds']:.0f} s, and "
            "no orchestrator takes them",
            "detail": {"messages": row["messages"], "oldest": row["oldest"]},
        }
        for row in found
    ]  # fmt: skip
    return await _write(connection, "janitor_note", run_id, seen)


async def _end_idle(
    connection: Connection, run_id: UUID, patience: JanitorThresholds, is_dry: bool
) -> list[JanitorAction]:
    """Ours are ended; of others only the administrator can know."""
    found = await dicts(connection, "janitor_idle", {"patience": patience.neglected, "limit": FOUND_AT_ONCE})
    seen = []
    for row in found:
        if row["is_ours"] and not is_dry:
            values = {"pid": row["pid"], "xact_start": row["xact_start"], "patience": patience.neglected}
            if not await dicts(connection, "janitor_end_session", values):
                continue
        what = "it is ended" if row["is_ours"] else "it is not ours to end"
        seen.append(
            {
                "action_type": "session_ended" if row["is_ours"] else "session_idle",
                "target_type": "session", "target_id": str(row["pid"]),
                "reason": f"session {row['pid']} ({row['application_name']}) has kept a transaction open for "
                f"{row['seconds']:.0f} s without doing anything: {what}",
                "detail": {name: row[name] for name in ("application_name", "role", "xact_start")},
            }
        )  # fmt: skip
    return await _write(connection, "janitor_note", run_id, seen)


async def _delete_unused(
    connection: Connection, run_id: UUID, patience: JanitorThresholds, _is_dry: bool
) -> list[JanitorAction]:
    """One action for all of them: each would say the same."""
    values = {"grace": patience.unused, "limit": FOUND_AT_ONCE, "most_bytes": DELETED_AT_ONCE_BYTES}
    (found,) = await dicts(connection, "janitor_unused", values)
    if not found["payloads"]:
        return []
    seen = {
        "action_type": "payloads_unused", "target_type": "payloads", "target_id": str(run_id),
        "reason": f"{found['payloads']} payloads of {found['jobs']} jobs with {found['bytes']:,} bytes were stored more than "
        f"{patience.unused:.0f} s ago, and nothing has referred to them since: they are deleted",
        "detail": found,
    }  # fmt: skip
    return await _write(connection, "janitor_note", run_id, [seen])


RULES: Mapping[str, Rule] = {
    "neglected": _release_neglected,
    "unserved": _tell_of_unserved,
    "unread": _tell_of_unread,
    "idle": _end_idle,
    "unused": _delete_unused,
}


async def _over(
    connection: Connection, found: Sequence[JobFiles], graces: StorageRetention, limit: int
) -> list[JobFiles]:
    values = {
        "job_ids": [each.job_id for each in found],
        "with_scratch": [each.has_scratch for each in found],
        "with_blobs": [each.has_blobs for each in found],
        **asdict(graces),
        "limit": limit,
    }
    return [JobFiles(**row) for row in await dicts(connection, "janitor_leftovers", values)]


async def _keep_removed(connection: Connection, run_id: UUID, removed: Sequence[RemovedFiles]) -> list[JanitorAction]:
    """Each is kept, also where files of the same job were removed a while ago: an attempt may have gone on writing."""
    seen = [
        {
            "action_type": "files_removed", "target_type": "job", "target_id": str(each.leftovers.job_id),
            "reason": _reason(each),
            "detail": {
                "status": each.leftovers.status, "objects": each.objects, "bytes": each.size_bytes,
                "has_scratch": each.leftovers.has_scratch,
            },
        }
        for each in removed
    ]  # fmt: skip
    return _actions(await dicts(connection, "janitor_note", {"run_id": run_id, "seen": _json(seen), "repeat": 0.0}))


def _reason(removed: RemovedFiles) -> str:
    leftovers = removed.leftovers
    parts = []
    if leftovers.has_blobs:
        parts.append(f"its {removed.objects} intermediate objects with {removed.size_bytes:,} bytes")
    if leftovers.has_scratch:
        parts.append("its scratch folders")
    what = f"is over ({leftovers.status})" if leftovers.status else "was deleted"
    return f"the job {what}: {' and '.join(parts)} are removed"


async def _write(connection: Connection, name: str, run_id: UUID, seen: Sequence[Any]) -> list[JanitorAction]:
    if not seen:
        return []
    values: dict[str, Any] = {"run_id": run_id, "seen": _json(seen)}
    if "%(repeat)s" in query(name):
        values["repeat"] = REPEAT_SECONDS
    return _actions(await dicts(connection, name, values))


def _actions(rows: Sequence[Mapping[str, Any]]) -> list[JanitorAction]:
    return [JanitorAction.model_validate(dict(row)) for row in rows]


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()
