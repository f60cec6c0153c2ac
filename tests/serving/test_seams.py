"""Adjacent files that were warped one by one are displayed without gaps between them, at every zoom and size."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import rasterio
from affine import Affine
from morecantile import Tile
from rasterio.crs import CRS
from rasterio.warp import transform
from rio_tiler.constants import WEB_MERCATOR_TMS

from dagmaster.bbox import BBox
from dagmaster.dataset_ids import job_dataset_id
from dagmaster.raster.cog.grid import output_grid
from dagmaster.raster.source.facts import read_facts
from dagmaster.serving.mosaics import Mosaic, MosaicCache
from dagmaster.serving.readers import GDAL_ENVIRONMENT, MosaicReader, ReaderInput
from dagmaster.serving.sources import SourceKind, TileSource
from dagmaster.settings import load
from dagmaster.storage.location import Edition, Location, Zone
from dagmaster.storage.zones import Storage, open_storage
from dagmaster.testing.trial import JOB_ID, run_handler
from tests.raster.rasters import hills, noise, write_raster

pytestmark = pytest.mark.requirement("R10")

WIDTH, HEIGHT = 1400, 700
CORNER = Affine(8, 0, 1_749_991, 0, -8, 5_430_013)
DATASET = job_dataset_id(JOB_ID)
ABOUT = {"dataset_id": DATASET, "when": {"start": "2024-05-01T00:00:00Z"}, "processed_at": "2024-06-01T00:00:00Z"}
DEGREES, MERCATOR = CRS.from_epsg(4326), CRS.from_epsg(3857)


@dataclass(frozen=True)
class Collection:
    """Three neighbours from west to east, in EPSG:2193, as COGs in degrees, and their union at full resolution."""

    storage: Storage
    cogs: list[Location]
    box: BBox
    transform: Affine
    is_inside: np.ndarray

    def reader(self) -> MosaicReader:
        bounds = self.box
        mosaic = Mosaic(bounds, 6, 14, 0, ("",), {"": tuple(self.cogs)})
        source = TileSource("seams", SourceKind.MOSAIC, 0, 1, self.cogs[0], bounds, "x")
        return MosaicReader(
            ReaderInput(source, self.storage, MosaicCache(self.storage.get), mosaic=mosaic), is_display=True
        )

    def covers(self, lon: Any, lat: Any) -> np.ndarray:
        """Whether these positions are in the union, at least one pixel away from its edge."""
        cols, rows = ~self.transform @ (np.asarray(lon), np.asarray(lat))
        cols, rows = np.floor(cols).astype(int), np.floor(rows).astype(int)
        height, width = self.is_inside.shape
        is_near = (cols >= 0) & (rows >= 0) & (cols < width) & (rows < height)
        return is_near & self.is_inside[rows.clip(0, height - 1), cols.clip(0, width - 1)]


@pytest.fixture(scope="module", params=["dem", "rgb"])
def neighbours(request, tmp_path_factory) -> Collection:
    folder = tmp_path_factory.mktemp("seams")
    bronze = folder / "bronze" / "bronze"
    bronze.mkdir(parents=True)
    is_dem = request.param == "dem"
    values = hills(HEIGHT, 3 * WIDTH)[np.newaxis] + 500 if is_dem else noise(3, HEIGHT, 3 * WIDTH)
    for at in range(3):
        own, place = values[:, :, WIDTH * at : WIDTH * (at + 1)], CORNER @ Affine.translation(WIDTH * at, 0)
        write_raster(bronze / f"{at}.tif", own, crs="EPSG:2193", transform=place, nodata=-9999 if is_dem else None)
    sources = [{"blob_name": f"{at}.tif", "raster_type": request.param} for at in range(3)]
    shared = {"about": ABOUT, "resolution": output_grid(read_facts(bronze / "0.tif")).resolution}
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("STORAGE_FOLDER", str(folder))
        environment.setenv("PUBLIC_URL", "https://maps.example.org")
        for at, near in enumerate([[1], [0, 2], [1]]):
            others = [sources[other] for other in near]
            trial = run_handler(
                "raster.create_cog", {"source": sources[at], "neighbours": others, "part": f"part-{at}", **shared}
            )
            assert trial.error is None, trial.error
    storage = open_storage(load(storage_folder=folder))
    edition = Edition(DATASET)
    cogs = [storage.location(edition.cog(f"part-{at}.tif"), zone=Zone.SILVER) for at in range(3)]
    return _collection(storage, cogs)


def _collection(storage: Storage, cogs: list[Location]) -> Collection:
    masks, boxes = [], []
    for cog in cogs:
        with rasterio.open(storage.gdal_path(cog)) as dataset:
            masks.append(dataset.dataset_mask() != 0)
            boxes.append(BBox(*dataset.bounds))
            size = dataset.res
    box = BBox(*(pick(edges) for pick, edges in zip((min, min, max, max), zip(*boxes, strict=True), strict=True)))
    whole = Affine(size[0], 0, box.west, 0, -size[1], box.north)
    shape = round((box.north - box.south) / size[1]), round((box.east - box.west) / size[0])
    union = np.zeros(shape, bool)
    for mask, own in zip(masks, boxes, strict=True):
        col, row = (round(value) for value in ~whole @ (own.west, own.north))
        union[row : row + mask.shape[0], col : col + mask.shape[1]] |= mask
    inner = union.copy()
    for axis in (0, 1):
        for step in (1, -1):
            inner &= np.roll(union, step, axis)
    return Collection(storage, cogs, box, whole, inner)


def test_the_pixels_of_all_overviews_coincide(neighbours):
    for cog in neighbours.cogs:
        with rasterio.open(neighbours.storage.gdal_path(cog)) as dataset:
            coarsest = dataset.overviews(1)[-1]
            assert coarsest == 4
            assert (dataset.width % coarsest, dataset.height % coarsest) == (0, 0)
            cols, rows = (dataset.bounds.left - 180) / dataset.res[0], (90 - dataset.bounds.top) / dataset.res[1]
            assert cols / coarsest == pytest.approx(round(cols / coarsest), abs=1e-4)
            assert rows / coarsest == pytest.approx(round(rows / coarsest), abs=1e-4)


@pytest.mark.parametrize("width", [2300, 1599, 1024, 799, 512, 437, 256, 61])
def test_a_preview_has_no_gap(neighbours, width):
    with rasterio.Env(**GDAL_ENVIRONMENT):
        image = neighbours.reader().preview(width=width)

    box = neighbours.box
    lon = box.west + (np.arange(image.width) + 0.5) * (box.east - box.west) / image.width
    lat = box.north - (np.arange(image.height) + 0.5) * (box.north - box.south) / image.height
    expected = neighbours.covers(*np.meshgrid(lon, lat))
    assert expected.any()
    assert not (expected & image.array.mask.any(axis=0)).any()


@pytest.mark.parametrize("zoom", range(10, 14))
@pytest.mark.parametrize("resampling", ["nearest", "bilinear"])
def test_a_map_has_no_gap(neighbours, zoom, resampling):
    reader, missing, seen = neighbours.reader(), 0, 0
    options = {"reproject_method": resampling, "tilesize": 256}

    with rasterio.Env(**GDAL_ENVIRONMENT):
        for tile in WEB_MERCATOR_TMS.tiles(*neighbours.box, zooms=[zoom]):
            expected = neighbours.covers(*_centres(tile))
            if not expected.any():
                continue
            image = reader.tile(tile.x, tile.y, tile.z, **options)
            seen += expected.sum()
            missing += (expected & image.array.mask.any(axis=0)).sum()

    assert seen > 0
    assert missing == 0


def _centres(tile: Tile) -> tuple[np.ndarray, np.ndarray]:
    west, south, east, north = WEB_MERCATOR_TMS.xy_bounds(tile)
    steps = (np.arange(256) + 0.5) / 256
    x, y = np.meshgrid(west + steps * (east - west), north - steps * (north - south))
    lon, lat = transform(MERCATOR, DEGREES, x.ravel(), y.ravel())
    return np.reshape(lon, x.shape), np.reshape(lat, x.shape)
