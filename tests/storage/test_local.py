"""Zones in folders: crashes, links and file systems."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from uuid import UUID

import pytest

from dagmaster.errors import Conflict, NotAllowed, Unavailable
from dagmaster.settings import load
from dagmaster.storage import Folder, Location, Storage, Zone, local, open_storage
from dagmaster.storage.local import LocalStore

JOB = UUID("01890000-0000-7000-8000-000000000001")


@pytest.fixture
def store(tmp_path) -> LocalStore:
    return LocalStore(Zone.SILVER, tmp_path / "silver")


def at(blob: str) -> Location:
    return Location(Zone.SILVER, "silver", blob)


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


WRITER = """
import sys
from pathlib import Path
from dagmaster.storage import Location, Zone
from dagmaster.storage.local import LocalStore
store = LocalStore(Zone.SILVER, Path(sys.argv[1]))
for number in range(1_000_000):
    store.put(Location(Zone.SILVER, "silver", f"n{number % 7}"), bytes([number % 256]) * 2_000_000)
"""


@pytest.mark.requirement("S4")
def test_a_process_killed_while_storing_leaves_no_incomplete_object(store, tmp_path, monkeypatch):
    incoming = tmp_path / "silver" / ".incoming"
    for turn in range(4):
        left = len(list(incoming.iterdir())) if turn else 0
        writer = subprocess.Popen([sys.executable, "-c", WRITER, tmp_path / "silver"])
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and not (incoming.exists() and len(list(incoming.iterdir())) > left):
            pass  # until an object is being written
        time.sleep(0.003 * turn)  # kill while it is written or synced, or during the next one
        writer.send_signal(signal.SIGKILL)
        writer.wait()

        for stored in store.list(Folder(Zone.SILVER, "silver")):
            content = store.get(stored.location)
            assert (len(content), len(set(content))) == (2_000_000, 1)

    assert len(files_below(incoming)) > 0, "no put was interrupted"
    store.remove_leftovers()
    assert len(files_below(incoming)) > 0, "recent files are kept, because another process may be writing them"
    monkeypatch.setattr("dagmaster.storage.local.LEFTOVER_SECONDS", -10)
    store.remove_leftovers()
    assert files_below(incoming) == []


@pytest.mark.requirement("S4")
def test_the_copy_of_an_old_file_is_not_removed_while_it_is_stored(store, tmp_path, monkeypatch):
    """It has the modification time of the file, and is in .incoming until it is synced."""
    file = tmp_path / "old.tif"
    file.write_bytes(b"x")
    os.utime(file, (0, 0))
    sync = local._sync

    def sync_while_another_process_tidies(copy):
        sync(copy)
        store.remove_leftovers()

    monkeypatch.setattr(local, "_sync", sync_while_another_process_tidies)
    store.put_file(at("old.tif"), file)

    assert store.get(at("old.tif")) == b"x"
    assert store.head(at("old.tif")).modified_at.timestamp() == 0


@pytest.mark.requirement("S4")
def test_a_moved_file_is_not_copied(store):
    with store.scratch(JOB) as scratch:
        file = scratch / "large.tif"
        file.write_bytes(b"x" * 100_000)
        number = file.stat().st_ino
        store.put_file(at("cogs/a.tif"), file, move=True, create_only=True)
        store.put_file(at("cogs/b.tif"), _rewritten(file), move=True)

    assert Path(store.gdal_path(at("cogs/a.tif"))).stat().st_ino == number
    assert Path(store.gdal_path(at("cogs/a.tif"))).stat().st_nlink == 1


def _rewritten(file: Path) -> Path:
    file.write_bytes(b"y")
    return file


@pytest.mark.requirement("S4")
def test_a_file_with_a_second_link_is_copied_so_that_the_object_cannot_change(store, tmp_path):
    original, other_name = tmp_path / "a", tmp_path / "b"
    original.write_bytes(b"as stored")
    other_name.hardlink_to(original)

    store.put_file(at("x"), original, move=True)
    other_name.write_bytes(b"changed!!")

    assert store.get(at("x")) == b"as stored"
    assert not original.exists()


@pytest.mark.requirement("S4")
@pytest.mark.parametrize("create_only", [False, True])
def test_a_file_from_another_file_system_is_copied(store, create_only):
    other_disk = Path("/dev/shm") / f"dagmaster-file-{os.getpid()}"
    if not other_disk.parent.is_dir():
        pytest.skip("no second file system")
    other_disk.write_bytes(b"from afar")
    try:
        if other_disk.stat().st_dev == Path(store._root.parent).stat().st_dev:
            pytest.skip("not a second file system")
        stored = store.put_file(at("x"), other_disk, move=True, create_only=create_only)

        assert not other_disk.exists()
        assert store.get(at("x")) == b"from afar"
        assert stored.size_bytes == 9
    finally:
        other_disk.unlink(missing_ok=True)


@pytest.mark.requirement("S1")
@pytest.mark.parametrize("link", ["silver", "silver/folder", "silver/folder/x"])
def test_links_to_files_outside_the_zone_are_not_followed(store, tmp_path, link):
    outside = tmp_path / "outside"
    (outside / "folder").mkdir(parents=True)
    for secret in (outside / "x", outside / "folder" / "x"):
        secret.write_bytes(b"secret")
    place = tmp_path / "silver" / link
    place.parent.mkdir(parents=True)
    place.symlink_to(outside / "x" if link.endswith("x") else outside)

    for act in (
        lambda: store.get(at("folder/x")),
        lambda: store.head(at("folder/x")),
        lambda: store.gdal_path(at("folder/x")),
        lambda: store.put(at("folder/x"), b"mine"),
        lambda: store.put(at("folder/x"), b"mine", create_only=True),
        lambda: store.delete(at("folder/x")),
        lambda: store.exists(at("folder/x")),
    ):
        with pytest.raises(NotAllowed) as refused:
            act()
        assert refused.value.code == "storage.link"

    if link == "silver":
        with pytest.raises(NotAllowed):
            list(store.list(Folder(Zone.SILVER, "silver")))
    else:
        assert list(store.list(Folder(Zone.SILVER, "silver"))) == []
    assert (outside / "x").read_bytes() == (outside / "folder" / "x").read_bytes() == b"secret"


@pytest.mark.requirement("S1")
def test_links_inside_the_zone_work_and_circular_links_are_ignored(store, tmp_path):
    store.put(at("real/x"), b"x")
    root = tmp_path / "silver" / "silver"
    (root / "inside").symlink_to(root / "real")
    (root / "circle").symlink_to(root / "circle")

    assert store.get(at("inside/x")) == b"x"
    assert not store.exists(at("circle"))
    assert [stored.location.blob for stored in store.list(Folder(Zone.SILVER, "silver"))] == ["real/x"]


@pytest.mark.requirement("S2")
def test_a_name_cannot_be_an_object_and_a_folder(store):
    store.put(at("a"), b"x")
    store.put(at("b/c"), b"x")

    for create_only in (False, True):
        for name in ("a/below", "b"):
            with pytest.raises(Conflict) as refused:
                store.put(at(name), b"y", create_only=create_only)
            assert refused.value.code == "storage.name-taken"
    assert store.get(at("a")) == store.get(at("b/c")) == b"x"


@pytest.mark.requirement("S2")
def test_files_with_invalid_names_are_not_listed(store, tmp_path):
    store.put(at("good"), b"x")
    (tmp_path / "silver" / "silver" / "e\u0301").write_bytes(b"x")
    (tmp_path / "silver" / "silver" / "bad\n").write_bytes(b"x")

    assert [stored.location.blob for stored in store.list(Folder(Zone.SILVER, "silver"))] == ["good"]


@pytest.mark.requirement("S2")
def test_a_full_disk_makes_the_storage_unavailable_and_leaves_no_file(store, tmp_path, monkeypatch):
    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device", str(tmp_path))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Unavailable) as raised:
        store.put(at("x"), b"x")

    assert raised.value.code == "storage.full"
    assert str(tmp_path) not in str(raised.value)
    assert files_below(tmp_path / "silver") == []


@pytest.mark.requirement("S4")
def test_deleting_removes_empty_folders(store, tmp_path):
    store.put(at("a/b/c"), b"x")
    store.put(at("a/d"), b"x")

    store.delete(at("a/b/c"))
    assert sorted(path.name for path in (tmp_path / "silver" / "silver").rglob("*")) == ["a", "d"]
    store.delete(at("a/d"))

    assert list((tmp_path / "silver" / "silver").iterdir()) == []


@pytest.mark.requirement("S1")
def test_zones_are_folders_of_the_data_folder_unless_configured_otherwise(tmp_path):
    settings = load(DAGMASTER_DATA=tmp_path / "data", external_folder=tmp_path / "public", silver_container="processed")
    storage = open_storage(settings)

    places = [storage.gdal_path(storage.location("x.tif", zone=zone)) for zone in Zone]

    assert places == [
        str(tmp_path / "data/storage/bronze/bronze/x.tif"),
        str(tmp_path / "data/storage/silver/processed/x.tif"),
        str(tmp_path / "public/external/x.tif"),
    ]
    assert not any(tmp_path.iterdir())


@pytest.mark.requirement("S4")
def test_only_intermediate_files_of_the_job_are_removed(tmp_path):
    storage: Storage = open_storage(load(DAGMASTER_DATA=tmp_path))
    other = UUID("01890000-0000-7000-8000-000000000002")
    for blob in (f"{JOB}/a.tif", f"{JOB}/deep/b.tif", f"{other}/a.tif", "cogs/x/v0/r1/a.tif"):
        storage.put(storage.location(blob, zone=Zone.SILVER), b"x")
    scratch = storage.scratch(JOB)
    (scratch.__enter__() / "half").write_bytes(b"x")
    assert (set(storage.intermediate_jobs()), set(storage.scratch_jobs())) == ({JOB, other}, {JOB})

    for _ in range(2):  # a second time there is nothing to remove
        storage.clear_intermediate(JOB)
        storage.clear_scratch(JOB)
    storage.remove_leftovers()

    assert (set(storage.intermediate_jobs()), set(storage.scratch_jobs())) == ({other}, set())
    assert files_below(tmp_path) == [f"storage/silver/silver/{other}/a.tif", "storage/silver/silver/cogs/x/v0/r1/a.tif"]
    assert not list((tmp_path / "storage/silver/silver").glob(f"{JOB}*"))


@pytest.mark.requirement("S4")
def test_a_folder_is_deleted_with_files_that_are_not_objects(store, tmp_path):
    store.put(at(f"{JOB}/a.tif"), b"x")
    folder = tmp_path / "silver" / "silver" / str(JOB)
    (folder / "no object.").write_bytes(b"x")
    (folder / "empty").mkdir()
    (folder / "link").symlink_to(tmp_path)

    store.delete_all(Folder(Zone.SILVER, "silver", str(JOB)))
    assert not folder.exists()
    store.put(at(f"{JOB}/a.tif"), b"new")  # a later writer finds an empty folder, although the space is not yet freed
    store.remove_leftovers()

    assert files_below(tmp_path) == [f"silver/silver/{JOB}/a.tif"]


@pytest.mark.requirement("S4")
def test_files_that_cannot_be_deleted_are_reported_and_the_others_are_deleted(store, tmp_path, monkeypatch):
    jobs = [UUID(int=JOB.int + number) for number in range(3)]
    for job_id in jobs:
        store.put(at(f"{job_id}/a.tif"), b"x")
        store.delete_all(Folder(Zone.SILVER, "silver", str(job_id)))
    bad = sorted((tmp_path / "silver/.gone").iterdir())[1]
    remove = shutil.rmtree
    monkeypatch.setattr(shutil, "rmtree", lambda path, **more: None if path == bad else remove(path, **more))

    with pytest.raises(Unavailable, match="1 removed folders"):
        store.remove_leftovers()

    assert list((tmp_path / "silver/.gone").iterdir()) == [bad]


@pytest.mark.requirement("S4")
def test_a_copy_keeps_the_modification_time_of_the_file(tmp_path: Path) -> None:
    """The modification time is used as the date of the data if there is no other."""
    file = tmp_path / "scene.tif"
    file.write_bytes(b"pixels")
    os.utime(file, (1_600_000_000, 1_600_000_000))
    store = LocalStore(Zone.BRONZE, tmp_path / "bronze")
    location = Location(Zone.BRONZE, "bronze", "scene.tif")
    store.put_file(location, file)

    assert store.head(location).modified_at.timestamp() == 1_600_000_000
