"""Waiting between two turns of a background task."""

import asyncio


async def pause(wanted: asyncio.Event, seconds: float) -> None:
    """Wait until the next turn is due, or wanted earlier. The wish is fulfilled by that turn, so it is cleared."""
    try:
        async with asyncio.timeout(seconds):
            await wanted.wait()
    except TimeoutError:
        pass
    wanted.clear()
