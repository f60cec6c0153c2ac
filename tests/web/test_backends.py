"""To which server a request is forwarded, according to the checks of the servers."""

import asyncio
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from dagmaster.web import backends
from dagmaster.web.backends import Backends

pytestmark = pytest.mark.requirement("G3")

A, B, C = (f"http://{name}.internal" for name in "abc")


class Servers:
    """What each address does when it is checked: it responds with a status, or the check fails with an error."""

    def __init__(self, **behaviour: int | Exception) -> None:
        self.behaviour = behaviour
        self.checks: dict[str, int] = dict.fromkeys(behaviour, 0)

    async def get(self, url: str, **_options: Any) -> httpx2.Response:
        name = url.removeprefix("http://").partition(".")[0]
        self.checks[name] += 1
        result = self.behaviour[name]
        if isinstance(result, Exception):
            raise result
        return httpx2.Response(result)


@pytest.fixture(autouse=True)
def short_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "CHECK_SECONDS", 0.001)


@asynccontextmanager
async def checked(servers: Servers, *urls: str):
    group = Backends(urls, servers, role="test")
    async with group.checked():
        yield group


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


def order_of(group: Backends) -> list[str]:
    return [backend.url for backend in group.candidates()]


def test_servers_are_tried_first_in_turn_and_the_others_follow():
    group = Backends([A, B, C], Servers(), role="test")

    orders = [order_of(group) for _ in range(6)]

    assert [orders.count(order) for order in orders] == [2] * 6
    assert {order[0] for order in orders} == {A, B, C}
    assert all(sorted(order) == [A, B, C] for order in orders)


@pytest.mark.parametrize("fault", [httpx2.ConnectError("refused"), httpx2.ConnectTimeout("slow"), 503])
async def test_a_server_is_tried_last_while_it_is_down(fault):
    servers = Servers(a=fault, b=200)
    async with checked(servers, A, B) as group:
        await wait_until(lambda: servers.checks["a"] > 3 * backends.HANGS_AFTER)
        orders = [order_of(group) for _ in range(4)]
        had_healthy = group.has_healthy
        servers.behaviour["a"] = 200
        await wait_until(lambda: all(state.is_healthy for state in group.states()))
        first_servers = {order_of(group)[0] for _ in range(4)}

    assert orders == [[B, A]] * 4
    assert had_healthy
    assert first_servers == {A, B}


async def test_a_server_that_accepts_connections_without_responding_is_not_tried():
    servers = Servers(a=httpx2.ReadTimeout("silent"), b=200)
    async with checked(servers, A, B) as group:
        await wait_until(lambda: servers.checks["a"] > backends.HANGS_AFTER)
        hanging = order_of(group)
        servers.behaviour["a"] = 503
        before = servers.checks["a"]
        await wait_until(lambda: servers.checks["a"] > before + 1)
        responding = order_of(group)

    assert hanging == [B]
    assert responding == [B, A]


async def test_a_server_is_still_tried_after_one_check_without_a_response():
    servers = Servers(a=httpx2.ReadTimeout("busy"))
    group = Backends([A], servers, role="test")
    orders = []
    for result in (httpx2.ReadTimeout("busy"), 200, httpx2.ReadTimeout("busy"), httpx2.ReadTimeout("busy")):
        servers.behaviour["a"] = result
        await group._check(group._backends[0])
        orders.append(order_of(group))

    assert orders == [[A], [A], [A], []]
