"""External copies of revisions: orchestrators start the jobs, whose handlers make and remove the copies."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final
from uuid import UUID

import psycopg
from psycopg.rows import dict_row
from pydantic import Field

from dagmaster import faults
from dagmaster.assets.external_copies import (
    EXPORT_WORKFLOWS,
    WITHDRAWAL_WORKFLOW,
    ExternalCopies,
    ExternalCopyJob,
    ExternalCopySituation,
    ExternalCopyState,
    ExternalCopyStep,
    next_step,
    state_of,
)
from dagmaster.assets.states import AssetRevisionKey
from dagmaster.database.connect import Connection, translate_errors
from dagmaster.database.ledger.protocol import NewJob
from dagmaster.database.ledger.submission import insert_jobs
from dagmaster.database.notify.notifier import JOBS, RESULTS, Notifier
from dagmaster.database.queries import query
from dagmaster.database.session import Session, dicts
from dagmaster.dataset_ids import RevisionKey
from dagmaster.errors import UnfitData

Json = dict[str, Any]

STATEMENT_SECONDS: Final = 10.0
LOCK_SECONDS: Final = 2.0

_EXTERNAL_COLUMNS = frozenset(
    {
        "export_due_at",
        "withdrawal_due_at",
        "external_copies",
        "external_job_id",
        "is_external_job_running",
        "external_workflow_id",
        "external_retry_at",
        "external_error",
        "exported_at",
        "withdrawn_at",
    }
)


@dataclass(frozen=True, slots=True)
class DueJob:
    """A job that is needed to make or to remove the external copies of a revision. `due_at` and `failures` distinguish
    the jobs of one revision."""

    step: ExternalCopyStep
    key: AssetRevisionKey
    dataset_id: str
    blob_path: str | None
    due_at: datetime
    failures: int


MakeExternalCopyJob = Callable[[DueJob], NewJob]


class PostgresExternalCopies(Session):
    """The reads and writes of an orchestrator's background task. Any number of orchestrators share the work."""

    def __init__(self, dsn: str, role: str = "external", notifier: Notifier | None = None) -> None:
        super().__init__(
            dsn, role, notifier, statement_timeout_seconds=STATEMENT_SECONDS, lock_timeout_seconds=LOCK_SECONDS
        )

    async def due(self, limit: int) -> list[AssetRevisionKey]:
        async with self._connected() as connection:
            return [AssetRevisionKey(**row) for row in await dicts(connection, "copies_due", {"limit": limit})]

    async def carry_out(self, key: AssetRevisionKey, make_job: MakeExternalCopyJob) -> ExternalCopyStep:
        """Carry out the next step for a revision. A job and the record that it was started are one transaction."""
        async with self._transaction("external_copies") as connection:
            rows = await dicts(connection, "copies_lock", key.values())
            if not rows:
                return ExternalCopyStep.WAIT  # another process decides on it
            step = next_step(situation_of(rows[0], may_retry=rows[0]["may_retry"]))
            await _carry_out(connection, step, key, rows[0], make_job)
        if step in (ExternalCopyStep.EXPORT, ExternalCopyStep.WITHDRAW):
            self._notify(JOBS)
        if step == ExternalCopyStep.CANCEL:
            await self._cancel(rows[0]["external_job_id"])
        return step

    async def _cancel(self, job_id: UUID) -> None:
        """Called after the transaction, because no job may be locked together with a revision."""
        values = {"job_id": job_id, "by": "dagmaster", "reason": "the exported data is no longer public"}
        async with self._connected() as connection:
            await dicts(connection, "request_cancel", values)
        self._notify(RESULTS)


async def _carry_out(
    connection: Connection, step: ExternalCopyStep, key: AssetRevisionKey, row: Json, make_job: MakeExternalCopyJob
) -> None:
    match step:
        case ExternalCopyStep.EXPORT | ExternalCopyStep.WITHDRAW:
            due_at = row["withdrawal_due_at"] or row["export_due_at"]
            due = DueJob(step, key, row["dataset_id"], row["blob_path"], due_at, row["external_failures"])
            job = make_job(due)
            await insert_jobs(connection, [job])
            await connection.execute(query("copies_start"), key.values(job_id=job.job_id))
        case ExternalCopyStep.SETTLE:
            await connection.execute(query("copies_settle"), key.values())
        case ExternalCopyStep.WAIT | ExternalCopyStep.CANCEL:
            pass


def situation_of(row: Mapping[str, Any], *, may_retry: bool = True) -> ExternalCopySituation:
    """The situation in a row of `copies_lock` or `asset_revisions_of`."""
    job = None
    if row["is_external_job_running"] and row["external_job_id"] is not None:
        is_withdrawal = row["external_workflow_id"] == WITHDRAWAL_WORKFLOW
        job = ExternalCopyJob.WITHDRAWAL if is_withdrawal else ExternalCopyJob.EXPORT
    return ExternalCopySituation(
        copies=ExternalCopies(row["external_copies"]),
        is_export_due=row["export_due_at"] is not None,
        is_withdrawal_due=row["withdrawal_due_at"] is not None,
        job=job,
        has_failed=row["external_error"] is not None,
        may_retry=may_retry,
        was_withdrawn=row["withdrawn_at"] is not None,
    )


def with_external_field(row: Json) -> Json:
    """The columns of a revision, with those of its external copies combined in the field `external`."""
    other_columns = {name: value for name, value in row.items() if name not in _EXTERNAL_COLUMNS}
    state, outputs = state_of(situation_of(row)), row["outputs"]
    has_copies = state in (ExternalCopyState.EXPORTED, ExternalCopyState.WITHDRAWING)
    return {
        **other_columns,
        "is_export_due": row["export_due_at"] is not None,
        "external": {
            "state": state,
            "error": row["external_error"],
            "due_at": row["withdrawal_due_at"] or row["export_due_at"],
            "retry_at": row["external_retry_at"],
            "job_id": row["external_job_id"],
            "run_id": outputs.get("adf_run_id"),
            "exported_at": row["exported_at"],
            "withdrawn_at": row["withdrawn_at"],
            "blob_path": outputs.get("external_blob_path") if has_copies else None,
            "stac_path": outputs.get("external_stac_path") if has_copies else None,
            "manifest_path": outputs.get("external_manifest_path") if has_copies else None,
        },
    }


@dataclass(frozen=True, slots=True)
class ExternalCopyTarget:
    """The revision whose copies a job makes or removes. It is passed between handlers as JSON."""

    asset_id: str
    dataset_id: str
    version_ordinal: Annotated[int, Field(ge=0)]
    revision: Annotated[int, Field(ge=1)]
    blob_path: str | None = None

    @property
    def name(self) -> str:
        return f"{self.dataset_id}/v{self.version_ordinal}/r{self.revision}"

    @property
    def key(self) -> AssetRevisionKey:
        return AssetRevisionKey(self.asset_id, self.version_ordinal, self.revision)

    @property
    def documents_key(self) -> RevisionKey:
        return RevisionKey(self.dataset_id, self.version_ordinal, self.revision)

    def __str__(self) -> str:
        return f"version {self.version_ordinal}, revision {self.revision} of '{self.dataset_id}'"


class ExternalCopySession:
    """The reads and writes of a job's handlers about external copies, on a connection of their own."""

    def __init__(self, connection: psycopg.Connection[Any], job_id: UUID, job: ExternalCopyJob) -> None:
        connection.autocommit = True
        self._connection = connection
        self._job_id = job_id
        self._is_export = job == ExternalCopyJob.EXPORT

    def find(self, asset: str, ordinal: int, revision: int | None) -> ExternalCopyTarget:
        """The revision that a job names, if its state allows what the job does. Raises UnfitData with the reason."""
        rows = self._dicts("copies_target", {"asset": asset, "ordinal": ordinal, "revision": revision})
        if not rows:
            message = f"asset '{asset[:80]}' has no version {ordinal}"
            message += "" if revision is None else f" with a revision {revision}"
            raise UnfitData(message, code="external.not-found", hint="correct asset_id, version_ordinal or revision")
        row = rows[0]
        fields = ("asset_id", "dataset_id", "version_ordinal", "revision", "blob_path")
        target = ExternalCopyTarget(**{name: row[name] for name in fields})
        reason = _why_not_public(row)
        if self._is_export and reason:
            raise UnfitData(
                f"{target} cannot be exported: {reason}",
                code="external.not-public",
                hint="approve it with the clearance public; the export then starts automatically",
            )
        if not self._is_export and reason is None:
            raise UnfitData(
                f"{target} is published, so its external copies are not removed",
                code="external.published",
                hint="unpublish it first: `dagmaster assets unpublish`; the copies are then removed automatically",
            )
        return target

    def claim(self, target: ExternalCopyTarget) -> None:
        """Record this job as the one that makes or removes the copies of a revision, unless it is recorded already."""
        if self.is_current(target):
            return
        self.find(target.asset_id, target.version_ordinal, target.revision)
        workflows = list(EXPORT_WORKFLOWS) if self._is_export else [WITHDRAWAL_WORKFLOW]
        with self._transaction():
            # Lock in the same order as the end of a job: the job before the revision.
            job = {"job_id": self._job_id, "workflow_ids": workflows}
            if not self._dicts("copies_job_lock", job):
                raise UnfitData(
                    f"this job is not a running job of {' or '.join(workflows)}",
                    code="external.other-workflow",
                    hint="only these workflows may write to the external zone",
                )
            self._dicts("asset_lock", {"key": target.asset_id})
            values = target.key.values(job_id=self._job_id, is_export=self._is_export)
            if not self._dicts("copies_claim", values):
                raise UnfitData(
                    f"another job makes or removes the external copies of {target}, or the asset has changed",
                    code="external.other-job",
                    hint="see `dagmaster assets show`; it has the state of the copies and the id of their job",
                )

    def is_current(self, target: ExternalCopyTarget) -> bool:
        """Whether this job still makes or removes the copies, and the state of the asset still requires that."""
        values = target.key.values(job_id=self._job_id, is_export=self._is_export)
        return bool(self._dicts("copies_is_current", values)[0]["is_current"])

    def require_export_again(self, target: ExternalCopyTarget) -> None:
        """Make the export due again if the revision is exported: this job, which is not current, has removed copies."""
        with translate_errors():
            self._connection.execute(query("copies_require_again").encode(), target.key.values())

    def batches(self, target: ExternalCopyTarget, size: int) -> list[tuple[str, int]]:
        """The id of the last document of each batch, and the number of documents."""
        rows = self._dicts("copies_batches", target.documents_key.values(size=size))
        return [(row["last_id"], row["documents"]) for row in rows]

    def documents(self, target: ExternalCopyTarget, after: str | None, last_id: str) -> list[tuple[str, Json]]:
        """Ids and contents, in the order of the ids. The collection has the empty id."""
        rows = self._dicts("copies_documents", target.documents_key.values(after=after, last_id=last_id))
        return [(row["document_id"], row["content"]) for row in rows]

    def collection(self, target: ExternalCopyTarget) -> Json | None:
        rows = self._dicts("copies_collection", target.documents_key.values())
        return rows[0]["content"] if rows else None

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with translate_errors():
            with self._connection.transaction():
                yield
                faults.reach("external_claim.before-commit")
            faults.reach("external_claim.after-commit")

    def _dicts(self, name: str, values: Mapping[str, Any]) -> list[Json]:
        with translate_errors(), self._connection.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(query(name).encode(), values).fetchall()


def _why_not_public(row: Mapping[str, Any]) -> str | None:
    """Why a revision is not approved and public; None if it is."""
    if row["is_deleted"]:
        return "it is deleted"
    if row["approved_revision"] != row["revision"]:
        return "it is not approved"
    if row["is_unpublished"]:
        return "it is unpublished"
    if row["is_purged"]:
        return "its data was purged"
    if row["clearance_state"] != "public":
        return f"its clearance is '{row['clearance_state']}', not 'public'"
    return None
