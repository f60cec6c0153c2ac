"""Azure Service Bus through its SDK: a client, senders that stay open, receivers, and the translation of errors.

The SDK is imported when the first client is opened, so that only processes with TRANSPORT=servicebus need it. Each of
its calls has a time limit of our own: some of them hang if a server does not behave as Azure does. After any failure
a sender or receiver is closed, and the next call opens a new one.

    permanent   InvalidRequest   the queue does not exist, access is denied, the message is too large: someone must act
    transient   Unavailable      everything else: tried again later
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from dagmaster.errors import DagmasterError, InvalidRequest, Unavailable
from dagmaster.extras import missing_extra
from dagmaster.managed_identity import IdentityEndpoint, ManagedIdentity
from dagmaster.settings import Settings

if TYPE_CHECKING:
    import httpx2
    from azure.servicebus import ServiceBusMessageBatch, ServiceBusReceivedMessage
    from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender

PUBLIC_CLOUD: Final = "servicebus.windows.net"
RESOURCE: Final = "https://servicebus.azure.net"
# How long a message of a task is kept. It is for workers that are idle when the task is queued; a worker that becomes
# free later claims without a message.
MESSAGE_SECONDS: Final = 60.0
SEND_SECONDS: Final = 20.0
OPEN_SECONDS: Final = 20.0  # for the connection and the token; in addition to the time that a call may wait
SETTLE_SECONDS: Final = 20.0
CLOSE_SECONDS: Final = 5.0
MAX_BATCH_BYTES: Final = 262_144  # no message and no batch is larger, whatever the tier would allow
BACKOFF_SECONDS: Final = (0.5, 30.0)
REFUSED_SECONDS: Final = 60.0  # after an error that only a person can correct
_MAX_MESSAGE_ID_LENGTH: Final = 128
_SETTLED_TOGETHER: Final = 32  # if there are at least this many messages, they are settled at the same time
TOO_LARGE: Final = "servicebus.message-too-large"  # an error of the message alone, not of its queue


class _AccessToken(NamedTuple):
    token: str
    expires_on: int


class IdentityCredential:
    """The managed identity as the SDK requires it: an asynchronous token credential."""

    def __init__(self, identity: ManagedIdentity) -> None:
        self._identity = identity
        self._http: httpx2.AsyncClient | None = None

    async def get_token(self, *_scopes: str, **_options: Any) -> _AccessToken:
        if self._http is None:
            import httpx2

            self._http = httpx2.AsyncClient(timeout=10)
        token, expires_at = await self._identity.token_and_expiry(self._http)
        return _AccessToken(token, int(expires_at))

    async def close(self) -> None:
        if self._http is not None:
            await self._http.aclose()

    async def __aenter__(self) -> "IdentityCredential":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def host_of(settings: Settings) -> str | None:
    """The host name of the namespace, if a managed identity is used."""
    if settings.service_bus_namespace:
        return f"{settings.service_bus_namespace}.{PUBLIC_CLOUD}"
    return settings.service_bus_fqdn


class ServiceBus:
    """The namespace. One object for each process; `close` ends all connections."""

    def __init__(self, settings: Settings) -> None:
        self._client, self._credential = _open(settings)
        self._senders: dict[str, ServiceBusSender] = {}
        self._receivers: list[QueueReceiver] = []

    async def send_tasks(self, queue: str, task_ids: Sequence[str]) -> None:
        """Send the ids of tasks in batches that the link accepts. When it returns, the broker has all of them; after an
        error it may have some."""
        with translated(queue):
            sender = self._sender(queue)
            try:
                async with asyncio.timeout(OPEN_SECONDS + SEND_SECONDS):
                    await _send_batches(sender, [_task_message(task_id) for task_id in task_ids])
            except BaseException:
                self._senders.pop(queue, None)
                await _close(sender)
                raise

    def _sender(self, queue: str) -> "ServiceBusSender":
        sender = self._senders.get(queue)
        if sender is None:
            sender = self._senders[queue] = self._client.get_queue_sender(queue)
        return sender

    def receiver(self, queue: str) -> "QueueReceiver":
        receiver = QueueReceiver(queue, self._client.get_queue_receiver)
        self._receivers.append(receiver)
        return receiver

    async def close(self) -> None:
        receivers = (receiver.close() for receiver in self._receivers)
        senders = (_close(sender) for sender in self._senders.values())
        await asyncio.gather(*receivers, *senders)
        await _close(self._client)
        if self._credential is not None:
            await self._credential.close()


class BrokerMessage:
    """A message that is locked for this process until it is settled or its lock expires."""

    __slots__ = ("_message", "_receiver")

    def __init__(self, message: "ServiceBusReceivedMessage", receiver: "ServiceBusReceiver") -> None:
        self._message = message
        self._receiver = receiver

    @property
    def body(self) -> bytes:
        body = self._message.body
        if isinstance(body, bytes):
            return body
        try:
            return b"".join(bytes(part) for part in body)
        except TypeError:  # not a body of data sections
            return str(self._message).encode()

    @property
    def message_id(self) -> str | None:
        """As text: AMQP also allows UUIDs, integers and bytes, which the SDK then returns."""
        given: object = self._message.message_id
        if isinstance(given, bytes):
            return given.decode(errors="replace")
        return None if given is None else str(given)

    @property
    def sequence_number(self) -> int | None:
        return self._message.sequence_number

    @property
    def enqueued_at(self) -> datetime | None:
        return self._message.enqueued_time_utc

    async def complete(self) -> None:
        await self._receiver.complete_message(self._message)

    async def abandon(self) -> None:
        await self._receiver.abandon_message(self._message)

    async def dead_letter(self, reason: str, description: str) -> None:
        await self._receiver.dead_letter_message(self._message, reason=reason, error_description=description[:1000])


class QueueReceiver:
    """Receives the messages of one queue, each locked until it is settled. One call at a time."""

    def __init__(self, queue: str, open_receiver: "Callable[[str], ServiceBusReceiver]") -> None:
        self.queue = queue
        self._open_receiver = open_receiver
        self._receiver: ServiceBusReceiver | None = None

    async def receive(self, count: int, wait_seconds: float) -> list[BrokerMessage]:
        """At least one message, or none after the wait."""
        async with self._closing_on_failure(OPEN_SECONDS + wait_seconds):
            if self._receiver is None:
                self._receiver = self._open_receiver(self.queue)
                await self._receiver.__aenter__()  # otherwise the link would have to be open within the wait
            receiver = self._receiver
            messages = await receiver.receive_messages(max_message_count=count, max_wait_time=wait_seconds)
            return [BrokerMessage(message, receiver) for message in messages]

    async def complete(self, messages: Sequence[BrokerMessage]) -> None:
        """Complete messages. One whose lock is lost is delivered again, which is not an error."""
        await self._settle([message.complete for message in messages])

    async def abandon(self, messages: Sequence[BrokerMessage]) -> None:
        await self._settle([message.abandon for message in messages])

    async def dead_letter(self, message: BrokerMessage, reason: str, description: str) -> None:
        await self._settle([lambda: message.dead_letter(reason, description)])

    async def close(self) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            await _close(receiver)

    async def _settle(self, calls: Sequence[Callable[[], Any]]) -> None:
        from azure.servicebus.exceptions import MessageAlreadySettled, MessageLockLostError

        async def settle(call: Callable[[], Any]) -> None:
            with suppress(MessageLockLostError, MessageAlreadySettled):
                await call()

        async with self._closing_on_failure(SETTLE_SECONDS):
            if len(calls) < _SETTLED_TOGETHER:
                for call in calls:
                    await settle(call)
            else:
                await asyncio.gather(*map(settle, calls))

    @asynccontextmanager
    async def _closing_on_failure(self, seconds: float) -> AsyncIterator[None]:
        with translated(self.queue):
            try:
                async with asyncio.timeout(seconds):
                    yield
            except BaseException:
                await self.close()
                raise


def _open(settings: Settings) -> "tuple[ServiceBusClient, IdentityCredential | None]":
    try:
        from azure.servicebus.aio import ServiceBusClient
    except ImportError as error:
        raise missing_extra(error, "azure") or error from error
    options: dict[str, Any] = {"retry_total": 0}  # dagmaster retries later by itself
    if settings.service_bus_connection_string:
        try:
            return ServiceBusClient.from_connection_string(settings.service_bus_connection_string, **options), None
        except ValueError:  # its text may contain the key
            raise InvalidRequest(
                "SERVICE_BUS_CONNECTION_STRING is not a connection string of Service Bus",
                code="servicebus.connection-string",
                hint="copy it from the shared access policies of the namespace: Endpoint=sb://…;SharedAccessKeyName=…;"
                "SharedAccessKey=…",
            ) from None
    host = host_of(settings)
    if host is None:
        raise InvalidRequest(
            "no Service Bus namespace is configured",
            code="servicebus.not-configured",
            hint="set SERVICE_BUS_FQDN, SERVICE_BUS_NAMESPACE or SERVICE_BUS_CONNECTION_STRING",
        )
    credential = IdentityCredential(ManagedIdentity(IdentityEndpoint.of(settings, RESOURCE)))
    client: Any = ServiceBusClient
    return client(host, credential, **options), credential


def _task_message(task_id: str) -> Any:
    from azure.servicebus import ServiceBusMessage

    is_short = len(task_id) <= _MAX_MESSAGE_ID_LENGTH
    return ServiceBusMessage(
        orjson.dumps({"task_id": task_id}),
        content_type="application/json",
        message_id=task_id if is_short else hashlib.sha256(task_id.encode()).hexdigest(),
        time_to_live=timedelta(seconds=MESSAGE_SECONDS),
    )


async def _send_batches(sender: "ServiceBusSender", messages: Sequence[Any]) -> None:
    from azure.servicebus.exceptions import MessageSizeExceededError

    batch = await _new_batch(sender)
    # If the server refused the link, only the link knows the reason: the SDK reports an unknown error.
    link = getattr(getattr(sender, "_handler", None), "_link", None)
    try:
        for message in messages:
            try:
                batch.add_message(message)
            except MessageSizeExceededError:
                if not len(batch):
                    raise
                await sender.send_messages(batch, timeout=SEND_SECONDS)
                batch = await _new_batch(sender)
                batch.add_message(message)
        await sender.send_messages(batch, timeout=SEND_SECONDS)
    except Exception as error:
        if _condition_of(error) in (None, "amqp:unknown-error"):
            refusal = getattr(link, "_error", None)
            if refusal is not None:
                raise refusal from error
        raise


async def _new_batch(sender: "ServiceBusSender") -> "ServiceBusMessageBatch":
    """Opens the link, which knows how large a batch may be."""
    batch = await sender.create_message_batch()
    if batch.max_size_in_bytes > MAX_BATCH_BYTES:
        batch = await sender.create_message_batch(max_size_in_bytes=MAX_BATCH_BYTES)
    return batch


async def _close(closable: Any) -> None:
    with suppress(Exception):
        async with asyncio.timeout(CLOSE_SECONDS):
            await closable.close()


class translated:  # noqa: N801 - reads as a statement
    """Translates errors of the SDK into ours."""

    def __init__(self, queue: str) -> None:
        self._queue = queue

    def __enter__(self) -> None:
        return None

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, DagmasterError):
            raise translation(self._queue, error) from error


# By the condition of the AMQP error: what happened, the code, and what to do.
_NOT_FOUND = ("does not exist", "servicebus.queue-not-found", "create the queue in the namespace")
_DENIED = (
    "denies access to this process",
    "servicebus.access-denied",
    "give its identity the roles Azure Service Bus Data Sender (orchestrators) and Data Receiver (workers, and "
    "orchestrators for JOB_QUEUE_NAME), and check that the queue exists",
)
_DISABLED = ("is disabled", "servicebus.queue-disabled", "enable the queue, or its sending and receiving")
_SIZE = ("does not accept a message of this size", TOO_LARGE, "use a shorter node id")
_PERMANENT = {
    "amqp:not-found": _NOT_FOUND,
    "amqp:unauthorized-access": _DENIED,
    "com.microsoft:auth-failed": _DENIED,
    "com.microsoft:entity-disabled": _DISABLED,
    "amqp:link:message-size-exceeded": _SIZE,
}
_PERMANENT_CLASSES = {
    "MessagingEntityNotFoundError": _NOT_FOUND,
    "ServiceBusAuthenticationError": _DENIED,
    "ServiceBusAuthorizationError": _DENIED,
    "MessagingEntityDisabledError": _DISABLED,
    "MessageSizeExceededError": _SIZE,
}


def translation(queue: str, error: Exception) -> InvalidRequest | Unavailable:
    """A permanent or a transient error. Class names are compared, so that the SDK need not be imported."""
    permanent = _PERMANENT_CLASSES.get(type(error).__name__) or _PERMANENT.get(_condition_of(error) or "")
    if permanent is _DENIED and _status_of(error) == HTTPStatus.NOT_FOUND:
        permanent = _NOT_FOUND
    if permanent is not None:
        text, code, hint = permanent
        return InvalidRequest(f"the Service Bus queue '{queue}' {text}", code=code, hint=hint, queue=queue)
    reason = "no response in time" if isinstance(error, TimeoutError) else _reason_of(error)
    return Unavailable(f"the Service Bus queue '{queue}' cannot be reached: {reason}", code="servicebus.unavailable")


def backoff_seconds(error: Exception, failures: int) -> float:
    """How long a queue is not used after an error that follows `failures` other errors in a row."""
    low, high = BACKOFF_SECONDS
    return REFUSED_SECONDS if isinstance(error, InvalidRequest) else min(high, low * 2 ** min(failures, 10))


def _condition_of(error: BaseException) -> str | None:
    condition = getattr(error, "condition", None)
    condition = getattr(condition, "value", condition)
    return condition.decode() if isinstance(condition, bytes) else condition


def _status_of(error: BaseException) -> int | None:
    """The status with which the server refused a token. For a queue that does not exist it is 404."""
    return getattr(getattr(error, "inner_exception", None), "status_code", None)


def _reason_of(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__)[:300]
