"""The figures of a chaos run: effects, recoveries, outcomes, trends. Every count that must be 0 can detect an error."""

from collections import Counter
from typing import Any
from uuid import UUID

import pytest

from chaos.effects import Effects
from chaos.figures import ChaosOutcome, percentile, recoveries, report_text
from chaos.load import Acknowledged, ExpectedJob
from chaos.recovery import BOUNDS, Measured
from chaos.run import _lost, _wrong
from chaos.soak import trends

JOB = UUID(int=1)
TASK = ("job", "node")


def test_an_effect_that_is_published_once_is_not_a_duplicate() -> None:
    effects = Effects.of(["E job/node/1/aa 7", "F job/node/1/aa", "P job/node/1/aa", "P job/node/1/aa"])

    assert not effects.duplicates([(TASK, "job/node/1/aa")])
    assert not effects.published_unfinished([(TASK, "job/node/1/aa")])
    assert effects.done_again() == 0


def test_two_effects_of_one_task_are_detected_in_every_record() -> None:
    lines = ["E job/node/1/aa 7", "F job/node/1/aa", "E job/node/2/bb 8", "F job/node/2/bb"]
    by_others = Effects.of([*lines, "P job/node/1/aa", "P job/node/2/bb"])
    by_both = Effects.of([*lines, "P job/node/1/aa"])

    assert by_others.duplicates([]) == {TASK: {"job/node/1/aa", "job/node/2/bb"}}
    assert by_both.duplicates([(TASK, "job/node/2/bb")]) == {TASK: {"job/node/1/aa", "job/node/2/bb"}}
    assert by_both.done_again() == 1


def test_an_effect_that_was_published_but_never_happened_is_detected() -> None:
    effects = Effects.of(["E job/node/1/aa 7"])
    seen = Effects.of(["P job/node/2/bb"])

    assert seen.published_unfinished([]) == {"job/node/2/bb"}
    assert effects.published_unfinished([(TASK, "job/node/1/aa")]) == {"job/node/1/aa"}
    assert list(effects.running()) == [("job/node/1/aa", 7)]


@pytest.mark.parametrize(("share", "value"), [(0.5, 3), (0.99, 5), (0, 1)])
def test_a_percentile_is_a_value_that_occurred(share: float, value: float) -> None:
    assert percentile([5, 1, 4, 2, 3], share) == value


def test_a_recovery_that_was_not_observed_is_reported_separately() -> None:
    (cut, kill) = recoveries([("kill", 2.0), ("kill", None), ("cut", None)])

    assert (kill.count, kill.p50, kill.unseen) == (2, 2.0, 1)
    assert (cut.count, cut.p50, cut.unseen) == (1, None, 1)


def outcome(**facts: Any) -> ChaosOutcome:
    good = {"seed": 1, "faults": 100, "attempts": 20_000, "fenced": 3, "wanted_faults": 100, "wanted_attempts": 20_000}
    return ChaosOutcome(**{**good, "zeros": {"jobs lost": []}, "jobs": Counter(), "ends": Counter(), **facts})


def test_a_run_without_violations_has_no_problems() -> None:
    assert outcome().problems() == []
    assert "no violations" in report_text(outcome())


@pytest.mark.parametrize(
    "facts",
    [{"zeros": {"jobs lost": ["one"]}}, {"fenced": 0, "late_reports": 0}, {"faults": 99}, {"attempts": 19_999}],
    ids=["a violation", "no process fenced", "too few faults", "too few attempts"],
)
def test_each_kind_of_problem_is_reported(facts: dict[str, Any]) -> None:
    assert len(outcome(**facts).problems()) == 1
    assert "BAD" in report_text(outcome(**facts))


def row(status: str = "completed", value: Any = 7, key: str = "key") -> dict[str, Any]:
    return {"status": status, "result_data": {"value": value}, "error_message": None, "idempotency_key": key}


KNOWN = Acknowledged(ExpectedJob("chain", "chaos_chain6", {}, result=7), JOB, "key")


def test_a_job_that_is_missing_stuck_or_duplicated_counts_as_lost() -> None:
    assert _lost([KNOWN], {JOB: row()}) == []
    assert len(_lost([KNOWN], {})) == 1
    assert len(_lost([KNOWN], {JOB: row("running")})) == 1
    assert len(_lost([KNOWN], {JOB: row(), UUID(int=2): row()})) == 1


def test_a_job_with_an_unexpected_status_or_result_is_reported() -> None:
    assert _wrong(KNOWN, row()) is None
    assert _wrong(KNOWN, row("failed"))
    assert _wrong(KNOWN, row(value=8))


def test_recovery_times_are_compared_with_their_limits() -> None:
    good = Measured("fast", {what: [bound - 1] for what, bound in BOUNDS["fast"].items()}, [10, 10, 10])
    slow = Measured("fast", {what: [bound - 1, bound + 1] for what, bound in BOUNDS["fast"].items()}, [4, 6])

    assert good.problems() == []
    assert len(slow.problems()) == len(BOUNDS["fast"]) + 1


def test_growth_is_distinguished_from_fluctuation() -> None:
    growing = trends([{"worker-1 MB": 100.0 + 5 * n, "claim p50 ms": 10.0 + n % 3} for n in range(30)])

    assert [(trend.name, trend.is_flat) for trend in growing] == [("worker-1 MB", False), ("claim p50 ms", True)]
