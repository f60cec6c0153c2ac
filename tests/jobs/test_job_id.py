"""A job's id is a version 7 UUID: ids sort by the time of their creation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagmaster.jobs.model import child_id, new_job_id, task_id

MOMENTS = st.integers(0, (1 << 48) - 1)
RANDOMNESS = st.binary(min_size=10, max_size=10)


@given(MOMENTS, MOMENTS, RANDOMNESS, RANDOMNESS)
def test_ids_sort_by_time_as_values_and_as_text(early, late, some, other):
    first, second = new_job_id(min(early, late), some), new_job_id(max(early, late), other)

    if early != late:
        assert first < second
        assert str(first) < str(second)


@given(MOMENTS, RANDOMNESS)
def test_an_id_is_a_valid_version_7_uuid_and_carries_its_time(moment, randomness):
    job_id = new_job_id(moment, randomness)

    assert job_id.version == 7
    assert job_id.variant == "specified in RFC 4122"
    assert job_id.int >> 80 == moment


def test_ids_of_the_same_moment_differ():
    assert len({new_job_id(1_900_000_000_000) for _ in range(1000)}) == 1000


@pytest.mark.requirement("E7")
def test_a_task_is_named_after_job_node_and_attempt():
    job_id = new_job_id(0, bytes(10))

    assert task_id(job_id, child_id("tile", 3), 2) == f"{job_id}_tile__3_2"
