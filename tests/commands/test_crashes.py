"""A process that dies in a command has made either all changes or none, and the command can be run again."""

import asyncio
import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from dagmaster import faults
from dagmaster.local.embedded import Cluster
from dagmaster.operations.assets.unpublish import unpublish
from tests.commands.kit import Commands
from tests.conftest import fresh_database
from tests.operations.kit import BOB, opened

pytestmark = pytest.mark.requirement("A6", "O2")

CRASHED = 137
TABLES = (
    "dagapp.layer_catalog",
    "dagapp.layer_metadata",
    "dagapp.external_layers",
    "dagapp.cache_generations",
    "dagapp.asset_events",
    "pgstac.collections",
    "pgstac.items",
)
CLOCKS = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?\+\d\d:\d\d")
Call = Callable[[Commands], Awaitable[Any]]


async def prepare(commands: Commands) -> None:
    await commands.kit.publish("dem", tiles=1, clearance="public")
    await commands.edit(title="Heights")


def command(name: str, **inputs: Any) -> Call:
    return lambda commands: commands.run(name, **inputs)


# In the order of an asset's life: each call, with the transactions in which it may die.
LIFE: list[tuple[Call, tuple[str, ...]]] = [
    (command("metadata.publish", asset="dem"), ("publish_layer",)),
    (command("metadata.publish_external", asset="dem"), ("publish_layer", "external_database", "external_layers")),
    (command("asset.reindex", asset="dem"), ("publish_layer",)),
    (command("cache.invalidate", wait_seconds=0), ("invalidate_cache",)),
    (
        command("assets.review_many", action="clear", clearance_level="public", entries=[{"asset": "dem"}]),
        ("record_command",),
    ),
    (command("metadata.unpublish", asset="dem"), ("publish_layer", "external_database", "external_layers")),
]


def test_a_process_that_dies_in_a_command_has_changed_all_or_nothing_and_a_repetition_completes_it(
    cluster: Cluster, catalog_template: str, tmp_path: Path
):
    with fresh_database(cluster, catalog_template) as dsn, fresh_database(cluster, "template0") as external:
        assert run(prepare, dsn, external, tmp_path) == 0
        for call, transactions in LIFE:
            for transaction in transactions:
                before, after = faults.around(transaction)
                untouched = rows(dsn, external)
                assert run(call, dsn, external, tmp_path, before) == CRASHED, f"it did not crash at {before}"
                if transaction == transactions[0]:
                    assert rows(dsn, external) == untouched, f"some changes were kept after a crash at {before}"
                assert run(call, dsn, external, tmp_path, after) == CRASHED, f"it did not crash at {after}"
            assert run(call, dsn, external, tmp_path) == 0
            completed = state(dsn, external)
            assert run(call, dsn, external, tmp_path) == 0
            assert state(dsn, external) == completed
            assert due(dsn) == []


def test_an_asset_that_is_withdrawn_while_its_external_write_fails_is_also_withdrawn_externally(
    cluster: Cluster, catalog_template: str, tmp_path: Path
):
    async def withdraw(commands: Commands) -> None:
        await unpublish(commands.kit.store, "dem", caller=BOB)

    publish = command("metadata.publish_external", asset="dem")
    with fresh_database(cluster, catalog_template) as dsn, fresh_database(cluster, "template0") as external:
        assert run(prepare, dsn, external, tmp_path) == 0
        assert run(publish, dsn, external, tmp_path, "external_database.after-commit") == CRASHED
        assert len(rows(dsn, external)["dagmaster_public.layer_catalog"]) == 1

        assert run(withdraw, dsn, external, tmp_path) == 0
        assert due(dsn) != []
        assert run(command("metadata.unpublish", asset="dem"), dsn, external, tmp_path) == 0

        assert rows(dsn, external)["dagmaster_public.layer_catalog"] == []
        assert due(dsn) == []


def run(call: Call, dsn: str, external: str, folder: Path, point: str | None = None) -> int:
    """Make the call in a separate process, and return its exit code."""

    async def act() -> None:
        async with opened(dsn, folder) as kit:
            await call(Commands(kit, external))

    child = os.fork()
    if not child:
        try:
            faults.arm(point)
            asyncio.run(act())
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def rows(dsn: str, external: str) -> dict[str, list[str]]:
    with psycopg.connect(dsn, row_factory=dict_row) as own, psycopg.connect(external, row_factory=dict_row) as other:
        stored = {table: _rows(own, table) for table in TABLES}
        table_row = other.execute("SELECT to_regclass('dagmaster_public.layer_catalog') AS relation").fetchone()
        table = "dagmaster_public.layer_catalog"
        return {**stored, table: _rows(other, table) if table_row and table_row["relation"] else []}


def _rows(connection: psycopg.Connection[Any], table: str) -> list[str]:
    return [str(row["r"]) for row in connection.execute(f"SELECT to_jsonb(t) AS r FROM {table} t ORDER BY t::text")]


def state(dsn: str, external: str) -> dict[str, list[str]]:
    """All stored rows, without times, counters, and the events that each run adds."""
    with psycopg.connect(dsn) as connection:
        due_rows = connection.execute("SELECT layer, is_wanted, due_at IS NULL FROM dagapp.external_layers").fetchall()
    counted = ("dagapp.asset_events", "dagapp.external_layers", "dagapp.cache_generations")
    kept = {table: lines for table, lines in rows(dsn, external).items() if table not in counted}
    return {**{table: [CLOCKS.sub("", row) for row in lines] for table, lines in kept.items()}, "due": [str(due_rows)]}


def due(dsn: str) -> list[Any]:
    with psycopg.connect(dsn) as connection:
        return connection.execute("SELECT layer FROM dagapp.external_layers WHERE due_at IS NOT NULL").fetchall()
