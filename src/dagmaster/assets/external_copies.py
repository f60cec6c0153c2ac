"""External copies of a revision: whether they are wanted, which of them exist, and what to do about the difference.

Decisions on an asset mark its revisions: `export_due_at` when the copies must exist, `withdrawal_due_at` when they must
not. A job makes or removes them; at most one such job runs for each revision.

    wanted   copies       job runs       what to do
    yes      none, some   –              export, unless the last export for this decision has failed
    yes      all          –              nothing is left to do
    yes      any          export         wait
    yes      any          withdrawal     wait; the export follows
    no       none         –              nothing is left to do
    no       some, all    –              withdraw; after a failure, again later
    no       any          export         cancel the export; the withdrawal follows when it has ended
    no       any          withdrawal     wait

`next_step` reads no clock and touches no database.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

EXPORT_WORKFLOW: Final = "external_export"
EXPORT_WORKFLOWS: Final = (EXPORT_WORKFLOW, "adf_export")
WITHDRAWAL_WORKFLOW: Final = "unpublish"


class ExternalCopies(StrEnum):
    """Which objects of a revision are in the external zone. From the start of a job until its end it is `some`."""

    NONE = "none"
    SOME = "some"
    ALL = "all"


class ExternalCopyJob(StrEnum):
    EXPORT = "export"
    WITHDRAWAL = "withdrawal"


class ExternalCopyState(StrEnum):
    """The state of the copies in one word, for people."""

    NONE = "none"
    DUE = "due"
    RUNNING = "running"
    EXPORTED = "exported"
    FAILED = "failed"
    WITHDRAWING = "withdrawing"
    WITHDRAWN = "withdrawn"


class ExternalCopyStep(StrEnum):
    WAIT = "wait"
    EXPORT = "export"
    WITHDRAW = "withdraw"
    CANCEL = "cancel"  # the export that runs
    SETTLE = "settle"  # clear the mark: the copies are as wanted


@dataclass(frozen=True, slots=True)
class ExternalCopySituation:
    """The state of a revision that its external copies depend on. `is_export_due` and `is_withdrawal_due` are never
    both set. `has_failed`: the last job for this decision has failed. `may_retry`: the pause after a failed withdrawal
    is over."""

    copies: ExternalCopies = ExternalCopies.NONE
    is_export_due: bool = False
    is_withdrawal_due: bool = False
    job: ExternalCopyJob | None = None
    has_failed: bool = False
    may_retry: bool = True
    was_withdrawn: bool = False


def next_step(revision: ExternalCopySituation) -> ExternalCopyStep:
    if revision.is_withdrawal_due:
        return _towards_none(revision)
    if revision.is_export_due:
        return _towards_all(revision)
    return ExternalCopyStep.WAIT


def _towards_none(revision: ExternalCopySituation) -> ExternalCopyStep:
    match revision.job:
        case ExternalCopyJob.EXPORT:
            return ExternalCopyStep.CANCEL
        case ExternalCopyJob.WITHDRAWAL:
            return ExternalCopyStep.WAIT
    if revision.copies == ExternalCopies.NONE:
        return ExternalCopyStep.SETTLE
    return ExternalCopyStep.WITHDRAW if revision.may_retry else ExternalCopyStep.WAIT


def _towards_all(revision: ExternalCopySituation) -> ExternalCopyStep:
    if revision.job is not None:
        return ExternalCopyStep.WAIT
    if revision.copies == ExternalCopies.ALL:
        return ExternalCopyStep.SETTLE
    return ExternalCopyStep.WAIT if revision.has_failed else ExternalCopyStep.EXPORT


def state_of(revision: ExternalCopySituation) -> ExternalCopyState:
    if revision.is_withdrawal_due or revision.job == ExternalCopyJob.WITHDRAWAL:
        has_copies = revision.copies != ExternalCopies.NONE or revision.job is not None
        return ExternalCopyState.WITHDRAWING if has_copies else ExternalCopyState.NONE
    if revision.job == ExternalCopyJob.EXPORT:
        return ExternalCopyState.RUNNING
    if revision.is_export_due:
        return ExternalCopyState.FAILED if revision.has_failed else ExternalCopyState.DUE
    if revision.copies == ExternalCopies.ALL:
        return ExternalCopyState.EXPORTED
    return ExternalCopyState.WITHDRAWN if revision.was_withdrawn else ExternalCopyState.NONE
