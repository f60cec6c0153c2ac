"""The form of every problem response, on every server."""

from typing import Any

FIELDS = {"type", "title", "status", "detail", "instance", "code", "hint", "facts", "errors", "request_id"}


def check(answer: Any, status: int, code: str) -> Any:
    problem = answer.json()
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert set(problem) == FIELDS
    assert (problem["status"], problem["code"]) == (status, code)
    assert problem["type"] == f"urn:dagmaster:problem:{code}"
    assert problem["request_id"] == answer.headers["x-request-id"]
    return problem
