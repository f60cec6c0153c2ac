"""The permissions that the routes of the map server declare.

Most are for anyone: who may read a version is decided in `access`, for each request. Routes for operators need a
permission if authentication is enabled; if it is disabled, the middleware decides who can reach the server.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from fastapi import Depends, FastAPI
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.routing import BaseRoute, Route

from dagmaster.access.caller import Caller
from dagmaster.access.permissions import Permission, may
from dagmaster.web.authentication import Needs, caller_of, require, require_signed_in, requires


@dataclass(frozen=True)
class _NeedsIfAuthenticated(Needs):
    async def __call__(self, request: Request) -> Caller:
        caller = caller_of(request)
        if _has_authentication(request):
            require_signed_in(request, self.permission)
            require(caller, self.permission)
        return caller


FOR_ANYONE: Final = requires(Permission.ANYONE)
FOR_MONITORS: Final = Depends(_NeedsIfAuthenticated(Permission.METRICS_READ))


def is_monitor(request: Request) -> bool:
    """Whether the caller may see metrics and the details of health checks."""
    return not _has_authentication(request) or may(caller_of(request), Permission.METRICS_READ)


def set_authentication(app: FastAPI, is_enabled: bool) -> None:
    app.state.has_authentication = is_enabled


def _has_authentication(request: Request) -> bool:
    return bool(request.app.state.has_authentication)


def open_plain_routes(routes: Iterable[BaseRoute]) -> None:
    """Declare that the routes which FastAPI adds itself, such as that of the OpenAPI description, are for anyone."""
    for route in routes:
        if isinstance(route, Route) and not isinstance(route, APIRoute):
            route.endpoint.permission = Permission.ANYONE  # type: ignore[attr-defined]
