"""The benchmarks of access run to completion, with few items and few requests. Their results are not checked here."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
BEFORE = "7add226"


def bench(name: str, *options: str) -> str:
    """The output of a benchmark. Its exit code is 1 if a target is missed, which can happen with few requests."""
    command = [sys.executable, ROOT / "bench" / name, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_benchmark_of_searches_runs_with_and_without_a_filter() -> None:
    printed = bench("access.py", "--assets", "84", "--items", "3", "--rounds", "1")

    assert "252 items of 84 assets" in printed
    row = r"plain +[\d.]+ ms +everything +[\d.]+ ms +part +[\d.]+ ms +part ÷ plain [\d.]+ +÷ everything [\d.]+$"
    assert len(re.findall(row, printed, re.MULTILINE)) == 5
    assert re.search(r"^  part ÷ plain [\d.]+, ÷ everything [\d.]+ \(each at most 1\.5\)$", printed, re.MULTILINE)


@pytest.mark.slow
def test_the_benchmark_compares_both_releases_with_the_same_requests() -> None:
    command = ["git", "-C", ROOT, "cat-file", "-e", BEFORE]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip(f"a shallow clone: it does not have {BEFORE}")

    printed = bench("decision.py", "--size", "512", "--tiles", "2", "--rounds", "1")

    assert len(re.findall(r"^  the query for the (?:version|key) alone: p50 [\d.]+ ms$", printed, re.MULTILINE)) == 2
    assert re.findall(r"^  (\w+) +before p50", printed, re.MULTILINE) == ["tile", "TileJSON", "file"]
