"""Health: is the process alive, may it be given work, and what is wrong if not."""

import asyncio
import time
from dataclasses import dataclass
from functools import cache
from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import JSONResponse

from dagmaster import __version__
from dagmaster.api.problems import responses
from dagmaster.api.services import ApiServices, Services
from dagmaster.database.reads.pages import Liveness
from dagmaster.errors import DagmasterError
from dagmaster.orchestrator.loop import Orchestrator

router = APIRouter(tags=["health"])
probes = APIRouter(tags=["health"])

PATIENCE_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    is_ok: bool
    detail: str
    hint: str | None = None


class Alive(BaseModel):
    """Alive as long as a restart would heal nothing."""

    status: Literal["alive", "stuck"] = "alive"
    silent_seconds: float = Field(0.0, description="For how long the orchestrator's loop has got nowhere")


class Readiness(BaseModel):
    """Ready when every check is."""

    is_ready: bool
    checks: list[Check]


class Health(Readiness):
    """Readiness with what else an operator asks first."""

    version: str
    database_seconds: float | None = Field(description="How long the database took to answer")
    live_orchestrators: int | None
    live_workers: int | None


@probes.get(
    "/livez",
    operation_id="get_livez",
    summary="Is the process alive?",
    response_model=Alive,
    responses={**responses(), 503: {"model": Alive, "description": "The orchestrator's loop is stuck: restart it"}},
)
async def get_livez(services: Services) -> JSONResponse:
    """Does not ask the database: no restart would bring that back. A process that hangs as a whole gives no answer."""
    loop = services.orchestrator
    silent = loop.silent_seconds if loop else 0.0
    is_stuck = loop is not None and silent > loop.hopeless_seconds
    body = Alive(status="stuck" if is_stuck else "alive", silent_seconds=round(silent, 3))
    return JSONResponse(body.model_dump(mode="json"), status_code=503 if is_stuck else 200)


@probes.get(
    "/readyz",
    operation_id="get_readyz",
    summary="May it be given work?",
    response_model=Readiness,
    responses={**responses(), 503: {"model": Readiness, "description": "Not ready: see the checks"}},
)
async def get_readyz(services: Services) -> JSONResponse:
    health = await _health(services)
    body = Readiness(is_ready=health.is_ready, checks=health.checks)
    return JSONResponse(body.model_dump(mode="json"), status_code=200 if health.is_ready else 503)


@router.get("/health", operation_id="get_health", summary="What is well and what is not", responses=responses())
async def get_health(services: Services) -> Health:
    """Always answered: also when nothing is well."""
    return await _health(services)


async def _health(services: ApiServices) -> Health:
    begun = time.monotonic()
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            owner_id = services.orchestrator.owner_id if services.orchestrator else None
            found = await services.reads.liveness(owner_id, services.alive_within)
    except TimeoutError:
        return _unwell(Check("database", False, f"no answer within {PATIENCE_SECONDS:g} s"))
    except DagmasterError as error:
        return _unwell(Check("database", False, error.message, error.hint))
    seconds = round(time.monotonic() - begun, 4)
    if found is None:
        return _unwell(Check("schema", False, "the schema was never deployed whole", "run `dagmaster db deploy`"))
    expected = await asyncio.to_thread(_fingerprint)
    checks = [
        Check("database", True, f"answers in {seconds * 1000:.0f} ms"),
        _schema(found, expected),
        *([_loop(found, services.orchestrator, services.alive_within)] if services.orchestrator else []),
    ]
    return Health(
        is_ready=all(check.is_ok for check in checks), checks=checks, version=__version__, database_seconds=seconds,
        live_orchestrators=found.live_orchestrators, live_workers=found.live_workers,
    )  # fmt: skip


@cache
def _fingerprint() -> str:
    from dagmaster.database.schema import deploy

    return deploy.fingerprint()


def _schema(found: Liveness, expected: str) -> Check:
    if found.fingerprint == expected:
        return Check("schema", True, f"{expected}, as this software has it")
    detail = f"deployed is {found.fingerprint}, this software has {expected}"
    return Check("schema", False, detail, "run `dagmaster db migrate`")


def _loop(found: Liveness, loop: Orchestrator, within_seconds: float) -> Check:
    """An orchestrator beats only while its loop moves. What the loop itself knows is known sooner."""
    age, silent = found.beat_age_seconds, loop.silent_seconds
    if age is None:
        return Check("loop", False, "the orchestrator has not begun yet")
    if silent > loop.patience_seconds:
        return Check("loop", False, f"the orchestrator's loop has got nowhere for {silent:.1f} s", "look into its log")
    return Check("loop", age < within_seconds, f"the orchestrator's loop showed itself {age:.1f} s ago")


def _unwell(check: Check) -> Health:
    return Health(
        is_ready=False,
        checks=[check],
        version=__version__,
        database_seconds=None,
        live_orchestrators=None,
        live_workers=None,
    )
