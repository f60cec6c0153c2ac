"""Health: whether the process is alive, whether it is ready, and which checks fail."""

import asyncio
import time
from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.responses import JSONResponse

from dagmaster import __version__
from dagmaster.access.caller import Caller
from dagmaster.access.permissions import Permission, may
from dagmaster.api.problems import responses
from dagmaster.api.services import ApiServices, Services
from dagmaster.client.models.operations import Health, HealthCheck, ProcessLiveness, ReadinessReport
from dagmaster.database.reads.installation import Liveness
from dagmaster.database.schema.expected import expected_fingerprint, missing_parts
from dagmaster.errors import DagmasterError
from dagmaster.orchestrator.loop import Orchestrator
from dagmaster.web.authentication import needs, requires

router = APIRouter(tags=["health"], dependencies=[requires(Permission.METRICS_READ)])
probes = APIRouter(tags=["health"])
Anyone = Annotated[Caller, Depends(needs(Permission.ANYONE))]

TIMEOUT_SECONDS = 3.0
_SHOWN = 5


@probes.get(
    "/livez",
    operation_id="get_livez",
    summary="Check whether the process is alive",
    response_model=ProcessLiveness,
    responses={
        **responses(),
        503: {"model": ProcessLiveness, "description": "The orchestrator's loop is stuck: restart the process"},
    },
)
async def get_livez(services: Services, _caller: Anyone) -> JSONResponse:
    """The database is not checked, because a restart would not help. A process that hangs does not respond at all."""
    orchestrator = services.orchestrator
    silent = orchestrator.silent_seconds if orchestrator else 0.0
    is_stuck = orchestrator is not None and silent > orchestrator.restart_after_seconds
    body = ProcessLiveness(status="stuck" if is_stuck else "alive", silent_seconds=round(silent, 3))
    return JSONResponse(body.model_dump(mode="json"), status_code=503 if is_stuck else 200)


@probes.get(
    "/readyz",
    operation_id="get_readyz",
    summary="Check whether the process is ready for work",
    response_model=ReadinessReport,
    responses={**responses(), 503: {"model": ReadinessReport, "description": "Not ready: see the checks"}},
)
async def get_readyz(services: Services, caller: Anyone) -> JSONResponse:
    """Details of the checks need the permission metrics:read, because they may contain host names."""
    health = await _health(services)
    checks = health.checks
    if not may(caller, Permission.METRICS_READ):
        checks = [_check(check.name, check.is_ok, "") for check in checks]
    body = ReadinessReport(is_ready=health.is_ready, checks=checks)
    return JSONResponse(body.model_dump(mode="json"), status_code=200 if health.is_ready else 503)


@router.get("/health", operation_id="get_health", summary="Get all health checks", responses=responses())
async def get_health(services: Services) -> Health:
    """The response is 200 even if checks fail."""
    return await _health(services)


async def _health(services: ApiServices) -> Health:
    started, deadline = time.monotonic(), asyncio.get_running_loop().time() + TIMEOUT_SECONDS
    try:
        async with asyncio.timeout_at(deadline):
            owner_id = services.orchestrator.owner_id if services.orchestrator else None
            liveness = await services.reads.liveness(owner_id, services.alive_within)
    except TimeoutError:
        return _unhealthy("database", f"no response within {TIMEOUT_SECONDS:g} s")
    except DagmasterError as error:
        return _unhealthy("database", error.message, error.hint)
    seconds = round(time.monotonic() - started, 4)
    if liveness is None:
        return _unhealthy("schema", "the schema was never deployed completely", "run `dagmaster db deploy`")
    checks = [
        _check("database", True, f"responds in {seconds * 1000:.0f} ms"),
        await _schema(services, liveness.fingerprint, deadline),
        *([_loop(liveness, services.orchestrator, services.alive_within)] if services.orchestrator else []),
    ]
    return Health(
        is_ready=all(check.is_ok for check in checks),
        checks=checks,
        version=__version__,
        database_seconds=seconds,
        live_orchestrators=liveness.live_orchestrators,
        live_workers=liveness.live_workers,
    )


def _check(name: str, is_ok: bool, detail: str, hint: str | None = None) -> HealthCheck:
    return HealthCheck(name=name, is_ok=is_ok, detail=detail, hint=hint)


async def _schema(services: ApiServices, deployed: str, deadline: float) -> HealthCheck:
    """A schema of another version is sufficient if it has every column and function that this software needs: during an
    upgrade, and after going back, processes use the schema of a newer release."""
    expected = expected_fingerprint()
    if deployed == expected:
        return _check("schema", True, f"{expected}, as this software expects")
    detail = f"{deployed} is deployed, this software expects {expected}"
    try:
        async with asyncio.timeout_at(deadline):
            missing = missing_parts(await services.reads.deployed_parts())
    except TimeoutError:
        return _uncompared(detail, f"no response within {TIMEOUT_SECONDS:g} s")
    except DagmasterError as error:
        return _uncompared(detail, error.message)
    if not missing:
        return _check("schema", True, f"{detail}; it has all columns and functions that this software needs")
    listed = ", ".join(missing[:_SHOWN])
    more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
    return _check("schema", False, f"{detail}; it lacks {listed}{more}", "run `dagmaster db migrate`")


def _uncompared(detail: str, reason: str) -> HealthCheck:
    hint = "`dagmaster db status` compares them; if the schema is older than this software, run `dagmaster db migrate`"
    return _check("schema", False, f"{detail}; its columns and functions cannot be read: {reason}", hint)


def _loop(liveness: Liveness, orchestrator: Orchestrator, within_seconds: float) -> HealthCheck:
    """An orchestrator sends heartbeats only while its loop runs. The loop in this process is also checked directly,
    which shows sooner that it is stuck."""
    age, silent = liveness.beat_age_seconds, orchestrator.silent_seconds
    if age is None:
        return _check("loop", False, "the orchestrator has not started yet")
    if silent > orchestrator.stuck_after_seconds:
        detail = f"the orchestrator's loop has made no progress for {silent:.1f} s"
        return _check("loop", False, detail, "see the log of the orchestrator")
    return _check("loop", age < within_seconds, f"the orchestrator's last heartbeat was {age:.1f} s ago")


def _unhealthy(name: str, detail: str, hint: str | None = None) -> Health:
    return Health(
        is_ready=False,
        checks=[_check(name, False, detail, hint)],
        version=__version__,
        database_seconds=None,
        live_orchestrators=None,
        live_workers=None,
    )
