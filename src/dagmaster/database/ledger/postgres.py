"""The ledger on PostgreSQL, for every user. Every statement is in `sql/`."""

from datetime import datetime

from dagmaster.database.ledger.orchestrator import PostgresOrchestration
from dagmaster.database.ledger.payloads import PostgresPayloads
from dagmaster.database.ledger.submission import PostgresSubmissions
from dagmaster.database.ledger.worker import PostgresWork


class PostgresLedger(PostgresSubmissions, PostgresOrchestration, PostgresWork, PostgresPayloads):
    async def now(self) -> datetime:
        return (await self._fetch("clock", {}))[0].now  # type: ignore[no-any-return]
