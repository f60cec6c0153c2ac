"""Middleware of the API. It also refuses requests from other web sites that are not reads (CSRF), by their `Origin`."""

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

from dagmaster import listen
from dagmaster.api.problems import PROBLEMS
from dagmaster.errors import InvalidRequest
from dagmaster.web.middleware import RequestMiddleware


class ApiMiddleware(RequestMiddleware):
    endpoint = listen.API
    problems = PROBLEMS
    hint_when_too_large = "put large data into storage and pass a reference"

    def refusal(self, scope: Scope, headers: Headers) -> InvalidRequest | None:
        error = super().refusal(scope, headers)
        if error is not None:
            return error
        origin = headers.get("origin")
        is_reading = scope["method"] in {"GET", "HEAD", "OPTIONS"}
        if origin is not None and not is_reading and _host_of(origin) != headers.get("host", ""):
            return InvalidRequest("requests from other web sites may only read", code="request.foreign-origin")
        return None


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).netloc
    except ValueError:
        return ""
