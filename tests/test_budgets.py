"""The time that tests may take is stated for each folder, and a folder that takes longer is reported."""

from pathlib import Path

import pytest

from tests.budgets import BUDGET_SECONDS, OTHERS, PROCESSES, Stopwatch, folder_of, overruns

MINUTE = 60


def test_every_folder_of_tests_has_a_budget():
    folders = {path.parent.name for path in Path(__file__).parent.glob("*/test_*.py")}

    assert folders == set(BUDGET_SECONDS) - {OTHERS}


def test_the_sum_of_all_budgets_is_30_minutes():
    assert sum(BUDGET_SECONDS.values()) / PROCESSES <= 30 * MINUTE


@pytest.mark.parametrize(
    ("node_id", "folder"),
    [
        ("tests/api/test_jobs.py::test_one[a/b]", "api"),
        ("tests/test_bbox.py::test_one", OTHERS),
        ("tests/unknown/test_one.py::test_one", OTHERS),
    ],
)
def test_the_time_of_a_test_counts_for_its_folder(node_id, folder):
    assert folder_of(node_id) == folder


def test_folders_over_their_budget_are_reported_and_the_largest_comes_first():
    seconds = {"api": BUDGET_SECONDS["api"], "web": BUDGET_SECONDS["web"] + 1, "engine": 10_000, OTHERS: 5_000}

    first, second, third = overruns(seconds)

    assert first.startswith(f"WARNING: tests/engine took 10000 s, the budget is {BUDGET_SECONDS['engine']} s")
    assert "tests without a budget of their own took 5000 s" in second
    assert "tests/web" in third


def test_setup_call_and_teardown_are_added_up():
    stopwatch = Stopwatch()
    for when, seconds in (("setup", 1.0), ("call", 2.0), ("teardown", 4.0)):
        stopwatch.pytest_runtest_logreport(
            pytest.TestReport("tests/api/test_a.py::test_b", ("a", 1, "b"), {}, "passed", None, when, duration=seconds)
        )

    assert stopwatch.seconds == {"api": 7.0}
