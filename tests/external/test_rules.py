"""The next step for the external copies of a revision, in every possible situation."""

from itertools import product

import pytest

from dagmaster.assets.external_copies import (
    ExternalCopies,
    ExternalCopyJob,
    ExternalCopySituation,
    ExternalCopyState,
    ExternalCopyStep,
    next_step,
    state_of,
)

pytestmark = pytest.mark.requirement("A5")

NONE, SOME, ALL = ExternalCopies.NONE, ExternalCopies.SOME, ExternalCopies.ALL
EXPORT, WITHDRAWAL = ExternalCopyJob.EXPORT, ExternalCopyJob.WITHDRAWAL
ALL_COPIES, ALL_JOBS = (NONE, SOME, ALL), (None, EXPORT, WITHDRAWAL)


def wanted(**fields) -> ExternalCopySituation:
    return ExternalCopySituation(is_export_due=True, **fields)


def unwanted(**fields) -> ExternalCopySituation:
    return ExternalCopySituation(is_withdrawal_due=True, **fields)


@pytest.mark.parametrize(
    ("situation", "step", "state"),
    [
        (wanted(copies=NONE), ExternalCopyStep.EXPORT, ExternalCopyState.DUE),
        (wanted(copies=SOME), ExternalCopyStep.EXPORT, ExternalCopyState.DUE),
        (wanted(copies=ALL), ExternalCopyStep.SETTLE, ExternalCopyState.DUE),
        (wanted(copies=SOME, job=EXPORT), ExternalCopyStep.WAIT, ExternalCopyState.RUNNING),
        (wanted(copies=SOME, job=WITHDRAWAL), ExternalCopyStep.WAIT, ExternalCopyState.WITHDRAWING),
        (wanted(copies=SOME, has_failed=True), ExternalCopyStep.WAIT, ExternalCopyState.FAILED),
        (unwanted(copies=NONE), ExternalCopyStep.SETTLE, ExternalCopyState.NONE),
        (unwanted(copies=SOME), ExternalCopyStep.WITHDRAW, ExternalCopyState.WITHDRAWING),
        (unwanted(copies=ALL), ExternalCopyStep.WITHDRAW, ExternalCopyState.WITHDRAWING),
        (unwanted(copies=SOME, job=EXPORT), ExternalCopyStep.CANCEL, ExternalCopyState.WITHDRAWING),
        (unwanted(copies=SOME, job=WITHDRAWAL), ExternalCopyStep.WAIT, ExternalCopyState.WITHDRAWING),
        (unwanted(copies=SOME, has_failed=True, may_retry=False), ExternalCopyStep.WAIT, ExternalCopyState.WITHDRAWING),
        (unwanted(copies=SOME, has_failed=True), ExternalCopyStep.WITHDRAW, ExternalCopyState.WITHDRAWING),
        (ExternalCopySituation(copies=NONE), ExternalCopyStep.WAIT, ExternalCopyState.NONE),
        (ExternalCopySituation(copies=ALL), ExternalCopyStep.WAIT, ExternalCopyState.EXPORTED),
        (ExternalCopySituation(copies=NONE, was_withdrawn=True), ExternalCopyStep.WAIT, ExternalCopyState.WITHDRAWN),
    ],
)
def test_each_situation_has_the_right_next_step_and_state(situation, step, state):
    assert (next_step(situation), state_of(situation)) == (step, state)


def after(situation: ExternalCopySituation, step: ExternalCopyStep) -> ExternalCopySituation:
    """The situation after a step was carried out and its job has completed."""
    fields = {name: getattr(situation, name) for name in ExternalCopySituation.__dataclass_fields__}
    match step:
        case ExternalCopyStep.EXPORT:
            return ExternalCopySituation(**{**fields, "copies": ALL, "is_export_due": False})
        case ExternalCopyStep.WITHDRAW:
            return ExternalCopySituation(
                **{**fields, "copies": NONE, "is_withdrawal_due": False, "was_withdrawn": True}
            )
        case ExternalCopyStep.CANCEL:
            return ExternalCopySituation(**{**fields, "job": None})
        case ExternalCopyStep.SETTLE:
            return ExternalCopySituation(**{**fields, "is_export_due": False, "is_withdrawal_due": False})
        case ExternalCopyStep.WAIT if situation.job == EXPORT:
            return ExternalCopySituation(**{**fields, "job": None, "copies": ALL, "is_export_due": False})
        case ExternalCopyStep.WAIT if situation.job == WITHDRAWAL:
            return ExternalCopySituation(**{**fields, "job": None, "copies": NONE, "is_withdrawal_due": False})
    return situation


@pytest.mark.parametrize(("copies", "job"), list(product(ALL_COPIES, ALL_JOBS)))
@pytest.mark.parametrize("is_wanted", [True, False])
def test_in_every_situation_the_steps_lead_to_the_last_decision(copies, job, is_wanted):
    situation = wanted(copies=copies, job=job) if is_wanted else unwanted(copies=copies, job=job)

    for _ in range(5):
        situation = after(situation, next_step(situation))

    assert situation.copies == (ALL if is_wanted else NONE)
    assert (situation.job, situation.is_export_due, situation.is_withdrawal_due) == (None, False, False)


@pytest.mark.parametrize(("copies", "job"), list(product(ALL_COPIES, ALL_JOBS)))
def test_unwanted_copies_are_never_made_and_wanted_ones_are_never_removed(copies, job):
    assert next_step(unwanted(copies=copies, job=job)) != ExternalCopyStep.EXPORT
    assert next_step(wanted(copies=copies, job=job)) not in (ExternalCopyStep.WITHDRAW, ExternalCopyStep.CANCEL)
