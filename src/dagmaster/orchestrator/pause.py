"""Waiting between two turns of a background task."""

import asyncio


async def pause(wanted: asyncio.Event, seconds: float) -> None:
    """Wait until the next turn is due, or requested earlier. That turn serves the request, so the event is cleared."""
    try:
        async with asyncio.timeout(seconds):
            await wanted.wait()
    except TimeoutError:
        pass
    wanted.clear()
