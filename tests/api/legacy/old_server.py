"""A server on a local port that responds like the old system, or with a given fault."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

OLD_ID = "038ffc2d537986c903ce8d4c5cec106b26a515d4e0398c9b22b1438c0e78e594"


@dataclass
class OldServer:
    """`received` has all requests: method, path, headers and body. `fault` is the name of a fault of its responses."""

    url: str = ""
    fault: str | None = None
    received: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        parts = path.partition("?")[0].strip("/").split("/")
        match method, parts:
            case "POST", ["api", "jobs", "submit", job_type]:
                self.jobs[OLD_ID] = {"job_type": job_type, "parameters": json.loads(body or b"{}")}
                return 200, {"job_id": OLD_ID, "status": "queued", "queue": "geospatial-jobs", "jobType": job_type}
            case "GET", ["api", "jobs", "status", job_id] if job_id in self.jobs:
                return 200, {"jobId": job_id, "status": "processing", "stage": 1, "totalStages": 4}
            case "POST", ["api", "jobs", "retry-stage", job_id, stage] if job_id in self.jobs:
                return 200, {"status": "stage_retry_initiated", "job_id": job_id, "stage": int(stage)}
            case "GET", ["api", "dbadmin", "tasks", job_id] if job_id in self.jobs:
                return 200, {"tasks": [{"task_id": "8d471f99635793f6", "score": float("nan")}], "metrics": {}}
        return 404, {"error": "Not found", "message": f"Job not found: {parts[-1]}"}

    @property
    def paths(self) -> list[str]:
        return [path for _, path, _, _ in self.received]


@contextmanager
def old_server(fault: str | None = None) -> Iterator[OldServer]:
    state = OldServer(fault=fault)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def log_message(self, *_arguments: Any) -> None:
            pass

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            state.received.append((self.command, self.path, dict(self.headers), body))
            match state.fault:
                case "slow":
                    time.sleep(1.5)
                case "drip":  # a byte every 0.1 s: no single read times out, but the response is not complete in time
                    self._head(200, 1000)
                    for _ in range(15):
                        self.wfile.write(b" ")
                        self.wfile.flush()
                        time.sleep(0.1)
                    return None
                case "500":
                    return self._send(500, b'{"error": "password=hunter2"}')
                case "html":
                    return self._send(200, b"<html>busy</html>")
                case "list":
                    return self._send(200, b"[1]")
                case "deep":
                    return self._send(200, b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}")
                case "huge":
                    return self._send(200, b'{"a":"' + b"x" * (9 * 1024 * 1024) + b'"}')
                case "redirect":
                    self.send_response(302)
                    self.send_header("Location", f"{state.url}/elsewhere")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return None
                case "unauthorized":
                    return self._send(401, b"{}")
                case "cut":
                    self._head(200, 1000)
                    self.wfile.write(b'{"a"')
                    self.close_connection = True
                    return None
                case "no HTTP":
                    self.wfile.write(b"hello\r\n\r\n")
                    self.close_connection = True
                    return None
                case "text 400":
                    return self._send(400, b"bad request")
                case "odd numbers":
                    return self._send(200, b'{"a": NaN, "b": 1e999, "c": 1' + b"0" * 40 + b', "d": "\\ud800"}')
            status, content = state.answer(self.command, self.path, body)
            return self._send(status, json.dumps(content).encode())

        def _send(self, status: int, body: bytes) -> None:
            try:
                self._head(status, len(body))
                self.wfile.write(body)
            except OSError:
                pass  # the client did not wait

        def _head(self, status: int, length: int) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(length))
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
