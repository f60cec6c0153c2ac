"""The records of callbacks. Triggers insert them (sql/schema/96_callbacks.sql), in the transaction of the change that
causes them; orchestrators deliver them."""

from datetime import datetime
from typing import Annotated, ClassVar
from uuid import UUID

from pydantic import Field

from dagmaster.callbacks.schedule import CallbackState
from dagmaster.records import ForeignKey, Index, Record, Table

MAX_ERROR_LENGTH = 300


class CallbackEvent(Record):
    """A callback: the status that is sent, and the state of its delivery. Its id is the `webhook-id` of every attempt.

    A callback has either an `asset_event_id`, the event that changed the status, or a `job_id` with its `resume_count`.
    Callbacks of a request (or job) to the same URL are delivered in the order of `sequence`. `tries` counts attempts
    since it became pending, `attempts` all of them. While it is being delivered, `lease_until` is in the future, and
    `next_attempt_at` is the same time.
    """

    table: ClassVar[Table] = Table(
        "callback_events",
        key=("callback_id",),
        indexes=(
            Index("callback_events_sequence", ("sequence",), unique=True),
            Index(
                "callback_events_once",
                ("request_id", "asset_event_id", "status"),
                unique=True,
                where="asset_event_id IS NOT NULL",
            ),
            Index(
                "callback_events_one_per_job_status",
                ("job_id", "resume_count", "status"),
                unique=True,
                where="job_id IS NOT NULL",
            ),
            Index("callback_events_due", ("receiver", "next_attempt_at", "sequence"), where="state = 'pending'"),
            Index("callback_events_by_request", ("request_id", "sequence")),
            Index("callback_events_by_platform", ("platform_id", "sequence")),
            Index("callback_events_ended", ("ended_at", "sequence"), where="ended_at IS NOT NULL"),
            Index("callback_events_undelivered", ("state", "sequence"), where="state <> 'delivered'"),
        ),
        checks={
            "source": "(asset_event_id IS NULL) <> (job_id IS NULL) AND (job_id IS NULL) = (resume_count IS NULL)",
            "due": "(state = 'pending') = (next_attempt_at IS NOT NULL)",
            "ended": "(state = 'pending') = (ended_at IS NULL)",
        },
        defaults={
            "callback_id": "gen_random_uuid()",
            "sequence": "nextval('dagapp.callback_sequence')",
            "next_attempt_at": "dagapp.clock()",
            "created_at": "dagapp.clock()",
        },
        computed={"receiver": "lower(coalesce(substring(url from '^[A-Za-z]+://([^/?#]*)'), ''))"},
        types={"attempts": "integer", "tries": "integer", "resume_count": "integer"},
        retired=("callback_events_one_per_end",),
    )
    private: ClassVar[frozenset[str]] = frozenset({"url"})

    callback_id: UUID
    sequence: int
    request_id: Annotated[str, Field(min_length=1, max_length=64)]
    platform_id: Annotated[str, Field(min_length=1, max_length=64)]
    status: str
    url: Annotated[str, Field(max_length=512)]
    receiver: str
    asset_event_id: int | None = None
    job_id: UUID | None = None
    resume_count: int | None = None
    state: CallbackState = CallbackState.PENDING
    attempts: int = 0
    tries: int = 0
    next_attempt_at: datetime | None = None
    lease_until: datetime | None = None
    created_at: datetime
    ended_at: datetime | None = None


class CallbackSubscriber(Record):
    """A job or a request that has a URL for each kind of callback (`subscriber` of its submission). Its `callback_url`
    receives callbacks about success, `in_progress_uri` the callback that processing has begun, `failed_uri` all others.
    A callback whose URL is not set is not sent."""

    table: ClassVar[Table] = Table(
        "callback_subscribers",
        key=("kind", "subject"),
        checks={"kind": "kind IN ('job', 'request')"},
    )
    private: ClassVar[frozenset[str]] = frozenset({"in_progress_uri", "failed_uri"})

    kind: str
    subject: str
    in_progress_uri: Annotated[str, Field(max_length=512)] | None = None
    failed_uri: Annotated[str, Field(max_length=512)] | None = None


class CallbackDelivery(Record):
    """One attempt to deliver a callback. Without `finished_at` it is in progress, or its process died: whether the
    receiver got the callback is unknown. The body of the response is not stored."""

    table: ClassVar[Table] = Table(
        "callback_deliveries",
        key=("callback_id", "number"),
        foreign_keys=(ForeignKey(("callback_id",), "callback_events", ("callback_id",)),),
        defaults={"started_at": "dagapp.clock()"},
        types={"number": "integer", "status_code": "integer"},
    )

    callback_id: UUID
    number: int
    owner_id: UUID
    started_at: datetime
    finished_at: datetime | None = None
    status_code: int | None = None
    error: Annotated[str, Field(max_length=MAX_ERROR_LENGTH)] | None = None
    next_attempt_at: datetime | None = None


class PlatformSecret(Record):
    """A secret that signs the callbacks of a platform. The current one has no `expires_at`; a replaced one signs too,
    until it expires."""

    table: ClassVar[Table] = Table(
        "platform_secrets",
        key=("secret_id",),
        foreign_keys=(ForeignKey(("platform_id",), "platforms", ("platform_id",)),),
        indexes=(
            Index("platform_secrets_by_platform", ("platform_id", "created_at")),
            Index("platform_secrets_one_current", ("platform_id",), unique=True, where="expires_at IS NULL"),
        ),
        defaults={"secret_id": "gen_random_uuid()", "created_at": "dagapp.clock()"},
    )
    private: ClassVar[frozenset[str]] = frozenset({"secret"})

    secret_id: UUID
    platform_id: Annotated[str, Field(min_length=1, max_length=64)]
    secret: str
    created_at: datetime
    created_by: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    expires_at: datetime | None = None


RECORDS: tuple[type[Record], ...] = (CallbackEvent, CallbackSubscriber, CallbackDelivery, PlatformSecret)
