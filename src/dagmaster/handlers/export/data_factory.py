"""A client for the REST API of Azure Data Factory: start, poll and cancel pipeline runs, find runs by their parameters.

    POST …/pipelines/{pipeline}/createRun      the body has the parameters; the response has the id of the run
    GET  …/pipelineruns/{runId}                Queued, InProgress, Succeeded, Failed, Canceling, Cancelled
    POST …/pipelineruns/{runId}/cancel
    POST …/queryPipelineRuns                   by the name of the pipeline and the time

Requests are repeated after 429, 5xx and lost connections, after the delay that `Retry-After` asks for. A createRun may
have started a run although its response was lost or was a 5xx: it is repeated only if no run with its parameters is
active or has succeeded. Errors and log messages contain no tokens.
"""

import asyncio
import email.utils
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote

import httpx2

from dagmaster.errors import InvalidRequest, Unavailable
from dagmaster.managed_identity import IdentityEndpoint, ManagedIdentity
from dagmaster.observe.redaction import redact
from dagmaster.settings import Settings

API_VERSION: Final = "2018-06-01"
ACTIVE: Final = frozenset({"Queued", "InProgress", "Canceling"})
TRIES: Final = 6
MAX_PAUSE_SECONDS: Final = 120.0
LOOKBACK: Final = timedelta(days=3)  # no run that we need is older: the job has a timeout of a day
_MAX_PAGES: Final = 100
_MAX_MESSAGE_LENGTH: Final = 500
_TIMEOUT = httpx2.Timeout(60.0, connect=10.0)

Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class PipelineRun:
    run_id: str
    status: str
    message: str = ""
    parameters: Mapping[str, Any] | None = None

    @property
    def is_active(self) -> bool:
        return self.status in ACTIVE


class UnknownOutcome(Exception):
    """It is not known whether a request was carried out."""


class DataFactory:
    """One pipeline of one factory. `sleep` and `pause_seconds` are for tests."""

    def __init__(
        self,
        base: str,
        factory_path: str,
        pipeline: str,
        identity: ManagedIdentity,
        sleep: Sleep = asyncio.sleep,
        *,
        pause_seconds: float = 2.0,
    ) -> None:
        self._factory = f"{base}{factory_path}"
        self._pipeline = pipeline
        self._identity = identity
        self._sleep = sleep
        self._pause_seconds = pause_seconds

    @classmethod
    def of(cls, settings: Settings) -> "DataFactory":
        names = ("adf_subscription_id", "adf_resource_group", "adf_factory_name", "adf_pipeline_name")
        values = [getattr(settings, name) for name in names]
        if missing := [name.upper() for name, value in zip(names, values, strict=True) if not value]:
            raise InvalidRequest(
                f"EXPORTER=data_factory requires {', '.join(missing)}",
                code="settings.data-factory",
                hint="set these variables",
            )
        subscription, group, factory, pipeline = values
        path = (
            f"/subscriptions/{quote(subscription, safe='')}/resourceGroups/{quote(group, safe='')}"
            f"/providers/Microsoft.DataFactory/factories/{quote(factory, safe='')}"
        )
        identity = ManagedIdentity(IdentityEndpoint.of(settings, f"{settings.adf_url}/"))
        return cls(settings.adf_url, path, pipeline, identity)

    async def start(self, parameters: Mapping[str, str]) -> str:
        """The id of a run with these parameters: one that is active or has succeeded, or else a new one."""
        for number in range(TRIES):
            if number:
                await self._sleep(self._pause_seconds * 2**number)  # a new run is not listed at once
            if run := await self._reusable(parameters):
                return run.run_id
            try:
                return await self._create(parameters)
            except UnknownOutcome:
                continue
        raise Unavailable("Azure Data Factory did not confirm that it has started a run", code="adf.unanswered")

    async def run(self, run_id: str) -> PipelineRun:
        return _run_of(await self._request("GET", f"/pipelineruns/{quote(run_id, safe='')}"))

    async def cancel(self, run_id: str) -> None:
        await self._request("POST", f"/pipelineruns/{quote(run_id, safe='')}/cancel")

    async def runs(self, parameters: Mapping[str, str]) -> list[PipelineRun]:
        """The runs that were updated within `LOOKBACK` and whose parameters include these."""
        now = datetime.now(UTC)
        body: dict[str, Any] = {
            "lastUpdatedAfter": (now - LOOKBACK).isoformat(),
            "lastUpdatedBefore": (now + timedelta(days=1)).isoformat(),
            "filters": [{"operand": "PipelineName", "operator": "Equals", "values": [self._pipeline]}],
        }
        runs: list[PipelineRun] = []
        for _ in range(_MAX_PAGES):
            page = await self._request("POST", "/queryPipelineRuns", body)
            values = page.get("value")
            runs += [_run_of(each) for each in values if isinstance(each, dict)] if isinstance(values, list) else []
            if not (token := page.get("continuationToken")):
                break
            body["continuationToken"] = token
        return [run for run in runs if parameters.items() <= dict(run.parameters or {}).items()]

    async def _reusable(self, parameters: Mapping[str, str]) -> PipelineRun | None:
        """A run that failed or was cancelled is not continued; a new one is started."""
        runs = await self.runs(parameters)
        return next((run for run in runs if run.status in ("Queued", "InProgress", "Succeeded")), None)

    async def _create(self, parameters: Mapping[str, str]) -> str:
        path = f"/pipelines/{quote(self._pipeline, safe='')}/createRun"
        content = await self._request("POST", path, dict(parameters), is_repeatable=False)
        run_id = content.get("runId")
        if not isinstance(run_id, str) or not run_id:
            raise UnknownOutcome
        return run_id

    async def _request(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, is_repeatable: bool = True
    ) -> dict[str, Any]:
        """The response as JSON. Raises `UnknownOutcome` if it is not known whether a request that must not be repeated
        was carried out."""
        problem, pause, has_renewed = "", 0.0, False
        async with _client() as http:
            for number in range(TRIES):
                if pause:
                    await self._sleep(pause)
                pause = min(MAX_PAUSE_SECONDS, self._pause_seconds * 2**number)
                try:
                    response = await self._send(http, method, path, body)
                except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:  # nothing was sent
                    problem = type(error).__name__
                except httpx2.HTTPError as error:
                    if not is_repeatable:
                        raise UnknownOutcome from None
                    problem = type(error).__name__
                else:
                    if response.is_success:
                        return _json_of(response)
                    problem = f"the response status is {response.status_code}"
                    if response.status_code == httpx2.codes.UNAUTHORIZED and not has_renewed:
                        self._identity.forget()
                        has_renewed, pause = True, 0.0
                        continue
                    if response.status_code < 500 and response.status_code != httpx2.codes.TOO_MANY_REQUESTS:
                        raise _refused(response)
                    if response.status_code >= 500 and not is_repeatable:
                        raise UnknownOutcome
                    pause = _retry_after(response, pause)
        raise Unavailable(f"Azure Data Factory cannot be reached: {problem}", code="adf.unreachable")

    async def _send(
        self, http: httpx2.AsyncClient, method: str, path: str, body: dict[str, Any] | None
    ) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {await self._identity.token(http)}"}
        params = {"api-version": API_VERSION}
        return await http.request(method, f"{self._factory}{path}", params=params, json=body, headers=headers)


@asynccontextmanager
async def _client() -> AsyncIterator[httpx2.AsyncClient]:
    # Proxies of the environment are not used: they would see tokens.
    async with httpx2.AsyncClient(timeout=_TIMEOUT, trust_env=False, follow_redirects=False) as http:
        yield http


def _json_of(response: httpx2.Response) -> dict[str, Any]:
    try:
        content = response.json() if response.content else {}
    except ValueError:
        content = {}
    return content if isinstance(content, dict) else {}


def _run_of(fields: Mapping[str, Any]) -> PipelineRun:
    parameters = fields.get("parameters")
    return PipelineRun(
        run_id=str(fields.get("runId") or ""),
        status=str(fields.get("status") or ""),
        message=_short(str(fields.get("message") or "")),
        parameters=parameters if isinstance(parameters, dict) else {},
    )


def _refused(response: httpx2.Response) -> InvalidRequest | Unavailable:
    error = _json_of(response).get("error")
    detail = _short(str(error.get("message") or "")) if isinstance(error, dict) else ""
    message = f"Azure Data Factory responded with status {response.status_code}{f': {detail}' if detail else ''}"
    if response.status_code in (httpx2.codes.UNAUTHORIZED, httpx2.codes.FORBIDDEN):
        hint = "give the managed identity of the worker the role Data Factory Contributor on the factory"
        return Unavailable(message, code="adf.forbidden", hint=hint)
    return InvalidRequest(message, code="adf.refused", hint="check the settings ADF_… and the pipeline's parameters")


def _short(text: str) -> str:
    return redact(text)[:_MAX_MESSAGE_LENGTH]


def _retry_after(response: httpx2.Response, otherwise: float) -> float:
    """The pause that the server asks for, in seconds or as a date, within limits."""
    value = response.headers.get("retry-after", "")
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (TypeError, ValueError):
            return otherwise
    return min(MAX_PAUSE_SECONDS, max(0.0, seconds))
