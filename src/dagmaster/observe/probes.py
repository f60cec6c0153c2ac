"""Health over HTTP for a process without the API: /livez, /readyz, /health and /metrics.

In threads of its own, not in the loop that it tells of. A loop that hangs in a handler could not answer, and whoever
asked would know only that nobody did; this way the answer comes at once, says since when the loop stands still, and
still lists what runs, which is what one wants to know then. The loop shows that it moves by ticking. Should the
interpreter itself hang, no answer comes, and that is true as well.

What is told is read from the process's own memory: it is right when the database is away, too.
"""

import asyncio
import socket
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, Protocol, Self, cast
from urllib.parse import urlsplit

import orjson

from dagmaster.listen import is_loopback, url_of
from dagmaster.observe import log

_REQUEST_SECONDS = 5.0  # a client that is slower is hung up on
_MOST_AT_ONCE = 16
_TICKS_PER_PATIENCE = 4
_LONGEST_TICK_SECONDS = 0.5
_JSON, _TEXT = "application/json", "text/plain; version=0.0.4; charset=utf-8"

_log = log.get("health")


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    is_ok: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric as Prometheus reads it: a value for each set of labels."""

    name: str
    kind: Literal["counter", "gauge"]
    meaning: str
    samples: Mapping[tuple[tuple[str, str], ...], float]


class Subject(Protocol):
    """Who is asked. Every call comes from another thread than the loop's, and must neither wait nor change anything."""

    def alive(self) -> list[Check]:
        """What only a restart would heal, beside a loop that stands still."""
        ...

    def ready(self) -> list[Check]: ...

    def about(self) -> dict[str, Any]: ...

    def metrics(self) -> Iterable[Metric]: ...


def one(name: str, kind: Literal["counter", "gauge"], meaning: str, value: float) -> Metric:
    """A metric without labels."""
    return Metric(name, kind, meaning, {(): value})


def age_of(moment: float | None) -> float | None:
    """Seconds since a moment of the monotonic clock."""
    return None if moment is None else round(time.monotonic() - moment, 3)


class Probes:
    """Use as a context manager, inside the loop that is watched."""

    def __init__(
        self, bound: socket.socket, subject: Subject, *, patience_seconds: float, is_open_to_all: bool = False
    ) -> None:
        self.url = url_of(bound)
        self._bound = bound
        self._subject = subject
        self._patience = patience_seconds
        self._is_open_to_all = is_open_to_all
        self._period = min(patience_seconds / _TICKS_PER_PATIENCE, _LONGEST_TICK_SECONDS)
        self._moved_at = time.monotonic()
        self._over = threading.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._thread = threading.Thread(target=self._serve, name="probes", daemon=True)

    def __enter__(self) -> Self:
        self._tick()
        self._thread.start()
        _log.info("health is told", url=self.url)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._timer:
            self._timer.cancel()
        with suppress(OSError):  # it has closed the port already
            self._bound.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for a client; it closes the port
        self._thread.join(_REQUEST_SECONDS)

    def _tick(self) -> None:
        self._moved_at = time.monotonic()
        self._timer = asyncio.get_running_loop().call_later(self._period, self._tick)

    def _serve(self) -> None:
        with self._bound:
            server = _Server(self._bound, self)
            while not self._over.is_set():
                server.handle_request()

    # Answers

    def answer(self, path: str, host: str) -> tuple[int, str, bytes]:
        """Status, media type and body."""
        if not (self._is_open_to_all or is_loopback(urlsplit(f"//{host}").hostname or "")):
            return 403, _JSON, _json({"detail": "the health of this machine is not told under this host name"})
        match urlsplit(path).path:
            case "/livez":
                return self._judged("is_alive", self._alive())
            case "/readyz":
                return self._judged("is_ready", [*self._alive(), *self._subject.ready()])
            case "/health":
                return 200, _JSON, _json(self._everything())
            case "/metrics":
                return 200, _TEXT, _exposition([*self._subject.metrics(), self._stillness()]).encode()
        return 404, _JSON, _json({"detail": "there are /livez, /readyz, /health and /metrics"})

    def _alive(self) -> list[Check]:
        still = time.monotonic() - self._moved_at
        moves = Check("event loop", still < self._patience, f"moved {still:.1f} s ago")
        return [moves, *self._subject.alive()]

    def _judged(self, verdict: str, checks: list[Check]) -> tuple[int, str, bytes]:
        is_fine = all(check.is_ok for check in checks)
        return 200 if is_fine else 503, _JSON, _json({verdict: is_fine, "checks": checks})

    def _everything(self) -> dict[str, Any]:
        alive, ready = self._alive(), self._subject.ready()
        verdicts = {
            "is_alive": all(check.is_ok for check in alive),
            "is_ready": all(check.is_ok for check in [*alive, *ready]),
            "checks": [*alive, *ready],
        }
        return verdicts | self._subject.about()

    def _stillness(self) -> Metric:
        meaning = "Seconds since the event loop last moved"
        return one("dagmaster_loop_still_seconds", "gauge", meaning, time.monotonic() - self._moved_at)


class _Server(ThreadingHTTPServer):
    """On a port that is taken already, with a bound on how many ask at once."""

    daemon_threads = True

    def __init__(self, bound: socket.socket, probes: Probes) -> None:
        self.address_family = bound.family
        super().__init__(bound.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = bound
        self.probes = probes
        self._places = threading.BoundedSemaphore(_MOST_AT_ONCE)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug("a probe went away before its answer", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    timeout = _REQUEST_SECONDS
    server_version, sys_version = "dagmaster", ""

    def do_GET(self) -> None:
        self._tell(with_body=True)

    def do_HEAD(self) -> None:
        self._tell(with_body=False)

    def _tell(self, *, with_body: bool) -> None:
        probes = cast(_Server, self.server).probes
        status, media_type, body = probes.answer(self.path, self.headers.get("Host", ""))
        self.send_response(status)
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the library's
        """Probes come every few seconds: nobody wants to read of them."""


def _json(value: Any) -> bytes:
    return orjson.dumps(value, default=str, option=orjson.OPT_INDENT_2)


def _exposition(metrics: Iterable[Metric]) -> str:
    lines: list[str] = []
    for metric in metrics:
        lines += [f"# HELP {metric.name} {metric.meaning}", f"# TYPE {metric.name} {metric.kind}"]
        lines += [f"{metric.name}{_labels(labels)} {value:g}" for labels, value in metric.samples.items()]
    return "\n".join(lines) + "\n"


def _labels(labels: tuple[tuple[str, str], ...]) -> str:
    written = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{written}}}" if written else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
