"""The map server's problems, in the form that the API's have. What a library says is not repeated: it may name paths."""

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

from dagmaster.errors import DagmasterError
from dagmaster.observe import log
from dagmaster.web.problems import Problems, request_id_of

PROBLEMS = Problems(is_discreet=True, longest_text=1000, headers={"Cache-Control": "no-store"})
_NOTHING_THERE = (TileOutsideBounds, PointOutsideBounds, NoAssetFoundError, EmptyMosaicError)
_log = log.get("serving")


def register(app: FastAPI) -> None:
    """Let every error leave as a problem."""
    app.add_exception_handler(DagmasterError, PROBLEMS.on_ours)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, PROBLEMS.on_http)
    for kind in _NOTHING_THERE:
        app.add_exception_handler(kind, _on_nothing_there)
    app.add_exception_handler(RasterioError, _on_unreadable)
    app.add_exception_handler(RioTilerError, _on_unreadable)
    app.add_exception_handler(InvalidFormat, _on_no_picture)
    for odd in (TypeError, ValueError, OverflowError):
        app.add_exception_handler(odd, _on_odd_value)


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    # Nothing of what was sent comes back, only where it was.
    mistakes = [f"{'.'.join(map(str, e['loc'][:2]))}: {e['msg']}" for e in error.errors()[:5]]
    return PROBLEMS.answer(
        HTTPStatus.UNPROCESSABLE_ENTITY, "request.invalid", "; ".join(mistakes), request.url.path,
        request_id_of(request), hint="/openapi.json shows what there is",
    )  # fmt: skip


async def _on_nothing_there(request: Request, _error: Exception) -> Response:
    return PROBLEMS.answer(
        HTTPStatus.NOT_FOUND, "tiles.outside", "the dataset has nothing here", request.url.path, request_id_of(request),
        hint="bounds and zooms are in its TileJSON",
    )  # fmt: skip


async def _on_no_picture(request: Request, _error: Exception) -> Response:
    return PROBLEMS.answer(
        HTTPStatus.BAD_REQUEST, "tiles.no-picture", "these bands can't be shown in this way", request.url.path,
        request_id_of(request), hint="a colour map goes with one band, a JPEG has one band or three",
    )  # fmt: skip


async def _on_odd_value(request: Request, error: Exception) -> Response:
    """A library that was handed a `nodata` which the data's type can't hold. Anything else is a mistake of ours."""
    if "nodata" not in request.query_params:
        raise error
    return PROBLEMS.answer(
        HTTPStatus.BAD_REQUEST, "tiles.bad-parameter", "nodata has a value that the data can't have", request.url.path,
        request_id_of(request),
    )  # fmt: skip


async def _on_unreadable(request: Request, error: Exception) -> Response:
    request_id = request_id_of(request)
    _log.error("data can't be read", path=request.url.path, request_id=request_id, exc_info=error)
    return PROBLEMS.answer(
        HTTPStatus.INTERNAL_SERVER_ERROR, "tiles.unreadable", "the dataset's file can't be read", request.url.path,
        request_id, hint="the log says more, under the request_id",
    )  # fmt: skip
