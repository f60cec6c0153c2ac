"""Errors as RFC 9457 problem details. One table says which status an error has; nothing else in any server does.

A problem's `code` is stable across releases, and its `type` is made of it. No secrets leave: texts are redacted.
Servers answer in one form, and differ in how much they tell.
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
    NotAllowed,
    NotFound,
    TimedOut,
    Unavailable,
    UnfitData,
)
from dagmaster.observe.redaction import redact, redact_value

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_SECONDS = 2

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


@dataclass(frozen=True, slots=True)
class Problems:
    """How a server tells of errors. One that is discreet tells no facts, and nothing of what libraries say:
    both may name paths."""

    is_discreet: bool = False
    longest_text: int = 4000
    headers: Mapping[str, str] = field(default_factory=dict)

    def problem_of(self, error: DagmasterError, path: str, request_id: str | None) -> Response:
        told: dict[str, Any] = {} if self.is_discreet else {"facts": error.facts, "errors": self._mistakes(error)}
        return self.answer(status_of(error), error.code, error.message, path, request_id, hint=error.hint, **told)

    def bug(self, path: str, request_id: str | None) -> Response:
        """Something that is our mistake. What it was is in the log, under the request's id."""
        return self.answer(
            HTTPStatus.INTERNAL_SERVER_ERROR, "internal", "an error of ours; the log says more", path, request_id,
            hint="report it with the request_id",
        )  # fmt: skip

    def answer(
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
        retry = {"Retry-After": str(RETRY_AFTER_SECONDS)} if status == HTTPStatus.SERVICE_UNAVAILABLE else {}
        all_headers = {**self.headers, **retry, **(headers or {})}
        return Response(
            orjson.dumps(problem.model_dump()), status_code=status, media_type=MEDIA_TYPE, headers=all_headers
        )

    async def on_ours(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, DagmasterError)
        return self.problem_of(error, request.url.path, request_id_of(request))

    async def on_http(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        status = HTTPStatus(error.status_code)
        code = OF_HTTP.get(status, f"http.{status.value}")
        detail = status.phrase if self.is_discreet else error.detail or status.phrase
        hint = "see /openapi.json for what there is" if status in (404, 405) else None
        return self.answer(
            status, code, detail, request.url.path, request_id_of(request), hint=hint, headers=error.headers
        )  # fmt: skip

    def clean(self, text: str) -> str:
        """Bounded, without secrets, and without halves of characters, which JSON can't carry."""
        clean = redact(text)  # whole: what is cut in the middle of a secret is no longer recognised as one
        short = clean if len(clean) <= self.longest_text else f"{clean[: self.longest_text - 1]}…"
        return short.encode("utf-8", "replace").decode()

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


def status_of(error: DagmasterError) -> HTTPStatus:
    if error.code in STATUSES_BY_CODE:
        return STATUSES_BY_CODE[error.code]
    return next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)


def request_id_of(request: Request) -> str | None:
    found: str | None = request.scope.get("state", {}).get("request_id")
    return found
