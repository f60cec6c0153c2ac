"""A process logs that the schema of its database belongs to another version."""

import asyncio

import psycopg
import pytest

from tests.engine.processes import fleet

pytestmark = pytest.mark.requirement("D4")


@pytest.mark.parametrize("role", ["orchestrator", "worker"])
async def test_a_process_logs_the_version_of_a_schema_that_is_not_its_own(database, tmp_path, role):
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE dagapp.schema_info SET fingerprint = 'from-the-future', software_version = '99.1.0'")
    counts = {"orchestrators": int(role == "orchestrator"), "workers": int(role == "worker")}
    async with fleet(database, tmp_path, **counts) as running:
        (process,) = running.processes
        async with asyncio.timeout(20):
            while "another version" not in (text := process.log.read_text()):
                await asyncio.sleep(0.05)
        is_alive = process.exit_code is None

    (line,) = [line for line in text.splitlines() if "another version" in line]
    for part in ("from-the-future", "99.1.0", "needed", "db migrate", "retried until it is migrated"):
        assert part in line
    assert is_alive


async def test_a_process_logs_nothing_about_a_schema_of_its_own_version(database, tmp_path):
    async with fleet(database, tmp_path, orchestrators=1, workers=0) as running:
        (process,) = running.processes
        await asyncio.sleep(2)
        text = process.log.read_text()

    assert "schema" not in text
