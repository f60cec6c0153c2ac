"""Errors as RFC 9457 problems, in the form that the API's have. What a library says is not repeated: it may name paths."""

from collections.abc import Mapping
from http import HTTPStatus

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from rasterio.errors import RasterioError
from rio_tiler.errors import EmptyMosaicError, NoAssetFoundError, PointOutsideBounds, RioTilerError, TileOutsideBounds
from starlette.exceptions import HTTPException
from starlette.responses import Response

from dagmaster import log
from dagmaster.errors import DagmasterError, InvalidRequest, NotAllowed, NotFound, Unavailable, UnfitData

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_SECONDS = 2
_LONGEST_TEXT = 1000
_log = log.get("serving")

# The nearest class of an error's family counts.
STATUSES: Mapping[type[DagmasterError], HTTPStatus] = {
    InvalidRequest: HTTPStatus.BAD_REQUEST,
    NotAllowed: HTTPStatus.FORBIDDEN,
    NotFound: HTTPStatus.NOT_FOUND,
    UnfitData: HTTPStatus.UNPROCESSABLE_ENTITY,
    Unavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    DagmasterError: HTTPStatus.INTERNAL_SERVER_ERROR,
}
# Requests that are understood and refused: their family is InvalidRequest, their status is their own.
STATUSES_BY_CODE: Mapping[str, HTTPStatus] = {
    "request.foreign-host": HTTPStatus.FORBIDDEN,
    "request.too-large": HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
}
OF_HTTP: Mapping[int, str] = {404: "route.not-found", 405: "route.method-not-allowed", 413: "request.too-large"}
_NOTHING_THERE = (TileOutsideBounds, PointOutsideBounds, NoAssetFoundError, EmptyMosaicError)


def register(app: FastAPI) -> None:
    """Let every error leave as a problem."""
    app.add_exception_handler(DagmasterError, _on_ours)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    for kind in _NOTHING_THERE:
        app.add_exception_handler(kind, _on_nothing_there)
    app.add_exception_handler(RasterioError, _on_unreadable)
    app.add_exception_handler(RioTilerError, _on_unreadable)


def problem_of(error: DagmasterError, path: str, request_id: str | None) -> Response:
    status = STATUSES_BY_CODE.get(error.code) or next(STATUSES[k] for k in type(error).__mro__ if k in STATUSES)
    return answer(status, error.code, error.message, path, request_id, hint=error.hint)


def bug(path: str, request_id: str | None) -> Response:
    """Something that is our mistake. What it was is in the log, under the request's id."""
    return answer(
        HTTPStatus.INTERNAL_SERVER_ERROR, "internal", "an error of ours; the log says more", path, request_id,
        hint="report it with the request_id",
    )  # fmt: skip


def answer(
    status: HTTPStatus,
    code: str,
    detail: str,
    path: str,
    request_id: str | None,
    *,
    hint: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    body: dict[str, object] = {
        "type": f"urn:dagmaster:problem:{code}", "title": status.phrase, "status": status.value,
        "detail": _clean(detail), "instance": _clean(path), "code": code, "hint": _clean(hint) if hint else None,
        "facts": {}, "errors": [], "request_id": request_id,
    }  # fmt: skip
    retry = {"Retry-After": str(RETRY_AFTER_SECONDS)} if status == HTTPStatus.SERVICE_UNAVAILABLE else {}
    all_headers = {"Cache-Control": "no-store", **retry, **(headers or {})}
    return Response(orjson.dumps(body), status_code=status, media_type=MEDIA_TYPE, headers=all_headers)


def request_id_of(request: Request) -> str | None:
    found: str | None = request.scope.get("state", {}).get("request_id")
    return found


async def _on_ours(request: Request, error: Exception) -> Response:
    assert isinstance(error, DagmasterError)
    return problem_of(error, request.url.path, request_id_of(request))


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    # Nothing of what was sent comes back, only where it was.
    mistakes = [f"{'.'.join(map(str, e['loc'][:2]))}: {e['msg']}" for e in error.errors()[:5]]
    return answer(
        HTTPStatus.UNPROCESSABLE_ENTITY, "request.invalid", "; ".join(mistakes), request.url.path,
        request_id_of(request), hint="/openapi.json shows what there is",
    )  # fmt: skip


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    code = OF_HTTP.get(status, f"http.{status.value}")
    return answer(
        status, code, status.phrase, request.url.path, request_id_of(request), headers=error.headers,
        hint="see /openapi.json for what there is" if status in (404, 405) else None,
    )  # fmt: skip


async def _on_nothing_there(request: Request, _error: Exception) -> Response:
    return answer(
        HTTPStatus.NOT_FOUND, "tiles.outside", "the dataset has nothing here", request.url.path, request_id_of(request),
        hint="bounds and zooms are in its TileJSON",
    )  # fmt: skip


async def _on_unreadable(request: Request, error: Exception) -> Response:
    request_id = request_id_of(request)
    _log.error("data can't be read", path=request.url.path, request_id=request_id, exc_info=error)
    return answer(
        HTTPStatus.INTERNAL_SERVER_ERROR, "tiles.unreadable", "the dataset's file can't be read", request.url.path,
        request_id, hint="the log says more, under the request_id",
    )  # fmt: skip


def _clean(text: str) -> str:
    """Bounded, without secrets, and without halves of characters, which JSON can't carry."""
    clean = log.redact(text)
    short = clean if len(clean) <= _LONGEST_TEXT else f"{clean[: _LONGEST_TEXT - 1]}…"
    return short.encode("utf-8", "replace").decode()
