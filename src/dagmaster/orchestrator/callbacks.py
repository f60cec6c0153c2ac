"""Deliver callbacks: the status of a request is posted to its callback_url.

    notification or poll ──▶ claim callbacks that are due, each with a lease and a record of the attempt
                         ──▶ check the URL again, sign, post (orchestrator/webhook)
                         ──▶ record the response; tried again later, delivered, or given up (callbacks/schedule)

It runs as a task in each orchestrator's process, with a connection of its own; any number of them share the work. If
the process dies between the post and the record, the lease expires and another process posts the same callback again,
with the same id: receivers get every callback at least once.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final
from uuid import UUID, uuid4

import orjson

from dagmaster import faults
from dagmaster.callbacks.payload import payload_of
from dagmaster.callbacks.schedule import CallbackState, Consequence, DeliveryAttempt, consequence_of
from dagmaster.callbacks.signing import sign
from dagmaster.callbacks.url import check_callback_url
from dagmaster.cancellation import cancel_and_wait
from dagmaster.database.callbacks.rows import CallbackLimits, ClaimedCallback
from dagmaster.database.callbacks.store import PostgresCallbacks
from dagmaster.errors import InvalidRequest, Unavailable
from dagmaster.observe import log, traces
from dagmaster.orchestrator import webhook
from dagmaster.orchestrator.pause import pause
from dagmaster.settings import Settings

AT_ONCE: Final = 16
PER_RECEIVER: Final = 4
LEASE_SECONDS: Final = 60.0  # far more than an attempt may take
MIN_INTERVAL_SECONDS: Final = 0.2  # the shortest time between two runs, however many jobs end
IDLE_POLLS: Final = 5  # without pending callbacks, the time between polls is this many times longer
LAST_SECONDS: Final = 2.0  # for attempts that are under way when the process is stopped
_log = log.get("callbacks")

Send = Callable[..., Awaitable[int]]


@dataclass(slots=True)
class CallbackCounters:
    delivered: int = 0
    retried: int = 0
    failed: int = 0
    errors: int = 0


@dataclass
class CallbackSender:
    settings: Settings
    store: PostgresCallbacks
    owner_id: UUID = field(default_factory=uuid4)  # the id of the orchestrator, which sets it
    send: Send = webhook.send
    random: Random = field(default_factory=Random)

    def __post_init__(self) -> None:
        self.counters = CallbackCounters()
        self._under_way: dict[asyncio.Task[None], ClaimedCallback] = {}
        self._is_run_requested = asyncio.Event()

    async def run(self) -> None:
        """Run until cancelled. Attempts that are under way then get LAST_SECONDS to end."""
        try:
            while True:
                seconds = await self._run_once_safely()
                await pause(self._is_run_requested, seconds, min_seconds=MIN_INTERVAL_SECONDS)
        finally:
            await self._wind_down()

    async def close(self) -> None:
        await self.store.close()

    def wake(self) -> None:
        """Run soon: there may be callbacks to deliver."""
        self._is_run_requested.set()

    def stats(self) -> dict[str, Any]:
        counted = {name: getattr(self.counters, name) for name in CallbackCounters.__dataclass_fields__}
        return {**counted, "under_way": len(self._under_way)}

    async def run_once(self) -> bool:
        """Begin attempts for callbacks that are due. Returns whether any callback is pending."""
        free = AT_ONCE - len(self._under_way)
        if not free:
            return True
        limits = CallbackLimits(LEASE_SECONDS, PER_RECEIVER, self.settings.callback_attempts)
        claimed = await self.store.claim(self.owner_id, free, limits)
        for callback in claimed.callbacks:
            task = asyncio.create_task(self._deliver_safely(callback), name="callback")
            self._under_way[task] = callback
            task.add_done_callback(self._forget)
        return claimed.are_pending

    async def settle(self) -> None:
        """Wait until no attempt is under way."""
        while self._under_way:
            await asyncio.wait(list(self._under_way))

    async def _run_once_safely(self) -> float:
        """Returns the seconds until the next run, unless it is requested earlier."""
        try:
            are_pending = await self.run_once()
        except Exception as error:  # no failure may end the sender
            self.counters.errors += 1
            log.failure(_log, "callbacks cannot be claimed; trying again", error)
            are_pending = True
        return self.settings.orchestrator_poll_interval * (1 if are_pending else IDLE_POLLS)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._under_way.pop(task, None)
        self.wake()  # another attempt may begin, also for the next callback of the same request

    async def _deliver_safely(self, callback: ClaimedCallback) -> None:
        try:
            await self._deliver(callback)
        except Exception as error:  # the lease expires, and it is tried again
            self.counters.errors += 1
            log.failure(_log, "the outcome of a callback could not be recorded", error, **_facts(callback))

    async def _deliver(self, callback: ClaimedCallback) -> None:
        attempt = await self._post_traced(callback)
        faults.reach("callback.after-post")
        consequence = consequence_of(
            attempt, callback.tries, max_tries=self.settings.callback_attempts, random=self.random
        )
        if await self.store.finish(callback, attempt, consequence):
            self._note(callback, attempt, consequence)

    async def _post_traced(self, callback: ClaimedCallback) -> DeliveryAttempt:
        facts: dict[str, Any] = {
            "attempt": callback.number,
            "callback_id": str(callback.callback_id),
            "platform": callback.platform_id,
        }
        with traces.span(
            "deliver callback", parent=callback.traceparent, kind="client", needs_parent=True, **facts
        ) as span:
            attempt = await self._post(callback)
            span.set(**{"http.response.status_code": attempt.status_code})
            if attempt.error:
                span.fail("callback.not-delivered")
            return attempt

    async def _post(self, callback: ClaimedCallback) -> DeliveryAttempt:
        payload = payload_of(callback.request_id, callback.status, callback.job_id, self.settings.callback_result_url)
        body = orjson.dumps(payload)
        allow_private = self.settings.allow_private_webhooks
        try:
            check_callback_url(callback.url, allow_private=allow_private)
            if not callback.secrets:
                raise InvalidRequest(f"the platform {callback.platform_id} does not exist", code="platform.not-found")
            headers = sign(callback.secrets, str(callback.callback_id), int(callback.now.timestamp()), body)
            headers = {**headers, **traces.headers()}
            return DeliveryAttempt(await self.send(callback.url, body, headers, allow_private=allow_private))
        except InvalidRequest as error:
            return DeliveryAttempt(error=error.message, is_final=True)
        except Unavailable as error:
            return DeliveryAttempt(error=error.message)
        except Exception as error:
            _log.error("a callback failed unexpectedly", exc_info=error, **_facts(callback))
            return DeliveryAttempt(error=f"unexpected {type(error).__name__}")

    def _note(self, callback: ClaimedCallback, attempt: DeliveryAttempt, consequence: Consequence) -> None:
        facts = {**_facts(callback), "status": attempt.status_code, "error": attempt.error}
        match consequence.state:
            case CallbackState.DELIVERED:
                self.counters.delivered += 1
                _log.info("callback delivered", **_facts(callback))
            case CallbackState.PENDING:
                self.counters.retried += 1
                _log.warning("callback not accepted; trying again", **facts, seconds=consequence.delay_seconds)
            case CallbackState.FAILED:
                self.counters.failed += 1
                _log.error("callback given up", **facts)

    async def _wind_down(self) -> None:
        if self._under_way:
            await asyncio.wait(list(self._under_way), timeout=LAST_SECONDS)
        interrupted = dict(self._under_way)
        await cancel_and_wait(*interrupted)
        for callback in interrupted.values():
            await self._give_back(callback)

    async def _give_back(self, callback: ClaimedCallback) -> None:
        """Release the callback, so that another instance need not wait until the lease expires."""
        attempt = DeliveryAttempt(error="the orchestrator was stopped before a response arrived")
        try:
            await self.store.finish(callback, attempt, Consequence(CallbackState.PENDING, 0.0))
        except Exception as error:
            log.failure(_log, "a callback could not be released; its lease will expire", error, **_facts(callback))


def _facts(callback: ClaimedCallback) -> dict[str, Any]:
    return {
        "callback_id": str(callback.callback_id),
        "request_id": callback.request_id,
        "platform": callback.platform_id,
        "attempt": callback.number,
    }
