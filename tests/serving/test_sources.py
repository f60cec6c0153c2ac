"""URLs of the catalogue can only refer to files of the served zones; mosaics return the COGs that a tile touches."""

import json
import random

import numpy as np
import pytest
from morecantile import tms

from dagmaster.database.assets.publications import LayerTexts
from dagmaster.errors import UnfitData
from dagmaster.serving.mosaics import MAX_ASSETS, MosaicCache, parse
from dagmaster.serving.readers import ReaderInput, open_for_display
from dagmaster.serving.rendering import rendering_of
from dagmaster.serving.sources import SourceKind, TileSource, _described, _mosaic_source, cog_source, location_of
from dagmaster.storage.location import Edition, Location, Zone
from dagmaster.web_mercator import quadkey
from tests.serving.conftest import BOX
from tests.serving.data import href, stored, write_cog

pytestmark = pytest.mark.requirement("C2")

GRID = tms.get("WebMercatorQuad")
MOSAIC = Location(Zone.SILVER, "silver", "mosaics/x/v0/r1/mosaic.json")


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("http://127.0.0.1:8003/files/silver/silver/cogs/x/v0/r1/a.tif", "silver/cogs/x/v0/r1/a.tif"),
        ("https://maps.example/geo/files/external/maps/a%20b.tif", "maps/a b.tif"),
        ("/files/silver/silver/cogs/x/v0/r1/a.tif", "silver/cogs/x/v0/r1/a.tif"),
    ],
)
def test_a_url_of_the_server_is_converted_to_a_location(address, path):
    assert location_of(address).path == path


@pytest.mark.parametrize(
    "address",
    [
        "/vsicurl/http://127.0.0.1/x.tif",
        "file:///files/silver/silver/x.tif",
        "//files/silver/silver/x.tif",
        "files/silver/silver/x.tif",
        "http://h/files/bronze/bronze/secret.tif",
        "http://h/files/silver/silver/../../bronze/bronze/secret.tif",
        "http://h/files/silver/silver/%2e%2e/%2e%2e/bronze/secret.tif",
        "http://h/other/silver/silver/x.tif",
        "http://h/files/silver/silver//etc/passwd",
        "http://h/files/silver/",
        "s3://bucket/files/silver/silver/x.tif",
        "",
    ],
)
def test_any_other_url_is_refused(address):
    with pytest.raises(UnfitData):
        location_of(address)


def mosaic(tiles, **more):
    document = {"mosaicjson": "0.0.3", "minzoom": 6, "maxzoom": 10, "quadkey_zoom": 8, "bounds": BOX, "tiles": tiles}
    return parse(json.dumps({**document, **more}).encode(), MOSAIC)


def test_asset_names_of_a_mosaic_are_relative_to_its_edition():
    read = mosaic({"12020312": ["r0/a.tif", "b.tif"], "12020313": ["b.tif"]}, asset_prefix="t-")

    assert [place.blob for place in read.all_assets()] == ["cogs/x/v0/r1/t-r0/a.tif", "cogs/x/v0/r1/t-b.tif"]


def test_assets_of_a_mosaic_can_be_urls_of_the_server():
    read = mosaic({"12020312": ["r0.tif"]}, asset_prefix="http://h/files/silver/silver/cogs/x/v0/r1/")

    assert read.all_assets() == [Location(Zone.SILVER, "silver", "cogs/x/v0/r1/r0.tif")]


@pytest.mark.parametrize(
    "name",
    ["../../../../secret.tif", "/etc/passwd", "/vsicurl/http://h/x.tif", "http://h/x.tif", "s3://b/x.tif", "", "."],
)
def test_a_mosaic_with_files_outside_the_storage_is_refused(name):
    with pytest.raises(UnfitData):
        mosaic({"12020312": [name]})


@pytest.mark.parametrize("document", [b"", b"[]", b"{}", b'{"mosaicjson": "0.0.3", "tiles": 7}', b"\xff"])
def test_a_document_that_is_not_a_mosaic_is_refused(document):
    with pytest.raises(UnfitData):
        parse(document, MOSAIC)


def test_the_assets_of_a_tile_are_those_of_every_quadkey_it_touches():
    """Compared with a search of the whole index, at zoom levels above, at and below that of the index."""
    seeded = random.Random(11)
    index = {
        quadkey(seeded.randrange(530, 550), seeded.randrange(340, 350), 10): [f"a{n}.tif", f"b{n % 7}.tif"]
        for n in range(120)
    }
    read = mosaic(index, quadkey_zoom=10)

    for _ in range(300):
        zoom = seeded.randrange(0, 14)
        lon, lat = seeded.uniform(4, 14), seeded.uniform(49, 52)
        x, y, z = GRID.tile(lon, lat, zoom)
        key = quadkey(x, y, z)
        touched = {
            name for other, names in index.items() if other.startswith(key) or key.startswith(other) for name in names
        }
        assert {place.name for place in read.assets_for_tile(x, y, z)} == touched


def test_a_tile_of_too_many_files_is_refused(storage):
    tiles = {"12020312": [f"{n}.tif" for n in range(MAX_ASSETS + 1)]}
    document = json.dumps(
        {"mosaicjson": "0.0.3", "minzoom": 0, "maxzoom": 10, "quadkey_zoom": 8, "tiles": tiles}
    ).encode()
    source = TileSource("x", SourceKind.MOSAIC, 0, 1, MOSAIC, BOX, "d")
    x, y, z = GRID.quadkey_to_tile("12020312")

    with (
        open_for_display(ReaderInput(source, storage, MosaicCache(lambda _: document))) as opened,
        pytest.raises(Exception, match="501 files"),
    ):
        opened.tile(x, y, z)


def test_a_file_that_is_not_a_tiff_is_not_opened(storage, tmp_path):
    """A VRT could refer to any file or host."""
    inner = write_cog(tmp_path / "inner.tif", np.full((1, 64, 64), 1, np.uint8), BOX)
    location = storage.location("cogs/vrt/v0/r1/x.tif", zone=Zone.SILVER)
    vrt = f"""<VRTDataset rasterXSize="64" rasterYSize="64"><SRS>EPSG:4326</SRS>
    <GeoTransform>10,0.0156,0,51,0,-0.0156</GeoTransform>
    <VRTRasterBand dataType="Byte" band="1">
    <SimpleSource><SourceFilename>{inner}</SourceFilename></SimpleSource>
    </VRTRasterBand>
    </VRTDataset>"""
    storage.put(location, vrt.encode())
    source = TileSource("vrt", SourceKind.COG, 0, 1, location, BOX, "d")

    with pytest.raises(Exception, match=r"not recognized|not a supported|GTiff"):
        open_for_display(ReaderInput(source, storage, MosaicCache(storage.get)))


@pytest.mark.parametrize(
    ("count", "more", "shown"),
    [(8, {}, 3), (4, {"photometric": "rgb", "alpha": "unassociated"}, 3), (2, {}, 1), (1, {}, 1)],
)
def test_one_or_three_bands_are_shown_by_default(storage, tmp_path, count, more, shown):
    bands = np.stack([np.full((64, 64), 10 * n + 5, np.uint8) for n in range(count)])
    location = stored(storage, tmp_path, f"cogs/b{count}{len(more)}/v0/r1/x.tif", bands, BOX, **more)
    src_path = ReaderInput(TileSource("b", SourceKind.COG, 0, 1, location, BOX, "d"), storage, MosaicCache(storage.get))

    with open_for_display(src_path) as opened:
        assert opened.preview().count == shown
        assert opened.tile(*GRID.tile(10.5, 50.5, 9)).array[:, 128, 128].tolist() == [5, 15, 25][:shown]
        assert opened.point(10.5, 50.5).count >= shown


def test_the_first_of_overlapping_cogs_that_has_data_is_shown(storage, tmp_path):
    edition, half = Edition("overlap"), np.full((1, 64, 64), 7, np.uint8)
    half[:, :, 32:] = 0
    stored(storage, tmp_path, edition.cog("a.tif"), half, BOX, nodata=0)
    stored(storage, tmp_path, edition.cog("b.tif"), np.full((1, 64, 64), 9, np.uint8), BOX, nodata=0)
    x, y, z = GRID.tile(10.5, 50.5, 6)
    document = {
        "mosaicjson": "0.0.3",
        "minzoom": 6,
        "maxzoom": 9,
        "quadkey_zoom": 6,
        "bounds": BOX,
        "tiles": {GRID.quadkey(x, y, z): ["a.tif", "b.tif"]},
    }
    location = storage.location(edition.mosaic(), zone=Zone.SILVER)
    storage.put(location, json.dumps(document).encode())
    src_path = ReaderInput(
        TileSource("overlap", SourceKind.MOSAIC, 0, 1, location, BOX, "d"), storage, MosaicCache(storage.get)
    )

    with open_for_display(src_path) as opened:
        assert opened.point(10.2, 50.5).array.tolist() == [7]
        assert opened.point(10.8, 50.5).array.tolist() == [9]
        assert set(np.unique(opened.tile(x, y, z).array.compressed())) == {7, 9}
        assert opened.preview(width=4, height=4).array[0].tolist() == [[7, 7, 9, 9]] * 4


def test_cogs_of_a_tile_are_shown_in_the_order_of_the_mosaic(storage, tmp_path):
    """Each COG has data in ten columns more than the one before; some are listed twice."""
    edition, names = Edition("order"), [f"{n}.tif" for n in range(1, 7)]
    for number, name in enumerate(names, 1):
        pixels = np.full((1, 64, 64), number, np.uint8)
        pixels[:, :, number * 10 :] = 0
        stored(storage, tmp_path, edition.cog(name), pixels, BOX, nodata=0)
    tile = GRID.tile(10.5, 50.5, 6)
    listed = [*names[:2], *names[1:], names[2]]
    document = {
        "mosaicjson": "0.0.3",
        "minzoom": 6,
        "maxzoom": 9,
        "quadkey_zoom": 6,
        "bounds": BOX,
        "tiles": {GRID.quadkey(tile): listed},
    }
    location = storage.location(edition.mosaic(), zone=Zone.SILVER)
    storage.put(location, json.dumps(document).encode())
    src_path = ReaderInput(
        TileSource("order", SourceKind.MOSAIC, 0, 1, location, BOX, "d"), storage, MosaicCache(storage.get)
    )

    with open_for_display(src_path) as opened:
        row = opened.tile(*tile, tilesize=1024).array[0, 600]

    assert list(dict.fromkeys(row.compressed().tolist())) == [1, 2, 3, 4, 5, 6]


def test_a_source_contains_its_version_and_revision():
    edition = Edition("x", 3, 2)
    place = Location(Zone.SILVER, "silver", edition.cog("x.tif"))
    responses = {
        "properties": {"dagmaster:revision": 2, "updated": "2024"},
        "bbox": [170, -10, 0, -170, 10, 9],
        "assets": {"data": {"href": href(place), "file:checksum": "1220ab"}},
    }

    source = cog_source("x", {}, responses, 3)
    again = cog_source("x", {}, {**responses, "properties": {"dagmaster:revision": 2, "updated": "2025"}}, 3)

    assert (source.ordinal, source.revision, source.location) == (3, 2, place)
    assert source.bounds == (170, -10, -170, 10)
    assert source.tag != again.tag
    assert source.tag.startswith("3-2-")


@pytest.mark.parametrize(
    ("more", "edition"),
    [({}, (4, 2)), ({"dagmaster:version_ordinal": 7, "dagmaster:revision": 3}, (7, 3))],
)
def test_the_edition_of_a_mosaic_is_read_from_the_collection_or_the_path(more, edition):
    place = Location(Zone.SILVER, "silver", Edition("x", 4, 2).mosaic())

    source = _mosaic_source("x", {"extent": {"spatial": {"bbox": [list(BOX)]}}, **more}, {"href": href(place)})

    assert (source.ordinal, source.revision) == edition
    assert source.bounds == BOX


def test_without_renders_the_value_range_comes_from_the_statistics():
    band = {"data_type": "uint16", "statistics": {"minimum": 5, "maximum": 4000}}
    rendering = rendering_of({}, {"bands": [band, {"data_type": "uint8", "statistics": {"minimum": 5, "maximum": 9}}]})

    assert rendering.rescale_for([1]) == [(5, 4000)]
    assert rendering.rescale_for([2]) is None
    assert rendering.rescale_for([1, 2]) is None
    assert rendering.rescale_for([9]) is None
    assert rendering.rescale_for(None) is None


def test_renders_of_the_stac_extension_are_read():
    rendering = rendering_of(
        {
            "renders": {
                "default": {"assets": ["data"], "rescale": [[0, 10]], "nodata": "nan", "colormap": {"1": "#ff0000"}}
            }
        },
        {},
    )

    assert rendering.rescale == ((0, 10),)
    assert np.isnan(rendering.nodata)
    assert rendering.colormap == {1: (255, 0, 0, 255)}


@pytest.mark.parametrize(("kind", "stretch"), [("uint8", None), ("uint16", [(0, 255)])])
def test_bytes_with_the_full_range_are_not_rescaled(kind, stretch):
    renders = {"default": {"rescale": [[0, 255]]}}

    assert rendering_of({"renders": renders}, {"bands": [{"data_type": kind}]}).rescale_for(None) == stretch


def test_metadata_without_texts_leaves_title_and_providers_of_an_item_as_they_are():
    item = {"properties": {"title": "Tile 3", "providers": [{"name": "A survey"}]}}
    empty = LayerTexts("digest", {"title": None, "attribution": ""})

    _, described = _described({"id": "dem"}, item, empty)

    assert described == item
