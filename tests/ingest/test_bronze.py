"""Files are copied to the bronze zone under their own names."""

import errno
import fcntl
import os
from dataclasses import replace
from functools import partial

import pytest

from dagmaster.cli.command import State
from dagmaster.cli.progress import progress_bar
from dagmaster.errors import InvalidRequest
from dagmaster.ingest import bronze
from dagmaster.ingest.bronze import copy_file, places_in_bronze
from dagmaster.ingest.sources import LocalFile
from dagmaster.settings import Settings
from dagmaster.storage.zones import open_storage

PROGRESS = partial(progress_bar, State())


@pytest.fixture
def files(tmp_path):
    def make(**contents):
        files = []
        for folder, content in contents.items():
            path = tmp_path / folder / "dem.tif"
            path.parent.mkdir()
            path.write_bytes(content)
            files.append(LocalFile(f"{folder}/dem.tif", path))
        return files

    return make


@pytest.fixture
def storage(tmp_path):
    return open_storage(Settings(STORAGE_FOLDER=str(tmp_path / "storage")))


def test_files_with_the_same_name_from_two_folders_get_different_object_names(storage, files):
    both = files(one=b"first", two=b"second")

    copies = places_in_bronze(storage, both, PROGRESS)
    for copy in copies:
        copy_file(storage, copy, PROGRESS)
    again = places_in_bronze(storage, both, PROGRESS)

    assert [storage.get(copy.location) for copy in copies] == [b"first", b"second"]
    assert [copy.location for copy in again] == [copy.location for copy in copies]
    assert all(copy.is_stored for copy in again)


def test_the_same_content_twice_is_refused(storage, files):
    with pytest.raises(InvalidRequest, match=r"one/dem\.tif and two/dem\.tif have the same content"):
        places_in_bronze(storage, files(one=b"same", two=b"same"), PROGRESS)


def _copied(storage, file):
    local = LocalFile(str(file), file)
    (copy,) = places_in_bronze(storage, [local], PROGRESS)
    assert not copy.is_stored
    copy_file(storage, copy, PROGRESS)
    assert places_in_bronze(storage, [local], PROGRESS) == [replace(copy, is_stored=True)]
    return copy.location


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a.tif"
    path.write_bytes(b"pixels")
    return path


def test_later_edits_of_the_file_do_not_change_its_copy_in_the_zone(storage, file):
    location = _copied(storage, file)
    file.write_bytes(b"edited")

    assert storage.get(location) == b"pixels"
    assert location.path == "bronze/a.tif"


def test_on_a_file_system_that_shares_blocks_nothing_is_copied(storage, file, monkeypatch):
    def share(target, request, source):
        assert request == 0x40049409
        os.sendfile(target, source, 0, 1000)

    monkeypatch.setattr(fcntl, "ioctl", share)
    monkeypatch.setattr("dagmaster.storage.local._copy", None)

    location = _copied(storage, file)

    assert storage.get(location) == b"pixels"
    assert file.exists()


def test_a_clone_that_fails_for_another_reason_raises_its_error(storage, file, monkeypatch):
    def fail(*_):
        raise OSError(errno.EIO, "broken disk")

    monkeypatch.setattr(fcntl, "ioctl", fail)

    with pytest.raises(OSError, match="broken disk"):
        _copied(storage, file)


@pytest.mark.parametrize(
    ("name", "blob"),
    [("Scène é.TIF", "Scène é.TIF"), ("e\u0301.tif", "é.tif"), ("a\nb .tif", "a-b.tif"), (" a .tif", "a.tif")],
)
def test_names_that_a_store_would_refuse_are_replaced(storage, tmp_path, name, blob):
    path = tmp_path / name
    path.write_bytes(b"pixels")

    assert _copied(storage, path).blob == blob


def test_the_position_of_a_reader_in_a_file_is_known(file):
    with file.open("rb", buffering=0) as reader:
        reader.read(4)
        assert bronze._position_in(file) == 4

    assert bronze._position_in(file) == 0
