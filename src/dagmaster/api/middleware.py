"""Middleware of the API."""

from dagmaster import listen
from dagmaster.api import uploads
from dagmaster.api.problems import PROBLEMS
from dagmaster.dataset_urls import is_of_maps
from dagmaster.web.middleware import RequestMiddleware
from dagmaster.web.page_headers import is_of_ui


class ApiMiddleware(RequestMiddleware):
    endpoint = listen.API
    problems = PROBLEMS
    hint_when_too_large = "put large data into storage and pass a reference"
    uploads_below = uploads.PATH

    def needs_caller(self, path: str) -> bool:
        """Pages of the web UI contain no data, and the map server authenticates the callers of its paths."""
        return not is_of_ui(path) and not is_of_maps(path)

    def shows_images_elsewhere(self, path: str) -> bool:
        return is_of_maps(path)
