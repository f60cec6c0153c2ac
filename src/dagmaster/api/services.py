"""The services that routes use: the app creates them when it starts, and closes them when it stops."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, Request

from dagmaster.api.change_follower import ChangeFollower
from dagmaster.api.estimates import RunHistory
from dagmaster.api.event_follower import EventFollower
from dagmaster.api.legacy.forward import OldSystem
from dagmaster.api.legacy.sharing import Shares
from dagmaster.api.maps import MapForwarder
from dagmaster.api.task_watch import TaskWatch
from dagmaster.database.assets.keys import KeyStore
from dagmaster.database.assets.layer_store import LayerStore
from dagmaster.database.assets.uploads import UploadStore
from dagmaster.database.ledger.postgres import PostgresLedger
from dagmaster.database.notify.notifier import JOBS, RESULTS
from dagmaster.database.notify.postgres import PostgresNotifier
from dagmaster.database.reads.api import ApiReads
from dagmaster.library.workflows import WorkflowLibrary
from dagmaster.operations.uploads import UploadOperations, UploadRules
from dagmaster.orchestrator.loop import Orchestrator
from dagmaster.settings import Settings
from dagmaster.storage.zones import Storage, open_storage
from dagmaster.transports.postgres import topics_of
from dagmaster.web.authentication import (
    LOCAL_ADMIN,
    Authentication,
    CredentialAuthentication,
    authentication_of,
    authentication_running,
)
from dagmaster.web.limits import RateLimit

if TYPE_CHECKING:
    from dagmaster.web.oidc import OidcSignIn

LEDGERS = 3
WORKER_LEDGERS = 4  # for exchanges of workers without database access; as many again for payloads and checkpoints
LEASE_LEDGERS = 2  # for their leases and heartbeats, which must not wait for an exchange
# The limit of failed attempts to sign in, for each address. A key cannot be guessed; the limit keeps the load small.
SIGN_INS_PER_SECOND, SIGN_INS_AT_ONCE = 0.2, 10


class Ledgers:
    """A small pool of ledgers. Each has one connection, opened at its first use, and serves one request at a time."""

    def __init__(self, dsn: str, notifier: PostgresNotifier, role: str = "api-ledger", size: int = LEDGERS) -> None:
        self._all = [PostgresLedger(dsn, role, notifier) for _ in range(size)]
        self._free: asyncio.LifoQueue[PostgresLedger] = asyncio.LifoQueue()
        for ledger in self._all:
            self._free.put_nowait(ledger)

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[PostgresLedger]:
        ledger = await self._free.get()
        try:
            yield ledger
        finally:
            self._free.put_nowait(ledger)

    async def close(self) -> None:
        for ledger in self._all:
            await ledger.close()


@dataclass
class ApiServices:
    """`orchestrator` is the orchestrator of this process, if it has one. Health checks include it, and the API uses its
    workflows, which it may reload. Without an orchestrator, `own_library` is used."""

    settings: Settings
    dsn: str
    own_library: WorkflowLibrary
    handlers: Mapping[str, Any]
    orchestrator: Orchestrator | None = None
    heartbeat_seconds: float = 15.0
    reads: ApiReads = field(init=False)
    ledgers: Ledgers = field(init=False)
    exchange_ledgers: Ledgers = field(init=False)
    lease_ledgers: Ledgers = field(init=False)
    payload_ledgers: Ledgers = field(init=False)
    task_watch: TaskWatch = field(init=False)
    sending_outputs: Counter[str] = field(init=False, default_factory=Counter)  # by caller
    assets: LayerStore = field(init=False)
    upload_store: UploadStore = field(init=False)
    notifier: PostgresNotifier = field(init=False)
    events: EventFollower = field(init=False)
    changes: ChangeFollower = field(init=False)
    run_history: RunHistory = field(init=False)
    keys: KeyStore = field(init=False)
    authentication: Authentication = field(init=False)
    sign_in_limit: RateLimit = field(init=False)
    oidc: "OidcSignIn | None" = field(init=False)
    old_system: OldSystem | None = field(init=False, default=None)
    shares: Shares = field(init=False)
    maps: MapForwarder = field(init=False)

    def __post_init__(self) -> None:
        self.shares = Shares.read(self.settings.legacy_shares)
        self.maps = MapForwarder(self.settings.serving_urls)
        self.sign_in_limit = RateLimit(
            SIGN_INS_PER_SECOND,
            SIGN_INS_AT_ONCE,
            code="auth.too-many-attempts",
            hint="wait some seconds before the next attempt",
        )
        self.keys = KeyStore(self.dsn, "api-keys")
        self.authentication = authentication_of(self.settings, self.keys, LOCAL_ADMIN, self.keys.sessions)
        self.oidc = self._oidc()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep the services open while the block runs. The database need not be available: each request then reports
        the outage."""
        self.notifier = PostgresNotifier(self.dsn, [JOBS, RESULTS])
        self.reads = ApiReads(self.dsn, pooler_dsn=self.settings.database_pooler_url)
        self.ledgers = Ledgers(self.dsn, self.notifier)
        self.exchange_ledgers = Ledgers(self.dsn, self.notifier, "api-work", WORKER_LEDGERS)
        self.lease_ledgers = Ledgers(self.dsn, self.notifier, "api-lease", LEASE_LEDGERS)
        self.payload_ledgers = Ledgers(self.dsn, self.notifier, "api-payload", WORKER_LEDGERS)
        self.task_watch = self._task_watch()
        self.assets = LayerStore(self.dsn, notifier=self.notifier)
        self.upload_store = UploadStore(self.dsn, role="uploads", size=4)
        self.events = EventFollower(self.reads, self.notifier)
        self.old_system = self._old_system()
        self.run_history = RunHistory(self.reads)
        self.changes = ChangeFollower(self.reads, self.alive_within)
        await self.reads.open()
        self.notifier.start()
        self.events.start()
        self.changes.start()
        try:
            async with self.keys, authentication_running(self.authentication), self.maps.running():
                yield
        finally:
            await self.task_watch.close()
            await self.changes.close()
            await self.events.close()
            await self.notifier.close()
            for ledgers in (self.ledgers, self.exchange_ledgers, self.lease_ledgers, self.payload_ledgers):
                await ledgers.close()
            await self.assets.close()
            await self.upload_store.close()
            await self.reads.close()
            if self.old_system is not None:
                await self.old_system.close()

    def _old_system(self) -> OldSystem | None:
        if self.settings.legacy_url is None:
            return None
        return OldSystem(
            self.settings.legacy_url,
            key=self.settings.legacy_key,
            timeout_seconds=self.settings.legacy_timeout_sec,
            is_read_only=self.settings.legacy_read_only,
        )

    def _task_watch(self) -> TaskWatch:
        topics = topics_of(self.settings.known_queues)

        def open_notifier() -> PostgresNotifier:
            notifier = PostgresNotifier(self.dsn, topics)
            notifier.start()
            return notifier

        return TaskWatch(self.reads, topics, open_notifier, self.settings.worker_poll_interval)

    @property
    def library(self) -> WorkflowLibrary:
        return self.orchestrator.library if self.orchestrator else self.own_library

    def _oidc(self) -> "OidcSignIn | None":
        if not isinstance(self.authentication, CredentialAuthentication) or self.settings.oidc_client_id is None:
            return None
        from dagmaster.web.oidc import OidcSignIn  # imports the library for tokens

        return OidcSignIn.of(self.settings, self.authentication.tokens)

    @cached_property
    def storage(self) -> Storage:
        """The storage with the sources of submissions."""
        return open_storage(self.settings)

    @cached_property
    def uploads(self) -> UploadOperations:
        return UploadOperations(self.upload_store, self.storage, UploadRules.of(self.settings))

    @property
    def alive_within(self) -> float:
        """Seconds without a heartbeat after which an instance counts as dead."""
        return self.settings.orphan_threshold_sec


async def services_of(request: Request) -> ApiServices:
    """A coroutine although it does not wait: FastAPI would run a plain function in a thread."""
    services: ApiServices = request.app.state.services
    return services


Services = Annotated[ApiServices, Depends(services_of)]
