"""The handlers that ship for tests and demonstrations [H3]."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from dagmaster.database.ledger import ChildResult
from dagmaster.errors import HandlerFailed, Unavailable, UnfitData
from dagmaster.handlers import calling, examples, shipped
from dagmaster.handlers.context import GiveBack
from dagmaster.handlers.registry import Registry, installed


def a_context(**fields: Any) -> Any:
    defaults = {
        "node_id": "n",
        "attempt": 1,
        "retry_count": 0,
        "params": {},
        "cancelled": False,
        "shutting_down": False,
    }
    return SimpleNamespace(**(defaults | fields), progress=lambda *_a, **_k: None, give_back=GiveBack)


async def call(name: str, params: dict[str, Any], **fields: Any) -> Any:
    plan = calling.plan(Registry(shipped.REGISTRATIONS)[name])
    context = a_context(**fields)
    context.params = parsed = plan.parse(params)
    value = plan.call(context, parsed)
    return calling.accept(await value if asyncio.iscoroutine(value) else value).output


def test_h3_every_shipped_handler_resolves_as_it_is_registered() -> None:
    for registration in installed().values():
        assert calling.plan(registration).function.__name__ == registration.target.split(":")[1]


async def test_h3_echo_hello_size_chunk_and_list_answer_as_documented() -> None:
    assert await call("echo", {"a": [1]}) == {"echoed_params": {"a": [1]}}
    assert await call("hello_world", {}) == {"message": "Hello, World!"}
    assert await call("hello_world", {"name": "Ada"}) == {"message": "Hello, Ada!"}
    assert await call("size_check", {"size_mb": 150}) == {"size_mb": 150.0, "is_large": True, "category": "large"}
    assert (await call("size_check", {"size_mb": 5, "threshold_mb": 5}))["category"] == "small"
    assert await call("chunk_processor", {"index": 3, "value": 21}) == {"index": 3, "value": 42}
    assert await call("chunk_processor", {"items": [1, 2, 3.5]}) == {"count": 3, "total": 6.5}
    assert await call("make_list", {"count": 3, "start": 5}) == {"items": [5, 6, 7], "count": 3}
    assert await call("noop", {"anything": 1}) is None


@pytest.mark.parametrize(
    ("blame", "error"), [("data", UnfitData), ("environment", Unavailable), ("handler", HandlerFailed)]
)
async def test_h3_fail_raises_the_error_whose_move_it_is(blame: str, error: type[Exception]) -> None:
    with pytest.raises(error, match="no good"):
        await call("fail", {"message": "no good", "blame": blame})


async def flaky(attempt: int, retry_count: int = 0, node: str = "n", rate: float = 0.5) -> bool:
    try:
        await call(
            "flaky_echo", {"failure_rate": rate, "seed": 7}, node_id=node, attempt=attempt, retry_count=retry_count
        )
    except HandlerFailed:
        return False
    return True


async def test_h3_flaky_echo_fails_the_same_attempts_for_the_same_seed_and_at_about_its_rate() -> None:
    first = [await flaky(1, node=f"n__{i}") for i in range(400)]
    again = [await flaky(1, node=f"n__{i}") for i in range(400)]

    assert first == again
    assert 150 < sum(first) < 250


async def test_h3_a_seeded_flaky_echo_succeeds_after_four_retries_at_the_latest() -> None:
    assert not await flaky(4, retry_count=3, rate=1.0)
    assert await flaky(5, retry_count=4, rate=1.0)


async def test_h3_flaky_echo_without_a_seed_is_random_and_echoes_everything() -> None:
    assert await call("flaky_echo", {"failure_rate": 0, "index": 4}) == {
        "echoed_params": {"failure_rate": 0.0, "index": 4}, "attempt": 1,
    }  # fmt: skip


@pytest.mark.parametrize("flag", ["cancelled", "shutting_down"])
async def test_e14_sleep_stops_at_its_next_check(flag: str) -> None:
    with pytest.raises(GiveBack):
        await call("sleep", {"seconds": 60}, **{flag: True})


async def test_w8_collect_results_sums_what_completed() -> None:
    async def results() -> AsyncIterator[ChildResult]:
        yield ChildResult(0, "f__0", "completed", {"value": 2})
        yield ChildResult(1, "f__1", "failed", None, "boom")
        yield ChildResult(2, "f__2", "completed", 0.5)

    assert await examples.collect_results(a_context(results=results)) == {"count": 2, "total": 2.5}
