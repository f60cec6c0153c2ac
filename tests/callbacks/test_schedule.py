"""What follows an attempt to deliver a callback."""

from random import Random
from uuid import UUID

import pytest

from dagmaster.callbacks.payload import payload_of
from dagmaster.callbacks.schedule import DELAYS_SECONDS, JITTER, CallbackState, DeliveryAttempt, after

pytestmark = pytest.mark.requirement("E24")

MOST = 10


def consequence(attempt: DeliveryAttempt, tries: int = 1):
    return after(attempt, tries, max_tries=MOST, random=Random(1))


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_a_success_is_delivered(status):
    assert consequence(DeliveryAttempt(status)).state is CallbackState.DELIVERED


@pytest.mark.parametrize("status", [100, 199, 301, 302, 307, 400, 404, 429, 500, 503, 0, 999])
def test_any_other_answer_is_tried_again(status):
    assert consequence(DeliveryAttempt(status)).state is CallbackState.PENDING


def test_an_error_is_tried_again_even_if_it_came_after_a_status():
    assert consequence(DeliveryAttempt(error="connection refused")).state is CallbackState.PENDING
    assert consequence(DeliveryAttempt(200, "the response broke off")).state is CallbackState.PENDING


def test_a_receiver_that_is_gone_and_a_refused_url_are_given_up_at_once():
    assert consequence(DeliveryAttempt(410)).state is CallbackState.FAILED
    assert consequence(DeliveryAttempt(error="its address is not public", is_final=True)).state is CallbackState.FAILED


def test_delays_grow_and_have_jitter():
    random = Random(5)
    for tries in range(1, MOST):
        expected = DELAYS_SECONDS[min(tries, len(DELAYS_SECONDS)) - 1]
        delays = [
            after(DeliveryAttempt(500), tries, max_tries=MOST, random=random).delay_seconds or 0 for _ in range(200)
        ]

        assert expected * (1 - JITTER) <= min(delays) < expected < max(delays) <= expected * (1 + JITTER)


def test_the_last_attempt_gives_up():
    assert consequence(DeliveryAttempt(500), MOST - 1).state is CallbackState.PENDING
    assert consequence(DeliveryAttempt(500), MOST).state is CallbackState.FAILED
    assert consequence(DeliveryAttempt(200), MOST).state is CallbackState.DELIVERED


def test_a_payload_has_three_fields_and_a_result_below_the_configured_address():
    job_id = UUID(int=7)

    assert payload_of("a/b c", "approved", None, "https://gateway.example/") == {
        "request_id": "a/b c",
        "status": "approved",
        "result_url": "https://gateway.example/api/platform/status/a%2Fb%20c",
    }
    assert payload_of("r", "completed", job_id, None)["result_url"] == f"/api/v1/jobs/{job_id}"
