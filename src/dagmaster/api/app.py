"""The app: routes, errors and parts put together. Nothing is configured at import.

create_app(settings, dsn, catalog, handlers)
  ├── Door: request id, host and origin, size of bodies
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
    interventions,
    janitor,
    jobs,
    logs,
    operate,
    outputs,
    problems,
    stream,
    waiting,
    workflows,
)
from dagmaster.api.middleware import ApiMiddleware
from dagmaster.api.services import ApiServices
from dagmaster.client.limits import MAX_BODY_BYTES, PREFIX
from dagmaster.operations.library import WorkflowLibrary
from dagmaster.orchestrator.loop import Orchestrator
from dagmaster.settings import Settings
from dagmaster.web.problems import Problem

_TAGS = [
    {"name": "jobs", "description": "Submit jobs, look at them and their parts, follow them live"},
    {"name": "workflows", "description": "What can be submitted"},
    {"name": "callbacks", "description": "For workers without access to the database"},
    {"name": "queues", "description": "How full they are; limit and pause them"},
    {"name": "dead letters", "description": "Messages that could not be used"},
    {"name": "operations", "description": "Who runs, and the platform in numbers"},
    {"name": "bootstrap", "description": "The database's schema"},
    {"name": "health", "description": "For probes and people"},
]
_DESCRIPTION = """Jobs, workflows and operations of a dagmaster platform.

Errors are RFC 9457 problems with a stable `code`. Lists come in pages: give `next` of one as `after` of the following one.
Every answer has an `X-Request-ID`, the one that was sent if there was any."""


def create_app(
    settings: Settings,
    dsn: str,
    catalog: WorkflowLibrary,
    handlers: Mapping[str, Any],
    *,
    orchestrator: Orchestrator | None = None,
    heartbeat_seconds: float = 15.0,
) -> FastAPI:
    """The API on a database. `orchestrator` is the one in the same process, on whose loop health depends."""
    services = ApiServices(settings, dsn, catalog, handlers, orchestrator, heartbeat_seconds)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with services.running():
            yield

    app = _App(
        title="dagmaster", version=__version__, description=_DESCRIPTION, openapi_tags=_TAGS, lifespan=lifespan,
        docs_url=None, redoc_url=None,
    )  # fmt: skip
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
        operate,
        health,
    ):
        router.include_router(module.router)
    return router


class _App(FastAPI):
    def openapi(self) -> dict[str, Any]:
        """The description, with what FastAPI does not know: the shape of problems, examples, the id of requests."""
        if self.openapi_schema is None:
            made = get_openapi(
                title=self.title, version=self.version, description=self.description, tags=self.openapi_tags,
                routes=self.routes,
            )  # fmt: skip
            _describe_problems(made["components"]["schemas"])
            examples.attach(made)
            self.openapi_schema = made
        return self.openapi_schema


def _describe_problems(schemas: dict[str, Any]) -> None:
    schema = Problem.model_json_schema(ref_template="#/components/schemas/{model}", mode="serialization")
    schemas.update(schema.pop("$defs", {}))
    schemas["Problem"] = schema
    # FastAPI's own errors, which nobody gets.
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
