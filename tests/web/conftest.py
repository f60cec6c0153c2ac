"""A small app with a few routes behind the middleware of the API, and one behind that of the map server."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import pytest
import structlog
from fastapi import FastAPI, Request
from starlette.testclient import TestClient

from dagmaster.api import problems as api_problems
from dagmaster.api.middleware import ApiMiddleware
from dagmaster.database.catalog.datasets import CatalogReader
from dagmaster.errors import Conflict, InvalidWorkflow, Unavailable, WorkflowProblem
from dagmaster.observe import log
from dagmaster.serving import problems as map_problems
from dagmaster.serving.access import AccessDecisions
from dagmaster.serving.middleware import MapMiddleware
from dagmaster.web.authentication import LOCAL_ADMIN, NoAuthentication

NO_AUTHENTICATION = NoAuthentication(LOCAL_ADMIN)
HOST = "maps.internal"
LIMIT = 1_048_576


@dataclass(frozen=True)
class AppUnderTest:
    app: FastAPI
    hides_details: bool

    def client(self) -> TestClient:
        return TestClient(self.app, base_url="http://localhost:8000")


def api(*, is_open_to_all: bool = False, **options: Any) -> AppUnderTest:
    app = _app(api_problems.register)
    app.add_middleware(
        ApiMiddleware,
        max_body_bytes=LIMIT,
        own_hosts=[HOST],
        is_open_to_all=is_open_to_all,
        **{"authentication": NO_AUTHENTICATION, **options},
    )
    return AppUnderTest(app, hides_details=False)


def maps(*, is_open_to_all: bool = False, **options: Any) -> AppUnderTest:
    app = _app(map_problems.register)
    app.add_middleware(
        MapMiddleware,
        own_host=HOST,
        public_url=None,
        is_open_to_all=is_open_to_all,
        access=AccessDecisions(cast(CatalogReader, None)),  # no route here reads the catalogue
        **{"authentication": NO_AUTHENTICATION, **options},
    )
    return AppUnderTest(app, hides_details=True)


@pytest.fixture(params=[api, maps], ids=["api", "serving"])
def build(request: pytest.FixtureRequest) -> Callable[..., AppUnderTest]:
    chosen: Callable[..., AppUnderTest] = request.param
    return chosen


@pytest.fixture
def under_test(build: Callable[..., AppUnderTest]) -> AppUnderTest:
    return build(is_open_to_all=False)


@pytest.fixture
def client(under_test: AppUnderTest) -> TestClient:
    return under_test.client()


@pytest.fixture(autouse=True)
def plain_logs() -> Iterator[None]:
    """Logs as in a process. Otherwise structlog would print all variables of a traceback, which takes seconds."""
    before = structlog.get_config()
    log.configure("warning")
    yield
    structlog.configure(**before)


def _app(register: Callable[[FastAPI], None]) -> FastAPI:
    app = FastAPI()
    register(app)

    @app.get("/here")
    async def answer() -> str:
        return "here"

    @app.post("/length")
    async def length(request: Request) -> int:
        return len(await request.body())

    @app.get("/broken")
    async def broken() -> None:
        raise RuntimeError("password=hunter2 in a stack trace")

    @app.get("/refused")
    async def refused() -> None:
        raise Conflict("postgresql://me:hunter2@host/db", hint="sig=hunter2", url="https://x/?sig=hunter2", many=[b"x"])

    @app.get("/long")
    async def long() -> None:
        raise Unavailable("y" * 10_000, code="long.away")

    @app.get("/halves")
    async def halves() -> None:
        raise Conflict("\ud800")

    @app.get("/file")
    async def file() -> None:
        raise InvalidWorkflow("demo.yaml", [WorkflowProblem("no such node", line=3, column=5, node="a")])

    return app
