"""Which failures are retried, how often, and after which delay."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagmaster.jobs.retry import LOSS_POLICY, RetrySchedule, after_failure, after_lost_worker, backoff_seconds
from dagmaster.jobs.states import Blame
from dagmaster.workflows.model import Retry

pytestmark = pytest.mark.requirement("E12")

PLAIN = Retry(max_attempts=2, backoff="exponential", initial_delay_seconds=2, max_delay_seconds=10, jitter=False)


def after(blame, retry_count=0, loss_count=0, max_losses=2):
    return after_failure(
        PLAIN, blame, retry_count=retry_count, loss_count=loss_count, max_losses=max_losses, random=Random(1)
    )


@pytest.mark.parametrize(("nth", "seconds"), [(1, 2), (2, 4), (3, 8), (4, 10), (5, 10), (5000, 10)])
def test_exponential_delays_double_up_to_their_limit(nth, seconds):
    assert backoff_seconds(PLAIN, nth, Random(1)) == seconds


@pytest.mark.parametrize("nth", [1, 2, 50])
def test_fixed_delays_stay_the_same(nth):
    assert backoff_seconds(PLAIN.model_copy(update={"backoff": "fixed"}), nth, Random(1)) == 2


@given(
    st.integers(1, 100), st.floats(0, 1e4), st.floats(0, 1e4), st.sampled_from(["fixed", "exponential"]), st.integers()
)
def test_jitter_spreads_a_delay_over_its_upper_half(nth, initial, longest, backoff, seed):
    policy = Retry(initial_delay_seconds=initial, max_delay_seconds=longest, backoff=backoff, jitter=True)
    full = backoff_seconds(policy.model_copy(update={"jitter": False}), nth, Random(seed))

    wait = backoff_seconds(policy, nth, Random(seed))

    assert full / 2 <= wait <= full <= longest


@pytest.mark.parametrize("blame", [Blame.HANDLER, Blame.ENGINE])
def test_failures_of_the_handler_are_retried_as_often_as_the_workflow_says(blame):
    assert after(blame) == RetrySchedule(1, 0, 2)
    assert after(blame, retry_count=1) == RetrySchedule(2, 0, 4)
    assert after(blame, retry_count=2) is None


def test_failures_of_the_environment_are_counted_separately():
    first, third = after(Blame.ENVIRONMENT, retry_count=2), after(Blame.ENVIRONMENT, loss_count=2)

    assert first is not None
    assert (first.retry_count, first.loss_count) == (2, 1)
    assert LOSS_POLICY.initial_delay_seconds / 2 <= first.wait_seconds <= LOSS_POLICY.initial_delay_seconds
    assert third is None


def test_bad_data_is_never_retried():
    assert after(Blame.DATA) is None


def test_only_the_first_lost_worker_causes_no_delay():
    first = after_lost_worker(retry_count=3, loss_count=0, max_losses=2, random=Random(1))
    second = after_lost_worker(retry_count=3, loss_count=1, max_losses=2, random=Random(1))

    assert first == RetrySchedule(3, 1, 0.0)
    assert second is not None
    assert second.loss_count == 2
    assert 0.25 <= second.wait_seconds <= 0.5
    assert after_lost_worker(retry_count=3, loss_count=2, max_losses=2, random=Random(1)) is None
