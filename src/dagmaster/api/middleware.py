"""Middleware of the API."""

from dagmaster import listen
from dagmaster.api.problems import PROBLEMS
from dagmaster.web.middleware import RequestMiddleware


class ApiMiddleware(RequestMiddleware):
    endpoint = listen.API
    problems = PROBLEMS
    hint_when_too_large = "put large data into storage and pass a reference"
