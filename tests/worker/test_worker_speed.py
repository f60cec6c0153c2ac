"""The overhead of the worker's loop, with a ledger that takes almost no time. Run as a script to print it."""

import asyncio
import time

from worker_fakes import Bench, a_task, until

from dagmaster.handlers.registry import Registration, Registry


async def noop_seconds(count: int, slots: int = 100) -> tuple[float, float]:
    """Seconds for a number of no-op tasks, and the part of them that is spent in the fake ledger."""
    # Light handlers only: otherwise the fake ledger searches its whole queue for heavy ones.
    registry = Registry([Registration("noop", "dagmaster.handlers.examples:noop")])
    bench = Bench([a_task("noop", f"n{i}") for i in range(count)], registry, worker_slots=slots)
    exchange = bench.ledger._exchange
    in_ledger = 0.0

    async def timed(*args: object, **kwargs: object) -> object:
        nonlocal in_ledger
        before = time.process_time()
        response = await exchange(*args, **kwargs)  # type: ignore[arg-type]
        in_ledger += time.process_time() - before
        return response

    started = time.process_time()
    running = asyncio.create_task(bench.worker.run())
    bench.ledger._exchange = timed  # type: ignore[assignment,method-assign]
    await until(lambda: len(bench.ledger.reports) == count, 60)
    seconds = time.process_time() - started
    bench.worker.stop()
    await running
    return seconds, in_ledger


async def test_the_loop_adds_little_time_per_task() -> None:
    seconds, in_ledger = await noop_seconds(5000)

    assert (seconds - in_ledger) / 5000 < 200e-6, "the budget is 60 µs; this leaves room for a busy machine"


if __name__ == "__main__":
    for slots in (20, 100, 200):
        seconds, in_ledger = asyncio.run(noop_seconds(50_000, slots))
        mine = (seconds - in_ledger) / 50_000 * 1e6
        print(f"{slots} slots: {50_000 / seconds:,.0f} tasks/s, {mine:.1f} µs per task outside of the ledger")
