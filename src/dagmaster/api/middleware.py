"""Middleware of the API."""

from starlette.types import Scope

from dagmaster import listen
from dagmaster.api import uploads, worker_requests
from dagmaster.api.problems import PROBLEMS
from dagmaster.client.limits import PREFIX
from dagmaster.dataset_urls import is_map_path
from dagmaster.errors import InvalidRequest
from dagmaster.jobs.payload import LOADABLE_BYTES
from dagmaster.web.middleware import RequestMiddleware
from dagmaster.web.page_headers import is_of_ui


class ApiMiddleware(RequestMiddleware):
    endpoint = listen.API
    problems = PROBLEMS
    hint_when_too_large = "put large data into storage and pass a reference"
    uploads_below = uploads.PATH
    untraced_below = f"{PREFIX}/worker/"  # the tasks of workers are traced, not their polls

    def needs_caller(self, path: str) -> bool:
        """Pages of the web UI contain no data, and the map server authenticates the callers of its paths."""
        return not is_of_ui(path) and not is_map_path(path)

    def allows_foreign_images(self, path: str) -> bool:
        return is_map_path(path)

    def _max_bytes(self, scope: Scope) -> int:
        """Outputs that workers send are larger than other bodies."""
        path = scope["path"]
        is_output = scope["method"] == "PUT" and path.startswith(f"{PREFIX}/worker/") and path.endswith("/output")
        return LOADABLE_BYTES if is_output else super()._max_bytes(scope)

    def _too_large(self, max_bytes: int) -> InvalidRequest:
        return worker_requests.too_large_payload() if max_bytes == LOADABLE_BYTES else super()._too_large(max_bytes)
