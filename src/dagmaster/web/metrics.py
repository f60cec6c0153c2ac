"""Counts and durations of the requests to a server, as metrics for Prometheus.

They are kept in the memory of the process. The label of a request is the template of its route, such as
`/api/v1/jobs/{job_id}`: the number of paths is not limited, and each would be a label of its own.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client.core import Metric
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Scope

from dagmaster.observe.metrics import (
    EXPOSITION_TYPE,
    REQUEST_SECONDS,
    Durations,
    counter,
    counters,
    exposition,
    gauge,
    new_registry,
)

_METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
NO_ROUTE = "none"
_ROUTE_LABEL = "route_label"  # in the state of a request whose router does not name its route


class RequestMetrics:
    """The requests to a server since its start. It is used in one event loop."""

    def __init__(self, role: str, *readings: Callable[[], Iterable[Metric]]) -> None:
        """`readings` return further metrics of the server, at every scrape."""
        self._started_at = time.monotonic()
        self._responses: Counter[tuple[str, int]] = Counter()
        self._seconds = 0.0
        self._running = 0
        self._durations = Durations(
            "dagmaster_http_request_duration_seconds",
            "Seconds until a response was sent, by method, route and class of status",
            ("method", "route", "status"),
            REQUEST_SECONDS,
        )
        self._registry = new_registry(role, self.metrics, *readings)

    def begin(self) -> None:
        self._running += 1

    def end(self, method: str, status: int, seconds: float, route: str = NO_ROUTE) -> None:
        """Status 0 means that the client disconnected before the response began."""
        self._running -= 1
        method = method if method in _METHODS else "other"
        self._responses[method, status] += 1
        self._seconds += seconds
        self._durations.observe((method, route, f"{status // 100}xx" if status else "none"), seconds)

    def metrics(self) -> Iterable[Metric]:
        samples: dict[tuple[str, ...], float] = {
            (method, str(status)): count for (method, status), count in sorted(self._responses.items())
        }
        yield counters("dagmaster_http_requests_total", "Requests by method and status", ("method", "status"), samples)
        yield counter("dagmaster_http_request_seconds_total", "Seconds spent on requests", self._seconds)
        yield gauge("dagmaster_http_requests_running", "Requests and streams that are open now", self._running)
        uptime = time.monotonic() - self._started_at
        yield gauge("dagmaster_uptime_seconds", "Seconds since the start of the server", uptime)
        yield from self._durations.collect()

    def response(self) -> Response:
        """The metrics in the format of Prometheus."""
        return Response(exposition(self._registry), media_type=EXPOSITION_TYPE, headers={"Cache-Control": "no-store"})


def route_of(scope: Scope) -> str:
    """The template of the route that handled a request; `none` if no route matched."""
    label: str | None = scope.get("state", {}).get(_ROUTE_LABEL)
    if label is not None:
        return label
    included: Any = scope.get("fastapi", {}).get("effective_route_context")
    path: str | None = getattr(included or scope.get("route"), "path", None)
    return path or _plain_routes(scope).get(id(scope.get("endpoint")), NO_ROUTE)


def _plain_routes(scope: Scope) -> dict[int, str]:
    """The templates of the routes of Starlette, which do not name themselves in the scope, by their endpoint."""
    app = scope.get("app")
    if app is None:
        return {}
    if not hasattr(app.state, "plain_routes"):
        plain = [route for route in app.routes if type(route) is Route]
        app.state.plain_routes = {id(route.endpoint): route.path for route in plain}
    routes: dict[int, str] = app.state.plain_routes
    return routes


def name_route(scope: Scope, template: str) -> None:
    """Set the label of a request. `template` must be a constant, not a text from the request."""
    scope.setdefault("state", {})[_ROUTE_LABEL] = template
