"""The FastAPI application of the gateway. Nothing is configured at import.

create_app(settings, dsn)
  ├── middleware: request id, host and origin, caller, rate, size of bodies
  ├── /livez /readyz /metrics /openapi.json
  └── /api: platform gateway status assets layers admin proxy
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from starlette.datastructures import Headers
from starlette.types import Scope

from dagmaster import __version__, listen
from dagmaster.access.caller import ANONYMOUS
from dagmaster.access.permissions import Permission
from dagmaster.client.limits import MAX_BODY_BYTES
from dagmaster.client.models.gateway import GatewayReadiness
from dagmaster.client.models.operations import ProcessLiveness
from dagmaster.errors import DagmasterError
from dagmaster.gateway import admin, assets, operations, platform, status, uploads
from dagmaster.gateway.operations import health_of
from dagmaster.gateway.services import GatewayServices, Services
from dagmaster.settings import Settings
from dagmaster.web.authentication import CALLER, requires
from dagmaster.web.description import describe_permissions, describe_problems
from dagmaster.web.limits import RateLimit
from dagmaster.web.metrics import RequestMetrics
from dagmaster.web.middleware import RequestMiddleware
from dagmaster.web.validation import PROBLEMS, register, responses

_DESCRIPTION = """Partners submit data, follow its status and receive callbacks; operators see jobs.

A partner has a key of its platform (`X-API-Key`, or `Authorization: Bearer`) and sees its own requests and assets only.
Errors are RFC 9457 problem details with a stable `code`. Lists are paginated: pass `next` of a page as `after`."""

_PROBES = frozenset({"/livez", "/readyz"})
probes = APIRouter(tags=["health"], dependencies=[requires(Permission.ANYONE)])


@probes.get("/livez", operation_id="get_livez", summary="Check whether the process is alive", responses=responses())
async def livez() -> ProcessLiveness:
    return ProcessLiveness(status="alive", silent_seconds=0.0)


@probes.get(
    "/readyz",
    operation_id="get_readyz",
    summary="Check whether the gateway is ready",
    responses={**responses(), 503: {"model": GatewayReadiness, "description": "The database cannot be read"}},
)
async def readyz(services: Services, response: Response) -> GatewayReadiness:
    """The gateway is ready if the database can be read: clients can poll while no orchestrator is available."""
    health = await health_of(services)
    response.status_code = 200 if health.is_ready else 503
    return GatewayReadiness(is_ready=health.is_ready, can_read=health.can_read, can_forward=health.can_forward)


metrics = APIRouter(include_in_schema=False, dependencies=[requires(Permission.METRICS_READ)])


@metrics.get("/metrics")
async def get_metrics(request: Request) -> Response:
    """Metrics for Prometheus, from the memory of this process."""
    request_metrics: RequestMetrics = request.app.state.request_metrics
    return request_metrics.response()


def create_app(settings: Settings, dsn: str) -> FastAPI:
    """The gateway. The DSN has the database role that may only select."""
    services = GatewayServices(settings, dsn)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with services.running():
            yield

    app = _GatewayApp(
        title="dagmaster gateway",
        version=__version__,
        description=_DESCRIPTION,
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
    )
    app.state.services = services
    register(app)
    # Before the routes of `platform`, because `/{action}` there would also match `/uploads`.
    app.include_router(uploads.router)
    for router in (
        platform.router,
        operations.router,
        status.router,
        assets.router,
        assets.layers,
        admin.router,
        admin.proxy,
        probes,
        metrics,
    ):
        app.include_router(router)
    app.add_api_route(
        "/openapi.json", _openapi_of(app), include_in_schema=False, dependencies=[requires(Permission.ANYONE)]
    )
    app.state.request_metrics = RequestMetrics("gateway", services.metrics)
    app.add_middleware(
        GatewayMiddleware,
        metrics=app.state.request_metrics,
        limit=services.limit,
        max_body_bytes=MAX_BODY_BYTES,
        max_chunk_bytes=settings.upload_chunk_mb * 1_000_000,
        own_hosts=[settings.gateway_host],
        is_open_to_all=settings.may_expose_gateway,
        authentication=services.authentication,
        refuses_other_sites=not settings.auth_enabled,
    )
    return app


def _openapi_of(app: FastAPI) -> Any:
    async def openapi() -> dict[str, Any]:
        return app.openapi()

    return openapi


class _GatewayApp(FastAPI):
    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            description = super().openapi()
            describe_problems(description["components"]["schemas"])
            describe_permissions(description, self.routes)
            self.openapi_schema = description
        return self.openapi_schema


class GatewayMiddleware(RequestMiddleware):
    endpoint = listen.GATEWAY
    problems = PROBLEMS
    uploads_below = uploads.PATH

    def __init__(self, *arguments: Any, limit: RateLimit, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._limit = limit

    def needs_caller(self, path: str) -> bool:
        """Probes get a response whatever credentials they have, also while the database is down."""
        return path not in _PROBES

    async def _authenticate(self, scope: Scope, headers: Headers) -> DagmasterError | None:
        """Authenticate the caller, and count the request against its rate limit. Probes are not limited."""
        refusal = await super()._authenticate(scope, headers)
        if scope["path"] in _PROBES:
            return refusal
        caller = scope["state"].get(CALLER, ANONYMOUS)
        name = f"caller {caller.name}" if caller != ANONYMOUS else f"address {(scope.get('client') or [''])[0]}"
        try:
            self._limit.take(name)
        except DagmasterError as error:
            return error
        return refusal
