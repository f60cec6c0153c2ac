"""Errors as RFC 9457 problem details. One table says which status an error has; nothing else in the API does.

A problem's `code` is stable across releases, and its `type` is made of it. Nothing of what was sent comes back, and no
secrets: texts are redacted.
"""

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, get_args, get_type_hints

import orjson
import psycopg
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response

from dagmaster import log
from dagmaster.errors import (
    Conflict,
    DagmasterError,
    Fenced,
    HandlerFailed,
    InvalidRequest,
    InvalidWorkflow,
    NotAllowed,
    NotFound,
    TimedOut,
    Unavailable,
    UnfitData,
)
from dagmaster.workflows.nearest import or_known

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_SECONDS = 2
_LONGEST_TEXT = 4000
_SHOULD = re.compile(r"^[A-Z]\w* should ")
_log = log.get("api")

# The nearest class of an error's family counts.
STATUSES: Mapping[type[DagmasterError], HTTPStatus] = {
    InvalidRequest: HTTPStatus.BAD_REQUEST,
    InvalidWorkflow: HTTPStatus.UNPROCESSABLE_ENTITY,
    NotAllowed: HTTPStatus.FORBIDDEN,
    NotFound: HTTPStatus.NOT_FOUND,
    Conflict: HTTPStatus.CONFLICT,
    UnfitData: HTTPStatus.UNPROCESSABLE_ENTITY,
    Unavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    HandlerFailed: HTTPStatus.INTERNAL_SERVER_ERROR,
    TimedOut: HTTPStatus.GATEWAY_TIMEOUT,
    Fenced: HTTPStatus.CONFLICT,
    DagmasterError: HTTPStatus.INTERNAL_SERVER_ERROR,
}
# Requests that are understood and refused: their family is InvalidRequest, their status is their own.
STATUSES_BY_CODE: Mapping[str, HTTPStatus] = {
    "bootstrap.rebuild-off": HTTPStatus.FORBIDDEN,
    "bootstrap.not-confirmed": HTTPStatus.FORBIDDEN,
    "request.foreign-host": HTTPStatus.FORBIDDEN,
    "request.foreign-origin": HTTPStatus.FORBIDDEN,
    "request.too-large": HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
}
OF_HTTP: Mapping[int, str] = {
    404: "route.not-found",
    405: "route.method-not-allowed",
    413: "request.too-large",
    415: "request.media-type",
}


class Mistake(BaseModel):
    """One of several things that are wrong with a request, or with a workflow file."""

    message: str
    at: str | None = Field(None, description="Which part of the request, such as body.priority")
    line: int | None = Field(None, description="Line in the file, from 1; 0 is the file as a whole")
    column: int | None = None
    node: str | None = None
    code: str | None = None


class Problem(BaseModel):
    """What went wrong, to what, and what to do about it (RFC 9457)."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "type": "urn:dagmaster:problem:job.not-found",
                    "title": "Not Found",
                    "status": 404,
                    "detail": "no job has the id 0198b2c4-7c1e-7a10-8f00-2f6f6e1c9a01",
                    "instance": "/api/v1/jobs/0198b2c4-7c1e-7a10-8f00-2f6f6e1c9a01",
                    "code": "job.not-found",
                    "hint": None,
                    "facts": {"job_id": "0198b2c4-7c1e-7a10-8f00-2f6f6e1c9a01"},
                    "errors": [],
                    "request_id": "5f0c1d3a9e4b4f0e",
                }
            ]
        }
    )

    type: str = Field(description="urn:dagmaster:problem: and the code")
    title: str
    status: int
    detail: str
    instance: str = Field(description="The path that was asked for")
    code: str = Field(description="Stable across releases")
    hint: str | None = Field(None, description="What to do")
    facts: dict[str, Any] = Field({}, description="What it happened to")
    errors: list[Mistake] = Field([], description="Every mistake, where there may be several")
    request_id: str | None = Field(None, description="As in the X-Request-ID header, for the log")


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The problems a route may answer with, for its description. Some may happen to any."""
    everywhere = (400, 403, 413, 415, 422, 500, 503)
    return {status: _described(status) for status in sorted({*everywhere, *statuses})}


def _described(status: int) -> dict[str, Any]:
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    described: dict[str, Any] = {"description": HTTPStatus(status).phrase, "content": content}
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        seconds = {"description": "Seconds after which to try again", "schema": {"type": "integer"}}
        described["headers"] = {"Retry-After": seconds}
    return described


def status_of(error: DagmasterError) -> HTTPStatus:
    if error.code in STATUSES_BY_CODE:
        return STATUSES_BY_CODE[error.code]
    return next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)


def register(app: FastAPI) -> None:
    """Let every error leave as a problem."""
    app.add_exception_handler(DagmasterError, _on_ours)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(psycopg.DataError, _on_unstorable)
    app.add_exception_handler(UnicodeEncodeError, _on_unstorable)


def problem_of(error: DagmasterError, path: str, request_id: str | None) -> Response:
    status = status_of(error)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        _log.warning("a request failed", path=path, request_id=request_id, code=error.code, error=error.message)
    return answer(
        status, error.code, error.message, path, request_id, hint=error.hint, facts=error.facts, errors=_mistakes(error)
    )


def answer(
    status: HTTPStatus,
    code: str,
    detail: str,
    path: str,
    request_id: str | None,
    *,
    hint: str | None = None,
    facts: Mapping[str, Any] | None = None,
    errors: Iterable[Mistake] = (),
    headers: Mapping[str, str] | None = None,
) -> Response:
    problem = Problem(
        type=f"urn:dagmaster:problem:{code}",
        title=status.phrase,
        status=status,
        detail=_clean(detail),
        instance=_clean(path),
        code=code,
        hint=_clean(hint) if hint else None,
        facts=_clean_value(log.redact_value(facts or {})),
        errors=list(errors),
        request_id=request_id,
    )
    retry = {"Retry-After": str(RETRY_AFTER_SECONDS)} if status == HTTPStatus.SERVICE_UNAVAILABLE else {}
    body = orjson.dumps(problem.model_dump())
    return Response(body, status_code=status, media_type=MEDIA_TYPE, headers={**retry, **(headers or {})})


def bug(path: str, request_id: str | None) -> Response:
    """Something that is our mistake. What it was is in the log, under the request's id."""
    return answer(
        HTTPStatus.INTERNAL_SERVER_ERROR, "internal", "an error of ours; the log says more", path, request_id,
        hint="report it with the request_id",
    )  # fmt: skip


def _mistakes(error: DagmasterError) -> list[Mistake]:
    if not isinstance(error, InvalidWorkflow):
        return []
    return [
        Mistake(message=_clean(p.message), line=p.line, column=p.column, node=p.node, code=p.code)
        for p in error.problems
    ]


def request_id_of(request: Request) -> str | None:
    found: str | None = request.scope.get("state", {}).get("request_id")
    return found


async def _on_ours(request: Request, error: Exception) -> Response:
    assert isinstance(error, DagmasterError)
    return problem_of(error, request.url.path, request_id_of(request))


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    path, request_id = request.url.path, request_id_of(request)
    if any(tuple(e["loc"]) == ("body",) and e["type"] != "missing" for e in error.errors()) and not _is_json(request):
        return answer(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "request.media-type", "the body is not marked as JSON", path, request_id,
            hint="send it with the header `Content-Type: application/json`",
        )  # fmt: skip
    body = _body_of(request)
    mistakes = [_mistake(e, error.body, body) for e in error.errors()]
    detail = "; ".join(f"{mistake.at}: {mistake.message}" for mistake in mistakes[:5])
    return answer(
        HTTPStatus.UNPROCESSABLE_ENTITY, "request.invalid", detail, path, request_id,
        hint="/docs shows what there is, /openapi.json every field of it", errors=mistakes,
    )  # fmt: skip


def _is_json(request: Request) -> bool:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def _body_of(request: Request) -> type[BaseModel] | None:
    """The model of what a route is sent."""
    hints = get_type_hints(request.scope["endpoint"]) if "endpoint" in request.scope else {}
    return next((model for name, hint in hints.items() if name != "return" and (model := _model_in(hint))), None)


def _model_in(hint: Any) -> type[BaseModel] | None:
    for kind in (hint, *get_args(hint)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def _mistake(said: Mapping[str, Any], sent: Any, body: type[BaseModel] | None) -> Mistake:
    """One of Pydantic's errors, in words that whoever sent the request knows."""
    place = tuple(said["loc"])
    if said["type"] == "json_invalid":
        return _not_json(said, str(sent))
    match said["type"]:
        case "extra_forbidden":
            known = _fields_at(body, place[1:-1])
            message = f"unknown field '{place[-1]}'{or_known(str(place[-1]), known)}"
        case "missing" if place == ("body",):
            message = "a body is needed, as application/json"
        case "missing":
            message = "is needed"
        case "model_attributes_type" | "model_type":
            message = "must be an object"
        case _:
            message = _SHOULD.sub("must ", said["msg"]).removeprefix("Value error, ")
    return Mistake(message=_clean(message), at=_clean(".".join(map(str, place))), code=said["type"])


def _not_json(said: Mapping[str, Any], sent: str) -> Mistake:
    place = said["loc"][1]
    line, column = sent.count("\n", 0, place) + 1, place - sent.rfind("\n", 0, place)
    reason = said["ctx"]["error"]
    message = f"this is not JSON: {reason[:1].lower()}{reason[1:]} at line {line}, column {column}"
    return Mistake(message=message, at="body", line=line, column=column, code="json_invalid")


def _fields_at(model: type[BaseModel] | None, path: Iterable[Any]) -> list[str]:
    """The fields of what is at a place in a body."""
    for step in path:
        field = model.model_fields.get(str(step)) if model else None
        model = _model_in(field.annotation) if field else None
    return list(model.model_fields) if model else []


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    code = OF_HTTP.get(status, f"http.{status.value}")
    hint = "see /openapi.json for what there is" if status in (404, 405) else None
    detail = error.detail or status.phrase
    return answer(
        status, code, detail, request.url.path, request_id_of(request), hint=hint, headers=error.headers
    )  # fmt: skip


async def _on_unstorable(request: Request, error: Exception) -> Response:
    said = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    detail = f"a value can't be stored: {said or 'it is not text that PostgreSQL takes'}"
    return answer(
        HTTPStatus.BAD_REQUEST, "request.not-storable", detail, request.url.path, request_id_of(request)
    )  # fmt: skip


def _clean(text: str) -> str:
    """Bounded, without secrets, and without halves of characters, which JSON can't carry."""
    clean = log.redact(text)  # whole: what is cut in the middle of a secret is no longer recognised as one
    short = clean if len(clean) <= _LONGEST_TEXT else f"{clean[: _LONGEST_TEXT - 1]}…"
    return short.encode("utf-8", "replace").decode()


def _clean_value(value: Any) -> Any:
    if isinstance(value, str):
        return _clean(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {_clean(str(name)): _clean_value(part) for name, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_clean_value(part) for part in value]
    return _clean(str(value))
