"""The FastAPI application: routes, error handlers and services. Nothing is configured at import.

create_app(settings, dsn, catalog, handlers)
  ├── middleware: request id, host and origin, size of bodies
  ├── / /docs /openapi.json /livez /readyz
  └── /api/v1: jobs workflows callbacks bootstrap dead-letters janitor orchestrators workers queues stats health
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi

from dagmaster import __version__
from dagmaster.api import (
    bootstrap,
    callbacks,
    dead_letters,
    examples,
    health,
    index,
    instances,
    interventions,
    janitor,
    jobs,
    logs,
    outputs,
    problems,
    queues,
    stats,
    stream,
    waiting,
    workflows,
)
from dagmaster.api.middleware import ApiMiddleware
from dagmaster.api.services import ApiServices
from dagmaster.client.limits import MAX_BODY_BYTES, PREFIX
from dagmaster.client.models.problems import ProblemDetails
from dagmaster.operations.library import WorkflowLibrary
from dagmaster.orchestrator.loop import Orchestrator
from dagmaster.settings import Settings

_TAGS = [
    {"name": "jobs", "description": "Submit jobs, list and inspect them, follow their events"},
    {"name": "workflows", "description": "The workflows that can be submitted"},
    {"name": "callbacks", "description": "For workers without access to the database"},
    {"name": "queues", "description": "Show, limit and pause queues"},
    {"name": "dead letters", "description": "Messages that were rejected"},
    {"name": "operations", "description": "Running instances, the janitor, and statistics of the platform"},
    {"name": "bootstrap", "description": "The database schema"},
    {"name": "health", "description": "For probes and operators"},
]
_DESCRIPTION = """Jobs, workflows and operations of a dagmaster platform.

Errors are RFC 9457 problem details with a stable `code`. Lists are paginated: pass `next` of a page as `after` to get
the following one. Every response has an `X-Request-ID` header; it is that of the request, if the request has one."""


def create_app(
    settings: Settings,
    dsn: str,
    catalog: WorkflowLibrary,
    handlers: Mapping[str, Any],
    *,
    orchestrator: Orchestrator | None = None,
    heartbeat_seconds: float = 15.0,
) -> FastAPI:
    """The API of a database. Health depends on the loop of `orchestrator`, if one runs in the same process."""
    services = ApiServices(settings, dsn, catalog, handlers, orchestrator, heartbeat_seconds)

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
        docs_url=None,
        redoc_url=None,
    )
    app.state.services = services
    problems.register(app)
    app.include_router(_versioned())
    app.include_router(health.probes)
    app.include_router(index.router)
    app.add_middleware(
        ApiMiddleware,
        max_body_bytes=MAX_BODY_BYTES,
        own_hosts=[settings.api_host],
        is_open_to_all=settings.api_insecure,
    )
    return app


def _versioned() -> APIRouter:
    router = APIRouter(prefix=PREFIX)
    for module in (
        jobs,
        interventions,
        logs,
        outputs,
        stream,
        waiting,
        workflows,
        callbacks,
        bootstrap,
        dead_letters,
        janitor,
        instances,
        queues,
        stats,
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
            _describe_problems(description["components"]["schemas"])
            examples.attach(description)
            self.openapi_schema = description
        return self.openapi_schema


def _describe_problems(schemas: dict[str, Any]) -> None:
    schema = ProblemDetails.model_json_schema(ref_template="#/components/schemas/{model}", mode="serialization")
    schemas.update(schema.pop("$defs", {}))
    schemas["ProblemDetails"] = schema
    # FastAPI's own errors, which this API never sends.
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
