"""The FastAPI application: routes, error handlers and services. Nothing is configured at import.

create_app(settings, dsn, library, handlers)
  ├── middleware: request id, host and origin, caller, size of bodies
  ├── / /docs /openapi.json /livez /readyz /metrics
  ├── /api/jobs /api/dbadmin: the old API
  ├── /tiles /stac /files …: forwarded to the map server
  ├── /ui: the web pages
  └── /api/v1: jobs workflows submit status assets reviews layers platforms commands callbacks bootstrap dead-letters
               janitor orchestrators workers worker queues leases database stats stream caller keys session audit
               uploads sources health
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cache, partial
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.routing import BaseRoute

from dagmaster import __version__
from dagmaster.api import (
    asset_pages,
    assets,
    audit,
    bootstrap,
    bulk,
    callback_events,
    callers,
    changes,
    commands,
    dead_letters,
    examples,
    export,
    health,
    index,
    instances,
    interventions,
    janitor,
    jobs,
    keys,
    layers,
    logs,
    metrics,
    oidc_sessions,
    outputs,
    platforms,
    problems,
    queues,
    reviews,
    sessions,
    sources,
    stats,
    stream,
    submissions,
    system,
    task_reports,
    uploads,
    waiting,
    worker,
    workflow_history,
    workflows,
)
from dagmaster.api.legacy import routes as legacy
from dagmaster.api.legacy.problems import OldProblems
from dagmaster.api.maps import map_routes
from dagmaster.api.middleware import ApiMiddleware
from dagmaster.api.services import ApiServices
from dagmaster.client.limits import MAX_BODY_BYTES, PREFIX
from dagmaster.client.models.changes import ChangeBatch
from dagmaster.library.workflows import WorkflowLibrary
from dagmaster.orchestrator.loop import Orchestrator
from dagmaster.settings import Settings
from dagmaster.ui import routes as pages
from dagmaster.web.description import describe_models, describe_permissions, describe_problems
from dagmaster.web.metrics import RequestMetrics

_TAGS = [
    {"name": "jobs", "description": "Submit jobs, list and inspect them, follow their events"},
    {"name": "workflows", "description": "The workflows that can be submitted"},
    {"name": "assets", "description": "Submit data of platforms; list, review and publish it"},
    {"name": "layers", "description": "Edit the metadata of layers, and list those that are published"},
    {
        "name": "commands",
        "description": "Direct commands: publish metadata, rebuild the catalogue, migrate the schema, reload workflows",
    },
    {"name": "uploads", "description": "Upload files to the bronze zone in parts; list the objects of the zone"},
    {"name": "platforms", "description": "The external systems that submit data"},
    {
        "name": "callbacks",
        "description": "Callbacks to submitters, and reports of workers that have no database access",
    },
    {"name": "workers", "description": "Workers without database access: claim tasks, renew leases, report"},
    {"name": "queues", "description": "Show, limit and pause queues"},
    {"name": "dead letters", "description": "Messages that could not be processed, and tasks that were given up"},
    {"name": "operations", "description": "Running instances, the janitor, and statistics of the platform"},
    {"name": "callers", "description": "Callers and their permissions: API keys, sessions, the audit log"},
    {"name": "bootstrap", "description": "The database schema"},
    {"name": "old API", "description": "The API of the old system, for clients that still use it"},
    {"name": "health", "description": "Health checks, for probes and operators"},
]
_DESCRIPTION = """Jobs, workflows, assets and operations of a dagmaster platform.

Each request needs a permission, which the scopes of an API key or of an OIDC token give. If authentication is disabled,
the platform accepts requests from its own machine only, unless API_INSECURE is set.

Errors are RFC 9457 problem details with a stable `code`. Lists are paginated: pass `next` of a page as `after` to get
the following one. Every response has an `X-Request-ID` header, with the id from the request or a new one."""


def create_app(
    settings: Settings,
    dsn: str,
    library: WorkflowLibrary,
    handlers: Mapping[str, Any],
    *,
    orchestrator: Orchestrator | None = None,
    heartbeat_seconds: float = 15.0,
) -> FastAPI:
    """The API on a database. If an `orchestrator` runs in this process, health checks include its loop."""
    services = ApiServices(settings, dsn, library, handlers, orchestrator, heartbeat_seconds)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with services.running():
            yield

    app = _App(
        title="dagmaster",
        version=__version__,
        description=_DESCRIPTION,
        openapi_tags=_TAGS,
        lifespan=lifespan,
        openapi_url=None,  # `index` serves the description and its pages
        docs_url=None,
        redoc_url=None,
    )
    app.state.services = services
    problems.register(app)
    before, after = _routes()
    app.router.routes += [*before, *map_routes(services.maps), *after]
    app.state.platform_metrics = metrics.PlatformMetrics()
    app.state.request_metrics = RequestMetrics(
        "orchestrator", partial(metrics.orchestrator_metrics, services), app.state.platform_metrics.metrics
    )
    app.add_middleware(
        ApiMiddleware,
        metrics=app.state.request_metrics,
        max_body_bytes=MAX_BODY_BYTES,
        max_chunk_bytes=settings.upload_chunk_mb * 1_000_000,
        own_hosts=[settings.api_host],
        is_open_to_all=settings.may_expose_api,
        authentication=services.authentication,
        refuses_other_sites=not settings.auth_enabled,
    )
    app.add_middleware(OldProblems)
    return app


@cache
def _routes() -> tuple[list[BaseRoute], list[BaseRoute]]:
    """The routes before and after those of the map server. They do not depend on settings and take a while to build, so
    the apps of a process share them."""
    before, after = APIRouter(), APIRouter()
    for router in (_versioned(), legacy.router, health.probes, index.router, metrics.router):
        before.include_router(router)
    after.include_router(pages.router)
    return before.routes, after.routes


def _versioned() -> APIRouter:
    router = APIRouter(prefix=PREFIX)
    for module in (
        bulk,
        jobs,
        interventions,
        logs,
        outputs,
        export,
        stream,
        waiting,
        workflows,
        workflow_history,
        submissions,
        uploads,
        sources,
        assets,
        asset_pages,
        reviews,
        layers,
        platforms,
        commands,
        audit,
        callback_events,
        task_reports,
        bootstrap,
        dead_letters,
        janitor,
        instances,
        worker,
        queues,
        stats,
        system,
        changes,
        callers,
        keys,
        sessions,
        oidc_sessions,
        health,
    ):
        router.include_router(module.router)
    return router


class _App(FastAPI):
    def openapi(self) -> dict[str, Any]:
        """The description, with what FastAPI does not add: the schema of problems, and examples."""
        if self.openapi_schema is None:
            description = get_openapi(
                title=self.title,
                version=self.version,
                description=self.description,
                tags=self.openapi_tags,
                routes=self.routes,
            )
            describe_problems(description["components"]["schemas"])
            describe_models(description["components"]["schemas"], ChangeBatch)
            describe_permissions(description, self.routes)
            examples.attach(description)
            self.openapi_schema = description
        return self.openapi_schema
