"""Requests to a storage account that fail for a short time are repeated, but not at once."""

import httpx2
import pytest

from dagmaster.errors import Unavailable
from dagmaster.storage.azure_account import AzureAccount
from dagmaster.storage.azure_sas import AccountKey

BUSY = httpx2.Response(503, headers={"x-ms-error-code": "ServerBusy"})


class Store:
    """Gives one response after another; the last one is repeated."""

    def __init__(self, *responses: httpx2.Response | httpx2.HTTPError) -> None:
        self.responses = list(responses)
        self.pauses: list[float] = []
        self.account = AzureAccount("example", "http://127.0.0.1:9", key=AccountKey("a2V5"), sleep=self.pauses.append)
        self.account._client = httpx2.Client(transport=httpx2.MockTransport(self._respond))

    def _respond(self, _request: httpx2.Request) -> httpx2.Response:
        response = self.responses.pop(0) if len(self.responses) > 1 else self.responses[0]
        if isinstance(response, httpx2.HTTPError):
            raise response
        return response


def test_requests_to_a_busy_store_are_repeated_after_growing_pauses():
    store = Store(BUSY, httpx2.ConnectError("refused"), BUSY, httpx2.Response(201))

    store.account.create_container("bronze")

    assert store.pauses == [0.25, 0.5, 1.0]


@pytest.mark.parametrize(("retry_after", "seconds"), [("3", 3.0), ("3600", 10.0), ("0", 0.25), ("soon", 0.25)])
def test_the_pause_that_the_store_requests_is_kept_up_to_a_limit(retry_after, seconds):
    store = Store(httpx2.Response(429, headers={"Retry-After": retry_after}), httpx2.Response(201))

    store.account.create_container("bronze")

    assert store.pauses == [seconds]


def test_a_store_that_stays_busy_is_reported_after_four_attempts():
    store = Store(BUSY)

    with pytest.raises(Unavailable, match="ServerBusy"):
        store.account.create_container("bronze")

    assert len(store.pauses) == 3
