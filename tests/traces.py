"""A collector of spans, in the process of the test."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from dagmaster.observe import traces


@contextmanager
def traced(collector: "Collector", **options: Any) -> Iterator[None]:
    """Enable tracing for the block; all its spans have been sent when the block ends."""
    traces.configure("test", collector.url, **options)
    try:
        yield
    finally:
        traces.shutdown()


class Collector:
    """Receives spans as OTLP over HTTP."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                request = ExportTraceServiceRequest.FromString(body)
                outer.bodies.append(body)
                outer.headers.append({name.lower(): value for name, value in self.headers.items()})
                outer.spans += [s for r in request.resource_spans for scope in r.scope_spans for s in scope.spans]
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    @classmethod
    @contextmanager
    def running(cls, **options: Any) -> Iterator["Collector"]:
        """A collector that receives the spans of the block; it has all of them when the block ends."""
        collector = cls()
        try:
            with traced(collector, **options):
                yield collector
        finally:
            collector.close()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]


def facts(span: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}
