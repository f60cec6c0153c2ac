"""Items and collections of small invented rasters."""

from datetime import UTC, datetime
from typing import Any

from dagmaster.raster.analysis.footprint import Footprint
from dagmaster.raster.analysis.statistics import BandStatistics, Histogram
from dagmaster.raster.source.facts import BandFacts, RasterFacts
from dagmaster.stac.collection import CollectionAssets, collection
from dagmaster.stac.item import item
from dagmaster.stac.values import Cog, Dataset, Links, Processing, Provider, Version
from dagmaster.stac.when import ItemTime

HOST = "https://data.example.org"
SHA = "ab" * 32
PROCESSED = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
YEAR = ItemTime(datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 12, 31, 23, 59, 59, tzinfo=UTC))
PALETTE = {0: (0, 0, 0, 0), 1: (34, 139, 34, 255), 2: (30, 144, 255, 255), 3: (0, 0, 0, 255)}


def statistics(low: float = 13.6, high: float = 65.1) -> BandStatistics:
    step = (high - low) / 100
    return BandStatistics(
        minimum=low,
        maximum=high,
        mean=(low + high) / 2,
        stddev=(high - low) / 5,
        valid_percent=80.0,
        count=1152,
        percentiles={rank: low + rank * step for rank in (2, 25, 50, 75, 98)},
        histogram=Histogram(low, high, (400, 500, 200, 52)),
    )


def facts(*bands: BandFacts, crs: str = "EPSG:4326", **changes: Any) -> RasterFacts:
    values: dict[str, Any] = {
        "path": "source.tif",
        "driver": "GTiff",
        "width": 60,
        "height": 24,
        "bands": bands or (BandFacts("float32", nodata=-9999.0, description="elevation", unit="m"),),
        "crs": crs,
        "transform": (0.001, 0.0, 174.0, 0.0, -0.001, -41.0),
        "bounds": (174.0, -41.024, 174.06, -41.0),
    }
    return RasterFacts(**{**values, **changes})


def cog(given: RasterFacts | None = None, **changes: Any) -> Cog:
    given = given or facts()
    values: dict[str, Any] = {
        "href": f"{HOST}/cogs/dem/v1/r1/dem.tif",
        "facts": given,
        "size_bytes": 123_456,
        "sha256": SHA,
        "statistics": [statistics() for _ in given.bands],
        "raster_type": "dem",
        "header_bytes": 16_384,
    }
    return Cog(**{**values, **changes})


GROUND = Footprint(
    {
        "type": "Polygon",
        "coordinates": [[[174.0, -41.024], [174.06, -41.024], [174.06, -41.0], [174.0, -41.0], [174.0, -41.024]]],
    },
    (174.0, -41.024, 174.06, -41.0),
)
DATASET = Dataset(
    "wellington-dem",
    title="Wellington DEM",
    description="Ground heights",
    keywords=("dem", "lidar"),
    license="CC-BY-4.0",
    providers=(
        Provider("Survey", ("producer", "licensor"), "https://survey.example.org"),
        Provider("Us", ("processor", "host")),
    ),
)
LINKS = Links(
    collection=f"{HOST}/stac/collections/wellington-dem",
    self_=f"{HOST}/stac/collections/wellington-dem/items/wellington-dem-v1",
    root=f"{HOST}/stac",
    history=f"{HOST}/assets/wellington-dem/versions",
    tilejson=f"{HOST}/tiles/wellington-dem/WebMercatorQuad/tilejson.json?version=1",
    xyz=f"{HOST}/tiles/wellington-dem/tiles/WebMercatorQuad/{{z}}/{{x}}/{{y}}.png?version=1",
)
PROCESSING = Processing(
    at=PROCESSED,
    lineage="EPSG:2193 to EPSG:4326 (bilinear), COG DEFLATE predictor 3; revision 1",
    software={"gdal": "3.10.3", "dagmaster": "0.1.0"},
    workflow="raster_ingest@2",
    source_sha256=SHA,
)


def an_item(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "dataset": DATASET,
        "version": Version(1, 1, "2025-Q1"),
        "when": YEAR,
        "cog": cog(),
        "footprint": GROUND,
        "processing": PROCESSING,
        "links": LINKS,
        "platform": {"id": "ddh", "dataset_id": "D1", "request_id": "R7"},
        "thumbnail": f"{HOST}/thumbnails/dem.png",
        "published": datetime(2026, 4, 1, tzinfo=UTC),
    }
    return item(**{**values, **changes})


def a_collection(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "dataset": DATASET,
        "version": Version(1, 1, "2025-Q1"),
        "bbox": (174.0, -41.024, 174.06, -41.0),
        "items": [an_item(tile="r000c000"), an_item(tile="r000c001")],
        "links": Links(
            collection=f"{HOST}/stac/collections/wellington-dem",
            root=f"{HOST}/stac",
            tilejson=LINKS.tilejson,
            xyz=LINKS.xyz,
        ),
        "assets": CollectionAssets(
            mosaic=f"{HOST}/mosaics/wellington-dem/v1/r1/mosaic.json",
            tiling_scheme=f"{HOST}/tiling_schemes/wellington-dem/v1/r1/tiles.geojson",
            thumbnail=f"{HOST}/thumbnails/dem.jpg",
            mosaic_as_cog=cog(),
        ),
        "platform": {"id": "ddh"},
        "updated": PROCESSED,
    }
    return collection(**{**values, **changes})
