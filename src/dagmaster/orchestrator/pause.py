"""Waiting between two runs of a background task."""

import asyncio


async def pause(requested: asyncio.Event, seconds: float) -> None:
    """Wait until the next run is due, or requested earlier. That run serves the request, so the event is cleared."""
    try:
        async with asyncio.timeout(seconds):
            await requested.wait()
    except TimeoutError:
        pass
    requested.clear()
