"""Helpers for tests of callbacks: rows as the platform writes them, and a store whose clock the test sets."""

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from dagmaster.database.callbacks.store import PostgresCallbacks
from dagmaster.database.connect import Connection

URL = "https://hooks.example/ddh"


class ClockedCallbacks(PostgresCallbacks):
    """A store of callbacks whose database sessions use the time that the test sets."""

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn, "test-callbacks")
        self.now = datetime.now(UTC) + timedelta(seconds=1)

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    @asynccontextmanager
    async def _transaction(self, name: str) -> AsyncIterator[Connection]:
        async with super()._transaction(name) as connection:
            await connection.execute("SELECT set_config('dagapp.fake_now', %s, false)", [self.now.isoformat()])
            yield connection


class Stage:
    """Writes rows as the platform does, and reads the callbacks that follow."""

    def __init__(self, dsn: str) -> None:
        self.connection = psycopg.connect(dsn, autocommit=True, row_factory=dict_row)
        self._event_ids = itertools.count(1_000_000)

    def rows(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        cursor = self.connection.execute(sql, values)
        return cursor.fetchall() if cursor.description else []

    def insert(self, table: str, **values: Any) -> None:
        places = ", ".join(["%s"] * len(values))
        columns = ", ".join(values)
        self.rows(f"INSERT INTO dagapp.{table} ({columns}) VALUES ({places})", *values.values())

    def record_callbacks(
        self, *request_ids: str, status: str = "approved", url: str = URL, platform_id: str = "ddh"
    ) -> None:
        """The callbacks of one event, as the triggers record them."""
        event_id = next(self._event_ids)
        for request_id in request_ids:
            values = {"request_id": request_id, "platform_id": platform_id, "status": status}
            self.insert("callback_events", **values, url=url, asset_event_id=event_id)

    def job(self, **columns: Any) -> UUID:
        job_id = uuid4()
        self.rows(
            "INSERT INTO dagapp.dag_workflow_definitions (definition_hash, workflow_id, workflow_version, body)"
            " VALUES ('h', 'w', '1', '{}') ON CONFLICT DO NOTHING"
        )
        fixed = {"workflow_id": "w", "workflow_version": "1", "definition_hash": "h", "input_params": Jsonb({})}
        self.insert("dag_jobs", job_id=job_id, status="pending", **fixed, **columns)
        return job_id

    def set_job_status(self, job_id: UUID, status: str, *, resumed: bool = False) -> None:
        raised = ", resume_count = resume_count + 1" if resumed else ""
        self.rows(f"UPDATE dagapp.dag_jobs SET status = %s{raised} WHERE job_id = %s", status, job_id)

    def callbacks(self) -> list[dict[str, Any]]:
        return self.rows("SELECT * FROM dagapp.callback_events ORDER BY sequence")

    def statuses(self) -> list[tuple[str, str]]:
        return [(row["request_id"], row["status"]) for row in self.callbacks()]

    def deliveries(self) -> list[dict[str, Any]]:
        return self.rows(
            "SELECT d.*, e.request_id FROM dagapp.callback_deliveries d"
            " JOIN dagapp.callback_events e USING (callback_id) ORDER BY e.sequence, d.number"
        )
