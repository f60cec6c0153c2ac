"""A local server that imitates Azure Resource Manager and the metadata service, as far as pipelines need them.

Its pipeline copies the objects of `file_list` from the silver zone to the external zone, as a real one is set up to do.
Faults are queued by a test: each is used for one request.
"""

import json
import re
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

FACTORY = "/subscriptions/sub-1/resourceGroups/maps/providers/Microsoft.DataFactory/factories/exports"
SETTINGS = {
    "exporter": "data_factory",
    "adf_subscription_id": "sub-1",
    "adf_resource_group": "maps",
    "adf_factory_name": "exports",
    "adf_pipeline_name": "copy-public",
    "adf_poll_sec": 0.05,
}
CANARY = "canary-token-do-not-show"
IDENTITY_SECRET = "canary-identity-secret"


@dataclass
class Fault:
    """The response to one request. `is_done`: the request is carried out nevertheless. Without a status, the connection
    is closed without a response."""

    status: int | None
    headers: dict[str, str] = field(default_factory=dict)
    is_done: bool = False


@dataclass
class Run:
    run_id: str
    parameters: dict[str, str]
    statuses: deque[str]
    status: str = "Queued"
    message: str = ""


class AzureLike:
    def __init__(self, storage: Path | None = None) -> None:
        self.storage = storage
        self.runs: list[Run] = []
        self.faults: dict[str, deque[Fault]] = {
            name: deque() for name in ("createRun", "get", "query", "cancel", "token")
        }
        self.requests: list[str] = []
        self.tokens_given = 0
        self.token_seconds = 3600.0
        self.valid_tokens: set[str] = set()
        self.statuses = ["Queued", "InProgress", "Succeeded"]  # of the next runs, one a poll
        self.damages = False
        self.page_size = 2
        self.url = ""

    def token(self, path: str, headers: Any) -> tuple[int, Any]:
        query = parse_qs(urlsplit(path).query)
        is_app_service = headers.get("X-IDENTITY-HEADER") == IDENTITY_SECRET and query["api-version"] == ["2019-08-01"]
        is_machine = headers.get("Metadata") == "true" and query["api-version"] == ["2018-02-01"]
        if not (is_app_service or is_machine) or query["resource"] != [f"{self.url}/"]:
            return 400, {"error": "invalid_request"}
        self.tokens_given += 1
        token = f"{CANARY}-{self.tokens_given}"
        self.valid_tokens.add(token)
        return 200, {
            "access_token": token,
            "expires_on": str(int(time.time() + self.token_seconds)),
            "token_type": "Bearer",
        }

    def create(self, body: dict[str, str]) -> tuple[int, Any]:
        run = Run(str(uuid4()), body, deque(self.statuses))
        self.runs.append(run)
        return 200, {"runId": run.run_id}

    def get(self, run_id: str) -> tuple[int, Any]:
        run = next((run for run in self.runs if run.run_id == run_id), None)
        if run is None:
            return 404, {"error": {"code": "NotFound", "message": "no such run"}}
        if run.statuses and run.status != "Cancelled":
            run.status = run.statuses.popleft()
            if run.status == "Succeeded":
                self._copy(run)
            if run.status == "Failed":
                run.message = "the copy activity failed: sig=canary-signature"
        return 200, _described(run)

    def query(self, body: dict[str, Any]) -> tuple[int, Any]:
        assert body["filters"] == [{"operand": "PipelineName", "operator": "Equals", "values": ["copy-public"]}]
        assert body["lastUpdatedAfter"] < body["lastUpdatedBefore"]
        start = int(body.get("continuationToken", 0))
        page = {"value": [_described(run) for run in self.runs[start : start + self.page_size]]}
        if start + self.page_size < len(self.runs):
            page["continuationToken"] = str(start + self.page_size)
        return 200, page

    def cancel(self, run_id: str) -> tuple[int, Any]:
        for run in self.runs:
            if run.run_id == run_id:
                run.status = "Cancelled"
        return 200, {}

    def _copy(self, run: Run) -> None:
        if self.storage is None:
            return
        given = run.parameters
        source = self.storage / "silver" / given["source_container"]
        target = self.storage / "external" / given["target_container"]
        for name in (source / given["file_list"]).read_text().splitlines():
            copy = target / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            content = (source / name).read_bytes()
            copy.write_bytes(content[:-1] + b"\0" if self.damages and name.endswith(".tif") else content)


def _described(run: Run) -> dict[str, Any]:
    return {
        "runId": run.run_id,
        "pipelineName": "copy-public",
        "parameters": run.parameters,
        "status": run.status,
        "message": run.message,
    }


@contextmanager
def azure(storage: Path | None = None) -> Iterator[AzureLike]:
    state = AzureLike(storage)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def log_message(self, *_: Any) -> None:
            pass

        def _answer(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
            name, act = self._routed(body)
            state.requests.append(name)
            fault = state.faults[name].popleft() if state.faults.get(name) else None
            status, response = (fault.status, {}) if fault and not fault.is_done else act()
            if fault:
                status, response = fault.status, {}
            if status is None:
                self.connection.close()
                return
            content = json.dumps(response).encode()
            self.send_response(status)
            for header, value in (fault.headers if fault else {}).items():
                self.send_header(header, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def _routed(self, body: dict[str, Any]) -> tuple[str, Any]:
            path = urlsplit(self.path).path
            if path == "/metadata/identity/oauth2/token":
                return "token", lambda: state.token(self.path, self.headers)
            token = self.headers.get("Authorization", "").removeprefix("Bearer ")
            if token not in state.valid_tokens:
                return "unauthorized", lambda: (401, {"error": {"code": "ExpiredAuthenticationToken"}})
            assert parse_qs(urlsplit(self.path).query) == {"api-version": ["2018-06-01"]}
            operation = path.removeprefix(FACTORY)
            if operation == "/pipelines/copy-public/createRun":
                return "createRun", lambda: state.create(body)
            if operation == "/queryPipelineRuns":
                return "query", lambda: state.query(body)
            if match := re.fullmatch(r"/pipelineruns/([^/]+)/cancel", operation):
                return "cancel", lambda: state.cancel(match[1])
            if match := re.fullmatch(r"/pipelineruns/([^/]+)", operation):
                return "get", lambda: state.get(match[1])
            return "unknown", lambda: (404, {"error": {"message": f"no such resource {operation}"}})

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
