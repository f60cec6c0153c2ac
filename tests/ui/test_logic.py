"""The logic of the pages, tested by vitest: formats, layout, timeline, forms, uploads."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(300)
def test_the_unit_tests_of_the_pages_pass() -> None:
    result = subprocess.run(["scripts/ui", "test"], cwd=ROOT, capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
    assert re.search(r"Tests.*\d+.*passed", result.stdout)
