"""A new release takes over what an old one was doing: its schema, its jobs, its running tasks.

The old release is taken from the history of this repository and runs with the packages of this environment.
"""

import asyncio
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from dagmaster.database.schema import deploy
from tests.engine.processes import ROOT, Fleet, Process, fleet
from tests.raster.rasters import hills, write_raster

pytestmark = pytest.mark.requirement("E22")

OLDEST = "a4ef9b2"  # the first release with a command line and processes
BEFORE_ASSETS = "7add226"  # the last release that declared other versions of STAC extensions, and knew no assets
JOBS = 2
WORK = """\
workflow_id: of_the_old_release
nodes:
  start: {type: start, next: first}
  first: {handler: echo, params: {message: "{{ inputs.message }}"}, next: spread}
  spread:
    type: fan_out
    source: [0.1, 0.2, 0.3, 0.6, 0.9, 1.2, 1.5, 1.8]
    max_parallel: 4
    task: {handler: sleep, params: {seconds: "{{ item }}"}, retry: {max_attempts: 1}}
    next: gather
  gather: {type: fan_in, aggregation: collect, next: last}
  last: {handler: echo, params: {message: "{{ nodes.first.output.echoed_params.message }}"}, next: end}
  end: {type: end}
inputs:
  message: {type: string, default: kept}
"""
# With the names of the release BEFORE_ASSETS.
SUBMIT_RASTER = """\
import asyncio, sys
from dagmaster.database.ledger.postgres import PostgresLedger
from dagmaster.handlers.registry import installed
from dagmaster.jobs.model import Submission
from dagmaster.operations.library import load_library
from dagmaster.operations.submit import submit
from dagmaster.settings import Settings

async def main():
    settings = Settings()
    ledger = PostgresLedger(settings.dsn(), "test")
    library = load_library(settings, installed(), settings.known_queues)
    inputs = {"blob_name": sys.argv[1], "tile_size": 512}
    await submit(ledger, library, [Submission(workflow_id="process_large_raster", input_params=inputs)])
    await ledger.close()

asyncio.run(main())
"""


class OldRelease:
    """The software of an earlier commit, in its own folder."""

    def __init__(self, commit: str, folder: Path, running: Fleet) -> None:
        self.source = folder / commit
        self.running = running
        self.source.mkdir()
        archive = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, capture_output=True, check=True)
        subprocess.run(["tar", "x", "-C", self.source], input=archive.stdout, check=True)
        self.workflow = self.source / "work.yaml"
        self.workflow.write_text(WORK)

    def environment(self) -> dict[str, str]:
        return {**self.running._environment(), "PYTHONPATH": str(self.source / "src")}

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "dagmaster", *arguments],
            env=self.environment(),
            cwd=self.source,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    async def start(self, role: str) -> Process:
        process = self.running.process(role)
        process.environment = self.environment()
        process.start()
        await self.running.ready([process])
        return process

    def submit(self) -> None:
        self.run("submit", str(self.workflow))

    def submit_raster(self, name: str) -> None:
        """Submit a job as the API of the old release does, which is disabled here."""
        subprocess.run([sys.executable, "-c", SUBMIT_RASTER, name], env=self.environment(), cwd=self.source, check=True)


@pytest.fixture
def empty_database(database):
    """A database without a schema: the old release deploys its own."""
    with psycopg.connect(database) as connection:
        connection.execute("DROP SCHEMA dagapp CASCADE")
    return database


def require_known(commit: str) -> None:
    """Skip the test in a shallow clone, which has only the newest commits."""
    done = subprocess.run(["git", "cat-file", "-e", f"{commit}^{{commit}}"], cwd=ROOT, capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"the history of this clone does not reach back to {commit}")


async def wait_until_half_done(running: Fleet) -> None:
    """Wait until some tasks have ended while others run."""

    async def is_half_done() -> bool:
        (row,) = await running.rows("""
            SELECT count(*) FILTER (WHERE status = 'succeeded') >= 5 AND count(*) FILTER (WHERE status = 'running') >= 2
                   AS is_half_done
              FROM dagapp.dag_tasks""")
        return row["is_half_done"]

    await running.until(is_half_done, 30, "tasks that have ended and tasks that run")


async def outcome(running: Fleet) -> list[dict]:
    jobs = [row["job_id"] for row in await running.rows("SELECT job_id FROM dagapp.dag_jobs")]
    await running.wait(jobs, 60)
    rows = await running.rows("""
        SELECT j.status, j.error_message, l.output #> '{echoed_params,message}' AS last,
               (SELECT count(*)
                  FROM dagapp.dag_node_states n
                 WHERE n.job_id = j.job_id AND n.parent_node_id = 'spread' AND n.status = 'completed') AS children
          FROM dagapp.dag_jobs j
          JOIN dagapp.dag_node_states l
            ON l.job_id = j.job_id AND l.node_id = 'last'""")
    return [dict(row) for row in rows]


@pytest.mark.parametrize(
    "is_rolling", [pytest.param(False, id="killed"), pytest.param(True, id="rolling", marks=pytest.mark.slow)]
)
async def test_a_new_release_finishes_the_jobs_of_an_old_one(empty_database, tmp_path, is_rolling):
    """Killed: the old processes die in the middle, then the schema is migrated. Rolling: the schema is migrated and the
    new processes start while the old ones run."""
    require_known(OLDEST)
    async with fleet(empty_database, tmp_path, orchestrators=0, workers=0) as running:
        old = OldRelease(OLDEST, tmp_path, running)
        old.run("db", "deploy")
        before = [await old.start("orchestrator"), await old.start("worker")]
        for _ in range(JOBS):
            old.submit()
        await wait_until_half_done(running)
        if not is_rolling:
            for process in before:
                process.kill()
        migration = await asyncio.to_thread(deploy.run_migration, empty_database)
        after = [*await running.start("orchestrator"), *await running.start("worker")]
        if is_rolling:
            for process in before:
                process.kill()
        jobs = await outcome(running)
        are_alive = [process.is_running for process in after]

    assert migration.is_current
    assert migration.changes
    assert jobs == [{"status": "completed", "error_message": None, "last": "kept", "children": 8}] * JOBS
    assert are_alive == [True, True]


@pytest.mark.requirement("C1")
async def test_a_new_release_registers_the_tiles_that_an_old_one_has_written(empty_database, tmp_path):
    """The old processes die when all tiles are written and none is registered."""
    require_known(BEFORE_ASSETS)
    storage = tmp_path / "storage"
    (storage / "bronze" / "bronze").mkdir(parents=True)
    write_raster(storage / "bronze" / "bronze" / "dem.tif", hills(700, 700))
    options = {"storage_folder": storage, "catalog_enabled": False, "public_url": "https://maps.example.org"}
    async with fleet(empty_database, tmp_path, **options) as running:
        old = OldRelease(BEFORE_ASSETS, tmp_path, running)
        old.run("db", "deploy")
        orchestrator, worker = await old.start("orchestrator"), await old.start("worker")
        old.submit_raster("dem.tif")
        await running.until(lambda: tiles(running), 20, "tasks for the tiles")
        orchestrator.kill()  # without an orchestrator, no nodes after the tiles start
        await running.until(lambda: are_written(running), 20, "all tiles")
        worker.kill()
        before = {row["node_id"] for row in await running.rows("SELECT node_id FROM dagapp.dag_tasks")}
        await asyncio.to_thread(deploy.run_migration, empty_database)
        await running.start("orchestrator")
        await running.start("worker")
        (job,) = await running.rows("SELECT job_id FROM dagapp.dag_jobs")
        await running.wait(job["job_id"], 30)
        job = await running.job(job["job_id"])
        items = await running.rows("SELECT content FROM dagapp.stac_documents WHERE document_id <> ''")
        written = await tiles(running)

    assert not before & {"mosaic", "collection", "register__0"}, "the old release has done more than write the tiles"
    assert (job["status"], job["error_message"]) == ("completed", None)
    assert len(items) == len(written) == job["result_data"]["total_tiles"] == 4
    declared = {address for item in items for address in item["content"]["stac_extensions"]}
    assert "https://stac-extensions.github.io/projection/v2.0.0/schema.json" in declared, (
        "the items must be those that the old release wrote"
    )


async def tiles(running: Fleet) -> list[dict]:
    return await running.rows("SELECT status FROM dagapp.dag_tasks WHERE node_id LIKE 'tiles%%'")


async def are_written(running: Fleet) -> bool:
    return {row["status"] for row in await tiles(running)} == {"succeeded"}
