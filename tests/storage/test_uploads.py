"""The bytes of unfinished uploads in a folder."""

import hashlib
import os

import pytest

from dagmaster.errors import Conflict, UnfitData
from dagmaster.storage import Location, Zone
from dagmaster.storage.file_uploads import FileUploads
from dagmaster.storage.local import LocalStore
from tests.storage.test_conformance import JOB as UPLOAD

pytestmark = pytest.mark.requirement("S2")

PLACE = Location(Zone.BRONZE, "bronze", "local/a.tif")


@pytest.fixture
def store(tmp_path):
    return LocalStore(Zone.BRONZE, tmp_path / "bronze")


@pytest.fixture
def uploads(store):
    return FileUploads(store.root / ".uploads", store.link_file)


def test_an_upload_continues_at_its_last_byte(uploads, store):
    first = uploads.open(UPLOAD)
    first.write(b"some ")
    first.sync()
    first.close()
    second = uploads.open(UPLOAD)
    position = second.position
    second.write(b"bytes")
    stored = second.publish(PLACE)
    second.remove()
    second.close()

    assert position == 5
    assert store.get(PLACE) == b"some bytes"
    assert stored.sha256 == hashlib.sha256(b"some bytes").hexdigest()
    assert stored.etag == store.head(PLACE).etag
    assert (uploads.position(UPLOAD), list(uploads.all())) == (0, [])


def test_an_upload_has_one_writer_until_it_is_closed_or_its_process_ends(uploads):
    child = os.fork()
    if not child:
        uploads.open(UPLOAD).write(b"12345")
        os._exit(0)
    os.waitpid(child, 0)
    writer = uploads.open(UPLOAD)
    with pytest.raises(Conflict) as refused:
        uploads.open(UPLOAD)
    writer.close()
    uploads.open(UPLOAD).close()

    assert refused.value.code == "upload.locked"
    assert uploads.position(UPLOAD) == 5


def test_publishing_twice_has_the_effect_of_once(uploads, store):
    writer = uploads.open(UPLOAD)
    writer.write(b"bytes")
    first = writer.publish(PLACE)
    writer.close()
    writer = uploads.open(UPLOAD)  # as after a crash before `remove`
    again = writer.publish(PLACE)

    assert (again.etag, again.sha256) == (first.etag, first.sha256)
    assert not again.is_new


def test_bytes_with_another_hash_and_names_in_use_are_refused(uploads, store):
    store.put(PLACE, b"theirs")
    writer = uploads.open(UPLOAD)
    writer.write(b"ours")
    with pytest.raises(UnfitData):
        writer.publish(Location(Zone.BRONZE, "bronze", "local/b.tif"), "0" * 64)
    with pytest.raises(Conflict):
        writer.publish(PLACE)

    assert store.get(PLACE) == b"theirs"
    assert not store.exists(Location(Zone.BRONZE, "bronze", "local/b.tif"))


def test_nothing_can_be_written_after_closing(uploads):
    writer = uploads.open(UPLOAD)
    writer.close()

    with pytest.raises(ValueError, match="closed"):
        writer.write(b"late")


def test_a_link_in_place_of_an_upload_is_not_followed(uploads, tmp_path):
    target = tmp_path / "elsewhere"
    target.write_bytes(b"")
    uploads.require_space(1)
    (tmp_path / f"bronze/.uploads/{UPLOAD}").symlink_to(target)

    with pytest.raises(Exception, match="cannot be accessed"):
        uploads.open(UPLOAD)
    assert target.read_bytes() == b""
