"""The behaviour that every store must have."""

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from dagmaster.errors import Conflict, InvalidRequest, NotFound
from dagmaster.storage import Folder, Location, Zone
from dagmaster.storage.local import LocalStore
from tests.storage.stores import BACKENDS, opened

JOB = UUID("01890000-0000-7000-8000-000000000001")
OTHER_JOB = UUID("01890000-0000-7000-8000-000000000002")


@pytest.fixture(params=sorted(BACKENDS))
def store(request, tmp_path):
    return opened(request.param, tmp_path, request.getfixturevalue)


def at(blob: str, container: str = "silver") -> Location:
    return Location(Zone.SILVER, container, blob)


def names(store, path: str = "", container: str = "silver") -> list[str]:
    return sorted(stored.location.blob for stored in store.list(Folder(Zone.SILVER, container, path)))


@pytest.mark.requirement("S2")
def test_a_stored_object_is_read_back_and_described(store):
    data = b"some bytes"

    stored = store.put(at("a/b.bin"), data)
    head = store.head(at("a/b.bin"))

    assert store.get(at("a/b.bin")) == data
    assert (stored.size_bytes, stored.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert (head.size_bytes, head.etag, head.location) == (stored.size_bytes, stored.etag, at("a/b.bin"))
    assert abs(head.modified_at - datetime.now(UTC)) < timedelta(minutes=5)
    assert store.sha256(at("a/b.bin")) == stored.sha256
    assert store.exists(at("a/b.bin"))


@pytest.mark.requirement("S2")
@pytest.mark.parametrize("data", [b"", b"\0" * 3_000_000], ids=["empty", "large"])
def test_objects_of_any_size_can_be_stored_as_bytes_and_as_files(store, tmp_path, data):
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_bytes(data)

    store.put_file(at("file"), source)
    store.get_file(at("file"), target)

    assert store.get(at("file")) == target.read_bytes() == data
    assert source.exists()


@pytest.mark.requirement("S2")
def test_names_can_have_spaces_accents_and_special_characters(store):
    odd = at("Été 2024/α β/100%#&+='.tif")

    store.put(odd, b"x")

    assert store.get(odd) == b"x"
    assert names(store) == [odd.blob]


@pytest.mark.requirement("S2")
@pytest.mark.parametrize("verb", ["get", "head", "sha256"])
def test_a_missing_object_is_not_found(store, verb):
    store.put(at("a"), b"x")

    for missing in (at("b"), at("a/below"), at("a", "other-container")):
        with pytest.raises(NotFound) as refused:
            getattr(store, verb)(missing)
        assert refused.value.code == "storage.not-found"
        assert not store.exists(missing)


@pytest.mark.requirement("S2")
def test_a_missing_object_or_file_creates_nothing(store, tmp_path):
    with pytest.raises(NotFound):
        store.get_file(at("none"), tmp_path / "out")
    with pytest.raises(NotFound):
        store.put_file(at("none"), tmp_path / "no-such-file")

    assert not (tmp_path / "out").exists()
    assert not store.exists(at("none"))


@pytest.mark.requirement("S2")
def test_a_range_ends_at_the_end_of_the_object(store):
    store.put(at("digits"), b"0123456789")

    assert store.get_range(at("digits"), 2, 3) == b"234"
    assert store.get_range(at("digits"), 8, 100) == b"89"
    for start, length in ((10, 1), (-1, 2), (0, 0), (3, -1)):
        with pytest.raises(InvalidRequest) as refused:
            store.get_range(at("digits"), start, length)
        assert refused.value.code == "storage.bad-range"
    with pytest.raises(NotFound):
        store.get_range(at("none"), 0, 1)


@pytest.mark.requirement("S2")
def test_a_put_replaces_the_object_and_changes_the_etag(store):
    before = store.put(at("x"), b"one")
    after = store.put(at("x"), b"two")

    assert store.get(at("x")) == b"two"
    assert before.etag != after.etag
    assert after.is_new


@pytest.mark.requirement("S4")
@pytest.mark.parametrize("from_file", [False, True], ids=["bytes", "file"])
@pytest.mark.parametrize("move", [False, True], ids=["copied", "moved"])
def test_a_published_object_is_never_overwritten(store, tmp_path, from_file, move):
    first = store.put(at("cog.tif"), b"served", create_only=True)

    def put(data: bytes):
        if not from_file:
            return store.put(at("cog.tif"), data, create_only=True)
        file = tmp_path / "file"
        file.write_bytes(data)
        return store.put_file(at("cog.tif"), file, move=move, create_only=True)

    again = put(b"served")
    with pytest.raises(Conflict) as refused:
        put(b"others")

    assert refused.value.code == "storage.taken"
    assert (again.is_new, again.etag, again.sha256) == (False, first.etag, first.sha256)
    assert store.get(at("cog.tif")) == b"served"
    if from_file:  # a file that was refused is not moved away
        assert (tmp_path / "file").read_bytes() == b"others"


@pytest.mark.requirement("S4")
def test_one_of_several_concurrent_publications_succeeds(store):
    start = threading.Barrier(8)

    def publish(number: int) -> str:
        start.wait()
        try:
            return store.put(at("cog.tif"), b"%d" % (number % 2), create_only=True).sha256
        except Conflict:
            return "conflict"

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(publish, range(8)))

    winner = int(store.get(at("cog.tif")))
    assert [results[number] == "conflict" for number in range(8)] == [number % 2 != winner for number in range(8)]


@pytest.mark.requirement("S4")
def test_a_reader_gets_the_complete_old_or_new_object(store):
    contents = [bytes([digit]) * 500_000 for digit in range(4)]
    store.put(at("x"), contents[0])
    done = threading.Event()

    def write():
        for number in range(12):
            store.put(at("x"), contents[number % 4])
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = []
    while not done.is_set():
        seen.append(store.get(at("x")))
    writer.join()

    assert all(content in contents for content in seen)


@pytest.mark.requirement("S4")
def test_a_moved_file_no_longer_exists_at_its_source(store, tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"x")

    store.put_file(at("x"), file, move=True)

    assert not file.exists()
    assert store.get(at("x")) == b"x"


@pytest.mark.requirement("S2")
def test_a_listing_contains_all_objects_below_a_folder(store):
    for blob in ("a/b/c", "a/bc", "a/b/d/e", "f"):
        store.put(at(blob), b"x")
    store.put(at("a/b/other", "other-container"), b"x")

    assert names(store) == ["a/b/c", "a/b/d/e", "a/bc", "f"]
    assert names(store, "a/b") == ["a/b/c", "a/b/d/e"]
    assert names(store, "f") == names(store, "none") == names(store, container="empty") == []
    assert {stored.size_bytes for stored in store.list(Folder(Zone.SILVER, "silver"))} == {1}


@pytest.mark.requirement("S2")
def test_deleting_a_missing_object_is_not_an_error(store):
    store.put(at("a/b"), b"x")

    store.delete(at("a/b"))
    store.delete(at("a/b"))

    assert names(store) == []
    store.put(at("a"), b"an empty folder does not exist")


@pytest.mark.requirement("S4")
def test_objects_can_be_created_while_others_in_their_folder_are_deleted(store):
    rounds = (
        50 if isinstance(store, LocalStore) else 5
    )  # only in a local store are folders created and deleted with their objects

    def create_and_delete(number: int) -> None:
        for _ in range(rounds):
            store.put(at(f"deep/folder/{number}"), b"x", create_only=True)
            store.delete(at(f"deep/folder/{number}"))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(create_and_delete, range(4)))

    assert names(store) == []


@pytest.mark.requirement("S4")
def test_folders_directly_below_a_folder_are_listed(store):
    for blob in ("a/x", "a/deep/y", "b/c/z", "file"):
        store.put(at(blob), b"x")

    assert sorted(store.folders(Folder(Zone.SILVER, "silver"))) == ["a", "b"]
    assert sorted(store.folders(Folder(Zone.SILVER, "silver", "a"))) == ["deep"]
    assert list(store.folders(Folder(Zone.SILVER, "never-made"))) == []


@pytest.mark.requirement("S4")
def test_a_folder_is_deleted_with_all_its_objects(store):
    for blob in ("a/x", "a/deep/y", "ab/x", "b"):
        store.put(at(blob), b"x")

    for _ in range(2):  # the second time there is nothing to delete
        store.delete_all(Folder(Zone.SILVER, "silver", "a"))
        store.remove_leftovers()

    assert names(store) == ["ab/x", "b"]
    with pytest.raises(InvalidRequest) as refused:
        store.delete_all(Folder(Zone.SILVER, "silver"))
    assert refused.value.code == "storage.bad-folder"
    assert names(store) == ["ab/x", "b"]


@pytest.mark.requirement("S4")
def test_a_scratch_folder_is_private_and_removed_after_use(store):
    with store.scratch(JOB) as mine, store.scratch(JOB) as other:
        (mine / "x").write_bytes(b"x")
        assert mine != other
        assert not any(other.iterdir())
        assert names(store) == []

    assert not mine.exists()
    assert not other.exists()


@pytest.mark.requirement("S4")
def test_the_scratch_folder_of_a_killed_task_is_removed_with_its_job(store):
    killed, alive = store.scratch(JOB), store.scratch(OTHER_JOB)
    left, kept = killed.__enter__(), alive.__enter__()
    (left / "half.tif").write_bytes(b"x")

    assert set(store.scratch_jobs()) == {JOB, OTHER_JOB}
    store.clear_scratch(JOB)
    store.remove_leftovers()

    assert not left.exists()
    assert set(store.scratch_jobs()) == {OTHER_JOB}
    assert kept.exists()
    alive.__exit__(None, None, None)


@pytest.mark.requirement("S2")
def test_objects_are_listed_in_order_after_any_name(store):
    blobs = ["a-b", "a.tif", "a/b", "a/c/d", "a/c/é", "a/cc", "a0", "b/x"]
    for blob in reversed(blobs):
        store.put(at(blob), b"x")

    def page(prefix="", after="", limit=100):
        return [info.location.blob for info in store.page("silver", prefix, after, limit)]

    assert page() == sorted(blobs) == blobs
    for after in ("", "a", "a/", "a/b", "a/bz", "a/c/d", "a/c/zz", "zz"):
        for prefix in ("", "a", "a/", "a/c", "a/c/", "b/x", "nothing"):
            expected = [blob for blob in blobs if blob.startswith(prefix) and blob > after]
            assert page(prefix, after) == expected, (prefix, after)
            assert page(prefix, after, 2) == expected[:2], (prefix, after)
    assert store.page("other", "", "", 5) in ([], ())
