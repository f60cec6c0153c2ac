"""The commands of the recovery guide: restoring a dump, and a point in time."""

import asyncio
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from dagmaster.database.catalog.pgstac import deploy_catalog
from dagmaster.database.schema.deploy import deploy
from dagmaster.local.embedded import Cluster
from dagmaster.operations.verify_storage import verify_storage
from dagmaster.storage import Storage
from tests.deploy.guide import block_with, run
from tests.engine.processes import fleet
from tests.operations.kit import opened
from tests.operations.test_verify_storage import NOW, published

pytestmark = [pytest.mark.requirement("M5"), pytest.mark.timeout(240)]

ONE = """
workflow_id: one
name: One
version: 1
nodes:
  begin: {type: start, next: work}
  work: {handler: echo, next: done}
  done: {type: end}
"""
MEMORY = Path("/dev/shm")


def run_platform(commands: str, dsn: str, folder: Path) -> str:
    platform = {"DATABASE_URL": dsn, "STORAGE_FOLDER": str(folder), "DAGMASTER_DATA": str(folder / "data")}
    return run(commands, folder, **platform)


async def test_a_dump_is_restored_and_jobs_continue(catalog_database, empty_database, tmp_path):
    await publish(catalog_database, tmp_path, "dem")
    await run_a_job(catalog_database, tmp_path / "before")

    await asyncio.to_thread(run, block_with("pg_dump"), tmp_path, DATABASE_URL=catalog_database)
    await asyncio.to_thread(run, block_with("pg_restore"), tmp_path, DATABASE_URL=empty_database)
    await asyncio.to_thread(run_platform, block_with("dagmaster db migrate"), empty_database, tmp_path)
    output = await asyncio.to_thread(run_platform, block_with("dagmaster verify-storage"), empty_database, tmp_path)

    assert "1 job," in output
    assert "compared with 5 references: clean" in output
    await run_a_job(empty_database, tmp_path / "after")


@pytest.fixture
def archiving(tmp_path: Path) -> Iterator[Cluster]:
    """A server that archives its WAL as described in the guide, below its own folder."""
    cluster = new_cluster("archiving", tmp_path)
    try:
        with cluster._lock():
            cluster._initialise()
        for name in ("wal", "wal-after-recovery"):
            as_server(cluster, f"mkdir -p {cluster.folder}/backup/{name}")
        with (cluster.data / "postgresql.conf").open("a") as file:
            file.write(in_folder(cluster, block_with("archive_mode")))
        cluster.start()
        with (cluster.folder / "pg_hba.conf").open("a") as file:
            file.write("local replication all trust\n")
        execute(cluster.dsn, "SELECT pg_reload_conf()")
        deploy(cluster.dsn)
        deploy_catalog(cluster.dsn)
        yield cluster
    finally:
        cluster.remove()


def new_cluster(name: str, folder: Path) -> Cluster:
    identity = f"test-{name}-{os.getpid()}"
    cluster = Cluster.at(None if os.geteuid() == 0 else folder / name, name=identity, fast=True)
    in_memory = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 1e9
    return replace(cluster, folder=MEMORY / f"dagmaster-{identity}") if in_memory else cluster


def in_folder(cluster: Cluster, commands: str) -> str:
    return commands.replace("/backup", f"{cluster.folder}/backup")


def as_server(cluster: Cluster, commands: str, **environment: str) -> None:
    run(commands, Path("/"), cluster._as_user(), **environment)


def execute(dsn: str, statement: str) -> object:
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(statement.encode()).fetchone()
    return row and row[0]


async def publish(dsn: str, folder: Path, dataset: str) -> Storage:
    """Publish a dataset, and delete its job, which did not really run and has no complete history."""
    async with opened(dsn, folder) as kit:
        await published(kit, dataset)
        for table in ("dag_job_events", "dag_node_states", "dag_job_search", "dag_jobs"):
            await kit.execute(f"DELETE FROM dagapp.{table} WHERE job_id IS NOT NULL")
        return kit.storage


async def run_a_job(dsn: str, folder: Path) -> None:
    folder.mkdir()
    async with fleet(dsn, folder, orchestrators=1, workers=1) as running:
        assert await running.wait(await running.submit(ONE)) == ["completed"]


def test_a_database_is_restored_to_a_time_between_two_approvals(archiving, tmp_path):
    storage = asyncio.run(publish(archiving.dsn, tmp_path, "first"))
    as_server(archiving, in_folder(archiving, block_with("pg_basebackup")), DATABASE_URL=archiving.dsn)
    asyncio.run(publish(archiving.dsn, tmp_path, "second"))
    asyncio.run(run_a_job(archiving.dsn, tmp_path / "jobs"))
    between = str(execute(archiving.dsn, "SELECT clock_timestamp()::text"))
    asyncio.run(publish(archiving.dsn, tmp_path, "third"))
    archiving.stop()  # a clean stop archives the remaining WAL

    restored = new_cluster("restored", tmp_path)
    try:
        restored._make_folder(restored.folder)
        commands = in_folder(archiving, block_with("recovery.signal"))
        as_server(restored, commands, PGDATA=str(restored.data), target_time=between)
        restored.start()
        wait_until_promoted(restored.dsn)
        output = run_platform(block_with("dagmaster verify-storage"), restored.dsn, tmp_path)
        report = asyncio.run(verify_storage(restored.dsn, storage, reads_content=True, min_age=NOW))
        datasets = execute(restored.dsn, "SELECT array_agg(DISTINCT collection ORDER BY collection) FROM pgstac.items")
    finally:
        restored.remove()

    assert datasets == ["first", "second"]
    assert "1 job," in output
    assert report.served == 0
    assert report.objects_read == 6
    newer = {(each.path or "").partition("/third")[0]: each.message for each in report.findings}
    assert set(newer) == {"silver/cogs", "silver/mosaics", "bronze"}
    assert report.counts == {"unreferenced": 5}
    assert newer["silver/cogs"].endswith("its dataset does not exist")


def wait_until_promoted(dsn: str) -> None:
    until = time.monotonic() + 60
    while execute(dsn, "SELECT pg_is_in_recovery()"):
        assert time.monotonic() < until
        time.sleep(0.05)
