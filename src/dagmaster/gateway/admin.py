"""For operators and administrators: the state of the platform as the gateway sees it, and a proxy to orchestrators and
workers."""

from typing import Annotated, Any, Literal
from urllib.parse import unquote

from fastapi import APIRouter, Path, Request, Response

from dagmaster.access.permissions import Permission
from dagmaster.client.limits import PREFIX
from dagmaster.client.models.gateway import (
    GatewayEvent,
    GatewayHealth,
    GatewayInstance,
    GatewayJob,
    ProxyHealth,
)
from dagmaster.errors import InvalidRequest
from dagmaster.gateway.forward import ForwardedRequest, headers_of, passed_back
from dagmaster.gateway.operations import health_of
from dagmaster.gateway.services import Services
from dagmaster.observe.redaction import redact_named
from dagmaster.web.authentication import requires
from dagmaster.web.pages import Limit
from dagmaster.web.validation import responses

# A permission that only operators and administrators have.
_OPERATORS = [requires(Permission.QUEUES_OPERATE)]
router = APIRouter(prefix="/api/admin", tags=["administration"], dependencies=_OPERATORS)
proxy = APIRouter(prefix="/api/proxy", tags=["administration"], dependencies=_OPERATORS)

_ACTIVE = ("pending", "running")
_METHODS = ["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"]
_REPEATABLE = ("GET", "HEAD", "OPTIONS")
_HIDDEN = "***"


@router.get(
    "/health",
    operation_id="admin_health",
    summary="Get the health of the gateway, with the addresses of orchestrators",
    responses=responses(429),
)
async def health(services: Services) -> GatewayHealth:
    return await health_of(services)


@router.get("/instances", operation_id="admin_instances", summary="List processes", responses=responses(429))
async def instances(services: Services, limit: Limit = 100) -> list[GatewayInstance]:
    return await services.reads.instances(limit)


@router.get("/config", operation_id="admin_config", summary="Get the settings of the gateway", responses=responses(429))
async def config(services: Services) -> dict[str, Any]:
    """Secrets are masked."""
    return {
        name: _HIDDEN if not field.repr and value is not None else redact_named(name, value)
        for name, field in type(services.settings).model_fields.items()
        for value in [services.settings.model_dump(mode="json")[name]]
    }


@router.get(
    "/active-jobs", operation_id="admin_active_jobs", summary="List jobs that have not ended", responses=responses(429)
)
async def active_jobs(services: Services, limit: Limit = 50) -> list[GatewayJob]:
    return await services.reads.jobs(limit=limit, status=_ACTIVE)


@router.get(
    "/recent-events", operation_id="admin_recent_events", summary="List the newest events", responses=responses(429)
)
async def recent_events(services: Services, limit: Limit = 50) -> list[GatewayEvent]:
    return await services.reads.recent_events(limit)


@router.get("/workflows", operation_id="admin_workflows", summary="List workflows", responses=responses(429, 504))
async def workflows(services: Services, request: Request) -> Response:
    forwarded = ForwardedRequest(
        "GET", f"{PREFIX}/workflows", headers_of(request), request.url.query, is_repeatable=True
    )
    return passed_back(await services.forwarder.send(forwarded))


@proxy.get(
    "/health",
    operation_id="proxy_health",
    summary="Get the health of orchestrators and workers",
    responses=responses(429),
)
async def proxy_health(services: Services) -> ProxyHealth:
    return ProxyHealth(orchestrator=services.forwarder.states(), worker=services.workers.states())


async def _proxied(
    services: Services,
    request: Request,
    target: Literal["orchestrator", "worker"],
    path: Annotated[str, Path(max_length=2000, description="The path on the target, without its first slash")],
) -> Response:
    """Method, path, query and body are forwarded unchanged, with the credentials of the caller, which an orchestrator
    verifies again."""
    forwarder = services.forwarder if target == "orchestrator" else services.workers
    forwarded = ForwardedRequest(
        request.method,
        f"/{_checked(path)}",
        headers_of(request),
        request.url.query,
        await request.body(),
        is_repeatable=request.method in _REPEATABLE,
    )
    return passed_back(await forwarder.send(forwarded))


for _method in _METHODS:
    proxy.add_api_route(
        "/{target}/{path:path}",
        _proxied,
        methods=[_method],
        operation_id=f"proxy_{_method.lower()}",
        summary=f"Send a {_method} request to an orchestrator or a worker",
        responses=responses(404, 409, 429, 504),
    )


def _checked(path: str) -> str:
    """The path. It is refused if it could lead out of the root of the target, or contains a query."""
    plain = unquote(path)
    if plain.startswith("/") or ".." in plain.split("/") or "\\" in plain or not plain.isprintable() or "?" in plain:
        raise InvalidRequest("this path cannot be forwarded", code="proxy.bad-path")
    return path
