"""Items contain measured values and given metadata, and nothing else."""

import json
import math
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pystac
import pytest
from rio_tiler.colormap import cmap

from dagmaster.errors import InvalidRequest
from dagmaster.raster.analysis.footprint import footprint
from dagmaster.raster.analysis.statistics import band_statistics
from dagmaster.raster.source.facts import BandFacts, read_facts
from dagmaster.raster.source.reading import header_bytes
from dagmaster.stac.bands import number, resolution_metres
from dagmaster.stac.item import item_id
from dagmaster.stac.renders import renders
from dagmaster.stac.validate import problems
from dagmaster.stac.values import Cog, Dataset, Links, Version, multihash
from dagmaster.stac.when import ItemTime, parse_when, when_of
from tests.raster.scenes import smooth, write
from tests.stac.documents import HOST, LINKS, PALETTE, PROCESSED, SHA, an_item, cog, facts, statistics

pytestmark = pytest.mark.requirement("C1")

COLOURS = tuple(BandFacts("uint8", color=color) for color in ("red", "green", "blue", "alpha"))


def data_of(document):
    return document["assets"]["data"]


def test_the_example_item_is_valid():
    document = an_item()

    assert problems(document) == []
    assert (document["id"], document["collection"]) == ("wellington-dem-v1", "wellington-dem")
    assert data_of(document)["file:checksum"] == f"1220{SHA}"
    assert data_of(document)["proj:transform"] == [0.001, 0.0, 174.0, 0.0, -0.001, -41.0, 0.0, 0.0, 1.0]
    assert document["properties"]["renders"]["default"]["rescale"] == [[14.63, 64.07]]
    assert document["properties"]["platform:request_id"] == "R7"
    assert document["properties"]["dagmaster:source_checksum"] == f"1220{SHA}"
    assert {link["rel"]: link.get("render") for link in document["links"]}["xyz"] == "default"


def test_an_item_is_plain_json_and_deterministic():
    one, other = an_item(), an_item()

    assert json.dumps(one, allow_nan=False) == json.dumps(other, allow_nan=False)
    assert json.loads(json.dumps(one)) == one


def test_documents_are_unchanged_by_pystac():
    document = an_item()

    read = pystac.Item.from_dict(document, migrate=False)  # the migration of pystac would remove `proj:epsg`

    assert read.to_dict(transform_hrefs=False) == document
    assert read.common_metadata.start_datetime == datetime(2024, 1, 1, tzinfo=UTC)


def test_a_new_revision_replaces_the_item():
    first = an_item(created=datetime(2026, 1, 1, tzinfo=UTC))
    second = an_item(version=Version(1, 2, "2025-Q1"), created=datetime(2026, 1, 1, tzinfo=UTC))

    assert first["id"] == second["id"]
    assert second["properties"]["dagmaster:revision"] == 2
    assert (second["properties"]["created"], second["properties"]["updated"]) == (
        "2026-01-01T00:00:00Z",
        "2026-03-04T05:06:07Z",
    )


def test_a_tile_has_its_own_id_and_the_renders_of_the_whole_dataset():
    whole = {"default": {"assets": ["data"], "rescale": [[0, 100]]}}

    document = an_item(tile="r003c012", shown_as=whole)

    assert document["id"] == "wellington-dem-v1-r003c012"
    assert document["properties"]["renders"] == whole
    assert problems(document) == []


def test_an_item_has_a_datetime_or_an_interval():
    moment = an_item(when=ItemTime(datetime(2024, 5, 1, 10, tzinfo=UTC), basis="acquisition"))["properties"]
    interval = an_item()["properties"]

    assert moment["datetime"] == "2024-05-01T10:00:00Z"
    assert "start_datetime" not in moment
    assert moment["dagmaster:datetime_basis"] == "acquisition"
    assert (interval["datetime"], interval["end_datetime"]) == (None, "2024-12-31T23:59:59Z")


@pytest.mark.parametrize("text", ["2024-07-01", "2024-07-01T10:00:00Z/2024-07-01T12:00:00Z"])
def test_an_item_of_one_day_has_a_datetime_and_its_interval(text):
    document = an_item(when=parse_when(text))
    times = document["properties"]

    assert times["datetime"] == times["start_datetime"]
    assert times["datetime"].startswith("2024-07-01T")
    assert times["end_datetime"] > times["start_datetime"]
    assert when_of(times) == parse_when(text)
    assert pystac.Item.from_dict(document).datetime is not None
    assert problems(document) == []


@pytest.mark.parametrize("text", ["2024-07", "2024", "2024-07-01/2024-07-02", "1970-01-01"])
def test_an_item_of_more_than_a_day_has_only_an_interval(text):
    document = an_item(when=parse_when(text))

    assert document["properties"]["datetime"] is None
    assert problems(document) == []


def test_the_time_of_publication_is_not_the_time_of_the_data():
    supplied = datetime(2024, 7, 1, 10, tzinfo=UTC)

    assert an_item(when=ItemTime(supplied, supplied, "publication"))["properties"]["datetime"] is None


def test_bands_have_the_names_that_older_readers_use():
    bands = [
        BandFacts("uint8", color=color, description=text)
        for color, text in (("red", None), ("green", None), ("undefined", "NIR"), ("undefined", "depth"))
    ]
    document = an_item(cog=cog(facts(*bands), band_names=["r", "green", "n", "d"]))

    assert data_of(document)["eo:bands"] == [
        {"name": "r", "common_name": "red"},
        {"name": "green", "common_name": "green"},
        {"name": "n", "common_name": "nir"},
        {"name": "d"},
    ]
    assert (data_of(document)["proj:epsg"], document["properties"]["proj:epsg"]) == (4326, 4326)
    assert problems(document) == []


def test_only_extensions_that_are_used_are_declared():
    document = an_item(published=None, links=Links(collection=LINKS.collection), platform=None, thumbnail=None)

    names = [address.split("/")[3] for address in document["stac_extensions"]]
    assert names == ["projection", "raster", "eo", "file", "processing", "version", "render"]
    assert problems(document) == []


@pytest.mark.parametrize(
    ("value", "written"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf"), (-9999.0, -9999), (0.5, 0.5)]
)
def test_nan_and_infinity_are_strings(value, written):
    document = an_item(cog=cog(facts(BandFacts("float32", nodata=value)), statistics=[statistics()]))

    assert number(value) == written
    assert data_of(document)["bands"][0]["nodata"] == written
    assert document["properties"]["renders"]["default"]["nodata"] == written
    assert problems(document) == []


def test_bands_keep_the_metadata_of_the_file():
    band = BandFacts("int16", description="depth", unit="cm", scale=0.1, offset=-5.0, bits=12, nodata=-1.0)

    document = an_item(cog=cog(facts(band, is_point=True), band_names=["rp100"]))

    [described] = data_of(document)["bands"]
    del described["statistics"], described["raster:histogram"]
    assert described == {
        "name": "rp100",
        "description": "depth",
        "data_type": "int16",
        "nodata": -1,
        "unit": "cm",
        "raster:sampling": "point",
        "raster:spatial_resolution": 96.699,
        "raster:scale": 0.1,
        "raster:offset": -5,
        "raster:bits_per_sample": 12,
    }
    assert problems(document) == []


def test_a_band_without_data_has_no_statistics():
    [band] = data_of(an_item(cog=cog(statistics=[None])))["bands"]

    assert "statistics" not in band
    assert "raster:histogram" not in band


@pytest.mark.parametrize(
    ("crs", "transform", "metres"),
    [
        ("EPSG:32633", (30.0, 0.0, 4e5, 0.0, -30.0, 5.4e6), 30.0),
        ("EPSG:32633", (24.0, 18.0, 4e5, 18.0, -24.0, 5.4e6), 30.0),
        ("EPSG:2263", (3.0, 0.0, 9e5, 0.0, -3.0, 2e5), 0.9144),
        ("EPSG:4326", (1 / 3600, 0.0, 10.0, 0.0, -1 / 3600, 0.01), 30.922),
    ],
)
def test_resolution_is_in_metres(crs, transform, metres):
    given = facts(crs=crs, transform=transform, bounds=(0.0, -0.01, 1.0, 0.01))

    assert resolution_metres(given) == pytest.approx(metres, rel=1e-3)


def test_a_crs_without_a_code_is_given_as_wkt():
    wkt = (
        'PROJCS["mine",GEOGCS["WGS 84",DATUM["WGS_1984",SPHEROID["WGS 84",6378137,298.257223563]],'
        'PRIMEM["Greenwich",0],UNIT["degree",0.0174532925199433]],PROJECTION["Transverse_Mercator"],PARAMETER["central_meridian",7],UNIT["metre",1]]'
    )

    asset = data_of(an_item(cog=cog(facts(crs=wkt))))

    assert "proj:code" not in asset
    assert asset["proj:wkt2"].startswith("PROJCRS[")
    assert problems(an_item(cog=cog(facts(crs=wkt)))) == []


# Renders


@pytest.mark.parametrize(
    ("kind", "bands", "expected"),
    [
        (
            "dem",
            (BandFacts("float32"),),
            {"rescale": [[14.63, 64.07]], "colormap_name": "terrain", "resampling": "bilinear"},
        ),
        ("rgba", COLOURS, {"rescale": [[0, 255]] * 3, "bidx": [1, 2, 3], "resampling": "bilinear"}),
        (
            "rgb",
            tuple(replace(band, dtype="uint16") for band in COLOURS[2::-1]),
            {"rescale": [[14.63, 64.07]] * 3, "bidx": [3, 2, 1]},
        ),
        ("multispectral", (BandFacts("uint16"),) * 8, {"bidx": [1, 2, 3], "rescale": [[14.63, 64.07]] * 3}),
        (
            "multispectral",
            tuple(BandFacts("uint16", description=name) for name in ("B02", "B03", "B04", "B08")),
            {"bidx": [3, 2, 1]},
        ),
        ("vegetation_index", (BandFacts("float32"),), {"colormap_name": "rdylgn"}),
        (
            "categorical",
            (BandFacts("uint8", nodata=0),),
            {"colormap_name": "tab20", "resampling": "nearest", "nodata": 0},
        ),
        ("unknown", (BandFacts("float32"), BandFacts("float32")), {"bidx": [1], "rescale": [[14.63, 64.07]]}),
    ],
)
def test_the_default_render_depends_on_the_type_of_the_raster(kind, bands, expected):
    given = cog(facts(*bands), raster_type=kind)

    [default] = renders(given).values()

    assert expected.items() <= default.items()
    assert default.get("colormap_name", "terrain") in cmap.list()
    assert problems(an_item(cog=given)) == []


def test_a_palette_becomes_a_colormap_and_classes():
    palette = PALETTE | dict.fromkeys(range(3, 256), (0, 0, 0, 255))
    band = BandFacts("uint8", color="palette", nodata=0, palette=palette)

    document = an_item(
        cog=cog(facts(band), raster_type="categorical", statistics=[None], class_names={1: "Dry forest", 2: "Water"})
    )

    assert document["properties"]["renders"]["default"]["colormap"] == {
        "0": "#00000000",
        "1": "#228b22",
        "2": "#1e90ff",
    }
    assert data_of(document)["classification:classes"] == [
        {"value": 0, "name": "class-0", "color_hint": "000000", "nodata": True},
        {"value": 1, "name": "Dry-forest", "color_hint": "228B22", "title": "Dry forest"},
        {"value": 2, "name": "Water", "color_hint": "1E90FF", "title": "Water"},
    ]
    assert problems(document) == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (statistics(5, 5), [[5, 6]]),
        (None, [[0, 65535]]),
        (replace(statistics(0, 9), percentiles={2: 3.0, 98: 3.0}), [[0, 9]]),
    ],
)
def test_a_constant_band_has_a_value_range_to_display(given, expected):
    ranges = renders(cog(facts(BandFacts("uint16")), statistics=[given]))

    assert ranges["default"]["rescale"] == expected


# Content that must not be published


@pytest.mark.parametrize(
    "href",
    [
        "/vsiaz/container/dem.tif",
        "/data/dem.tif",
        "file:///data/dem.tif",
        "s3://bucket/dem.tif",
        "dem.tif",
        f"{HOST}/dem.tif?sv=2024-01-01&sig=abc",
        f"{HOST}/dem.tif?X-Amz-Signature=abc",
        f"{HOST}/dem.tif?token=abc",
        "https://user:secret@data.example.org/dem.tif",
        f"{HOST}/cog?url=/vsicurl/http://internal/a.tif",
        f"{HOST}/a b.tif",
        "https:///dem.tif",
        "//data.example.org/dem.tif",
        "/files/silver/silver/dem.tif?sig=abc",
        "/files/silver/silver/a b.tif",
        "/tmp/dem.tif",
    ],
)
def test_addresses_that_are_not_public_are_refused(href):
    for changes in (
        {"cog": cog(href=href)},
        {"thumbnail": href},
        {"links": replace(LINKS, history=href)},
        {"links": replace(LINKS, xyz=href)},
    ):
        with pytest.raises(InvalidRequest) as refused:
            an_item(**changes)

        assert refused.value.code == "stac.href-not-public"
        assert "secret" not in str(refused.value)


def test_an_item_can_have_paths_relative_to_its_server():
    links = replace(
        LINKS,
        collection="/stac/collections/roads",
        self_="/stac/collections/roads/items/roads-v0",
        xyz="/tiles/roads/tiles/WebMercatorQuad/{z}/{x}/{y}.png?version=0",
    )

    item = an_item(cog=cog(href="/files/silver/silver/cogs/roads/v0/r1/roads.tif"), links=links)

    assert problems(item) == []


def test_malformed_ids_and_checksums_are_refused():
    assert item_id("roads", 0) == "roads-v0"
    for wrong in (
        lambda: Dataset("Two Words"),
        lambda: item_id("roads", 0, "R3 C12"),
        lambda: multihash("abc"),
        lambda: an_item(platform={"Data-Set": "x"}),
        lambda: an_item(links=Links()),
    ):
        with pytest.raises(InvalidRequest):
            wrong()


# From a file to an item


def test_the_item_of_a_real_raster_agrees_with_its_pixels(tmp_path):
    data = (smooth(600, 800) * 400).astype("float32")
    data[:200, :300] = -9999
    path = write(tmp_path / "dem.tif", data, nodata=-9999, overviews=(2, 4))
    size = path.stat().st_size
    measured = Cog(
        href=f"{HOST}/dem.tif",
        facts=read_facts(path),
        size_bytes=size,
        sha256=SHA,
        raster_type="dem",
        statistics=band_statistics([(path, None)], exact=True),
        header_bytes=header_bytes(path),
    )

    document = an_item(cog=measured, footprint=footprint(path))

    assert problems(document) == []
    seen = data[data != -9999]
    statistics = data_of(document)["bands"][0]["statistics"]
    assert statistics["count"] == seen.size
    assert (statistics["mean"], statistics["stddev"]) == pytest.approx((seen.mean(dtype="f8"), seen.std(dtype="f8")))
    assert document["bbox"] == pytest.approx([10.0, 49.4, 10.8, 50.0])
    assert 0 < data_of(document)["file:header_size"] < size
    assert str(tmp_path) not in json.dumps(document)
    assert np.isclose(document["properties"]["gsd"], 89, atol=3)


def test_the_processing_is_described():
    properties = an_item()["properties"]

    assert properties["processing:datetime"] == properties["updated"] == PROCESSED.isoformat().replace("+00:00", "Z")
    assert properties["processing:software"] == {"dagmaster": "0.1.0", "gdal": "3.10.3"}
    assert properties["processing:version"] == "raster_ingest@2"
