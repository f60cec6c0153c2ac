"""Middleware of the API: it also refuses requests of other web sites that would change something (CSRF),
by their `Origin`."""

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
    hint_when_too_large = "large data goes to storage, by reference"

    def refusal(self, scope: Scope, headers: Headers) -> InvalidRequest | None:
        refused = super().refusal(scope, headers)
        if refused is not None:
            return refused
        origin = headers.get("origin")
        is_reading = scope["method"] in {"GET", "HEAD", "OPTIONS"}
        if origin is not None and not is_reading and _host_of(origin) != headers.get("host", ""):
            return InvalidRequest("requests of other web sites must not change anything", code="request.foreign-origin")
        return None


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).netloc
    except ValueError:
        return ""
