"""The disk under PostgreSQL's tables is full for a while: jobs wait, processes keep running, and nothing is lost."""

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.engine.processes import Fleet, Process, fleet

pytestmark = [pytest.mark.requirement("E27"), pytest.mark.alone]

SIZE_MB = 48
FULL_SECONDS = 2.0
WORK = """
    workflow_id: wide
    nodes:
      start: {type: start, next: spread}
      spread:
        type: fan_out
        source: NUMBERS
        max_parallel: 40
        task: {handler: sleep, params: {seconds: 0.1}, retry: {max_attempts: 0}}
        next: gather
      gather: {type: fan_in, next: end}
      end: {type: end}
    """.replace("NUMBERS", str(list(range(400))))


@pytest.fixture
def small_disk(database) -> Iterator[Path]:
    """A small file system that contains all tables and indexes of the database."""
    with psycopg.connect(database) as connection:
        (data,) = connection.execute("SHOW data_directory").fetchone() or ("",)
    if not shutil.which("mount") or os.geteuid() != 0 or not Path(data).exists():
        pytest.skip("mounting a file system requires root on the machine of the server")
    folder = Path(tempfile.mkdtemp(prefix="small-disk-"))
    folder.chmod(0o755)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MB}m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        folder.rmdir()
        pytest.skip("file systems cannot be mounted on this machine")
    name = f"small_{os.getpid()}"
    try:
        (folder / "tables").mkdir()
        os.chown(folder / "tables", Path(data).stat().st_uid, Path(data).stat().st_gid)
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(f"CREATE TABLESPACE {name} LOCATION '{folder / 'tables'}'")
            move(connection, "pg_default", name)
        yield folder
        with psycopg.connect(database, autocommit=True) as connection:
            move(connection, name, "pg_default")
            connection.execute(f"DROP TABLESPACE {name}")
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
        folder.rmdir()


def move(connection: psycopg.Connection, source: str, target: str) -> None:
    for kind in ("TABLE", "INDEX"):
        connection.execute(f"ALTER {kind} ALL IN TABLESPACE {source} SET TABLESPACE {target}")


def fill(folder: Path) -> None:
    """Fill the file system completely."""
    with (folder / "filler").open("wb", buffering=0) as filler:
        try:
            while True:
                filler.write(bytes(65536))
        except OSError:
            return


def processor_seconds(process: Process) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def finished_tasks(running: Fleet) -> int:
    (row,) = await running.rows("SELECT count(*) AS n FROM dagapp.dag_tasks WHERE status = 'succeeded'")
    return row["n"]


async def test_jobs_continue_when_a_full_disk_has_space_again(database, small_disk, tmp_path):
    async with fleet(database, tmp_path, orchestrators=1, workers=1) as running:
        jobs = await running.submit(WORK, 3)
        await running.until(lambda: finished_tasks(running), 15, "the first results")
        fill(small_disk)
        with psycopg.connect(database) as connection, pytest.raises(psycopg.errors.DiskFull):
            connection.execute(
                f"CREATE TABLE filler TABLESPACE small_{os.getpid()} AS SELECT FROM generate_series(1, 99999)"
            )
        await asyncio.sleep(FULL_SECONDS / 2)  # rows that fit into half-filled pages are still written
        before, used = await finished_tasks(running), [processor_seconds(process) for process in running.processes]
        await asyncio.sleep(FULL_SECONDS)
        used = [processor_seconds(process) - was for process, was in zip(running.processes, used, strict=True)]
        during, are_alive = await finished_tasks(running), [process.is_running for process in running.processes]
        (small_disk / "filler").unlink()
        states = await running.wait(jobs, 60)
        are_alive_after = [process.is_running for process in running.processes]
        logs = [process.log.read_text() for process in running.processes]

    print(f"\nfinished {before} and {during} tasks of 1200; processor seconds in {FULL_SECONDS:g} s: {used}")
    assert during < 1200, "all tasks had finished before the disk was full"
    assert are_alive == are_alive_after == [True, True]
    assert max(used) < 0.6 * FULL_SECONDS, "a process is in a busy loop"
    assert any("No space left" in text for text in logs)
    assert set(states) == {"completed"}
