"""The next step for the external copies of a revision, in every possible situation."""

from itertools import product

import pytest

from dagmaster.assets.external import (
    ExternalCopies,
    ExternalJob,
    ExternalSituation,
    ExternalState,
    ExternalStep,
    next_step,
    state_of,
)

pytestmark = pytest.mark.requirement("A5")

NONE, SOME, ALL = ExternalCopies.NONE, ExternalCopies.SOME, ExternalCopies.ALL
EXPORT, WITHDRAWAL = ExternalJob.EXPORT, ExternalJob.WITHDRAWAL
ALL_COPIES, ALL_JOBS = (NONE, SOME, ALL), (None, EXPORT, WITHDRAWAL)


def wanted(**fields) -> ExternalSituation:
    return ExternalSituation(is_export_due=True, **fields)


def unwanted(**fields) -> ExternalSituation:
    return ExternalSituation(is_withdrawal_due=True, **fields)


@pytest.mark.parametrize(
    ("situation", "step", "state"),
    [
        (wanted(copies=NONE), ExternalStep.EXPORT, ExternalState.DUE),
        (wanted(copies=SOME), ExternalStep.EXPORT, ExternalState.DUE),
        (wanted(copies=ALL), ExternalStep.SETTLE, ExternalState.DUE),
        (wanted(copies=SOME, job=EXPORT), ExternalStep.WAIT, ExternalState.RUNNING),
        (wanted(copies=SOME, job=WITHDRAWAL), ExternalStep.WAIT, ExternalState.WITHDRAWING),
        (wanted(copies=SOME, has_failed=True), ExternalStep.WAIT, ExternalState.FAILED),
        (unwanted(copies=NONE), ExternalStep.SETTLE, ExternalState.NONE),
        (unwanted(copies=SOME), ExternalStep.WITHDRAW, ExternalState.WITHDRAWING),
        (unwanted(copies=ALL), ExternalStep.WITHDRAW, ExternalState.WITHDRAWING),
        (unwanted(copies=SOME, job=EXPORT), ExternalStep.CANCEL, ExternalState.WITHDRAWING),
        (unwanted(copies=SOME, job=WITHDRAWAL), ExternalStep.WAIT, ExternalState.WITHDRAWING),
        (unwanted(copies=SOME, has_failed=True, may_retry=False), ExternalStep.WAIT, ExternalState.WITHDRAWING),
        (unwanted(copies=SOME, has_failed=True), ExternalStep.WITHDRAW, ExternalState.WITHDRAWING),
        (ExternalSituation(copies=NONE), ExternalStep.WAIT, ExternalState.NONE),
        (ExternalSituation(copies=ALL), ExternalStep.WAIT, ExternalState.EXPORTED),
        (ExternalSituation(copies=NONE, was_withdrawn=True), ExternalStep.WAIT, ExternalState.WITHDRAWN),
    ],
)
def test_each_situation_has_the_right_next_step_and_state(situation, step, state):
    assert (next_step(situation), state_of(situation)) == (step, state)


def after(situation: ExternalSituation, step: ExternalStep) -> ExternalSituation:
    """The situation after a step was carried out and its job has completed."""
    fields = {name: getattr(situation, name) for name in ExternalSituation.__dataclass_fields__}
    match step:
        case ExternalStep.EXPORT:
            return ExternalSituation(**{**fields, "copies": ALL, "is_export_due": False})
        case ExternalStep.WITHDRAW:
            return ExternalSituation(**{**fields, "copies": NONE, "is_withdrawal_due": False, "was_withdrawn": True})
        case ExternalStep.CANCEL:
            return ExternalSituation(**{**fields, "job": None})
        case ExternalStep.SETTLE:
            return ExternalSituation(**{**fields, "is_export_due": False, "is_withdrawal_due": False})
        case ExternalStep.WAIT if situation.job == EXPORT:
            return ExternalSituation(**{**fields, "job": None, "copies": ALL, "is_export_due": False})
        case ExternalStep.WAIT if situation.job == WITHDRAWAL:
            return ExternalSituation(**{**fields, "job": None, "copies": NONE, "is_withdrawal_due": False})
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
    assert next_step(unwanted(copies=copies, job=job)) != ExternalStep.EXPORT
    assert next_step(wanted(copies=copies, job=job)) not in (ExternalStep.WITHDRAW, ExternalStep.CANCEL)
