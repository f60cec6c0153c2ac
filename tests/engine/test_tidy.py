"""Files that jobs leave in storage are deleted when they cannot be needed any more; other files are kept."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from dagmaster.database.maintenance.janitor import PostgresJanitor, SweepResult
from dagmaster.database.maintenance.retention import PostgresRetention
from dagmaster.errors import Unavailable
from dagmaster.jobs.model import new_job_id
from dagmaster.operations import rerun
from dagmaster.orchestrator import tidy as tidying
from dagmaster.orchestrator.janitor import Janitor
from dagmaster.orchestrator.tidy import Tidy, tidy_of
from dagmaster.storage import Storage, Zone, open_storage
from tests.api.serving import V1, api, ok
from tests.engine.harness import engine, fast_settings, until, workflow

HOUR, DAY = 3600.0, 86_400.0
FAILING = workflow("""
    workflow_id: failing
    version: 1
    nodes:
      start: {type: start, next: work}
      work: {handler: give, params: {fail: true}, retry: {max_attempts: 0}, next: end}
      end: {type: end}
""")


class Place:
    """A database with jobs, and a storage with their files."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self.dsn, self.folder = dsn, folder
        self.storage = open_storage(fast_settings(storage_folder=folder))
        self._tidies: list[Tidy] = []
        self._killed: list[AbstractContextManager[Path]] = []  # scratch folders of attempts that were killed

    def tidy(self, storage: Storage | None = None, **settings: Any) -> Tidy:
        tidy = tidy_of(fast_settings(storage_folder=self.folder, **settings), self.dsn)
        assert tidy is not None
        tidy.storage = storage or tidy.storage
        self._tidies.append(tidy)
        return tidy

    async def run_once(self, *, is_dry: bool = False, **settings: Any) -> SweepResult:
        tidy = self.tidy(**settings)
        swept = await tidy.run_once(uuid4(), is_dry=is_dry)
        assert tidy.errors == 0
        return swept

    async def job(self, status: str, ended_ago: float = 0.0, *, has_row: bool = True) -> UUID:
        """A job that ended `ended_ago` seconds ago, with a blob and the scratch folder of a killed attempt."""
        job_id = new_job_id(round((time.time() - ended_ago - 60) * 1000))
        if has_row:
            await self.sql(
                "INSERT INTO dagapp.dag_jobs (job_id, workflow_id, workflow_version, definition_hash, status, "
                "input_params, completed_at) VALUES (%s, 'w', '1', 'h', %s, '{}', "
                "CASE WHEN %s NOT IN ('pending', 'running') THEN now() - make_interval(secs => %s) END)",
                job_id,
                status,
                status,
                ended_ago,
            )
        self.add_files(job_id)
        return job_id

    def add_files(self, job_id: UUID) -> None:
        self.put(f"{job_id}/deep/copy.tif", b"12345")
        self._killed.append(self.storage.scratch(job_id))
        (self._killed[-1].__enter__() / "half.tif").write_bytes(b"x")

    def put(self, blob: str, data: bytes = b"x") -> None:
        self.storage.put(self.storage.location(blob, zone=Zone.SILVER), data)

    def remaining(self, job_id: UUID) -> set[str]:
        places = {"blobs": "silver/silver", "scratch": "silver/.scratch"}
        return {name for name, place in places.items() if (self.folder / place / str(job_id)).exists()}

    async def sql(self, statement: str, *values: Any) -> list[Any]:
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as connection:
            await connection.execute("SET session_replication_role = replica")  # without foreign keys
            cursor = await connection.execute(statement, values or None)
            return await cursor.fetchall() if cursor.description else []

    async def actions(self) -> list[Any]:
        return await self.sql("SELECT action_type, target_id FROM dagapp.dag_janitor_actions ORDER BY target_id")

    async def close(self) -> None:
        for tidy in self._tidies:
            await tidy.store.close()


@pytest.fixture
async def place(database: str, tmp_path: Path) -> AsyncIterator[Place]:
    place = Place(database, tmp_path)
    yield place
    await place.close()


def targets(swept: SweepResult) -> list[str]:
    return sorted(action.target_id for action in swept.actions)


@pytest.mark.requirement("S4")
async def test_files_of_a_completed_job_are_deleted_after_the_grace_period(place):
    young = await place.job("completed", 0.5 * HOUR)
    old = await place.job("completed", 1.5 * HOUR)

    swept = await place.run_once(intermediate_grace_sec=HOUR)

    assert (place.remaining(young), place.remaining(old)) == ({"blobs"}, set())
    (action,) = [action for action in swept.actions if action.target_id == str(old)]
    assert (action.action_type, action.target_type) == ("files_removed", "job")
    assert action.detail == {"status": "completed", "objects": 1, "bytes": 5, "has_scratch": True}
    assert action.reason.endswith("its 1 intermediate objects with 5 bytes and its scratch folders are removed")
    assert sorted(path.name for path in place.folder.rglob("*") if path.is_file()) == ["copy.tif"]
    assert (await place.run_once(intermediate_grace_sec=HOUR)).actions == ()


@pytest.mark.requirement("S4")
@pytest.mark.parametrize("status", ["failed", "cancelled", "partial_success"])
async def test_files_that_a_resume_may_need_are_kept_longer(place, status):
    before, after = await place.job(status, 9 * DAY), await place.job(status, 11 * DAY)
    just = await place.job(status, 60)

    await place.run_once(intermediate_failed_days=10)

    assert (place.remaining(before), place.remaining(after)) == ({"blobs"}, set())
    assert place.remaining(just) == {"blobs", "scratch"}, "an attempt may still be running"
    await place.run_once(intermediate_failed_days=0)
    assert place.remaining(before) == {"blobs"}, "with 0 days, blobs must be kept as long as the job"


@pytest.mark.requirement("S4")
async def test_files_of_a_job_that_has_not_ended_are_not_touched(place):
    jobs = [await place.job(status, 400 * DAY) for status in ("pending", "running")]
    await place.sql("UPDATE dagapp.dag_jobs SET completed_at = now() - interval '400 days' WHERE job_id = %s", jobs[1])

    assert (await place.run_once(retention_days=1)).actions == ()

    assert [place.remaining(job_id) for job_id in jobs] == [{"blobs", "scratch"}] * 2


@pytest.mark.requirement("S4")
async def test_files_of_a_job_with_a_running_task_are_not_touched(place):
    busy, lost = await place.job("cancelled", DAY), await place.job("cancelled", DAY)
    for job_id, lease in ((busy, "1 minute"), (lost, "-1 minute")):
        await place.sql(
            "INSERT INTO dagapp.dag_tasks (job_id, node_id, attempt, queue, handler, priority, status, timeout_seconds,"
            " lease_until) VALUES (%s, 'n', 1, 'q', 'h', 0, 'running', 60, now() + %s::interval)",
            job_id,
            lease,
        )

    await place.run_once()

    assert (place.remaining(busy), place.remaining(lost)) == ({"blobs", "scratch"}, {"blobs"})


@pytest.mark.requirement("S4")
async def test_only_folders_named_exactly_like_a_job_are_deleted(place):
    job_id = await place.job("completed", DAY)
    others = [
        "cogs/dem/v0/r1/a.tif",
        "mosaics/dem/v0/r1/mosaic.json",
        f"cogs/{job_id}/a.tif",
        f"{str(job_id).upper()}/a.tif",
        f"{job_id.hex}/a.tif",
        f"{job_id}-1/a.tif",
        f"{uuid4()}/a.tif",
        "dem.tif",
    ]
    for blob in others:
        place.put(blob)
    outside = place.folder / "outside"
    (outside / "kept").mkdir(parents=True)
    for linked in ("silver/silver", "silver/.scratch"):
        (place.folder / linked / str(new_job_id(1))).symlink_to(outside)

    await place.run_once(retention_days=1)

    assert place.remaining(job_id) == set()
    assert all((place.folder / "silver/silver" / blob).exists() for blob in others)
    assert (outside / "kept").exists()


@pytest.mark.requirement("D5")
async def test_files_of_missing_jobs_are_deleted_if_retention_can_have_deleted_the_jobs(place):
    old, young = [await place.job("", days * DAY, has_row=False) for days in (3, 1)]

    assert (await place.run_once(retention_days=0)).actions == ()
    swept = await place.run_once(retention_days=2)

    assert (place.remaining(old), place.remaining(young)) == (set(), {"blobs", "scratch"})
    assert swept.actions[0].reason.startswith("the job was deleted: ")


@pytest.mark.requirement("D5")
async def test_files_are_deleted_after_retention_has_deleted_their_job(place):
    job_id = await place.job("failed", 3 * DAY)
    retention = PostgresRetention(place.dsn)
    settings = {"retention_days": 2, "intermediate_failed_days": 0}
    await place.run_once(**settings)
    assert place.remaining(job_id) == {"blobs"}

    assert await retention.prune_jobs(2 * DAY, 10) == 1
    await place.run_once(**settings)

    assert place.remaining(job_id) == set()
    await retention.close()


@pytest.mark.requirement("D5")
async def test_outputs_without_an_asset_are_deleted_after_their_job_and_not_before(place):
    job_id, other = await place.job("completed", 3 * DAY), await place.job("completed", 1 * DAY)
    blobs = [f"{kind}/job-{job_id}/v0/r1/a.tif" for kind in ("cogs", "mosaics", "tiling_schemes", "stac", "recipes")]
    kept = [f"cogs/job-{other}/v0/r1/a.tif", "cogs/job-dem/v0/r1/a.tif", f"cogs/job-{uuid4()}/v0/r1/a.tif"]
    for blob in (*blobs, *kept):
        place.put(blob, b"1234")

    def stored(blob: str) -> bool:
        return (place.folder / "silver/silver" / blob).exists()

    await place.run_once(retention_days=2)
    with_row = [stored(blob) for blob in blobs]
    retention = PostgresRetention(place.dsn)
    assert await retention.prune_jobs(2 * DAY, 10) == 1
    swept = await place.run_once(retention_days=2)

    assert all(with_row)
    assert not any(map(stored, blobs))
    assert all(map(stored, kept))
    assert [action.reason for action in swept.actions] == [
        "the job was deleted: its 5 objects with 20 bytes are removed"
    ]
    assert (await place.run_once(retention_days=2)).actions == ()
    await retention.close()


@pytest.mark.requirement("S4")
async def test_a_dry_run_reports_the_same_actions_and_deletes_nothing(place):
    job_id = await place.job("completed", DAY)

    dry = await place.run_once(is_dry=True)

    assert (targets(dry), await place.actions()) == ([str(job_id)], [])
    assert place.remaining(job_id) == {"blobs", "scratch"}
    actual = await place.run_once()
    assert [action.reason for action in actual.actions] == [action.reason for action in dry.actions]
    assert await place.actions() == [("files_removed", str(job_id))]


# --- concurrency ------------------------------------------------------------------------------------------------------


class SlowStorage:
    """A disk on which the removal of blobs waits until the test lets it continue."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.is_removing, self.may_continue = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def clear_intermediate(self, job_id: UUID) -> None:
        self.is_removing.set()
        assert self.may_continue.wait(10)
        self._storage.clear_intermediate(job_id)


@pytest.mark.requirement("S4")
async def test_a_job_cannot_be_resumed_while_its_files_are_removed_and_the_loop_continues(place):
    async with engine(place.dsn) as running:
        job = await running.run(FAILING)
        job_id = job["job_id"]
        place.add_files(job_id)
        await place.sql("UPDATE dagapp.dag_jobs SET completed_at = now() - interval '40 days'")
        slow = SlowStorage(place.storage)
        turn = asyncio.create_task(place.tidy(slow).run_once(uuid4()))
        await until(lambda: asyncio.sleep(0, slow.is_removing.is_set()))

        resume = asyncio.create_task(rerun.resume(running.ledger, job_id))

        async def waits() -> bool:
            return await running.value("SELECT count(*) FROM pg_locks WHERE NOT granted") > 0

        await until(waits)
        assert not resume.done()
        slow.may_continue.set()
        assert targets(await turn) == [str(job_id)]
        assert (await resume).status == "resumed"
        place.add_files(job_id)
        assert (await running.wait(job_id))["status"] == "failed"
        assert (await place.run_once()).actions == ()
        assert place.remaining(job_id) == {"blobs", "scratch"}, "the job has just ended"


@pytest.mark.requirement("S4")
async def test_files_of_a_job_that_is_being_resumed_are_not_touched(place):
    held, free = [await place.job("failed", 40 * DAY) for _ in range(2)]
    async with await psycopg.AsyncConnection.connect(place.dsn) as other_session:
        await other_session.execute("SELECT 1 FROM dagapp.dag_jobs WHERE job_id = %s FOR NO KEY UPDATE", [held])

        swept = await place.run_once()

    assert targets(swept) == [str(free)]
    assert place.remaining(held) == {"blobs", "scratch"}


@pytest.mark.requirement("S4")
async def test_concurrent_orchestrators_remove_the_files_of_each_job_once(place):
    jobs = [await place.job("completed", DAY) for _ in range(30)]
    many = [place.tidy() for _ in range(4)]

    async def work(tidy: Tidy) -> list[str]:
        done: list[str] = []
        while any(map(place.remaining, jobs)):
            done += targets(await tidy.run_once(uuid4()))
        return done

    done = await asyncio.gather(*map(work, many))

    assert sorted(target for part in done for target in part) == sorted(map(str, jobs))
    assert len(await place.actions()) == len(jobs)
    assert sum(tidy.errors for tidy in many) == 0
    assert not any((place.folder / "silver/.gone").iterdir())


@pytest.mark.requirement("S4")
async def test_files_that_another_orchestrator_has_removed_since_they_were_listed_are_not_reported_again(
    place, monkeypatch
):
    job_id = await place.job("completed", DAY)
    list_folders = tidying._list_folders
    outdated = [list_folders(place.tidy().storage)]
    first = await place.run_once()

    monkeypatch.setattr(tidying, "_list_folders", lambda storage: outdated.pop() if outdated else list_folders(storage))
    second = await place.run_once()

    assert targets(first) == [str(job_id)]
    assert targets(second) == []
    assert len(await place.actions()) == 1


@pytest.mark.requirement("S4")
async def test_the_record_names_only_files_that_still_existed(place, monkeypatch):
    """Another orchestrator has removed the scratch folder since it was listed, but not the objects."""
    job_id = await place.job("completed", DAY)
    tidy = place.tidy()
    list_folders = tidying._list_folders
    outdated = [list_folders(tidy.storage)]
    tidy.storage.clear_scratch(job_id)

    monkeypatch.setattr(tidying, "_list_folders", lambda storage: outdated.pop() if outdated else list_folders(storage))
    (action,) = (await tidy.run_once(uuid4())).actions

    assert action.detail["objects"] == 1
    assert not action.detail["has_scratch"]


@pytest.mark.requirement("S4")
async def test_one_run_removes_the_files_of_a_limited_number_of_jobs(place, monkeypatch):
    monkeypatch.setattr(tidying, "JOBS_AT_ONCE", 3)
    jobs = [await place.job("completed", DAY) for _ in range(5)]

    first, second = await place.run_once(), await place.run_once()

    assert (len(first.actions), len(second.actions)) == (3, 2)
    assert not any(map(place.remaining, jobs))


@pytest.mark.requirement("S4")
async def test_one_run_takes_a_limited_time(place, monkeypatch):
    monkeypatch.setattr(tidying, "REMOVING_SECONDS", -1.0)
    job_id = await place.job("completed", DAY)

    assert (await place.run_once()).actions == ()
    assert place.remaining(job_id) == {"blobs", "scratch"}


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("E27")
async def test_files_that_cannot_be_removed_are_reported_and_do_not_stop_the_others(place):
    jobs = [await place.job("completed", DAY) for _ in range(3)]
    bad = jobs[0]

    class ReadOnlyStorage(SlowStorage):
        def clear_intermediate(self, job_id: UUID) -> None:
            if job_id == bad:
                raise Unavailable("the disk is read-only", code="storage.unavailable")
            self._storage.clear_intermediate(job_id)

    tidy = place.tidy(ReadOnlyStorage(place.storage))

    swept = await tidy.run_once(uuid4())

    assert targets(swept) == sorted(map(str, jobs[1:]))
    assert tidy.errors == 1
    assert place.remaining(bad) == {"blobs", "scratch"}


@pytest.mark.requirement("E27")
async def test_an_unavailable_disk_does_not_end_the_loop_and_is_tried_again(place):
    job_id = await place.job("completed", DAY)
    is_unavailable = True

    class UnavailableStorage(SlowStorage):
        def scratch_jobs(self) -> Any:
            if is_unavailable:
                raise OSError(5, "Input/output error")
            return self._storage.scratch_jobs()

        def clear_intermediate(self, job_id: UUID) -> None:
            self._storage.clear_intermediate(job_id)

    tidy = place.tidy(UnavailableStorage(place.storage), janitor_interval_sec=0.01)
    running = asyncio.create_task(tidy.run())
    await until(lambda: asyncio.sleep(0, tidy.errors > 1))
    is_unavailable = False

    await until(lambda: asyncio.sleep(0, tidy.tidied_jobs))

    assert place.remaining(job_id) == set()
    running.cancel()


@pytest.mark.requirement("S4")
async def test_a_storage_folder_that_does_not_exist_is_not_created(place):
    await place.sql("SELECT 1")
    place.folder = place.folder / "elsewhere"

    assert await place.run_once() == SweepResult((), ())

    assert not place.folder.exists()


# --- in the janitor ---------------------------------------------------------------------------------------------------


@pytest.mark.requirement("S4")
async def test_the_janitor_removes_files_and_does_not_wait_for_a_disk_that_hangs(place):
    job_id = await place.job("completed", DAY)
    slow = SlowStorage(place.storage)
    tidy = place.tidy(slow, janitor_interval_sec=0.01)
    janitor = Janitor(tidy.settings, PostgresJanitor(place.dsn), PostgresRetention(place.dsn), tidy=tidy)
    running = asyncio.create_task(janitor.run())
    await until(lambda: asyncio.sleep(0, slow.is_removing.is_set()))
    runs = janitor.counters.runs

    await until(lambda: asyncio.sleep(0, janitor.counters.runs > runs + 2))

    assert janitor.stats()["tidied_jobs"] == 0
    slow.may_continue.set()
    await until(lambda: asyncio.sleep(0, janitor.stats()["tidied_jobs"] == 1))
    assert place.remaining(job_id) == set()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await janitor.close()


@pytest.mark.requirement("S4")
def test_removing_files_can_be_disabled():
    assert tidy_of(fast_settings(tidy_enabled=False), "postgresql://nowhere") is None


@pytest.mark.requirement("S4")
async def test_a_janitor_run_on_request_removes_files_too(place):
    job_id = await place.job("completed", DAY)
    async with (
        engine(place.dsn, orchestrators=0, workers=0, verify_history=False) as running,
        api(place.dsn, running, storage_folder=place.folder) as client,
    ):
        dry = await ok(client.post(f"{V1}/janitor/run", params={"dry_run": True}))
        assert place.remaining(job_id) == {"blobs", "scratch"}
        actual = await ok(client.post(f"{V1}/janitor/run"))

    actions = [(action["action_type"], action["target_id"]) for action in actual["actions"]]
    assert actions == [("files_removed", str(job_id))]
    assert len(dry["actions"]) == 1
    assert place.remaining(job_id) == set()
