"""Waiting between two runs of a background task."""

import asyncio


async def pause(requested: asyncio.Event, seconds: float, *, min_seconds: float = 0.0) -> None:
    """Wait until the next run is due, or requested earlier. That run serves the request, so the event is cleared.

    `min_seconds` is the shortest time between two runs, however often one is requested.
    """
    if min_seconds:
        await asyncio.sleep(min(min_seconds, seconds))
    try:
        async with asyncio.timeout(seconds):
            await requested.wait()
    except TimeoutError:
        pass
    requested.clear()
