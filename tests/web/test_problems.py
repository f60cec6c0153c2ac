"""Every error is an RFC 9457 problem with a stable code, and contains no secrets."""

from http import HTTPStatus

import pytest

from dagmaster import errors
from dagmaster.errors import DagmasterError, InvalidRequest, Unavailable
from dagmaster.web.problems import STATUSES, status_of
from tests.web.problems import check


@pytest.mark.requirement("X3")
def test_secrets_in_errors_are_redacted(client, under_test):
    response = client.get("/refused")

    problem = check(response, 409, "conflict")
    assert "hunter2" not in response.text
    assert set(problem["facts"]) == (set() if under_test.hides_details else {"url", "many"})


def test_long_texts_are_shortened_and_an_unavailable_service_may_be_retried(client, under_test):
    response = client.get("/long")

    problem = check(response, 503, "long.away")
    assert len(problem["detail"]) == (1000 if under_test.hides_details else 4000)
    assert problem["detail"].endswith("y…")
    assert response.headers["retry-after"] == "2"
    assert response.headers.get("cache-control") == ("no-store" if under_test.hides_details else None)


def test_lone_surrogates_in_a_message_are_replaced(client):
    assert check(client.get("/halves"), 409, "conflict")["detail"] == "?"


def test_mistakes_in_a_workflow_file_have_line_and_column(client, under_test):
    problem = check(client.get("/file"), 422, "workflow.invalid")

    places = [(each["message"], each["line"], each["column"], each["node"]) for each in problem["errors"]]
    assert places == ([] if under_test.hides_details else [("no such node", 3, 5, "a")])


def test_the_response_to_an_unknown_path_has_a_hint(client):
    missing = check(client.get("/nowhere"), 404, "route.not-found")
    other = client.delete("/here")

    assert (missing["detail"], missing["instance"]) == (HTTPStatus.NOT_FOUND.phrase, "/nowhere")
    assert "/openapi.json" in missing["hint"]
    check(other, 405, "route.method-not-allowed")
    assert other.headers["allow"] == "GET"


def test_every_error_class_has_a_status():
    families = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, DagmasterError)]

    assert set(families) == set(STATUSES)
    assert status_of(Unavailable("x")) == 503
    assert status_of(InvalidRequest("x")) == 400
