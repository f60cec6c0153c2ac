"""Errors as RFC 9457 problem details. The tables of this module are the only place that maps errors to HTTP statuses.

The `code` of a problem is stable across releases, and its `type` contains the code. Secrets in texts are redacted. All
servers send the same form; a server with `hides_details` leaves out details.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from dagmaster.client.models.problems import Mistake, ProblemDetails
from dagmaster.errors import (
    Conflict,
    DagmasterError,
    Fenced,
    HandlerFailed,
    InvalidRequest,
    InvalidWorkflow,
    JobFailed,
    NotAllowed,
    NotAuthenticated,
    NotFound,
    TimedOut,
    Unavailable,
    UnfitData,
    WaitTimedOut,
)
from dagmaster.observe.redaction import redact, redact_value
from dagmaster.quantities import shortened

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_SECONDS = 2
_UNPARSED_BODY = "There was an error parsing the body"  # FastAPI's text for an unexpected error of json.loads

# The nearest listed base class of an error determines its status.
STATUSES: Mapping[type[DagmasterError], HTTPStatus] = {
    InvalidRequest: HTTPStatus.BAD_REQUEST,
    InvalidWorkflow: HTTPStatus.UNPROCESSABLE_ENTITY,
    NotAllowed: HTTPStatus.FORBIDDEN,
    NotAuthenticated: HTTPStatus.UNAUTHORIZED,
    NotFound: HTTPStatus.NOT_FOUND,
    Conflict: HTTPStatus.CONFLICT,
    UnfitData: HTTPStatus.UNPROCESSABLE_ENTITY,
    Unavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    HandlerFailed: HTTPStatus.INTERNAL_SERVER_ERROR,
    TimedOut: HTTPStatus.GATEWAY_TIMEOUT,
    Fenced: HTTPStatus.CONFLICT,
    JobFailed: HTTPStatus.INTERNAL_SERVER_ERROR,
    WaitTimedOut: HTTPStatus.GATEWAY_TIMEOUT,
    DagmasterError: HTTPStatus.INTERNAL_SERVER_ERROR,
}
# Errors whose status is not that of their class.
STATUSES_BY_CODE: Mapping[str, HTTPStatus] = {
    "asset.changed": HTTPStatus.PRECONDITION_FAILED,
    "platform.changed": HTTPStatus.PRECONDITION_FAILED,
    "layer.changed": HTTPStatus.PRECONDITION_FAILED,
    "command.timeout": HTTPStatus.GATEWAY_TIMEOUT,
    "bootstrap.rebuild-off": HTTPStatus.FORBIDDEN,
    "bootstrap.not-confirmed": HTTPStatus.FORBIDDEN,
    "catalog.too-slow": HTTPStatus.GATEWAY_TIMEOUT,
    "request.foreign-host": HTTPStatus.FORBIDDEN,
    "request.foreign-origin": HTTPStatus.FORBIDDEN,
    "gateway.too-many-requests": HTTPStatus.TOO_MANY_REQUESTS,
    "gateway.no-response": HTTPStatus.GATEWAY_TIMEOUT,
    "gateway.response-too-large": HTTPStatus.BAD_GATEWAY,
    "gateway.bad-response": HTTPStatus.BAD_GATEWAY,
    "legacy.no-response": HTTPStatus.GATEWAY_TIMEOUT,
    "legacy.bad-response": HTTPStatus.BAD_GATEWAY,
    "serving.too-many-requests": HTTPStatus.TOO_MANY_REQUESTS,
    "maps.no-response": HTTPStatus.GATEWAY_TIMEOUT,
    "auth.too-many-attempts": HTTPStatus.TOO_MANY_REQUESTS,
    "request.too-large": HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    "upload.too-large": HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    "upload.too-many": HTTPStatus.TOO_MANY_REQUESTS,
    "upload.locked": HTTPStatus.LOCKED,
    "upload.media-type": HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    "upload.protocol-version": HTTPStatus.PRECONDITION_FAILED,
    "upload.stalled": HTTPStatus.REQUEST_TIMEOUT,
}
_RETRIED = (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS)
CODES_BY_STATUS: Mapping[int, str] = {
    404: "route.not-found",
    405: "route.method-not-allowed",
    413: "request.too-large",
    415: "request.media-type",
}


@dataclass(frozen=True, slots=True)
class Problems:
    """How a server reports errors. With `hides_details`, facts and messages of libraries are left out, because both may
    contain paths."""

    hides_details: bool = False
    longest_text: int = 4000
    headers: Mapping[str, str] = field(default_factory=dict)

    def problem_of(self, error: DagmasterError, path: str, request_id: str | None) -> Response:
        details: dict[str, Any] = {} if self.hides_details else {"facts": error.facts, "errors": self._mistakes(error)}
        return self.response(status_of(error), error.code, error.message, path, request_id, hint=error.hint, **details)

    def bug(self, path: str, request_id: str | None) -> Response:
        """The response to an unexpected error. The log has its details, with the id of the request."""
        return self.response(
            HTTPStatus.INTERNAL_SERVER_ERROR,
            "internal",
            "internal error; the log of the server has the details",
            path,
            request_id,
            hint="report the error with the request_id",
        )

    def response(
        self,
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
        problem = ProblemDetails(
            type=f"urn:dagmaster:problem:{code}",
            title=status.phrase,
            status=status,
            detail=self.clean(detail),
            instance=self.clean(path),
            code=code,
            hint=self.clean(hint) if hint else None,
            facts=self._clean_value(redact_value(facts or {})),
            errors=list(errors),
            request_id=request_id,
        )
        all_headers = {**self.headers, **_headers_of(status), **(headers or {})}
        return Response(
            orjson.dumps(problem.model_dump()), status_code=status, media_type=MEDIA_TYPE, headers=all_headers
        )

    async def on_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, DagmasterError)
        return self.problem_of(error, request.url.path, request_id_of(request))

    async def on_http(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.detail == _UNPARSED_BODY:
            refusal = InvalidRequest("the body cannot be parsed: it is nested too deeply, or it is not UTF-8 text")
            return self.problem_of(refusal, request.url.path, request_id_of(request))
        status = HTTPStatus(error.status_code)
        code = CODES_BY_STATUS.get(status, f"http.{status.value}")
        detail = status.phrase if self.hides_details else error.detail or status.phrase
        hint = "/openapi.json lists all paths and methods" if status in (404, 405) else None
        return self.response(
            status, code, detail, request.url.path, request_id_of(request), hint=hint, headers=error.headers
        )

    def clean(self, text: str) -> str:
        """The text with a limited length, without secrets, and without lone surrogates, which JSON cannot contain."""
        clean = redact(text)  # before the text is cut: a part of a secret would not be recognised
        return shortened(clean, self.longest_text).encode("utf-8", "replace").decode()

    def _clean_value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.clean(value)
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, Mapping):
            return {self.clean(str(name)): self._clean_value(part) for name, part in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [self._clean_value(part) for part in value]
        return self.clean(str(value))

    def _mistakes(self, error: DagmasterError) -> list[Mistake]:
        if not isinstance(error, InvalidWorkflow):
            return []
        return [
            Mistake(message=self.clean(p.message), line=p.line, column=p.column, node=p.node, code=p.code)
            for p in error.problems
        ]


def _headers_of(status: HTTPStatus) -> dict[str, str]:
    if status == HTTPStatus.UNAUTHORIZED:
        return {"WWW-Authenticate": 'Bearer realm="dagmaster"'}
    return {"Retry-After": str(RETRY_AFTER_SECONDS)} if status in _RETRIED else {}


def status_of(error: DagmasterError) -> HTTPStatus:
    if error.code in STATUSES_BY_CODE:
        return STATUSES_BY_CODE[error.code]
    return next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)


def request_id_of(request: Request) -> str | None:
    request_id: str | None = request.scope.get("state", {}).get("request_id")
    return request_id
