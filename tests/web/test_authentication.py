"""A route gets its caller. A request with missing or invalid credentials, or without the permission, is refused."""

from typing import Annotated, Any

import pytest
from fastapi import Depends
from starlette.datastructures import Headers
from starlette.routing import Route

from dagmaster.access.caller import ANONYMOUS, Caller, Scope
from dagmaster.access.permissions import Permission
from dagmaster.errors import NotAuthenticated, Unavailable
from dagmaster.web.authentication import Identity, needs, permission_of
from tests.web.problems import check

pytestmark = pytest.mark.requirement("X1")

CALLERS = {
    "": ANONYMOUS,
    "viewer": Caller("v", frozenset({Scope.VIEWER})),
    "operator": Caller("o", frozenset({Scope.OPERATOR})),
    "without scopes": Caller("n"),
}


class ByName:
    """The credentials of a caller are its name."""

    async def identify(self, _scope: Any, headers: Headers) -> Identity:
        name = headers.get("authorization", "")
        if name == "away":
            raise Unavailable("the issuer does not answer", code="auth.issuer-unavailable")
        if name not in CALLERS:
            raise NotAuthenticated("this key is not valid", code="auth.invalid-key")
        return Identity(CALLERS[name])


@pytest.fixture
def under_test(build):
    under_test = build(authentication=ByName())

    @under_test.app.get("/jobs")
    async def jobs(caller: Annotated[Caller, Depends(needs(Permission.JOBS_READ))]) -> str:
        return caller.name

    @under_test.app.get("/open", dependencies=[Depends(needs(Permission.ANYONE))])
    async def anyone() -> str:
        return "open"

    return under_test


def test_a_caller_with_the_permission_reaches_the_route(client):
    assert client.get("/jobs", headers={"Authorization": "operator"}).json() == "o"


def test_a_request_without_credentials_is_refused_with_a_challenge(client):
    response = client.get("/jobs")

    problem = check(response, 401, "auth.required")
    assert response.headers["www-authenticate"].startswith("Bearer")
    assert "dagmaster login" in problem["hint"]


@pytest.mark.parametrize("name", ["viewer", "without scopes"])
def test_a_refused_caller_learns_the_missing_permission_and_which_scopes_have_it(client, name, under_test):
    problem = check(client.get("/jobs", headers={"Authorization": name}), 403, "auth.not-allowed")

    assert "jobs:read" in problem["detail"]
    assert "operator" in problem["hint"]
    assert problem["facts"] == ({} if under_test.hides_details else {"permission": "jobs:read"})


def test_a_route_for_anyone_needs_no_credentials(client):
    assert client.get("/open").json() == "open"


@pytest.mark.parametrize("path", ["/open", "/jobs", "/here", "/missing"])
def test_invalid_credentials_are_refused_on_every_route(client, path):
    response = client.get(path, headers={"Authorization": "unknown"})

    check(response, 401, "auth.invalid-key")
    assert "www-authenticate" in response.headers


def test_credentials_that_cannot_be_checked_are_not_refused_as_invalid(client):
    response = client.get("/jobs", headers={"Authorization": "away"})

    check(response, 503, "auth.issuer-unavailable")
    assert response.headers["retry-after"]


def test_the_declared_permission_can_be_read_from_a_route(under_test):
    declared = {route.path: permission_of(route) for route in under_test.app.routes}

    assert declared["/jobs"] is Permission.JOBS_READ
    assert declared["/open"] is Permission.ANYONE
    assert declared["/here"] is None


def test_a_starlette_route_declares_its_permission_at_its_endpoint():
    async def endpoint(scope, receive, send): ...

    endpoint.permission = Permission.ANYONE

    assert permission_of(Route("/stac", endpoint)) is Permission.ANYONE
