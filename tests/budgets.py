"""The number of seconds that the tests of each folder may take, so that all tests take at most 30 minutes on two cores.

A folder that takes longer is named at the end of the run. That is a warning, not a failure: other work on the machine
also makes tests slow. The time of a folder is the sum of its tests, whichever process runs them.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

import pytest

OTHERS = "others"
BUDGET_SECONDS = {
    "access": 30,
    "api": 240,
    "assets": 60,
    "bench": 60,
    "callbacks": 60,
    "chaos": 120,
    "cli": 360,
    "client": 60,
    "commands": 90,
    "database": 300,
    "deploy": 65,
    "docs": 90,
    "doctor": 20,
    "engine": 900,
    "external": 120,
    "gateway": 150,
    "handlers": 90,
    "ingest": 30,
    "jobs": 90,
    "mutants": 30,
    "object_stores": 65,
    "operations": 120,
    "packaging": 60,
    "raster": 240,
    "roles": 60,
    "servicebus": 120,
    "serving": 300,
    "simulation": 140,
    "stac": 60,
    "storage": 100,
    "testing": 60,
    "transports": 60,
    "ui": 120,
    "web": 60,
    "worker": 160,
    "workflows": 60,
    OTHERS: 60,
}
PROCESSES = 3  # the number of processes in which scripts/test runs them


class Stopwatch:
    """A pytest plugin that sums the time of tests by their folder."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[folder_of(report.nodeid)] += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if lines := list(overruns(self.seconds)):
            terminalreporter.section("time budgets", "-")
        for line in lines:
            terminalreporter.line(line, yellow=True)


def folder_of(node_id: str) -> str:
    """The folder of a test below tests/, if it has its own budget."""
    folders = node_id.partition("::")[0].split("/")[1:-1]
    return folders[0] if folders and folders[0] in BUDGET_SECONDS else OTHERS


def overruns(seconds: Mapping[str, float]) -> Iterator[str]:
    for folder, spent in sorted(seconds.items(), key=lambda each: -each[1]):
        budget = BUDGET_SECONDS[folder]
        if spent > budget:
            where = "tests without a budget of their own" if folder == OTHERS else f"tests/{folder}"
            yield f"WARNING: {where} took {spent:.0f} s, the budget is {budget} s (--durations=20 lists the slowest)"
