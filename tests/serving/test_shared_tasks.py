"""A result is loaded once for all concurrent requests, cached for a time, and evicted if there are too many."""

import asyncio
import math

import pytest

from dagmaster.errors import Unavailable
from dagmaster.serving.shared_tasks import SharedTasks


class CountingLoader:
    def __init__(self, error: Exception | None = None) -> None:
        self.count = 0
        self.error = error

    async def __call__(self) -> int:
        self.count += 1
        number = self.count
        await asyncio.sleep(0)
        if self.error:
            raise self.error
        return number


async def test_concurrent_requests_share_one_load():
    load, tasks = CountingLoader(), SharedTasks()

    assert await asyncio.gather(*(tasks.get("x", load) for _ in range(30))) == [1] * 30


@pytest.mark.parametrize(("seconds", "later"), [(2.0, 2), (math.inf, 1)])
async def test_a_result_is_kept_for_its_time(seconds, later):
    now, load = 0.0, CountingLoader()
    tasks = SharedTasks(clock=lambda: now)
    await tasks.get("x", load, seconds)

    now = 1.9
    assert await tasks.get("x", load, seconds) == 1
    now = 2.0
    assert await tasks.get("x", load, seconds) == later


async def test_a_failed_load_is_not_cached():
    load, tasks = CountingLoader(Unavailable("away")), SharedTasks()

    for _ in range(3):
        with pytest.raises(Unavailable):
            await tasks.get("x", load)

    assert load.count == 3


async def test_a_cancelled_request_does_not_cancel_the_others():
    load, tasks = CountingLoader(), SharedTasks()
    cancelled = asyncio.create_task(tasks.get("x", load))
    other = asyncio.create_task(tasks.get("x", load))
    await asyncio.sleep(0)

    cancelled.cancel()

    assert await other == 1


async def test_the_least_recently_used_result_is_evicted_first():
    load, tasks = CountingLoader(), SharedTasks(max_kept=2)
    for key in ("a", "b", "a", "c"):
        await tasks.get(key, load)

    assert [await tasks.get(key, load) for key in ("a", "c")] == [1, 3]
    assert await tasks.get("b", load) == 4
