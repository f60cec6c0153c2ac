"""The faults, times and jobs that are drawn from a seed, and the skewed clock."""

from pathlib import Path

import pytest

from chaos import skewed
from chaos.__main__ import options_of, parsed
from chaos.load import POISONS, JobRequests, catalog
from chaos.nemesis import BROKER_FAULT_COUNTS, FAULT_COUNTS, draw, moments
from chaos.run import Options
from dagmaster.workflows.inputs import check_inputs


def test_the_faults_depend_on_the_seed_alone() -> None:
    assert draw(1, 60) == draw(1, 60)
    assert draw(1, 60) != draw(2, 60)


@pytest.mark.parametrize("seed", range(5))
def test_every_kind_of_fault_occurs_within_a_round(seed: int) -> None:
    assert set(draw(seed, sum(FAULT_COUNTS.values()))) == FAULT_COUNTS.keys()
    assert set(draw(seed, Options.faults)) == FAULT_COUNTS.keys(), "the default run has all of them"


def test_only_the_requested_kinds_of_faults_are_drawn() -> None:
    assert set(draw(1, 20, ["cut", "delay"])) == {"cut", "delay"}


def test_faults_of_the_broker_are_drawn_only_if_requested() -> None:
    assert not set(draw(1, 200)) & BROKER_FAULT_COUNTS.keys()
    assert set(draw(1, 200, (), FAULT_COUNTS | BROKER_FAULT_COUNTS)) == FAULT_COUNTS.keys() | BROKER_FAULT_COUNTS.keys()


def test_the_times_of_faults_are_sorted_and_spread_over_the_run() -> None:
    times = moments(1, 100, 400)

    assert times == sorted(times)
    assert 0 <= times[0] < 4
    assert 396 < times[-1] <= 400


def test_every_drawn_job_is_valid_and_has_an_expected_outcome() -> None:
    known, requests = catalog(), JobRequests(1, Path("/effects"))
    drawn = [requests.draw() for _ in range(200)]

    for request in drawn:
        check_inputs(known.get(request.workflow_id), request.inputs)
        assert request.ends
        assert request.result is not None or request.cancel_after is not None
    assert {request.kind for request in drawn} >= {
        "fan-out",
        "chain",
        "retries",
        "conditional",
        "processes",
        "payload",
        "cancelled",
    }
    assert all(f"chaos_poison_{name}" in known.workflows for name in POISONS)


def test_the_required_counts_depend_on_the_length_of_the_run() -> None:
    default, short, longer = (options_of(parsed(args.split())) for args in ("", "--seconds 20", "--seconds 4000"))

    assert (default.wanted_faults, default.wanted_attempts) == (100, 20_000)
    assert (short.wanted_faults, short.faults) == (0, 6)
    assert (longer.wanted_faults, longer.wanted_attempts) == (1000, 200_000)


def test_a_skewed_clock_is_hours_wrong_and_jumps() -> None:
    seconds, nanoseconds = skewed.skew(lambda: 1000.0, lambda: 10**12)
    offsets = {skewed.offset_at(moment) for moment in range(60)}

    assert abs(seconds() - 1000) >= skewed.HOUR
    assert abs(nanoseconds() - 10**12) >= skewed.HOUR * 10**9
    assert offsets == set(skewed.OFFSETS)
