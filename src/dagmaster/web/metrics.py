"""Counts of the requests to a server, as metrics for Prometheus.

They are kept in the memory of the process. Labels have few values: a path would be a label without bounds.
"""

import time
from collections import Counter
from collections.abc import Iterable

from starlette.responses import Response

from dagmaster.observe.probes import EXPOSITION_TYPE, Metric, exposition, one

_METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}


class RequestMetrics:
    """What a server has answered since its start. It is used in one event loop."""

    def __init__(self) -> None:
        self._started_at = time.monotonic()
        self._responses: Counter[tuple[str, int]] = Counter()
        self._seconds = 0.0
        self._running = 0

    def begin(self) -> None:
        self._running += 1

    def end(self, method: str, status: int, seconds: float) -> None:
        """Status 0 means that the client was gone before the response began."""
        self._running -= 1
        self._responses[method if method in _METHODS else "other", status] += 1
        self._seconds += seconds

    def metrics(self) -> Iterable[Metric]:
        samples: dict[tuple[tuple[str, str], ...], float] = {
            (("method", method), ("status", str(status))): count
            for (method, status), count in sorted(self._responses.items())
        }
        yield Metric("dagmaster_http_requests_total", "counter", "Requests by method and status", samples)
        yield one("dagmaster_http_request_seconds_total", "counter", "Seconds spent on requests", self._seconds)
        yield one("dagmaster_http_requests_running", "gauge", "Requests and streams that are open now", self._running)
        uptime = time.monotonic() - self._started_at
        yield one("dagmaster_uptime_seconds", "gauge", "Seconds since the start of the server", uptime)


def metrics_response(metrics: Iterable[Metric]) -> Response:
    return Response(exposition(metrics), media_type=EXPOSITION_TYPE, headers={"Cache-Control": "no-store"})
