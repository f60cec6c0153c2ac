"""The consequences of an attempt to deliver a callback."""

from random import Random
from uuid import UUID

import pytest

from dagmaster.callbacks.payload import payload_of
from dagmaster.callbacks.schedule import DELAYS_SECONDS, JITTER, CallbackState, DeliveryAttempt, consequence_of

pytestmark = pytest.mark.requirement("E24")

MAX_ATTEMPTS = 10


def consequence(attempt: DeliveryAttempt, tries: int = 1):
    return consequence_of(attempt, tries, max_tries=MAX_ATTEMPTS, random=Random(1))


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_a_callback_with_a_success_response_is_delivered(status):
    assert consequence(DeliveryAttempt(status)).state is CallbackState.DELIVERED


@pytest.mark.parametrize("status", [100, 199, 301, 302, 307, 400, 404, 429, 500, 503, 0, 999])
def test_a_callback_with_any_other_response_is_retried(status):
    assert consequence(DeliveryAttempt(status)).state is CallbackState.PENDING


def test_a_callback_with_an_error_is_retried_even_if_a_status_was_received():
    assert consequence(DeliveryAttempt(error="connection refused")).state is CallbackState.PENDING
    assert consequence(DeliveryAttempt(200, "the response broke off")).state is CallbackState.PENDING


def test_a_callback_is_given_up_at_once_after_status_410_or_a_refused_url():
    assert consequence(DeliveryAttempt(410)).state is CallbackState.FAILED
    assert consequence(DeliveryAttempt(error="its address is not public", is_final=True)).state is CallbackState.FAILED


def test_delays_grow_and_have_jitter():
    random = Random(5)
    for tries in range(1, MAX_ATTEMPTS):
        expected = DELAYS_SECONDS[min(tries, len(DELAYS_SECONDS)) - 1]
        delays = [
            consequence_of(DeliveryAttempt(500), tries, max_tries=MAX_ATTEMPTS, random=random).delay_seconds or 0
            for _ in range(200)
        ]

        assert expected * (1 - JITTER) <= min(delays) < expected < max(delays) <= expected * (1 + JITTER)


def test_a_callback_is_given_up_after_its_last_attempt():
    assert consequence(DeliveryAttempt(500), MAX_ATTEMPTS - 1).state is CallbackState.PENDING
    assert consequence(DeliveryAttempt(500), MAX_ATTEMPTS).state is CallbackState.FAILED
    assert consequence(DeliveryAttempt(200), MAX_ATTEMPTS).state is CallbackState.DELIVERED


def test_a_payload_has_three_fields_and_its_result_url_is_below_the_configured_url():
    job_id = UUID(int=7)

    assert payload_of("a/b c", "approved", None, "https://gateway.example/") == {
        "request_id": "a/b c",
        "status": "approved",
        "result_url": "https://gateway.example/api/platform/status/a%2Fb%20c",
    }
    assert payload_of("r", "completed", job_id, None)["result_url"] == f"/api/v1/jobs/{job_id}"
