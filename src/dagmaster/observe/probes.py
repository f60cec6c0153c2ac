"""Health over HTTP for a process without the API: /livez, /readyz, /health and /metrics.

The server runs in its own threads, not in the event loop that it reports on. An event loop that a handler blocks could
not respond, and the client would learn nothing from the timeout. From a thread, the response comes at once: it says for
how long the loop has been blocked, and lists the tasks that run. A timer in the loop records when the loop last ran. If
the whole interpreter is blocked, there is no response, and the client's timeout reports that correctly.

All values come from the memory of the process, so they are correct even if the database is unavailable. No key is
needed, because orchestration systems such as Kubernetes send no credentials; other addresses than loopback require
HEALTH_INSECURE.
"""

import asyncio
import socket
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol, Self, cast
from urllib.parse import urlsplit

import orjson
from prometheus_client.core import Metric

from dagmaster.listen import is_loopback, url_of
from dagmaster.observe import log
from dagmaster.observe.metrics import EXPOSITION_TYPE, exposition, gauge, new_registry

_REQUEST_SECONDS = 5.0  # the connection of a slower client is closed
_MAX_CONNECTIONS = 16
_TICKS_BEFORE_STUCK = 4
_MAX_TICK_SECONDS = 0.5
_JSON = "application/json"
PATHS = ("/livez", "/readyz", "/health", "/metrics")

_log = log.get("health")


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    is_ok: bool
    detail: str


class ProbedProcess(Protocol):
    """The process that is probed. Its methods are called from other threads: they must not block or change anything."""

    role: str

    def alive(self) -> list[Check]:
        """Checks whose failure only a restart repairs, in addition to the check of the event loop."""
        ...

    def ready(self) -> list[Check]: ...

    def details(self) -> dict[str, Any]: ...

    def metrics(self) -> Iterable[Metric]: ...


def age_of(moment: float | None) -> float | None:
    """Seconds since a moment of the monotonic clock."""
    return None if moment is None else round(time.monotonic() - moment, 3)


class Probes:
    """The server of the probes. Use it as a context manager, in the event loop that it watches."""

    def __init__(
        self, bound: socket.socket, subject: ProbedProcess, *, stuck_after_seconds: float, is_open_to_all: bool = False
    ) -> None:
        self.url = url_of(bound)
        self._bound = bound
        self._subject = subject
        self._registry = new_registry(subject.role, subject.metrics, self._loop_metric)
        self._stuck_after_seconds = stuck_after_seconds
        self._is_open_to_all = is_open_to_all
        self._period = min(stuck_after_seconds / _TICKS_BEFORE_STUCK, _MAX_TICK_SECONDS)
        self._ticked_at = time.monotonic()
        self._stopped = threading.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._thread = threading.Thread(target=self._serve, name="probes", daemon=True)

    def __enter__(self) -> Self:
        self._tick()
        self._thread.start()
        _log.info("health endpoint started", url=self.url)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        if self._timer:
            self._timer.cancel()
        with suppress(OSError):  # the thread has closed the socket already
            self._bound.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for a client; it closes the socket
        self._thread.join(_REQUEST_SECONDS)

    def _tick(self) -> None:
        self._ticked_at = time.monotonic()
        self._timer = asyncio.get_running_loop().call_later(self._period, self._tick)

    def _serve(self) -> None:
        with self._bound:
            server = _ProbeServer(self._bound, self)
            while not self._stopped.is_set():
                server.handle_request()

    # Responses

    def response(self, path: str, host: str) -> tuple[int, str, bytes]:
        """The status, media type and body of the response."""
        if not (self._is_open_to_all or is_loopback(urlsplit(f"//{host}").hostname or "")):
            return (
                403,
                _JSON,
                _json({"detail": "the health endpoint does not accept requests for this host name; use localhost"}),
            )
        match urlsplit(path).path:
            case "/livez":
                return self._verdict("is_alive", self._alive())
            case "/readyz":
                return self._verdict("is_ready", [*self._alive(), *self._subject.ready()])
            case "/health":
                return 200, _JSON, _json(self._report())
            case "/metrics":
                return 200, EXPOSITION_TYPE, exposition(self._registry)
        return 404, _JSON, _json({"detail": "not found; the paths are /livez, /readyz, /health and /metrics"})

    def _alive(self) -> list[Check]:
        seconds = time.monotonic() - self._ticked_at
        event_loop = Check("event loop", seconds < self._stuck_after_seconds, f"last ran {seconds:.1f} s ago")
        return [event_loop, *self._subject.alive()]

    def _verdict(self, name: str, checks: list[Check]) -> tuple[int, str, bytes]:
        is_ok = all(check.is_ok for check in checks)
        return 200 if is_ok else 503, _JSON, _json({name: is_ok, "checks": checks})

    def _report(self) -> dict[str, Any]:
        alive, ready = self._alive(), self._subject.ready()
        verdicts = {
            "is_alive": all(check.is_ok for check in alive),
            "is_ready": all(check.is_ok for check in [*alive, *ready]),
            "checks": [*alive, *ready],
        }
        return verdicts | self._subject.details()

    def _loop_metric(self) -> Iterable[Metric]:
        meaning = "Seconds since the event loop last ran"
        yield gauge("dagmaster_loop_still_seconds", meaning, time.monotonic() - self._ticked_at)


class _ProbeServer(ThreadingHTTPServer):
    """An HTTP server on a socket that is already bound, with a limit on the number of connections."""

    daemon_threads = True

    def __init__(self, bound: socket.socket, probes: Probes) -> None:
        self.address_family = bound.family
        super().__init__(bound.getsockname()[:2], _ProbeHandler, bind_and_activate=False)
        self.socket.close()
        self.socket = bound
        self.probes = probes
        self._connections = threading.BoundedSemaphore(_MAX_CONNECTIONS)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._connections.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug("a client closed the connection before the response", exc_info=True)


class _ProbeHandler(BaseHTTPRequestHandler):
    timeout = _REQUEST_SECONDS
    server_version, sys_version = "dagmaster", ""

    def do_GET(self) -> None:
        self._respond(with_body=True)

    def do_HEAD(self) -> None:
        self._respond(with_body=False)

    def _respond(self, *, with_body: bool) -> None:
        probes = cast(_ProbeServer, self.server).probes
        status, media_type, body = probes.response(self.path, self.headers.get("Host", ""))
        self.send_response(status)
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the library's
        """Log nothing: probes come every few seconds."""


def _json(value: Any) -> bytes:
    return orjson.dumps(value, default=str, option=orjson.OPT_INDENT_2)
