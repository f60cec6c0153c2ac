"""The servers to which requests are forwarded, and whether they respond.

    every few seconds: GET /livez of each address ──▶ healthy, or the reason why not

Checks decide which address is tried first. Unhealthy addresses are tried last, except those that hang, which are not
tried. A server that hangs accepts connections and does not respond, so a request would wait there until its timeout. It
is still checked, and used again when it responds. With `checks_single=False` a single address is not checked.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import httpx2

from dagmaster.cancellation import cancel_and_wait
from dagmaster.client.models.gateway import OrchestratorState
from dagmaster.observe import log

CHECK_SECONDS: Final = 3.0
CONNECT_SECONDS: Final = 2.0
HANGS_AFTER: Final = 2  # checks without a response; a busy server may miss one


@dataclass(slots=True)
class Backend:
    """One address, and the result of its last check."""

    url: str
    is_healthy: bool = True  # until a check says otherwise: the first request need not wait for one
    error: str | None = None
    checked_at: float | None = None
    silent_checks: int = 0  # the last checks in a row that got a connection and no response

    @property
    def hangs(self) -> bool:
        return self.silent_checks >= HANGS_AFTER

    def state(self) -> OrchestratorState:
        ago = None if self.checked_at is None else round(time.monotonic() - self.checked_at, 1)
        return OrchestratorState(url=self.url, is_healthy=self.is_healthy, error=self.error, checked_seconds_ago=ago)

    def note_failure(self, error: Exception) -> None:
        self.is_healthy = False
        self.error = f"{type(error).__name__}: {error}"[:200]


class Backends:
    """`role` is the name of the logger."""

    def __init__(self, urls: Sequence[str], http: httpx2.AsyncClient, *, role: str, checks_single: bool = True) -> None:
        self._backends = [Backend(url.rstrip("/")) for url in urls]
        self._http = http
        self._role = role
        self._is_checked = len(self._backends) > (0 if checks_single else 1)
        self._next = 0
        self._log = log.get(role)

    def __len__(self) -> int:
        return len(self._backends)

    @contextlib.asynccontextmanager
    async def checked(self) -> AsyncIterator[None]:
        """Check the addresses in the background while the block runs."""
        if not self._is_checked:
            yield
            return
        task = asyncio.create_task(self._check_forever(), name=f"checks of {self._role}")
        try:
            yield
        finally:
            await cancel_and_wait(task)

    def states(self) -> list[OrchestratorState]:
        return [backend.state() for backend in self._backends]

    @property
    def has_healthy(self) -> bool:
        return any(backend.is_healthy for backend in self._backends)

    def candidates(self) -> Iterator[Backend]:
        """The healthy addresses, starting with a different one for each request; then the others, because their last
        check may be outdated. Addresses that hang are left out."""
        count = len(self._backends)
        self._next += 1
        order = [self._backends[(self._next + place) % count] for place in range(count)]
        yield from sorted((each for each in order if not each.hangs), key=lambda backend: not backend.is_healthy)

    async def _check_forever(self) -> None:
        while True:
            await asyncio.gather(*(self._check(backend) for backend in self._backends))
            await asyncio.sleep(CHECK_SECONDS)

    async def _check(self, backend: Backend) -> None:
        was_healthy = backend.is_healthy
        try:
            response = await self._http.get(f"{backend.url}/livez", timeout=CONNECT_SECONDS)
            backend.is_healthy = response.status_code == 200
            backend.error = None if backend.is_healthy else f"/livez responds with status {response.status_code}"
            backend.silent_checks = 0
        except httpx2.HTTPError as error:
            backend.note_failure(error)
            backend.silent_checks = backend.silent_checks + 1 if isinstance(error, httpx2.ReadTimeout) else 0
        backend.checked_at = time.monotonic()
        if was_healthy != backend.is_healthy:
            self._log.warning(
                "the health of an address changed",
                url=backend.url,
                is_healthy=backend.is_healthy,
                error=backend.error,
            )
