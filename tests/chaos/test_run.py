"""A small chaos run: two orchestrators, two workers, a few faults, and all checks."""

import os
from pathlib import Path

import pytest

from chaos.run import Options, run_chaos

pytestmark = pytest.mark.alone

KINDS = ("kill orchestrator", "kill worker", "reset at commit", "freeze orchestrator", "cut")


@pytest.mark.timeout(180)
async def test_a_run_with_a_few_faults_has_no_violations_and_leaves_no_files() -> None:
    options = Options(
        seed=8,
        seconds=12,
        faults=5,
        wanted_faults=4,
        wanted_attempts=100,
        only=KINDS,
        orchestrators=2,
        workers=2,
        tasks_per_second=40,
        step_seconds=(0.2, 1),
        has_rasters=False,
    )

    outcome = await run_chaos(options)

    assert outcome.problems() == []
    assert outcome.fenced > 0
    assert not list(Path("/tmp").glob(f"dagmaster-chaos-{os.getpid()}-*"))
