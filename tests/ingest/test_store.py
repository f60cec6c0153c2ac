"""Files are stored in the bronze zone: copied if this machine has access to it, otherwise uploaded to the platform."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from dagmaster.cli.command import State
from dagmaster.cli.progress import progress_bar
from dagmaster.errors import InvalidRequest
from dagmaster.ingest import store
from dagmaster.ingest.sources import LocalFile
from dagmaster.settings import Settings
from dagmaster.storage.location import Zone
from dagmaster.storage.zones import open_storage


@pytest.fixture
def storage(tmp_path):
    return open_storage(Settings(STORAGE_FOLDER=str(tmp_path / "storage")))


@pytest.fixture
def files(tmp_path):
    for name in ("a.tif", "b.tif"):
        (tmp_path / name).write_text(name)
    return [LocalFile(name, tmp_path / name) for name in ("a.tif", "b.tif")]


def stored(storage: Any, files: list[LocalFile], **options: Any) -> tuple[str, list[str]]:
    progress = partial(progress_bar, State())
    return store.store_files(None, storage, files, progress, print, platform_id="ddh", **options)  # type: ignore[arg-type]


def test_files_are_copied_into_a_zone_on_this_machine(storage, files):
    container, blobs = stored(storage, files)

    assert (container, blobs) == (storage.containers[Zone.BRONZE], ["a.tif", "b.tif"])
    assert [storage.get(storage.location(name, zone=Zone.BRONZE)) for name in blobs] == [b"a.tif", b"b.tif"]


def test_files_are_sent_to_another_platform(monkeypatch, files):
    sent = []

    def upload_files(_client: Any, files: list[LocalFile], platform_id: str, *_: Any) -> list[SimpleNamespace]:
        sent.append(platform_id)
        return [SimpleNamespace(container="raw", blob=f"{platform_id}/{file.label}") for file in files]

    monkeypatch.setattr(store, "upload_files", upload_files)

    assert stored(None, files) == ("raw", ["ddh/a.tif", "ddh/b.tif"])
    assert sent == ["ddh"]


def test_a_dry_run_stores_nothing_and_needs_all_files_in_the_zone(storage, files):
    stored(storage, files[:1])

    with pytest.raises(InvalidRequest, match=r"the bronze zone does not have b\.tif yet"):
        stored(storage, files, is_dry_run=True)
    with pytest.raises(InvalidRequest, match=r"the bronze zone does not have a\.tif yet"):
        stored(None, files, is_dry_run=True)

    assert not storage.exists(storage.location("b.tif", zone=Zone.BRONZE))
    assert stored(storage, files[:1], is_dry_run=True)[1] == ["a.tif"]
