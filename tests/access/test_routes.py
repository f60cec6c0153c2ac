"""Every route of every app declares the permission that it needs, and no dependency of dagmaster runs in a thread."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dagmaster.access.caller import ANONYMOUS, Caller, Scope
from dagmaster.access.permissions import ALLOWED, Permission, may
from dagmaster.api.app import create_app as create_api
from dagmaster.dataset_urls import is_map_path
from dagmaster.gateway.app import create_app as create_gateway
from dagmaster.handlers.registry import installed
from dagmaster.library.workflows import WorkflowLibrary
from dagmaster.serving.app import create_app as create_maps
from dagmaster.settings import SCOPES, load
from dagmaster.web.authentication import permission_of, routes_of

pytestmark = pytest.mark.requirement("X1")

NOWHERE = "postgresql://nobody@127.0.0.1:1/none"
# Routes of the API that need no permission: probes, its description, the caller's own identity, signing in and out,
# and pages without data.
OPEN = {
    "/",
    "/docs",
    "/docs/assets/{name}",
    "/docs/try",
    "/docs/try.js",
    "/openapi.json",
    "/livez",
    "/readyz",
    "/api/v1/caller",
    "/api/v1/session",
    "/api/v1/session/oidc/start",
    "/api/v1/session/oidc/callback",
    "/ui",
    "/ui/{path:path}",
}


def routes(app: Any) -> list[Any]:
    return list(routes_of(app.routes))


API = create_api(load(), NOWHERE, WorkflowLibrary({}), installed())


def test_every_route_of_the_api_declares_its_permission():
    undeclared = [route.path for route in routes(API) if permission_of(route) is None]

    assert undeclared == []


def test_only_the_listed_routes_of_the_api_need_no_permission():
    open_to_all = {route.path for route in routes(API) if permission_of(route) is Permission.ANYONE}

    assert {path for path in open_to_all if not is_map_path(path)} == OPEN  # the map server decides on the others


def test_routes_that_change_something_require_more_than_a_permission_to_read():
    reading = {permission for permission in Permission if permission.endswith(":read")}
    changing = {
        route.path
        for route in routes(API)
        if route.methods - {"GET", "HEAD", "OPTIONS"} and permission_of(route) in {*reading, Permission.ANYONE}
        if not is_map_path(route.path)  # the map server only reads
    }

    # Validating stores nothing; the request to sign in contains the key.
    assert changing == {"/api/v1/workflows/validate", "/api/v1/session"}


def test_every_route_of_the_gateway_declares_its_permission():
    app = create_gateway(load(), NOWHERE)

    undeclared = [route.path for route in routes(app) if permission_of(route) is None]
    open_to_all = {route.path for route in routes(app) if permission_of(route) is Permission.ANYONE}

    assert undeclared == []
    assert open_to_all == {"/livez", "/readyz", "/openapi.json", "/api/gateway/health"}


def test_every_route_of_the_map_server_declares_its_permission():
    declared = {route.path: permission_of(route) for route in routes(create_maps(load(), NOWHERE))}

    assert [path for path, permission in declared.items() if permission is None] == []
    assert "/stac/search" in declared  # also those of the STAC API
    assert {path for path, permission in declared.items() if permission is not Permission.ANYONE} == {
        "/metrics",
        "/stac/_mgmt/health",
    }


def dependencies(dependant: Any) -> Iterator[Callable[..., Any]]:
    for part in dependant.dependencies:
        yield part.call
        yield from dependencies(part)


@pytest.mark.parametrize("create", [lambda *_: API, create_gateway, create_maps], ids=["api", "gateway", "maps"])
def test_no_dependency_of_dagmaster_runs_in_a_thread(create):
    """FastAPI runs plain functions in a thread, which takes longer than the functions themselves."""
    dependants = [route.dependant for route in routes(create(load(), NOWHERE)) if hasattr(route, "dependant")]
    calls = {call for dependant in dependants for call in dependencies(dependant)}
    # Those of TiTiler and of the STAC API are classes.
    ours = {call for call in calls if call.__module__.startswith("dagmaster.")}

    plain = {call for call in ours if not inspect.iscoroutinefunction(call)}

    assert len(ours) > 3
    assert [call for call in plain if not inspect.iscoroutinefunction(type(call).__call__)] == []


def test_a_worker_key_may_only_execute_and_report_tasks():
    assert ALLOWED[Scope.WORKER] == {Permission.TASKS_REPORT, Permission.TASKS_EXECUTE}
    paths = {route.path for route in routes(API) if permission_of(route) is Permission.TASKS_REPORT}
    executing = {route.path for route in routes(API) if permission_of(route) is Permission.TASKS_EXECUTE}
    assert paths == {"/api/v1/callbacks/task-result"}
    assert executing == {
        "/api/v1/worker/start",
        "/api/v1/worker/{worker_id}",
        *(
            f"/api/v1/worker/{{worker_id}}/{call}"
            for call in ("exchange", "heartbeat", "renew", "report", "running", "stops", "wait")
        ),
        *(
            f"/api/v1/worker/{{worker_id}}/tasks/{{task_id}}/{part}"
            for part in ("checkpoints", "output", "params", "results")
        ),
    }


def test_a_monitor_key_may_only_read_metrics_health_and_queues():
    assert ALLOWED[Scope.MONITOR] == {Permission.METRICS_READ}
    apps = {"api": API, "gateway": create_gateway(load(), NOWHERE), "maps": create_maps(load(), NOWHERE)}

    allowed = {
        (name, method, route.path)
        for name, app in apps.items()
        for route in routes(app)
        if permission_of(route) is Permission.METRICS_READ
        for method in route.methods - {"HEAD"}
    }

    assert allowed == {
        ("api", "GET", "/metrics"),
        ("api", "GET", "/api/v1/health"),
        ("api", "GET", "/api/v1/queues"),
        ("gateway", "GET", "/metrics"),
        ("maps", "GET", "/metrics"),
        ("maps", "GET", "/stac/_mgmt/health"),
    }


def test_callers_without_scopes_may_only_use_routes_without_permission():
    for caller in (ANONYMOUS, Caller("without scopes")):
        assert [permission for permission in Permission if may(caller, permission)] == [Permission.ANYONE]


def test_only_administrators_have_every_permission():
    complete = [scope for scope in Scope if ALLOWED[scope] >= set(Permission) - {Permission.ANYONE}]

    assert complete == [Scope.ADMIN]


def test_roles_of_tokens_may_name_every_scope():
    assert {*SCOPES, "b2b"} == set(Scope)
