"""Every kind of caller, identified by its name in the header `X-API-Key`."""

from typing import Any

from fastapi import FastAPI
from starlette.datastructures import Headers

from dagmaster.access.caller import ANONYMOUS, Caller, Scope
from dagmaster.errors import NotAuthenticated
from dagmaster.serving.middleware import MapMiddleware
from dagmaster.web.authentication import Identity

CALLERS = {
    "anonymous": ANONYMOUS,
    "own": Caller("own", frozenset({Scope.B2B}), "ddh"),
    "foreign": Caller("foreign", frozenset({Scope.B2B}), "arcgis"),
    "viewer": Caller("viewer", frozenset({Scope.VIEWER})),
    "reviewer": Caller("reviewer", frozenset({Scope.REVIEWER})),
    "operator": Caller("operator", frozenset({Scope.OPERATOR})),
    "admin": Caller("admin", frozenset({Scope.ADMIN})),
    "author": Caller("author", frozenset({Scope.AUTHOR})),
    "worker": Caller("worker", frozenset({Scope.WORKER})),
    "monitor": Caller("monitor", frozenset({Scope.MONITOR})),
}


class AuthenticationByName:
    """The key of a caller is its name."""

    async def identify(self, _scope: Any, headers: Headers) -> Identity:
        name = headers.get("x-api-key", "anonymous")
        if name not in CALLERS:
            raise NotAuthenticated("this key is not valid", code="auth.invalid-key")
        return Identity(CALLERS[name])


def authenticate_by_name(app: FastAPI) -> FastAPI:
    for middleware in app.user_middleware:
        if middleware.cls is MapMiddleware:
            middleware.kwargs["authentication"] = AuthenticationByName()
    return app


def key(name: str) -> dict[str, str]:
    return {} if name == "anonymous" else {"X-API-Key": name}
