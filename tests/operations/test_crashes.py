"""A process that dies while it changes an asset has made all changes or none, and the request can be repeated."""

import asyncio
import os
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from dagmaster import faults
from dagmaster.assets.states import Clearance, Exposure
from dagmaster.client.models.assets import PlatformRequest
from dagmaster.client.models.layers import LayerMetadataRequest
from dagmaster.database.assets.keys import KeyChange, KeyStore
from dagmaster.errors import Conflict, InvalidRequest
from dagmaster.local.embedded import Cluster
from dagmaster.operations.assets.approve import approve
from dagmaster.operations.assets.clear import clear
from dagmaster.operations.assets.delete import delete
from dagmaster.operations.assets.expose import expose
from dagmaster.operations.assets.metadata import edit_metadata
from dagmaster.operations.assets.platforms import add_platform
from dagmaster.operations.assets.reject import reject
from dagmaster.operations.assets.unpublish import unpublish
from dagmaster.operations.keys import create_first_key
from tests.conftest import fresh_database
from tests.operations.kit import ADA, BOB, Kit, opened

pytestmark = pytest.mark.requirement("A3", "A4", "A5")

CRASHED = 137
VARYING_VALUES = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"  # ids of jobs and requests
    r"|'content_hash': '[0-9a-f]{64}'"  # the kit derives it from the job
    r"|'key_id': '\w+'|'pgstac:base_item': \d+"
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?([+-]\d\d(:?\d\d)?|Z)?"
)
# Sequences have gaps, keys are random, and the search words of a job contain its id.
VARYING_COLUMNS = {
    "document",
    "event_id",
    "sequence",
    "key_id",
    "secret_hash",
    "secret",
    "claim_token",
    "etag",
    "key",
    "pgstac_updated_at",
}

Call = Callable[[Kit], Awaitable[Any]]


async def _first_key(kit: Kit) -> None:
    async with KeyStore(kit.dsn) as keys:
        await create_first_key(keys, KeyChange("test"))


async def _process(kit: Kit) -> None:
    rows = await kit.rows(
        "SELECT r.version_ordinal, r.revision, r.job_id FROM dagapp.asset_revisions r "
        "JOIN dagapp.dag_jobs j USING (job_id) WHERE j.status = 'pending'"
    )
    for row in rows:
        await kit.write_documents("dem", row["version_ordinal"], row["revision"], tiles=2)
        await kit.end_job(row["job_id"])


# The steps in the life of an asset: the call, the transactions in which it may die, and whether it can be repeated.
LIFE: list[tuple[str, Call, tuple[str, ...]]] = [
    ("the first key is created", _first_key, ("create_key",)),
    (
        "a platform is added",
        lambda kit: add_platform(
            kit.store,
            request=PlatformRequest(platform_id="hub", display_name="Hub", required_refs=["id"]),
            caller=ADA,
        ),
        ("change_platform",),
    ),
    ("a file is submitted", lambda kit: kit.submit("dem", request_id="r-1"), ("submit_asset",)),
    ("its job ends", _process, ()),
    ("it is rejected", lambda kit: reject(kit.store, "dem", 0, caller=BOB, reason="blurred"), ("change_asset",)),
    (
        "it is submitted again",
        lambda kit: kit.submit("dem", content=b"sharper", request_id="r-2"),
        ("submit_asset",),
    ),
    ("its job ends again", _process, ()),
    (
        "it is approved",
        lambda kit: approve(kit.store, "dem", 0, caller=BOB, clearance=Clearance.OUO),
        ("prepare_catalogue", "change_asset"),
    ),
    ("it is cleared", lambda kit: clear(kit.store, "dem", Clearance.PUBLIC, caller=BOB), ("change_asset",)),
    (
        "all versions are exposed",
        lambda kit: expose(kit.store, "dem", Exposure.ALL_VERSIONS, caller=BOB),
        ("change_asset",),
    ),
    (
        "its metadata is edited",
        lambda kit: edit_metadata(
            kit.store, "dem", "raster", request=LayerMetadataRequest(title="Heights"), caller=BOB
        ),
        ("edit_layer",),
    ),
    ("it is unpublished", lambda kit: unpublish(kit.store, "dem", 0, caller=BOB, reason="recalled"), ("change_asset",)),
    ("it is deleted", lambda kit: delete(kit.store, "dem", None, caller=BOB, reason="obsolete"), ("change_asset",)),
]


def test_a_process_that_dies_while_it_changes_an_asset_has_changed_all_or_nothing(
    cluster: Cluster, catalog_template: str, tmp_path: Path
) -> None:
    with (
        fresh_database(cluster, catalog_template) as without_crashes,
        fresh_database(cluster, catalog_template) as with_crashes,
    ):
        for name, call, transactions in LIFE:
            assert _run(call, without_crashes, tmp_path) == 0, name
            expected = _state(without_crashes)
            for transaction in transactions:
                before, after = faults.around(transaction)
                untouched = _rows(with_crashes)

                assert _run(call, with_crashes, tmp_path, before) == CRASHED, f"{name}: it did not crash at {before}"
                assert _rows(with_crashes) == untouched, f"{name}: some changes were kept after a crash at {before}"
                assert _run(call, with_crashes, tmp_path, after) == CRASHED, f"{name}: it did not crash at {after}"
            if transactions:
                assert _difference(with_crashes, expected) == [], f"{name}: some changes are missing"
            # The caller does not know whether the change was made, and repeats the request.
            assert _run(call, with_crashes, tmp_path, is_repeated=bool(transactions)) == 0, name
            assert _difference(with_crashes, expected) == [], f"{name}: the repetition changed something"


def test_the_crash_tests_cover_all_transactions_on_assets() -> None:
    passed = {name for _, _, transactions in LIFE for name in transactions}

    assert passed == {
        "submit_asset",
        "change_asset",
        "change_platform",
        "prepare_catalogue",
        "create_key",
        "edit_layer",
    }


def _run(call: Call, dsn: str, folder: Path, point: str | None = None, *, is_repeated: bool = False) -> int:
    """Make the call in a separate process, and return its exit code."""

    async def run() -> None:
        async with opened(dsn, folder) as kit:
            try:
                await call(kit)
            except (Conflict, InvalidRequest):
                if not is_repeated:  # a repetition may be refused, because the change was already made
                    raise

    child = os.fork()
    if not child:
        try:
            faults.arm(point)
            asyncio.run(run())
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    _wait_for_sessions(dsn)
    return os.waitstatus_to_exitcode(status)


def _wait_for_sessions(dsn: str) -> None:
    """Wait until the database server has noticed that the process has ended."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        deadline = time.monotonic() + 10
        others = (
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
            "AND backend_type = 'client backend'"
        )
        while connection.execute(others).fetchone():
            assert time.monotonic() < deadline, "the session of the process is still there"
            time.sleep(0.005)


def _rows(dsn: str) -> dict[str, list[str]]:
    """All stored rows."""
    with psycopg.connect(dsn, row_factory=dict_row) as connection:
        tables = connection.execute(
            "SELECT format('%I.%I', schemaname, tablename) AS name FROM pg_tables WHERE schemaname = 'dagapp' "
            "OR (schemaname, tablename) IN (('pgstac', 'items'), ('pgstac', 'collections')) ORDER BY 1"
        ).fetchall()
        return {
            table["name"]: [
                str(row["r"])
                for row in connection.execute(f"SELECT to_jsonb(t) AS r FROM {table['name']} t ORDER BY t::text")
            ]
            for table in tables
        }


def _difference(dsn: str, expected: dict[str, list[str]]) -> list[tuple[str, list[str]]]:
    state = _state(dsn)
    return [(table, sorted({*state[table]} ^ {*rows})) for table, rows in expected.items() if state[table] != rows]


def _state(dsn: str) -> dict[str, list[str]]:
    """All stored rows, without times and random values."""
    with psycopg.connect(dsn, row_factory=dict_row) as connection:
        return {
            table: sorted(
                VARYING_VALUES.sub(
                    "…", str({key: value for key, value in row["r"].items() if key not in VARYING_COLUMNS})
                )
                for row in connection.execute(f"SELECT to_jsonb(t) AS r FROM {table} t")
            )
            for table in _rows(dsn)
        }
