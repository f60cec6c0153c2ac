"""Probes: whether the process is alive, and whether it can serve."""

import asyncio

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dagmaster.client.models.operations import HealthCheck, ReadinessReport
from dagmaster.errors import DagmasterError
from dagmaster.serving.permissions import FOR_ANYONE, FOR_MONITORS, is_monitor
from dagmaster.serving.services import MapServices, Services
from dagmaster.web.metrics import RequestMetrics

TIMEOUT_SECONDS = 3.0
router = APIRouter(tags=["health"])


@router.get("/livez", operation_id="health.getLivez", dependencies=[FOR_ANYONE])
async def get_livez() -> dict[str, str]:
    """Does not query the database: restarting this process would not repair it."""
    return {"status": "alive"}


@router.get(
    "/readyz",
    operation_id="health.getReadyz",
    dependencies=[FOR_ANYONE],
    response_model=ReadinessReport,
    responses={503: {"model": ReadinessReport, "description": "The catalogue cannot be queried"}},
)
async def get_readyz(request: Request, services: Services) -> JSONResponse:
    """Whether the catalogue can be queried. Only callers with the permission metrics:read see why it cannot."""
    check = await _check_catalog(services)
    report = ReadinessReport(is_ready=check.is_ok, checks=[check] if is_monitor(request) else [])
    return JSONResponse(report.model_dump(mode="json"), status_code=200 if report.is_ready else 503)


@router.get("/metrics", include_in_schema=False, dependencies=[FOR_MONITORS])
async def get_metrics(request: Request) -> Response:
    """Metrics for Prometheus, from the memory of this process. The public URL does not serve them."""
    metrics: RequestMetrics = request.app.state.request_metrics
    return metrics.response()


async def _check_catalog(services: MapServices) -> HealthCheck:
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            version = await services.catalog.catalogue_version()
    except TimeoutError:
        return HealthCheck(name="catalogue", is_ok=False, detail=f"no response within {TIMEOUT_SECONDS:g} s")
    except DagmasterError as error:
        return HealthCheck(name="catalogue", is_ok=False, detail=error.message, hint=error.hint)
    return HealthCheck(name="catalogue", is_ok=True, detail=f"pgSTAC {version}")
