"""Error responses of the map server, in the format of the API.

Messages of libraries are not included: they may contain paths.
"""

from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from rasterio.errors import RasterioError
from rio_tiler.errors import (
    EmptyMosaicError,
    InvalidFormat,
    NoAssetFoundError,
    PointOutsideBounds,
    RioTilerError,
    TileOutsideBounds,
)
from starlette.exceptions import HTTPException
from starlette.responses import Response

from dagmaster.errors import DagmasterError, NotFound
from dagmaster.observe import log
from dagmaster.serving.pages import missing_page
from dagmaster.web.accept import prefers_html
from dagmaster.web.problems import Problems, request_id_of

PROBLEMS = Problems(hides_details=True, longest_text=1000, headers={"Cache-Control": "no-store"})
_OUTSIDE = (TileOutsideBounds, PointOutsideBounds, NoAssetFoundError, EmptyMosaicError)
_log = log.get("serving")


def register(app: FastAPI) -> None:
    """Turn every error into a problem response."""
    app.add_exception_handler(DagmasterError, _on_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    for error in _OUTSIDE:
        app.add_exception_handler(error, _on_outside)
    app.add_exception_handler(RasterioError, _on_unreadable)
    app.add_exception_handler(RioTilerError, _on_unreadable)
    app.add_exception_handler(InvalidFormat, _on_unsupported_bands)
    for builtin in (TypeError, ValueError, OverflowError):
        app.add_exception_handler(builtin, _on_bad_nodata)


async def _on_error(request: Request, error: Exception) -> Response:
    if isinstance(error, NotFound) and prefers_html(request):
        return missing_page(request, PROBLEMS.clean(error.message), None)
    return await PROBLEMS.on_error(request, error)


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == HTTPStatus.NOT_FOUND and prefers_html(request):
        return missing_page(request, "there is no page at this address", None)
    return await PROBLEMS.on_http(request, error)


def describe(error: RequestValidationError) -> str:
    """Which parameters are invalid and why, without repeating their values."""
    mistakes = (f"{'.'.join(map(str, mistake['loc'][:2]))}: {mistake['msg']}" for mistake in error.errors()[:5])
    return "; ".join(dict.fromkeys(mistakes))


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    hint = "/openapi.json describes the parameters"
    return _problem(request, HTTPStatus.UNPROCESSABLE_ENTITY, "request.invalid", describe(error), hint)


async def _on_outside(request: Request, _error: Exception) -> Response:
    hint = "the TileJSON contains the bounds and the zoom levels"
    return _problem(request, HTTPStatus.NOT_FOUND, "tiles.outside", "the dataset has no data here", hint)


async def _on_unsupported_bands(request: Request, _error: Exception) -> Response:
    hint = "a colour map needs one band, a JPEG needs one or three bands"
    detail = "these bands cannot be rendered in this format"
    return _problem(request, HTTPStatus.BAD_REQUEST, "tiles.no-picture", detail, hint)


async def _on_bad_nodata(request: Request, error: Exception) -> Response:
    """A library raises these for a `nodata` that the data type cannot represent. Without `nodata` it is a bug."""
    if "nodata" not in request.query_params:
        raise error
    detail = "the data type cannot represent this nodata value"
    return _problem(request, HTTPStatus.BAD_REQUEST, "tiles.bad-parameter", detail)


async def _on_unreadable(request: Request, error: Exception) -> Response:
    _log.error("the data cannot be read", path=request.url.path, request_id=request_id_of(request), exc_info=error)
    hint = "the log of the server has the details; search for the request_id"
    detail = "the file of the dataset cannot be read"
    return _problem(request, HTTPStatus.INTERNAL_SERVER_ERROR, "tiles.unreadable", detail, hint)


def _problem(request: Request, status: HTTPStatus, code: str, detail: str, hint: str | None = None) -> Response:
    return PROBLEMS.response(status, code, detail, request.url.path, request_id_of(request), hint=hint)
