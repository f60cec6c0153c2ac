"""The middleware of every server: request ids, allowed host names and origins, the size limit, and internal errors."""

import pytest

from tests.web.conftest import HOST, LIMIT
from tests.web.problems import check


@pytest.mark.requirement("X2")
@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "[::"])
def test_an_unknown_host_is_refused(client, under_test, host):
    problem = check(client.get("/here", headers={"Host": host}), 403, "request.foreign-host")

    assert problem["hint"].startswith("use localhost as the host name")
    assert problem["facts"] == ({} if under_test.hides_details else {"host": host})


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8003", "[::1]:8003", HOST])
def test_a_host_of_the_server_is_accepted(client, host):
    assert client.get("/here", headers={"Host": host}).json() == "here"


def test_a_server_that_is_open_to_all_accepts_any_host(build):
    response = build(is_open_to_all=True).client().get("/here", headers={"Host": "evil.example"})

    assert response.json() == "here"


@pytest.mark.requirement("X2")
def test_a_body_whose_declared_length_is_too_large_is_not_read(client):
    fits = client.post("/length", content=b" " * LIMIT)
    problem = check(client.post("/length", content=b" " * (LIMIT + 1)), 413, "request.too-large")

    assert fits.json() == LIMIT
    assert problem["detail"] == f"a request may have at most {LIMIT} bytes"


@pytest.mark.requirement("X2")
def test_a_body_without_a_declared_length_is_limited_while_it_is_received(client, under_test):
    fits = client.post("/length", content=(b" " * 65536 for _ in range(16)))
    problem = check(client.post("/length", content=(b" " * 65536 for _ in range(17))), 413, "request.too-large")

    assert fits.json() == LIMIT
    assert problem["detail"] == (
        "Request Entity Too Large" if under_test.hides_details else f"a request may have at most {LIMIT} bytes"
    )


@pytest.mark.requirement("O1")
def test_a_valid_request_id_of_the_client_is_returned(client):
    given = client.get("/here", headers={"X-Request-ID": "abc-1"})
    odd = client.get("/here", headers={"X-Request-ID": "no spaces, please"})

    assert given.headers["x-request-id"] == "abc-1"
    assert len(odd.headers["x-request-id"]) == 16


@pytest.mark.requirement("X3")
def test_an_internal_error_reveals_no_details(client):
    response = client.get("/broken")

    check(response, 500, "internal")
    assert "hunter2" not in response.text
    assert "Traceback" not in response.text


CROSS = {"Sec-Fetch-Site": "cross-site"}
LINK = {**CROSS, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
IMAGE = {**CROSS, "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}


@pytest.mark.requirement("X1")
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "OPTIONS"])
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "http://localhost:3000"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": "http://[::"},
        {**LINK, "Origin": "https://evil.example"},
        {**CROSS, "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"},
        {**CROSS, "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "script"},
        {**CROSS, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
        CROSS,
    ],
)
def test_without_authentication_requests_from_pages_of_other_sites_are_refused(client, method, headers):
    response = client.request(method, "/here", headers=headers)

    assert response.status_code == 403
    assert "access-control-allow-origin" not in response.headers
    if method != "HEAD":
        check(response, 403, "request.foreign-origin")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://localhost:8000"},
        {"Origin": "http://localhost:8000", "Host": "LOCALHOST:8000"},
        {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"},
        {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"},
        LINK,
    ],
)
def test_requests_of_own_pages_and_links_from_other_sites_are_accepted(client, headers):
    response = client.get("/here", headers=headers)

    assert response.json() == "here"
    assert "access-control-allow-origin" not in response.headers


def test_other_sites_may_show_only_images_of_the_map_server(client, under_test):
    assert client.get("/here", headers=IMAGE).status_code == (200 if under_test.hides_details else 403)


@pytest.mark.parametrize("headers", [LINK, IMAGE])
def test_other_sites_may_not_send_changes(client, headers):
    check(client.post("/length", headers=headers), 403, "request.foreign-origin")


def test_with_authentication_the_origin_does_not_matter(build):
    client = build(is_open_to_all=True, refuses_other_sites=False).client()

    assert client.get("/here", headers={"Origin": "https://maps.example", "Host": "geo.example"}).json() == "here"
