"""The guide to recovery: a dump of a platform is restored, and the platform continues."""

import asyncio
import os
import subprocess

import psycopg
import pytest

from dagmaster.database.maintenance.history import verify
from dagmaster.database.schema.gateway_role import ensure_gateway_role
from dagmaster.local.embedded import find_binaries
from dagmaster.operations.schema import deploy_schema, migrate_schema
from tests.engine.processes import fleet

pytestmark = pytest.mark.requirement("M5")

ONE = """
workflow_id: one
name: One
version: 1
nodes:
  begin: {type: start, next: work}
  work: {handler: echo, next: done}
  done: {type: end}
"""


async def test_a_dump_is_restored_and_jobs_continue(catalog_database, empty_database, tmp_path):
    dump, programs = tmp_path / "dagmaster.dump", find_binaries()
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
    async with fleet(catalog_database, tmp_path / "before", orchestrators=1, workers=1) as running:
        assert await running.wait(await running.submit(ONE)) == ["completed"]

    subprocess.run(
        [programs / "pg_dump", "--format=custom", f"--file={dump}", catalog_database], check=True, timeout=60
    )
    restore = (
        f"{programs}/pg_restore --no-owner --file=- {dump} | sed '/set_config(.search_path/d' | "
        f"{programs}/psql --quiet --output=/dev/null --set=ON_ERROR_STOP=1 --single-transaction '{empty_database}'"
    )
    options = {**os.environ, "PGOPTIONS": "-c search_path=pgstac,public"}
    subprocess.run(["bash", "-o", "pipefail", "-c", restore], env=options, check=True, timeout=100)
    status = await asyncio.to_thread(deploy_schema, empty_database, has_catalog=True)
    migrated = await asyncio.to_thread(migrate_schema, empty_database)

    assert status.is_current
    assert migrated.changes == []
    report = await verify(empty_database)
    assert report.jobs_checked == 1
    async with fleet(empty_database, tmp_path / "after", orchestrators=1, workers=1) as running:
        assert await running.wait(await running.submit(ONE)) == ["completed"]
    with psycopg.connect(ensure_gateway_role(empty_database, with_password=True)) as connection:
        ((jobs,),) = connection.execute(
            "SELECT count(*) FROM dagapp_gateway.jobs WHERE status = 'completed'"
        ).fetchall()
    assert jobs == 2
