"""The services that routes of the gateway use: reads, forwarding, keys and limits."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Annotated, Final

import orjson
from fastapi import Depends, Request
from prometheus_client.core import Metric

from dagmaster.access.keys import StoredKey
from dagmaster.client.connection import authorization
from dagmaster.client.limits import PREFIX
from dagmaster.database.connect import require_address
from dagmaster.database.token_login import enable
from dagmaster.errors import InvalidRequest, Unavailable
from dagmaster.gateway.forward import ForwardedRequest, Forwarder
from dagmaster.gateway.reads import GatewayReads
from dagmaster.observe.metrics import gauge
from dagmaster.settings import Settings
from dagmaster.web.authentication import LOCAL_ADMIN, Authentication, authentication_of, authentication_running
from dagmaster.web.limits import RateLimit

MAX_REPORTED: Final = 1000  # keys in one request


class GatewayKeys:
    """Looks up keys in the view of their hashes. Their use is reported to an orchestrator, in batches."""

    def __init__(self, reads: GatewayReads, forwarder: Forwarder, own_key: str | None) -> None:
        self._reads = reads
        self._forwarder = forwarder
        self._own_key = own_key
        self._used: set[str] = set()

    async def find(self, key_id: str) -> StoredKey | None:
        return await self._reads.key(key_id)

    async def has_keys(self) -> bool:
        return True  # orchestrators warn if there is none

    def note_use(self, key_id: str) -> None:
        if self._own_key:
            self._used.add(key_id)

    async def record_uses(self) -> None:
        """Report the uses since the last report. Uses that cannot be reported now are reported later."""
        used, self._used = self._used, set()
        if not used:
            return
        reported = sorted(used)[:MAX_REPORTED]
        request = ForwardedRequest(
            "POST",
            f"{PREFIX}/keys/uses",
            {**authorization(self._own_key), "Content-Type": "application/json"},
            body=orjson.dumps({"key_ids": reported}),
            is_repeatable=True,
        )
        try:
            response = await self._forwarder.send(request)
            if response.status_code != HTTPStatus.OK:
                raise Unavailable(
                    f"the orchestrator responded with status {response.status_code}", code="gateway.key-uses"
                )
        except BaseException:
            self._used |= used
            raise
        self._used |= used.difference(reported)


@dataclass
class GatewayServices:
    settings: Settings
    dsn: str
    reads: GatewayReads = field(init=False)
    forwarder: Forwarder = field(init=False)
    workers: Forwarder = field(init=False)
    limit: RateLimit = field(init=False)
    authentication: Authentication = field(init=False)

    def __post_init__(self) -> None:
        settings = self.settings
        self.reads = GatewayReads(self.dsn)
        self.forwarder = Forwarder(settings.orchestrator_urls, response_seconds=settings.gateway_timeout_sec)
        self.workers = Forwarder(settings.worker_urls, role="worker", response_seconds=settings.gateway_timeout_sec)
        self.limit = RateLimit(
            settings.gateway_rate_per_second,
            settings.gateway_burst,
            code="gateway.too-many-requests",
            hint="send fewer requests; callbacks make polling unnecessary",
        )
        keys = GatewayKeys(self.reads, self.forwarder, settings.gateway_key)
        self.authentication = authentication_of(settings, keys, LOCAL_ADMIN)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with (
            self.reads,
            self.forwarder.running(),
            self.workers.running(),
            authentication_running(self.authentication),
        ):
            yield

    def metrics(self) -> Iterable[Metric]:
        meaning = "1 if requests can be forwarded to an orchestrator"
        yield gauge("dagmaster_gateway_can_forward", meaning, self.forwarder.can_forward)


def database_of(settings: Settings) -> str:
    """The DSN of the gateway's role, or an error that says which setting is missing."""
    if not settings.gateway_database_url:
        raise InvalidRequest(
            "the gateway needs a database role of its own",
            code="gateway.no-database",
            hint="run `dagmaster db gateway-role` where the database can be administered, and set GATEWAY_DATABASE_URL "
            "to the connection string that it prints",
        )
    if not settings.orchestrator_urls:
        raise InvalidRequest(
            "the gateway has no orchestrator to forward requests to",
            code="gateway.no-orchestrators",
            hint="set ORCHESTRATOR_URLS, for example http://10.0.0.5:8000,http://10.0.0.6:8000",
        )
    require_address(settings.gateway_database_url, "GATEWAY_DATABASE_URL")
    enable(settings)
    return settings.gateway_database_url


async def services_of(request: Request) -> GatewayServices:
    """A coroutine although it does not wait: FastAPI would run a plain function in a thread."""
    services: GatewayServices = request.app.state.services
    return services


Services = Annotated[GatewayServices, Depends(services_of)]
