"""Requests for maps to the API: they are forwarded to the map server, and its responses are passed on in pieces.

In most of these tests the map server is a small app on a local port, which returns what it received.
"""

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace

import httpx2
import pytest
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from dagmaster.api.app import create_app
from dagmaster.api.maps import MAX_BODY_BYTES, Slots
from dagmaster.dataset_urls import is_map_path
from dagmaster.errors import Unavailable
from dagmaster.handlers.registry import installed
from dagmaster.library.workflows import WorkflowLibrary
from dagmaster.listen import bind
from dagmaster.serving.app import create_app as create_maps
from dagmaster.settings import load
from dagmaster.web.authentication import routes_of
from dagmaster.web.server import WebServer
from tests.api.serving import served
from tests.web.problems import check

pytestmark = pytest.mark.requirement("C2", "X1")

NOWHERE = "postgresql://nobody@127.0.0.1:1/none"
PIECE = b"x" * 65_536


def map_server() -> SimpleNamespace:
    """`go` lets a slow response continue; `ended` is set when its request is cancelled."""
    app, state = FastAPI(), SimpleNamespace(go=asyncio.Event(), ended=asyncio.Event(), begun=asyncio.Event())

    @app.api_route("/tiles/echo/{path:path}", methods=["GET", "HEAD", "POST"])
    async def echo(request: Request) -> Response:
        headers = [[name.decode(), value.decode("latin-1")] for name, value in request.scope["headers"]]
        facts = {
            "raw_path": request.scope["raw_path"].decode(),
            "query": request.scope["query_string"].decode(),
            "headers": headers,
            "body": (await request.body()).decode(),
        }
        own = {"Connection": "X-Own", "X-Own": "1", "ETag": '"e"', "X-Kept": "1", "Set-Cookie": "a=b"}
        return JSONResponse(facts, status_code=206, headers=own)

    @app.get("/files/slow")
    async def slow() -> StreamingResponse:
        async def pieces():
            try:
                yield PIECE
                state.begun.set()
                await state.go.wait()
                yield PIECE
            except (asyncio.CancelledError, GeneratorExit):
                state.ended.set()
                raise

        return StreamingResponse(pieces(), headers={"Content-Length": str(2 * len(PIECE))})

    @app.get("/files/broken")
    async def broken() -> StreamingResponse:
        async def pieces():
            yield PIECE
            raise RuntimeError("the disk is gone")

        return StreamingResponse(pieces(), headers={"Content-Length": str(2 * len(PIECE))})

    state.app = app
    return state


@asynccontextmanager
async def on_a_port(app):
    server = WebServer(app, bind("127.0.0.1", 0))
    task = asyncio.create_task(server.run())
    await server.until_started()
    try:
        yield server.url
    finally:
        server.finish()
        await asyncio.wait_for(task, 20)


@asynccontextmanager
async def origin(*urls, **settings):
    """The API without a database, in front of these map servers."""
    chosen = load(serving_urls=tuple(urls), **settings)
    app = create_app(chosen, NOWHERE, WorkflowLibrary({}), installed())
    async with served(app) as server, httpx2.AsyncClient(base_url=server.url, timeout=20) as client:
        yield client


async def test_the_map_server_gets_a_request_as_it_was_sent(monkeypatch):
    sent = {
        "Host": "localhost:8000",
        "Authorization": "Bearer secret",
        "X-API-Key": "dgm_x",
        "Cookie": "dagmaster_session=dgs_x",
        "X-CSRF-Token": "t",
        "Range": "bytes=0-99",
        "If-None-Match": '"e"',
        "Connection": "keep-alive, X-Secret-Of-Hop",
        "X-Secret-Of-Hop": "1",
        "Proxy-Authorization": "Basic x",
        "Forwarded": "for=1.2.3.4",
        "X-Forwarded-For": "1.2.3.4",
        "X-Forwarded-Host": "evil.example",
        "X-Forwarded-Proto": "https",
        "X-Request-ID": "mine",
    }
    async with on_a_port(map_server().app) as url, origin(url, auth_enabled=True) as client:
        request = client.build_request("POST", "/tiles/echo/x", headers=sent, content=b"a body")
        request.extensions["target"] = b"/tiles/echo/%2e%2e/a%2Fb/%C3%A4?q=1&q=%20a+b"
        response = await client.send(request)
    got = response.json()
    headers = dict(got["headers"])

    assert got["raw_path"] == "/tiles/echo/%2e%2e/a%2Fb/%C3%A4"
    assert (got["query"], got["body"]) == ("q=1&q=%20a+b", "a body")
    for name in ("host", "authorization", "x-api-key", "cookie", "x-csrf-token", "range", "if-none-match"):
        assert headers[name] == {key.lower(): value for key, value in sent.items()}[name]
    assert headers["x-request-id"] == "mine"
    # Forwarding headers of the client are replaced by what this server knows.
    assert (headers["x-forwarded-for"], headers["x-forwarded-proto"]) == ("127.0.0.1", "http")
    assert not {"forwarded", "x-forwarded-host", "proxy-authorization", "x-secret-of-hop"} & headers.keys()
    assert len(headers) == len(got["headers"])
    assert (response.status_code, response.headers["etag"], response.headers["x-kept"]) == (206, '"e"', "1")
    assert "x-own" not in response.headers
    assert response.headers["x-request-id"] == "mine"
    assert len(response.headers.get_list("date")) == 1


async def test_a_large_response_is_passed_on_in_pieces_before_it_is_complete():
    maps = map_server()
    async with (
        on_a_port(maps.app) as url,
        origin(url) as client,
        client.stream("GET", "/files/slow") as response,
    ):
        pieces = response.aiter_raw()
        size = len(await anext(pieces))
        is_complete_early = maps.go.is_set()
        maps.go.set()
        async for piece in pieces:
            size += len(piece)

    assert not is_complete_early
    assert size == 2 * len(PIECE) == int(response.headers["content-length"])


async def test_the_request_to_the_map_server_is_cancelled_if_the_client_disconnects():
    maps = map_server()
    async with on_a_port(maps.app) as url, origin(url) as client:
        async with client.stream("GET", "/files/slow"):
            await asyncio.wait_for(maps.begun.wait(), 10)
        await asyncio.wait_for(maps.ended.wait(), 10)


async def test_an_interrupted_response_does_not_look_complete_to_the_client():
    async with on_a_port(map_server().app) as url, origin(url) as client:
        with pytest.raises(httpx2.RemoteProtocolError):
            await client.get("/files/broken")
        again = await client.get("/tiles/echo/x")

    assert again.status_code == 206


async def test_an_unreachable_map_server_is_reported_and_the_next_one_is_tried():
    closed = bind("127.0.0.1", 0)
    closed_url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    closed.close()
    async with origin(closed_url) as client:
        away = await client.get("/stac/collections")
        api = await client.get("/openapi.json")
    async with on_a_port(map_server().app) as url, origin(closed_url, url) as client:
        responses = [(await client.get("/tiles/echo/x")).status_code for _ in range(4)]
    async with origin() as client:
        none = await client.get("/tiles/echo/x")

    check(away, 503, "maps.unavailable")
    assert away.headers["retry-after"]
    assert api.status_code == 200
    assert responses == [206] * 4
    check(none, 404, "maps.not-configured")


async def test_a_body_that_is_too_large_for_the_map_server_is_refused_by_the_api():
    async with on_a_port(map_server().app) as url, origin(url) as client:
        response = await client.post("/tiles/echo/x", content=b"x" * (MAX_BODY_BYTES + 1))

    check(response, 413, "request.too-large")


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Host": "evil.example"}, "request.foreign-host"),
        ({"Origin": "http://evil.example"}, "request.foreign-origin"),
        (
            {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"},
            "request.foreign-origin",
        ),
    ],
)
async def test_without_authentication_pages_of_other_sites_reach_neither_maps_nor_the_ui(headers, code):
    maps = map_server()
    async with on_a_port(maps.app) as url, origin(url) as client:
        for path in ("/tiles/echo/x", "/files/slow", "/ui/", "/ui/app.js", "/api/v1/session", "/"):
            check(await client.get(path, headers=headers), 403, code)
        image = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
        shown = await client.get("/tiles/echo/x", headers=image)
        not_shown = await client.get("/ui/logo.png", headers=image)

    assert shown.status_code == 206  # other sites, such as a notebook, may show tiles as images
    check(not_shown, 403, "request.foreign-origin")


async def test_the_numbers_of_forwarded_and_of_waiting_requests_are_limited():
    slots, entered, leave = Slots(at_once=2, max_waiting=1, seconds=0.2), [], asyncio.Event()

    async def one(name):
        async with slots.acquire():
            entered.append(name)
            await leave.wait()

    tasks = [asyncio.create_task(one(name)) for name in range(3)]
    while len(entered) < 2:
        await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="too many"):
        await one("refused")
    with pytest.raises(Unavailable, match="too many"):
        await tasks[2]  # its time limit for waiting is over
    leave.set()
    await asyncio.gather(*tasks[:2])
    await one("later")

    assert entered == [0, 1, "later"]


def test_every_path_of_the_map_server_is_forwarded_except_its_own_probes_and_documents():
    maps = {route.path for route in routes_of(create_maps(load(), NOWHERE).routes)}
    api = create_app(load(), NOWHERE, WorkflowLibrary({}), installed())
    own = {path for path in maps if not is_map_path(path)}
    forwarded = {route.path for route in routes_of(api.routes) if is_map_path(route.path)}

    assert own == {"/", "/livez", "/readyz", "/metrics", "/openapi.json"}
    assert {path.split("/{path")[0] for path in forwarded} == {f"/{path.split('/')[1]}" for path in forwarded}
