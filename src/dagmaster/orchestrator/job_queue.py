"""Take submissions from the Service Bus queue JOB_QUEUE_NAME. Any number of orchestrators compete for its messages.

    message ──▶ a row of dag_job_messages, committed ──▶ the message is completed ──▶ a job, or a dead letter

A message that is delivered again finds its row, or the job that it became (`message_id`), and creates no second one. A
message that cannot become a job is a dead letter in the database, with its reason; operators see it and can requeue it.
A message that cannot even be stored, or that is older than a day and was never stored, is dead-lettered by the broker.

While the database is unavailable, no more messages are received: each delivery counts, and the broker dead-letters a
message after the maximum delivery count.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, Protocol

import orjson
import psycopg

from dagmaster import faults
from dagmaster.errors import DagmasterError, InvalidRequest, NotAllowed, NotFound, Unavailable
from dagmaster.observe import log
from dagmaster.transports.servicebus_client import BrokerMessage, QueueReceiver, backoff_seconds

MAX_AT_ONCE: Final = 50
WAIT_SECONDS: Final = 5.0
MAX_AGE: Final = timedelta(days=1)
MAX_BYTES: Final = 262_144
_MAX_ID_LENGTH = 64
# PostgreSQL cannot store the value, such as a NUL character. After any other error the message stays locked and is
# delivered again.
_MESSAGE_ERRORS = (psycopg.DataError, ValueError, RecursionError)
# The database does not respond, accepts no writes, refuses the user, or does not exist: no message can be stored.
_DATABASE_ERRORS = (Unavailable, NotAllowed, NotFound)
_log = log.get("job-queue")


class MessageLedger(Protocol):
    async def enqueue_message(self, message_id: str, queue: str, body: Any) -> bool: ...

    async def has_message(self, message_id: str, queue: str) -> bool: ...


@dataclass(slots=True)
class JobQueueCounters:
    received: int = 0
    repeated: int = 0
    dead_letters: int = 0  # in the broker
    errors: int = 0


class RefusedMessage(Exception):
    """A message that is dead-lettered by the broker."""

    def __init__(self, reason: str, description: str) -> None:
        super().__init__(description)
        self.reason = reason


@dataclass
class JobQueue:
    receiver: QueueReceiver
    ledger: MessageLedger
    submitter: str | None = None  # replaces `submitted_by`
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    counters: JobQueueCounters = field(default_factory=JobQueueCounters)

    def __post_init__(self) -> None:
        self.error: str | None = None
        self._failures = 0
        self._failed_call: Callable[[], Awaitable[bool]] | None = None  # the call that the database did not carry out

    async def run(self) -> None:
        """Run until cancelled. No failure ends it."""
        try:
            while True:
                await self._run_once_safely()
        finally:
            await self.receiver.close()

    def stats(self) -> dict[str, Any]:
        return {**asdict(self.counters), "error": self.error}

    async def run_once(self, wait_seconds: float = WAIT_SECONDS) -> int:
        """Take the messages that wait; returns how many were received. A call that the database did not carry out, such
        as storing a submission, is repeated first. Its message is delivered again when its lock has expired, and then
        finds its row."""
        if self._failed_call:
            await self._call(self._failed_call)
        # The first message is received alone, so that it need not wait for others; then more, if there are any.
        messages = await self.receiver.receive(1, wait_seconds)
        if messages:
            messages += await self.receiver.receive(MAX_AT_ONCE, 0.05)
        self.counters.received += len(messages)
        stored = []
        for message in messages:
            try:
                await self._store(message)
            except RefusedMessage as refusal:
                await self._dead_letter(message, refusal)
            else:
                stored.append(message)
        faults.reach("relay.after-store")
        if stored:
            await self.receiver.complete(stored)
        return len(messages)

    async def _store(self, message: BrokerMessage) -> None:
        queue, body = self.receiver.queue, self._body_of(message)
        try:
            message_id = _id_of(message, body, queue)
            if self._is_old(message):
                await self._require_stored(message_id)
                is_new = False
            else:
                is_new = await self._call(partial(self.ledger.enqueue_message, message_id, queue, body))
        except _MESSAGE_ERRORS as error:
            raise RefusedMessage("Malformed", f"the message cannot be stored: {error}") from error
        self.counters.repeated += not is_new

    async def _require_stored(self, message_id: str) -> None:
        """After a long outage, a message that was stored is delivered again when it is old."""
        if not await self._call(partial(self.ledger.has_message, message_id, self.receiver.queue)):
            raise RefusedMessage("Expired", "the message waited for more than 24 hours")

    async def _call(self, call: Callable[[], Awaitable[bool]]) -> bool:
        """Call the ledger. If the database does not carry it out, the call is repeated before more is received."""
        self._failed_call = None
        try:
            return await call()
        except _DATABASE_ERRORS:
            self._failed_call = call
            raise

    def _is_old(self, message: BrokerMessage) -> bool:
        return message.enqueued_at is not None and self.now() - message.enqueued_at > MAX_AGE

    def _body_of(self, message: BrokerMessage) -> Any:
        """The body as JSON. If it is not JSON, its text: that becomes a dead letter, because it is no submission."""
        raw = message.body
        if len(raw) > MAX_BYTES:
            raise RefusedMessage("TooLarge", f"the message has {len(raw)} bytes; at most {MAX_BYTES} are allowed")
        try:
            body = orjson.loads(raw)
        except orjson.JSONDecodeError:
            return raw.decode(errors="replace").replace("\0", "\N{REPLACEMENT CHARACTER}")
        if self.submitter is not None and isinstance(body, dict):
            body["submitted_by"] = self.submitter
        return body

    async def _dead_letter(self, message: BrokerMessage, refusal: RefusedMessage) -> None:
        _log.error("a submission is dead-lettered by the broker", reason=refusal.reason, why=str(refusal))
        self.counters.dead_letters += 1
        await self.receiver.dead_letter(message, refusal.reason, str(refusal))

    async def _run_once_safely(self) -> None:
        try:
            await self.run_once()
        except Exception as error:
            await self._back_off(error)
        else:
            self._failures, self.error = 0, None

    async def _back_off(self, error: Exception) -> None:
        self.counters.errors += 1
        if self._failures == 0:
            log_failure = _log.error if isinstance(error, InvalidRequest) else _log.warning
            hint = error.hint if isinstance(error, DagmasterError) else None
            log_failure("submissions cannot be taken from Service Bus; trying again", error=str(error), hint=hint)
        self.error = str(error)
        seconds = backoff_seconds(error, self._failures)
        self._failures += 1
        await asyncio.sleep(seconds)


def _id_of(message: BrokerMessage, body: Any, queue: str) -> str:
    """The producer's id of the submission or of the message; without one, a hash of its place in the queue."""
    in_body = body.get("message_id") if isinstance(body, dict) else None
    given_id = in_body if isinstance(in_body, str) and in_body else message.message_id
    if given_id:
        return given_id if len(given_id) <= _MAX_ID_LENGTH else hashlib.sha256(given_id.encode()).hexdigest()
    place = f"{queue}/{message.sequence_number}/{message.enqueued_at}"
    return hashlib.sha256(place.encode()).hexdigest()
