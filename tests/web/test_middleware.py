"""What every server's door does: an id for each request, only names of our own, only so many bytes,
always an answer."""

import pytest

from tests.web.conftest import HOST, LIMIT
from tests.web.problems import check


@pytest.mark.requirement("X2")
@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "[::"])
def test_a_foreign_host_is_refused(client, house, host):
    problem = check(client.get("/here", headers={"Host": host}), 403, "request.foreign-host")

    assert problem["hint"].startswith("use localhost as the host name")
    assert problem["facts"] == ({} if house.is_discreet else {"host": host})


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8003", "[::1]:8003", HOST])
def test_a_host_of_the_server_is_accepted(client, host):
    assert client.get("/here", headers={"Host": host}).json() == "here"


def test_a_server_open_to_all_answers_any_host(build):
    answer = build(is_open_to_all=True).client().get("/here", headers={"Host": "evil.example"})

    assert answer.json() == "here"


@pytest.mark.requirement("X2")
def test_a_body_that_says_it_is_too_large_is_not_read(client):
    fits = client.post("/length", content=b" " * LIMIT)
    problem = check(client.post("/length", content=b" " * (LIMIT + 1)), 413, "request.too-large")

    assert fits.json() == LIMIT
    assert problem["detail"] == f"a request may have at most {LIMIT} bytes"


@pytest.mark.requirement("X2")
def test_a_body_without_length_is_counted_as_it_comes(client, house):
    fits = client.post("/length", content=(b" " * 65536 for _ in range(16)))
    problem = check(client.post("/length", content=(b" " * 65536 for _ in range(17))), 413, "request.too-large")

    assert fits.json() == LIMIT
    assert problem["detail"] == (
        "Request Entity Too Large" if house.is_discreet else f"a request may have at most {LIMIT} bytes"
    )


@pytest.mark.requirement("O1")
def test_the_id_of_a_request_is_echoed(client):
    given = client.get("/here", headers={"X-Request-ID": "abc-1"})
    odd = client.get("/here", headers={"X-Request-ID": "no spaces, please"})

    assert given.headers["x-request-id"] == "abc-1"
    assert len(odd.headers["x-request-id"]) == 16


@pytest.mark.requirement("X3")
def test_an_internal_error_reveals_no_details(client):
    answer = client.get("/broken")

    check(answer, 500, "internal")
    assert "hunter2" not in answer.text
    assert "Traceback" not in answer.text
