"""Problem details of JSON servers: for invalid requests, and for the OpenAPI description of their routes.

A problem never repeats values of the request.
"""

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, get_args, get_type_hints

import psycopg
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import Response

from dagmaster.client.models.problems import Mistake
from dagmaster.errors import DagmasterError
from dagmaster.observe import log
from dagmaster.web.problems import MEDIA_TYPE, Problems, request_id_of, status_of
from dagmaster.workflows.nearest import or_known

PROBLEMS = Problems()
MAX_MISTAKES = 20  # described in one response; suggestions for misspelt names take time
_SHOULD = re.compile(r"^[A-Z]\w* should ")
_log = log.get("web")


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The problems that a route may respond with, for OpenAPI. Some are possible for every route."""
    everywhere = (400, 401, 403, 413, 415, 422, 500, 503)
    return {status: _described(status) for status in sorted({*everywhere, *statuses})}


def _described(status: int) -> dict[str, Any]:
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}}
    described: dict[str, Any] = {"description": HTTPStatus(status).phrase, "content": content}
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        seconds = {"description": "Seconds after which the client may try again", "schema": {"type": "integer"}}
        described["headers"] = {"Retry-After": seconds}
    return described


def register(app: FastAPI) -> None:
    """Respond to every error with problem details."""
    app.add_exception_handler(DagmasterError, _on_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, PROBLEMS.on_http)
    app.add_exception_handler(psycopg.DataError, _on_unstorable)
    app.add_exception_handler(UnicodeEncodeError, _on_unstorable)


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, DagmasterError)
    if status_of(error) >= HTTPStatus.INTERNAL_SERVER_ERROR:
        _log.warning(
            "a request failed",
            path=request.url.path,
            request_id=request_id_of(request),
            code=error.code,
            error=error.message,
        )
    return await PROBLEMS.on_error(request, error)


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    path, request_id = request.url.path, request_id_of(request)
    if any(tuple(e["loc"]) == ("body",) and e["type"] != "missing" for e in error.errors()) and not _is_json(request):
        return PROBLEMS.response(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "request.media-type",
            "the content type of the body is not JSON",
            path,
            request_id,
            hint="send it with the header `Content-Type: application/json`",
        )
    body = _body_of(request)
    mistakes = [_mistake(e, error.body, body) for e in error.errors()[:MAX_MISTAKES]]
    detail = "; ".join(f"{mistake.at}: {mistake.message}" for mistake in mistakes[:5])
    return PROBLEMS.response(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        "request.invalid",
        detail,
        path,
        request_id,
        hint="/openapi.json describes every field",
        errors=mistakes,
    )


def _is_json(request: Request) -> bool:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def _body_of(request: Request) -> type[BaseModel] | None:
    """The model of the body of a route."""
    hints = get_type_hints(request.scope["endpoint"]) if "endpoint" in request.scope else {}
    return next((model for name, hint in hints.items() if name != "return" and (model := _model_in(hint))), None)


def _model_in(hint: Any) -> type[BaseModel] | None:
    for kind in (hint, *get_args(hint)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def _mistake(error: Mapping[str, Any], sent: Any, body: type[BaseModel] | None) -> Mistake:
    """An error of Pydantic in the words of the API."""
    place = tuple(error["loc"])
    if error["type"] == "json_invalid":
        return _not_json(error, str(sent))
    match error["type"]:
        case "extra_forbidden":
            names = _fields_at(body, place[1:-1])
            message = f"unknown field '{place[-1]}'{or_known(str(place[-1]), names)}"
        case "missing" if place == ("body",):
            message = "a body of type application/json is required"
        case "missing":
            message = "is required"
        case "model_attributes_type" | "model_type":
            message = "must be an object"
        case _:
            message = _SHOULD.sub("must ", error["msg"]).removeprefix("Value error, ")
    return Mistake(message=PROBLEMS.clean(message), at=PROBLEMS.clean(".".join(map(str, place))), code=error["type"])


def _not_json(error: Mapping[str, Any], sent: str) -> Mistake:
    offset = error["loc"][1]
    line, column = sent.count("\n", 0, offset) + 1, offset - sent.rfind("\n", 0, offset)
    reason = error["ctx"]["error"]
    message = f"not valid JSON: {reason[:1].lower()}{reason[1:]} at line {line}, column {column}"
    return Mistake(message=message, at="body", line=line, column=column, code="json_invalid")


def _fields_at(model: type[BaseModel] | None, path: Iterable[Any]) -> list[str]:
    """The fields of the object at a path in the body."""
    for step in path:
        field = model.model_fields.get(str(step)) if model else None
        model = _model_in(field.annotation) if field else None
    return list(model.model_fields) if model else []


async def _on_unstorable(request: Request, error: Exception) -> Response:
    reason = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    detail = f"a value cannot be stored: {reason or 'PostgreSQL does not accept the text'}"
    return PROBLEMS.response(
        HTTPStatus.BAD_REQUEST, "request.not-storable", detail, request.url.path, request_id_of(request)
    )
