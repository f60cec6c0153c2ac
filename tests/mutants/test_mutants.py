"""The mutants still match the code, and the runner reports those that are not caught. `make mutants` runs all."""

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


def mutant_with(edit: Edit, number: int = 99) -> Mutant:
    return Mutant(number, "no bug", PROPERTIES, UNCAPPED.tests, [edit])


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.number}")
def test_the_code_that_a_mutant_replaces_occurs_exactly_once(mutant):
    for edit in mutant.edits:
        assert occurrences(edit) == 1, f"{edit.path}: {edit.old!r}; the code has moved: correct mutants/catalogue.py"
        assert edit.old != edit.new


def test_all_mutants_are_listed_and_name_existing_tests():
    assert [mutant.number for mutant in MUTANTS] == list(range(1, 19))
    assert all((ROOT / mutant.tests[0]).is_file() for mutant in MUTANTS)


def test_a_surviving_mutant_fails_the_run(capsys, tmp_path, monkeypatch):
    """Of two mutants, the one that changes nothing survives; both are reported."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)

    code = main(["--json"], known=[mutant_with(HARMLESS), UNCAPPED])

    output = capsys.readouterr()
    report = json.loads(output.out)
    assert code == 1
    assert [row["verdict"] for row in report["mutants"]] == ["survived", "caught"]
    assert report["mutants"][1]["caught_by"].startswith("tests/jobs/test_retry.py::")
    assert (report["caught"], report["total"]) == (1, 2)
    assert "99. no bug: survived" in output.err
    assert "1 of 2 bugs caught" in output.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("text", "times"), [("a", 0), ("b b", 2)])
def test_a_mutant_whose_code_does_not_occur_once_is_reported_and_changes_nothing(tmp_path, text, times):
    (tmp_path / "file.sql").write_text(text)

    trial = tried(Scratch(tmp_path), mutant_with(Edit("file.sql", "b", "c")))

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
def test_a_mutant_is_caught_only_by_a_failed_test(code, output, verdict):
    assert judged(UNCAPPED, Run(code, output, 1.0)).verdict is verdict


def test_mutants_are_tested_in_the_copy(tmp_path):
    """If the copy did not contain the package, the tests would use the installed one."""
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
    while not _test_processes(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.02)

    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)

    assert (process.returncode, b"stopped" in errors) == (INTERRUPTED, True)
    assert list(tmp_path.iterdir()) == []
    deadline = time.monotonic() + 20
    while (
        _test_processes(tmp_path) and time.monotonic() < deadline
    ):  # on a busy machine killed processes take a moment to end
        time.sleep(0.02)
    assert not _test_processes(tmp_path)


def _test_processes(folder: Path) -> list[Path]:
    """Processes that run tests in a copy below this folder."""
    return [process for process in Path("/proc").glob("[0-9]*") if f"--basetemp={folder}" in _command(process)]


def _command(process: Path) -> str:
    try:
        return (process / "cmdline").read_text()
    except OSError:  # the process has ended
        return ""
