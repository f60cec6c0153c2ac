"""A source that is replaced while a job reads it always fails the job."""

from pathlib import Path

import numpy as np
import pytest
from tests.raster.rasters import write_raster

from dagmaster.dataset_ids import job_dataset_id
from dagmaster.errors import UnfitData
from dagmaster.handlers.context import GiveBack
from dagmaster.handlers.raster.sources import SourceParams, etag_of, find_source, unchanged
from dagmaster.jobs.states import Blame
from dagmaster.raster.cog.warp import Copy
from dagmaster.settings import Settings
from dagmaster.storage import open_storage
from dagmaster.testing.trial import JOB_ID, run_handler

pytestmark = pytest.mark.requirement("A4")

ABOUT = {
    "dataset_id": job_dataset_id(JOB_ID),
    "when": {"start": "2024-05-01T00:00:00Z"},
    "processed_at": "2024-06-01T00:00:00Z",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("STORAGE_FOLDER", str(tmp_path))
    bronze = tmp_path / "bronze" / "bronze"
    bronze.mkdir(parents=True)
    write_raster(bronze / "a.tif", np.ones((1, 300, 1200), "uint8"))
    return bronze


@pytest.fixture
def storage(folder):
    return open_storage(Settings(storage_folder=folder.parent.parent))


def replace(path: Path) -> None:
    """Replace the file like an upload does: by another file with the same name and size."""
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    other.replace(path)


def test_a_source_with_another_etag_than_submitted_is_refused(storage, folder):
    source = find_source(storage, SourceParams(blob_name="a.tif"), JOB_ID)
    etag = etag_of(storage, source)

    assert find_source(storage, SourceParams(blob_name="a.tif", etag=etag), JOB_ID) == source
    replace(folder / "a.tif")
    with pytest.raises(UnfitData, match="has changed since it was submitted") as refused:
        find_source(storage, SourceParams(blob_name="a.tif", etag=etag), JOB_ID)
    assert refused.value.code == "source.changed"
    assert "'bronze/a.tif'" in refused.value.message


def read_and_replace(storage, folder, etag, error=None):
    source = find_source(storage, SourceParams(blob_name="a.tif"), JOB_ID)
    with unchanged(storage, source, etag):
        replace(folder / "a.tif")
        if error:
            raise error


@pytest.mark.parametrize("error", [None, OSError("no such block"), UnfitData("is rejected", code="raster.rejected")])
def test_every_error_during_a_change_of_the_source_is_reported_as_the_change(storage, folder, error):
    etag = etag_of(storage, find_source(storage, SourceParams(blob_name="a.tif"), JOB_ID))

    with pytest.raises(UnfitData) as refused:
        read_and_replace(storage, folder, etag, error)

    assert refused.value.code == "source.changed"
    assert refused.value.__cause__ is error


def test_an_error_without_a_change_of_the_source_and_a_give_back_are_not_replaced(storage, folder):
    source = find_source(storage, SourceParams(blob_name="a.tif"), JOB_ID)
    etag = etag_of(storage, source)

    with pytest.raises(OSError, match="disk"), unchanged(storage, source, etag):
        raise OSError("disk")
    with pytest.raises(GiveBack):
        read_and_replace(storage, folder, etag, GiveBack())
    read_and_replace(storage, folder, None)


def test_a_source_that_is_deleted_while_it_is_read_is_reported(storage, folder):
    source = find_source(storage, SourceParams(blob_name="a.tif"), JOB_ID)

    with pytest.raises(UnfitData, match="does not exist"), unchanged(storage, source, None):
        (folder / "a.tif").unlink()


@pytest.mark.parametrize("handler", ["raster.create_cog", "raster.process_tile", "raster.generate_tiling_scheme"])
def test_every_task_compares_the_etag_before_reading(folder, handler):
    grid = {"crs": "EPSG:32633", "origin": [0, 0], "resolution": [10, 10], "width": 512, "height": 512}
    tile = {"grid": grid, "tile": {"tile_id": "r000c000", "window": [0, 0, 512, 512]}}
    params = {"source": {"blob_name": "a.tif", "raster_type": "dem", "etag": "another"}, "about": ABOUT}

    trial = run_handler(handler, params | (tile if handler.endswith("tile") else {}))

    assert (trial.blame, trial.error["code"]) == (Blame.DATA, "source.changed")


def test_a_cog_is_not_published_if_its_source_changed_during_processing(folder, storage, monkeypatch):
    etag = etag_of(storage, find_source(storage, SourceParams(blob_name="a.tif"), JOB_ID))
    block = Copy.block

    def replacing(self, col, row):
        replace(folder / "a.tif")
        return block(self, col, row)

    monkeypatch.setattr(Copy, "block", replacing)
    source = {"blob_name": "a.tif", "raster_type": "dem", "etag": etag}

    trial = run_handler("raster.create_cog", {"source": source, "about": ABOUT, "target_crs": "EPSG:32633"})

    assert trial.error["code"] == "source.changed"
    assert not list(folder.parent.parent.rglob("cogs/**/*"))
