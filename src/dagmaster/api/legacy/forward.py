"""Requests to the old system.

The credentials of the caller are not sent, redirects are not followed, and the time and the size of a response are
limited. A request is sent once: if no response arrives, this platform does not carry it out instead, because
the old system may have done so.
"""

import asyncio
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import httpx2

from dagmaster import __version__
from dagmaster.errors import Conflict, DagmasterError, InvalidRequest, Unavailable
from dagmaster.observe import log

CONNECT_SECONDS: Final = 5.0
MAX_BYTES: Final = 8 * 1024 * 1024
# A request that was forwarded once is not forwarded again: LEGACY_URL may be an address of this platform.
FORWARDED: Final = "X-Dagmaster-Forwarded"
_OUR_KEY_REFUSED: Final = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_log = log.get("legacy")


@dataclass(frozen=True, slots=True)
class OldResponse:
    """A response of the old system: a success, or an error of the caller (4xx)."""

    status: int
    content: dict[str, Any]


class OldSystem:
    """A client of the old system. Close it at the end."""

    def __init__(
        self, url: str, *, key: str | None = None, timeout_seconds: float = 30.0, is_read_only: bool = False
    ) -> None:
        self._url = url.rstrip("/")
        self._timeout_seconds = timeout_seconds
        self._is_read_only = is_read_only
        headers = {
            "User-Agent": f"dagmaster/{__version__}",
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            FORWARDED: "1",
        }
        self._http = httpx2.AsyncClient(
            timeout=httpx2.Timeout(timeout_seconds, connect=min(CONNECT_SECONDS, timeout_seconds)),
            trust_env=False,
            follow_redirects=False,
            headers=headers | ({"x-functions-key": key} if key else {}),
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def read(self, path: str, query: Mapping[str, Any] | None = None) -> OldResponse:
        return await self._send("GET", path, params=dict(query) if query else None)

    async def change(self, path: str, body: Mapping[str, Any], *, by: str) -> OldResponse:
        """A request that changes something. It is logged with its caller."""
        if self._is_read_only:
            raise Conflict(
                "this request needs the old system, which is read-only",
                code="legacy.read-only",
                hint="submit the job again: it then runs on this platform",
            )
        try:
            content = json.dumps(dict(body), allow_nan=False).encode()
        except ValueError:
            raise InvalidRequest("a number in the body is not finite", code="request.not-storable") from None
        response = await self._send("POST", path, content=content, headers={"Content-Type": "application/json"})
        _log.info("a request was forwarded to the old system", path=path, by=by, status=response.status)
        return response

    async def _send(self, method: str, path: str, **options: Any) -> OldResponse:
        try:
            async with (
                asyncio.timeout(self._timeout_seconds),
                self._http.stream(method, f"{self._url}{path}", **options) as response,
            ):
                _refuse(response)
                return OldResponse(response.status_code, _content(response.status_code, await _body(response)))
        except (httpx2.ConnectError, httpx2.ConnectTimeout):
            raise Unavailable(
                "the old system cannot be reached; the request was not sent",
                code="legacy.unreachable",
                hint="try again later; operators: check LEGACY_URL",
            ) from None
        except (httpx2.TimeoutException, TimeoutError):
            raise _no_response(method, f"did not respond within {self._timeout_seconds:g} s") from None
        except httpx2.RemoteProtocolError:
            raise _no_response(method, "sent an incomplete or invalid HTTP response") from None
        except httpx2.TransportError as error:
            raise _no_response(method, f"closed the connection ({type(error).__name__})") from None


def _no_response(method: str, problem: str) -> DagmasterError:
    may_be_done = "" if method == "GET" else "; it may have carried out the request"
    return Unavailable(
        f"the old system {problem}{may_be_done}",
        code="legacy.no-response",
        hint="try again later" if method == "GET" else "check the status of the job before you repeat the request",
    )


def _refuse(response: httpx2.Response) -> None:
    """Raise an error for a response that cannot be passed on: a redirect, an error of the old system, a refusal of our
    key, or compressed content."""
    status = response.status_code
    if status in _OUR_KEY_REFUSED:
        raise unusable_response("the old system refused the key of this platform", hint="correct LEGACY_KEY")
    if response.is_redirect or not (200 <= status < 300 or 400 <= status < 500):
        raise unusable_response(f"the old system responded with status {status}")
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise unusable_response("the response of the old system is compressed, although compression was not requested")


def unusable_response(
    message: str, hint: str = "try again later, or check the logs of the old system"
) -> DagmasterError:
    return Unavailable(message, code="legacy.bad-response", hint=hint)


async def _body(response: httpx2.Response) -> bytes:
    chunks, size = [], 0
    async for chunk in response.aiter_raw():
        size += len(chunk)
        if size > MAX_BYTES:
            raise unusable_response(f"the response of the old system has more than {MAX_BYTES:,} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


def _content(status: int, body: bytes) -> dict[str, Any]:
    """The JSON object of a response. NaN and infinite numbers, which the old system may send, become null."""
    try:
        content = json.loads(body, parse_constant=lambda _name: None, parse_float=_finite)
    except (ValueError, RecursionError):
        content = None
    if isinstance(content, dict):
        return content
    if status >= HTTPStatus.BAD_REQUEST:
        return {"error": f"the old system responded with status {status}"}
    raise unusable_response("the response of the old system is not a JSON object")


def _finite(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None
