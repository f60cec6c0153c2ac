"""What the drivers of all peers share: how they are called, and the protocol between the benchmark and a driver.

    python PEER_peer.py install DSN     create the peer's tables in an empty database
    python PEER_peer.py work DSN        run one worker until SIGTERM; prints "ready"
    python PEER_peer.py drive DSN       read requests as lines of JSON, and print the seconds of each

Requests: {"do": "fan", "count": N}    prepare, N no-op tasks, fan-in; every result stored
          {"do": "chain", "count": 1}  a chain of 20 steps by itself
          {"do": "jobs", "count": N}   N jobs of three steps, submitted at once
Only the standard library is used here: each peer has an environment of its own.
"""

import json
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

CHAIN_STEPS, JOB_STEPS = 20, 3
END_POLL_SECONDS = 0.01  # between polls for the end, the same for all peers


class Driver(Protocol):
    """Submits work. Each call returns when every result is stored."""

    async def fan(self, count: int) -> None: ...

    async def chain(self, count: int) -> None: ...

    async def jobs(self, count: int) -> None: ...


@dataclass(frozen=True)
class Peer:
    install: Callable[[str], Awaitable[None]]
    work: Callable[[str], Awaitable[None]]
    drive: Callable[[str, Callable[[Driver], Awaitable[None]]], Awaitable[None]]
    run: Callable[[Any], Any]


def pause(left: int) -> float:
    """Seconds until the next poll, if polling is expensive: longer while much work is left."""
    return min(0.2, max(END_POLL_SECONDS, left / 20_000))


def ready() -> None:
    print("ready", flush=True)


async def serve(driver: Driver) -> None:
    """Respond to requests until there are no more."""
    ready()
    for line in sys.stdin:
        request = json.loads(line)
        started = time.perf_counter()
        await getattr(driver, request["do"])(request["count"])
        print(json.dumps({"seconds": time.perf_counter() - started}), flush=True)


def main(peer: Peer) -> None:
    what, dsn = sys.argv[1:]
    peer.run({"install": peer.install, "work": peer.work, "drive": lambda dsn: peer.drive(dsn, serve)}[what](dsn))
