"""The inserted bugs still fit the code, and the runner reports those that are not caught. `make mutants` runs all."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mutants.__main__ import INTERRUPTED, main
from mutants.catalogue import MUTANTS, PROPERTIES, Edit, Mutant
from mutants.scratch import ROOT, Scratch, occurrences
from mutants.trials import Run, Verdict, judged, tried

RETRY = "src/dagmaster/jobs/retry.py"
HARMLESS = Edit(RETRY, "None if the failure is final.", "None if it is final.")
(UNCAPPED,) = (mutant for mutant in MUTANTS if mutant.bug == "retry without cap")


def a_mutant(edit: Edit, number: int = 99) -> Mutant:
    return Mutant(number, "none at all", PROPERTIES, UNCAPPED.tests, [edit])


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.number}")
def test_what_a_bug_replaces_is_there_exactly_once(mutant):
    for edit in mutant.edits:
        assert occurrences(edit) == 1, f"{edit.path}: {edit.old!r}; the code has moved: correct mutants/catalogue.py"
        assert edit.old != edit.new


def test_all_bugs_of_the_plan_are_there_and_name_tests_that_exist():
    assert [mutant.number for mutant in MUTANTS] == list(range(1, 19))
    assert all((ROOT / mutant.tests[0]).is_file() for mutant in MUTANTS)


def test_a_bug_that_survives_fails_the_run(capsys, tmp_path, monkeypatch):
    """Of two the one that changes nothing survives; both are reported."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)

    code = main(["--json"], known=[a_mutant(HARMLESS), UNCAPPED])

    output = capsys.readouterr()
    report = json.loads(output.out)
    assert code == 1
    assert [row["verdict"] for row in report["mutants"]] == ["survived", "caught"]
    assert report["mutants"][1]["caught_by"].startswith("tests/jobs/test_retry.py::")
    assert (report["caught"], report["total"]) == (1, 2)
    assert "99. none at all: survived" in output.err
    assert "1 of 2 bugs caught" in output.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("text", "times"), [("a", 0), ("b b", 2)])
def test_a_bug_whose_text_does_not_occur_once_is_reported_and_changes_nothing(tmp_path, text, times):
    (tmp_path / "file.sql").write_text(text)

    trial = tried(Scratch(tmp_path), a_mutant(Edit("file.sql", "b", "c")))

    assert trial.verdict is Verdict.MOVED
    assert f"{times} times instead of once" in trial.details
    assert (tmp_path / "file.sql").read_text() == text


@pytest.mark.parametrize(
    ("code", "output", "verdict"),
    [
        (0, "3 passed", Verdict.SURVIVED),
        (1, "FAILED tests/a.py::test_b[x - y] - AssertionError: c", Verdict.CAUGHT),
        (1, "ERROR tests/a.py::test_b - SyntaxError", Verdict.BROKEN),
        (2, "FAILED tests/a.py::test_b - no", Verdict.BROKEN),
        (4, "no tests ran", Verdict.BROKEN),
        (None, "no end", Verdict.BROKEN),
    ],
)
def test_caught_is_only_what_a_test_has_failed_on(code, output, verdict):
    assert judged(UNCAPPED, Run(code, output, 1.0)).verdict is verdict


def test_mutants_are_tested_in_the_copy(tmp_path):
    """A copy without the package would leave the tests to the one that is installed."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "__init__.py").touch()

    with pytest.raises(RuntimeError, match="the tests would not use the copy"):
        Scratch(tmp_path).check_imports()


def test_an_interrupted_run_leaves_nothing_behind(tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-m", "mutants", "--only", str(UNCAPPED.number)],
        cwd=ROOT,
        env=environment,
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + 60
    while not _at_work(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.02)

    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)

    assert (process.returncode, b"stopped" in errors) == (INTERRUPTED, True)
    assert list(tmp_path.iterdir()) == []
    deadline = time.monotonic() + 20
    while _at_work(tmp_path) and time.monotonic() < deadline:  # a busy machine takes a moment to end what was killed
        time.sleep(0.02)
    assert not _at_work(tmp_path)


def _at_work(folder: Path) -> list[Path]:
    """Processes that run tests in a copy below this folder."""
    return [process for process in Path("/proc").glob("[0-9]*") if f"--basetemp={folder}" in _command(process)]


def _command(process: Path) -> str:
    try:
        return (process / "cmdline").read_text()
    except OSError:  # it has ended
        return ""
