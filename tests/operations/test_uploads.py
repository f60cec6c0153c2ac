"""Uploads on a real database and a real folder: crashes at every point, several processes, expiry."""

import asyncio
import hashlib
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path

import pytest

from dagmaster import faults
from dagmaster.access.caller import Caller, Scope
from dagmaster.client.models.uploads import UploadInfo, UploadRequest
from dagmaster.database.assets.uploads import UploadStore
from dagmaster.errors import Conflict, DagmasterError, NotFound, UnfitData
from dagmaster.operations.uploads import UploadOperations, UploadRules
from dagmaster.orchestrator.asset_upkeep import ORPHANED_SECONDS, upkeep_of
from dagmaster.settings import Settings
from dagmaster.storage import open_storage
from tests.operations.kit import ADA, Kit

pytestmark = pytest.mark.requirement("G1", "G3")

CRASHED = 137
DATA = random.Random(7).randbytes(300_000)
SHA256 = hashlib.sha256(DATA).hexdigest()


@asynccontextmanager
async def opened(dsn: str, folder: Path, **rules: float) -> AsyncIterator[UploadOperations]:
    limits = {"max_bytes": 10**9, "max_open": 1000, "expiry_seconds": 3600.0, **rules}
    async with UploadStore(dsn, size=2) as store:
        yield UploadOperations(store, open_storage(Settings(storage_folder=folder)), UploadRules(**limits))


async def pieces(data: bytes, size: int = 10_000, *, break_after: int | None = None) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        if break_after is not None and start >= break_after:
            raise ConnectionResetError
        yield data[start : start + size]


async def sent(uploads: UploadOperations, upload: UploadInfo, data: bytes = DATA) -> UploadInfo:
    """Send all missing bytes in one request."""
    now = await uploads.get(upload.upload_id, ADA)
    if now.is_finished:
        return now
    remaining = data[now.offset_bytes :]
    return await uploads.append(
        upload.upload_id, ADA, offset=now.offset_bytes, length=len(remaining), chunks=pieces(remaining)
    )


def request(name: str = "scene.tif", **fields: object) -> UploadRequest:
    return UploadRequest(**{"name": name, "size_bytes": len(DATA), "sha256": SHA256, **fields})


def stored(folder: Path, name: str = "scene.tif") -> Path:
    return folder / "bronze/bronze/local" / name


async def test_simultaneous_requests_for_the_same_upload_get_the_same_one(database, tmp_path):
    """A client may repeat a request before it has received the response to the first one."""
    async with opened(database, tmp_path) as uploads, opened(database, tmp_path) as others:
        for number in range(10):
            same = request(f"{number}.tif")
            begun = await asyncio.gather(*(each.begin(same, ADA) for each in (uploads, others, uploads, others)))
            assert len({upload.upload_id for upload in begun}) == 1


async def test_any_sequence_of_parts_failures_and_processes_gives_the_same_bytes(database, tmp_path):
    async with opened(database, tmp_path) as first, opened(database, tmp_path) as second:
        for seed in range(25):
            chance = random.Random(seed)
            data = chance.randbytes(chance.randint(1, 200_000))
            name, sha256 = f"{seed}.tif", hashlib.sha256(data).hexdigest()
            upload = await first.begin(request(name, size_bytes=len(data), sha256=chance.choice([None, sha256])), ADA)
            requests = 0
            while not upload.is_finished:
                uploads, requests = chance.choice([first, second]), requests + 1
                offset = (await uploads.get(upload.upload_id, ADA)).offset_bytes
                claimed = chance.choice([offset, offset, offset, offset + chance.randint(-5, 5)])
                part = data[offset : offset + chance.randint(0, len(data))]
                breaks = chance.choice([None, None, chance.randint(0, len(part))])
                chunks = pieces(part, chance.randint(1, 50_000) if part else 1, break_after=breaks)
                with suppress(ConnectionResetError, Conflict):
                    await uploads.append(upload.upload_id, ADA, offset=max(0, claimed), length=len(part), chunks=chunks)
                upload = await uploads.get(upload.upload_id, ADA)
                assert requests < 500, seed

            assert stored(tmp_path, name).read_bytes() == data, seed
            assert upload.sha256 == sha256
    assert list((tmp_path / "bronze/.uploads").iterdir()) == []


async def _whole(dsn: str, folder: Path) -> None:
    async with opened(dsn, folder) as uploads:
        upload = await uploads.begin(request(), ADA)
        half = len(DATA) // 2
        if upload.offset_bytes < half:
            part = DATA[upload.offset_bytes : half]
            await uploads.append(
                upload.upload_id, ADA, offset=upload.offset_bytes, length=len(part), chunks=pieces(part)
            )
        await sent(uploads, upload)


def _die(dsn: str, folder: Path, point: str) -> bool:
    """Whether a process that uploads the file died at this point."""
    child = os.fork()
    if not child:
        try:
            faults.arm(point)
            asyncio.run(_whole(dsn, folder))
        except BaseException:
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, CRASHED), point
    return code == CRASHED


def test_a_process_that_dies_at_a_commit_leaves_an_upload_that_can_be_continued(database, tmp_path):
    async def rows() -> list[tuple[int, int]]:
        kit = Kit(database, None, None, None)  # type: ignore[arg-type]
        text = "SELECT count(*) AS n, count(finished_at) AS done FROM dagapp.uploads"
        events = await kit.rows("SELECT detail FROM dagapp.asset_events WHERE action = 'upload_finished'")
        return [(row["n"], row["done"]) for row in await kit.rows(text)] + [(len(events), 0)]

    visits = 0
    for commit in faults.around("upload"):
        for visit in (1, 2):  # the upload is begun, and finished
            folder = tmp_path / f"{commit}-{visit}"
            asyncio.run(_emptied(database))
            assert _die(database, folder, f"{commit}:{visit}"), (commit, visit)
            asyncio.run(_whole(database, folder))  # the file is uploaded again
            asyncio.run(_whole(database, folder))  # and a third time
            assert stored(folder).read_bytes() == DATA
            assert asyncio.run(rows()) == [(1, 1), (1, 0)]
            assert [path.name for path in (folder / "bronze/bronze/local").iterdir()] == ["scene.tif"]
            visits += 1
    assert visits == 4


async def _emptied(dsn: str) -> None:
    kit = Kit(dsn, None, None, None)  # type: ignore[arg-type]
    await kit.execute("DELETE FROM dagapp.uploads")
    await kit.execute("DELETE FROM dagapp.asset_events")


def test_a_process_that_is_killed_between_two_pieces_loses_only_unwritten_bytes(database, tmp_path):
    size = 3 * 1024 * 1024

    async def slowly(dsn: str) -> None:
        async def dying() -> AsyncIterator[bytes]:
            yield b"a" * (2 * 1024 * 1024)
            await asyncio.sleep(0.1)
            os._exit(CRASHED)

        async with opened(dsn, tmp_path) as uploads:
            upload = await uploads.begin(request(size_bytes=size, sha256=None), ADA)
            await uploads.append(upload.upload_id, ADA, offset=0, length=None, chunks=dying())

    async def continued() -> UploadInfo:
        async with opened(database, tmp_path) as uploads:
            (row,) = await uploads.store.uploads(limit=2)
            return await sent(uploads, await uploads.get(row.upload_id, ADA), b"a" * size)

    child = os.fork()
    if not child:
        asyncio.run(slowly(database))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == CRASHED
    (part,) = (tmp_path / "bronze/.uploads").iterdir()
    kept = part.stat().st_size

    finished = asyncio.run(continued())

    assert kept == 2 * 1024 * 1024
    assert finished.sha256 == hashlib.sha256(b"a" * size).hexdigest()


async def test_only_one_of_many_simultaneous_writers_succeeds(database, tmp_path):
    async with opened(database, tmp_path) as first, opened(database, tmp_path) as second:
        upload = await first.begin(request(), ADA)
        results = await asyncio.gather(
            *(
                uploads.append(upload.upload_id, ADA, offset=0, length=len(DATA), chunks=pieces(DATA))
                for uploads in (first, second) * 5
            ),
            return_exceptions=True,
        )

    codes = [result.code for result in results if isinstance(result, DagmasterError)]
    assert sum(isinstance(result, UploadInfo) for result in results) == 1
    assert len(codes) == 9
    assert set(codes) <= {"upload.locked", "upload.wrong-offset"}
    assert stored(tmp_path).read_bytes() == DATA


async def test_if_all_bytes_have_arrived_the_next_request_finishes_the_upload(database, tmp_path, monkeypatch):
    async with opened(database, tmp_path) as uploads:
        upload = await uploads.begin(request(), ADA)
        with monkeypatch.context() as patched:
            patched.setattr(UploadStore, "finish", _fails)
            with pytest.raises(RuntimeError):
                await sent(uploads, upload)
        info = await uploads.get(upload.upload_id, ADA)

    assert info.is_finished
    assert stored(tmp_path).read_bytes() == DATA
    assert list((tmp_path / "bronze/.uploads").iterdir()) == []


async def _fails(*_arguments: object) -> None:
    raise RuntimeError("the process died here")


async def test_uploads_without_new_bytes_expire_and_others_are_kept(database, tmp_path):
    settings = Settings(storage_folder=tmp_path)
    upkeep = upkeep_of(settings, database)
    try:
        async with opened(database, tmp_path) as uploads, opened(database, tmp_path, expiry_seconds=0.01) as brief:
            old = await brief.begin(request("old.tif"), ADA)
            await brief.append(old.upload_id, ADA, offset=0, length=5, chunks=pieces(DATA[:5]))
            busy = await brief.begin(request("busy.tif"), ADA)
            current = await uploads.begin(request("new.tif"), ADA)
            done = await sent(uploads, await uploads.begin(request("done.tif"), ADA))
            await asyncio.sleep(0.05)
            writer = uploads.storage.uploads.open(busy.upload_id)
            assert await upkeep.expire_uploads()
            writer.close()

            with pytest.raises(NotFound):
                await uploads.get(old.upload_id, ADA)
            with pytest.raises(NotFound):
                await uploads.append(old.upload_id, ADA, offset=5, length=1, chunks=pieces(b"x"))
            left = {each.upload_id for each in await uploads.store.uploads(limit=10)}
            again = await uploads.begin(request("old.tif"), ADA)  # the name is free again
    finally:
        await upkeep.close()

    assert left == {busy.upload_id, current.upload_id, done.upload_id}
    assert again.offset_bytes == 0
    assert not (tmp_path / f"bronze/.uploads/{old.upload_id}").exists()


async def test_bytes_that_belong_to_no_upload_are_removed_after_an_hour(database, tmp_path):
    folder = tmp_path / "bronze/.uploads"
    folder.mkdir(parents=True)
    long_ago = -ORPHANED_SECONDS - 60
    async with opened(database, tmp_path) as uploads:
        upload = await uploads.begin(request(), ADA)
        names = {
            "0198b2c4-7c1e-7a10-8f00-2f6f6e1c9a01": long_ago,
            "0198b2c4-7c1e-7a10-8f00-2f6f6e1c9a02": 0.0,
            str(upload.upload_id): long_ago,
            "notes.txt": long_ago,
        }
        for name, age in names.items():
            (folder / name).write_bytes(b"bytes")
            moment = (folder / name).stat().st_mtime + timedelta(seconds=age).total_seconds()
            os.utime(folder / name, (moment, moment))
        upkeep = upkeep_of(Settings(storage_folder=tmp_path), database)
        await upkeep.remove_orphaned_bytes()
        await upkeep.close()

    assert {path.name for path in folder.iterdir()} == names.keys() - {"0198b2c4-7c1e-7a10-8f00-2f6f6e1c9a01"}


async def test_an_upload_that_is_cancelled_before_a_request_locked_it_is_not_written(database, tmp_path, monkeypatch):
    async with opened(database, tmp_path) as uploads:
        upload = await uploads.begin(request(), ADA)

        async def cancelled_first() -> AsyncIterator[bytes]:
            assert await uploads.store.remove(upload.upload_id)  # like another process, before this one has the lock
            yield DATA

        with pytest.raises(NotFound):
            await uploads.append(upload.upload_id, ADA, offset=0, length=len(DATA), chunks=cancelled_first())

    assert not stored(tmp_path).exists()
    assert list((tmp_path / "bronze/.uploads").iterdir()) == []


async def test_the_name_of_a_damaged_upload_can_be_used_again(database, tmp_path):
    async with opened(database, tmp_path) as uploads:
        upload = await uploads.begin(request(sha256="0" * 64), ADA)
        with pytest.raises(UnfitData, match="SHA-256"):
            await sent(uploads, upload)
        again = await sent(uploads, await uploads.begin(request(), ADA))

    assert again.is_finished


async def test_a_platform_key_with_the_scope_operator_may_upload_for_all_platforms(database, tmp_path):
    both = Caller("both", frozenset({Scope.B2B, Scope.OPERATOR}), "ddh")
    async with opened(database, tmp_path) as uploads:
        default = await uploads.begin(request("a.tif"), both)
        other = await uploads.begin(request("b.tif", platform_id="geonode"), both)
        sent_by_staff = await sent(uploads, await uploads.begin(request("c.tif", platform_id="arcgis"), ADA))
        listed = await uploads.sources(both, prefix="", after="", limit=10)

    assert (default.platform_id, other.platform_id) == ("ddh", "geonode")
    assert [each.blob for each in listed] == [sent_by_staff.source.blob] == ["arcgis/c.tif"]


async def test_a_partner_does_not_see_which_user_of_the_installation_uploaded_for_it(database, tmp_path):
    hub = Caller("hub", frozenset({Scope.B2B}), "ddh")
    async with opened(database, tmp_path) as uploads:
        by_staff = await uploads.begin(request("a.tif", platform_id="ddh"), ADA)
        own = await uploads.begin(request("b.tif"), hub)

        assert (await uploads.get(by_staff.upload_id, hub)).created_by is None
        assert (await uploads.get(by_staff.upload_id, ADA)).created_by == "ada"
        assert own.created_by == "hub"
