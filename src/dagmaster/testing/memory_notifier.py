"""Notifications between the loops of one process: the in-memory implementation of `Notifier`."""

import asyncio
from collections.abc import Iterable


class MemoryExchange:
    """Connects the notifiers of one process or of a simulation."""

    def __init__(self) -> None:
        self.notifiers: list[MemoryNotifier] = []

    def notifier(self, *topics: str) -> "MemoryNotifier":
        notifier = MemoryNotifier(self, frozenset(topics))
        self.notifiers.append(notifier)
        return notifier


class MemoryNotifier:
    """A notifier that delivers at once, without a database."""

    def __init__(self, exchange: MemoryExchange, topics: frozenset[str]) -> None:
        self._exchange = exchange
        self._topics = topics
        self._received: set[str] = set()
        self._wake = asyncio.Event()

    def notify(self, *topics: str) -> None:
        for notifier in self._exchange.notifiers:
            notifier.receive(topics)

    def receive(self, topics: Iterable[str]) -> None:
        if watched := self._topics.intersection(topics):
            self._received |= watched
            self._wake.set()

    async def wait(self, timeout_seconds: float) -> frozenset[str]:
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._wake.wait()
        except TimeoutError:
            return frozenset()
        topics, self._received = frozenset(self._received), set()
        self._wake.clear()
        return topics

    async def close(self) -> None:
        self._exchange.notifiers.remove(self)
